"""Text as protocols want it, for the kernels that read any."""

from libc.stdint cimport uint8_t


cdef inline bint is_utf8(const uint8_t *p, Py_ssize_t length, bint nul_allowed) noexcept:
    """Well-formed, as Python's strict decoder has it; with U+0000 or without."""
    cdef const uint8_t *end = p + length
    cdef uint8_t first
    while p < end:
        first = p[0]
        if first < 0x80:
            if first == 0 and not nul_allowed:
                return False
            p += 1
        elif first < 0xc2:
            return False
        elif first < 0xe0:
            if end - p < 2 or p[1] & 0xc0 != 0x80:
                return False
            p += 2
        elif first < 0xf0:
            if end - p < 3 or p[1] & 0xc0 != 0x80 or p[2] & 0xc0 != 0x80:
                return False
            if first == 0xe0 and p[1] < 0xa0 or first == 0xed and p[1] > 0x9f:
                return False  # too long for what it says, or a surrogate
            p += 3
        else:
            if first > 0xf4 or end - p < 4:
                return False
            if p[1] & 0xc0 != 0x80 or p[2] & 0xc0 != 0x80 or p[3] & 0xc0 != 0x80:
                return False
            if first == 0xf0 and p[1] < 0x90 or first == 0xf4 and p[1] > 0x8f:
                return False
            p += 4
    return True
