"""Cutting a stream of items into batches within a tracker's limits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tracker_bridge.adapter import Batch, Capabilities, Item, Row


def batches(items: Iterable[Item], capabilities: Capabilities, renamed: Mapping[str, str]) -> Iterator[Batch]:
    """Batches of at most `max_items` items and `max_points` points; a row over `max_row` (or `max_points`) is cut.

    `renamed` goes with the first one.
    """
    widest = min(capabilities.max_row or capabilities.max_points, capabilities.max_points)
    waiting: list[Item] = []
    points = 0
    for item in _narrow(items, widest):
        size = len(item.names) if isinstance(item, Row) else 0
        if waiting and (len(waiting) >= capabilities.max_items or points + size > capabilities.max_points):
            yield Batch(tuple(waiting), renamed)
            waiting, points, renamed = [], 0, {}
        waiting.append(item)
        points += size
    if waiting:
        yield Batch(tuple(waiting), renamed)


def weight(item: Item) -> int:
    """How many values an item counts for in `sent` and `dropped`."""
    return len(item.names) if isinstance(item, Row) else 1


def _narrow(items: Iterable[Item], widest: int) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Row) and len(item.names) > widest:
            for start in range(0, len(item.names), widest):
                part = slice(start, start + widest)
                yield Row(item.sequence, item.time_ns, item.step, item.names[part], item.values[part], item.late)
        else:
            yield item
