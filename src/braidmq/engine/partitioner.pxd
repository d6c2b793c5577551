from libc.stdint cimport uint16_t, uint32_t, uint64_t


cdef inline uint16_t slot_of_hash(uint32_t hashed, uint32_t slots) noexcept:
    # From the high bits: the low ones already chose the partition, so a remainder here would
    # leave most slots of a partition empty whenever both counts share a factor.
    return <uint16_t>(<uint64_t>hashed * slots >> 32)
