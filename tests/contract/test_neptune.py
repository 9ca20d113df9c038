"""Neptune: the conformance suite on the SDK's local database and against a server, and what only Neptune does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tracker_bridge_neptune import NeptuneAdapter

from tests import readback_neptune as readback
from tests.standins.neptune_server import NeptuneServer
from tracker_bridge.testing import AdapterTests, StoredRun

pytest.importorskip("neptune_scale")


@pytest.fixture(autouse=True)
def _no_variables_of_neptune(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NEPTUNE_PROJECT", "NEPTUNE_API_TOKEN", "NEPTUNE_MODE", "NEPTUNE_LOG_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


class _NeptuneTests(AdapterTests):
    adapter_type = NeptuneAdapter
    steps = (0, 10**12 - 1)
    context = ("script", "host", "user", "git_commit")


class TestNeptuneOffline(_NeptuneTests):
    """The local database, read with Neptune's own protobufs."""

    def options(self) -> Mapping[str, Any]:
        return {"mode": "offline", "log_directory": str(self.place / "neptune")}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        folder = self.place / "neptune"
        return readback.stored_run(readback.read_run(folder, ids["run_id"]), readback.uploads(folder, ids["run_id"]))


@pytest.mark.slow
class TestNeptuneOnline(_NeptuneTests):
    """A server, which applies its own rules, through the SDK's own upload process."""

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with NeptuneServer() as self.server:
            yield

    def options(self) -> Mapping[str, Any]:
        folder = str(self.place / "neptune")
        return {"mode": "async", "project": "team/suite", "api_token": self.server.token, "log_directory": folder}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        run = self.server.runs[ids["run_id"]]
        assert not run.refused
        return readback.stored_run(run, self.server.files)
