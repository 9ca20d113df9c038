"""TensorBoard through event files: one event with all values of a step, no torch, no TensorFlow, no writer thread.

What goes where in a run's directory is told in `_adapter`; how a row becomes bytes in `_encoding`; why rows that come
late lie in sub-runs in `_lanes`. This package may import the public contract `tracker_bridge.adapter` only.
"""

from tracker_bridge_tensorboard._adapter import TensorBoardAdapter
from tracker_bridge_tensorboard._options import TensorBoardOptions

__all__ = ["TensorBoardAdapter", "TensorBoardOptions"]
