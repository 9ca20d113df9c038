"""W&B's records (`wandb_internal`), as far as a run's own data goes.

Field numbers are those of wandb/proto/wandb_internal.proto (0.31): Record {2 history, 3 summary, 5 config, 6 files,
8 artifact, 10 alert, 12 metric, 13 output_raw, 17 run, 18 exit}; items carry a key (or the parts of a nested one) and
a value as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tracker_bridge.importers._plain import NotJsonError, parse_json
from tracker_bridge.importers._wire import WireError, as_bytes, as_double, as_int, as_text, fields, last

HISTORY, SUMMARY, CONFIG, FILES, ARTIFACT, ALERT, METRIC, OUTPUT, RUN, EXIT = 2, 3, 5, 6, 8, 10, 12, 13, 17, 18
STATS, OUTPUT_OLD, ENVIRONMENT = 7, 4, 26
_KNOWN = frozenset({*range(2, 14), RUN, EXIT, ENVIRONMENT})

Path = tuple[str, ...]

_NUMBER = frozenset("-0123456789NI")


@dataclass(slots=True)
class RunInfo:
    """A run record: the last one counts."""

    run_id: str = ""
    entity: str = ""
    project: str = ""
    group: str = ""
    job_type: str = ""
    name: str = ""
    notes: str = ""
    tags: list[str] = field(default_factory=list)
    sweep: str = ""
    host: str = ""
    start_ns: int = 0
    commit: str = ""
    config: list[tuple[Path, Any]] = field(default_factory=list)
    branch: str = ""


def record_of(payload: bytes) -> tuple[int, bytes]:
    """(field number, message) of the one record in `payload`; (0, b"") if there is none of interest."""
    for number, value in fields(payload):
        if number in _KNOWN and isinstance(value, bytes):
            return number, value
    return 0, b""


def items(message: bytes, number: int = 1) -> Iterator[tuple[Path, Any]]:
    """(key path, value) of the items in a history, summary or config record. Raises `WireError`."""
    for found, value in fields(message):
        if found == number:
            yield _item(as_bytes(value))


def step_of(history: bytes) -> int | None:
    """The step of a history record, if it has one. Raises `WireError`."""
    found = last(history, 2)
    if found is None:
        return None
    number = last(as_bytes(found), 1)
    return 0 if number is None else as_int(number)


def run_info(message: bytes) -> RunInfo:
    """The run record in `message`. Raises `WireError`."""
    info = RunInfo()
    texts = {1: "run_id", 2: "entity", 3: "project", 6: "group", 7: "job_type", 8: "name", 9: "notes", 12: "sweep"}
    for number, value in fields(message):
        if number in texts:
            setattr(info, texts[number], as_text(value))
        elif number == 4:
            info.config = list(items(as_bytes(value)))
        elif number == 10:
            info.tags.append(as_text(value))
        elif number == 13:
            info.host = as_text(value)
        elif number == 17:
            info.start_ns = _timestamp(as_bytes(value))
        elif number == 21:
            commit = last(as_bytes(value), 2)
            info.commit = "" if commit is None else as_text(commit)
        elif number == 23:
            parent = last(as_bytes(value), 1)
            info.branch = "" if parent is None else as_text(parent)
    return info


def started_at(environment: bytes) -> int:
    """When the script began, in nanoseconds since the epoch; 0 if the record does not say. Raises `WireError`."""
    found = last(environment, 3)
    return 0 if found is None else _timestamp(as_bytes(found))


def text_fields(message: bytes, *numbers: int) -> list[str]:
    """The string fields with those numbers, "" where absent. Raises `WireError`."""
    found = dict.fromkeys(numbers, "")
    for number, value in fields(message):
        if number in found:
            found[number] = as_text(value)
    return list(found.values())


def is_hidden(metric: bytes) -> bool:
    """Whether a metric record hides its series from the charts. Raises `WireError`."""
    options = last(metric, 6)
    return options is not None and bool(last(as_bytes(options), 2))


def file_paths(message: bytes) -> Iterator[str]:
    """The paths in a files record. Raises `WireError`."""
    for number, value in fields(message):
        if number == 1:
            path = last(as_bytes(value), 1)
            if path is not None:
                yield as_text(path)


def artifact_files(message: bytes) -> tuple[str, str, list[tuple[str, str]]]:
    """(type, name, [(path, local path)]) of an artifact record. Raises `WireError`."""
    kind, name = text_fields(message, 4, 5)
    manifest = last(message, 12)
    contents = []
    for number, value in fields(as_bytes(manifest)) if manifest is not None else ():
        if number == 4:
            path, local = text_fields(as_bytes(value), 1, 6)
            contents.append((path, local))
    return kind, name, contents


def exit_code(message: bytes) -> int:
    """The exit code in an exit record (int32). Raises `WireError`."""
    code = last(message, 1)
    return 0 if code is None else as_int(code)


def _item(data: bytes) -> tuple[Path, Any]:
    key = ""
    nested: list[str] = []
    value: Any = None
    for number, part in fields(data):
        if number == 1:
            key = as_text(part)
        elif number == 2:
            nested.append(as_text(part))
        elif number in (16, 8):
            value = _value(as_text(part))
        elif number == 4:
            value = bool(as_int(part))
        elif number == 5:
            # sint64 is zigzag-encoded
            raw = as_int(part) & 0xFFFFFFFFFFFFFFFF
            value = (raw >> 1) ^ -(raw & 1)
        elif number == 6:
            value = as_double(part)
        elif number == 7:
            value = as_text(part)
    return (tuple(nested) if nested else (key,)), value


def _value(text: str) -> Any:
    if text[:1] in _NUMBER:
        try:
            return int(text) if len(text) < 19 and text.lstrip("-").isdigit() else float(text)
        except ValueError:
            raise WireError("a value is not JSON") from None
    try:
        return parse_json(text)
    except NotJsonError as error:
        raise WireError(f"a value is {error}") from None


def _timestamp(data: bytes) -> int:
    seconds = nanos = 0
    for number, value in fields(data):
        if number == 1:
            seconds = as_int(value)
        elif number == 2:
            nanos = as_int(value)
    return seconds * 1_000_000_000 + nanos if 0 <= seconds < 9_000_000_000 and 0 <= nanos < 1_000_000_000 else 0
