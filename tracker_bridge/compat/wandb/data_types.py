"""`wandb.data_types`: media. Each becomes a file or a histogram; what only W&B's pages show (captions, masks) does not.

A media object makes its file's content when it is logged. Raises `ValueError`/`TypeError` for what cannot be one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tracker_bridge.compat import _media

__all__ = [
    "Audio",
    "Chart",
    "Classes",
    "Histogram",
    "Html",
    "Image",
    "Media",
    "Molecule",
    "Object3D",
    "Plotly",
    "Table",
    "Video",
]


class Media:
    """Base: something whose content is a file. `lost` says what of it is not kept."""

    lost = ""

    def content(self) -> tuple[bytes, str] | None:
        """The bytes and the ending of its file; None if it has no file of its own."""
        raise NotImplementedError


class _OfFile(Media):
    """Media given as a path, or in memory by a subclass."""

    ending = ".bin"

    def __init__(self, data_or_path: Any, caption: str | None = None, **_kwargs: Any) -> None:
        self._data = data_or_path
        self._caption = caption

    def content(self) -> tuple[bytes, str] | None:
        """The file that is kept, and its ending; None if there is none."""
        data = self._data
        if isinstance(data, (str, os.PathLike)):
            path = Path(data)
            return path.read_bytes(), path.suffix or self.ending
        if hasattr(data, "read"):
            text = data.read()
            return (text.encode() if isinstance(text, str) else text), self.ending
        return self._made(data)

    def _made(self, data: Any) -> tuple[bytes, str] | None:
        raise TypeError(f"wandb.{type(self).__name__} takes a path here, not {type(data).__name__}")


class Image(_OfFile):
    """A path, an array [H, W] or [H, W, C], a tensor [C, H, W], a Pillow image or a matplotlib figure."""

    ending = ".png"
    lost = "caption, classes, boxes and masks"

    def __init__(
        self,
        data_or_path: Any,
        mode: str | None = None,
        caption: str | None = None,
        grouping: int | None = None,
        classes: Any = None,
        boxes: Any = None,
        masks: Any = None,
        file_type: str | None = None,
        normalize: bool = True,
    ) -> None:
        del mode, grouping, classes, boxes, masks, file_type, normalize
        if isinstance(data_or_path, Image):
            data_or_path = data_or_path._data
        super().__init__(data_or_path, caption)

    def _made(self, data: Any) -> tuple[bytes, str] | None:
        return _media.image_png(data), ".png"


class Audio(_OfFile):
    """A path, or samples [T] or [T, channels] in -1 to 1 with a `sample_rate`."""

    ending = ".wav"
    lost = "the caption"

    def __init__(self, data_or_path: Any, sample_rate: int | None = None, caption: str | None = None) -> None:
        super().__init__(data_or_path, caption)
        if not isinstance(data_or_path, (str, os.PathLike)) and sample_rate is None:
            raise ValueError('Argument "sample_rate" is required when instantiating wandb.Audio with raw data.')
        self._rate = sample_rate

    def _made(self, data: Any) -> tuple[bytes, str] | None:
        return _media.wav(data, self._rate or 0), ".wav"


class Video(_OfFile):
    """A path or an open file; frames in memory would need an encoder and are not kept."""

    ending = ".mp4"
    lost = "the caption, and frames that are in memory"

    def __init__(
        self,
        data_or_path: Any,
        caption: str | None = None,
        fps: int | None = None,
        format: str | None = None,  # noqa: A002
    ) -> None:
        del fps
        super().__init__(data_or_path, caption)
        self.ending = f".{format}" if format else self.ending

    def _made(self, data: Any) -> tuple[bytes, str] | None:
        del data
        return None


class Object3D(_OfFile):
    """A path or an open file; points in memory are kept as JSON."""

    ending = ".obj"
    lost = "the caption"

    def _made(self, data: Any) -> tuple[bytes, str] | None:
        return json.dumps(_plain(data)).encode(), ".pts.json"


class Molecule(_OfFile):
    """A path or an open file."""

    ending = ".pdb"
    lost = "the caption"


class Html(_OfFile):
    """HTML text, a path to it, or an open file."""

    ending = ".html"

    def __init__(self, data: Any, inject: bool = True, data_is_not_path: bool = False) -> None:
        del inject
        super().__init__(data)
        self._is_text = isinstance(data, str) and (data_is_not_path or not os.path.exists(data))

    def content(self) -> tuple[bytes, str] | None:
        """The file that is kept, and its ending; None if there is none."""
        if self._is_text:
            return str(self._data).encode(), ".html"
        return super().content()


class Plotly(_OfFile):
    """A Plotly figure, kept as its JSON."""

    ending = ".plotly.json"

    def _made(self, data: Any) -> tuple[bytes, str] | None:
        return data.to_json().encode(), ".plotly.json"


class Histogram(Media):
    """A histogram of `sequence`, or `np_histogram=(counts [B], edges [B + 1])`."""

    MAX_LENGTH = _media.MOST_BINS

    def __init__(self, sequence: Any = None, np_histogram: tuple[Any, Any] | None = None, num_bins: int = 64) -> None:
        if num_bins > self.MAX_LENGTH:
            raise ValueError(f"The maximum length of a histogram is {self.MAX_LENGTH}")
        if np_histogram is not None:
            if len(np_histogram) != 2:
                raise ValueError(
                    "Expected np_histogram to be a tuple of (values, bin_edges) or sequence to be specified"
                )
            self.histogram, self.bins = list(np_histogram[0]), list(np_histogram[1])
            if len(self.bins) != len(self.histogram) + 1:
                raise ValueError("len(bins) must be len(histogram) + 1")
        else:
            counts, edges = _media.histogram(sequence, num_bins)
            self.histogram, self.bins = counts.tolist(), edges.tolist()

    def content(self) -> tuple[bytes, str] | None:
        """The file that is kept, and its ending; None if there is none."""
        return None


class Table(Media):
    """Rows under named columns, kept as JSON: `{"columns": [...], "data": [[...]]}`."""

    lost = "media in cells"

    def __init__(
        self,
        columns: Sequence[Any] | None = None,
        data: Any = None,
        rows: Any = None,
        dataframe: Any = None,
        dtype: Any = None,
        optional: Any = None,
        allow_mixed_types: bool = False,
        log_mode: str | None = None,
    ) -> None:
        del dtype, optional, allow_mixed_types, log_mode
        if dataframe is None and hasattr(data, "columns") and hasattr(data, "values"):
            dataframe = data
        if dataframe is not None:
            self.columns: list[Any] = list(dataframe.columns)
            self.data: list[list[Any]] = [list(row) for row in dataframe.values.tolist()]
            return
        self.columns = list(columns) if columns is not None else ["Input", "Output", "Expected"]
        given = data if data is not None else rows
        self.data = [list(row) for row in (given if given is not None else [])]

    def add_data(self, *data: Any) -> None:
        """Add a row. Raises `ValueError` if it has another number of cells than there are columns."""
        if len(data) != len(self.columns):
            raise ValueError(f"This table expects {len(self.columns)} columns: {self.columns}, found {len(data)}")
        self.data.append(list(data))

    add_row = add_data

    def add_column(self, name: str, data: Any, optional: bool = False) -> None:
        """Add a column of as many values as there are rows."""
        del optional
        values = list(data)
        if self.data and len(values) != len(self.data):
            raise ValueError(f"Expected length {len(self.data)}, found {len(values)}")
        rows = self.data or [[] for _ in values]
        self.data = [[*row, value] for row, value in zip(rows, values, strict=True)]
        self.columns.append(name)

    def get_column(self, name: str, convert_to: str | None = None) -> Any:
        """The values of a column, as a list or (`convert_to="numpy"`) an array."""
        index = self.columns.index(name)
        values = [row[index] for row in self.data]
        return _media.as_array(values) if convert_to == "numpy" else values

    def iterrows(self) -> Iterator[tuple[int, list[Any]]]:
        """The rows with their numbers."""
        return enumerate(self.data)

    def content(self) -> tuple[bytes, str] | None:
        """The file that is kept, and its ending; None if there is none."""
        return json.dumps({"columns": _plain(self.columns), "data": _plain(self.data)}).encode(), ".table.json"


class Chart(Media):
    """A chart of `wandb.plot`, of which the table is kept."""

    lost = "how the chart is drawn"

    def __init__(self, table: Table | None, title: str) -> None:
        self._table, self._title = table, title

    def content(self) -> tuple[bytes, str] | None:
        """The file that is kept, and its ending; None if there is none."""
        return None if self._table is None else self._table.content()


class Classes(Media):
    """Class labels for images; not kept."""

    def __init__(self, class_set: Iterable[dict[str, Any]]) -> None:
        self.class_set = list(class_set)

    def content(self) -> tuple[bytes, str] | None:
        """The file that is kept, and its ending; None if there is none."""
        return None


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(inner) for inner in value]
    if isinstance(value, Media):
        return f"<{type(value).__name__}>"
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
