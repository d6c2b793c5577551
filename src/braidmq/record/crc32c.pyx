"""CRC32C for Python callers: snapshots, file headers, tests and the benchmark's yardstick."""

from libc.stdint cimport uint32_t


cdef extern from "crc32c.h" nogil:
    void braid_crc32c_init()
    uint32_t braid_crc32c(uint32_t crc, const void *data, size_t n)
    uint32_t braid_crc32c_portable(uint32_t crc, const unsigned char *data, size_t n)
    uint32_t braid_copy_and_crc32c(void *target, const void *source, size_t n, size_t piece)
    int braid_crc32c_hardware

braid_crc32c_init()

HARDWARE = bool(braid_crc32c_hardware)


def crc32c(const unsigned char[::1] data, uint32_t crc=0):
    """CRC32C of ``data``, continuing from ``crc``."""
    if data.shape[0] == 0:
        return crc
    return braid_crc32c(crc, &data[0], data.shape[0])


def crc32c_portable(const unsigned char[::1] data, uint32_t crc=0):
    """The same by tables alone, as on a processor without the instruction."""
    if data.shape[0] == 0:
        return crc
    return ~braid_crc32c_portable(~crc, &data[0], data.shape[0]) & 0xffffffff


def copy_and_crc32c(unsigned char[::1] target, const unsigned char[::1] source, size_t piece):
    """Copy ``source`` to ``target`` in pieces and check each: what no codec can be faster than."""
    assert target.shape[0] >= source.shape[0] > 0
    return braid_copy_and_crc32c(&target[0], &source[0], source.shape[0], piece)
