"""The learning-rate study: the four regimes of BERT under Adam are told apart, each with its layers. Real training."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.science.test_textbook import load_example
from tracker_bridge.report import Story, read_story

pytestmark = [pytest.mark.science, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory):
    """The run at a learning rate, trained when it is first asked for."""
    torch.set_num_threads(1)
    example = load_example("learning_rate_study")
    folder: Path = tmp_path_factory.mktemp("study")

    @cache
    def at(rate: float) -> Story:
        story = read_story(example.train(rate, folder=folder))
        for alert in story.alerts:
            print(f"lr {rate:g}: step {alert.step} {alert.rule}: {alert.title} {alert.layers[:3]}")
        return story

    return at


def _norm(story: Story, layer: str) -> np.ndarray:
    norms = story.models[0].norms
    return norms.values[:, norms.names.index(layer)]


def test_ten_diverges(study):
    """At 10: the loss explodes and the encoder goes dead, both told within 20 steps, with the encoder's layers."""
    story = study(10.0)
    at = {alert.rule: alert for alert in story.alerts}
    assert {"diverged", "non_finite"} & set(at)
    assert max(alert.step for alert in story.alerts if alert.rule in ("diverged", "non_finite", "dead_layer")) <= 20
    if "dead_layer" in at:
        assert any(".encoder.layer." in name for name in at["dead_layer"].layers)


def test_a_tenth_learns_nothing_without_exploding(study):
    """At 0.1: the encoder loses its gradients, told with its layers as soon as it shows; no learning at the end."""
    story = study(0.1)
    rules = [alert.rule for alert in story.alerts]
    assert {"vanishing", "dead_layer"} & set(rules)
    assert not {"diverged", "non_finite", "explosion"} & set(rules)
    first = next(alert for alert in story.alerts if alert.rule in ("vanishing", "dead_layer"))
    assert any(".encoder.layer." in name for name in first.layers)
    assert first.step <= 20
    assert "no_learning" in rules
    assert story.loss is not None
    assert np.median(story.loss.values[-50:]) > 0.6


def test_a_thousandth_stays_where_it_began(study):
    """At 1e-3: the loss stays at ln 2 while the norms of the layers wither; told by the end, with the layers."""
    story = study(1e-3)
    assert [alert.rule for alert in story.alerts] == ["no_learning"]
    (alert,) = story.alerts
    assert alert.evidence["layer_norm_ratio"] < 0.3
    assert alert.layers
    assert alert.evidence["loss"] == pytest.approx(np.log(2), abs=0.02)


def test_a_small_rate_learns(study):
    """At 3e-4: the loss falls, the norm of the last encoder layer moves, and no rule speaks."""
    story = study(3e-4)
    assert story.alerts == ()
    assert story.loss is not None
    assert np.median(story.loss.values[-50:]) < 0.62
    last = _norm(story, "bert.encoder.layer.3.output.dense.weight")
    assert np.median(last[-50:]) > 1.5 * np.median(last[20:70])
