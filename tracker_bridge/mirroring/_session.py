"""Where copied calls go: the run that was given or the current one, as a session of the stand-ins in `compat`."""

from __future__ import annotations

from tracker_bridge.compat._core import Session
from tracker_bridge.compat._coverage import Coverage, say_once
from tracker_bridge.run import Run, current


class Destination:
    """The run to copy into, looked up at each call."""

    def __init__(self, tracker: str, run: Run | None) -> None:
        self._tracker, self._given = tracker, run
        self._session: Session | None = None

    def session(self) -> Session | None:
        """A session of that run, the same as long as the run is; None (said once) if there is no open run."""
        run = self._given if self._given is not None else current()
        if run is None or run._closed:
            say_once(f"mirror of {self._tracker}: there is no open run to copy into; see tracker_bridge.init")
            return None
        if self._session is None or self._session.run is not run:
            self._session = Session(run, Coverage(f"mirror of {self._tracker}", silent=run.dir is None))
        return self._session
