"""For the tests of an adapter: the conformance suite to subclass, and adapters that record, fail or are slow.

    from tracker_bridge.testing import AdapterTests, StoredRun

    class TestMyAdapter(AdapterTests):
        adapter_type = MyAdapter

        def options(self):
            return {"folder": str(self.place / "store")}

        def read_back(self, ids):
            return StoredRun(metrics=..., params=...)   # from what the tracker itself stored

The suite needs pytest; the wrappers do not. Nothing here is imported by the rest of the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracker_bridge.testing._doubles import FaultyAdapter, RecordingAdapter, SlowAdapter
from tracker_bridge.testing._stored import Point, StoredRun
from tracker_bridge.testing._trial import Trial

if TYPE_CHECKING:
    from tracker_bridge.testing._suite import AdapterTests

__all__ = ["AdapterTests", "FaultyAdapter", "Point", "RecordingAdapter", "SlowAdapter", "StoredRun", "Trial"]


def __getattr__(name: str) -> Any:
    if name != "AdapterTests":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    pytest.register_assert_rewrite("tracker_bridge.testing._suite")
    from tracker_bridge.testing._suite import AdapterTests

    return AdapterTests
