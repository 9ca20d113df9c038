# cython: language_level=3, boundscheck=False, wraparound=False
"""L2 norms of float32 tensors on the CPU, read where they lie: no torch operation, no copy, sums in float64.

Knows a tensor by what torch's own methods say of it. Whatever is not plain is left to `_measure`.
"""

from libc.math cimport sqrt
from libc.stdint cimport uintptr_t

import torch

cdef extern from "_squares.h" nogil:
    double sum_of_squares(const float *numbers, ptrdiff_t count)

cdef object _Tensor = torch.Tensor
cdef object _Parameter = torch.nn.Parameter
cdef object _float32 = torch.float32
cdef enum:
    LONG = 1 << 16  # elements, some ten microseconds: from here on other threads may run meanwhile


cdef bint _plain(object tensor) except -1:
    # Exactly these types: a subclass may have its numbers anywhere.
    if type(tensor) is not _Tensor and type(tensor) is not _Parameter:
        return False
    return tensor.dtype is _float32 and tensor.is_cpu


def is_plain(object tensor not None):
    """Whether `norms` can measure it: dense float32 on the CPU, with memory of its own."""
    if not _plain(tensor) or tensor.layout is not torch.strided:
        return False
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:  # a tensor of a functional transform has no memory
        return False


def norms(object tensors not None, double[::1] out not None):
    """Each tensor's norm into `out` [len(tensors)]; False, after some of them, if one is not plain any more.

    Raises what `data_ptr()` raises.
    """
    cdef Py_ssize_t position = 0
    cdef ptrdiff_t count
    cdef uintptr_t place
    cdef double squares
    if len(tensors) != out.shape[0]:
        raise ValueError("norms: one place for each tensor")
    for tensor in tensors:
        if not _plain(tensor):
            return False
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        count = tensor.numel()
        place = tensor.data_ptr()
        if place == 0 and count:
            return False
        if count < LONG:
            squares = sum_of_squares(<const float *> place, count)
        else:
            with nogil:
                squares = sum_of_squares(<const float *> place, count)
        out[position] = sqrt(squares)
        position += 1
    return True
