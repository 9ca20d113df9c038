"""Networks whose gradients the textbooks predict, and the remedies that mend them. Real training, fixed seeds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from tests.science.trainings import Recorder
from tracker_bridge.health import Monitor
from tracker_bridge.records import NormVector, SeriesTable, unpack_values

pytestmark = [pytest.mark.science, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_example(name: str) -> ModuleType:
    """An example script as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _decay(init: str, seed: int) -> float:
    """Geometric-mean ratio of the RMS weight gradients of neighbouring layers, of a sigmoid net of depth 10."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    width = 256
    layers: list[nn.Module] = []
    for _ in range(10):
        linear = nn.Linear(width, width)
        if init == "xavier":
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Sigmoid()]
    model = nn.Sequential(*layers)
    recorder = Recorder(model)
    model(torch.randn(256, width)).square().mean().backward()
    recorder.collector.collect(0)
    table, vector = recorder.records
    assert isinstance(table, SeriesTable)
    assert isinstance(vector, NormVector)
    slots = [slot for slot, name in enumerate(table.names) if name.endswith("weight")]
    rms = unpack_values(vector.values)[slots] / np.sqrt([table.numel[slot] for slot in slots])
    # From the second layer on: the first one's inputs are centred, all others' come from a sigmoid.
    return float((rms[1] / rms[-1]) ** (1 / 8))


@pytest.mark.parametrize(("init", "theory"), [("default", 0.144), ("xavier", 0.25)])
def test_sigmoid_decay(init: str, theory: float):
    """A sigmoid net of depth 10 decays by sqrt(1/3)/4 a layer at PyTorch's default scale, by 1/4 under Xavier."""
    measured = float(np.mean([_decay(init, seed) for seed in range(3)]))
    print(f"{init}: {measured:.4f} measured, {theory} predicted")
    assert measured == pytest.approx(theory, rel=0.10)


def test_a_plain_deep_network_vanishes_and_its_residual_twin_does_not():
    """ReLU, depth 50, default init: called vanishing within 10 samples, first layers first; with residuals, silence."""
    stabilise = load_example("stabilise")
    torch.set_num_threads(1)
    found = {}
    for name, build in (
        ("plain", lambda: stabilise.perceptron(50, 64, nn.ReLU)),
        ("residual", lambda: stabilise.Residual(50, 64)),
    ):
        torch.manual_seed(0)
        model = build()
        recorder, batches = Recorder(model), stabilise.points(0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        recorder.collector.attach(optimizer)
        for _ in range(40):
            inputs, labels = next(batches)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        found[name] = list(Monitor().feed_all(recorder.finish()))
    (alert,) = found["plain"]
    assert (alert.rule, alert.evidence["kind"]) == ("vanishing", "depth")
    assert alert.step < 10
    assert alert.layers[0].startswith("0.")
    assert alert.evidence["ratio"] < 1e-12
    assert found["residual"] == []


EXPECTED = {
    "activation": {"vanishing"},
    "he_init": {"vanishing"},
    "residual": {"vanishing"},
    "xavier_init": {"vanishing"},
    "clipping": {"spike", "explosion", "diverged", "non_finite"},
    "warm_up": {"no_learning", "vanishing", "diverged", "dead_layer"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_usual_remedy_mends(name: str, tmp_path: Path):
    """Before, the rules name the trouble; after the remedy they are silent and the loss is lower."""
    torch.set_num_threads(1)
    stabilise = load_example("stabilise")
    case = stabilise.CASES[name]
    before = stabilise.train(case.before, case, tmp_path)
    after = stabilise.train(case.after, case, tmp_path)
    print(f"before: {stabilise.describe(before)}\nafter: {stabilise.describe(after)}")
    assert {alert.rule for alert in before.alerts} & EXPECTED[name]
    assert after.alerts == ()
    last_before, last_after = (float(np.median(story.loss.values[-20:])) for story in (before, after))
    assert not last_before <= last_after


def test_every_case_of_the_example_is_tested():
    """A case that is added to the example has an expectation here."""
    assert set(load_example("stabilise").CASES) == set(EXPECTED)
