"""What a script hands over as a step, a scalar or a time, to the plain form that the journal holds.

Runs on the training thread: no tensor on an accelerator is read here. Misuse raises, naming the key.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tracker_bridge.records import Step

LARGEST_STEP = 2**63 - 1
_LARGEST_TIME = 2**63 - 1
# Nanoseconds: what a record holds, what the trackers take, and what NumPy and pandas make of a time.


class OnDevice(Exception):
    """The value is a tensor on an accelerator; it must be fetched without waiting for the device."""


def as_step(step: Any) -> Step:
    """An int64, or a float where the step is a fraction. Raises `TypeError`/`ValueError`."""
    if isinstance(step, float) or (hasattr(step, "dtype") and not hasattr(step, "__index__")):
        number = float(step)
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError(f"step must be a finite number, not {number}")
        return _checked(int(number)) if number.is_integer() else number
    try:
        return _checked(operator.index(step))
    except TypeError:
        pass
    try:
        return as_step(float(step.item()))
    except (AttributeError, TypeError, ValueError):
        raise TypeError(f"step must be a number, not {_shown(step)}") from None


def as_scalar(name: str, value: Any) -> float:
    """`value` as a float. Raises `TypeError`/`ValueError` naming the key, `OnDevice` for an accelerator's tensor."""
    device = getattr(value, "device", None)
    if device is not None and getattr(device, "type", "cpu") not in ("cpu", "meta"):
        raise OnDevice
    if getattr(value, "size", None) is not None and getattr(value, "ndim", None):
        value = _only_element(name, value)
    try:
        if hasattr(value, "item"):
            # float() of a tensor that requires a gradient warns; a loss always does.
            value = value.item()
        return float(value)
    except OverflowError:
        raise ValueError(f"metric {name!r} is too large for a float64: {_shown(value)}") from None
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise TypeError(f"metric {name!r} must be a number, not {_shown(value)} ({error})") from None


def as_scalars(data: Mapping[Any, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Each value of `data` as a float, and apart from them the tensors that are on an accelerator.

    Raises `TypeError`/`ValueError` naming the key.
    """
    check_names(data, "log_metrics")
    values: dict[str, float] = {}
    waiting: dict[str, Any] = {}
    for name, value in data.items():
        try:
            values[str(name)] = as_scalar(name, value)
        except OnDevice:
            waiting[str(name)] = value
    return values, waiting


def as_time_ns(timestamp: datetime | float | None) -> int:
    """Nanoseconds since the epoch of a datetime (naive: local time) or of seconds since the epoch; None: now.

    Raises `TypeError` for anything else, `ValueError` for a time that does not fit in an int64.
    """
    if timestamp is None:
        return time.time_ns()
    if isinstance(timestamp, bool) or not isinstance(timestamp, (datetime, int, float)):
        kind = type(timestamp).__name__
        raise TypeError(f"timestamp must be a datetime or seconds since the epoch, not {kind} ({timestamp!r})")
    try:
        logged = int((timestamp.timestamp() if isinstance(timestamp, datetime) else timestamp) * 1e9)
    except (OverflowError, ValueError, OSError):  # no number, or beyond what the platform's clock functions take
        logged = _LARGEST_TIME + 1
    if -_LARGEST_TIME - 1 <= logged <= _LARGEST_TIME:
        return logged
    raise ValueError(
        f"timestamp must lie between the years 1677 and 2262 (seconds since the epoch), not {_shown(timestamp)}"
    )


def check_names(data: Any, what: str) -> Mapping[str, Any]:
    """`data` if it is a mapping with text keys. Raises `TypeError` naming what is not."""
    if not isinstance(data, Mapping):
        raise TypeError(f"{what} takes a mapping of names to values, not {type(data).__name__}")
    for name in data:
        if not isinstance(name, str):
            raise TypeError(f"{what}: names must be text, not {type(name).__name__} ({name!r})")
    return data


def _only_element(name: str, value: Any) -> Any:
    count = value.numel() if hasattr(value, "numel") else value.size
    if count != 1:
        raise TypeError(f"metric {name!r} must be one number, not an array of shape {tuple(value.shape)}")
    return value.item()


def _checked(step: int) -> int:
    if -LARGEST_STEP - 1 <= step <= LARGEST_STEP:
        return step
    raise ValueError(f"step must fit in an int64, not {_shown(step)}")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # an int of more than 4,300 digits, say
        text = f"whose repr raises {type(error).__name__}"
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
