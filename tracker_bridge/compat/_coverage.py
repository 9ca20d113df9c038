"""What became of a shimmed script's calls: translated, degraded or not carried, counted, and said once per kind.

Counting is what a logging call pays here: one dictionary update. Texts go to standard error only.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Literal

Outcome = Literal["translated", "degraded", "not carried"]


class Coverage:
    """The calls of one run of one tracker's API. `calls` counts translated ones by the name of the call.

    `degraded` and `not_carried` hold for each kind how often it came and, in words, what became of it.
    """

    def __init__(self, tracker: str, *, silent: bool = False) -> None:
        self.tracker = tracker
        self.calls: dict[str, int] = {}
        self.degraded: dict[str, tuple[int, str]] = {}
        self.not_carried: dict[str, tuple[int, str]] = {}
        self._silent = silent

    def translate(self, call: str) -> None:
        """Count a call that was carried whole."""
        self.calls[call] = self.calls.get(call, 0) + 1

    def degrade(self, kind: str, what: str) -> None:
        """Count something that was carried in another form, and say once what form."""
        self._note(self.degraded, kind, what)

    def leave_out(self, kind: str, why: str, *, quiet: bool = False) -> None:
        """Count something that was not carried, and say once why; `quiet`: only in the report."""
        self._note(self.not_carried, kind, why, quiet=quiet)

    def _note(self, into: dict[str, tuple[int, str]], kind: str, text: str, *, quiet: bool = False) -> None:
        count, _ = into.get(kind, (0, ""))
        into[kind] = (count + 1, text)
        if not count and not quiet and not self._silent:
            say_once(f"{self.tracker}: {kind}: {text}")

    def as_data(self) -> dict[str, Any]:
        """Plain data: outcome -> kind -> count and, but for translated calls, the text."""

        def told(notes: dict[str, tuple[int, str]]) -> dict[str, Any]:
            return {kind: {"count": count, "what": text} for kind, (count, text) in notes.items()}

        return {
            "tracker": self.tracker,
            "translated": dict(self.calls),
            "degraded": told(self.degraded),
            "not carried": told(self.not_carried),
        }

    def lines(self, run_id: str) -> list[str]:
        """The report."""
        counts = "  ".join(f"{call} {count:,}" for call, count in self.calls.items()) or "nothing"
        lines = [f"coverage of {self.tracker} calls in run {run_id}", f"  translated   {counts}"]
        for outcome, notes in (("degraded", self.degraded), ("not carried", self.not_carried)):
            lines += [f"  {outcome:<11}  {kind} {count:,} ({text})" for kind, (count, text) in notes.items()]
        return lines


_said: set[str] = set()
# Once per kind and process: a script with a hundred runs says it once.


def say_once(text: str) -> None:
    """Say something on standard error, unless this process has said it before."""
    if text not in _said:
        _said.add(text)
        say(text)


def say(text: str) -> None:
    """Write lines to standard error, each with the library's name in front."""
    with contextlib.suppress(Exception):
        sys.stderr.write("".join(f"tracker_bridge: {line}\n" for line in text.splitlines()))
