"""The Accelerate tracker, in a real training loop with accumulation and clipping."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer

import tracker_bridge as bridge
from tracker_bridge.integrations.accelerate import TrackerBridgeTracker


def test_log_with_records_numbers_params_and_norms_from_before_clipping(tmp_path: Path) -> None:
    """What `accelerator.log` gets and each layer's norm before `clip_grad_norm_` are in the run, which it finishes."""
    original = vars(Accelerator)["clip_grad_norm_"]
    tracker = TrackerBridgeTracker({"backends": {}}, dir=tmp_path)
    accelerator = Accelerator(log_with=tracker, cpu=True, gradient_accumulation_steps=2)
    accelerator.init_trackers("nlp/tiny", config={"learning_rate": 0.1})
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    tracker.watch(model, optimizer)
    totals, layers = [], []
    for step in range(6):
        with accelerator.accumulate(model):
            loss = model(torch.randn(4, 3)).pow(2).mean() * 100
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                layers.append({name: float(p.grad.norm()) for name, p in model.named_parameters()})
                totals.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
            optimizer.step()
            optimizer.zero_grad()
        accelerator.log({"loss": loss, "note": "text", "split": {"a": 1.0}}, step=step)
    run_dir = accelerator.get_tracker("tracker_bridge", unwrap=True).dir
    accelerator.end_training()
    assert vars(Accelerator)["clip_grad_norm_"] is original
    run = bridge.read(run_dir)
    norms = run.gradient_norms()
    assert list(norms.steps) == [0, 1, 2]
    np.testing.assert_allclose(norms.total, totals, rtol=1e-6)
    for row, expected in zip(norms.values, layers, strict=True):
        np.testing.assert_allclose(row, [expected[name] for name in norms.names], rtol=1e-5)
    assert (norms.clip_coefficient < 1).all()
    assert run.params == {"learning_rate": 0.1}
    assert list(run.metrics()["loss"][0]) == list(range(6))
    assert list(run.metrics()["split/a"][1]) == [1.0] * 6
    assert run.texts()[0].text == "text"
    assert run.status == "finished"


def test_a_scaler_is_divided_out_and_its_skipped_steps_are_marked(tmp_path: Path) -> None:
    """With a loss scale, norms are those of the unscaled gradients from before clipping; an overflow is skipped."""
    tracker = TrackerBridgeTracker({"backends": {}}, dir=tmp_path)
    accelerator = Accelerator(log_with=tracker, cpu=True)
    # Accelerate refuses fp16 on a CPU, but torch's scaler works there: what it would set on a GPU is set by hand.
    accelerator.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"
    try:
        accelerator.init_trackers("amp")
        model = torch.nn.Linear(3, 1)
        optimizer = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler)
        accelerator._optimizers.append(optimizer)
        tracker.watch(model, optimizer)
        expected = []
        for step in range(3):
            inputs = torch.full((2, 3), float("inf") if step == 1 else step + 1.0)
            scaler.scale(model(inputs).sum()).backward()
            expected.append(float(model.weight.grad.norm()) / float(scaler._scale))
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        run_dir = tracker.tracker.dir
        accelerator.end_training()
    finally:
        accelerator.state._mixed_precision = "no"
    norms = bridge.read(run_dir).gradient_norms()
    assert list(norms.steps) == [0, 1, 2]
    assert norms.skipped.tolist() == [False, True, False]
    weight = norms.values[:, norms.names.index("weight")]
    np.testing.assert_allclose(weight[[0, 2]], np.array(expected)[[0, 2]], rtol=1e-5)
    assert not np.isfinite(weight[1])
    assert (norms.clip_coefficient[[0, 2]] < 0.2).all()
