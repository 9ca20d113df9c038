"""Records to bytes and back (msgpack), and the packed float64 vectors inside them."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tracker_bridge.records._types import AnyRecord

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)

encode = _encoder.encode
"""`encode(record) -> bytes`. Raises `TypeError`/`OverflowError` on values a record may not hold."""

_FLOAT64 = np.dtype("<f8")


def decode(payload: bytes | memoryview) -> AnyRecord:
    """The record in `payload`. Raises `msgspec.DecodeError` (also `ValidationError`) if it is none of ours."""
    return _decoder.decode(payload)


def pack_values(values: npt.ArrayLike) -> bytes:
    """Little-endian float64 bytes of a 1-d array, shape [L]."""
    if type(values) is not np.ndarray or values.dtype is not _FLOAT64:
        values = np.asarray(values, dtype=_FLOAT64)
    return values.tobytes()


def unpack_values(packed: bytes) -> npt.NDArray[np.float64]:
    """Read-only float64 [L]; the inverse of `pack_values`."""
    return np.frombuffer(packed, dtype="<f8")


def pack_mask(present: npt.NDArray[np.bool_]) -> bytes | None:
    """Bit mask of a bool [L]; None where every slot is present."""
    return None if bool(present.all()) else np.packbits(present, bitorder="little").tobytes()


def unpack_mask(packed: bytes | None, length: int) -> npt.NDArray[np.bool_]:
    """Bool mask [length]; the inverse of `pack_mask`."""
    if packed is None:
        return np.ones(length, dtype=np.bool_)
    return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=length, bitorder="little").astype(np.bool_)
