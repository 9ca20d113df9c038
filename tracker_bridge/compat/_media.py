"""Things that scripts log and that are no numbers, as bytes of a file or as a histogram.

Pillow, matplotlib and torch are used only where the script's own object comes from them.
"""

from __future__ import annotations

import io
import struct
import wave
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MOST_BINS = 512


def as_array(value: Any) -> Array:
    """An array of an array, a tensor on any device (this waits for it), a Pillow image, or nested lists."""
    if hasattr(value, "detach"):
        value = value.detach()
        if "bfloat16" in str(value.dtype):
            value = value.float()
        value = value.cpu().numpy()
    return np.asarray(value)


def as_pixels(image: Any, layout: str = "HWC") -> npt.NDArray[np.uint8]:
    """uint8 [H, W, C] of an image in `layout` (`CHW`, `HWC`, `HW`); floats are taken to lie in 0 to 1.

    Raises `ValueError` on another number of axes.
    """
    array = as_array(image)
    layout = layout.upper()
    if array.ndim == 2 and len(layout) == 3:
        layout = "HW"
    if array.ndim != len(layout):
        raise ValueError(f"an image in the layout {layout} has {len(layout)} axes, not {array.ndim}")
    order = [layout.index(axis) for axis in "HWC" if axis in layout]
    array = array.transpose(order)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.dtype == np.bool_ or array.dtype.kind == "f":
        array = np.nan_to_num(array.astype(np.float64)) * 255.0
    pixels: npt.NDArray[np.uint8] = np.clip(array, 0, 255).astype(np.uint8)
    return pixels


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file of uint8 [H, W, C] with 1 (grey), 2 (grey, alpha), 3 or 4 channels."""
    height, width, channels = pixels.shape
    colour = {1: 0, 2: 4, 3: 2, 4: 6}.get(channels)
    if colour is None:
        raise ValueError(f"an image has 1 to 4 channels, not {channels}")
    rows = np.concatenate(
        [np.zeros((height, 1), np.uint8), np.ascontiguousarray(pixels).reshape(height, width * channels)], axis=1
    )

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def image_png(image: Any, layout: str | None = None) -> bytes:
    """A PNG file of a Pillow image, a matplotlib figure, or an array or tensor (`layout` None: guessed as W&B does)."""
    if is_figure(image):
        return figure_png(image)
    if hasattr(image, "save") and hasattr(image, "mode"):
        file = io.BytesIO()
        image.save(file, format="PNG")
        return file.getvalue()
    if layout is None:
        # A tensor has its channels first, an array last.
        layout = "CHW" if hasattr(image, "detach") else "HWC"
        pixels = as_array(image)
        if not hasattr(image, "detach") and pixels.dtype.kind == "f" and pixels.size and pixels.max() > 1.0:
            return png(as_pixels(np.clip(pixels, 0, 255).astype(np.uint8), layout))
    return png(as_pixels(image, layout))


def is_figure(value: Any) -> bool:
    """Whether this is a matplotlib figure (or the module `pyplot`, which stands for its current one)."""
    return hasattr(value, "savefig")


def figure_png(figure: Any) -> bytes:
    """A PNG file of a matplotlib figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def wav(samples: Any, rate: int) -> bytes:
    """A 16-bit WAV file of float samples in -1 to 1 (integers as they are): [T] or [T, channels], or [1, T]."""
    array = as_array(samples)
    if array.ndim == 2 and array.shape[0] < array.shape[1]:
        array = array.T
    if array.ndim == 1:
        array = array[:, None]
    if array.dtype.kind == "f":
        array = np.clip(array, -1.0, 1.0) * 32767.0
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(array.shape[1])
        sound.setsampwidth(2)
        sound.setframerate(int(rate))
        sound.writeframes(array.astype("<i2").tobytes())
    return file.getvalue()


def histogram(values: Any, bins: Any = 64) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Counts [B] and edges [B + 1] of the finite values. Raises `ValueError` if there are none."""
    array = as_array(values).astype(np.float64).ravel()
    finite = array[np.isfinite(array)]
    if not finite.size:
        raise ValueError("the input has no finite element")
    if isinstance(bins, int):
        bins = min(bins, MOST_BINS)
    try:
        counts, edges = np.histogram(finite, bins=bins)
    except ValueError:
        # Values so close together, or so far apart, that equal bins cannot be told apart in float64.
        low, high = float(finite.min()), float(finite.max())
        edges = np.array([low, np.nextafter(high, np.inf)])
        counts = np.array([finite.size])
    return counts.astype(np.float64), edges.astype(np.float64)
