"""What opening a journal can raise. Appending raises neither of these: it counts what it drops."""

from __future__ import annotations


class JournalError(Exception):
    """The folder cannot be used as asked; the message says why and what to do."""


class WriterBusyError(JournalError):
    """Another process (or another writer in this one) appends to this journal."""
