"""`wandb.util`: the one helper that scripts use."""

from __future__ import annotations

import secrets
import string

__all__ = ["generate_id"]

_LETTERS = string.ascii_lowercase + string.digits


def generate_id(length: int = 8) -> str:
    """A random run id. Not from `random`: a script's seed is neither used nor moved."""
    return "".join(secrets.choice(_LETTERS) for _ in range(length))
