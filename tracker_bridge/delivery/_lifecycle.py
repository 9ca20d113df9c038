"""What the couriers of one run share: has writing ended, how, and how long may delivery still take."""

from __future__ import annotations

import threading
import time


class Lifecycle:
    """Thread-safe. All times are `time.monotonic()` seconds."""

    def __init__(self) -> None:
        # `with` takes a lock in one step. A condition takes its lock in Python, where Ctrl-C in the script's thread may
        # come right after, and leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._ended = False
        self._fallback: str | None = None
        self._until: int | None = None
        self._deadline: float | None = None
        self._nudges = 0
        self._retrying = True

    @property
    def ended(self) -> bool:
        """No record will be appended any more."""
        return self._ended

    @property
    def fallback_status(self) -> str | None:
        """The status to report if neither journal nor `run.json` holds the run's end; None: leave its tracker open."""
        return self._fallback

    @property
    def until(self) -> int | None:
        """The sequence to deliver up to (exclusive), of a journal that goes on; None: all that is there."""
        return self._until

    @property
    def expired(self) -> bool:
        """The time for delivery is over."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def end(self, fallback_status: str | None, until: int | None = None) -> None:
        """Say that nothing more will be appended, or that what is from `until` on is somebody else's."""
        with self._lock:
            if not self._ended:
                self._fallback = fallback_status
                self._until = until
                self._ended = True
            self._changed.notify_all()

    def limit(self, seconds: float) -> None:
        """Allow at most `seconds` more; only ever shortens what was allowed before."""
        with self._lock:
            deadline = time.monotonic() + seconds
            self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
            self._changed.notify_all()

    def stop_retrying(self) -> None:
        """Say that what fails from now on, or has failed and waits, is not tried again; what works goes on."""
        with self._lock:
            self._retrying = False
            self._changed.notify_all()

    def nudge(self) -> None:
        """Wake whoever waits for new records (not those who wait before a retry)."""
        with self._lock:
            self._nudges += 1
            self._changed.notify_all()

    def wait_for_records(self, seconds: float) -> None:
        """Wait at most `seconds`, less if something changes."""
        with self._lock:
            nudges, ended = self._nudges, self._ended
            self._changed.wait_for(lambda: self._nudges != nudges or self._ended != ended or self.expired, seconds)

    def wait_before_retry(self, seconds: float) -> bool:
        """Wait `seconds` or until the time for delivery is over; True if it is over, or nothing is tried again."""
        until = time.monotonic() + seconds
        with self._lock:
            while self._retrying and not self.expired:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                if self._deadline is not None:
                    left = min(left, max(0.0, self._deadline - time.monotonic()))
                self._changed.wait(left)
        return True
