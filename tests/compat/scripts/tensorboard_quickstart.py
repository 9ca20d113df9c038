import numpy as np
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter()

rng = np.random.default_rng(0)
for n_iter in range(20):
    writer.add_scalar("Loss/train", rng.random(), n_iter)
    writer.add_scalar("Loss/test", rng.random(), n_iter)
    writer.add_scalar("Accuracy/train", rng.random(), n_iter)
writer.close()
print("written")
