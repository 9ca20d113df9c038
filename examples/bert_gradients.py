"""Train a BERT classifier and watch the gradient norm of every layer, batch by batch, in the trackers of a config file.

    python examples/bert_gradients.py                                    # shipped data, TensorBoard, about a minute
    python examples/bert_gradients.py --config examples/configs/all.yaml # the same run in four trackers
    python examples/bert_gradients.py --data mrpc --model-size base      # GLUE/MRPC and the hub's tokenizer (online)

The task is paraphrase detection: do two sentences mean the same? The model is `BertForSequenceClassification` from
random initialisation. The shipped pairs (`data/sentence_pairs.tsv`) are there to exercise the whole path without a
network; they are far too few to train a good paraphrase model, and the evaluation accuracy says so.
Which trackers get the data is the config's business; only the hints at the end know any of them by name.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import tracker_bridge as bridge

SHIPPED_PAIRS = Path(__file__).parent / "data" / "sentence_pairs.tsv"
MAX_TOKENS = 96
MODEL_SIZES: dict[str, dict[str, int]] = {
    "small": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Sentence pairs; `labels` is 1 where the two mean the same."""

    first: list[str]
    second: list[str]
    labels: list[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """What the model takes: `inputs` are int64 tensors [B, T], `labels` int64 [B]."""

    inputs: dict[str, Tensor]
    labels: Tensor


def shipped_pairs(split: str) -> Pairs:
    """The pairs of one split of the file beside this script."""
    with SHIPPED_PAIRS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row["split"] == split]
    return Pairs([r["sentence1"] for r in rows], [r["sentence2"] for r in rows], [int(r["label"]) for r in rows])


def mrpc_pairs(split: str) -> Pairs:
    """One split of the Microsoft Research Paraphrase Corpus, from the Hugging Face hub."""
    from datasets import load_dataset

    data = load_dataset("nyu-mll/glue", "mrpc", split=split)
    return Pairs(list(data["sentence1"]), list(data["sentence2"]), list(data["label"]))


def wordpiece_tokenizer(sentences: list[str], vocabulary: int = 4000) -> PreTrainedTokenizerFast:
    """A BERT tokenizer (lower case, WordPiece) trained on `sentences`."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", special.index("[CLS]")), ("[SEP]", special.index("[SEP]"))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def load_data(name: str) -> tuple[Pairs, Pairs, PreTrainedTokenizerFast]:
    """Training pairs, validation pairs and a tokenizer that fits them."""
    if name == "mrpc":
        # Both are cached by the hub's own client, so that a second run needs no network.
        return (
            mrpc_pairs("train"),
            mrpc_pairs("validation"),
            AutoTokenizer.from_pretrained("google-bert/bert-base-uncased"),
        )
    train, validation = shipped_pairs("train"), shipped_pairs("validation")
    return train, validation, wordpiece_tokenizer(train.first + train.second)


def batches(pairs: Pairs, tokenizer: PreTrainedTokenizerFast, size: int, order: list[int]) -> Iterator[Batch]:
    """The pairs in the given order, `size` at a time, padded to the longest of each batch."""
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        inputs = tokenizer(
            [pairs.first[i] for i in chosen],
            [pairs.second[i] for i in chosen],
            padding=True,
            truncation=True,
            max_length=MAX_TOKENS,
            return_tensors="pt",
        )
        yield Batch(dict(inputs), torch.tensor([pairs.labels[i] for i in chosen]))


def build_model(size: str, vocabulary: int) -> BertForSequenceClassification:
    """A BERT classifier with two classes, from random initialisation."""
    return BertForSequenceClassification(BertConfig(vocab_size=vocabulary, num_labels=2, **MODEL_SIZES[size]))


def warm_up_then_decay(optimizer: AdamW, steps: int) -> LambdaLR:
    """Linear warm-up over the first tenth of the steps, then linear decay to zero: BERT's own schedule."""
    warm_up = max(1, steps // 10)
    return LambdaLR(optimizer, lambda step: min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up)))


@torch.no_grad()
def evaluate(model: BertForSequenceClassification, data: list[Batch]) -> dict[str, float]:
    """Mean loss per pair and accuracy over all batches."""
    model.eval()
    loss = correct = count = 0.0
    for batch in data:
        output = model(**batch.inputs, labels=batch.labels)
        loss += float(output.loss) * len(batch.labels)
        correct += float((output.logits.argmax(-1) == batch.labels).sum())
        count += len(batch.labels)
    model.train()
    return {"eval/loss": loss / count, "eval/accuracy": correct / count}


def train(
    run: bridge.Run,
    training: Pairs,
    validation: Pairs,
    tokenizer: PreTrainedTokenizerFast,
    arguments: argparse.Namespace,
) -> dict[str, float]:
    """The training loop; returns the last evaluation."""
    model = build_model(arguments.model_size, len(tokenizer))
    optimizer = AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.01)
    steps_per_epoch = -(-len(training.labels) // arguments.batch_size)
    steps = arguments.steps or arguments.epochs * steps_per_epoch
    schedule = warm_up_then_decay(optimizer, steps)
    held_out = list(batches(validation, tokenizer, 64, list(range(len(validation.labels)))))

    norms = run.watch(model, optimizer)  # which layers and how often: `gradients` in the config
    run.log_params({"parameters": sum(p.numel() for p in model.parameters()), "vocabulary": len(tokenizer)})

    order = list(range(len(training.labels)))
    evaluation: dict[str, float] = {}
    step = 0
    with progress_bar() as progress:
        task = progress.add_task("training", total=steps, note="")
        while step < steps:
            random.shuffle(order)
            for batch in batches(training, tokenizer, arguments.batch_size, order):
                optimizer.zero_grad()
                output = model(**batch.inputs, labels=batch.labels)
                output.loss.backward()
                norms.clip_grad_norm_(1.0)  # torch's clipping; the norms are those before it
                optimizer.step()
                learning_rate = schedule.get_last_lr()[0]
                schedule.step()
                accuracy = (output.logits.detach().argmax(-1) == batch.labels).float().mean()
                run.log_metrics(
                    {"train/loss": output.loss, "train/accuracy": accuracy, "train/learning_rate": learning_rate},
                    step=step,
                )
                step += 1
                progress.advance(task)
                if step == steps:
                    break
            evaluation = evaluate(model, held_out)
            run.log_metrics(evaluation, step=step - 1)
            progress.update(task, note="  ".join(f"{name} {value:.3f}" for name, value in evaluation.items()))
    return evaluation


def progress_bar() -> Progress:
    """On a terminal only, and on stderr, so that stdout stays usable in a pipe."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), console=console, disable=not console.is_terminal)


def how_to_look(delivery: bridge.Delivery) -> Iterator[str]:
    """For each backend a line with the command that shows the run, or with the place where it lies."""
    commands = {
        "tensorboard": "tensorboard --logdir {}",
        "mlflow": "mlflow ui --backend-store-uri {}",
        "wandb": "wandb sync {}",
    }
    for backend, one in delivery.items():
        place = (one.url or "").removeprefix("file://")
        if backend in commands and place and not place.startswith("http"):
            yield f"look at it with: {commands[backend].format(place)}"
        elif place:
            yield f"{backend} has it in: {place}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", metavar="FILE", help="YAML, TOML or JSON; default: TensorBoard in ./runs")
    parser.add_argument("--data", choices=("shipped", "mrpc"), default="shipped", help="mrpc needs a network")
    parser.add_argument("--model-size", choices=tuple(MODEL_SIZES), default="small")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--steps", type=int, help="stop after this many optimizer steps, instead of --epochs")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def show_addresses(run: bridge.Run) -> None:
    """Where to watch the run while it trains. Trackers open in the background; training need not wait for them."""
    console.print(f"run {run.id}: training starts, follow it at", highlight=False)
    for backend, address in run.wait_until_open(timeout=30).items():
        console.print(f"  {backend}: {address}", highlight=False, soft_wrap=True)


def main() -> None:
    arguments = parse_arguments()
    random.seed(arguments.seed)
    torch.manual_seed(arguments.seed)
    if arguments.model_size == "small":
        torch.set_num_threads(1)  # matrices this small gain nothing from more, and lose much on a busy machine
    try:
        data = load_data(arguments.data)
    except OSError as error:
        raise SystemExit(f"--data {arguments.data}: {error}\nWithout a network, leave out --data.") from None
    with bridge.init(arguments.config, tags=["bert", "paraphrase"], params=vars(arguments)) as run:
        show_addresses(run)
        evaluation = train(run, *data, arguments)
        delivery = run.close()
    print("  ".join(f"{name} {value:.3f}" for name, value in evaluation.items()))
    print(delivery)
    print("\n".join(how_to_look(delivery)))


if __name__ == "__main__":
    main()
