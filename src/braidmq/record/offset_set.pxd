from libc.stdint cimport int64_t, uint16_t, uint64_t

cdef extern from *:
    """
    static inline int braid_ctz(unsigned long long word) { return __builtin_ctzll(word); }
    static inline int braid_popcount(unsigned long long word) {
        return __builtin_popcountll(word);
    }
    """
    int braid_ctz(uint64_t word) noexcept nogil
    int braid_popcount(uint64_t word) noexcept nogil


cdef inline uint64_t mask_between(int low, int high) noexcept:
    """Bits low … high-1 of one word; 0 <= low < high <= 64."""
    cdef uint64_t mask = ~(<uint64_t>0) << low
    if high < 64:
        mask &= ((<uint64_t>1) << high) - 1
    return mask


cdef struct Block:
    uint16_t count
    uint64_t words[64]


cdef class OffsetBits:
    cdef Block **directory
    cdef Py_ssize_t capacity
    cdef Py_ssize_t used
    cdef int64_t first_block
    cdef readonly int64_t size

    cdef void release(self) noexcept
    cdef Block *block_at(self, int64_t number) noexcept
    cdef int reserve(self, int64_t number) except -1
    cdef int64_t change(self, int64_t start, int64_t stop, bint present) except -1
    cdef int64_t change_in_block(
        self, int64_t number, int low, int high, bint present
    ) except -1
    cdef void trim(self) noexcept
    cdef bint has(self, int64_t offset) noexcept
    cdef int64_t scan(self, int64_t offset, bint present) noexcept
    cdef int64_t count_between(self, int64_t start, int64_t stop) noexcept
    cdef int unite_block(self, int64_t number, Block *other) except -1


cdef class OffsetSet(OffsetBits):
    cdef readonly int64_t floor

    cdef bint covers(self, int64_t offset) noexcept
    cdef uint64_t word_at(self, int64_t number, int i) noexcept
    cdef bint is_empty_at(self, int64_t number) noexcept
