from libc.stdint cimport int64_t

cdef Py_ssize_t put_metrics(unsigned char *out, Py_ssize_t room, int64_t time_ns, int64_t step, dict values) noexcept
cdef Py_ssize_t put_norms(unsigned char *out, Py_ssize_t room, object record) except -2
