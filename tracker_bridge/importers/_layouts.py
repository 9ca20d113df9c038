"""Summaries with the same tags as an earlier one: everything but the float32 values is equal, byte for byte.

A writer that puts all scalars of a step into one event repeats the tags each time. The first summary of a length is
walked and kept as a template with the values blanked out; a later one that equals it gives its values by one copy.
"""

from __future__ import annotations

import numpy as np

from tracker_bridge.importers._wire import WireError, read_varint

_MIN_VALUES = 4
_MAX_TEMPLATES = 64
_MAX_BYTES = 64 << 20


class Layouts:
    """The templates of one run, by length of the summary. Bounded: the oldest goes when there are too many."""

    def __init__(self) -> None:
        self._templates: dict[int, tuple[bytes, np.ndarray[tuple[int], np.dtype[np.int64]], tuple[str, ...]]] = {}
        self._bytes = 0

    def match(self, summary: bytes) -> dict[str, float] | None:
        """The scalars of `summary` by tag, or None if it has to be read field by field."""
        size = len(summary)
        known = self._templates.get(size)
        array = np.frombuffer(summary, dtype=np.uint8)
        if known is not None:
            template, places, names = known
            values = array[places]
            blank = array.copy()
            blank[places] = 0
            if blank.tobytes() == template:
                return dict(zip(names, values.view("<f4").astype(np.float64).tolist(), strict=True))
        found = _walk(summary)
        if found is None:
            return None
        names, at = found
        places = (np.asarray(at, dtype=np.int64)[:, None] + np.arange(4)).reshape(-1)
        values = array[places]
        blank = array.copy()
        blank[places] = 0
        self._keep(size, blank.tobytes(), places, names)
        return dict(zip(names, values.view("<f4").astype(np.float64).tolist(), strict=True))

    def _keep(
        self, size: int, template: bytes, places: np.ndarray[tuple[int], np.dtype[np.int64]], names: tuple[str, ...]
    ) -> None:
        if self._templates.pop(size, None) is not None:
            self._bytes -= size
        while self._templates and (len(self._templates) >= _MAX_TEMPLATES or self._bytes + size > _MAX_BYTES):
            oldest = next(iter(self._templates))
            del self._templates[oldest]
            self._bytes -= oldest
        self._templates[size] = (template, places, names)
        self._bytes += size


def _walk(summary: bytes) -> tuple[tuple[str, ...], list[int]] | None:
    """Tags and places of the values, if the summary holds nothing but distinct tags with simple values."""
    names: dict[str, None] = {}
    places: list[int] = []
    at, end = 0, len(summary)
    try:
        while at < end:
            if summary[at] != 0x0A:  # Summary.value
                return None
            size, at = read_varint(summary, at + 1, end)
            stop = at + size
            if stop > end or at >= end or summary[at] != 0x0A:  # Value.tag
                return None
            length, at = read_varint(summary, at + 1, stop)
            if at + length + 5 != stop or summary[at + length] != 0x15:  # Value.simple_value
                return None
            names[summary[at : at + length].decode()] = None
            places.append(stop - 4)
            at = stop
    except (WireError, UnicodeDecodeError):
        return None
    return (tuple(names), places) if len(names) == len(places) >= _MIN_VALUES else None
