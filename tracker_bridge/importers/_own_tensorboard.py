"""What the bridge's own TensorBoard adapter writes for things that event files have no place for, turned back.

Its directory has an event file named `....0.about` with texts `tracker_bridge/...` (params, tags, original names), one
named `....2.status`, and sub-runs `late`, `late-2` with the points whose step went back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tracker_bridge.importers._own import renamed
from tracker_bridge.importers._plain import NotJsonError, clean, parse_json, plain
from tracker_bridge.records import Artifact, Histogram, Params, Record, RunFinished, Tags, Text

PARAMS_FILE = "params.json"
OWN_FOLDER = "tracker_bridge"
"""Stands for the name of the first event file in the identity of an own run."""
_OWN = "tracker_bridge/"
_LATE = re.compile(r"late(-\d+)?\Z")
_PART = re.compile(r"\.\d+\.[012]\.(about|series|status).*\Z")
_FENCE = re.compile(r"```json\n(.*)\n```\Z", re.DOTALL)
_LARGEST = 64 << 20


def is_own(files: Iterable[Path]) -> bool:
    """Whether the event files of a directory are those of the adapter."""
    return any(".0.about" in file.name for file in files)


def host_of(text: str) -> str:
    """The host in the middle part of a file name, where the adapter has put process and part behind it."""
    return _PART.sub("", text)


def late_folders(found: Mapping[Path, list[Path]], folder: Path) -> list[Path]:
    """The sub-runs of an own run that hold its late points, by number."""
    late = [child for child in found if child.parent == folder and _LATE.match(child.name)]
    return sorted(late, key=lambda child: (len(child.name), child.name))


def restored(records: Iterator[Record], params_file: Path | None) -> Iterator[Record]:
    """The records with original names, with params and tags as they were, and with the status that was noted."""
    names: dict[str, str] = {}
    status: str | None = None
    flat: Params | None = None
    shown = False
    for record in records:
        if isinstance(record, Text) and record.name.startswith(_OWN):
            sheet = record.name.removeprefix(_OWN)
            if sheet == "status":
                status = record.text.strip()
            elif sheet == "names":
                names.update({str(key): str(value) for key, value in _sheet(record.text).items()})
            elif sheet == "tags":
                tags = {clean(str(k)): None if v is None else clean(str(v)) for k, v in _sheet(record.text).items()}
                yield Tags(record.time_ns, tags)
            elif sheet == "params":
                shown = True
                yield Params(record.time_ns, plain(_whole(params_file) or _sheet(record.text)))
            continue
        if isinstance(record, Params):
            # The hparams table, flat and cut; the text that follows it has the same as it was.
            flat = record
            continue
        if flat is not None and not shown:
            yield flat
        flat = None
        if isinstance(record, RunFinished):
            yield RunFinished(record.time_ns, status or record.status, record.message)
        else:
            yield renamed(_without_suffix(record), names)


def _without_suffix(record: Record) -> Record:
    """A histogram or image under the name that was logged (the adapter adds its kind, as a tag has one kind only)."""
    if isinstance(record, Histogram) and record.name.endswith("/histogram"):
        name = record.name.removesuffix("/histogram")
        return Histogram(record.time_ns, name, record.step, record.edges, record.counts)
    if isinstance(record, Artifact):
        folder, _, last = record.name.rpartition("/")
        if folder.endswith("/image"):
            name = f"{folder.removesuffix('/image')}/{last}"
            return Artifact(record.time_ns, name, record.path, record.step, record.media_type)
    return record


def _sheet(text: str) -> dict[str, Any]:
    match = _FENCE.match(text)
    try:
        loaded = parse_json(match[1]) if match else {}
    except NotJsonError:
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _whole(params_file: Path | None) -> dict[str, Any] | None:
    try:
        if params_file is None or params_file.stat().st_size > _LARGEST:
            return None
        loaded = parse_json(params_file.read_bytes())
    except (OSError, NotJsonError):
        return None
    return loaded if isinstance(loaded, dict) else None
