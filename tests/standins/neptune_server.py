"""A loopback stand-in for a Neptune 3 server: what neptune-scale's online mode asks for, kept for reading back.

It applies operations in the order of their arrival with the server's own rule that steps of a series only grow: a
point that repeats the last step with the same value is `SERIES_POINT_DUPLICATE`, any other that does not grow is
`SERIES_STEP_NON_INCREASING`; both are counted and reported to the client, not stored.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from neptune_api.proto.google_rpc.code_pb2 import Code
from neptune_api.proto.neptune_pb.ingest.v1.common_pb2 import SET_OPERATION, UpdateRunSnapshot, Value
from neptune_api.proto.neptune_pb.ingest.v1.ingest_pb2 import IngestCode
from neptune_api.proto.neptune_pb.ingest.v1.pub.client_pb2 import BulkRequestStatus, RequestIdList, SubmitResponse
from neptune_api.proto.neptune_pb.ingest.v1.pub.ingest_pb2 import RunOperation
from neptune_api.proto.neptune_pb.ingest.v1.pub.request_status_pb2 import RequestStatus

from tests.standins.loopback import FaultHook, LoopbackServer, Reply, Request


@dataclass(slots=True)
class StoredRun:
    """One run as the server knows it. A series is a list of (step, value, seconds since the epoch)."""

    run_id: str
    project: str
    created: int = 0
    experiment: str = ""
    series: dict[str, list[tuple[float, Any, float]]] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, set[str]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)


class NeptuneServer(LoopbackServer):
    """Kinds: `config`, `oidc`, `auth`, `refresh`, `ingest`, `check`, `sign`, `upload`, `other`."""

    def __init__(self, faults: FaultHook | None = None, *, port: int = 0) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.files: dict[str, bytes] = {}
        self._verdicts: dict[str, int] = {}
        super().__init__(faults, port=port)

    @property
    def token(self) -> str:
        """An API token that leads here."""
        return base64.b64encode(json.dumps({"api_address": self.url, "api_url": self.url}).encode()).decode()

    @property
    def environ(self) -> dict[str, str]:
        """What a process must have in its environment to use this server."""
        return {"NEPTUNE_API_TOKEN": self.token, "NEPTUNE_MODE": "async"}

    def classify(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> str:
        """See the class."""
        path = urlsplit(path).path
        return _KINDS.get(path) or ("upload" if path.startswith("/upload/") else "other")

    def answer(self, request: Request) -> Reply:
        """Apply and reply."""
        url = self.url
        if request.kind == "config":
            security = {"clientId": "x", "openIdDiscovery": f"{url}/oidc"}
            return _json({"apiUrl": url, "applicationUrl": url, "pyLibVersions": {}, "security": security})
        if request.kind == "oidc":
            return _json({"authorization_endpoint": f"{url}/auth", "token_endpoint": f"{url}/token"})
        if request.kind == "auth":
            return _json({"accessToken": _jwt(), "refreshToken": "r", "username": "u"})
        if request.kind == "refresh":
            return _json({"access_token": _jwt(), "refresh_token": "r"})
        if request.kind == "ingest":
            identifier = f"request-{request.number}"
            self._verdicts[identifier] = self._ingest(RunOperation.FromString(request.body))
            return _proto(SubmitResponse(request_ids=[identifier]))
        if request.kind == "check":
            asked = RequestIdList.FromString(request.body)
            return _proto(BulkRequestStatus(statuses=[_status(self._verdicts.get(i.value, 0)) for i in asked.ids]))
        if request.kind == "sign":
            signed = [
                {
                    "path": file["path"],
                    "project_identifier": file["project_identifier"],
                    "provider": "aws",
                    "url": f"{url}/upload/{file['path']}",
                }
                for file in json.loads(request.body)["files"]
            ]
            return _json({"files": signed})
        if request.kind == "upload":
            self.files[request.path.removeprefix("/upload/")] = request.body
            return Reply(headers={"ETag": '"etag"'})
        return Reply(404)

    def _ingest(self, operation: RunOperation) -> int:
        run = self.runs.setdefault(operation.run_id, StoredRun(operation.run_id, operation.project))
        if operation.HasField("create"):
            run.created += 1
            run.experiment = operation.create.experiment_id or run.experiment
            return int(IngestCode.RUN_DUPLICATE) if run.created > 1 else 0
        updates = [operation.update] if operation.HasField("update") else operation.update_batch.snapshots
        verdict = 0
        for update in updates:
            verdict = self._apply(run, update) or verdict
        return verdict

    def _apply(self, run: StoredRun, update: UpdateRunSnapshot) -> int:
        verdict = 0
        step = update.step.whole + update.step.micro / 1e6
        seconds = update.timestamp.seconds + update.timestamp.nanos / 1e9
        for name, value in update.append.items():
            points = run.series.setdefault(name, [])
            plain = plain_value(value)
            if points and type(plain) is not type(points[-1][1]):
                run.refused["FIELD_TYPE_CONFLICTING"] += 1
                verdict = int(IngestCode.FIELD_TYPE_CONFLICTING)
            elif points and step <= points[-1][0]:
                same = step == points[-1][0] and _same(plain, points[-1][1])
                code = IngestCode.SERIES_POINT_DUPLICATE if same else IngestCode.SERIES_STEP_NON_INCREASING
                run.refused[IngestCode.Name(code)] += 1
                verdict = int(code)
            else:
                points.append((step, plain, seconds))
        for name, value in update.assign.items():
            run.attributes[name] = plain_value(value)
        for name, change in update.modify_sets.items():
            tags = run.tags.setdefault(name, set())
            for tag, what in change.string.values.items():
                (tags.add if what == SET_OPERATION.ADD else tags.discard)(tag)
        return verdict


def plain_value(value: Value) -> Any:
    """A protobuf value as a plain one: float, int, bool, str, list of str; dict for files and histograms."""
    kind = value.WhichOneof("value")
    if kind == "string_set":
        return sorted(value.string_set.values)
    if kind == "file_ref":
        return {"path": value.file_ref.path, "size": value.file_ref.size_bytes, "mime": value.file_ref.mime_type}
    if kind == "histogram":
        counts = value.histogram.counts.values or value.histogram.densities.values
        return {"edges": list(value.histogram.bin_edges), "counts": list(counts)}
    if kind == "timestamp":
        return value.timestamp.seconds + value.timestamp.nanos / 1e9
    return getattr(value, kind)


_KINDS = {
    "/api/backend/v1/clients/config": "config",
    "/oidc": "oidc",
    "/api/backend/v1/authorization/oauth-token": "auth",
    "/token": "refresh",
    "/api/client/v1/ingest": "ingest",
    "/api/client/v1/ingest/check": "check",
    "/api/storagebridge/v1/signedUrl": "sign",
}


def project_of(request: Request) -> str:
    """The project that a `check` request names."""
    return parse_qs(urlsplit(request.path).query)["projectIdentifier"][0]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return bool(one == other)


def _status(verdict: int) -> RequestStatus:
    code = Code.OK if verdict == 0 else Code.INVALID_ARGUMENT
    return RequestStatus(code_by_count=[RequestStatus.CodeByCount(code=code, count=1, detail=verdict)])


def _jwt() -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part({'exp': int(time.time()) + 3600})}.c2ln"


def _json(value: Any) -> Reply:
    return Reply(body=json.dumps(value).encode(), headers={"Content-Type": "application/json"})


def _proto(message: Any) -> Reply:
    return Reply(body=message.SerializeToString(), headers={"Content-Type": "application/x-protobuf"})
