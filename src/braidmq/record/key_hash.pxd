from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from braidmq.record.batch cimport RecordHeader, header_bytes


cdef enum:
    SEED = 0x9747b28c
    MIX = 0x5bd1e995


cdef inline uint32_t murmur2_from(
    uint32_t seed, const unsigned char *key, Py_ssize_t length
) noexcept:
    cdef uint32_t mixed = seed ^ <uint32_t>length
    cdef uint32_t word
    cdef Py_ssize_t at = 0
    while length - at >= 4:
        memcpy(&word, key + at, 4)
        word *= <uint32_t>MIX
        word ^= word >> 24
        word *= <uint32_t>MIX
        mixed *= <uint32_t>MIX
        mixed ^= word
        at += 4
    if at < length:
        word = 0
        while length > at:
            length -= 1
            word = word << 8 | key[length]
        mixed ^= word
        mixed *= <uint32_t>MIX
    mixed ^= mixed >> 13
    mixed *= <uint32_t>MIX
    return mixed ^ mixed >> 15


cdef inline uint32_t murmur2(const unsigned char *key, Py_ssize_t length) noexcept:
    """Kafka's ``Utils.murmur2``; Java's signed int has the same bits."""
    return murmur2_from(<uint32_t>SEED, key, length)


cdef inline uint32_t partition_of_hash(uint32_t hashed, uint32_t partitions) noexcept:
    # Kafka's toPositive clears the sign bit; it is not the absolute value.
    return (hashed & <uint32_t>0x7fffffff) % partitions


cdef inline uint32_t hash_of_record(const RecordHeader *header) noexcept:
    return murmur2(<const unsigned char *>header + header_bytes(header), header.key_length)
