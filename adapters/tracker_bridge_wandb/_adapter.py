"""The adapter: its options and capabilities, and a `RunWriter` while it is open.

The bridge's step is the column `global_step`, the x axis of every chart; W&B's `_step` counts rows, so late and
repeated steps are kept, and fractional ones exactly. What is logged at one step is one row as long as no other step
comes between; the last row is held until a larger step, or the end. Params keep their nesting, tags are strings of at
most 64 characters (`name` or `name:value`), texts are HTML media, histograms and images are W&B's own, files are files
of the run. The experiment is the group. The run's id is W&B's, too; a second W&B backend of a run adds its name to it.
Originals of changed series names are in the config under `tracker_bridge_names`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracker_bridge.adapter import Capabilities, Opened, ParamRule, Requirement, RunInfo, TagRule, WriterAdapter
from tracker_bridge_wandb._options import WandbOptions
from tracker_bridge_wandb._values import MAX_PARAM, MAX_ROW_POINTS, MAX_TAG, NAMES

if TYPE_CHECKING:
    from tracker_bridge_wandb._run import RunWriter


class WandbAdapter(WriterAdapter[WandbOptions]):
    """Writes W&B history, offline or to a server."""

    options_type = WandbOptions
    capabilities = Capabilities(
        max_points=100_000,
        max_items=10_000,
        max_row=MAX_ROW_POINTS,
        steps="any",
        step_type="float",
        non_finite="native",
        duplicates="ignored",
        names=NAMES,
        params=ParamRule(separator=None, typed=True, mutable=True, max_value_length=MAX_PARAM),
        tags=TagRule(form="list", max_length=MAX_TAG),
        media=frozenset({"text", "histogram", "artifact", "image"}),
    )
    requires = (Requirement("wandb", "tracker-bridge[wandb]"),)

    writer: RunWriter | None = None

    def open(self, run: RunInfo) -> Opened:
        """Begin or continue the run; send what a server should have from earlier logs. Raises `RetryLater`."""
        from tracker_bridge_wandb._run import RunWriter

        if self.writer is None:
            self.writer = RunWriter(self.options, run)
        return self.writer.open()

    def server(self) -> str | None:
        """The configured server."""
        mode = self.options.mode or os.environ.get("WANDB_MODE") or "online"
        if mode != "online":
            return None
        configured = self.options.settings.get("base_url") or os.environ.get("WANDB_BASE_URL")
        return str(configured or "https://api.wandb.ai")
