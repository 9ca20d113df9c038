"""The adapter: its options and capabilities, and a `RunWriter` while it is open.

Params keep their names (`/` joins nested keys); what Neptune has no type for is text, cut visibly at 256,000
characters. A text or a file without a step is a single value, with a step a series. Histograms have at most 512 bins
(neighbours are merged). A name that is already used for another kind of data gets the kind at its end (`loss/value`,
`loss/text`, `loss/texts`, `loss/histogram`, `loss/file`, `loss/files`). An alert is a text in the series
`health/<rule>/alerts`. Neptune has no run status for clients to set: it is the attribute `tracker_bridge/status`.
The run's id is Neptune's, too; a second Neptune backend of a run adds its name to it.
Originals of changed names are `tracker_bridge/names/<name>`.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from tracker_bridge.adapter import (
    Capabilities,
    Opened,
    ParamRule,
    Requirement,
    RunInfo,
    TagRule,
    WriterAdapter,
)
from tracker_bridge_neptune._options import NeptuneOptions, mode_of
from tracker_bridge_neptune._values import MAX_TEXT, NAMES

if TYPE_CHECKING:
    from tracker_bridge_neptune._run import RunWriter


class NeptuneAdapter(WriterAdapter[NeptuneOptions]):
    """Writes Neptune's local database, and lets the SDK's process send it where `mode` is `async`."""

    options_type = NeptuneOptions
    capabilities = Capabilities(
        max_points=100_000,
        max_items=10_000,
        steps="increasing",
        step_type="float",
        non_finite="native",
        duplicates="ignored",
        names=NAMES,
        params=ParamRule(
            separator="/", typed=True, mutable=True, max_key_length=NAMES.max_length, max_value_length=MAX_TEXT
        ),
        tags=TagRule(form="list", max_length=MAX_TEXT),
        media=frozenset({"text", "histogram", "artifact", "image"}),
    )
    requires = (Requirement("neptune_scale", "tracker-bridge[neptune]"),)

    writer: RunWriter | None = None

    _refused: Mapping[str, int] = MappingProxyType({})

    def open(self, run: RunInfo) -> Opened:
        """Begin a database for the run; first send what earlier ones still hold. Raises `RetryLater`, `ValueError`."""
        from tracker_bridge_neptune._process import quiet_logs

        with quiet_logs():
            from tracker_bridge_neptune._run import RunWriter
        if self.writer is None:
            self.writer = RunWriter(self.options, run)
        return self.writer.open()

    def refused(self) -> Mapping[str, int]:
        """What a server answered about data that it had been sent, by the SDK's name of the error."""
        if self.writer is not None:
            from tracker_bridge_neptune._process import FATAL

            counts = self.writer.refused.items()
            self._refused = {f"Neptune: {kind}": count for kind, count in counts if kind not in FATAL}
        return self._refused

    def close(self, status: str | None) -> None:
        """End the run. Raises `RetryLater` naming the database if a server has not taken everything."""
        if self.writer is not None:
            self.writer.close(status)
            self.refused()
            self.writer = None

    def server(self) -> str | None:
        """The API address inside the token."""
        token = self.options.api_token or os.environ.get("NEPTUNE_API_TOKEN")
        if token is None or mode_of(self.options) != "async":
            return None
        try:
            return str(json.loads(base64.b64decode(token))["api_url"])
        except (binascii.Error, ValueError, KeyError, TypeError):
            return None
