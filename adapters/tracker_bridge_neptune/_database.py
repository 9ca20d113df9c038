"""The SDK's local database seen from outside: how many operations it had, how many wait. Never writes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def operations(path: Path) -> int:
    """How many operations were ever committed, sent ones included. Raises `sqlite3.Error` if it cannot be read."""
    # AUTOINCREMENT: SQLite itself keeps the largest number ever given, whatever the uploader has deleted since.
    found = _ask(path, "SELECT seq FROM sqlite_sequence WHERE name = 'run_operations'")
    return int(found[0]) if found else 0


def waiting(path: Path) -> int:
    """Operations and files that no server has acknowledged. Raises `sqlite3.Error` if it cannot be read."""
    found = _ask(path, "SELECT (SELECT COUNT(*) FROM run_operations) + (SELECT COUNT(*) FROM file_upload_requests)")
    return int(found[0]) if found else 0


def submitted(path: Path) -> int:
    """The last operation that a server has received, acknowledged or not. Raises `sqlite3.Error`."""
    found = _ask(path, "SELECT COALESCE(MAX(sequence_id), 0) FROM run_operation_submission")
    return int(found[0]) if found else 0


def _ask(path: Path, query: str) -> tuple[int, ...] | None:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=10.0)) as connection:
        row: tuple[int, ...] | None = connection.execute(query).fetchone()
        return row
