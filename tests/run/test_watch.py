"""`Run.watch`: from a real training loop to the backend, and what the configuration says about it."""

from __future__ import annotations

from pathlib import Path

from tests import scripts

HEAD = """
import torch, tracker_bridge as bridge
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(16, 4), torch.randn(16, 1)
def train(run, steps):
    expected = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        expected.append({n: float(p.grad.double().norm()) for n, p in model.named_parameters()})
        optimizer.step()
        run.log_metrics({"loss": loss}, step=step)
    return expected
"""


def test_norms_of_every_layer_arrive_beside_the_loss(tmp_path: Path) -> None:
    """Each due step's norms, measured before the update, under the names of the design; a loss tensor as it is."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
import json
with bridge.init(backends={"jsonl": {"path": "out.jsonl"}}) as run:
    run.watch(model, optimizer, every_n_steps=2)
    print(json.dumps(train(run, 5)))
""",
    )
    assert done.returncode == 0, done.stderr
    expected = scripts.json.loads(done.stdout)
    path = tmp_path / "out.jsonl"
    for name in expected[0]:
        got = scripts.metrics(path, f"gradients/{name}")
        assert [step for step, _ in got] == [0, 2, 4]
        for step, value in got:
            assert abs(value - expected[step][name]) <= 1e-5 * expected[step][name]
    assert len(scripts.metrics(path, "loss")) == 5
    total = dict(scripts.metrics(path, "gradients/total_norm"))[2]
    assert abs(total - sum(v * v for v in expected[2].values()) ** 0.5) <= 1e-5 * total


def test_configuration_chooses_layers_cadence_and_grouping(tmp_path: Path) -> None:
    """The gradients section holds where `watch` is not told otherwise; two models do not mix."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
config = {"backends": {"jsonl": {"path": "out.jsonl"}},
          "gradients": {"every_n_steps": 3, "exclude": ["*.bias"], "group_by": "block"}}
with bridge.init(config) as run:
    run.watch(model, optimizer)
    other = torch.nn.Linear(2, 2)
    run.watch(other, group_by=str.upper)
    train(run, 7)
    other(torch.ones(1, 2)).sum().backward()
    run._collectors[1].collect(step=6)
table = bridge.read(run.dir).gradient_norms()
print(sorted(table.names), table.steps.tolist())
""",
    )
    assert done.returncode == 0, done.stderr
    series = {name for line in scripts.lines(tmp_path / "out.jsonl") for name in line.get("metrics", {})}
    assert {"gradients/0", "gradients/2", "gradients/total_norm", "gradients/linear/WEIGHT"} <= series
    assert not any(name.endswith(".bias") for name in series)
    assert [step for step, _ in scripts.metrics(tmp_path / "out.jsonl", "gradients/0")] == [0, 3, 6]
    assert "[0, 3, 6]" in done.stdout


def test_resumed_run_goes_on_counting_optimizer_steps(tmp_path: Path) -> None:
    """The step of a norm vector continues where the interrupted process stopped."""
    text = HEAD + "run = bridge.init(backends={'jsonl': {'path': 'out.jsonl'}}, run_id='r')\n"
    text += "run.watch(model, optimizer)\ntrain(run, 3)\n"
    scripts.run(tmp_path, text + "import os; os.kill(os.getpid(), 9)\n")
    done = scripts.run(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert [s for s, _ in scripts.metrics(tmp_path / "out.jsonl", "gradients/total_norm")] == [0, 1, 2, 3, 4, 5]


def test_more_than_gradients_on_request(tmp_path: Path) -> None:
    """Histograms, parameter norms and update ratios come beside the gradients; ratios are not grouped."""
    done = scripts.run(
        tmp_path,
        HEAD
        + """
with bridge.init(backends={"jsonl": {"path": "out.jsonl"}}) as run:
    run.watch(model, optimizer, histograms=True, parameter_norms=True, update_ratio=True, group_by="block")
    train(run, 3)
""",
    )
    assert done.returncode == 0, done.stderr
    lines = scripts.lines(tmp_path / "out.jsonl")
    series = {name for line in lines for name in line.get("metrics", {})}
    assert {"gradients/0", "parameters/0", "update_ratio/0.weight"} <= series
    histograms = [name for line in lines for name in line.get("histogram", {})]
    assert sorted(set(histograms)) == [f"gradient_histograms/{n}" for n in ("0.bias", "0.weight", "2.bias", "2.weight")]
    assert len(histograms) == 12
