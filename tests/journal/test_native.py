"""The shortcut in C writes what the way in Python writes, and leaves to it what it does not do itself."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.journal.journals import RUN, everything, numbers, point, steps
from tracker_bridge.journal import Entry, JournalWriter, _segment, _writer
from tracker_bridge.journal._tail import PythonTail, Tail
from tracker_bridge.records import Dropped, Metrics, NormVector, Params, SeriesTable, Text, encode

if Tail is PythonTail:
    pytest.skip("the modules in C are not built", allow_module_level=True)

from tracker_bridge.journal import _native
from tracker_bridge.records import _native as _native_records

_STEPS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [sign * (2**bits + near) for bits in (5, 7, 8, 15, 16, 31, 32) for near in (-1, 0, 1) for sign in (1, -1)]
)
_NUMBERS = st.floats() | st.integers(-(2**80), 2**80)


@given(time_ns=_STEPS, step=_STEPS, values=st.dictionaries(st.text(max_size=40), _NUMBERS, max_size=20))
@settings(max_examples=1000, deadline=None)
def test_metrics_in_c_are_the_bytes_of_encode(time_ns: int, step: int, values: dict[str, float]) -> None:
    """Whatever texts, numbers and steps there are; a text that has no encoding is left to `encode`, which refuses."""
    floats = {name: float(value) for name, value in values.items()}
    assert _native_records.metrics_payload(time_ns, step, values) == encode(Metrics(time_ns, step, floats))


_OR_NOT = st.none() | st.floats()


@given(
    time_ns=_STEPS,
    step=_STEPS | st.floats(),
    table=st.integers(0, 2**40),
    values=st.binary(max_size=40) | st.integers(0, 66_000).map(bytes),
    present=st.none() | st.binary(max_size=300),
    total=_OR_NOT,
    skipped=st.booleans(),
    clip_coefficient=_OR_NOT | st.integers(-3, 3),
    post_clip=st.booleans(),
    max_norm=_OR_NOT,
)
@settings(max_examples=500, deadline=None)
def test_norms_in_c_are_the_bytes_of_encode(**fields: Any) -> None:
    """Whatever each field holds."""
    record = NormVector(**fields)
    assert _native_records.norms_payload(record, 1 << 17) == encode(record)


def test_other_records_and_what_has_no_room_are_left_to_python() -> None:
    """A vector that is longer than its place is not cut, and no other record is taken for one."""
    vector = NormVector(1, 2, 3, bytes(100))
    size = len(encode(vector))
    for room in range(size):
        assert _native_records.norms_payload(vector, room) is None
    assert _native_records.norms_payload(vector, size + 8) == encode(vector)
    for record in (point(1), Text(1, "a", "b"), NormVector(2**64, 2, 3, b""), None, 1):
        assert _native_records.norms_payload(record) is None


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
@pytest.mark.parametrize("length", [31, 32, 255, 256, 65_536])
def test_sizes_in_c_are_those_of_encode(count: int, length: int) -> None:
    """The size of a mapping and of a text has another form from each of these on."""
    values = {"x" * length: 1.0, **{str(number): float(number) for number in range(count - 1)}}
    assert _native_records.metrics_payload(1, 2, values, 4 << 20) == encode(Metrics(1, 2, values))


def test_what_is_not_plain_is_left_to_python() -> None:
    """Nothing that `float()` would have to be asked about, no lone surrogate, nothing beyond the room."""

    class Number(float):
        pass

    class Name(str):
        __slots__ = ()

    refused: list[dict[object, object]] = [
        {"a": True},
        {"a": None},
        {"a": Number(1.0)},
        {"a": 10**400},
        {Name("a"): 1.0},
        {1: 1.0},
        {"\udce9": 1.0},
    ]
    for values in refused:
        assert _native_records.metrics_payload(1, 2, values) is None, values
        assert _native_records.metrics_payload(1, 2, {"b": 2.0, **values}) is None, values
    assert _native_records.metrics_payload(1, 2, {"abc": 1.0}, 20) is None
    assert _native_records.metrics_payload(1, 2, {"abc": 1.0}, 25 + 5 + 3 + 9) is not None


@pytest.fixture(params=["instructions", "zlib"])
def checksums(request: pytest.FixtureRequest) -> Iterator[None]:
    """How checksums are made: by instructions of the processor, and where it has none."""
    _native.use_instructions(request.param == "instructions")
    yield
    _native.use_instructions(True)


@pytest.mark.usefixtures("checksums")
def test_the_checksum_in_c_is_zlibs() -> None:
    """Of every length around a block, at every alignment, and of long ones."""
    data = os.urandom(70_000)
    for length in [*range(300), 5 << 10, 8_000, 8_023, 65_535, 65_551]:
        for start in (0, 1, 7):
            piece = data[start : start + length]
            assert _native.checksum(piece) == zlib.crc32(piece), length


@pytest.mark.usefixtures("checksums")
@pytest.mark.parametrize("mapped", [True, False])
def test_the_files_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool) -> None:
    """Segments, frames, checks and what fills them up: a reader cannot tell who wrote them."""
    if not mapped:
        monkeypatch.setattr(_segment, "mmap", None)
    random.seed(1)
    records = [
        random.choice(
            [
                point(step, random.choice([0, 1, 2, 3, 5, 8, 5_000, 70_000])),
                NormVector(step, step, 0, random.randbytes(8 * random.choice([0, 1, 1000]))),
                Text(step, "a text", "x" * random.randrange(100), step),
                Params(step, {"number": step}),
                SeriesTable(step, step, "gradients", ("a", "b"), (1, 2)),
            ]
        )
        for step in range(2000)
    ]
    monkeypatch.setattr(_writer.time, "time_ns", lambda: 1)  # of the snapshots
    written = {}
    for kind in (Tail, PythonTail):
        monkeypatch.setattr(_writer, "Tail", kind)
        folder = tmp_path / kind.__name__
        with JournalWriter.create(folder, RUN) as writer:
            quickly = writer.tail.append_record
            for record in records:
                if quickly is None or quickly(record) == -1:
                    assert writer.append(record) is not None
        written[kind] = {path.name: path.read_bytes() for path in folder.glob("*.seg")}
    assert len(written[Tail]) > 2
    assert written[Tail] == written[PythonTail]


@pytest.mark.parametrize("mapped", [True, False])
def test_the_shortcut_takes_nearly_every_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool, way: str
) -> None:
    """Else all that these tests say of it would be said of the way in Python."""
    if way != "in C":
        pytest.skip("about the shortcut")
    if not mapped:
        monkeypatch.setattr(_segment, "mmap", None)
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        shortcut = writer.tail.append
        assert shortcut is not None
        taken = 0
        for step in range(3000):
            payload = encode(point(step, 1000))
            if shortcut(payload) == step:
                taken += 1
            else:
                assert writer.append_encoded(payload) == step
    assert taken > 2900
    assert steps(everything(tmp_path / "j")) == list(range(3000))


@pytest.mark.usefixtures("checksums")
@pytest.mark.parametrize("mapped", [True, False])
def test_threads_that_take_either_way_lose_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    """Beside each other: short records, long ones, definitions, and what is too long for one write in C."""
    if not mapped:
        monkeypatch.setattr(_segment, "mmap", None)
    each = 1500
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    writer = JournalWriter.create(tmp_path / "j", RUN)
    returned: list[list[int | None]] = [[] for _ in range(4)]

    def work(number: int) -> None:
        for step in range(each):
            size = (0, 3000, 70_000 if step % 50 == 0 else 10, 7)[number]
            record = Params(0, {"step": step}) if number == 3 and step % 20 == 0 else point(number * each + step, size)
            returned[number].append(writer.append(record))

    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
        writer.close()
    found = sorted(sequence for each_of in returned for sequence in each_of if sequence is not None)
    assert writer.dropped == {}
    assert len(set(found)) == len(found) == 4 * each
    items = everything(tmp_path / "j")
    assert numbers(items) == list(range(writer.sequence))  # snapshots take a number too
    assert set(found) <= set(numbers(items))
    assert sorted(steps(items)) == sorted(set(range(4 * each)) - {3 * each + step for step in range(0, each, 20)})


def test_what_is_dropped_after_a_fault_is_counted_once_whichever_way_it_took(tmp_path: Path) -> None:
    """While nothing is tried, the shortcut counts by itself: short records, vectors, definitions and too large ones."""
    writer = JournalWriter.create(tmp_path / "j", RUN, max_disk=1 << 20)
    assert writer.append(point(0)) == 0
    kept, tried = writer._preparer, 0

    class Broken:
        def order(self, *_: object) -> None:
            """Make nothing."""

        def take(self, *_: object) -> None:
            nonlocal tried
            tried += 1
            raise OSError(errno.EIO, "broken")

    def wait_no_more() -> None:
        writer._blocked_until = writer.tail.refuses_until = 0.0
        writer._pause = 1000.0

    writer._preparer = Broken()  # type: ignore[assignment]
    wait_no_more()
    appended = 1
    while writer.append(point(appended, 3000)) is not None:
        appended += 1
    assert writer.dropped == {"io_error": 1}
    for step in range(100):
        assert writer.append(point(step)) is None
        assert writer.append(NormVector(step, step, 0, bytes(8000))) is None
        assert writer.append(point(step, 200_000)) is None
    assert writer.append(Params(0, {"a": 1})) is None
    assert writer.dropped == {"io_error": 202, "too_large": 100}
    assert tried == 1
    wait_no_more()
    assert writer.append(point(1, 3000)) is None
    assert tried == 2
    writer._preparer = kept
    wait_no_more()
    assert writer.append(point(2)) is not None
    assert writer.dropped == {"io_error": 203, "too_large": 100}
    writer.close()
    told = [item.record for item in everything(tmp_path / "j") if isinstance(item, Entry)]
    reasons = [record.reasons for record in told if isinstance(record, Dropped)]
    assert sum((Counter(each) for each in reasons), Counter()) == Counter(writer.dropped)


def test_a_journal_that_is_closed_lets_go_of_its_memory(tmp_path: Path) -> None:
    """The shortcut holds the mapping it writes to; held after the end, the file could not be cut to its content."""
    for number in range(3):
        writer = JournalWriter.create(tmp_path / str(number), RUN)
        for step in range(5000):
            writer.append(point(step, 200))
        writer.close()
        assert writer.append(point(0)) is None
        assert writer.dropped == {"closed": 1}
        used = sum(path.stat().st_blocks * 512 for path in (tmp_path / str(number)).glob("*.seg"))
        assert used < 5000 * 400


def test_without_the_modules_in_c_everything_is_done_in_python(tmp_path: Path) -> None:
    """`TRACKER_BRIDGE_NO_EXTENSIONS=1` loads none of them, and a run is logged all the same."""
    script = (
        "import sys, tracker_bridge as bridge\n"
        "with bridge.init({'backends': 'none'}) as run:\n"
        "    for step in range(100):\n"
        "        run.log_metrics({'loss': 1.0}, step=step)\n"
        "assert not [name for name in sys.modules if name.startswith('tracker_bridge') and name.endswith('_native')]\n"
        "print(run._journal.sequence)\n"
    )
    environment = {**os.environ, "TRACKER_BRIDGE_NO_EXTENSIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment, check=True
    )
    assert int(done.stdout) >= 102
