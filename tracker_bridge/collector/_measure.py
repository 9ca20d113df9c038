"""Norms of many tensors of this process, in few operations and without a host read on the way.

Reads tensors and writes only its own scratch memory. Knows neither names nor optimizers nor process groups.
On the CPU the values are there when `measure` returns; on an accelerator they are one float64 vector on it.

CPU: in C, float32 tensors are read where they lie. What C does not measure, and all where it is not built: tensors of
one shape are stacked, piece by piece in cache, and measured together; large tensors are
measured row by row in float32 with the rows added up in float64. torch's own float32 norm adds up a whole tensor in
float32 and is 0.8% off at 10^7 equal elements. Where a square over- or underflowed, the tensor is measured again,
scaled, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tracker_bridge._extensions import WANTED
from tracker_bridge.collector._device import capturing

if TYPE_CHECKING or not WANTED:
    _native: Any = None
else:
    try:
        from tracker_bridge.collector import _native
    except ImportError:  # no compiler when it was installed
        _native = None

Float64 = npt.NDArray[np.float64]
_T = TypeVar("_T")

_STACK_NUMEL = 8192  # above it, copying costs more than a call per tensor (and float32 sums lose 1e-5)
_STACK_BYTES = 1 << 20  # one stacked piece: half of a common L2 cache
_ROW = 2048  # long enough to cost nothing, short enough for float32 sums
_GRAIN = 32768  # elements from which on torch shares an operation among its threads: too few here to be worth it
_EXACT_PIECE = 1 << 20
# Per sqrt(element): below it, squares under the smallest normal number may carry 1e-6 of the sum of squares.
_SQUARE_FLOOR = {torch.float32: 1.1e-16, torch.float64: 1.5e-151}


class Measured(msgspec.Struct, frozen=True):
    """Norms of one list of tensors.

    `values` is float64 [L] on the host; `waiting` are pieces that are still on an accelerator: positions in
    `values`, and a float64 tensor [len(positions)] there. Positions of absent tensors hold 0.0. `complete`: none is.
    """

    values: Float64
    present: npt.NDArray[np.bool_]
    complete: bool
    waiting: tuple[tuple[npt.NDArray[np.intp], Tensor], ...] = ()


def joined(parts: Sequence[Measured | None]) -> Measured:
    """One measurement [L] from L measurements of a single tensor; None: absent."""
    values = np.array([0.0 if m is None else m.values[0] for m in parts], dtype=np.float64)
    present = np.array([m is not None and bool(m.present[0]) for m in parts], dtype=np.bool_)
    devices: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for slot, m in enumerate(parts):
        for _, vector in m.waiting if m is not None else ():
            devices.setdefault(vector.device, []).append((slot, vector))
    waiting = tuple(
        (np.array([slot for slot, _ in found], dtype=np.intp), torch.cat([vector for _, vector in found]))
        for found in devices.values()
    )
    return Measured(values, present, bool(present.all()), waiting)


class Meter:
    """Measures lists of tensors of the same make again and again; the layout is planned once.

    `norm_type` 0 counts the elements that are not zero.

    Call it with a list [L] of plain (not distributed) tensors, None where there is nothing; or with anything else and
    `read`, which makes such a tensor of each entry right before it is used, and may be asked more than once.
    """

    def __init__(self, norm_type: float) -> None:
        self._norm_type = norm_type
        self._make: list[torch.dtype | None] = []
        self._layout: _Layout | None = None

    def measure(self, entries: Sequence[_T], read: Callable[[_T], Tensor | None] | None = None) -> Measured:
        """One norm per entry. Raises what torch raises if a tensor cannot be measured even one by one."""
        layout = self._layout
        if layout is not None and len(entries) == len(self._make):
            try:
                # What a tensor that is measured already has become shows when it is measured; a new one has to be seen.
                if layout.complete or self._make == _make(_listed(entries, read)):
                    return layout.measure(_Source(entries, read))
            except (_LayoutChanged, RuntimeError, TypeError, NotImplementedError):
                pass  # a shape, a dtype, a device or a layout is another than last time: plan again from what is there
        tensors = _listed(entries, read)
        layout = self._layout = _Layout(tensors, self._norm_type)
        self._make = _make(tensors)
        return layout.measure(_Source(tensors))


def exact_norm(tensor: Tensor, norm_type: float) -> float:
    """The norm of one strided tensor on the CPU, in float64 and scaled, so that nothing over- or underflows.

    NaN and infinities are returned as they are. Slow: for the few tensors that need it.
    """
    if tensor.numel() == 0:
        return 0.0
    flat = tensor.detach().reshape(-1)
    if norm_type == 0.0:
        return float(flat.ne(0).sum().numpy())
    wide = torch.complex128 if flat.is_complex() else torch.float64
    largest = 0.0
    for start in range(0, flat.numel(), _EXACT_PIECE):
        peak = float(flat[start : start + _EXACT_PIECE].to(wide).abs().amax().numpy())
        largest = peak if math.isnan(peak) or peak > largest else largest
        if math.isnan(largest):
            return math.nan
    if largest == 0.0 or math.isinf(largest) or norm_type == math.inf:
        return largest
    total = 0.0
    for start in range(0, flat.numel(), _EXACT_PIECE):
        piece = flat[start : start + _EXACT_PIECE].to(wide).abs() / largest
        total += float(piece.pow(norm_type).sum().numpy())
    return float(largest * total ** (1.0 / norm_type))


class _Source(msgspec.Struct, frozen=True):
    """Tensors by position: `entries` themselves, or what `read` makes of them."""

    entries: Sequence[Any]
    read: Callable[[Any], Tensor | None] | None = None

    def __getitem__(self, position: int) -> Tensor | None:
        entry = self.entries[position]
        return entry if self.read is None else self.read(entry)

    def pick(self, pick: Callable[[Sequence[Any]], Sequence[Any]]) -> Sequence[Tensor | None]:
        """Several at once."""
        picked = pick(self.entries)
        return picked if self.read is None else list(map(self.read, picked))


def _listed(entries: Sequence[_T], read: Callable[[_T], Tensor | None] | None) -> Sequence[Tensor | None]:
    return cast("Sequence[Tensor | None]", entries) if read is None else list(map(read, entries))


_dtype = attrgetter("dtype")


def _make(tensors: Sequence[Tensor | None]) -> list[torch.dtype | None]:
    """What a layout is planned for. Anything else about the tensors shows when it is used."""
    try:
        return list(map(_dtype, tensors))
    except AttributeError:
        return [None if t is None else t.dtype for t in tensors]


class _LayoutChanged(Exception):
    """The tensors are not of the make that the layout was planned for."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """As many tensors of one shape as stay in cache together.

    How to pick them, where they are stacked, the same place as rows, where their norms go. `squares`: what numpy
    multiplies into the sums of squares of the rows, with where they go: a dot product of each row with itself reads
    twice as fast as torch's norm does, which has one accumulator.
    """

    shape: torch.Size
    dtype: torch.dtype
    pick: Callable[[Sequence[Any]], Sequence[Any]]
    stacked: Tensor
    rows: Tensor
    out: Tensor
    squares: tuple[npt.NDArray[np.floating], npt.NDArray[np.floating], npt.NDArray[np.floating]] | None


@dataclass(frozen=True, slots=True)
class _Large:
    """One tensor that is measured in rows: how (None: it is a view of whole rows), and where their norms go.

    `squares` [rows, 1, 1]: where sums of squares go instead; see `_Piece`.
    """

    position: int
    shape: torch.Size
    rows: Callable[[Tensor, Tensor], None] | None
    out: Tensor
    squares: npt.NDArray[np.floating] | None


class _Layout:
    """What to do with each position of a list of tensors of a known make.

    `complete`: every position is read, so that a list of another make cannot be measured unnoticed. `_full`: there is a
    tensor at each.
    """

    def __init__(self, tensors: Sequence[Tensor | None], norm_type: float) -> None:
        self._length = len(tensors)
        self._present = np.array([t is not None for t in tensors], dtype=np.bool_)
        self._full = self.complete = bool(self._present.all())
        self._exact: list[int] = []
        devices: dict[torch.device, list[int]] = {}
        dense: dict[torch.dtype, list[int]] = {torch.float32: [], torch.float64: []}
        for position, tensor in enumerate(tensors):
            if tensor is None:
                continue
            if tensor.numel() == 0 or tensor.device.type == "meta":
                self.complete = False
                continue
            if tensor.device.type != "cpu":
                devices.setdefault(tensor.device, []).append(position)
            elif (
                tensor.layout != torch.strided
                or not tensor.is_floating_point()
                or norm_type not in (0.0, 1.0, 2.0, math.inf)
            ):
                self._exact.append(position)
            elif tensor.dtype == torch.float64:
                dense[torch.float64].append(position)
            elif tensor.dtype in (torch.float32, torch.float16, torch.bfloat16):
                dense[torch.float32].append(position)
            else:
                self._exact.append(position)
        self._elsewhere = [(np.array(at, dtype=np.intp), picker(at)) for at in devices.values()]
        direct: list[int] = []
        if _native is not None and norm_type == 2.0:
            # torch shares out a large norm among its threads, which makes up for more than is saved here.
            most = _GRAIN if torch.get_num_threads() > 1 else math.inf
            single = dense[torch.float32]
            direct = [i for i in single if _there(tensors[i]).numel() <= most and _native.is_plain(tensors[i])]
            dense[torch.float32] = sorted(set(single) - set(direct))
        self._dense: list[_DirectCpu | _DenseCpu] = [_DirectCpu(direct)] if direct else []
        self._dense += [_DenseCpu(tensors, at, dtype, norm_type) for dtype, at in dense.items() if at]
        self._norm_type = norm_type
        # One group that is everything, as in most models, needs no place to be put together.
        whole = len(self._dense) == 1 and len(self._dense[0].order) == self._length
        self._inverse = np.argsort(self._dense[0].order) if whole else None

    def measure(self, tensors: _Source) -> Measured:
        if self._inverse is not None:
            return Measured(self._dense[0].measure(tensors).take(self._inverse), self._present, self._full)
        values = np.zeros(self._length, dtype=np.float64)
        for group in self._dense:
            values[group.order] = group.measure(tensors)
        for position in self._exact:
            values[position] = exact_norm(_strided(_there(tensors[position])), self._norm_type)
        waiting = tuple(
            (positions, _accelerator_norms([_there(t) for t in tensors.pick(pick)], self._norm_type))
            for positions, pick in self._elsewhere
        )
        return Measured(values, self._present, self._full, waiting)


class _DirectCpu:
    """Float32 CPU tensors that are read where they lie (`_native`). `order`: their positions."""

    def __init__(self, positions: Sequence[int]) -> None:
        self.order = np.array(positions, dtype=np.intp)
        self._pick = picker(positions)

    def measure(self, tensors: _Source) -> Float64:
        """The norm of each of them, in this order."""
        values = np.empty(len(self.order))
        if not _native.norms(tensors.pick(self._pick), values):
            raise _LayoutChanged
        return values


class _DenseCpu:
    """Dense real CPU tensors whose norms are accumulated in one dtype (float32 also for half precision).

    `order`: the positions of these tensors, in the order in which they are measured.
    """

    def __init__(
        self, tensors: Sequence[Tensor | None], positions: Sequence[int], dtype: torch.dtype, norm_type: float
    ) -> None:
        self._norm_type = norm_type
        self._dtype = dtype
        shapes: dict[tuple[torch.Size, torch.dtype], list[int]] = {}
        single: list[int] = []
        large: list[int] = []
        for position in positions:
            tensor = _there(tensors[position])
            if tensor.numel() > _STACK_NUMEL:
                large.append(position)
            else:
                shapes.setdefault((tensor.shape, tensor.dtype), []).append(position)
        for key in [key for key, members in shapes.items() if len(members) < 3]:
            single.extend(shapes.pop(key))
        cuts = {position: _rows(_there(tensors[position]), norm_type, dtype) for position in large}
        # torch shares out a norm among its threads, which makes up for more than a dot product saves.
        dots = norm_type == 2.0 and torch.get_num_threads() == 1
        large.sort(key=lambda position: not (dots and cuts[position][1] is None))
        stacked = sum(len(members) for members in shapes.values())
        self._stacked = stacked
        rows = sum(count for count, _ in cuts.values())
        self._scratch = torch.empty(stacked + len(single) + rows, dtype=dtype, device="cpu")
        self._values = self._scratch.numpy()
        order: list[int] = []
        self._pieces = [p for (shape, kind), at in shapes.items() for p in self._pieces_of(shape, kind, at, order)]
        self._single = single
        self._pick_single = picker(single)
        self._single_out = self._scratch[len(order) : len(order) + len(single)]
        order += single
        at = len(order)
        starts = list(range(at))
        self._large: list[_Large] = []
        self._dotted = slice(at, at)
        for position in large:
            count, cut = cuts[position]
            out = self._scratch[at : at + count]
            starts.append(at)
            order.append(position)
            at += count
            squares = None
            if dots and cut is None:
                squares = out.numpy()[:, None, None]
                self._dotted = slice(self._dotted.start, at)
            self._large.append(_Large(position, _there(tensors[position]).shape, cut, out, squares))
        # Powers of two that rows of a piece are multiplied by before they are measured, and what undoes them.
        self._scales: list[Tensor | None] = [None] * len(self._pieces)
        self._unscale: Float64 | None = None
        self._starts = np.array(starts, dtype=np.intp) if large else None
        self.order = np.array(order, dtype=np.intp)
        numel = np.array([_there(tensors[i]).numel() for i in order], dtype=np.float64)
        self._floor = np.sqrt(numel) * _SQUARE_FLOOR[dtype] if norm_type == 2.0 else np.zeros(len(order))
        self._highest_floor = float(self._floor.max())

    def measure(self, tensors: _Source) -> Float64:
        """The norm of each of this group's tensors, in its order."""
        ordinal = self._norm_type
        with np.errstate(all="ignore"):
            for piece, scale in zip(self._pieces, self._scales, strict=True):
                members = tensors.pick(piece.pick)
                first = _there(members[0])
                # Another dtype further on is cast; what the cast cannot hold is measured again by itself.
                if first.shape != piece.shape or first.dtype != piece.dtype:
                    raise _LayoutChanged
                torch.stack(members, out=piece.stacked)  # type: ignore[arg-type]
                if scale is not None:
                    piece.rows.mul_(scale)
                if piece.squares is None:
                    torch.linalg.vector_norm(piece.rows, ordinal, 1, out=piece.out)
                else:
                    left, right, sums = piece.squares
                    np.matmul(left, right, out=sums)
            for item in self._large:
                self._measure_large(item, _there(tensors[item.position]))
        if self._single:
            members = list(tensors.pick(self._pick_single))
            norms = torch._foreach_norm(members, ordinal, dtype=self._dtype)  # type: ignore[arg-type]
            torch.stack(norms, out=self._single_out)
        found = self._combined()
        if self._norm_type == 0.0:
            return found
        suspects = self._suspects(found)
        if self._unscale is not None:
            found[: len(self._unscale)] *= self._unscale
        if suspects is not None:
            self._again(tensors, found, suspects)
        return found

    def _measure_large(self, item: _Large, tensor: Tensor) -> None:
        if tensor.shape != item.shape:
            raise _LayoutChanged
        if item.squares is not None:
            if tensor.dtype != self._dtype:
                raise _LayoutChanged
            rows = tensor.detach().view(-1, _ROW).numpy()
            np.matmul(rows[:, None, :], rows[:, :, None], out=item.squares)
        elif item.rows is None:
            torch.linalg.vector_norm(tensor.view(-1, _ROW), self._norm_type, 1, out=item.out)
        else:
            item.rows(tensor, item.out)

    def _suspects(self, found: Float64) -> npt.NDArray[np.intp] | None:
        """Where a square may have over- or underflowed; None: nowhere."""
        # Right after backward nothing is in cache, numpy's own code neither: a list costs a third of what three
        # comparisons and a search do there. A NaN fails the test or hides nothing: no comparison with it is true.
        numbers = found.tolist()
        if min(numbers) > self._highest_floor and max(numbers) < math.inf:
            return None
        suspect = (found <= self._floor) | (found == np.inf)
        return np.flatnonzero(suspect) if suspect.any() else None

    def _combined(self) -> Float64:
        """Rows to tensors, in float64."""
        wide = self._values.astype(np.float64)
        if self._starts is None:
            if self._norm_type == 2.0 and self._pieces:
                squares = wide[: self._stacked]
                np.sqrt(squares, out=squares)
            return wide
        with np.errstate(all="ignore"):
            if self._norm_type == 2.0:
                for norms in (wide[self._stacked : self._dotted.start], wide[self._dotted.stop :]):
                    np.square(norms, out=norms)
                return np.sqrt(np.add.reduceat(wide, self._starts))
            if self._norm_type in (0.0, 1.0):
                return np.add.reduceat(wide, self._starts)
            return np.maximum.reduceat(wide, self._starts)

    def _again(self, tensors: _Source, found: Float64, suspects: npt.NDArray[np.intp]) -> None:
        """Zeros and infinities are mostly real: one pass finds the largest magnitudes, and the rest is done scaled.

        A deep net whose gradients vanish has hundreds of suspects at each step, so stacked tensors are redone stacked.
        """
        if self._norm_type == 2.0 and self._dtype == torch.float32:
            suspects = self._again_stacked(tensors, found, suspects)
            if not len(suspects):
                return
        members = [_there(tensors[self.order[i]]) for i in suspects]
        peaks = torch.stack(torch._foreach_norm(members, math.inf, dtype=self._dtype)).numpy()
        for index, tensor, peak in zip(suspects, members, peaks, strict=True):
            if peak == 0.0 or not np.isfinite(peak):
                found[index] = peak
            else:
                found[index] = exact_norm(tensor, self._norm_type)

    def _again_stacked(self, tensors: _Source, found: Float64, suspects: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Redo the pieces that hold suspects, each row scaled by a power of two (exact); returns what is left to do.

        The scales are kept: gradients that have vanished stay so, and the next step then measures them in one pass.
        """
        begin = 0
        unscale = np.ones(len(self.order) - len(self._single) - len(self._large))
        if self._unscale is not None:
            unscale[:] = self._unscale
        for number, piece in enumerate(self._pieces):
            rows = piece.rows
            end = begin + len(rows)
            first, last = np.searchsorted(suspects, (begin, end))
            if first < last:
                torch.stack(tensors.pick(piece.pick), out=piece.stacked)  # type: ignore[arg-type]
                peaks = rows.abs_().amax(1).numpy().astype(np.float64)
                usable = np.isfinite(peaks) & (peaks > 0)
                exponents = np.where(usable, np.minimum(-np.frexp(peaks)[1], 126), 0)
                scale = torch.from_numpy(np.ldexp(1.0, exponents).astype(np.float32)).unsqueeze(1)
                scaled = torch.linalg.vector_norm(rows.mul_(scale), 2.0, 1).numpy().astype(np.float64)
                chosen = suspects[first:last] - begin
                found[begin + chosen] = np.where(usable, np.ldexp(scaled, -exponents), peaks)[chosen]
                self._scales[number] = scale
                unscale[begin:end] = np.ldexp(1.0, -exponents)
            begin = end
        self._unscale = unscale
        return suspects[suspects >= begin]

    def _pieces_of(
        self, shape: torch.Size, dtype: torch.dtype, members: Sequence[int], order: list[int]
    ) -> list[_Piece]:
        most = _STACK_BYTES // self._dtype.itemsize if torch.get_num_threads() == 1 else _GRAIN - 1
        size = max(1, most // max(1, shape.numel()))
        space = torch.empty((min(size, len(members)), *shape), dtype=self._dtype, device="cpu")
        pieces = []
        for start in range(0, len(members), size):
            positions = list(members[start : start + size])
            stacked = space[: len(positions)]
            out = self._scratch[len(order) : len(order) + len(positions)]
            order.extend(positions)
            rows = stacked.view(len(positions), -1)
            squares = None
            if self._norm_type == 2.0:
                factors = rows.numpy()
                squares = (factors[:, None, :], factors[:, :, None], out.numpy()[:, None, None])
            pieces.append(_Piece(shape, dtype, picker(positions), stacked, rows, out, squares))
        return pieces


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What picks some positions of a list, as a slice where they are evenly spaced."""
    if not positions:
        return itemgetter(slice(0))
    step = positions[1] - positions[0] if len(positions) > 1 else 1
    if step > 0 and list(positions) == list(range(positions[0], positions[-1] + 1, step)):
        return itemgetter(slice(positions[0], positions[-1] + 1, step))
    return itemgetter(*positions)


def _rows(tensor: Tensor, norm_type: float, dtype: torch.dtype) -> tuple[int, Callable[[Tensor, Tensor], None] | None]:
    """How to cut a large tensor into rows: their number, and the function that measures them into `out`.

    None instead of a function for what most tensors are: contiguous, of the dtype of `out`, and whole rows long.
    """
    numel = tensor.numel()
    if tensor.is_contiguous() and numel % _ROW == 0 and tensor.dtype == dtype and not tensor.is_neg():
        return numel // _ROW, None

    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    head = numel - numel % _ROW
    count = head // _ROW + (1 if head < numel else 0)

    def by_chunk(g: Tensor, out: Tensor) -> None:
        flat = g.view(-1) if g.is_contiguous() else g.permute(order).reshape(-1)
        torch.linalg.vector_norm(flat[:head].view(-1, _ROW), norm_type, 1, dtype=dtype, out=out[: head // _ROW])
        if head < numel:
            torch.linalg.vector_norm(flat[head:].view(1, -1), norm_type, 1, dtype=dtype, out=out[head // _ROW :])

    return count, by_chunk


def _accelerator_norms(tensors: Sequence[Tensor], norm_type: float) -> Tensor:
    """Norms of non-empty tensors of one accelerator as a vector [len(tensors)] on it; nothing waits for it.

    Accumulated in float64 (the multi-tensor kernel reads far slower than it adds), so no square over- or underflows;
    in float32 where the device has no float64.
    """
    if capturing(tensors[0].device):
        raise RuntimeError(
            "gradients cannot be measured while a CUDA graph is captured; collect outside of the capture"
        )
    wide = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    ready = [_strided(t) for t in tensors]
    by_dtype: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(ready):
        if tensor.is_complex() or not (tensor.is_floating_point() and tensor.dtype.itemsize >= 2):
            ready[index] = tensor = tensor.abs() if tensor.is_complex() else tensor.to(torch.float32)
        by_dtype.setdefault(tensor.dtype, []).append(index)
    norms: list[Tensor] = [ready[0]] * len(ready)
    for members in by_dtype.values():
        for index, norm in zip(
            members, torch._foreach_norm([ready[i] for i in members], norm_type, dtype=wide), strict=True
        ):
            norms[index] = norm
    return torch.stack(norms).to(wide)


def _strided(tensor: Tensor) -> Tensor:
    """The stored values of a sparse tensor, each element once; a strided one as it is. The tensor is not changed."""
    if tensor.layout == torch.strided:
        return tensor
    if tensor.layout == torch.sparse_coo:
        return tensor.coalesce().values()
    return tensor.values()


def _there(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise _LayoutChanged
    return tensor
