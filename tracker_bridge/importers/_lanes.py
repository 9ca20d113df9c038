"""Many protobuf messages decoded in lockstep with numpy: one cursor a message, all moved by the same operation.

A lane whose bytes are not the expected ones falls out (`alive` becomes False) and its message is left to the decoder
that reads one message at a time; so this file knows only the common shape, and being wrong costs speed, not data.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_PADDING = 16
_MAX_VARINT = 10

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Lanes:
    """`N` cursors into `data`; lane i reads the bytes from `starts[i]` (included) to `ends[i]` (excluded)."""

    def __init__(self, data: bytes, starts: IntArray, ends: IntArray) -> None:
        self._bytes = np.frombuffer(data + bytes(_PADDING), dtype=np.uint8)
        self._limit = len(data)
        self.at = starts.astype(np.int64)
        self.ends = ends.astype(np.int64)
        self.alive = self.at < self.ends

    def _settle(self, alive: BoolArray) -> None:
        self.alive = self.alive & alive
        # Fallen lanes are parked where reading is harmless; their results are never used.
        np.minimum(self.at, self._limit, out=self.at)

    def peek(self, byte: int) -> BoolArray:
        """Which living lanes have `byte` next: bool [N]."""
        found: BoolArray = self.alive & (self.at < self.ends) & (self._bytes[self.at] == byte)
        return found

    def expect(self, byte: int) -> None:
        """Step over `byte`; lanes with another one fall out."""
        alive = self.peek(byte)
        self.at = self.at + 1
        self._settle(alive)

    def done(self) -> BoolArray:
        """Which living lanes are exactly at their end: bool [N]."""
        done: BoolArray = self.alive & (self.at == self.ends)
        return done

    def keep(self, alive: BoolArray) -> None:
        """Let the lanes outside of `alive` fall out."""
        self._settle(alive)

    def varint(self, among: BoolArray | None = None) -> npt.NDArray[np.uint64]:
        """A varint from each lane (only those in `among`; the others stay and give 0): uint64 [N]."""
        reading = self.alive.copy() if among is None else self.alive & among
        value = np.zeros(len(self.at), dtype=np.uint64)
        failed = np.zeros(len(self.at), dtype=np.bool_)
        for index in range(_MAX_VARINT):
            failed |= reading & (self.at >= self.ends)
            reading &= ~failed
            byte = self._bytes[np.minimum(self.at, self._limit)]
            if index == _MAX_VARINT - 1:
                failed |= reading & (byte > 1)
            part = (byte & 0x7F).astype(np.uint64) << np.uint64(7 * index)
            value |= np.where(reading, part, np.uint64(0))
            self.at = self.at + reading
            reading &= byte >= 0x80
            if not reading.any():
                break
        self._settle(~(failed | reading))
        return value

    def optional_varint(self, key: int) -> npt.NDArray[np.uint64]:
        """The varint field with the one-byte `key` where it comes next, else 0: uint64 [N]."""
        present = self.peek(key)
        self.at = self.at + present
        return self.varint(present)

    def span(self, within: IntArray | None = None) -> tuple[IntArray, IntArray]:
        """A length and as many bytes (inside of `within`, by default the lane); steps to their first byte.

        Returns the spans' first and last-plus-one positions, int64 [N] each. The cursors stand at the first bytes.
        """
        size = self.varint()
        ends = self.ends if within is None else within
        fits = size <= np.maximum(ends - self.at, 0).astype(np.uint64)
        self._settle(fits)
        start = self.at
        return start, start + np.where(self.alive, size, np.uint64(0)).astype(np.int64)

    def jump(self, to: IntArray) -> None:
        """Put the living cursors at `to`."""
        self.at = np.where(self.alive, to, self.at)
        self._settle(self.alive)

    def fixed(self, dtype: str) -> npt.NDArray[np.float64]:
        """A fixed32 or fixed64 value of the little-endian `dtype` from each lane, as float64 [N]."""
        size = np.dtype(dtype).itemsize
        fits = self.at + size <= self.ends
        at = np.minimum(self.at, self._limit)
        raw = self._bytes[at[:, None] + np.arange(size)]
        self.at = self.at + size
        self._settle(fits)
        with np.errstate(invalid="ignore"):  # a fallen lane's bytes may be a signalling NaN
            return np.ascontiguousarray(raw).view(dtype)[:, 0].astype(np.float64)
