"""What is known about the run as a whole: two small event files beside the one with the series.

TensorBoard takes a tag's metadata from its first event and never again, but params and status may change. So they lie
in files of their own that are replaced: one, named before the series' file, with hparams, params, tags and provenance;
one, named after it, with the status, removed when the run goes on. Nothing here touches a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from google.protobuf.struct_pb2 import Value  # type: ignore[import-untyped]
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from tracker_bridge.adapter import RunInfo, flatten_params, param_text
from tracker_bridge_tensorboard._encoding import summary_event, version_event
from tracker_bridge_tensorboard._framing import frame
from tracker_bridge_tensorboard._summaries import TEXT, plugin_summary, text_summary

PREFIX = "tracker_bridge"
"""First part of the tags that are the bridge's own."""

PARAMS_FILE = "params.json"

LONGEST_HPARAM, LONGEST_SHOWN = 1_000, 20_000
"""Characters kept of one param in the hparams table and in the text; the whole is in `params.json`."""

_SESSION_START, _SESSION_END = "_hparams_/session_start_info", "_hparams_/session_end_info"


def start_file(
    run: RunInfo,
    params: Mapping[str, Any],
    tags: Mapping[str, str | None],
    renamed: Mapping[str, str],
    version: int,
) -> bytes:
    """The file before the series. `version` is the step of its texts: 0, and one more each time it is replaced."""
    start_ns = run.started_ns
    session = SessionStartInfo(start_time_secs=start_ns / 1e9)
    for name, value in flatten_params(params).items():
        session.hparams[name].CopyFrom(_hparam(value))
    content = HParamsPluginData(version=0, session_start_info=session).SerializeToString()
    summaries = [plugin_summary(_SESSION_START, "hparams", content)]
    sheets: dict[str, Any] = {
        "run": _identity(run),
        "params": _shown(params),
        "tags": dict(tags),
        "names": dict(renamed),
    }
    summaries += [
        text_summary(f"{PREFIX}/{name}/{TEXT}", f"```json\n{_json(sheet)}\n```")
        for name, sheet in sheets.items()
        if sheet
    ]
    return _file(start_ns, version, summaries)


def end_file(status: str, time_ns: int, step: int) -> bytes:
    """The file behind the series."""
    code = api_pb2.STATUS_SUCCESS if status == "finished" else api_pb2.STATUS_FAILURE
    session = SessionEndInfo(status=code, end_time_secs=time_ns / 1e9)
    content = HParamsPluginData(version=0, session_end_info=session).SerializeToString()
    summaries = [plugin_summary(_SESSION_END, "hparams", content), text_summary(f"{PREFIX}/status/{TEXT}", status)]
    return _file(time_ns, step, summaries)


def params_json(params: Mapping[str, Any]) -> str:
    """All params, whole and typed."""
    return _json(params) + "\n"


def _file(time_ns: int, step: int, summaries: list[bytes]) -> bytes:
    events = [version_event(time_ns), *(summary_event(time_ns, step, summary) for summary in summaries)]
    return b"".join(map(frame, events))


def _identity(run: RunInfo) -> dict[str, Any]:
    known = {"run_id": run.run_id, "project": run.project, "experiment": run.experiment, "name": run.name}
    return {**{key: value for key, value in known.items() if value}, **run.provenance}


def _hparam(value: Any) -> Value:
    if isinstance(value, bool):
        return Value(bool_value=value)
    # The page's JSON has no form for numbers that are not finite, nor for integers beyond 2^53.
    exact = abs(value) <= 2**53 if isinstance(value, int) else isinstance(value, float) and math.isfinite(value)
    if exact:
        return Value(number_value=value)
    return Value(string_value=_cut(_clean(param_text(value)), LONGEST_HPARAM))


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _shown(inner) for key, inner in value.items()}
    if isinstance(value, str):
        return _cut(value, LONGEST_SHOWN)
    if isinstance(value, (list, tuple)):
        text = param_text(value)
        return list(value) if len(text) <= LONGEST_SHOWN else _cut(text, LONGEST_SHOWN)
    return value


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters in all, see {PARAMS_FILE})"


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _json(value: Any) -> str:
    return _clean(json.dumps(value, ensure_ascii=False, indent=2, default=str))
