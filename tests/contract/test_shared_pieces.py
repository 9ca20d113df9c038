"""What the contract gives to adapters ready-made: the exactly-once ledger and its marks, the merging of params."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracker_bridge.adapter import (
    Batch,
    Capabilities,
    Ledger,
    LedgerFile,
    Marker,
    Opened,
    Options,
    RunInfo,
    TextItem,
    WriterAdapter,
    merge_params,
)


class _Rows(Ledger):
    names: list[str] = msgspec.field(default_factory=list)


def _item(sequence: int) -> TextItem:
    return TextItem(sequence, 0, "note", "text", None)


def test_an_item_that_comes_again_keeps_its_mark() -> None:
    """Items of one sequence are counted; the same item has the same mark until the marks are forgotten."""
    marker = Marker()
    items = [_item(4), _item(4), _item(7)]
    assert [marker(item) for item in items] == [(4, 1), (4, 2), (7, 1)]
    assert [marker(item) for item in reversed(items)] == [(7, 1), (4, 2), (4, 1)]
    marker.forget()
    assert marker(_item(7)) == (7, 2)


@pytest.mark.parametrize(
    ("count", "done", "reached"), [(10, (1, 1), False), (11, (2, 1), True), (12, (3, 1), True), (99, (4, 1), True)]
)
def test_the_trackers_count_says_which_marks_hold(count: int, done: tuple[int, int], reached: bool) -> None:
    """Of three intended records, as many hold as the tracker has more than before."""
    ledger = Ledger(done=(1, 1), base=10, marks=[(2, 1), (3, 1), (4, 1)])
    assert ledger.settle(count) is reached
    assert (ledger.done, ledger.base, ledger.marks) == (done, count, [])


def test_a_count_that_goes_back_takes_nothing_back() -> None:
    """A tracker's file that was replaced by an older one makes nothing undone."""
    ledger = Ledger(done=(5, 1), base=10, marks=[(6, 1)])
    assert not ledger.settle(3)
    assert (ledger.done, ledger.base) == ((5, 1), 10)


def test_a_ledger_survives_on_disk_and_a_damaged_one_is_a_fresh_one(tmp_path: Path) -> None:
    """What was saved is loaded, with the subclass's own fields; garbage, or no file, is an empty ledger."""
    file = LedgerFile(tmp_path / "rows.msgpack", _Rows)
    assert file.load() == _Rows()
    file.save(_Rows(done=(3, 2), base=7, marks=[(4, 1)], names=["a"]))
    assert LedgerFile(tmp_path / "rows.msgpack", _Rows).load() == _Rows((3, 2), 7, [(4, 1)], ["a"])
    (tmp_path / "rows.msgpack").write_bytes(b"\xff\x00 torn")
    assert file.load() == _Rows()
    assert [path.name for path in tmp_path.iterdir()] == ["rows.msgpack"]


def test_params_merge_by_key_and_say_what_was_new() -> None:
    """Mappings merge, everything else is replaced; the news are only what differs, and nothing is shared."""
    known: dict[str, Any] = {"lr": 0.1, "opt": {"name": "sgd", "nan": math.nan}, "flag": 1, "was": {"a": 1}}
    given: dict[str, Any] = {"lr": 0.1, "opt": {"nan": math.nan, "beta": [0.9]}, "flag": True, "was": 3, "new": {}}
    news = merge_params(known, given)
    assert news == {"opt": {"beta": [0.9]}, "flag": True, "was": 3, "new": {}}
    assert known["flag"] is True
    assert known == {"lr": 0.1, "opt": {"name": "sgd", "nan": known["opt"]["nan"], "beta": [0.9]}, **known}
    given["opt"]["beta"].append(0.999)
    given["new"]["later"] = 1
    assert (known["opt"]["beta"], known["new"]) == ([0.9], {})
    assert merge_params(known, {"opt": {"name": "sgd"}, "was": 3}) == {}


class _Writer:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def write(self, batch: Batch) -> None:
        self.seen.append(batch)

    def flush(self) -> None:
        self.seen.append("flush")

    def close(self, status: str | None) -> None:
        self.seen.append(status)
        if len(self.seen) < 5:
            raise OSError("not yet")


class _Adapter(WriterAdapter[Options]):
    options_type = Options
    capabilities = Capabilities()
    writer: _Writer | None = None

    def open(self, run: RunInfo) -> Opened:
        self.writer = _Writer()
        return Opened()


def test_a_writer_adapter_passes_on_until_the_writer_is_closed(tmp_path: Path) -> None:
    """Calls before `open` and after `close` are errors that name the adapter; a close that failed comes again."""
    adapter = _Adapter(Options())
    with pytest.raises(RuntimeError, match="_Adapter is not open"):
        adapter.flush()
    adapter.close("finished")
    adapter.open(RunInfo("r", "b", None, None, None, tmp_path, tmp_path))
    writer, batch = adapter.writer, Batch(())
    adapter.write(batch)
    adapter.flush()
    for _ in range(2):
        with pytest.raises(OSError, match="not yet"):
            adapter.close(None)
    adapter.close("failed")
    assert writer is not None
    assert writer.seen == [batch, "flush", None, None, "failed"]
    with pytest.raises(RuntimeError, match="_Adapter is not open"):
        adapter.write(batch)
