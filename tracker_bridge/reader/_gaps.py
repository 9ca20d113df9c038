"""Records that are gone from a journal, in words. Pure functions."""

from __future__ import annotations

from tracker_bridge.journal import Gap

_WHY = {
    "corrupt": "damaged on disk",
    "max_disk": "deleted to stay within `max_disk`",
    "unknown": "written by a newer version of tracker_bridge",
}


def gap_text(gap: Gap, after: float | None = None) -> str:
    """How many records are gone, where and why; `after`: the last step that was read before, if that is known."""
    why = _WHY.get(gap.reason, gap.reason)
    where = "" if after is None else f" after step {after}"
    if gap.count == 1:
        return f"1 record is gone{where} (record {gap.sequence:,}): {why}"
    return f"{gap.count:,} records are gone{where} (from record {gap.sequence:,} on): {why}"
