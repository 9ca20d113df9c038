"""Adapters that need no tracker: for scripts, tests and terminals. They use exactly the public contract."""

from tracker_bridge.builtin._console import ConsoleAdapter, ConsoleOptions
from tracker_bridge.builtin._jsonl import JsonlAdapter, JsonlOptions
from tracker_bridge.builtin._memory import MemoryAdapter, MemoryOptions, stored

__all__ = [
    "ConsoleAdapter",
    "ConsoleOptions",
    "JsonlAdapter",
    "JsonlOptions",
    "MemoryAdapter",
    "MemoryOptions",
    "stored",
]
