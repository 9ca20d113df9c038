"""The protobuf wire format, one message at a time: enough to read foreign files without protobuf or their SDKs.

Everything here is bounded by the length of its input: nothing recurses, nothing is allocated from a length that the
bytes do not back, and whatever is not well-formed is a `WireError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Union

import numpy as np
import numpy.typing as npt

Value = Union[int, bytes]
"""A varint as an unsigned 64-bit int; fixed32, fixed64 and length-delimited values as their bytes."""

_double = struct.Struct("<d")
_float = struct.Struct("<f")
_MAX_VARINT = 10
_U64 = 1 << 64


class WireError(ValueError):
    """The bytes are not the message they should be."""


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The varint at `position` and the position after it. Raises `WireError`."""
    value = shift = 0
    for index in range(position, min(end, position + _MAX_VARINT)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= _U64:
                raise WireError("a varint is larger than 64 bits")
            return value, index + 1
        shift += 7
    raise WireError("a varint does not end")


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(field number, value) of each field of a message, in order. Raises `WireError` where the bytes go wrong."""
    position, end = 0, len(data)
    while position < end:
        key = data[position]
        if key < 0x80:
            position += 1
        else:
            key, position = read_varint(data, position, end)
        number, wire_type = key >> 3, key & 7
        if number == 0:
            raise WireError("a field has the number 0")
        if wire_type == 2:
            size, position = read_varint(data, position, end)
            stop = position + size
        elif wire_type == 0:
            value, position = read_varint(data, position, end)
            yield number, value
            continue
        elif wire_type == 1:
            stop = position + 8
        elif wire_type == 5:
            stop = position + 4
        else:
            raise WireError(f"wire type {wire_type} is not in use")
        if stop > end:
            raise WireError(f"field {number} is longer than its message")
        yield number, data[position:stop]
        position = stop


def as_bytes(value: Value) -> bytes:
    """A length-delimited value. Raises `WireError` on a varint."""
    if isinstance(value, int):
        raise WireError("a number stands where bytes belong")
    return value


def as_text(value: Value) -> str:
    """A UTF-8 string. Raises `WireError`."""
    try:
        return as_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise WireError(f"a string is not UTF-8: {error.reason}") from None


def as_int(value: Value) -> int:
    """A signed 64-bit integer. Raises `WireError`."""
    if not isinstance(value, int):
        raise WireError("bytes stand where a number belongs")
    return value - _U64 if value >> 63 else value


def as_double(value: Value) -> float:
    """A float64. Raises `WireError`."""
    data = as_bytes(value)
    if len(data) != 8:
        raise WireError("a double is not 8 bytes long")
    return float(_double.unpack(data)[0])


def as_float(value: Value) -> float:
    """A float32, widened. Raises `WireError`."""
    data = as_bytes(value)
    if len(data) != 4:
        raise WireError("a float is not 4 bytes long")
    return float(_float.unpack(data)[0])


def as_doubles(values: list[Value]) -> npt.NDArray[np.float64]:
    """A repeated double, packed or not: float64 [N]. Raises `WireError`."""
    data = b"".join(as_bytes(value) for value in values)
    if len(data) % 8:
        raise WireError("packed doubles are not a multiple of 8 bytes long")
    return np.frombuffer(data, dtype="<f8").astype(np.float64)


def as_varints(values: list[Value]) -> list[int]:
    """A repeated varint, packed or not, as unsigned ints. Raises `WireError`."""
    result = []
    for value in values:
        if isinstance(value, int):
            result.append(value)
            continue
        position = 0
        while position < len(value):
            number, position = read_varint(value, position, len(value))
            result.append(number)
    return result


def last(data: bytes, number: int) -> Value | None:
    """The last value of one field (the one that counts), or None. Raises `WireError`."""
    found: Value | None = None
    for candidate, value in fields(data):
        if candidate == number:
            found = value
    return found
