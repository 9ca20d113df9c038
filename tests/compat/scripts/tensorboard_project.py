"""A training loop with a writer for each phase, tensorboardX's writer, a timer and a checkpoint beside the events."""

import os

import numpy as np
from tensorboardX import SummaryWriter as XWriter
from torch.utils.tensorboard import SummaryWriter


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def average(self):
        return self.total / max(1, self.count)


class Trainer:
    def __init__(self, root, seed=0):
        self.random = np.random.default_rng(seed)
        self.writers = {phase: SummaryWriter(log_dir=os.path.join(root, phase)) for phase in ("train", "val")}
        self.system = XWriter(logdir=os.path.join(root, "system"))
        self.step = 0

    def run(self, phase, batches):
        meter = Meter()
        for _ in range(batches):
            value = np.float32(self.random.random())
            meter.update(value, 4)
            if phase == "train":
                self.writers[phase].add_scalar("batch/loss", value, self.step)
                self.system.add_scalar("memory/used", int(1000 + self.step), global_step=self.step)
                self.step += 1
        return meter.average

    def fit(self, epochs):
        for epoch in range(epochs):
            for phase in ("train", "val"):
                average = self.run(phase, 4)
                self.writers[phase].add_scalar("epoch/loss", average, epoch)
                print(phase, epoch, round(float(average), 6))
            path = os.path.join(self.writers["train"].log_dir, "checkpoint.txt")
            with open(path, "w") as file:
                file.write(str(epoch))
        for writer in self.writers.values():
            writer.close()
        self.system.close()


if __name__ == "__main__":
    Trainer("runs/project").fit(3)
