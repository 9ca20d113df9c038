"""The monitor's memory as bytes and back. Holds numbers and names only; reading it runs no code."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tracker_bridge.health._signals import Signals
from tracker_bridge.health._state import TableState

_FORMAT = 1
_ARRAY = 1
_KINDS = ("bool", "int32", "float32", "float64")


class Memory(msgspec.Struct):
    """Everything that a `Monitor` remembers. `clock` counts norm vectors; `told_at` is when each rule last alerted."""

    tables: dict[int, TableState] = msgspec.field(default_factory=dict)
    signals: Signals = msgspec.field(default_factory=Signals)
    clock: int = 0
    told_at: dict[str, int] = msgspec.field(default_factory=dict)
    alerted: dict[str, int] = msgspec.field(default_factory=dict)
    format: int = _FORMAT


def dump(memory: Memory) -> bytes:
    """The bytes of a memory."""
    return _encoder.encode(memory)


def load(data: bytes) -> Memory:
    """The inverse. Raises `msgspec.DecodeError` if `data` is none of ours or of another version."""
    memory = _decoder.decode(data)
    if memory.format != _FORMAT:
        raise msgspec.DecodeError(f"health memory of format {memory.format}, this version reads {_FORMAT}")
    return memory


def _to_ext(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        head = msgspec.msgpack.encode((value.dtype.name, value.shape))
        return msgspec.msgpack.Ext(
            _ARRAY, len(head).to_bytes(2, "little") + head + np.ascontiguousarray(value).tobytes()
        )
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"cannot store {type(value).__name__}")


def _from_ext(code: int, data: memoryview) -> Any:
    if code != _ARRAY:
        raise msgspec.DecodeError(f"unknown extension {code}")
    length = int.from_bytes(data[:2], "little")
    kind, shape = msgspec.msgpack.decode(data[2 : 2 + length], type=tuple[str, tuple[int, ...]])
    if kind not in _KINDS:
        raise msgspec.DecodeError(f"unexpected array of {kind}")
    return np.frombuffer(bytes(data[2 + length :]), dtype=kind).reshape(shape).copy()


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_ext)
_decoder: msgspec.msgpack.Decoder[Memory] = msgspec.msgpack.Decoder(Memory, ext_hook=_from_ext)
