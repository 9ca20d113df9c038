"""Runs out of their journals into files and frames of other tools.

This package reads run directories; it knows no tracker and imports pyarrow and pandas only where they are asked for.
"""

from tracker_bridge.exporters._arrow import METADATA, to_arrow, to_pandas
from tracker_bridge.exporters._export import FORMATS, Exported, Format, export_run, print_run
from tracker_bridge.exporters._items import Selection

__all__ = ["FORMATS", "METADATA", "Exported", "Format", "Selection", "export_run", "print_run", "to_arrow", "to_pandas"]
