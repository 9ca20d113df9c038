"""Runs that other trackers left behind, read into records and journals.

Foreign files are hostile until read: nothing is unpickled, nothing is executed, no file outside of the given path is
read on their word, and memory follows what the bytes back, never what they claim. This package knows the foreign
formats and needs none of their SDKs (a remote MLflow server excepted). It imports neither torch nor an adapter.
"""

from tracker_bridge.importers._model import Damage, ForeignFormatError, ForeignRun, Reading, refuse
from tracker_bridge.importers._registry import KINDS, discover

__all__ = ["KINDS", "Damage", "ForeignFormatError", "ForeignRun", "Reading", "discover", "refuse"]
