"""Lightning's logger and callback, in real `fit` calls on the CPU."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import MixedPrecision

    from tracker_bridge.integrations.lightning import GradientNorms, TrackerBridgeLogger

import tracker_bridge as bridge
from tests import scripts

pytestmark = pytest.mark.filterwarnings("ignore")


class Tiny(pl.LightningModule):
    def __init__(self, fused=False):
        super().__init__()
        self.fused = fused
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
        self.seen = []

    def training_step(self, batch, _):
        loss = self.net(batch).pow(2).mean() * 100
        self.log("loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.seen.append(
            {name: float(p.grad.float().norm()) for name, p in self.named_parameters() if p.grad is not None}
        )

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01, fused=self.fused)


class Two(Tiny):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, _):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.net(batch).pow(2).mean())
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.net[at].parameters(), lr=0.01) for at in (0, 2)]


def fit(folder: Path, module, logger, *callbacks, **more):
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(torch.randn(8, 3), batch_size=2)
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=logger,
        callbacks=list(callbacks),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )
    trainer.fit(module, loader)
    return trainer


def logger_for(folder: Path) -> TrackerBridgeLogger:
    return TrackerBridgeLogger({"backends": {}}, dir=folder / "runs")


def test_norms_from_before_clipping_beside_lightnings_metrics(tmp_path: Path) -> None:
    """With accumulation and clipping each optimizer step has the norms from before it, on Lightning's own steps."""
    logger, module = logger_for(tmp_path), Tiny()
    fit(tmp_path, module, logger, GradientNorms(), accumulate_grad_batches=2, gradient_clip_val=0.5)
    logger.close()
    run = bridge.read(logger.experiment.dir)
    norms = run.gradient_norms()
    assert list(norms.steps) == [0, 1]
    for row, expected in zip(norms.values, module.seen, strict=True):
        np.testing.assert_allclose(row, [expected[name] for name in norms.names], rtol=1e-5)
    np.testing.assert_allclose(norms.clip_coefficient, 0.5 / norms.total, rtol=1e-4)
    assert (norms.total > 0.5).all()
    assert set(run.metrics()["loss"][0]) <= {0, 1}
    assert run.params == {"fused": False}
    assert run.status == "finished"


def test_the_scale_of_a_fused_optimizer_is_divided_out(tmp_path: Path) -> None:
    """Lightning leaves the gradients of a fused optimizer scaled at its hook; the recorded norms are unscaled."""
    logger, module = logger_for(tmp_path), Tiny(fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    fit(tmp_path, module, logger, GradientNorms(), plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    logger.close()
    norms = bridge.read(logger.experiment.dir).gradient_norms()
    assert len(norms) == 4
    for row, expected in zip(norms.values, module.seen, strict=True):
        np.testing.assert_allclose(row * 256.0, [expected[name] for name in norms.names], rtol=1e-3)
    assert not norms.skipped.any()


def test_an_overflow_is_a_skipped_step(tmp_path: Path) -> None:
    """A step that the scaler skips is recorded as skipped, and the count goes on."""
    logger, module = logger_for(tmp_path), Tiny()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    fit(tmp_path, module, logger, GradientNorms(), plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    logger.close()
    norms = bridge.read(logger.experiment.dir).gradient_norms()
    assert list(norms.steps) == [0, 1, 2, 3]
    assert norms.skipped[0]


def test_several_optimizers_are_recorded_apart(tmp_path: Path) -> None:
    """Each optimizer of a manual loop has its own layers, count and total."""
    logger, module = logger_for(tmp_path), Two()
    fit(tmp_path, module, logger, GradientNorms())
    logger.close()
    norms = bridge.read(logger.experiment.dir).gradient_norms()
    assert list(norms.steps) == [0, 1, 2, 3]
    assert norms.present.all()
    assert set(norms.names) == {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}
    for row, first, second in zip(norms.values, module.seen[::2], module.seen[1::2], strict=True):
        expected = {
            **{n: first[n] for n in first if n.startswith("net.0")},
            **{n: second[n] for n in second if n.startswith("net.2")},
        }
        np.testing.assert_allclose(row, [expected[name] for name in norms.names], rtol=1e-5)


def test_without_a_run_the_callback_says_what_to_do(tmp_path: Path) -> None:
    """The error names the three ways to give it a run."""
    with pytest.raises(RuntimeError, match="TrackerBridgeLogger"):
        fit(tmp_path, Tiny(), False, GradientNorms())


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ddp_processes_are_one_run(tmp_path: Path) -> None:
    """Under the DDP strategy the first process writes, the norms are those of the averaged gradient."""
    done = scripts.run(
        tmp_path,
        """
import warnings
warnings.simplefilter("ignore")
import torch, lightning.pytorch as pl
from tracker_bridge.integrations.lightning import GradientNorms, TrackerBridgeLogger

class Tiny(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)
    def training_step(self, batch, _):
        loss = self.net(batch * (self.global_rank + 1)).sum()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)

if __name__ == "__main__":
    torch.set_num_threads(1)
    logger = TrackerBridgeLogger({"backends": {}}, dir="runs")
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=logger, log_every_n_steps=1,
        callbacks=[GradientNorms()], enable_checkpointing=True, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Tiny(), torch.utils.data.DataLoader(torch.ones(8, 3), batch_size=2))
    logger.close()
""",
        timeout=110,
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (folder,) = (tmp_path / "runs").iterdir()
    run = bridge.read(folder)
    norms = run.gradient_norms()
    assert list(norms.steps) == [0, 1]
    weight = norms.values[:, norms.names.index("net.weight")]
    np.testing.assert_allclose(weight, np.full(2, np.sqrt(3) * 3.0), rtol=1e-6)
    assert run.status == "finished"
