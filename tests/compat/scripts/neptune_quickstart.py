from random import random, seed

from neptune_scale import Run

run = Run(experiment_name="quickstart")
seed(3)

run.log_configs({"parameters/learning_rate": 0.001, "parameters/optimizer": "Adam", "parameters/batch_size": 64})
run.add_tags(["quickstart", "first"])

offset = random() / 5
for step in range(20):
    acc = 1 - 2**-step - random() / (step + 1) - offset
    loss = 2**-step + random() / (step + 1) + offset
    run.log_metrics(data={"metrics/train/accuracy": acc, "metrics/train/loss": loss}, step=step)
    print(f"step {step}: accuracy {acc:.4f}, loss {loss:.4f}")

run.close()
