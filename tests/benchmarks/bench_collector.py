"""What collecting costs, as ratios of two things measured interleaved at random in one run.

    python tests/benchmarks/bench_collector.py [--threads 1] [--rounds 60] [--skip-bert]

Printed per case: median and best of each way, and the ratio of the medians with its target. On a machine that is busy
with other things the ratio of the best says more.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import nn

from tracker_bridge.collector import GradientNormCollector


class Times(NamedTuple):
    """Seconds of one way."""

    median: float
    best: float


def interleaved(
    ways: Mapping[str, Callable[[], object]], rounds: int, before: Callable[[], object] = lambda: None
) -> dict[str, Times]:
    """Median and best seconds of each way, run in random order in every round, `before` (not timed) before each.

    With one thread it is CPU time, so that other processes of the machine count for less.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in ways}
    for name in ways:
        before()
        ways[name]()
        ways[name]()
    for _ in range(rounds):
        for name in random.sample(list(ways), len(ways)):
            before()
            start = clock()
            ways[name]()
            times[name].append(clock() - start)
    return {name: Times(statistics.median(values), min(values)) for name, values in times.items()}


def recipe(model: nn.Module) -> dict[str, float]:
    """What scripts usually write."""
    return {f"gradients/{n}": p.grad.norm().item() for n, p in model.named_parameters() if p.grad is not None}


def with_gradients(model: nn.Module) -> nn.Module:
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    return model


class Tensors(nn.Module):
    def __init__(self, count: int, *shape: int) -> None:
        super().__init__()
        self.items = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for _ in range(count)])


def report(title: str, times: Mapping[str, Times], over: str, under: str, target: float) -> None:
    print(title)
    for name, taken in times.items():
        print(f"    {name:<28} median {taken.median * 1e6:10.1f} us   best {taken.best * 1e6:10.1f} us")
    median, best = times[over].median / times[under].median, times[over].best / times[under].best
    verdict = "ok" if median <= target else "MISSED"
    print(f"    {over} / {under} = {median:.3f} (of the best {best:.3f})   target <= {target}   {verdict}", flush=True)


def due_step(model: nn.Module, rounds: int, title: str, target: float, *, against: str = "recipe") -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    collector = GradientNormCollector(model, sink=lambda norms: None)
    collector.attach(optimizer)
    hook = next(iter(optimizer._optimizer_step_pre_hooks.values()))
    gradients = [p.grad for p in model.parameters()]
    ways = {
        "recipe": lambda: recipe(model),
        "get_total_norm": lambda: torch.nn.utils.get_total_norm(gradients),
        "collector": lambda: hook(optimizer, (optimizer,), {}),
    }
    report(title, interleaved(ways, rounds), "collector", against, target)
    alone = {name: interleaved({name: ways[name]}, rounds)[name] for name in (against, "collector")}
    ratio = alone["collector"].median / alone[against].median
    print(f"    each repeated by itself: {ratio:.3f}", flush=True)
    assert not collector.faults, collector.faults


def in_training(rounds: int) -> None:
    """The same 300 parameters right after a real backward, which has left nothing of them in the near caches."""
    model = nn.Sequential(*[layer for _ in range(150) for layer in (nn.Linear(64, 64), nn.Tanh())])
    for p in model.parameters():
        if p.dim() == 2:
            nn.init.orthogonal_(p)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    collector = GradientNormCollector(model, sink=lambda norms: None)
    collector.attach(optimizer)
    hook = next(iter(optimizer._optimizer_step_pre_hooks.values()))
    inputs = torch.randn(8, 64)

    def backward() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()

    ways = {"recipe": lambda: recipe(model), "collector": lambda: hook(optimizer, (optimizer,), {})}
    times = interleaved(ways, rounds, backward)
    report("due step in training, 150 of 64x64 and 150 of 64", times, "collector", "recipe", 0.25)
    assert not collector.faults, collector.faults


def clipping(model: nn.Module, rounds: int, title: str) -> None:
    collector = GradientNormCollector(model, sink=lambda norms: None)
    ways = {
        "torch clip_grad_norm_": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9),
        "collector clip_grad_norm_": lambda: collector.clip_grad_norm_(1e9),
    }
    report(title, interleaved(ways, rounds), "collector clip_grad_norm_", "torch clip_grad_norm_", 1.03)
    assert not collector.faults, collector.faults


def not_due(rounds: int) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector = GradientNormCollector(model, every_n_steps=1 << 60)
    collector.attach(optimizer)
    collector.step = 1
    hook = next(iter(optimizer._optimizer_step_pre_hooks.values()))
    arguments = (optimizer,)
    count = 10_000

    def run() -> None:
        for _ in range(count):
            hook(optimizer, arguments, {})

    def empty() -> None:
        for _ in range(count):
            pass

    times = interleaved({"hook": run, "loop": empty}, max(5, rounds // 5))
    cost = (times["hook"].median - times["loop"].median) / count
    print(f"not due: {cost * 1e6:.3f} us per optimizer step   target <= 2   {'ok' if cost <= 2e-6 else 'MISSED'}")


def bert_base() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return with_gradients(BertForSequenceClassification(BertConfig()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--skip-bert", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s)")
    not_due(options.rounds)
    small = with_gradients(nn.Sequential(*[nn.Linear(64, 64) for _ in range(150)]))
    thousand = with_gradients(Tensors(1000, 64, 64))
    due_step(small, options.rounds, "due step, 150 of 64x64 and 150 of 64", 0.25)
    due_step(thousand, options.rounds, "due step, 1,000 of 64x64", 0.35)
    in_training(options.rounds)
    clipping(small, options.rounds, "clipping, 150 of 64x64 and 150 of 64")
    clipping(thousand, options.rounds, "clipping, 1,000 of 64x64")
    if not options.skip_bert:
        bert = bert_base()
        due_step(bert, max(10, options.rounds // 4), "due step, BERT-base", 1.05, against="get_total_norm")
        clipping(bert, max(10, options.rounds // 4), "clipping, BERT-base")


if __name__ == "__main__":
    main()
