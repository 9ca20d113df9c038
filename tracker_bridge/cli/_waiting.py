"""What `sync` shows of one run while it is delivered, and when it has waited long enough. Reads states only."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.text import Text

from tracker_bridge.cli._output import plural, visible
from tracker_bridge.rundir import BackendState

_AGAIN = 30.0
"""Seconds after which a line that says the same is printed again, off a terminal."""
_APART = 5.0
"""Seconds between two lines about one backend, whatever they say: error texts may hold times and addresses."""
_LONGEST = 200


class OutOfPatienceError(Exception):
    """No backend got anything done for so long."""


@dataclass(slots=True)
class _Backend:
    left: int
    task: TaskID | None = None
    progress: tuple[int, int] = (0, 0)
    line: str = ""
    told: float = 0.0


class Waiting:
    """Call it with the states of a run's backends, many times a second.

    `pending`: records that each backend had to get at the start. Raises `OutOfPatienceError` when for `patience`
    seconds every backend that is not done was opening, retrying or down and none got anything done. One that is healthy
    is at work, however long its tracker takes to answer.
    """

    def __init__(
        self, run_id: str, end: int, pending: dict[str, int], patience: float, console: Console, bars: Progress | None
    ) -> None:
        self._run, self._end, self._patience, self._console, self._bars = run_id, end, patience, console, bars
        self._begun_ns = time.time_ns()
        self._moved = time.monotonic()
        self._backends = {name: _Backend(left) for name, left in pending.items()}
        if bars is not None:
            for name, backend in self._backends.items():
                backend.task = bars.add_task(self._title(name), total=end, completed=end - backend.left, note="")

    def __call__(self, states: dict[str, BackendState]) -> None:
        """Show what has changed. Raises `OutOfPatienceError`."""
        now = time.monotonic()
        waiting = False
        for name, backend in self._backends.items():
            state = states.get(name, BackendState())
            fresh = state.updated_ns >= self._begun_ns  # else it is how an earlier delivery left it
            progress = (state.position.sequence, state.points)
            done = state.position.sequence >= self._end and state.health in ("healthy", "closed")
            if progress != backend.progress or (fresh and state.health == "healthy"):
                backend.progress = progress
                self._moved = now
            backend.left = max(0, self._end - state.position.sequence)
            waiting = waiting or not done
            self._show(name, backend, state if fresh else BackendState(), now)
        if waiting and now - self._moved > self._patience:
            raise OutOfPatienceError(f"no backend got anything done for {self._patience:.4g} s (--patience)")

    def _show(self, name: str, backend: _Backend, state: BackendState, now: float) -> None:
        trouble = ""
        if state.health in ("retrying", "down") and state.last_error:
            error = " ".join(visible(state.last_error.replace("\n", " ")).split())
            trouble = error if len(error) <= _LONGEST else error[: _LONGEST - 3] + "..."
        if self._bars is not None and backend.task is not None:
            note = f"{state.health}: {trouble}" if trouble else ""
            self._bars.update(backend.task, completed=self._end - backend.left, note=note)
        elif trouble:
            line = f"{self._title(name)}: {state.health}, {plural(backend.left, 'record')} left: {trouble}"
            if now - backend.told >= (_AGAIN if line == backend.line else _APART):
                backend.line, backend.told = line, now
                self._console.print(Text(line), soft_wrap=True)

    def _title(self, name: str) -> str:
        return visible(f"{self._run} > {name}")
