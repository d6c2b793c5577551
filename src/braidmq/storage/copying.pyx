"""Copies of large pieces to where they are not read again soon: a disk made of memory."""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #if defined(__x86_64__)
    #include <emmintrin.h>
    /* Around the cache: what is overwritten whole need not be fetched first, and what is in use
     * stays. `to` is a multiple of 16. */
    static void braid_stream(char *to, const char *from, size_t lines) {
        for (; lines; lines--, to += 64, from += 64)
            for (int i = 0; i < 64; i += 16)
                _mm_stream_si128(
                    (__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
        _mm_sfence();
    }
    #else
    #include <string.h>
    static void braid_stream(char *to, const char *from, size_t lines) {
        memcpy(to, from, 64 * lines);
    }
    #endif
    """
    void braid_stream(char *to, const char *from_, size_t lines) noexcept nogil

cdef enum:
    # Shorter pieces are as fast through the cache, and may be wanted again.
    STREAMED_MIN = 32 << 10


def copy_into(target, Py_ssize_t position, source):
    """Copy ``source`` into ``target`` from ``position`` on, where it must fit."""
    cdef Py_buffer to, come_from
    PyObject_GetBuffer(target, &to, PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(source, &come_from, PyBUF_SIMPLE)
        try:
            if position < 0 or position + come_from.len > to.len:
                raise IndexError(position)
            copy(<char *>to.buf + position, <const char *>come_from.buf, come_from.len)
        finally:
            PyBuffer_Release(&come_from)
    finally:
        PyBuffer_Release(&to)


cdef void copy(char *to, const char *come_from, Py_ssize_t size) noexcept:
    cdef Py_ssize_t head = 0, lines
    if size >= STREAMED_MIN:
        head = (16 - <Py_ssize_t>(<uintptr_t>to & 15)) & 15
        lines = (size - head) >> 6
        memcpy(to, come_from, head)
        braid_stream(to + head, come_from + head, lines)
        head += lines << 6
    memcpy(to + head, come_from + head, size - head)
