"""Series names to a tracker's names: stable across restarts, collision-free, and only as different as needed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from tracker_bridge.adapter._capabilities import NameRule

_MARK_LENGTH = 12


class NameMap:
    """Maps names by a `NameRule`.

    A name that fits is kept as it is. A name that had to be changed gets a mark made from a hash of the original
    (`acc@1` -> `acc_1-b6b0931f62d1`), so two originals never meet and the
    result never depends on which came first.
    """

    def __init__(self, rule: NameRule) -> None:
        self._rule = rule
        self._refused = re.compile(_complement(rule.allowed))
        self._reserved = tuple(re.compile(pattern) for pattern in rule.reserved)
        self._mapped: dict[str, str] = {}
        self._fresh: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """The tracker's name for `name`."""
        known = self._mapped.get(name)
        if known is None:
            known = self._mapped[name] = self._map(name)
            if known != name:
                self._fresh[known] = name
        return known

    def take_fresh(self) -> Mapping[str, str]:
        """Tracker's name -> original, of those that differ and were first asked for since the last call."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def _map(self, name: str) -> str:
        clean = self._refused.sub("_", name)
        if self._rule.path:
            parts = [part for part in clean.split("/") if part not in ("", ".", "..")]
            clean = "/".join(parts)
        if not clean:
            clean = "_"
        if any(pattern.fullmatch(clean) for pattern in self._reserved):
            clean = f"x_{clean}"
        if clean == name and self._fits(name) and not _looks_marked(name):
            return name
        mark = "-" + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_MARK_LENGTH // 2).hexdigest()
        return self._cut(clean, len(mark)) + mark

    def _fits(self, name: str) -> bool:
        return self._rule.max_length is None or self._length(name) <= self._rule.max_length

    def _length(self, name: str) -> int:
        return len(name.encode("utf-8", "replace")) if self._rule.unit == "bytes" else len(name)

    def _cut(self, name: str, reserve: int) -> str:
        limit = self._rule.max_length
        if limit is None or self._length(name) + reserve <= limit:
            return name
        if self._rule.unit == "bytes":
            return name.encode("utf-8", "replace")[: limit - reserve].decode("utf-8", "ignore")
        return name[: limit - reserve]


def _looks_marked(name: str) -> bool:
    # A user's own name of the marked shape could meet a mapped one; marking it as well keeps the mapping injective.
    return re.search(rf"-[0-9a-f]{{{_MARK_LENGTH}}}\Z", name) is not None


def _complement(allowed: str) -> str:
    if not (allowed.startswith("[") and allowed.endswith("]")):
        raise ValueError(f"NameRule.allowed must be a character class such as [a-z], not {allowed!r}")
    return "[" + allowed[2:] if allowed.startswith("[^") else "[^" + allowed[1:]
