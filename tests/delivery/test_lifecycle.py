"""What the script's thread shares with delivery in thread mode: Ctrl-C in the wrong place must leave nothing locked."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tracker_bridge.delivery import Lifecycle
from tracker_bridge.run._pending import PendingRecords


def interrupted_at_locks(action: Callable[[], object]) -> None:
    """Do `action` with Ctrl-C right after each place of `threading`'s Python code that has taken a lock."""

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "return" and frame.f_code.co_name == "__enter__" and frame.f_code.co_filename == threading.__file__:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)


def nothing(_record: object) -> None: ...


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lifecycle().nudge,
        lambda: functools.partial(Lifecycle().end, "finished"),
        lambda: functools.partial(Lifecycle().limit, 1.0),
        lambda: PendingRecords(nothing, nothing).stop,
    ],
    ids=["nudge", "end", "limit", "stop"],
)
def test_what_ctrl_c_has_interrupted_can_be_done_again(make: Callable[[], Callable[[], object]]) -> None:
    """The second call, from another thread, returns (naive: a condition's lock is never freed, and `close` hangs)."""
    action = make()
    interrupted_at_locks(action)
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
