"""W&B: the conformance suite on offline logs and against a server, and what only W&B does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tracker_bridge_wandb import WandbAdapter

from tests import readback_wandb as readback
from tests.standins.wandb_server import API_KEY, WandbServer
from tracker_bridge.testing import AdapterTests, StoredRun

pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def _no_variables_of_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROJECT", "API_KEY", "MODE", "DIR", "ENTITY", "RUN_ID", "NAME", "BASE_URL", "TAGS", "RUN_GROUP"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)


class _WandbTests(AdapterTests):
    adapter_type = WandbAdapter
    statuses: Mapping[str, str] = {"finished": "0", "failed": "1", "killed": "255", "crashed": "2"}
    context = ("script", "arguments", "host", "user", "git_commit")


class TestWandbOffline(_WandbTests):
    """The `.wandb` logs, read with wandb's own protobufs."""

    def options(self) -> Mapping[str, Any]:
        return {"mode": "offline", "dir": str(self.place / "logs")}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        return readback.stored_run(readback.read_run(self.place / "logs", ids["run_id"]))


class TestWandbOnline(_WandbTests):
    """A server."""

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with WandbServer() as self.server:
            yield

    def options(self) -> Mapping[str, Any]:
        settings = {"base_url": self.server.url, "api_key": API_KEY, "x_file_stream_transmit_interval": 1}
        return {"mode": "online", "dir": str(self.place / "logs"), "settings": settings}

    def read_back(self, ids: Mapping[str, str]) -> StoredRun:
        run = self.server.runs[ids["run_id"]]
        assert not run.resent
        return readback.stored_run(run)
