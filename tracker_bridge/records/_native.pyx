# cython: language_level=3
"""The two most frequent records in C, in the bytes that `encode` makes of them.

`Metrics` of Python's own numbers under texts, and `NormVector`. Nothing here runs Python code or lets go of the
interpreter lock, so what is read stays what it is meanwhile.
"""

from cpython.dict cimport PyDict_Next
from cpython.exc cimport PyErr_Clear, PyErr_Occurred
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from tracker_bridge.records._types import Metrics, NormVector

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size)
    double PyLong_AsDouble(object number)
    int64_t PyLong_AsLongLongAndOverflow(object number, int *beyond)
    char *PyBytes_AS_STRING(object data)
    Py_ssize_t PyBytes_GET_SIZE(object data)

cdef unsigned char TAG = Metrics.__struct_config__.tag
cdef unsigned char TAG_OF_NORMS = NormVector.__struct_config__.tag
cdef object _NormVector = NormVector
cdef tuple FIELDS_OF_NORMS = NormVector.__struct_fields__
cdef enum:
    HEAD = 25  # an array of the tag, two integers of nine bytes at most, and what begins a mapping


cdef Py_ssize_t put_metrics(unsigned char *out, Py_ssize_t room, int64_t time_ns, int64_t step, dict values) noexcept:
    """Bytes of the payload at `out`; -1: what only `encode` can make, or more than `room`."""
    cdef unsigned char *at = out
    cdef unsigned char *end = out + room
    cdef Py_ssize_t place = 0, size
    cdef Py_ssize_t count = len(values)
    cdef PyObject *name
    cdef PyObject *value
    cdef const char *text
    cdef double number
    if room < HEAD:
        return -1
    at[0] = 0x94
    at[1] = TAG
    at = _integer(at + 2, time_ns)
    at = _integer(at, step)
    at = _size(at, count, 0x80, 16, 0, 0xDE, 0xDF)
    while PyDict_Next(values, &place, &name, &value):
        if type(<object> name) is not str:
            return -1
        if type(<object> value) is float:
            number = PyFloat_AS_DOUBLE(<object> value)
        elif type(<object> value) is int:
            number = PyLong_AsDouble(<object> value)
            if number == -1.0 and PyErr_Occurred() != NULL:
                PyErr_Clear()
                return -1
        else:
            return -1
        text = PyUnicode_AsUTF8AndSize(<object> name, &size)
        if text == NULL:
            PyErr_Clear()
            return -1
        if end - at < 5 + size + 9:
            return -1
        at = _size(at, size, 0xA0, 32, 0xD9, 0xDA, 0xDB)
        memcpy(at, text, size)
        at += size
        at = _float(at, number)
    return at - out


cdef Py_ssize_t put_norms(unsigned char *out, Py_ssize_t room, object record) except -2:
    """Bytes of the payload at `out`; -1: no `NormVector`, what only `encode` can make of one, or more than `room`."""
    cdef unsigned char *at = out
    cdef unsigned char *end = out + room
    cdef Py_ssize_t size
    cdef int beyond = 0
    cdef int64_t number
    if type(record) is not _NormVector or room < 2:
        return -1
    at = _size(at, 1 + len(FIELDS_OF_NORMS), 0x90, 16, 0, 0xDC, 0xDD)
    at[0] = TAG_OF_NORMS
    at += 1
    for name in FIELDS_OF_NORMS:
        value = getattr(record, name)
        size = PyBytes_GET_SIZE(value) if type(value) is bytes else 4
        if end - at < 5 + size:
            return -1
        if type(value) is bytes:
            at = _size(at, size, 0, 0, 0xC4, 0xC5, 0xC6)
            memcpy(at, PyBytes_AS_STRING(value), size)
            at += size
        elif value is None:
            at[0] = 0xC0
            at += 1
        elif type(value) is bool:
            at[0] = 0xC3 if value is True else 0xC2
            at += 1
        elif type(value) is float:
            at = _float(at, PyFloat_AS_DOUBLE(value))
        elif type(value) is int:
            number = PyLong_AsLongLongAndOverflow(value, &beyond)
            if beyond:
                return -1
            at = _integer(at, number)
        else:
            return -1
    return at - out


cdef inline unsigned char *_float(unsigned char *at, double number) noexcept:
    cdef uint64_t bits
    memcpy(&bits, &number, 8)
    at[0] = 0xCB
    return _big(at + 1, bits, 8)


cdef inline unsigned char *_big(unsigned char *at, uint64_t number, int size) noexcept:
    cdef int i
    for i in range(size):
        at[i] = (number >> (8 * (size - 1 - i))) & 0xFF
    return at + size


cdef inline unsigned char *_size(
    unsigned char *at, Py_ssize_t size, int few, int most, int one, int two, int four
) noexcept:
    if size < most:
        at[0] = few | size
        return at + 1
    if one and size < 1 << 8:
        at[0] = one
        return _big(at + 1, size, 1)
    if size < 1 << 16:
        at[0] = two
        return _big(at + 1, size, 2)
    at[0] = four
    return _big(at + 1, size, 4)


cdef inline unsigned char *_integer(unsigned char *at, int64_t number) noexcept:
    cdef int wide
    if number >= 0:
        if number < 128:
            at[0] = number
            return at + 1
        wide = 0 if number < 1 << 8 else 1 if number < 1 << 16 else 2 if number < <int64_t> 1 << 32 else 3
        at[0] = 0xCC + wide
    else:
        if number >= -32:
            at[0] = number & 0xFF
            return at + 1
        wide = 0 if number >= -(1 << 7) else 1 if number >= -(1 << 15) else 2 if number >= -(<int64_t> 1 << 31) else 3
        at[0] = 0xD0 + wide
    return _big(at + 1, <uint64_t> number, 1 << wide)


def metrics_payload(int64_t time_ns, int64_t step, dict values, Py_ssize_t room=1 << 16):
    """`encode(Metrics(time_ns, step, values))`, or None where this module leaves that to it; for tests."""
    cdef bytearray place = bytearray(room)
    cdef unsigned char *out = place
    cdef Py_ssize_t size = put_metrics(out, room, time_ns, step, values)
    return None if size < 0 else bytes(place[:size])


def norms_payload(record, Py_ssize_t room=1 << 16):
    """`encode(record)`, or None where this module leaves that to it; for tests."""
    cdef bytearray place = bytearray(room)
    cdef unsigned char *out = place
    cdef Py_ssize_t size = put_norms(out, room, record)
    return None if size < 0 else bytes(place[:size])
