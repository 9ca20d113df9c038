"""What the bridge's own MLflow adapter writes for things that MLflow has no place for, turned back.

A run is the bridge's own if it has the tag `tracker_bridge.run_id`; in any other run nothing of this is assumed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tracker_bridge.importers._own import flagged_value, restored_points
from tracker_bridge.importers._plain import NotJsonError, as_step, clean, parse_json, plain
from tracker_bridge.records import Artifact, Histogram, Metrics, Params, Record, Tags, Text, pack_values

_MARK = "tracker_bridge.run_id"
_OWN = re.compile(r"(tracker_bridge|param_changed|alert|mlflow)\.")
_STEP_FILE = re.compile(r"(?P<name>.+)/(?P<step>-?[\d.e+-]+)\.(txt|json)\Z")
_STEP_PREFIX = re.compile(r"(?P<folder>.*/)?(?P<step>\d{12})-(?P<last>[^/]+)\Z")
_LARGEST = 64 << 20


class OwnMlflow:
    """The adapter's texts, histograms, params and names in one run."""

    def __init__(self) -> None:
        self._params: dict[str, Any] | None = None
        self._names: dict[str, str] = {}
        self._records: list[tuple[str, Path]] = []
        self._files: list[tuple[str, Path]] = []
        self._status: str | None = None

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> OwnMlflow | None:
        """None, if the run is not the bridge's own."""
        if _MARK not in tags:
            return None
        own = cls()
        own._status = tags.get("tracker_bridge.status")
        return own

    def take(self, files: Iterable[tuple[str, Path]]) -> None:
        """Sort the run's artifacts into the adapter's own and the user's."""
        for name, path in files:
            if name == "params.json":
                loaded = _load(path)
                self._params = loaded if isinstance(loaded, dict) else None
            elif name == "tracker_bridge/names.json":
                loaded = _load(path)
                self._names = {str(k): str(v) for k, v in loaded.items()} if isinstance(loaded, dict) else {}
            elif name.startswith(("texts/", "histograms/")):
                self._records.append((name, path))
            elif not name.startswith("alerts/"):
                self._files.append((name, path))

    def described(self, time_ns: int, params: dict[str, Any], tags: Mapping[str, str]) -> Iterator[Record]:
        """Params in their own types if the params artifact is there, and tags in their own form."""
        known = params if self._params is None else plain(self._params)
        if known:
            yield Params(time_ns, known)
        own: dict[str, str | None] = {}
        for key, value in tags.items():
            if not _OWN.match(key):
                own[clean(key)] = None if value == "true" else clean(value)
        if own:
            yield Tags(time_ns, own)

    def restored(self, row: Metrics) -> Metrics:
        """The row with its original names and with the values that a companion series stands for."""
        return restored_points(row, self._names)

    def kept(self, time_ns: int) -> Iterator[Record]:
        """Texts, histograms and files."""
        for name, path in self._records:
            folder, _, rest = name.partition("/")
            match = _STEP_FILE.match(rest)
            step = as_step(flagged_value(match["step"])) if match else None
            shown = match["name"] if match and step is not None else rest.rpartition(".")[0]
            shown = self._names.get(shown, shown)
            if folder == "texts":
                yield Text(time_ns, shown, path.read_text(errors="replace"), step)
                continue
            content = _load(path)
            if not isinstance(content, dict):
                continue
            edges = np.asarray(content.get("edges", []), dtype=np.float64)
            counts = np.asarray(content.get("counts", []), dtype=np.float64)
            at = as_step(content.get("step"))
            if len(edges) == len(counts) + 1 and at is not None:
                stamp = content.get("timestamp")
                time_of = stamp * 1_000_000 if isinstance(stamp, int) else time_ns
                own_name = self._names.get(str(content.get("name")), str(content.get("name", shown)))
                yield Histogram(time_of, own_name, at, pack_values(edges), pack_values(counts))
        for name, path in self._files:
            with_step = _STEP_PREFIX.match(name)
            if with_step:
                name, step = (
                    f"{with_step['folder'] or ''}{with_step['last']}",
                    as_step(flagged_value(with_step["step"])),
                )
                yield Artifact(time_ns, name, str(path), step)
            else:
                yield Artifact(time_ns, name, str(path))

    def status(self, mapped: str) -> str:
        """The status, with what MLflow has no word for."""
        return self._status if self._status in ("crashed",) else mapped


def _load(path: Path) -> Any:
    try:
        if path.stat().st_size > _LARGEST:
            return None
        return parse_json(path.read_bytes())
    except (OSError, NotJsonError, json.JSONDecodeError):
        return None
