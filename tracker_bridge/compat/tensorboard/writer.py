"""`SummaryWriter`, whose records go to a `tracker_bridge.Run`. The arguments are those of torch and of tensorboardX.

A step that is not given is the number of values that the tag has had (TensorBoard would put all at 0).
"""
# ruff: noqa: A002 - the names are TensorBoard's

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tracker_bridge.compat import _core, _media

__all__ = ["FileWriter", "GlobalSummaryWriter", "SummaryWriter"]

TRACKER = "tensorboard"
_HPARAM_TYPES = (bool, int, float, str)
_default_bins: np.typing.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class MadeSummary:
    """What `summary.scalar` and `summary.hparams` make: numbers and params on their way to a file writer."""

    scalars: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


class FileWriter:
    """Stands where a `SummaryWriter` has its event file. Event protos are reported and left out."""

    def __init__(self, log_dir: str, writer: SummaryWriter | None = None) -> None:
        self._log_dir, self._writer = log_dir, writer

    def get_logdir(self) -> str:
        """The directory that the script named."""
        return self._log_dir

    def _leave_out(self, *_args: Any, **_kwargs: Any) -> None:
        if self._writer is not None:
            self._writer._session.coverage.leave_out("file_writer", "event protos are not translated")

    add_event = add_graph = add_onnx_graph = _leave_out

    def add_summary(self, summary: Any, global_step: Any = None, walltime: float | None = None) -> None:
        """Log what `summary.scalar` or `summary.hparams` made, as Lightning's logger does."""
        if not isinstance(summary, MadeSummary):
            self._leave_out()
        elif self._writer is not None:
            for tag, value in summary.scalars.items():
                self._writer.add_scalar(tag, value, global_step, walltime)
            if summary.params:
                self._writer._session.run.log_params(summary.params)
                self._writer._session.coverage.translate("summary.hparams")

    def flush(self) -> None:
        """Nothing waits to be flushed."""

    close = reopen = flush


class SummaryWriter:
    """A run named after `log_dir` (without a leading `runs/`). The directory is made, since scripts put files there."""

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str = "",
        write_to_disk: bool = True,
        logdir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        chosen = log_dir or logdir
        if not chosen:
            moment = datetime.now().strftime("%b%d_%H-%M-%S")
            chosen = os.path.join("runs", f"{moment}_{socket.gethostname()}{comment}")
        self.log_dir = self.logdir = os.fspath(chosen)
        self.purge_step, self.max_queue, self.flush_secs = purge_step, max_queue, flush_secs
        self.filename_suffix = filename_suffix
        self._writes = write_to_disk
        self._counts: dict[str, int] = {}
        self._hparams: dict[str, Any] | None = None
        self._hparam_runs = 0
        self._name = _run_name(self.log_dir)
        if write_to_disk:
            Path(self.log_dir).mkdir(parents=True, exist_ok=True)
        self._current = _shared_session() or self._begin()
        self._shared = self._current is not None and self._current.coverage.tracker != TRACKER
        self.file_writer: FileWriter | None = FileWriter(self.log_dir, self)
        self.all_writers: dict[str, FileWriter] | None = {self.log_dir: self.file_writer}
        if purge_step is not None:
            self._session.coverage.leave_out("purge_step", "points that a crashed run logged later stay")
        if kwargs.get("comet_config", {"disabled": True}) != {"disabled": True}:
            self._session.coverage.leave_out("comet_config", "backends are the configuration's business")

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end(_core.status_of(error))

    def get_logdir(self) -> str:
        """The directory that the script named."""
        return self.log_dir

    # --- numbers

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: Any = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
        **_kwargs: Any,
    ) -> None:
        """Log a number: anything `float()` takes; a tensor is not read here."""
        del new_style, double_precision
        if scalar_value is None:
            raise NotImplementedError("Got <class 'NoneType'>, but numpy array or torch tensor are expected.")
        session = self._session
        step = self._step(tag, global_step)
        session.run.log_metrics({tag: scalar_value}, step, timestamp=walltime)
        calls = session.coverage.calls
        calls["add_scalar"] = calls.get("add_scalar", 0) + 1

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: Any = None,
        walltime: float | None = None,
        **_kwargs: Any,
    ) -> None:
        """Log numbers of one chart, as the series `main_tag/name`."""
        values = {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}
        if values:
            self._session.run.log_metrics(values, self._step(main_tag, global_step), timestamp=walltime)
        self._session.coverage.translate("add_scalars")

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: Any = None,
        bins: Any = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Log a histogram of the finite values. Raises `ValueError` if there are no values."""
        array = _media.as_array(values).astype(np.float64).ravel()
        if not array.size:
            raise ValueError("The input has no element.")
        step = self._step(tag, global_step)
        if not np.isfinite(array).any():
            self._session.coverage.leave_out("add_histogram: no finite value", "a histogram has finite edges")
            return
        tensorflow = isinstance(bins, str) and bins == "tensorflow"
        counts, edges = _media.histogram(array, _tensorflow_bins() if tensorflow else bins)
        counts, edges = _trimmed(counts, edges, min(max_bins or _media.MOST_BINS, _media.MOST_BINS))
        self._timeless("add_histogram", walltime)
        self._session.run.log_histogram(tag, counts, edges, step)
        self._session.coverage.translate("add_histogram")

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: int,
        sum: float,
        sum_squares: float,
        bucket_limits: Any,
        bucket_counts: Any,
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Log a histogram whose bins end at `bucket_limits` [B]; the first begins at `min`."""
        del max, num, sum, sum_squares
        limits, counts = _media.as_array(bucket_limits), _media.as_array(bucket_counts)
        if len(limits) != len(counts):
            raise ValueError("len(bucket_limits) != len(bucket_counts), see the document.")
        first = float(min) if float(min) < limits[0] else float(limits[0]) - 1e-12 * _largest(limits)
        self._timeless("add_histogram_raw", walltime)
        edges = np.concatenate([[first], limits])
        self._session.run.log_histogram(tag, counts, edges, self._step(tag, global_step))
        self._session.coverage.translate("add_histogram_raw")

    def add_hparams(
        self,
        hparam_dict: dict[str, Any],
        metric_dict: dict[str, Any],
        hparam_domain_discrete: Mapping[str, Any] | None = None,
        run_name: str | None = None,
        global_step: Any = None,
        **_kwargs: Any,
    ) -> None:
        """Log params with the metrics that came of them; other params of the same writer make a run of their own.

        Raises `TypeError`/`ValueError` for what TensorBoard does not take.
        """
        del hparam_domain_discrete
        if type(hparam_dict) is not dict or type(metric_dict) is not dict:
            raise TypeError("hparam_dict and metric_dict should be dictionary.")
        params = {name: _hparam(name, value) for name, value in hparam_dict.items() if value is not None}
        step = 0 if global_step is None else _whole(global_step)
        session, own = self._session, self._hparams not in (None, params)
        if own:
            self._hparam_runs += 1
            name = f"{self._name}/{run_name or f'hparams_{self._hparam_runs}'}"
            session.coverage.degrade("add_hparams again", "a second set of params is a run of its own")
            session = _core.begin(TRACKER, name=name)
        self._hparams = self._hparams or params
        session.run.log_params(params)
        if metric_dict:
            session.run.log_metrics(metric_dict, step)
        session.coverage.translate("add_hparams")
        if own:
            session.end("finished")

    # --- texts and media

    def add_text(self, tag: str, text_string: str, global_step: Any = None, walltime: float | None = None) -> None:
        """Log a text."""
        self._timeless("add_text", walltime)
        self._session.run.log_text(tag, str(text_string), None if global_step is None else _whole(global_step))
        self._session.coverage.translate("add_text")

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Keep an image as a PNG file."""
        self._timeless("add_image", walltime)
        self._keep_png("add_image", tag, lambda: _media.png(_media.as_pixels(img_tensor, dataformats)), global_step)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Keep a batch of images as one PNG file, side by side."""
        self._timeless("add_images", walltime)

        def content() -> bytes:
            layout = dataformats.upper()
            images = np.moveaxis(_media.as_array(img_tensor), layout.index("N"), 0)
            pixels = [_media.as_pixels(image, layout.replace("N", "")) for image in images]
            return _media.png(np.concatenate(pixels, axis=1))

        self._keep_png("add_images", tag, content, global_step)

    def add_image_with_boxes(
        self, tag: str, img_tensor: Any, box_tensor: Any, global_step: Any = None, *_args: Any, **kwargs: Any
    ) -> None:
        """Keep the image; boxes are not drawn."""
        del box_tensor
        self.add_image(tag, img_tensor, global_step, dataformats=kwargs.get("dataformats", "CHW"))
        self._session.coverage.degrade("add_image_with_boxes", "the boxes are not drawn")

    def add_figure(
        self, tag: str, figure: Any, global_step: Any = None, close: bool | None = True, walltime: float | None = None
    ) -> None:
        """Keep matplotlib figures as PNG files, and close them unless `close` is false."""
        self._timeless("add_figure", walltime)
        figures = list(figure) if isinstance(figure, (list, tuple)) else [figure]
        for number, one in enumerate(figures):
            name = tag if len(figures) == 1 else f"{tag}/{number}"
            self._keep_png("add_figure", name, lambda one=one: _media.figure_png(one), global_step)  # type: ignore[misc]
        if close:
            from matplotlib import pyplot as plt

            for one in figures:
                plt.close(one)

    def add_audio(
        self,
        tag: str,
        snd_tensor: Any,
        global_step: Any = None,
        sample_rate: int = 44100,
        walltime: float | None = None,
    ) -> None:
        """Keep sound in -1 to 1 as a WAV file."""
        self._timeless("add_audio", walltime)
        content = _media.wav(snd_tensor, sample_rate)
        self._session.keep_bytes(content, f"{tag}.wav", ".wav", self._step(tag, global_step))
        self._session.coverage.degrade("add_audio", "is a WAV file")

    # --- what is left out

    def _leave_out(self, call: str, why: str = "no tracker of the configuration has such a page") -> None:
        self._session.coverage.leave_out(call, why)

    def add_graph(self, *_args: Any, **_kwargs: Any) -> None:
        """Reported, left out."""
        self._leave_out("add_graph")

    def add_onnx_graph(self, *_args: Any, **_kwargs: Any) -> None:
        """Reported, left out."""
        self._leave_out("add_onnx_graph")

    def add_openvino_graph(self, *_args: Any, **_kwargs: Any) -> None:
        """Reported, left out."""
        self._leave_out("add_openvino_graph")

    def add_embedding(self, *_args: Any, **_kwargs: Any) -> None:
        """Reported, left out."""
        self._leave_out("add_embedding")

    def add_mesh(self, *_args: Any, **_kwargs: Any) -> None:
        """Reported, left out."""
        self._leave_out("add_mesh")

    def add_tensor(self, *_args: Any, **_kwargs: Any) -> None:
        """Reported, left out."""
        self._leave_out("add_tensor")

    def add_video(self, *_args: Any, **_kwargs: Any) -> None:
        """Reported, left out: frames would need an encoder."""
        self._leave_out("add_video", "frames would need an encoder")

    def add_pr_curve(self, *_args: Any, **_kwargs: Any) -> None:
        """Reported, left out."""
        self._leave_out("add_pr_curve")

    def add_pr_curve_raw(self, *_args: Any, **_kwargs: Any) -> None:
        """Reported, left out."""
        self._leave_out("add_pr_curve_raw")

    def add_custom_scalars(self, *_args: Any, **_kwargs: Any) -> None:
        """Reported, left out."""
        self._leave_out("add_custom_scalars", "a layout belongs to TensorBoard's pages")

    add_custom_scalars_multilinechart = add_custom_scalars_marginchart = add_custom_scalars

    def export_scalars_to_json(self, path: str) -> None:
        """Reported, left out: `tracker-bridge export` has the values."""
        del path
        self._leave_out("export_scalars_to_json", "use tracker-bridge export")

    # --- ending

    def flush(self) -> None:
        """Nothing waits in this process: each value was written when it was logged."""

    def close(self) -> None:
        """End the run (as failed while an exception is handled). A value that is logged later continues it."""
        self._end(_core.status_now())

    # --- inside

    @property
    def _session(self) -> _core.Session:
        session = self._current
        if session is None or session.ended:
            session = self._current = self._begin(None if session is None else session.id)
        return session

    def _begin(self, run_id: str | None = None) -> _core.Session:
        return _core.begin(TRACKER, name=self._name, run_id=run_id)

    def _end(self, status: str) -> None:
        if self._current is not None and not self._current.ended and not self._shared:
            self._current.end(status)

    def _get_file_writer(self) -> FileWriter:
        self.file_writer = self.file_writer or FileWriter(self.log_dir, self)
        return self.file_writer

    def _step(self, tag: str, step: Any) -> int:
        number = self._counts.get(tag, 0) if step is None else _whole(step)
        self._counts[tag] = number + 1
        return number

    def _keep_png(self, call: str, tag: str, content: Callable[[], bytes], step: Any) -> None:
        self._session.keep_bytes(content(), f"{tag}.png", ".png", self._step(tag, step))
        self._session.coverage.degrade(call, "is a PNG file")

    def _timeless(self, call: str, walltime: float | None) -> None:
        if walltime is not None:
            self._session.coverage.degrade(f"{call}(walltime=)", "the time is when the call was made")


class GlobalSummaryWriter(SummaryWriter):
    """tensorboardX's writer of which a process has one."""

    _only: GlobalSummaryWriter | None = None

    @classmethod
    def getSummaryWriter(cls) -> GlobalSummaryWriter:  # noqa: N802 - tensorboardX's name
        """The one writer; made at the first call."""
        if cls._only is None:
            cls._only = cls()
        return cls._only


def _largest(values: Any) -> float:
    """The largest magnitude, at least 1."""
    return max(1.0, float(np.abs(values).max()))


def _shared_session() -> _core.Session | None:
    """The session of a `wandb.init(sync_tensorboard=True)`: what writers write belongs to that run."""
    wandb = sys.modules.get("tracker_bridge.compat.wandb")
    run = getattr(wandb, "run", None)
    if run is None or not run._about.get("sync_tensorboard"):
        return None
    session: _core.Session | None = run._session
    return session


def _run_name(log_dir: str) -> str:
    path = Path(os.path.normpath(log_dir))
    parts = list(path.parts[-2:]) if path.is_absolute() else [part for part in path.parts if part != ".."]
    if len(parts) > 1 and parts[0] in ("runs", "logs", "tb_logs", "lightning_logs"):
        parts = parts[1:]
    return "/".join(parts) or "run"


def _whole(step: Any) -> int:
    # TensorBoard truncates.
    return int(step)


def _hparam(name: str, value: Any) -> Any:
    if isinstance(value, _HPARAM_TYPES) or (hasattr(value, "dtype") and hasattr(value, "item")):
        return value
    raise ValueError(f"value should be one of int, float, str, bool, or torch.Tensor, not {type(value)} ({name})")


def _tensorflow_bins() -> Any:
    """TensorBoard's own edges: powers of 1.1 from 1e-12 to 1e20 on both sides of 0."""
    global _default_bins
    if _default_bins is None:
        steps = 1e-12 * 1.1 ** np.arange(775)
        _default_bins = np.concatenate([-steps[::-1], [0.0], steps])
    return _default_bins


def _trimmed(counts: Any, edges: Any, most: int) -> tuple[Any, Any]:
    """Without empty bins at both ends, and with neighbours merged until there are at most `most` bins."""
    filled = np.flatnonzero(counts)
    if not filled.size:
        # Every value lies beyond the outermost edges.
        return counts[:most], edges[: min(most, len(counts)) + 1]
    counts, edges = counts[filled[0] : filled[-1] + 1], edges[filled[0] : filled[-1] + 2]
    if len(counts) > most:
        group = -(-len(counts) // most)
        starts = np.arange(0, len(counts), group)
        counts = np.add.reduceat(counts, starts)
        edges = np.append(edges[starts], edges[-1])
    return counts, edges
