"""A loopback stand-in for the W&B server: what the SDK's online mode asks for, kept so that a test can read it back.

It stores history lines by their file-stream offset, as the real server does (a line sent again at the same offset
replaces itself), and knows nothing of artifacts, sweeps or the public query API beyond run counters.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.standins.loopback import FaultHook, LoopbackServer, Reply, Request

API_KEY = "0123456789" * 4
ENTITY = "loopback"


@dataclass(slots=True)
class StoredRun:
    """One run as the server knows it. `history` maps a line's offset to its content."""

    name: str
    project: str
    upserts: list[dict[str, Any]] = field(default_factory=list)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    resent: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    output: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    complete: bool = False

    @property
    def rows(self) -> list[dict[str, Any]]:
        """History in order."""
        return [self.history[offset] for offset in sorted(self.history)]

    def last(self, key: str) -> Any:
        """The last value that any upsert gave to `key` (displayName, tags, groupName, ...)."""
        values = [upsert[key] for upsert in self.upserts if upsert.get(key) is not None]
        return values[-1] if values else None

    @property
    def config(self) -> dict[str, Any]:
        """The last config, without W&B's own `_wandb` entry."""
        config = json.loads(self.last("config") or "{}")
        return {key: entry["value"] for key, entry in config.items() if key != "_wandb"}


class WandbServer(LoopbackServer):
    """Kinds: the GraphQL operation's name (`UpsertBucket`, ...), `file_stream`, `upload`, `telemetry`, `other`."""

    def __init__(self, faults: FaultHook | None = None, *, port: int = 0) -> None:
        self.runs: dict[str, StoredRun] = {}
        super().__init__(faults, port=port)

    @property
    def environ(self) -> dict[str, str]:
        """What a process must have in its environment to use this server."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": API_KEY, "WANDB_MODE": "online"}

    def classify(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> str:
        """See the class."""
        if path.startswith("/graphql"):
            payload = json.loads(body)
            found = re.search(r"(?:query|mutation)\s+(\w+)", payload.get("query") or "")
            return payload.get("operationName") or (found[1] if found else "graphql")
        if path.endswith("/file_stream"):
            return "file_stream"
        if path.startswith("/upload/"):
            return "upload"
        return "telemetry" if "otel" in path else "other"

    def answer(self, request: Request) -> Reply:
        """Apply and reply."""
        if request.path.startswith("/graphql"):
            payload = json.loads(request.body)
            return _json(
                {"data": self._graphql(request.kind, payload.get("query", ""), payload.get("variables") or {})}
            )
        if request.kind == "file_stream":
            body = request.body
            if request.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            self._stream(request.path.split("/")[-2], json.loads(body))
            return _json({"limits": {}, "stopped": False})
        if request.kind == "upload":
            _, _, run, name = request.path.split("/", 3)
            self.runs[run].files[name] = request.body
            return Reply()
        return Reply(404)

    def _graphql(self, operation: str, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if operation == "UpsertBucket":
            name = variables["name"]
            inserted = name not in self.runs
            run = self.runs.setdefault(name, StoredRun(name, variables.get("project") or "uncategorized"))
            run.upserts.append(variables)
            about = (json.loads(variables.get("config") or "{}").get("_wandb") or {}).get("value") or {}
            for environment in (about.get("e") or {}).values():
                run.environment |= environment
            return {"upsertBucket": {"bucket": self._bucket(run), "inserted": inserted}}
        if operation == "RunResumeStatus":
            run = self.runs.get(variables["name"])
            return {"model": {"id": "p", "name": "p", "entity": _ENTITY, "bucket": run and self._resume(run)}}
        if operation == "CreateRunFiles":
            run = self.runs[variables["run"]]
            files = [{"name": f, "uploadUrl": f"{self.url}/upload/{run.name}/{f}"} for f in variables["files"]]
            return {"createRunFiles": {"runID": run.name, "uploadHeaders": [], "files": files}}
        if operation in ("Viewer", "GetDefaultEntity"):
            viewer = {"id": "u", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}"}
            return {"viewer": {**viewer, "teams": {"edges": []}}}
        if "notifyScriptableRunAlert" in query:
            run = self.runs.get(variables.get("runName") or variables.get("runID") or "") or [*self.runs.values()][-1]
            run.alerts.append(variables)
            return {"notifyScriptableRunAlert": {"success": True}}
        if operation == "RunStoppedStatus":
            return {"project": {"run": {"stopped": False}}}
        if operation == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if operation == "Run":
            run = self.runs.get(variables.get("name") or variables.get("run") or "")
            return {"project": {"internalId": "1", "run": run and self._queried(run)}}
        return {}

    def _bucket(self, run: StoredRun) -> dict[str, Any]:
        return {
            "id": f"id-{run.name}",
            "name": run.name,
            "displayName": run.last("displayName") or run.name,
            "description": "",
            "config": run.last("config") or "{}",
            "sweepName": None,
            "project": {"id": "p", "name": run.project, "entity": _ENTITY},
            "historyLineCount": len(run.history),
        }

    def _queried(self, run: StoredRun) -> dict[str, Any]:
        user = {"name": ENTITY, "username": ENTITY}
        return {**self._resume(run), "state": "finished", "user": user, "projectId": "1", "sweepName": None}

    def _resume(self, run: StoredRun) -> dict[str, Any]:
        return {
            **self._bucket(run),
            "historyTail": json.dumps([json.dumps(row) for row in run.rows[-1:]]),
            "eventsTail": "[]",
            "logLineCount": len(run.output),
            "eventsLineCount": 0,
            "summaryMetrics": json.dumps(run.summary),
            "tags": run.last("tags") or [],
            "wandbConfig": json.dumps({"t": 1}),
        }

    def _stream(self, name: str, body: dict[str, Any]) -> None:
        run = self.runs[name]
        for file, chunk in (body.get("files") or {}).items():
            if file == "wandb-history.jsonl":
                for offset, line in enumerate(chunk["content"], chunk["offset"]):
                    run.resent += offset in run.history
                    run.history[offset] = json.loads(line)
            elif file == "wandb-summary.json":
                run.summary = json.loads(chunk["content"][-1])
            elif file == "output.log":
                run.output += chunk["content"]
        if body.get("complete"):
            run.complete, run.exit_code = True, body.get("exitcode")


_ENTITY = {"id": "e", "name": ENTITY}


def _json(value: Any) -> Reply:
    return Reply(body=json.dumps(value).encode(), headers={"Content-Type": "application/json"})
