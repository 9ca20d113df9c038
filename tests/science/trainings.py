"""Small real trainings whose gradient norms become records: four kinds of networks, healthy or with a fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tracker_bridge.collector import GradientNormCollector, GradientNorms
from tracker_bridge.records import AnyRecord, Metrics, RunFinished, SeriesTable

Batch = tuple[Tensor, Tensor]


class Recorder:
    """What a run would record of a model: the collector's norms, the metrics; `time_ns` counts records."""

    def __init__(self, model: nn.Module) -> None:
        self.records: list[AnyRecord] = []
        self.collector = GradientNormCollector(model, sink=self._take)
        self._tables: list[SeriesTable] = []

    def _take(self, norms: GradientNorms) -> None:
        if not any(table is norms.table for table in self._tables):
            self._tables.append(norms.table)
            self.records.append(msgspec.structs.replace(norms.table, table=len(self._tables) - 1))
        self.records.append(norms.to_record(len(self._tables) - 1))

    def metrics(self, step: int, **values: float) -> None:
        """Record scalars."""
        self.records.append(Metrics(len(self.records), step, values))

    def finish(self) -> list[AnyRecord]:
        """End the run; all its records."""
        self.collector.detach()
        self.records.append(RunFinished(len(self.records), "finished"))
        return self.records


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return self.out(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A language model over a small alphabet."""

    def __init__(
        self, width: int = 32, depth: int = 3, tokens: int = 16, length: int = 24, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4, dropout) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.position(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Convolutional(nn.Module):
    """A small residual CNN with batch norm."""

    def __init__(self, width: int = 12, depth: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False))
            for _ in range(depth)
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.dropout(x.mean((2, 3))))


class Recurrent(nn.Module):
    """A two-layer LSTM or GRU that says something about a sequence."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 16)
        self.rnn = kind(16, width, num_layers=2, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(x))[0][:, -1])


def perceptron(
    depth: int = 5, width: int = 48, activation: type[nn.Module] = nn.ReLU, dropout: float = 0.0
) -> nn.Sequential:
    """A plain MLP of `depth` linear layers from 16 inputs to 4 classes."""
    layers: list[nn.Module] = [nn.Linear(16, width)]
    for _ in range(depth - 2):
        layers += [activation(), nn.Dropout(dropout), nn.Linear(width, width)]
    return nn.Sequential(*layers, activation(), nn.Linear(width, 4))


def text_batches(seed: int, size: int = 16, length: int = 24) -> Iterator[Batch]:
    """Text of a random Markov chain over 16 letters, learnable down to its entropy."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.softmax(torch.randn(16, 16, generator=generator) * 2.5, dim=1)
    while True:
        x = torch.randint(0, 16, (size, 1), generator=generator)
        for _ in range(length):
            x = torch.cat([x, torch.multinomial(table[x[:, -1]], 1, generator=generator)], dim=1)
        yield x[:, :-1], x[:, 1:]


def image_batches(seed: int, size: int = 32) -> Iterator[Batch]:
    """Noisy 10 x 10 gratings in four directions."""
    generator = torch.Generator().manual_seed(seed)
    axis = torch.arange(10.0)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    while True:
        y = torch.randint(0, 4, (size,), generator=generator)
        angle = y[:, None, None] * (math.pi / 4)
        phase = torch.rand(size, 1, 1, generator=generator) * 6.28
        x = torch.sin(rows * torch.cos(angle) * 1.5 + columns * torch.sin(angle) * 1.5 + phase)
        yield (x + torch.randn(x.shape, generator=generator)).unsqueeze(1), y


def sequence_batches(seed: int, size: int = 32, length: int = 12) -> Iterator[Batch]:
    """Sequences of 8 symbols; the answer is the symbol after the last 0 (or the first symbol)."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randint(1, 8, (size, length), generator=generator)
        at = torch.randint(0, length - 1, (size,), generator=generator)
        x[torch.arange(size), at] = 0
        yield x, x[torch.arange(size), at + 1]


def point_batches(seed: int, size: int = 32) -> Iterator[Batch]:
    """Points of four overlapping Gaussian clouds in 16 dimensions, warped."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(4, 16, generator=generator)
    while True:
        y = torch.randint(0, 4, (size,), generator=generator)
        x = centres[y] + 1.5 * torch.randn(size, 16, generator=generator)
        yield x + 0.3 * x**2, y


def constant(step: int, steps: int) -> float:
    """No schedule."""
    return 1.0


def warm_up_cosine(step: int, steps: int) -> float:
    """Linear warm-up over a tenth, then a half cosine to zero."""
    rise = steps / 10
    return (step + 1) / rise if step < rise else 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))


@dataclass
class Training:
    """A training to run: what, how, and a hook that may spoil a step.

    `before_forward(training, step, batch) -> batch`, `after_backward(training, step)` may inject a fault.
    """

    model: nn.Module
    batches: Iterator[Batch]
    optimizer: torch.optim.Optimizer
    steps: int
    schedule: Callable[[int, int], float] = constant
    max_norm: float | None = None
    bf16: bool = False
    with_metrics: bool = True
    before_forward: Callable[[Training, int, Batch], Batch] | None = None
    after_backward: Callable[[Training, int], None] | None = None
    rate_factor: float = 1.0
    losses: list[float] = field(default_factory=list)

    def run(self) -> list[AnyRecord]:
        """Train, and return what a run would have recorded."""
        torch.set_num_threads(1)
        recorder = Recorder(self.model)
        recorder.collector.attach(self.optimizer)
        base = [group["lr"] for group in self.optimizer.param_groups]
        for step in range(self.steps):
            batch = next(self.batches)
            if self.before_forward is not None:
                batch = self.before_forward(self, step, batch)
            for group, rate in zip(self.optimizer.param_groups, base, strict=True):
                group["lr"] = rate * self.schedule(step, self.steps) * self.rate_factor
            self.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                output = self.model(batch[0])
                loss = F.cross_entropy(output.flatten(0, -2).float(), batch[1].flatten())
            if loss.requires_grad:
                loss.backward()
            if self.after_backward is not None:
                self.after_backward(self, step)
            if self.max_norm is not None:
                recorder.collector.clip_grad_norm_(self.max_norm)
            self.optimizer.step()
            self.losses.append(loss.item())
            if self.with_metrics:
                recorder.metrics(step, loss=loss.item(), lr=self.optimizer.param_groups[0]["lr"])
        return recorder.finish()


def adam(model: nn.Module, rate: float = 1e-3) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(model.parameters(), lr=rate)


def sgd(model: nn.Module, rate: float = 0.05) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


HEALTHY_STEPS = 520


def healthy(index: int, steps: int = HEALTHY_STEPS) -> Training:
    """Healthy training `index`: four kinds of networks, each in five ways (schedule, dropout, clipping, bf16, SGD)."""
    torch.manual_seed(index)
    kind, way = index % 4, index // 4 % 5
    dropout = (0.0, 0.1, 0.0, 0.1, 0.2)[way]
    schedule = (constant, warm_up_cosine, constant, warm_up_cosine, constant)[way]
    with_sgd = way in (2, 4)
    if kind == 0:
        model: nn.Module = Transformer(dropout=dropout)
        batches, rate = text_batches(index), 0.1 if with_sgd else 1e-3
    elif kind == 1:
        model = Convolutional(dropout=dropout)
        batches, rate = image_batches(index), 0.05 if with_sgd else 2e-3
    elif kind == 2:
        model = Recurrent((nn.LSTM, nn.GRU)[way % 2], dropout=dropout)
        batches, rate = sequence_batches(index), 0.2 if with_sgd else 3e-3
    else:
        activation = (nn.ReLU, nn.GELU, nn.Tanh, nn.ReLU, nn.ReLU)[way]
        model = perceptron(activation=activation, dropout=dropout)
        batches, rate = point_batches(index), 0.02 if with_sgd else 1e-3
    optimizer = (sgd if with_sgd else adam)(model, rate)
    max_norm = 1.0 if way in (1, 3) else None
    return Training(model, batches, optimizer, steps, schedule=schedule, max_norm=max_norm, bf16=way == 3)
