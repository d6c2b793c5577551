"""Writing and syncing in one step.

A thread that lets go of the interpreter's lock for each system call has to get it back after each,
and waits for it longer than a fast disk takes. Here it is let go of once.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    Py_ssize_t pwritev(int fd, const iovec *pieces, int count, int64_t position)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)

cdef enum:
    PIECES_MAX = 1024    # IOV_MAX of Linux


def write_pieces(int fd, pieces, int64_t position, bint durably):
    """Write ``pieces`` end to end from ``position`` on, and sync the file if wanted; returns 0, or
    the number of the error after which nothing is known of what was written."""
    cdef Py_ssize_t count = len(pieces), held = 0, i
    cdef Py_buffer *views = <Py_buffer *>malloc(max(count, 1) * sizeof(Py_buffer))
    cdef iovec *rest = <iovec *>malloc(max(count, 1) * sizeof(iovec))
    cdef int failed
    try:
        if views == NULL or rest == NULL:
            raise MemoryError
        for piece in pieces:
            PyObject_GetBuffer(piece, &views[held], PyBUF_SIMPLE)
            rest[held].iov_base = views[held].buf
            rest[held].iov_len = views[held].len
            held += 1
        with nogil:
            failed = write(fd, rest, count, position)
            if durably and not failed:
                failed = sync(fd)
        return failed
    finally:
        for i in range(held):
            PyBuffer_Release(&views[i])
        free(views)
        free(rest)


cdef int write(int fd, iovec *rest, Py_ssize_t count, int64_t position) noexcept nogil:
    cdef Py_ssize_t written
    while True:
        while count and rest.iov_len == 0:
            rest += 1
            count -= 1
        if count == 0:
            return 0
        written = pwritev(fd, rest, <int>min(count, PIECES_MAX), position)
        if written < 0 and errno == EINTR:
            continue
        if written <= 0:
            return errno if written < 0 else EIO
        position += written
        while written >= <Py_ssize_t>rest.iov_len:
            written -= rest.iov_len
            rest += 1
            count -= 1
            if count == 0:
                return 0
        rest.iov_base = <char *>rest.iov_base + written
        rest.iov_len -= written


cdef int sync(int fd) noexcept nogil:
    while fdatasync(fd) < 0:
        if errno != EINTR:
            return errno
    return 0
