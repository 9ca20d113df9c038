"""The writer is killed, forked, interrupted and read beside: real processes and signals."""

from __future__ import annotations

import multiprocessing
import os
import random
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.journal.journals import RUN, drain, everything, gaps, numbers, point, steps
from tracker_bridge.journal import Entry, Gap, JournalReader, JournalWriter
from tracker_bridge.records import Metrics

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def _append_until_killed(folder: Path, out: int, size: int) -> None:
    """In a child: continue the journal, and say each sequence once its append has returned."""
    writer = JournalWriter.recover(folder, RUN, max_disk=64 << 20)
    while True:
        sequence = writer.sequence
        assert writer.append(point(sequence, size)) == sequence or writer.dropped == {}
        os.write(out, struct.pack("<Q", sequence))


@pytest.mark.parametrize("size", [0, 700, 20_000])
def test_nothing_whose_append_returned_is_lost_to_sigkill(tmp_path: Path, size: int) -> None:
    """Thirty kills at random points of one journal: every acknowledged record is there, once, in order."""
    chance = random.Random(size)
    acknowledged = -1
    items: list[Entry | Gap] = []
    follower = JournalReader(tmp_path / "j")
    for _ in range(30):
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(out)
                _append_until_killed(tmp_path / "j", into, size)
            finally:
                os._exit(1)
        os.close(into)
        count = chance.randrange(1, 1500 if size < 1000 else 60)
        data = b""
        while len(data) < 8 * count:
            ready, _, _ = select.select([out], [], [], 60)
            assert ready
            more = os.read(out, 8 * count - len(data))
            assert more, "the child ended by itself"
            data += more
        os.kill(child, signal.SIGKILL)
        while more := os.read(out, 1 << 16):
            data += more
        os.close(out)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        acknowledged = struct.unpack_from("<Q", data, len(data) - 8)[0]
        items += drain(follower)
        assert len(items) > acknowledged
    follower.close()
    assert items == everything(tmp_path / "j")
    assert numbers(items) == list(range(len(items)))
    assert gaps(items) == []
    assert all(item.record == point(item.sequence, size) for item in items if isinstance(item, Entry))
    assert acknowledged > 100


def test_a_forked_child_never_appends(tmp_path: Path) -> None:
    """In a child every append is refused and counted, there, and the parent's journal is as if it had not been."""
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        writer.append(point(0))
        child = os.fork()
        if child == 0:
            refused = writer.append(point(-1)) is None and writer.append(point(-1, 500_000)) is None
            writer.sync()
            writer.close()
            os._exit(0 if refused and writer.dropped == {"forked_child": 2} else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert writer.append(point(1)) == 1
        assert writer.dropped == {}
    assert steps(everything(tmp_path / "j")) == [0, 1]


def test_a_fork_in_the_middle_of_appends_does_not_deadlock_the_child(tmp_path: Path) -> None:
    """The lock that another thread held at the fork is not waited for in the child."""
    with JournalWriter.create(tmp_path / "j", RUN, max_disk=4 << 20) as writer:
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                writer.append(point(writer.sequence, 3000))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(30):
                child = os.fork()
                if child == 0:
                    os._exit(0 if writer.append(point(-1)) is None else 1)
                _wait(child)
        finally:
            stop.set()
            thread.join()
        assert writer.dropped == {}
    assert -1 not in steps(everything(tmp_path / "j"))


def test_a_child_that_outlives_its_parent_does_not_hold_the_journal(tmp_path: Path) -> None:
    """A forked worker (a data loader's) that stays must not keep the run from being resumed."""
    gate_out, gate_in = os.pipe()
    ready_out, ready_in = os.pipe()
    parent = os.fork()
    if parent == 0:
        writer = JournalWriter.create(tmp_path / "j", RUN)
        writer.append(point(0))
        if os.fork() == 0:
            os.close(gate_in)
            os.write(ready_in, b"x")
            os.read(gate_out, 1)  # until the test is done
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    assert os.read(ready_out, 1) == b"x"
    try:
        with JournalWriter.recover(tmp_path / "j", RUN) as writer:
            assert writer.append(point(1)) == 1
    finally:
        for fd in (gate_out, gate_in, ready_out, ready_in):
            os.close(fd)
    assert steps(everything(tmp_path / "j")) == [0, 1]


def _follow(folder: Path, count: int, answer: multiprocessing.connection.Connection) -> None:
    """In another process: read until `count` records have been seen."""
    found: list[int] = []
    with JournalReader(folder) as reader:
        deadline = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline:
            items = reader.read(500)
            assert all(isinstance(item.record, Metrics) for item in items if not isinstance(item, Gap))
            assert not gaps(items)
            found += steps(items)
            if not items:
                time.sleep(0.001)
    answer.send(found == list(range(count)))


def test_a_reader_in_another_process_never_sees_half_a_record(tmp_path: Path) -> None:
    """Followed while it is written at full speed, across segments: everything, in order, and never a gap."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_follow, args=(tmp_path / "j", 30_000, theirs))
    process.start()
    try:
        with JournalWriter.create(tmp_path / "j", RUN) as writer:
            for step in range(30_000):
                assert writer.append(point(step, step % 1000)) is not None
            assert ours.poll(60)
            assert ours.recv() is True
    finally:
        process.terminate()
        process.join()
        process.close()


def test_a_signal_handler_may_append_and_close_while_its_thread_is_appending(tmp_path: Path) -> None:
    """No deadlock, nothing doubled, nothing lost: what the handler logs is written right after what it interrupted."""
    writer = JournalWriter.create(tmp_path / "j", RUN, max_disk=4 << 20)
    sent = 0

    def handler(number: int, frame: object) -> None:
        nonlocal sent
        sent += 1
        writer.append(point(1_000_000 + sent, 3000))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
        count = 0
        while sent < 500:
            assert writer.append(point(count, 3000)) is not None
            count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert writer.dropped == {}
    writer.close()
    items = everything(tmp_path / "j")
    assert numbers(items) == list(range(count + sent))
    own = [step for step in steps(items) if step < 1_000_000]
    assert own == list(range(own[0], count))
    others = sorted(step for step in steps(items) if step > 1_000_000)  # a handler may interrupt a handler
    assert others == list(range(others[0], 1_000_001 + sent))


def test_an_exception_out_of_a_signal_handler_leaves_the_journal_whole(tmp_path: Path) -> None:
    """Ctrl-C at any moment of an append: no hole, no number used twice, and the next append works."""

    class _InterruptError(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise _InterruptError

    interrupted = 0
    before = signal.signal(signal.SIGALRM, handler)
    writer = JournalWriter.create(tmp_path / "j", RUN, max_disk=4 << 20)
    deadline = time.monotonic() + 30
    step = 0
    try:
        while interrupted < 300 and time.monotonic() < deadline:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002)
                while True:
                    writer.append(point(step, 3000))
                    step += 1
            except _InterruptError:
                interrupted += 1
                step += 1  # whether it was written is not known
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert writer.append(point(step)) is not None
    writer.close()
    items = everything(tmp_path / "j")
    assert {gap.reason for gap in gaps(items)} <= {"max_disk"}
    assert numbers(items) == list(range(items[-1].sequence + 1))
    found = steps(items)
    assert found == sorted(set(found))
    assert found[-1] == step


def test_appending_beside_a_busy_thread_does_not_give_the_interpreter_away(tmp_path: Path) -> None:
    """With a switch interval of 50 ms each call that releases the interpreter lock costs 50 ms; appends do not."""

    def slow(call: Callable[[], object]) -> bool:
        start = time.monotonic()
        call()
        return time.monotonic() - start > 0.04

    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    interval = sys.getswitchinterval()
    with JournalWriter.create(tmp_path / "j", RUN) as writer:
        for step in range(2000):  # past the small segments, so that the next one is ready
            writer.append(point(step, 3000))
        try:
            thread.start()
            sys.setswitchinterval(0.05)
            assert sum(slow(lambda: time.sleep(0.001)) for _ in range(6)) >= 3, "the measure does not measure"
            assert sum(slow(lambda: writer.append(point(step, 3000))) for _ in range(200)) <= 3
        finally:
            sys.setswitchinterval(interval)
            stop.set()
            thread.join()


def _wait(child: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            assert status == 0
            return
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.005)
