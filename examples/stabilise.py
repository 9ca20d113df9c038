"""Six networks in trouble, each before and after the usual remedy, named by the health rules.

    python examples/stabilise.py            # all of them, about a minute
    python examples/stabilise.py clipping   # one

Before: what the rules say. After: they are silent, and the loss is lower.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu, scaled_dot_product_attention

import tracker_bridge as bridge
from tracker_bridge.report import Story, read_story

Batches = Iterator[tuple[Tensor, Tensor]]


# Data


def points(seed: int) -> Batches:
    """Four overlapping clouds in 16 dimensions: float32 [64, 16] and labels [64]."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 16, generator=generator)
    while True:
        labels = torch.randint(0, 4, (64,), generator=generator)
        yield centres[labels] + torch.randn(64, 16, generator=generator), labels


def letters(seed: int) -> Batches:
    """Text of a random Markov chain over 16 letters: int64 [8, 24], and the next letters [8, 24]."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.softmax(torch.randn(16, 16, generator=generator) * 2.5, dim=1)
    while True:
        text = torch.randint(0, 16, (8, 1), generator=generator)
        for _ in range(24):
            following = torch.multinomial(table[text[:, -1]], 1, generator=generator)
            text = torch.cat([text, following], dim=1)
        yield text[:, :-1], text[:, 1:]


# Networks


def perceptron(depth: int, width: int, activation: Callable[[], nn.Module], norm: bool = False) -> nn.Sequential:
    """`depth` linear layers from 16 inputs to 4 classes."""
    layers: list[nn.Module] = [nn.Linear(16, width)]
    for _ in range(depth - 2):
        layers += [*([nn.LayerNorm(width)] if norm else []), activation(), nn.Linear(width, width)]
    return nn.Sequential(*layers, activation(), nn.Linear(width, 4))


def initialised(network: nn.Module, weights: Callable[[Tensor], object]) -> nn.Module:
    """The network with its matrices filled by `weights` and its biases zero."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            weights(module.weight)
            nn.init.zeros_(module.bias)
    return network


class Residual(nn.Module):
    """A plain network of `depth` ReLU layers whose every layer has a way around it."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 4)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth - 2))
        self.scale = math.sqrt(depth)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + relu(layer(x)) / self.scale
        return self.last(x)


class Block(nn.Module):
    """A transformer block; `post`: normalised after each addition, as in the first transformers."""

    def __init__(self, width: int, post: bool) -> None:
        super().__init__()
        self.post = post
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A language model of 16 letters."""

    def __init__(self, depth: int, post: bool, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(16, width), nn.Embedding(24, width)
        self.blocks = nn.ModuleList(Block(width, post) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.position(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


# Cases


def adam(network: nn.Module, rate: float) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(network.parameters(), lr=rate)


def sgd(network: nn.Module, rate: float) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9)


def constant(_step: int, _steps: int) -> float:
    """No schedule."""
    return 1.0


def warm_up_cosine(step: int, steps: int) -> float:
    """Linear warm-up over a quarter of the steps, then a half cosine to zero."""
    rise = steps / 4
    return (step + 1) / rise if step < rise else 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train: `what` in words, the network, its optimizer, and what goes with it."""

    what: str
    network: Callable[[], nn.Module]
    rate: float
    optimizer: Callable[[nn.Module, float], torch.optim.Optimizer] = adam
    schedule: Callable[[int, int], float] = constant
    max_norm: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A trouble and its remedy."""

    data: Callable[[int], Batches]
    steps: int
    before: Recipe
    after: Recipe


CASES = {
    "activation": Case(
        points,
        150,
        Recipe("sigmoid, 10 layers", lambda: perceptron(10, 64, nn.Sigmoid), 1e-3),
        Recipe("GELU and LayerNorm, 10 layers", lambda: perceptron(10, 64, nn.GELU, norm=True), 1e-3),
    ),
    "he_init": Case(
        points,
        150,
        Recipe("ReLU, 50 layers, default init", lambda: perceptron(50, 64, nn.ReLU), 1e-4),
        Recipe(
            "ReLU, 50 layers, He init",
            lambda: initialised(perceptron(50, 64, nn.ReLU), lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu")),
            1e-4,
        ),
    ),
    "residual": Case(
        points,
        150,
        Recipe("ReLU, 50 layers", lambda: perceptron(50, 64, nn.ReLU), 1e-4),
        Recipe("ReLU, 50 layers with residual connections", lambda: Residual(50, 64), 1e-4),
    ),
    "xavier_init": Case(
        points,
        150,
        Recipe(
            "tanh, 20 layers, weights of 0.02",
            lambda: initialised(perceptron(20, 64, nn.Tanh), lambda w: nn.init.normal_(w, std=0.02)),
            1e-4,
        ),
        Recipe(
            "tanh, 20 layers, Xavier init",
            lambda: initialised(perceptron(20, 64, nn.Tanh), nn.init.xavier_uniform_),
            1e-4,
        ),
    ),
    "clipping": Case(
        letters,
        150,
        Recipe("transformer, SGD at 1", lambda: Transformer(3, post=False), 1.0, sgd),
        Recipe("the same, clipped at 0.25", lambda: Transformer(3, post=False), 1.0, sgd, max_norm=0.25),
    ),
    "warm_up": Case(
        letters,
        200,
        Recipe("post-norm transformer, Adam at 0.016", lambda: Transformer(8, post=True), 0.016),
        Recipe("the same, with warm-up and cosine", lambda: Transformer(8, post=True), 0.016, schedule=warm_up_cosine),
    ),
}


def train(recipe: Recipe, case: Case, folder: Path, seed: int = 0) -> Story:
    """Train, record, and read what the rules say of it."""
    torch.manual_seed(seed)
    network = recipe.network()
    optimizer = recipe.optimizer(network, recipe.rate)
    batches = case.data(seed)
    params = {"learning_rate": recipe.rate, "max_norm": recipe.max_norm}
    with bridge.init(name=recipe.what, params=params, backends="none", dir=folder) as run:
        norms = run.watch(network, optimizer, every_n_steps=1)
        for step in range(case.steps):
            inputs, targets = next(batches)
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * recipe.schedule(step, case.steps)
            optimizer.zero_grad()
            loss = cross_entropy(network(inputs).flatten(0, -2), targets.flatten())
            loss.backward()
            if recipe.max_norm is not None:
                norms.clip_grad_norm_(recipe.max_norm)
            optimizer.step()
            run.log_metrics({"loss": loss, "learning_rate": optimizer.param_groups[0]["lr"]}, step=step)
    assert run.dir is not None
    return read_story(run.dir)


def describe(story: Story) -> str:
    """The last loss, and what was found."""
    assert story.loss is not None
    found = "; ".join(f"{alert.rule} at step {alert.step}: {alert.title}" for alert in story.alerts)
    return f"loss {story.loss.values[-1]:.3f}. {found or 'No rule spoke.'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"some of: {', '.join(CASES)}")
    parser.add_argument("--dir", type=Path, help="where the runs go; default: nowhere that stays")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # tensors as small as these only wait for each other's threads
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"no case {min(unknown)!r}; there are {', '.join(CASES)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.dir or Path(scratch)
        for name in arguments.cases or CASES:
            print(name)
            for recipe in (CASES[name].before, CASES[name].after):
                print(f"  {recipe.what}: {describe(train(recipe, CASES[name], folder, arguments.seed))}", flush=True)


if __name__ == "__main__":
    main()
