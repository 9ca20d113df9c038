"""The adapter: its options and capabilities, and a `RunWriter` while it is open.

Degraded: texts, histograms (JSON) and alerts are artifacts `texts/...`, `histograms/...`, `alerts/...`; a plain tag
`t` is `t = true`; params are text (cut visibly at 6,000 characters; `params.json` has the whole), and since MLflow
never changes a param, a changed one is the tag `param_changed.<name>`. Originals of changed series names are in the
artifact `tracker_bridge/names.json`. `open` sets MLflow's own variables for retries and time-outs in this process to
short ones, unless they are set.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracker_bridge.adapter import Capabilities, Opened, ParamRule, Requirement, RunInfo, TagRule, WriterAdapter
from tracker_bridge_mlflow._fitting import LONGEST_NAME, LONGEST_PARAM, LONGEST_TAG, MOST_PARAMS, NAMES, SEPARATOR
from tracker_bridge_mlflow._identity import without_credentials
from tracker_bridge_mlflow._options import MlflowOptions

if TYPE_CHECKING:
    from tracker_bridge_mlflow._run import RunWriter


class MlflowAdapter(WriterAdapter[MlflowOptions]):
    """Logs to an MLflow server or a local sqlite store."""

    options_type = MlflowOptions
    capabilities = Capabilities(
        # Not the size of a request: the more steps of a series come together, the fewer updates of its latest value.
        max_points=20_000,
        max_items=10_000,
        steps="any",
        step_type="int",
        # An infinity would become the largest double.
        non_finite="nan",
        duplicates="ignored",
        names=NAMES,
        params=ParamRule(
            separator=SEPARATOR,
            typed=False,
            mutable=False,
            max_key_length=LONGEST_NAME,
            max_value_length=LONGEST_PARAM,
            max_per_request=MOST_PARAMS,
        ),
        tags=TagRule(form="mapping", max_length=LONGEST_TAG),
        media=frozenset({"text", "artifact", "image"}),
    )
    requires = (Requirement("mlflow", "tracker-bridge[mlflow]"),)

    writer: RunWriter | None = None

    def server(self) -> str | None:
        """The tracking server, None for a local store."""
        uri = self.options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
        return without_credentials(uri) if uri.startswith(("http://", "https://")) else None

    def open(self, run: RunInfo) -> Opened:
        """Find or create the experiment and the run. Raises `RetryLater`."""
        from tracker_bridge_mlflow._run import open_run

        self.writer = open_run(self.options, run)
        return self.writer.opened
