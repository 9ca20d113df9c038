"""A foreign SQLite database, opened so that it can neither change nor do anything.

Read-only, its own schema untrusted: only plain tables can be read, and no function but the few named here can be called
from a generated column, an index or a view.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracker_bridge.importers._files import regular
from tracker_bridge.importers._model import Damage, ForeignFormatError

_FUNCTIONS = frozenset({"length", "min", "max", "count", "typeof", "like"})
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
_VALUE_LIMIT = 64 << 20


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that can only select. A `-wal` left by a killed process is read with it and not changed.

    Raises `ForeignFormatError` where the file is no database; `sqlite3.DatabaseError` may still come while reading.
    """
    with tempfile.TemporaryDirectory(prefix="tracker-bridge-") as folder:
        connection = _connect(path, Path(folder))
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            if sys.version_info >= (3, 11):
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_LIMIT)
            connection.set_authorizer(_authorize)
            connection.text_factory = _lenient_text
            yield connection
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the message itself may not be text
            raise ForeignFormatError(Damage(str(path), "", f"not a sound SQLite database: {error}")) from error
        finally:
            connection.close()


def tables(connection: sqlite3.Connection) -> frozenset[str]:
    """Names of the ordinary tables (no views, nothing virtual)."""
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
    return frozenset(str(name) for (name,) in rows)


def _connect(path: Path, scratch: Path) -> sqlite3.Connection:
    regular(path)
    wal = path.with_name(path.name + "-wal")
    # No write-ahead log to read: SQLite need not touch (or create) any file beside the database.
    option = "immutable=1"
    if wal.is_file() and wal.stat().st_size:
        option = "mode=ro"
        if not path.with_name(path.name + "-shm").is_file():
            # To read the log SQLite would have to create an index beside it; do that to a copy.
            shutil.copyfile(wal, scratch / wal.name)
            path = Path(shutil.copyfile(path, scratch / path.name))
    return sqlite3.connect(f"{path.resolve().as_uri()}?{option}", uri=True, isolation_level=None)


def _authorize(action: int, _first: str | None, second: str | None, _database: str | None, _inner: str | None) -> int:
    if action in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _lenient_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
