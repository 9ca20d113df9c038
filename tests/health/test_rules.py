"""Each rule: what it must catch, where it must point, and what it must leave alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.health.streams import LAYERS, Stream
from tracker_bridge.health import RULES, HealthConfig, Monitor
from tracker_bridge.records import (
    Metrics,
    NormVector,
    Params,
    RunStarted,
    SeriesTable,
    Snapshot,
    decode,
    encode,
    pack_values,
    unpack_values,
)

NAN, INF = math.nan, math.inf
SPIKED = dict.fromkeys(LAYERS, 500.0)


def test_healthy_noise_is_silent():
    """2,000 samples of healthy noise raise nothing."""
    stream = Stream()
    stream.healthy(2000)
    assert stream.alerts == []


# non_finite


def test_non_finite_points_at_the_last_infected_layer():
    """Backward infects everything before the origin: the last non-finite layer in forward order comes first."""
    stream = Stream()
    stream.healthy(3)
    infected = dict.fromkeys(LAYERS[:4], NAN)
    (alert,) = stream.with_(infected)
    assert (alert.rule, alert.severity, alert.step) == ("non_finite", "error", 3)
    assert alert.layers == tuple(reversed(LAYERS[:4]))
    assert alert.evidence["first_finite_after"] == LAYERS[4]
    assert alert.evidence["origin"] == "layer"


def test_all_non_finite_is_the_loss():
    """When every layer is infected no layer is to blame."""
    stream = Stream()
    (alert,) = stream.with_(dict.fromkeys(LAYERS, INF))
    assert alert.evidence["origin"] == "loss"
    assert alert.layers == ()
    assert alert.evidence["inf"] == len(LAYERS)


def test_non_finite_layers_are_counted_among_present_ones_only():
    """Whatever stands in an absent layer's slot is not read."""
    stream = Stream()
    stream.healthy(3)
    assert stream.with_({LAYERS[0]: NAN}, absent=[LAYERS[0]]) == []
    (alert,) = stream.with_(dict.fromkeys(LAYERS, NAN), absent=[LAYERS[0]])
    assert alert.evidence["origin"] == "loss"


def test_unwatched_layer():
    """A non-finite total with finite layers comes from what is not watched."""
    stream = Stream()
    (alert,) = stream.norms(total=NAN)
    assert alert.evidence["origin"] == "unwatched"


def test_overflow_of_the_total_alone_is_no_alert():
    """A float32 total may overflow where its layers do not; their own total counts then."""
    stream = Stream()
    assert stream.norms(total=INF) == []


def test_one_alert_for_an_infected_episode():
    """A run that stays NaN alerts once, and its NaN loss adds nothing."""
    stream = Stream()
    stream.healthy(100)
    for _ in range(200):
        stream.with_(dict.fromkeys(LAYERS, NAN))
        stream.metrics(loss=NAN)
    assert stream.rules == ["non_finite"]


def test_nan_never_poisons_the_window():
    """After a NaN, healthy samples are silent and the next spike is still seen."""
    stream = Stream()
    stream.healthy(100)
    stream.with_({LAYERS[0]: NAN})
    stream.healthy(100)
    stream.with_(SPIKED)
    assert stream.rules == ["non_finite", "spike"]


def test_non_finite_loss_alone():
    """A NaN loss alerts even where no gradient is watched."""
    monitor = Monitor()
    (alert,) = monitor.feed(Metrics(5, 7, {"train/loss": NAN}))
    assert (alert.rule, alert.step, alert.time_ns) == ("non_finite", 7, 5)
    assert "loss" in alert.title


def test_non_finite_under_a_scaler_that_skips_is_no_alert():
    """An overflow that the scaler caught is its normal work."""
    stream = Stream()
    stream.healthy(10)
    assert stream.with_(dict.fromkeys(LAYERS, INF), skipped=True) == []
    stream.healthy(100)
    assert stream.alerts == []


# overflow_storm


def test_loss_scale_search_at_the_start_is_normal():
    """A scaler may halve its scale many times before the first step succeeds."""
    stream = Stream()
    for _ in range(12):
        stream.with_(dict.fromkeys(LAYERS, INF), skipped=True)
    stream.healthy(50)
    assert stream.alerts == []


def test_a_storm_of_skips():
    """Five skips in a row after a success are a storm, told once, with the layer where the overflow begins."""
    stream = Stream()
    stream.healthy(20)
    for _ in range(30):
        stream.with_(dict.fromkeys(LAYERS[:3], INF), skipped=True)
    assert stream.rules == ["overflow_storm"]
    assert stream.alerts[0].step == 24
    assert stream.alerts[0].layers[0] == LAYERS[2]


def test_rare_skips_are_normal_and_frequent_ones_are_not():
    """One skip in 50 is the scaler probing; every second step is not training."""
    rare, often = Stream(), Stream()
    for step in range(500):
        rare.norms(skipped=step % 50 == 49)
        often.norms(skipped=step % 2 == 1)
    assert rare.alerts == []
    assert often.rules == ["overflow_storm"]


# spike


def test_spike_of_everything():
    """A bad batch is a spike of the total, in its own step, with the factor."""
    stream = Stream()
    stream.healthy(100)
    (alert,) = stream.with_(SPIKED)
    assert (alert.rule, alert.step) == ("spike", 100)
    assert 100 < alert.evidence["ratio"] < 1000
    assert alert.evidence["layers_above"] == len(LAYERS)


def test_spike_of_one_layer_that_matters():
    """A single layer far out is named even if many layers surround it."""
    names = [f"h.{index}.weight" for index in range(200)]
    stream = Stream(names)
    stream.healthy(100)
    (alert,) = stream.with_({"h.77.weight": 60.0})
    assert alert.layers[0] == "h.77.weight"


def test_a_layer_with_hardly_any_gradient_may_grow():
    """When a network finds its way, tiny layers gain orders of magnitude; they are no part of the step yet."""
    stream = Stream()
    stream.level[0] = 1e-6
    stream.healthy(200)
    stream.level[0] = 1e-3
    stream.healthy(50)
    assert stream.alerts == []


def test_one_alert_for_a_burst():
    """A burst of spikes is one cause; a later one is another."""
    stream = Stream()
    stream.healthy(100)
    for _ in range(10):
        stream.with_(SPIKED)
    stream.healthy(100)
    stream.with_(SPIKED)
    assert stream.rules == ["spike", "spike"]


def test_a_constant_series_makes_no_spike():
    """With no spread at all, a hair's breadth is not an outlier."""
    stream = Stream()
    for _ in range(200):
        stream.norms(np.ones(len(LAYERS)))
    stream.norms(np.full(len(LAYERS), 1.5))
    assert stream.alerts == []


def test_early_spike():
    """A thousandfold norm before any baseline exists is a spike too."""
    stream = Stream()
    stream.healthy(10)
    (alert,) = stream.with_(dict.fromkeys(LAYERS, 1e6))
    assert alert.rule == "spike"


def test_spike_names_the_learning_rate_jump_before_it():
    """What changed just before comes first among the places to check."""
    stream = Stream()
    stream.metrics(loss=1.0, lr=0.001)
    stream.healthy(100)
    stream.metrics(loss=1.0, lr=0.1)
    (alert,) = stream.with_(SPIKED)
    assert "0.001 to 0.1" in alert.evidence["changed_before"][0]
    assert "0.001 to 0.1" in alert.evidence["check"][0]
    assert alert.evidence["learning_rate"] == 0.1


# explosion


def test_growing_norms_explode():
    """Norms that grow steadily, never by a jump, are an explosion, told once."""
    stream = Stream()
    stream.healthy(150)
    for _ in range(100):
        stream.level *= 1.06
        stream.norms()
    assert stream.rules == ["explosion"]
    assert stream.alerts[0].evidence["ratio"] > 5


def test_slow_growth_is_no_explosion():
    """Norms that grow tenfold over a thousand steps are a healthy run's."""
    stream = Stream()
    for _ in range(1000):
        stream.level *= 10 ** (1 / 1000)
        stream.norms()
    assert stream.alerts == []


# vanishing


def test_vanishing_by_depth():
    """A steep fall towards the input is told within 20 samples, smallest layer first."""
    names = [f"net.{index}.weight" for index in range(10)]
    stream = Stream(names)
    stream.level = 0.15 ** np.arange(9, -1, -1.0)
    stream.healthy(20)
    (alert,) = stream.alerts
    assert (alert.rule, alert.evidence["kind"]) == ("vanishing", "depth")
    assert alert.layers[0] == "net.0.weight"
    assert alert.evidence["ratio_per_layer"] == pytest.approx(0.15, rel=0.1)
    stream.healthy(500)
    assert len(stream.alerts) == 1


def test_vanishing_by_level():
    """Equal over depth but far below Adam's epsilon: only the level tells."""
    stream = Stream([f"net.{index}.weight" for index in range(10)])
    stream.level[:] = 1e-11
    stream.healthy(20)
    (alert,) = stream.alerts
    assert (alert.rule, alert.evidence["kind"]) == ("vanishing", "level")


def test_layers_without_signal_by_construction_are_no_trouble():
    """The key bias of attention has no gradient but rounding noise; so has a bias before a batch norm."""
    names = [f"layer.{i}.{part}" for i in range(6) for part in ("query.weight", "key.weight", "key.bias", "out.weight")]
    stream = Stream(names)
    stream.level[2::4] = 1e-10
    stream.healthy(300)
    assert stream.alerts == []


def test_withering_within_the_first_steps():
    """Most weights fall a thousandfold in a dozen samples while the total stays: told at the 16th, the last first."""
    stream = Stream()
    stream.healthy(4)
    stream.level[:-1] = 1e-4
    stream.level[-1] = 3.0
    stream.healthy(12)
    (alert,) = stream.alerts
    assert (alert.rule, alert.step, alert.evidence["kind"]) == ("vanishing", 15, "withered")
    assert alert.layers[0] == "model.layers.3.weight"
    assert alert.evidence["layers_below"] == 4
    assert "learning rate" in alert.text
    stream.healthy(100)
    assert stream.rules == ["vanishing"]


@pytest.mark.parametrize("fallen", ["all", "few", "slightly"])
def test_early_falls_that_are_no_withering(fallen: str):
    """Norms that fall together, in few layers, or by less than a thousand, are what healthy first steps look like."""
    stream = Stream()
    stream.healthy(4)
    if fallen == "all":
        stream.level[:] = 1e-4
    elif fallen == "few":
        stream.level[2:4] = 1e-4
    else:
        stream.level[:-1] = 1e-2
    stream.healthy(60)
    assert stream.alerts == []


def test_convergence_is_no_vanishing():
    """Norms that fall together to nothing with the loss are success."""
    stream = Stream()
    for step in range(600):
        stream.level[:] = max(10 ** (-step / 50), 1e-11)
        stream.norms()
        stream.metrics(loss=max(10 ** (-step / 50), 1e-11))
    assert stream.alerts == []


def test_collapse_points_at_the_layer_nearest_the_output():
    """A unit that saturates starves what lies before it; the last starved layer is where the signal is lost."""
    stream = Stream()
    stream.healthy(100)
    stream.level[:5] = 1e-6
    stream.healthy(10)
    (alert,) = stream.alerts
    assert (alert.rule, alert.evidence["kind"]) == ("vanishing", "collapse")
    assert alert.layers[0] == LAYERS[4]
    assert alert.step == 104


def test_underflow_to_zero_is_vanishing_not_death():
    """Zeros at the end of a steep slope are underflow."""
    names = [f"net.{index}.weight" for index in range(50)]
    stream = Stream(names)
    stream.level = 0.4 ** np.arange(49, -1, -1.0)
    stream.level[stream.level < 1e-15] = 0.0
    stream.healthy(60)
    assert stream.rules == ["vanishing"]


# dead_layer and no_gradient


def test_dead_layer():
    """Exact zeros for five samples in a layer that lived, while others live."""
    stream = Stream()
    stream.healthy(30)
    stream.level[2] = 0.0
    stream.healthy(5)
    (alert,) = stream.alerts
    assert (alert.rule, alert.step, alert.layers) == ("dead_layer", 34, (LAYERS[2],))
    assert alert.evidence["alive_before"] is True
    stream.healthy(300)
    assert len(stream.alerts) == 1


def test_zeros_at_the_start_are_given_time():
    """LoRA's A has a gradient of zero until B has moved."""
    stream = Stream()
    stream.level[0] = 0.0
    stream.healthy(15)
    stream.level[0] = 1.0
    stream.healthy(50)
    assert stream.alerts == []


def test_never_alive():
    """A layer that stays at zero is told after 20 samples."""
    stream = Stream()
    stream.level[0] = 0.0
    stream.healthy(25)
    (alert,) = stream.alerts
    assert (alert.rule, alert.step, alert.severity) == ("dead_layer", 19, "warning")


def test_idle_experts_are_not_dead():
    """A layer that is often without tokens is told only after a pause far longer than its usual ones."""
    stream = Stream()
    pause = 0
    for _ in range(400):
        pause = (pause + 1) % 5
        stream.with_({LAYERS[0]: 0.0} if pause else {})
    assert stream.alerts == []
    for _ in range(15):
        stream.with_({LAYERS[0]: 0.0})
    assert stream.rules == ["dead_layer"]


def test_no_gradient_at_all():
    """Every gradient exactly zero is told too, once."""
    stream = Stream()
    stream.healthy(10)
    for _ in range(50):
        stream.norms(np.zeros(len(LAYERS)))
    assert stream.rules == ["dead_layer"]
    assert "Every gradient" in stream.alerts[0].title


def test_frozen_layers():
    """Layers whose gradient is gone for five samples are named together."""
    stream = Stream()
    stream.healthy(30)
    for _ in range(20):
        stream.with_({}, absent=LAYERS[2:4])
    (alert,) = stream.alerts
    assert (alert.rule, alert.step, alert.layers) == ("no_gradient", 34, LAYERS[2:4])


def test_never_used_layers_are_information():
    """A layer without gradient from the start is mentioned once, without alarm."""
    stream = Stream()
    for _ in range(100):
        stream.with_({}, absent=LAYERS[:1])
    (alert,) = stream.alerts
    assert (alert.rule, alert.severity) == ("no_gradient", "info")


def test_layer_drop_is_no_alarm():
    """Layers that are skipped at random come back."""
    stream = Stream()
    for _ in range(2000):
        stream.with_({}, absent=[name for name in LAYERS if stream.random.random() < 0.2])
    assert stream.alerts == []


# clipping


def test_clip_saturation():
    """Clipping that always bites hard is worth a word, once, not in the first samples."""
    stream = Stream()
    stream.healthy(600, clip_coefficient=0.1, max_norm=0.3)
    (alert,) = stream.alerts
    assert (alert.rule, alert.severity) == ("clip_saturation", "info")
    assert alert.step >= 150
    assert alert.evidence["max_norm"] == 0.3


def test_gentle_clipping_is_no_news():
    """Clipping that takes a little off, or only at times, is what it is for."""
    stream = Stream()
    for step in range(600):
        stream.norms(clip_coefficient=0.8 if step % 3 else 1.0, max_norm=2.0)
    assert stream.alerts == []


def test_clipping_that_stops():
    """Norms above the limit that are no longer clipped are told within five samples."""
    stream = Stream()
    stream.healthy(100, clip_coefficient=0.3, max_norm=0.5)
    stream.healthy(20)
    (alert,) = stream.alerts
    assert (alert.rule, alert.step) == ("clipping_stopped", 104)


# the loss


def test_divergence_is_told_once():
    """A loss that stays far above its start has diverged."""
    stream = Stream()
    for step in range(100):
        stream.norms()
        stream.metrics(loss=1.0 if step < 40 else 9.0)
    assert stream.rules == ["diverged"]
    assert stream.alerts[0].step == 44


def test_one_low_first_value_is_no_divergence():
    """With small batches the first loss may be an outlier."""
    stream = Stream()
    for step in range(200):
        stream.norms()
        stream.metrics(loss=0.02 if step == 0 else float(stream.random.exponential()))
    assert "diverged" not in stream.rules


def test_lost_progress():
    """A loss that jumps back to where the run began, and stays, has lost what was learned."""
    stream = Stream()
    for step in range(150):
        stream.norms()
        stream.metrics(loss=max(0.2, 2.0 - step / 50) if step < 120 else 2.1)
    assert stream.rules == ["diverged"]
    assert stream.alerts[0].evidence["loss_before"] < 0.5


def test_stuck_loss_with_withering_norms():
    """At the end: the loss is where it was and the median layer has lost its gradient."""
    stream = Stream()
    for step in range(300):
        if step > 60:
            stream.level[:-1] = 0.05
        stream.norms()
        stream.metrics(loss=0.693 + float(stream.random.normal(0, 0.01)))
    assert stream.alerts == []
    (alert,) = stream.finish()
    assert alert.rule == "no_learning"
    assert alert.layers


def test_flat_loss_with_lively_norms_is_given_time():
    """As long as gradients are as they were, 400 flat steps may be a plateau; 1,000 are not."""
    stream = Stream()
    for _ in range(400):
        stream.norms()
        stream.metrics(loss=0.693 + float(stream.random.normal(0, 0.01)))
    assert stream.finish() == []
    for _ in range(600):
        stream.norms()
        stream.metrics(loss=0.693 + float(stream.random.normal(0, 0.01)))
    assert stream.rules == ["no_learning"]


@pytest.mark.parametrize("name", ["loss", "train/loss", "train_loss", "loss/train", "Train Loss/loss"])
def test_usual_names_of_the_loss(name: str):
    """The training loss is found by the names that people use."""
    assert Monitor().feed(Metrics(0, 0, {"val/loss": 1.0, name: NAN, "accuracy": 0.1})) != []


@pytest.mark.parametrize("name", ["val/loss", "eval_loss", "test/loss", "loss_weight", "glossiness"])
def test_what_is_not_the_training_loss(name: str):
    """Held-out losses and look-alikes are not read."""
    assert Monitor().feed(Metrics(0, 0, {name: NAN})) == []


def test_configured_series():
    """A configured name is read instead."""
    monitor = Monitor(HealthConfig(loss="objective"))
    assert monitor.feed(Metrics(0, 0, {"loss": NAN})) == []
    assert monitor.feed(Metrics(0, 0, {"objective": NAN})) != []


# the monitor


def test_disabled_rules_and_unknown_names():
    """A disabled rule is silent; a rule that does not exist is an error that lists those that do."""
    stream = Stream(config=HealthConfig(disabled=("spike",)))
    stream.healthy(100)
    assert stream.with_(SPIKED) == []
    with pytest.raises(ValueError, match=r"'spkie'.*spike"):
        Monitor(HealthConfig(disabled=("spkie",)))


def test_alerts_are_records():
    """Every alert survives the journal's encoding."""
    stream = Stream()
    stream.metrics(loss=1.0, lr=1e-3)
    stream.healthy(100)
    stream.metrics(loss=1.0, lr=1e-1)
    stream.with_(SPIKED)
    for _ in range(6):
        stream.with_({LAYERS[1]: 0.0})
    stream.with_(dict.fromkeys(LAYERS[:2], NAN))
    assert len(stream.alerts) >= 3
    for alert in stream.alerts:
        assert decode(encode(alert)) == alert
        assert alert.rule in RULES
        assert alert.evidence["check"]


def _story() -> Stream:
    stream = Stream()
    stream.feed(RunStarted(0, "r", 1, 1, "h"))
    stream.feed(Params(0, {"optimizer": {"lr": 0.01}}))
    for _ in range(130):
        stream.norms(clip_coefficient=0.4, max_norm=1.0)
        stream.metrics(loss=1.0 + float(stream.random.normal(0, 0.1)), lr=0.01)
    stream.with_(SPIKED)
    for _ in range(30):
        stream.with_({LAYERS[1]: 0.0}, absent=LAYERS[5:6])
        stream.metrics(loss=5.0)
    for _ in range(30):
        stream.with_(dict.fromkeys(LAYERS[:3], INF), skipped=True)
    stream.with_(dict.fromkeys(LAYERS[:3], NAN))
    stream.finish()
    return stream


def test_a_snapshot_goes_on_as_if_nothing_had_happened():
    """A monitor restored at any point says exactly what the uninterrupted one says."""
    stream = _story()
    assert len(set(stream.rules)) >= 5
    for cut in range(0, len(stream.records), 23):
        first = Monitor()
        alerts = list(first.feed_all(stream.records[:cut]))
        second = Monitor.from_snapshot(first.snapshot())
        alerts += second.feed_all(stream.records[cut:])
        assert alerts == stream.alerts, cut


def test_foreign_bytes_are_no_snapshot():
    """Bytes that are none of ours raise instead of being believed."""
    import msgspec

    with pytest.raises(msgspec.DecodeError):
        Monitor.from_snapshot(b"\x93\x01\x02\x03")


def test_memory_is_flat():
    """What is remembered after 5,000 steps is no larger than after 500."""
    stream = Stream()
    stream.metrics(loss=1.0, lr=0.1)
    sizes = []
    for _ in range(2):
        for _ in range(500 if not sizes else 4500):
            stream.norms(clip_coefficient=0.9)
            stream.metrics(loss=1.0 + float(stream.random.normal()), lr=float(stream.random.random()))
        sizes.append(len(stream.monitor.snapshot()))
    assert sizes[1] <= sizes[0] * 1.02


def test_a_resumed_run_keeps_its_baseline():
    """A new table with the same layers goes on from the old one's past, also if some are new."""
    stream = Stream()
    stream.healthy(100)
    stream.feed(RunStarted(0, "r", 2, 1, "h"))
    stream.names = (*LAYERS, "extra.weight")
    stream.level = np.ones(len(stream.names))
    stream.table = 1
    stream.feed(SeriesTable(0, 1, "gradients", stream.names, (1,) * len(stream.names)))
    (alert,) = stream.with_(dict.fromkeys(stream.names, 500.0))
    assert alert.rule == "spike"
    assert any("resumed" in line for line in alert.evidence["changed_before"])


def test_two_models_in_one_run_stay_apart():
    """A GAN's two tables alternate without disturbing each other."""
    stream = Stream()
    other = tuple(f"critic.{index}.weight" for index in range(5))
    stream.feed(SeriesTable(0, 1, "gradients/critic", other, (1,) * 5))
    for step in range(150):
        stream.norms()
        values = 1000 * np.exp(stream.random.normal(0, 0.2, 5))
        stream.feed(NormVector(step, step, 1, pack_values(values)))
    assert stream.alerts == []
    (alert,) = stream.feed(NormVector(150, 150, 1, pack_values(np.full(5, 1e6))))
    assert alert.layers[0].startswith("critic.")
    assert alert.evidence["model"] == "critic"


def test_layers_that_are_frozen_leave_the_table():
    """In mid-run, layers missing from a new table were frozen; after a resume they may be unwatched on purpose."""
    for resumed in (False, True):
        stream = Stream()
        stream.healthy(50)
        if resumed:
            stream.feed(RunStarted(0, "r", 2, 1, "h"))
        stream.names, stream.table = LAYERS[3:], 1
        stream.level = stream.level[3:]
        stream.feed(SeriesTable(0, 1, "gradients", stream.names, (1,) * len(stream.names)))
        stream.healthy(50)
        if resumed:
            assert stream.alerts == []
        else:
            (alert,) = stream.alerts
            assert (alert.rule, alert.step, alert.layers) == ("no_gradient", 50, LAYERS[:3])


def test_layers_that_are_measured_in_turn():
    """Where each record holds a quarter of the layers, their absence means nothing and the total is steady."""
    stream = Stream()
    table = SeriesTable(0, 0, "gradients", LAYERS, (1,) * len(LAYERS), partial=True)
    stream.monitor = Monitor()
    stream.feed(table)

    def turn(step: int, factor: float = 1.0) -> list[object]:
        stream.level[:] = factor
        return stream.with_({}, absent=[name for slot, name in enumerate(LAYERS) if slot % 4 != step % 4])

    for step in range(800):
        turn(step)
    assert stream.alerts == []
    turn(800, 300.0)
    assert stream.rules == ["spike"]


def test_other_kinds_and_unknown_tables_are_ignored():
    """Norms of activations, vectors of the wrong length and vectors without a table say nothing and break nothing."""
    monitor = Monitor()
    assert monitor.feed(NormVector(0, 0, 9, pack_values([NAN]))) == []
    monitor.feed(SeriesTable(0, 1, "activations", ("a",), (1,)))
    assert monitor.feed(NormVector(0, 0, 1, pack_values([NAN]))) == []
    monitor.feed(SeriesTable(0, 2, "gradients", ("a",), (1,)))
    assert monitor.feed(NormVector(0, 0, 2, pack_values([NAN, NAN]))) == []


def test_a_snapshot_record_brings_the_tables():
    """After `max_disk` removed the first segments, the tables come from a `Snapshot`."""
    table = SeriesTable(0, 0, "gradients", ("a.weight", "b.weight"), (1, 1))
    monitor = Monitor()
    monitor.feed(Snapshot(0, {"lr": 0.1}, {}, (table,)))
    (alert,) = monitor.feed(NormVector(0, 5, 0, pack_values([NAN, 1.0])))
    assert alert.layers == ("a.weight",)
    assert alert.evidence["learning_rate"] == 0.1


def test_other_norm_types():
    """The total of max and L1 norms is theirs."""
    for norm_type, expected in ((INF, 3.0), (1.0, 6.0), (2.0, math.sqrt(14.0))):
        names = ("a.weight", "b.weight", "c.weight")
        monitor = Monitor()
        monitor.feed(SeriesTable(0, 0, "gradients", names, (1, 1, 1), norm_type))
        for step in range(100):
            monitor.feed(NormVector(step, step, 0, pack_values([1.0, 2.0, 3.0])))
        (alert,) = monitor.feed(NormVector(100, 100, 0, pack_values([100.0, 200.0, 300.0])))
        assert alert.evidence["baseline"] == pytest.approx(expected, rel=1e-3)


def test_the_monitor_changes_nothing_it_is_given():
    """Records stay as they were."""
    stream = Stream()
    stream.healthy(100)
    before = [encode(record) for record in stream.records]
    list(Monitor().feed_all(stream.records))
    assert [encode(record) for record in stream.records] == before
    assert unpack_values(stream.records[1].values).flags.writeable is False


def test_a_snapshot_in_mid_run_is_no_change():
    """A snapshot that opens a later segment says again what is known: no alert says that parameters were logged."""
    stream = Stream()
    stream.healthy(100)
    table = SeriesTable(0, 0, "gradients", stream.names, (1,) * len(stream.names))
    stream.feed(Snapshot(0, {"lr": 0.1}, {}, (table,)))
    stream.healthy(5)
    stream.norms(1000 * stream.draw())
    (alert,) = stream.alerts
    assert "changed_before" not in alert.evidence
