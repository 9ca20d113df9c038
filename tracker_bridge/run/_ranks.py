"""Which process of a distributed job this is."""

from __future__ import annotations

import os
import sys


def current_rank() -> int | None:
    """The rank, None where there are none.

    torch.distributed is asked if the script has initialised it; else torchrun's RANK counts.
    """
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    try:
        return int(os.environ["RANK"])
    except (KeyError, ValueError):
        return None
