"""Runs that other trackers left behind, read into records and journals.

Foreign files are hostile until read: nothing is unpickled, nothing is executed, no file outside of the given path is
read on their word, and memory follows what the bytes back, never what they claim. This package knows the foreign
formats and needs none of their SDKs (MLflow stores other than sqlite and files excepted). It imports neither torch
nor an adapter.
"""

from tracker_bridge.importers._journal import Outcome, import_run
from tracker_bridge.importers._model import Damage, ForeignFormatError, ForeignRun, Reading, refuse
from tracker_bridge.importers._registry import KINDS, discover
from tracker_bridge.importers._tree import ImportReport, import_tree

__all__ = [
    "KINDS",
    "Damage",
    "ForeignFormatError",
    "ForeignRun",
    "ImportReport",
    "Outcome",
    "Reading",
    "discover",
    "import_run",
    "import_tree",
    "refuse",
]
