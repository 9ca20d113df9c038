"""Files that a foreign run names: which of them may be read, and under which names they are kept."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from pathlib import Path

from tracker_bridge.importers._model import Damage, ForeignFormatError

_CONTROL = re.compile(r"[\x00-\x1f\x7f\\:]")


def regular(path: Path) -> Path:
    """`path`, links followed, if it can be read without waiting for another process: neither pipe nor device.

    Raises `ForeignFormatError`, and `FileNotFoundError` where there is nothing.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ForeignFormatError(Damage(str(path), "", "not a regular file"))
    return path


def allowed_file(path: str | Path, roots: Iterable[str | Path]) -> Path | None:
    """The regular file at `path`, links followed, if it lies below one of `roots`; else None.

    A foreign file can name any path (`../../.ssh/id_rsa`, `/etc/passwd`, a link to either); only what lies where the
    user pointed the import may be copied, because a replay would send it to a tracker.
    """
    try:
        real = Path(path).resolve(strict=True)
        if not real.is_file():
            return None
        inside = any(real.is_relative_to(Path(root).resolve()) for root in roots)
    except (OSError, ValueError, RuntimeError):
        return None
    return real if inside else None


def safe_name(name: str) -> str:
    """`name` as a relative path without any part that leads elsewhere; never empty."""
    parts = [part for part in _CONTROL.sub("_", name).split("/") if part not in ("", ".", "..")]
    return "/".join(part[:200] for part in parts) or "unnamed"
