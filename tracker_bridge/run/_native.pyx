# cython: language_level=3
"""`_pace.PythonPace` with `log_metrics` of plain numbers in C.

Does what the way in Python does for a `dict` of texts to Python's own floats and ints at a whole step; anything else
(another mapping, a tensor, a fraction) is left to that way, before anything is changed.
"""

import time

from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport int64_t

from tracker_bridge.journal._native cimport Tail

cdef object _time = time
cdef int64_t LARGEST = 2**63 - 1


cdef class Pace:
    """See `PythonPace`."""

    cdef public object last_step
    cdef public int64_t looked
    cdef public int64_t next_look
    cdef Tail _tail

    def __init__(self, last_step, int64_t looked, int64_t next_look, tail):
        self.last_step = last_step
        self.looked = looked
        self.next_look = next_look
        self._tail = tail if isinstance(tail, Tail) else None

    def metrics(self, data, step):
        """See `PythonPace`."""
        cdef int64_t now, number
        cdef int beyond = 0
        if self._tail is None or type(data) is not dict:
            return 0
        before = self.last_step
        if step is None:
            if type(before) is not int:
                return 0
            number = PyLong_AsLongLongAndOverflow(before, &beyond)
            if beyond or number == LARGEST:
                return 0
            number += 1
            step = number
        elif type(step) is int:
            number = PyLong_AsLongLongAndOverflow(step, &beyond)
            if beyond:
                return 0
        else:
            return 0
        now = _time.time_ns()
        # Before the append, during which another thread may take the step after it.
        self.last_step = step
        if len(<dict> data) and self._tail.put_metrics(now, number, <dict> data) == -1:
            if self.last_step is step:
                self.last_step = before
            return 0
        return 1 if self.looked <= now < self.next_look else 2
