"""Encoded `Summary` messages for what is no scalar: texts, histograms, images, hparams. Nothing here touches a file."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_BLOB_SEQUENCE, DATA_CLASS_TENSOR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_DOUBLE, DT_FLOAT, DT_STRING

TEXT, HISTOGRAM, IMAGE = "text_summary", "histogram", "image"
"""Last part of the tags of each kind. A tag can hold one kind of data only, so a text `loss` is kept apart from the
scalar `loss` by its tag `loss/text_summary` (as `SummaryWriter.add_text` does)."""


def text_summary(tag: str, text: str) -> bytes:
    """A text for the text dashboard (it renders Markdown)."""
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode("utf-8", "replace")], tensor_shape=_shape())
    return _summary(tag, tensor, "text", DATA_CLASS_TENSOR)


def histogram_summary(tag: str, edges: npt.NDArray[np.float64], counts: npt.NDArray[np.float64]) -> bytes:
    """A histogram of given buckets: the plugin's tensor [B, 3] of left edge, right edge, count."""
    # The page gets JSON and computes with the edges: they must be finite.
    finite = np.nan_to_num(edges, nan=0.0)
    buckets = np.stack([finite[:-1], finite[1:], np.nan_to_num(counts)], axis=1)
    tensor = TensorProto(
        dtype=DT_DOUBLE, tensor_content=buckets.astype("<f8").tobytes(), tensor_shape=_shape(*buckets.shape)
    )
    return _summary(tag, tensor, "histograms", DATA_CLASS_TENSOR)


def image_summary(tag: str, image: bytes) -> bytes | None:
    """A PNG or JPEG for the image dashboard; None if it is neither."""
    size = _png_size(image) or _jpeg_size(image)
    if size is None:
        return None
    width, height = size
    content = [str(width).encode(), str(height).encode(), image]
    tensor = TensorProto(dtype=DT_STRING, string_val=content, tensor_shape=_shape(3))
    return _summary(tag, tensor, "images", DATA_CLASS_BLOB_SEQUENCE)


def plugin_summary(tag: str, plugin: str, content: bytes) -> bytes:
    """A value that is all metadata, as the hparams plugin wants it."""
    return _summary(tag, TensorProto(dtype=DT_FLOAT, tensor_shape=_shape(0)), plugin, DATA_CLASS_TENSOR, content)


def _summary(tag: str, tensor: TensorProto, plugin: str, data_class: int, content: bytes = b"") -> bytes:
    data = SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    metadata = SummaryMetadata(plugin_data=data, data_class=data_class)
    encoded: bytes = Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]).SerializeToString()
    return encoded


def _shape(*sizes: int) -> TensorShapeProto:
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])


def _png_size(image: bytes) -> tuple[int, int] | None:
    if image[:8] != b"\x89PNG\r\n\x1a\n" or len(image) < 24:
        return None
    width, height = struct.unpack_from(">II", image, 16)
    return width, height


def _jpeg_size(image: bytes) -> tuple[int, int] | None:
    if image[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 <= len(image) and image[at] == 0xFF:
        marker, length = image[at + 1], int.from_bytes(image[at + 2 : at + 4], "big")
        # Start-of-frame markers but for the three of the range that mean something else (DHT, JPG, DAC).
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", image, at + 5)
            return width, height
        at += 2 + length
    return None
