"""Hugging Face's Trainer: its logs, its arguments, and each layer's gradient norm from before it clips.

Run it a second time with `--resume`: training goes on from the last checkpoint, in the same run.
"""

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from tracker_bridge.integrations.transformers import TrackerBridgeCallback

CONFIG = BertConfig(
    vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(2, 64, (count, 12), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": (row[1] % 2).long()} for row in tokens]


def main() -> None:
    callback = TrackerBridgeCallback(tags=["example"], watch={"every_n_steps": 5})
    arguments = TrainingArguments(
        output_dir="trainer_output",
        num_train_epochs=2 if "--resume" in sys.argv else 1,
        per_device_train_batch_size=8,
        max_grad_norm=1.0,
        logging_steps=5,
        save_steps=10,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(BertForSequenceClassification(CONFIG), arguments, train_dataset=rows(160), callbacks=[callback])
    trainer.train(resume_from_checkpoint="--resume" in sys.argv)
    callback.close()


if __name__ == "__main__":
    main()
