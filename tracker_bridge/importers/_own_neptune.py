"""What the bridge's own Neptune adapter writes for things that Neptune has no place for, turned back.

A run is the bridge's own once it has assigned `tracker_bridge/run_id`; before, and in any other run, nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracker_bridge.importers._own import renamed
from tracker_bridge.records import Metrics, Params, Record, RunFinished

_OWN = "tracker_bridge/"
_NAMES = f"{_OWN}names/"
_PROVENANCE = ("runtime/", "source_code/")


def restored(records: Iterator[Record | Iterator[Metrics]]) -> Iterator[Record]:
    """The records with original names, without the adapter's own attributes, and with the status that it noted.

    Points may come as iterators, which costs a run of anybody else's nothing for each of them.
    """
    own = False
    status: str | None = None
    names: dict[str, str] = {}
    for record in records:
        if not isinstance(record, Record):
            yield from (renamed(point, names) for point in record) if names else record
            continue
        if isinstance(record, Params) and any(key.startswith(_OWN) for key in record.params):
            own = own or f"{_OWN}run_id" in record.params
        if not own:
            yield record
        elif isinstance(record, Params):
            for key, value in record.params.items():
                if key.startswith(_NAMES):
                    names[key.removeprefix(_NAMES)] = str(value)
            status = _ended(record.params.get(f"{_OWN}status"), status)
            plain = {names.get(key, key): value for key, value in record.params.items() if _is_users(key)}
            if plain:
                yield Params(record.time_ns, plain)
        elif isinstance(record, RunFinished):
            yield RunFinished(record.time_ns, record.status if status is None else status, record.message)
        else:
            yield renamed(record, names)


def _ended(value: Any, before: str | None) -> str | None:
    if value is None:
        return before
    # An adapter that never came to its end had no word about the run's.
    return None if value == "running" else str(value)


def _is_users(key: str) -> bool:
    return not key.startswith((_OWN, *_PROVENANCE))
