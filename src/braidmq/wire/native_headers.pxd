"""Integers of native headers, as ``envelopes.py`` has them, for kernels."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef inline uint16_t le16(const uint8_t *p) noexcept:
    return p[0] | (<uint16_t>p[1] << 8)


cdef inline uint32_t le32(const uint8_t *p) noexcept:
    return le16(p) | (<uint32_t>le16(p + 2) << 16)
