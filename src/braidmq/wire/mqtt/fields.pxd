"""Integers as MQTT writes them, for its kernels."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef inline uint16_t be16(const uint8_t *p) noexcept:
    return (<uint16_t>p[0] << 8) | p[1]


cdef inline uint32_t be32(const uint8_t *p) noexcept:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline int read_variable(
    const uint8_t *p, const uint8_t *end, bint minimal, uint32_t *value
) noexcept:
    """Bytes of the variable integer at ``p``; 0: it is cut off, -1: it is none."""
    cdef int i
    cdef uint32_t found = 0
    for i in range(4):
        if p + i >= end:
            return 0
        found |= <uint32_t>(p[i] & 0x7f) << 7 * i
        if p[i] < 0x80:
            value[0] = found
            # MQTT-1.5.5-1
            return -1 if minimal and i and p[i] == 0 else i + 1
    return -1


cdef inline uint8_t *put16(uint8_t *p, uint16_t value) noexcept:
    p[0] = value >> 8
    p[1] = value & 0xff
    return p + 2


cdef inline uint8_t *put32(uint8_t *p, uint32_t value) noexcept:
    return put16(put16(p, value >> 16), value & 0xffff)


cdef inline int variable_bytes(Py_ssize_t value) noexcept:
    return 1 + (value > 0x7f) + (value > 0x3fff) + (value > 0x1fffff)


cdef inline uint8_t *put_variable(uint8_t *p, Py_ssize_t value) noexcept:
    while value > 0x7f:
        p[0] = <uint8_t>(value & 0x7f | 0x80)
        value >>= 7
        p += 1
    p[0] = <uint8_t>value
    return p + 1
