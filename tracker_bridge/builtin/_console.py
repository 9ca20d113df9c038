"""`console`: a line a step on the terminal of the script (thread mode) or in the delivery log (process mode)."""

from __future__ import annotations

import sys
from typing import ClassVar

from tracker_bridge.adapter import Adapter, AlertItem, Batch, Capabilities, Opened, Options, Row, RunInfo, TextItem


class ConsoleOptions(Options, frozen=True, kw_only=True):
    """`most`: at most that many values in one line."""

    most: int = 8


class ConsoleAdapter(Adapter[ConsoleOptions]):
    """Prints rows, texts and alerts to stderr. Control characters of names and texts are shown, not obeyed."""

    options_type = ConsoleOptions
    capabilities: ClassVar[Capabilities] = Capabilities(step_type="float", media=frozenset({"text"}))

    def open(self, run: RunInfo) -> Opened:
        """Nothing to open."""
        self._say(f"run {run.run_id}")
        return Opened()

    def write(self, batch: Batch) -> None:
        """Print the batch."""
        for item in batch.items:
            if isinstance(item, Row):
                shown = [
                    f"{name} {value:.6g}"
                    for name, value in zip(item.names, item.values[: self.options.most], strict=False)
                ]
                more = len(item.names) - len(shown)
                self._say(f"step {item.step}: " + ", ".join(shown) + (f" and {more} more" if more else ""))
            elif isinstance(item, TextItem):
                self._say(f"{item.name}: {item.text}")
            elif isinstance(item, AlertItem):
                self._say(f"step {item.step}: {item.severity}: {item.title}")

    def close(self, status: str | None) -> None:
        """Print the status."""
        if status is not None:
            self._say(f"run {status}")

    def _say(self, text: str) -> None:
        safe = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
        print(safe, file=sys.stderr, flush=True)
