"""TensorBoard event files, written by torch's SummaryWriter and by TensorBoard's own protos, read without either."""

from __future__ import annotations

import math
import shutil
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto

from tests.importers.helpers import (
    flipped,
    of_type,
    only_run,
    params_of,
    points_of,
    read_hostile,
    records_of,
    same,
    status_of,
)
from tracker_bridge.importers import Damage, ForeignFormatError, Reading, discover
from tracker_bridge.importers._crc32c import crc32c_numpy
from tracker_bridge.records import Artifact, Histogram, Metrics, RunFinished, RunStarted, Text, unpack_values

KIND = "tensorboard"
NAME = "events.out.tfevents.1700000000.host.example.4242.0"


def masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(payload: bytes) -> bytes:
    size = struct.pack("<Q", len(payload))
    return size + struct.pack("<I", masked(size)) + payload + struct.pack("<I", masked(payload))


def write_events(folder: Path, events: list[Event], name: str = NAME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"".join(framed(event.SerializeToString()) for event in events))
    return path


def scalar(tag: str, step: int, value: float, wall: float = 1.7e9) -> Event:
    return Event(wall_time=wall, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))


VERSION = Event(wall_time=1.7e9, file_version="brain.Event:2")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of torch's SummaryWriter with everything that it can say and that we carry."""
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path_factory.mktemp("tb") / "run"
    writer = SummaryWriter(str(folder))
    for step in range(20):
        for index in range(5):
            writer.add_scalar(f"loss/{index}", (step + 0.1) * (index + 1), step)
    writer.add_scalar("bad", math.nan, 1)
    writer.add_scalar("bad", math.inf, 2)
    writer.add_scalar("bad", -math.inf, 2)
    writer.add_scalar("bad", 1.0, 0)
    writer.add_scalar("negative step", 1.0, -3)
    writer.add_scalar("new style", 0.25, 7, new_style=True)
    writer.add_text("note", "hello\n**world** é", 3)
    writer.add_histogram("weights", np.linspace(-1.0, 3.0, 1000), 5)
    writer.add_image("picture", np.zeros((3, 4, 4), dtype=np.uint8), 6)
    writer.add_hparams({"lr": 0.1, "optimizer": "adam", "nesterov": True}, {"final": 0.5})
    writer.close()
    return folder


def test_every_scalar_of_summary_writer_comes_back_as_the_event_accumulator_reads_it(written: Path) -> None:
    """Our points equal those of TensorBoard's own Python reader, in value, step, order and time."""
    records = records_of(KIND, written)
    ours = points_of(records)
    accumulator = EventAccumulator(str(written), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    theirs = {tag: [(p.step, p.value) for p in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
    ours_final, new_style = ours.pop("final"), ours.pop("new style")
    assert same(ours, theirs)
    assert ours_final == [(0, 0.5)]
    assert new_style == [(7, 0.25)]
    times = [(r.time_ns, r.step) for r in of_type(records, Metrics) if "loss/0" in r.values]
    expected = [(round(p.wall_time * 1e9), p.step) for p in accumulator.Scalars("loss/0")]
    assert [(abs(a - b) <= 1000, s, t) for (a, s), (b, t) in zip(times, expected, strict=True)] == [
        (True, s, s) for s in range(20)
    ]


def test_text_histogram_hparams_and_images_are_carried(written: Path, tmp_path: Path) -> None:
    """What is not a scalar arrives as text, histogram, params and artifact."""
    records = records_of(KIND, written, Reading(scratch=tmp_path))
    assert [(t.name, t.text, t.step) for t in of_type(records, Text)] == [("note", "hello\n**world** é", 3)]
    (histogram,) = of_type(records, Histogram)
    edges, counts = unpack_values(histogram.edges), unpack_values(histogram.counts)
    assert len(edges) == len(counts) + 1
    assert counts.sum() == 1000
    assert (np.diff(edges) > 0).all()
    assert edges[0] <= -1.0
    assert edges[-1] >= 3.0
    assert params_of(records) == {"lr": 0.1, "optimizer": "adam", "nesterov": True}
    (image,) = of_type(records, Artifact)
    assert (image.name, image.step, image.media_type) == ("picture/6.png", 6, "image/png")
    assert Path(image.path).read_bytes().startswith(b"\x89PNG")
    assert status_of(records) == "finished"


def test_each_directory_with_event_files_is_a_run_whose_id_survives_a_move(written: Path, tmp_path: Path) -> None:
    """Runs are found in a tree, their ids differ from each other and do not depend on where the tree lies."""
    for name in ("a", "b/c"):
        write_events(tmp_path / "tree" / name, [VERSION, scalar("x", 1, 1.0)])
    shutil.copytree(written, tmp_path / "tree" / "d")
    found = {run.name: run.run_id for run in discover(KIND, tmp_path / "tree")}
    assert sorted(found) == ["a", "b/c", "d"]
    assert len(set(found.values())) == 3
    (tmp_path / "tree").rename(tmp_path / "moved")
    assert {run.name: run.run_id for run in discover(KIND, tmp_path / "moved")} == found
    assert [run.run_id for run in discover(KIND, tmp_path / "moved" / "a")] == [found["a"]]


def test_a_sweep_by_one_writer_stays_several_runs(tmp_path: Path) -> None:
    """Two add_hparams of one SummaryWriter are two runs, as TensorBoard shows them, not params that overwrite."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "sweep"))
    writer.add_hparams({"lr": 0.1}, {"final": 1.0})
    writer.add_hparams({"lr": 0.2}, {"final": 2.0})
    writer.close()
    runs = [list(run.records()) for run in discover(KIND, tmp_path)]
    assert sorted(params_of(records).get("lr", 0.0) for records in runs) == [0.0, 0.1, 0.2]


def test_a_restart_keeps_all_points_unless_the_writer_purged_them(tmp_path: Path) -> None:
    """Points of both attempts are kept; with `purge_step` the first attempt's later points go, counted."""
    first = [VERSION, *(scalar("x", step, float(step)) for step in range(10))]
    again = [VERSION, *(scalar("x", step, step + 100.0) for step in range(5, 8))]
    purge = Event(wall_time=1.7e9, step=5, session_log=SessionLog(status=SessionLog.START))
    second = "events.out.tfevents.1700000100.host.4242.0"
    write_events(tmp_path / "plain", first)
    write_events(tmp_path / "plain", again, second)
    assert len(points_of(records_of(KIND, tmp_path / "plain"))["x"]) == 13
    write_events(tmp_path / "purged", first)
    write_events(tmp_path / "purged", [again[0], purge, *again[1:]], second)
    reading = Reading()
    points = points_of(records_of(KIND, tmp_path / "purged", reading))["x"]
    assert points == [(s, float(s)) for s in range(5)] + [(s, s + 100.0) for s in range(5, 8)]
    assert sum(reading.left_out.values()) == 5


def test_tensor_scalars_and_tensor_histograms(tmp_path: Path) -> None:
    """The TensorFlow 2 forms (tensors with plugin metadata on the first occurrence only) mean the same."""

    def meta(plugin: str) -> SummaryMetadata:
        return SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))

    content = np.array([[0.0, 1.0, 3.0], [1.0, 2.0, 4.0]])
    events = [VERSION]
    for step in range(3):
        metadata = [meta("scalars"), meta("histograms")] if step == 0 else [None, None]
        events.append(
            Event(
                wall_time=1.7e9 + step,
                step=step,
                summary=Summary(
                    value=[
                        Summary.Value(
                            tag="f", metadata=metadata[0], tensor=TensorProto(dtype=1, float_val=[step + 0.5])
                        ),
                        Summary.Value(tag="i", tensor=TensorProto(dtype=9, int64_val=[-step])),
                        Summary.Value(tag="h16", tensor=TensorProto(dtype=19, half_val=[0x3C00])),
                        Summary.Value(
                            tag="h",
                            metadata=metadata[1],
                            tensor=TensorProto(dtype=2, tensor_content=content.astype("<f8").tobytes()),
                        ),
                    ]
                ),
            )
        )
    write_events(tmp_path, events)
    records = records_of(KIND, tmp_path)
    assert points_of(records) == {
        "f": [(0, 0.5), (1, 1.5), (2, 2.5)],
        "i": [(0, 0.0), (1, -1.0), (2, -2.0)],
        "h16": [(0, 1.0), (1, 1.0), (2, 1.0)],
    }
    for histogram in of_type(records, Histogram):
        assert unpack_values(histogram.edges).tolist() == [0.0, 1.0, 2.0]
        assert unpack_values(histogram.counts).tolist() == [3.0, 4.0]


finite_tags = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=200)
events_strategy = st.lists(
    st.tuples(
        st.floats(allow_nan=True),
        st.integers(-(2**63), 2**63 - 1),
        st.lists(st.tuples(finite_tags, st.floats(width=32)), max_size=8),
    ),
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(events_strategy)
def test_all_three_roads_agree_with_protobuf(tmp_path_factory: pytest.TempPathFactory, wanted: list) -> None:  # type: ignore[type-arg]
    """Whatever scalars an event file holds, one or many an event, we read what protobuf reads."""
    folder = tmp_path_factory.mktemp("any")
    events = [
        Event(wall_time=wall, step=step, summary=Summary(value=[Summary.Value(tag=t, simple_value=v) for t, v in row]))
        for wall, step, row in [*wanted, *wanted]
    ]
    write_events(folder, events)
    expected: dict[str, list[tuple[int | float, float]]] = {}
    for event in events:
        parsed = Event.FromString(event.SerializeToString())
        for value in parsed.summary.value:
            expected.setdefault(value.tag, []).append((parsed.step, value.simple_value))
    records = records_of(KIND, folder)
    assert same(points_of(records), expected)
    for record in of_type(records, Metrics):
        assert -(2**63) <= record.time_ns < 2**63
    shutil.rmtree(folder)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=700), max_size=12))
def test_crc32c_without_the_native_package_is_the_same(ranges: list[bytes]) -> None:
    """The numpy checksum equals google-crc32c's for ranges of any length."""
    data = b"".join(ranges)
    ends = np.cumsum([len(part) for part in ranges]).astype(int).tolist()
    starts = [0, *ends[:-1]] if ends else []
    assert crc32c_numpy(data, starts, ends).tolist() == [google_crc32c.value(part) for part in ranges]


def test_a_file_cut_anywhere_gives_every_whole_record_and_no_error(tmp_path: Path) -> None:
    """A killed writer leaves a torn tail: it is counted, all before it is kept, at each possible length."""
    events = [VERSION, *(scalar(f"t{step}", step, float(step)) for step in range(4))]
    path = write_events(tmp_path / "run", events)
    data = path.read_bytes()
    ends = np.cumsum([len(framed(event.SerializeToString())) for event in events])
    for size in range(int(ends[0]), len(data)):
        path.write_bytes(data[:size])
        reading = Reading()
        points = points_of(records_of(KIND, tmp_path, reading))
        assert len(points) == int((ends <= size).sum()) - 1
        assert sum(reading.left_out.values()) == (0 if size in ends else 1)


def test_no_flipped_bit_goes_unnoticed_or_does_harm(tmp_path: Path) -> None:
    """Each flipped bit is a clear error naming the file, or at worst a counted torn tail; the rest can be salvaged."""
    events = [VERSION, *(scalar(f"t{step}", step, float(step)) for step in range(4))]
    path = write_events(tmp_path / "run", events)
    data = path.read_bytes()
    whole, none = read_hostile(KIND, path)
    assert not none
    for place, changed in flipped(data, seed=1, count=400):
        path.write_bytes(changed)
        count, complaints = read_hostile(KIND, path)
        assert complaints, f"byte {place}"
        assert count <= whole


def test_a_corrupt_payload_costs_only_itself_when_salvaged(tmp_path: Path) -> None:
    """With a lenient reading the records before and after a corrupt payload come through, and the damage is told."""
    path = write_events(tmp_path / "run", [VERSION, *(scalar("x", step, float(step)) for step in range(5))])
    data = bytearray(path.read_bytes())
    data[len(data) - 10] ^= 1
    middle = data.index(b"\x15" + struct.pack("<f", 2.0)) + 4
    data[middle] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ForeignFormatError, match=r"tfevents.*checksum.*offset \d+"):
        records_of(KIND, tmp_path)
    damage: list[Damage] = []
    points = points_of(records_of(KIND, tmp_path, Reading(on_damage=damage.append)))
    assert points == {"x": [(0, 0.0), (1, 1.0), (3, 3.0)]}
    assert len(damage) == 2


@pytest.mark.parametrize("size", [2**62, 2**40, 300 << 20])
def test_a_claimed_size_allocates_nothing(tmp_path: Path, size: int) -> None:
    """A record that claims to be huge (with a valid checksum) is a torn tail or damage, never an allocation."""
    path = write_events(tmp_path / "run", [VERSION, scalar("x", 1, 1.0)])
    length = struct.pack("<Q", size)
    with path.open("ab") as file:
        file.write(length + struct.pack("<I", masked(length)) + b"x" * 100)
        file.truncate(file.tell() + (320 << 20 if size < 2**30 else 0))
    damage: list[Damage] = []
    reading = Reading(on_damage=damage.append)
    assert points_of(records_of(KIND, tmp_path, reading)) == {"x": [(1, 1.0)]}
    assert damage or sum(reading.left_out.values()) == 1


def test_another_kind_of_file_is_named_in_the_error(tmp_path: Path) -> None:
    """A file that is no event file is refused with its path."""
    path = tmp_path / "run" / NAME
    path.parent.mkdir()
    path.write_bytes(b"\x80\x04\x95pickled or anything else, long enough to hold a header")
    with pytest.raises(ForeignFormatError, match=NAME):
        records_of(KIND, tmp_path)
    path.write_bytes(framed(Event(wall_time=1.0, file_version="something else").SerializeToString()))
    with pytest.raises(ForeignFormatError, match="not a TensorBoard event file"):
        records_of(KIND, tmp_path)
    with pytest.raises(FileNotFoundError):
        list(discover(KIND, tmp_path / "nowhere"))


def test_bytes_that_are_no_event_but_are_well_framed_are_damage(tmp_path: Path) -> None:
    """A valid checksum over anything but an Event is reported, and the events around it are kept."""
    path = write_events(tmp_path / "run", [VERSION, scalar("x", 1, 1.0)])
    with path.open("ab") as file:
        for junk in (b"\x0b", b"\xff" * 40, b"\x2a\x7f", b"\x2a\x02\x0a\x05", b"\x09\x01", b"\x10" + b"\xff" * 12):
            file.write(framed(junk))
        file.write(framed(scalar("x", 2, 2.0).SerializeToString()))
    damage: list[Damage] = []
    assert points_of(records_of(KIND, tmp_path, Reading(on_damage=damage.append))) == {"x": [(1, 1.0), (2, 2.0)]}
    assert len(damage) == 6


def test_reading_twice_gives_the_same_records(written: Path) -> None:
    """Reading is deterministic: ids, order, times."""
    assert repr(records_of(KIND, written)) == repr(records_of(KIND, written))
    run = only_run(KIND, written)
    records = list(run.records())
    assert isinstance(records[0], RunStarted)
    assert records[0].run_id == run.run_id
    assert isinstance(records[-1], RunFinished)
