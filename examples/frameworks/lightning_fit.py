"""Lightning: its metrics and hyper-parameters through the logger, the gradient norms through the callback."""

import lightning.pytorch as pl
import torch

from tracker_bridge.integrations.lightning import GradientNorms, TrackerBridgeLogger


class Regression(pl.LightningModule):
    def __init__(self, lr: float = 0.05) -> None:  # noqa: ARG002 - Lightning keeps it in `hparams`
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def training_step(self, batch, _):
        (inputs,) = batch
        loss = (self.net(inputs).squeeze() - inputs.sum(dim=1)).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def main() -> None:
    logger = TrackerBridgeLogger(tags=["example"])
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=logger,
        callbacks=[GradientNorms(every_n_steps=5)],
        gradient_clip_val=1.0,
        log_every_n_steps=5,
        enable_progress_bar=False,
    )
    data = torch.utils.data.TensorDataset(torch.randn(256, 8))
    trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=16))
    logger.close()


if __name__ == "__main__":
    main()
