"""CRC-32C of many byte ranges at once: by google-crc32c where it is installed, else by numpy, with equal results.

Castagnoli polynomial 0x1EDC6F41, reflected, as in RFC 3720, appendix B.4.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
_BLOCK = 64
_ONES = np.uint32(0xFFFFFFFF)


def _table() -> npt.NDArray[np.uint32]:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), crc >> np.uint32(1)).astype(np.uint32)
    return crc


_TABLE = _table()


def _after_zeros(state: npt.NDArray[np.uint32], count: int) -> npt.NDArray[np.uint32]:
    for _ in range(count):
        state = _TABLE[state & np.uint32(0xFF)] ^ (state >> np.uint32(8))
    return state


# The register after `_BLOCK` zero bytes is linear in its four bytes: four tables of 256 (plain ints: one lookup each).
_SHIFT = [
    _after_zeros(np.arange(256, dtype=np.uint32) << np.uint32(8 * index), _BLOCK).astype(np.uint32).tolist()
    for index in range(4)
]


def crc32c(data: bytes, starts: Sequence[int], ends: Sequence[int]) -> npt.NDArray[np.uint32]:
    """CRC-32C of `data[start:end]` for each pair: uint32 [N]."""
    native = _native()
    if native is not None:
        return np.array([native(data[a:b]) for a, b in zip(starts, ends, strict=True)], dtype=np.uint32)
    return crc32c_numpy(data, starts, ends)


def crc32c_numpy(data: bytes, starts: Sequence[int], ends: Sequence[int]) -> npt.NDArray[np.uint32]:
    """The same without any other package."""
    first = np.asarray(starts, dtype=np.int64)
    size = np.asarray(ends, dtype=np.int64) - first
    array = np.frombuffer(data, dtype=np.uint8)
    result = np.empty(len(first), dtype=np.uint32)
    long = size > 4 * _BLOCK
    for index in np.flatnonzero(long).tolist():
        result[index] = _long(array[int(first[index]) : int(first[index] + size[index])])
    short = np.flatnonzero(~long)
    # Longest first: at each column the lanes still running are a prefix.
    order = short[np.argsort(-size[short], kind="stable")]
    sizes, at = size[order], first[order]
    state = np.full(len(order), _ONES, dtype=np.uint32)
    for column in range(int(sizes[0]) if len(sizes) else 0):
        running = int(np.searchsorted(-sizes, -column, side="left"))
        part = state[:running]
        byte = array[at[:running] + column]
        state[:running] = _TABLE[(part ^ byte) & np.uint32(0xFF)] ^ (part >> np.uint32(8))
    result[order] = state ^ _ONES
    return result


def _long(array: npt.NDArray[np.uint8]) -> int:
    """One long range: its blocks run side by side from a zero register and are then chained."""
    blocks = len(array) // _BLOCK
    rows = array[: blocks * _BLOCK].reshape(blocks, _BLOCK)
    state = np.zeros(blocks, dtype=np.uint32)
    state[0] = _ONES
    for column in range(_BLOCK):
        state = _TABLE[(state ^ rows[:, column]) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
    a, b, c, d = _SHIFT
    crc = 0
    for part in state.tolist():
        crc = a[crc & 0xFF] ^ b[(crc >> 8) & 0xFF] ^ c[(crc >> 16) & 0xFF] ^ d[crc >> 24] ^ part
    table = _TABLE.tolist()
    for byte in array[blocks * _BLOCK :].tolist():
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return int(crc) ^ 0xFFFFFFFF


def _native() -> Callable[[bytes], int] | None:
    try:
        module = importlib.import_module("google_crc32c")
    except ImportError:
        return None
    # Its pure-Python fallback is slower than ours.
    return module.value if module.implementation == "c" else None
