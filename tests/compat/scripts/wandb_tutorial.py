import torch
import wandb
from torch import nn

torch.manual_seed(2)
defaults = {"epochs": 2, "batch_size": 8, "lr": 0.05, "hidden": 6}


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc1 = nn.Linear(4, hidden)
        self.fc2 = nn.Linear(hidden, 3)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def evaluate(model, x, y):
    with torch.no_grad():
        out = model(x)
        return nn.functional.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean()


def train(config=None):
    with wandb.init(config=config, project="tutorial", name="mlp", tags=["tutorial"], notes="a small net"):
        config = wandb.config
        model = Net(config.hidden)
        wandb.watch(model, log="gradients", log_freq=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
        x = torch.randn(40, 4)
        y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
        step = 0
        for epoch in range(config["epochs"]):
            for start in range(0, 32, config.batch_size):
                batch = slice(start, start + config.batch_size)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                optimizer.step()
                wandb.log({"train/loss": loss, "train/epoch": epoch}, step=step)
                step += 1
            val_loss, accuracy = evaluate(model, x[32:], y[32:])
            wandb.log({"val/loss": val_loss, "val/accuracy": accuracy, "epoch": epoch})
            step += 1
            print(f"epoch {epoch}: val loss {val_loss:.6f}")
        table = wandb.Table(columns=["x", "y"], data=[[x[i, 0].item(), int(y[i])] for i in range(3)])
        wandb.log({"predictions": table, "image": wandb.Image(torch.rand(8, 8, 3).numpy(), caption="noise")})
        wandb.summary["classes"] = 3


train(defaults)
print(wandb.run)
