"""Texts that no file can hold: half a character, as Python makes of a file name in another encoding."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

StructT = TypeVar("StructT", bound=msgspec.Struct)


def encodable(struct: StructT) -> StructT:
    """The same record (or other struct) with each lone surrogate in its texts spelled out: backslash, `udce9`."""
    return msgspec.structs.replace(
        struct, **{name: _encodable(getattr(struct, name)) for name in struct.__struct_fields__}
    )


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(inner) for key, inner in value.items()}
    return type(value)(map(_encodable, value)) if type(value) in (tuple, list) else value
