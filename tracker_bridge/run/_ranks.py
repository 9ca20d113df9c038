"""Which process of a distributed job writes."""

from __future__ import annotations

import os
import sys


def is_writer() -> bool:
    """True on the first rank, and where there are no ranks.

    torch.distributed is asked if the script has initialised it; else torchrun's RANK counts.
    """
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    try:
        return int(os.environ.get("RANK", "0")) == 0
    except ValueError:
        return True
