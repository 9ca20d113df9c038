"""The Trainer callback, in real training runs of a tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

import tracker_bridge as bridge
from tracker_bridge.integrations.transformers import TrackerBridgeCallback


class TinyConfig(PretrainedConfig):
    model_type = "tiny"

    def __init__(self, width: int = 6, **more):
        self.width = width
        super().__init__(**more)


class Tiny(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.first = torch.nn.Linear(4, config.width)
        self.last = torch.nn.Linear(config.width, 1)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, x, labels):
        return {"loss": ((self.last(torch.tanh(self.first(x))) - labels) ** 2).mean() * 50}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(4, generator=generator), "labels": torch.randn(1, generator=generator)}


def trainer(folder: Path, callback, *, steps: int, **more) -> Trainer:
    torch.manual_seed(0)
    arguments = {
        "output_dir": str(folder / "out"),
        "max_steps": steps,
        "per_device_train_batch_size": 2,
        "logging_steps": 1,
        "max_grad_norm": 0.1,
        "report_to": "none",
        "use_cpu": True,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        **more,
    }
    return Trainer(Tiny(TinyConfig()), TrainingArguments(**arguments), train_dataset=Rows(), callbacks=[callback])


def callback_for(folder: Path, **more) -> TrackerBridgeCallback:
    return TrackerBridgeCallback({"backends": {}}, dir=folder / "runs", **more)


def test_norms_are_those_from_before_clipping_and_line_up_with_the_trainers_own(tmp_path: Path) -> None:
    """At each step the total is the `grad_norm` that the Trainer logs, the layers add up to it, and the clip shows."""
    original = vars(Accelerator)["clip_grad_norm_"]
    callback = callback_for(tmp_path)
    training = trainer(tmp_path, callback, steps=4, gradient_accumulation_steps=2)
    training.train()
    assert vars(Accelerator)["clip_grad_norm_"] is original
    run_dir = callback.run.dir
    callback.close()
    run = bridge.read(run_dir)
    norms = run.gradient_norms()
    steps, logged = run.metrics()["train/grad_norm"]
    assert list(norms.steps) == list(steps) == [1, 2, 3, 4]
    np.testing.assert_allclose(norms.total, logged, rtol=1e-6)
    np.testing.assert_allclose(np.sqrt((norms.values**2).sum(axis=1)), logged, rtol=1e-5)
    assert set(norms.names) == {"first.weight", "first.bias", "last.weight", "last.bias"}
    assert (norms.total > 0.1).all()
    np.testing.assert_allclose(norms.clip_coefficient, 0.1 / (np.array(logged) + 1e-6), rtol=1e-5)
    assert not norms.post_clip.any()
    assert {"train/loss", "train/learning_rate"} <= set(run.metrics())
    assert run.params["max_grad_norm"] == 0.1
    assert run.params["model"]["width"] == 6


def test_watching_changes_no_weight(tmp_path: Path) -> None:
    """The same training with and without the callback ends with bitwise the same weights."""
    watched = callback_for(tmp_path)
    first = trainer(tmp_path, watched, steps=3)
    first.train()
    watched.close()
    idle = callback_for(tmp_path, watch=False)
    second = trainer(tmp_path, idle, steps=3)
    second.train()
    idle.close()
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_continues_its_run(tmp_path: Path) -> None:
    """Training resumed from a checkpoint by another callback goes on in the same run, at the next step."""
    first = callback_for(tmp_path)
    trainer(tmp_path, first, steps=2, save_strategy="steps", save_steps=2).train()
    run_dir, run_id = first.run.dir, first.run.id
    first.close("killed")
    second = callback_for(tmp_path)
    trainer(tmp_path, second, steps=4, restore_callback_states_from_checkpoint=True).train(
        resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2")
    )
    assert second.run.id == run_id
    second.close()
    run = bridge.read(run_dir)
    assert list(run.gradient_norms().steps) == [1, 2, 3, 4]
    assert list(run.metrics()["train/loss"][0]) == [1, 2, 3, 4]
    assert len(run.attempts) == 2


def test_without_clipping_the_norms_are_there_too(tmp_path: Path) -> None:
    """`max_grad_norm=0` clips nothing; the norms are recorded all the same, into a run of the script."""
    with bridge.init({"backends": {}}, dir=tmp_path / "runs") as run:
        training = trainer(
            tmp_path, TrackerBridgeCallback(run=run, watch={"include": ["last.*"]}), steps=2, max_grad_norm=0.0
        )
        training.train()
    norms = bridge.read(run.dir).gradient_norms()
    assert set(norms.names) == {"last.weight", "last.bias"}
    assert list(norms.steps) == [1, 2]
    assert bridge.read(run.dir).status == "finished"
