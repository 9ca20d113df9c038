"""`wandb.sdk`: only the place of `wandb.sdk.wandb_run`, which type annotations name."""
