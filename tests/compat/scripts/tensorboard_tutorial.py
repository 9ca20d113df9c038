import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
writer = SummaryWriter("runs/linear_regression", comment="LR_0.1")
x = torch.arange(-5, 5, 0.5).view(-1, 1)
y = -5 * x + 0.1 * torch.randn(x.size())
model = nn.Linear(1, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def train_model(iterations):
    for epoch in range(iterations):
        loss = criterion(model(x), y)
        writer.add_scalar("Loss/train", loss, epoch)
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            writer.add_histogram(f"grad/{name}", parameter.grad, epoch)
        optimizer.step()
        writer.add_scalars("weights", {"w": model.weight.item(), "b": model.bias.item()}, epoch)
    return loss.item()


final = train_model(8)
writer.add_graph(model, x)
writer.add_image("noise", torch.rand(3, 8, 8), 0)
writer.add_text("about", "linear **regression**", 0)
writer.add_hparams({"lr": 0.05, "optimizer": "sgd"}, {"hparam/loss": final})
writer.flush()
writer.close()
print(writer.log_dir, round(final, 6))
