"""What a run's journal tells a reader: a diagnosis, terminal views, a self-contained HTML report, a picture.

Reads run directories; writes only the file that it is asked for. Imports no torch, no tracker, no plotting library
until a picture is asked for.
"""

from tracker_bridge.report._diagnose import Line, diagnosis, story_lines, verdict
from tracker_bridge.report._html import render_report, write_report
from tracker_bridge.report._picture import write_picture
from tracker_bridge.report._story import SEVERITIES, Model, Series, Story, configured_rules, read_story
from tracker_bridge.report._terminal import heatmap, layer_table
from tracker_bridge.report._totals import norm_of

__all__ = [
    "SEVERITIES",
    "Line",
    "Model",
    "Series",
    "Story",
    "configured_rules",
    "diagnosis",
    "heatmap",
    "layer_table",
    "norm_of",
    "read_story",
    "render_report",
    "story_lines",
    "verdict",
    "write_picture",
    "write_report",
]
