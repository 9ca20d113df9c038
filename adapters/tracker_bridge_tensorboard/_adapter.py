"""The adapter: its options and capabilities, and a `RunWriter` while it is open.

In `log_dir/<project>/<experiment>/<name>-<run id>` lie: one event file with the series for each opening; two small ones
with what is known about the run and with its status; `params.json`; and sub-runs `late`, `late-2`, ... with the points
whose step went back. Degraded: tags, params and alerts are texts, artifacts but PNG and JPEG are a text with the path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracker_bridge.adapter import (
    Capabilities,
    NameRule,
    Opened,
    ParamRule,
    Requirement,
    RunInfo,
    TagRule,
    WriterAdapter,
)
from tracker_bridge_tensorboard._options import TensorBoardOptions

if TYPE_CHECKING:
    from tracker_bridge_tensorboard._run import RunWriter

_NAMES = NameRule(
    # The page asks for a tag in a URL, which servers cut at 64 KiB; a character can take 12 bytes there.
    max_length=1_000,
    # Tags that this adapter makes for texts, histograms and images, and the hparams plugin's own.
    reserved=(r".*/(text_summary|histogram|image)", r"_hparams_/.*", r"tracker_bridge/.*"),
)


class TensorBoardAdapter(WriterAdapter[TensorBoardOptions]):
    """Writes event files that the `tensorboard` server and its Python readers show without loss."""

    options_type = TensorBoardOptions
    capabilities = Capabilities(
        max_points=100_000,
        max_items=10_000,
        steps="late_run",
        step_type="int",
        non_finite="native",
        value_type="float32",
        duplicates="ignored",
        names=_NAMES,
        params=ParamRule(separator="/", typed=True, mutable=True),
        tags=TagRule(form="text"),
        media=frozenset({"text", "histogram", "image"}),
    )
    requires = (
        Requirement("tensorboard", "tracker-bridge[tensorboard]"),
        Requirement("google_crc32c", "tracker-bridge[tensorboard]"),
    )

    writer: RunWriter | None = None

    def open(self, run: RunInfo) -> Opened:
        """Create or continue the run's directory. Raises `RetryLater` if it cannot be written."""
        from tracker_bridge_tensorboard._run import open_run

        self.writer = open_run(self.options, run, self.capabilities.names)
        directory = self.writer.directory
        return Opened(ids={"log_dir": str(directory)}, url=directory.as_uri())
