"""Reads what wandb stored in its own transaction logs, with wandb's protobufs and nothing of the adapter's."""

from __future__ import annotations

import html
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as pb

from tests.standins.wandb_server import StoredRun as ServerRun
from tracker_bridge.testing import Point, StoredRun

AXIS = "global_step"


def payloads(path: Path) -> Iterator[bytes]:
    """The records of a `.wandb` file (LevelDB's log format); checksums are checked, a torn end is the end."""
    data = path.read_bytes()
    assert struct.unpack("<4sHB", data[:7]) == (b":W&B", 0xBEE1, 0)
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        body = data[at + 7 : at + 7 + length]
        if (kind == 0 and length == 0) or len(body) < length:
            return
        assert zlib.crc32(bytes([kind]) + body) == crc, f"damaged record at {at} of {path}"
        at += 7 + length
        parts = body if kind in (1, 2) else parts + body
        if kind in (1, 4):
            yield parts


def records(path: Path) -> Iterator[pb.Record]:
    """The same as messages."""
    return map(pb.Record.FromString, payloads(path))


def logs(folder: Path, run_id: str) -> list[Path]:
    """The logs of one run, oldest first."""
    return sorted(folder.glob(f"wandb/*run-*/run-{run_id}.wandb"), key=lambda path: path.parent.name)


def read_run(folder: Path, run_id: str) -> ServerRun:
    """What a server would have after `wandb sync` of all logs of the run, one after the other."""
    run = ServerRun(run_id, "")
    config: dict[str, Any] = {}
    for path in logs(folder, run_id):
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                row = {_key(item): json.loads(item.value_json) for item in record.history.item}
                number = row["_step"]
                assert number == record.history.step.num
                assert number not in run.history, f"row {number} is there twice"
                run.history[number] = row
            elif kind == "summary":
                run.summary |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
            elif kind in ("run", "config"):
                changes = record.run.config if kind == "run" else record.config
                for item in changes.update:
                    _set(config, list(item.nested_key) or [item.key], json.loads(item.value_json))
                if kind == "run":
                    run.project = record.run.project
                    run.upserts.append(_upsert(record.run))
            elif kind == "environment":
                environment = record.environment
                run.environment = {
                    "program": environment.program,
                    "args": list(environment.args),
                    "host": environment.host,
                    "username": environment.username,
                    "git": {"commit": environment.git.commit},
                }
            elif kind == "exit":
                run.exit_code = record.exit.exit_code
            elif kind == "alert":
                run.alerts.append({"title": record.alert.title, "text": record.alert.text})
        files = path.parent / "files"
        run.files |= {str(file.relative_to(files)): file.read_bytes() for file in files.rglob("*") if file.is_file()}
    run.upserts.append({"config": json.dumps({key: {"value": value} for key, value in config.items()})})
    return run


def stored_run(run: ServerRun) -> StoredRun:
    """The form that the conformance suite compares."""
    metrics: dict[str, list[Point]] = {}
    texts: dict[str, list[tuple[float | None, str]]] = {}
    histograms: dict[str, list[tuple[float, list[float], list[float]]]] = {}
    artifacts: dict[str, bytes | None] = {
        name: content for name, content in run.files.items() if not name.startswith("media/")
    }
    for row in run.rows:
        step, time = row.get(AXIS), row["_timestamp"]
        for name, value in row.items():
            if name in ("_step", "_timestamp", "_runtime", AXIS):
                continue
            if not isinstance(value, dict):
                assert step is not None, f"{name} has no step"
                metrics.setdefault(name, []).append(Point(step, float(value), time))
            elif value["_type"] == "histogram":
                histograms.setdefault(name, []).append((step or 0, value["bins"], value["values"]))
            elif value["_type"] == "html-file":
                page = run.files[value["path"]].decode()
                text = html.unescape(page.split("<pre", 1)[1].split(">", 1)[1].rsplit("</pre>", 1)[0])
                texts.setdefault(name, []).append((step, text))
            else:
                artifacts[name] = run.files[value["path"]]
    config = dict(run.config)
    renamed = config.pop("tracker_bridge_names", {})
    whole = artifacts.get("tracker_bridge/params.json")
    environment = run.environment
    return StoredRun(
        metrics=metrics,
        renamed=renamed,
        params=dict(_flat(config, "")),
        full_params=None if whole is None else json.loads(whole),
        tags=dict(_split(tag) for tag in run.last("tags") or ()),
        texts=texts,
        histograms=histograms,
        artifacts=artifacts,
        status=str(run.exit_code),
        context={
            "script": environment.get("program"),
            "arguments": environment.get("args"),
            "host": environment.get("host"),
            "user": environment.get("username"),
            "git_commit": (environment.get("git") or {}).get("commit"),
        },
    )


def _upsert(record: pb.RunRecord) -> dict[str, Any]:
    named = {"displayName": record.display_name, "groupName": record.run_group, "jobType": record.job_type}
    return {**{key: value for key, value in named.items() if value}, "tags": list(record.tags), "notes": record.notes}


def _key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def _set(config: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        config = config.setdefault(key, {})
    config[path[-1]] = value


def _flat(params: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in params.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _split(tag: str) -> tuple[str, Any]:
    name, separator, value = tag.partition(":")
    return (name, value) if separator else (tag, None)
