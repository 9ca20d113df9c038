"""The learning-rate study: BERT from random initialisation under Adam, one run for each learning rate.

    python examples/learning_rate_study.py                       # four rates, about two minutes, writes a report
    python examples/learning_rate_study.py --rates 1e-4 3e-4     # your own

What it shows, with the names that the health rules give: at 10 the loss diverges and the encoder's gradients become
exactly zero; at 0.1 nothing explodes, but the encoder's gradients vanish and nothing is learned; at 1e-3 the loss stays
where it began while the norms wither; at 3e-4 it learns, and no rule speaks. The task is made up as it goes: are two
strings of words the same words in another order?
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

import tracker_bridge as bridge
from tracker_bridge.report import Story, read_story, verdict, write_report

CLS, SEP, FIRST_WORD, WORDS, LENGTH = 1, 2, 5, 32, 6
RATES = (10.0, 0.1, 1e-3, 3e-4)
STEPS = 400


def word_pairs(count: int, generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """`count` pairs [CLS a SEP b SEP], int64 [count, 15], and labels [count]: 1 where b is a, shuffled."""
    first = torch.randint(FIRST_WORD, WORDS, (count, LENGTH), generator=generator)
    labels = torch.randint(0, 2, (count,), generator=generator)
    shuffled = torch.stack([words[torch.randperm(LENGTH, generator=generator)] for words in first])
    others = torch.randint(FIRST_WORD, WORDS, (count, LENGTH), generator=generator)
    second = torch.where(labels[:, None] == 1, shuffled, others)
    cls, sep = torch.full((count, 1), CLS), torch.full((count, 1), SEP)
    tokens = torch.cat([cls, first, sep, second, sep], dim=1)
    segments = torch.zeros_like(tokens)
    segments[:, LENGTH + 2 :] = 1
    return {"input_ids": tokens, "token_type_ids": segments}, labels


def small_bert() -> BertForSequenceClassification:
    """Four layers of 128."""
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=512,
            max_position_embeddings=32,
            num_labels=2,
        )
    )


def train(rate: float, *, steps: int = STEPS, seed: int = 0, folder: Path, backends: object = "none") -> Path:
    """One run at one learning rate; returns its directory."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = small_bert().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    with bridge.init(
        name=f"lr {rate:g}",
        experiment="learning_rate_study",
        params={"learning_rate": rate},
        backends=backends,
        dir=folder,
    ) as run:
        run.watch(model, optimizer, every_n_steps=1)
        for step in range(steps):
            inputs, labels = word_pairs(32, generator)
            optimizer.zero_grad()
            loss = model(**inputs, labels=labels).loss
            loss.backward()
            optimizer.step()
            run.log_metrics({"loss": loss, "learning_rate": rate}, step=step)
    assert run.dir is not None
    return run.dir


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=Path("tracker_bridge_runs"), help="where the runs go")
    parser.add_argument("--backends", default="none", help="trackers to log to as well, e.g. tensorboard,mlflow")
    parser.add_argument("-o", "--output", type=Path, default=Path("learning_rate_study.html"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # tensors as small as these only wait for each other's threads
    backends = "none" if arguments.backends == "none" else arguments.backends.split(",")
    stories: list[Story] = []
    for rate in arguments.rates:
        folder = train(rate, steps=arguments.steps, seed=arguments.seed, folder=arguments.dir, backends=backends)
        stories.append(read_story(folder))
        print(f"lr {rate:<8g} {verdict(stories[-1])}", flush=True)
    write_report(stories, arguments.output)
    print(f"report: {arguments.output}")


if __name__ == "__main__":
    main()
