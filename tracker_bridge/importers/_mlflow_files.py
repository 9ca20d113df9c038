"""MLflow's file store (`mlruns/<experiment>/<run>/{meta.yaml,metrics,params,tags}`), which MLflow 3.13+ refuses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tracker_bridge.importers._files import allowed_file, regular
from tracker_bridge.importers._mlflow_store import Description, local_folders, restored_value
from tracker_bridge.importers._model import Damage, ForeignFormatError, ForeignRun, Reading
from tracker_bridge.importers._plain import as_step, clean
from tracker_bridge.importers._sorter import PointSorter
from tracker_bridge.records import Metrics

_META = "meta.yaml"
_LARGEST_META = 64 << 10
_LARGEST_TEXT = 1 << 20
_LINES = 1 << 15
_STATUS = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}


def is_file_store(folder: Path) -> bool:
    """Whether `folder` has experiments as MLflow lays them out."""
    return folder.is_dir() and any((entry / _META).is_file() for entry in folder.iterdir() if entry.is_dir())


def file_runs(kind: str, store: Path) -> Iterator[ForeignRun]:
    """The active runs in the folder; one whose description cannot be read is found too, and reading it says why."""
    for experiment in sorted(entry for entry in store.iterdir() if (entry / _META).is_file()):
        try:
            name = str(_meta(experiment).get("name") or experiment.name)
        except ForeignFormatError:
            name = experiment.name
        for folder in sorted(entry for entry in experiment.iterdir() if (entry / _META).is_file()):
            try:
                meta = _meta(folder)
            except ForeignFormatError:
                meta = {}
            if meta.get("lifecycle_stage", "active") != "active":
                continue
            yield ForeignRun(
                kind=kind,
                paths=(str(folder),),
                identity=(folder.name,),
                fingerprint=_fingerprint(folder),
                root=str(store),
                experiment=clean(name),
                name=clean(str(meta.get("run_name") or folder.name)),
                details={"store": "files"},
            )


def open_files(run: ForeignRun, reading: Reading, stack: ExitStack) -> FileStore:
    """The run in its folder."""
    return FileStore(Path(run.paths[0]), Path(run.root), reading, stack.enter_context(PointSorter()))


class FileStore:
    """One run in a folder."""

    def __init__(self, folder: Path, root: Path, reading: Reading, sorter: PointSorter) -> None:
        self._folder = folder
        self._root = root
        self._reading = reading
        self._sorter = sorter

    def describe(self) -> Description:
        meta = _meta(self._folder)
        status = meta.get("status")
        return Description(
            self._folder.name,
            self._folder.parent.name,
            _STATUS.get(status, "") if isinstance(status, int) else str(status),
            meta.get("start_time") if isinstance(meta.get("start_time"), int) else None,
            meta.get("end_time") if isinstance(meta.get("end_time"), int) else None,
            str(meta.get("artifact_uri") or ""),
            dict(self._texts("params")),
            dict(self._texts("tags")),
        )

    def metrics(self) -> Iterator[Metrics]:
        for key, path in self._entries("metrics"):
            name = self._sorter.name_id(clean(key))
            with regular(path).open(errors="replace") as file:
                number = 0
                while lines := list(islice(file, _LINES)):
                    self._points(path, lines, number, name)
                    number += len(lines)
        return self._sorter.rows()

    def artifact_folders(self) -> Iterator[Path]:
        yield self._folder / "artifacts"
        about = self.describe()
        yield from local_folders(about.artifact_uri, self._root, about.experiment_id, about.run_id)

    def _points(self, path: Path, lines: list[str], number: int, name: int) -> None:
        times, steps, values = [], [], []
        for line in lines:
            number += 1
            # timestamp value [step [dataset and model, since MLflow 3]]
            parts = line.split(" ", 3)
            try:
                time_ms, value = int(float(parts[0])), restored_value(float(parts[1]))
                step = as_step(int(parts[2])) if len(parts) > 2 else 0
                if abs(time_ms) >= 9_000_000_000_000 or not isinstance(step, int):
                    raise ValueError
            except (ValueError, IndexError, OverflowError):
                self._reading.on_damage(Damage(str(path), f"line {number}", "not `timestamp value step`"))
                continue
            times.append(time_ms * 1_000_000)
            steps.append(step)
            values.append(value)
        as_array = np.array(times, dtype=np.int64)
        self._sorter.add(as_array, np.array(steps, dtype=np.int64), 0, name, np.array(values, dtype=np.float64))

    def _texts(self, what: str) -> Iterator[tuple[str, str]]:
        for key, path in self._entries(what):
            with regular(path).open(errors="replace", newline="") as file:
                yield key, file.read(_LARGEST_TEXT)

    def _entries(self, what: str) -> Iterator[tuple[str, Path]]:
        """(key, file) in a folder of the run: a key with slashes is a path."""
        base = self._folder / what
        for place, folders, names in os.walk(base):
            folders.sort()
            for name in sorted(names):
                path = Path(place, name)
                if allowed_file(path, (self._root,)) is None:
                    self._reading.left_out["files outside of the imported path"] += 1
                else:
                    yield path.relative_to(base).as_posix(), path


def _meta(folder: Path) -> dict[str, Any]:
    path = folder / _META
    try:
        if path.stat().st_size > _LARGEST_META:
            raise ForeignFormatError(Damage(str(path), "", f"larger than {_LARGEST_META} bytes"))
        meta = YAML(typ="safe", pure=True).load(regular(path).read_text())
    except (YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ForeignFormatError(Damage(str(path), "", f"not YAML: {str(error).splitlines()[0]}")) from error
    if not isinstance(meta, dict):
        raise ForeignFormatError(Damage(str(path), "", "not a description of MLflow"))
    return meta


def _fingerprint(folder: Path) -> str:
    meta = (folder / _META).stat()
    newest = max((Path(place).stat().st_mtime_ns for place, _, _ in os.walk(folder)), default=0)
    size = sum(Path(place, name).lstat().st_size for place, _, names in os.walk(folder / "metrics") for name in names)
    return f"{meta.st_mtime_ns}:{newest}:{size}"
