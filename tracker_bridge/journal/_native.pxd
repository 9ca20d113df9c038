from libc.stdint cimport int64_t, uint64_t


cdef class Tail:
    cdef public Py_ssize_t used
    cdef public Py_ssize_t limit
    cdef public uint64_t sequence
    cdef public bint busy
    cdef public object lock
    cdef public double refuses_until
    cdef public Py_ssize_t largest
    cdef Py_ssize_t _refused
    cdef Py_buffer _mapped
    cdef unsigned char *_base
    cdef unsigned char *_frame
    cdef int _fd

    cdef void _let_go(self) noexcept
    cdef int64_t put_metrics(self, int64_t time_ns, int64_t step, dict values) except -3
    cdef int64_t _put_frame(self, Py_ssize_t length) except -3
    cdef int64_t _put(self, const unsigned char *data, Py_ssize_t length) except -3
    cdef int64_t _write(self, const unsigned char *data, Py_ssize_t length, Py_ssize_t size, unsigned int crc) except -3
