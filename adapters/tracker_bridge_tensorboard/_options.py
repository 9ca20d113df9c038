"""The config keys, with the names of `torch.utils.tensorboard.SummaryWriter`'s own arguments."""

from __future__ import annotations

from tracker_bridge.adapter import Options


class TensorBoardOptions(Options, frozen=True, kw_only=True):
    """Options of the TensorBoard adapter.

    `log_dir`: the folder that `tensorboard --logdir` is given, relative to the script's working directory; each run
    has its own directory in it. `comment`: put behind the run directory's name. `filename_suffix`: put behind the name
    of each event file.
    """

    log_dir: str = "runs"
    comment: str = ""
    filename_suffix: str = ""

    def __post_init__(self) -> None:
        if "://" in self.log_dir:
            # Object stores have no append: each flush would send the whole file again.
            raise ValueError(
                f"log_dir must be a local directory, not {self.log_dir!r}: write locally and copy the folder to the "
                "object store, or point tensorboard at the local folder"
            )
        if not self.log_dir:
            raise ValueError("log_dir must name a directory")
