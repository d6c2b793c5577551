"""Copies of large pieces to where they are not read again soon: a disk made of memory."""

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


def copy_into(unsigned char[::1] target not None, Py_ssize_t position,
              const unsigned char[::1] source not None):
    """Copy ``source`` into ``target`` from ``position`` on, where it must fit."""
    cdef Py_ssize_t size = source.shape[0], head = 0, lines
    cdef char *to
    cdef const char *come_from
    if position < 0 or position + size > target.shape[0]:
        raise IndexError(position)
    if size == 0:
        return
    to = <char *>&target[position]
    come_from = <const char *>&source[0]
    if size >= STREAMED_MIN:
        head = (16 - <Py_ssize_t>(<uintptr_t>to & 15)) & 15
        lines = (size - head) >> 6
        memcpy(to, come_from, head)
        braid_stream(to + head, come_from + head, lines)
        head += lines << 6
    memcpy(to + head, come_from + head, size - head)
