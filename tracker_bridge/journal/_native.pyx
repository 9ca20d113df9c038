# cython: language_level=3
"""`_tail.PythonTail` with a shortcut in C: an append that is one copy, or one write where files cannot be mapped.

Writes the same bytes as the way in Python, which is taken for whatever is not simple: then nothing has been changed
here. No Python code runs between reading the numbers of the tail and changing them, and the interpreter lock is held,
so neither another thread nor a signal handler sees them half changed; around a `pwrite`, which lets go of it, `lock`
is held.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.types cimport off_t

from tracker_bridge.records._native cimport put_metrics, put_norms

import time

from tracker_bridge.journal._definitions import DEFINING_TAGS
from tracker_bridge.journal._format import PIECE, crc32
from tracker_bridge.records import encode

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)

cdef extern from "_crc32.h" nogil:
    bint crc32_is_fast()
    uint32_t crc32_of(const unsigned char *data, size_t size)

cdef extern from *:
    """
    /* Last and in one store, for a reader in another process: see `_format`. */
    static void publish(unsigned char *place, uint64_t word) {
        __atomic_store_n((uint64_t *) place, word, __ATOMIC_RELEASE);
    }
    """
    void publish(unsigned char *place, uint64_t word) nogil

cdef enum:
    HEADER = 16
    LARGEST_WRITE = 64 << 10  # of what is put together here: larger frames take the way in Python
    FEW = 64

cdef Py_ssize_t WHOLE = PIECE
cdef bint FAST = crc32_is_fast()
cdef object _crc32 = crc32
cdef object _encode = encode
cdef object _time = time
cdef bint[256] DEFINES
for _tag in range(256):
    DEFINES[_tag] = _tag in DEFINING_TAGS


cdef class Tail:
    """See `PythonTail`."""

    def __cinit__(self):
        self._base = NULL
        self._fd = -1
        self._frame = <unsigned char *> PyMem_Malloc(LARGEST_WRITE)
        if self._frame == NULL:
            raise MemoryError

    def __init__(self, uint64_t sequence, object lock):
        self.used = self.limit = 0
        self.sequence = sequence
        self.busy = False
        self.lock = lock
        self.refuses_until = 0.0
        self.largest = 0
        self._refused = 0

    def __dealloc__(self):
        self._let_go()
        PyMem_Free(self._frame)

    cdef void _let_go(self) noexcept:
        if self._base != NULL:
            self._base = NULL
            PyBuffer_Release(&self._mapped)

    def aim(self, view, int fd):
        """See `PythonTail`."""
        self._fd = fd
        self._let_go()
        if view is not None:
            PyObject_GetBuffer(view, &self._mapped, PyBUF_WRITABLE)
            self._base = <unsigned char *> self._mapped.buf

    def append(self, bytes payload not None):
        """See `PythonTail`."""
        cdef const unsigned char *data = <const unsigned char *> PyBytes_AS_STRING(payload)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(payload)
        return -1 if length < 2 or DEFINES[data[1]] else self._put(data, length)

    def append_record(self, record):
        """See `PythonTail`."""
        cdef Py_ssize_t length
        if self.busy:
            return -1
        length = put_norms(self._frame + HEADER, LARGEST_WRITE - HEADER - 8, record)
        return self.append(_encode(record)) if length < 0 else self._put_frame(length)

    def take_refused(self):
        """See `PythonTail`."""
        refused, self._refused = self._refused, 0
        return refused

    cdef int64_t put_metrics(self, int64_t time_ns, int64_t step, dict values) except -3:
        """`append` of a `Metrics` record."""
        # Put together apart from the segment, where half a record would stand in the way of the next.
        cdef Py_ssize_t length
        if self.busy:
            return -1  # another thread may be writing from there
        length = put_metrics(self._frame + HEADER, LARGEST_WRITE - HEADER - 8, time_ns, step, values)
        return -1 if length < 0 else self._put_frame(length)

    cdef int64_t _put_frame(self, Py_ssize_t length) except -3:
        """`_put` of what was put together in `_frame`."""
        cdef unsigned char *data = self._frame + HEADER
        if FAST:
            return self._put(data, length)
        payload = PyBytes_FromStringAndSize(<char *> data, length)  # a checksum by Python may let others come between
        return self._put(<const unsigned char *> PyBytes_AS_STRING(payload), length)

    cdef int64_t _put(self, const unsigned char *data, Py_ssize_t length) except -3:
        cdef Py_ssize_t size = (length + HEADER + 7) & -8
        cdef unsigned char *frame
        cdef int64_t sequence
        cdef uint32_t crc
        if self.busy:
            return -1
        if self.used + size > self.limit:
            if self.limit or size > self.largest or _time.monotonic() >= self.refuses_until:
                return -1
            self._refused += 1
            return -2
        crc = _checksum(data, length)
        if self._base == NULL:
            return self._write(data, length, size, crc)
        # Again, for Python may have run meanwhile. From here on nothing calls into it.
        if self.used + size > self.limit or self.busy:
            return -1
        frame = self._base + self.used
        sequence = self.sequence
        memcpy(frame + HEADER, data, length)
        (<uint64_t *> frame)[1] = sequence
        publish(frame, _word(length, crc, sequence))
        self.used += size
        self.sequence = sequence + 1
        return sequence

    cdef int64_t _write(
        self, const unsigned char *data, Py_ssize_t length, Py_ssize_t size, unsigned int crc
    ) except -3:
        cdef unsigned char *frame = self._frame
        cdef Py_ssize_t start, written
        cdef uint64_t sequence
        cdef int fd
        if self._fd < 0 or size > LARGEST_WRITE:
            return -1
        # Without waiting, which would let others come between.
        if not self.lock.acquire(False):
            return -1
        try:
            fd, start, sequence = self._fd, self.used, self.sequence
            if fd < 0 or start + size > self.limit or self.busy:
                return -1
            memset(frame + HEADER + length, 0, size - HEADER - length)
            if data != frame + HEADER:
                memcpy(frame + HEADER, data, length)
            (<uint64_t *> frame)[0] = _word(length, crc, sequence)
            (<uint64_t *> frame)[1] = sequence
            self.busy = True
            with nogil:
                written = pwrite(fd, frame, size, start)
            self.busy = False
            if written != size:
                return -1  # the way in Python writes the same place again, and tells what is wrong
            self.used = start + size
            self.sequence = sequence + 1
            return sequence
        finally:
            self.lock.release()


cdef uint32_t _checksum(const unsigned char *data, Py_ssize_t length) except? 1:
    cdef Py_ssize_t start = WHOLE
    if FAST or length < FEW:
        return crc32_of(data, length)
    crc = _crc32(PyMemoryView_FromMemory(<char *> data, min(WHOLE, length), PyBUF_READ))
    while start < length:
        crc = _crc32(PyMemoryView_FromMemory(<char *> data + start, min(WHOLE, length - start), PyBUF_READ), crc)
        start += WHOLE
    return crc


cdef inline uint64_t _word(Py_ssize_t length, uint32_t crc, uint64_t sequence) noexcept nogil:
    return <uint64_t> length | <uint64_t> (crc ^ <uint32_t> sequence ^ <uint32_t> (sequence >> 32)) << 32


def use_instructions(bint wanted):
    """Whether checksums are computed by the processor's own instructions, if it has them; for tests of the other way."""
    global FAST
    FAST = wanted and crc32_is_fast()


def checksum(bytes data not None):
    """crc32 as this module computes it; for tests."""
    return _checksum(<const unsigned char *> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
