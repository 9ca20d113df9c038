"""`wandb.Artifact`: a named set of files. Its files are kept with the run; versions, aliases and lineage are W&B's."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from tracker_bridge.compat._core import cannot
from tracker_bridge.compat.wandb.data_types import Media

__all__ = ["Artifact"]


class Artifact:
    """Files that are logged together under `name`."""

    def __init__(
        self,
        name: str,
        type: str,  # noqa: A002 - W&B's name
        description: str | None = None,
        metadata: dict[str, Any] | None = None,
        incremental: bool = False,
        use_as: str | None = None,
    ) -> None:
        del incremental, use_as
        self.name, self.type, self.description = name, type, description
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.aliases: list[str] = []
        self.version = "v0"
        self._files: dict[str, Path] = {}
        self._made = tempfile.TemporaryDirectory(prefix="tracker_bridge-", ignore_cleanup_errors=True)
        self.references: list[str] = []

    @property
    def files_by_name(self) -> dict[str, Path]:
        """Name in the artifact -> file."""
        return dict(self._files)

    def add_file(self, local_path: str, name: str | None = None, is_tmp: bool | None = False, **_kwargs: Any) -> None:
        """Add a file. Raises `ValueError` if there is none."""
        del is_tmp
        path = Path(local_path)
        if not path.is_file():
            raise ValueError(f"Path is not a file: {local_path!r}")
        self._files[name or path.name] = path

    def add_dir(self, local_path: str, name: str | None = None, **_kwargs: Any) -> None:
        """Add every file below a directory. Raises `ValueError` if there is none."""
        root = Path(local_path)
        if not root.is_dir():
            raise ValueError(f"Path is not a directory: {local_path!r}")
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            inner = path.relative_to(root).as_posix()
            self._files[f"{name}/{inner}" if name else inner] = path

    @contextlib.contextmanager
    def new_file(self, name: str, mode: str = "x", encoding: str | None = None) -> Iterator[IO[Any]]:
        """Open a new file of the artifact for writing."""
        path = self._place(name)
        with path.open(mode.replace("x", "w"), encoding=encoding) as file:
            yield file
        self._files[name] = path

    def add(self, obj: Any, name: str, overwrite: bool = False) -> None:
        """Add media as a file."""
        del overwrite
        made = obj.content() if isinstance(obj, Media) else None
        if made is None:
            raise ValueError(f"a {type(obj).__name__} cannot be added to an artifact here")
        content, suffix = made
        path = self._place(name if name.endswith(suffix) else name + suffix)
        path.write_bytes(content)
        self._files[path.relative_to(self._made.name).as_posix()] = path

    def add_reference(self, uri: Any, name: str | None = None, **_kwargs: Any) -> list[Any]:
        """A reference is counted, not kept."""
        del name
        self.references.append(str(uri))
        return []

    def wait(self, timeout: int | None = None) -> Artifact:
        """Itself: it was kept when it was logged."""
        del timeout
        return self

    def save(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing: log it."""

    def download(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises `NotImplementedError`: there is no server to ask."""
        cannot("wandb", "Artifact.download")

    def _place(self, name: str) -> Path:
        path = Path(self._made.name) / os.path.normpath("/" + name).lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
