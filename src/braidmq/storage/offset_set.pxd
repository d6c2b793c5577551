from libc.stdint cimport int64_t, uint16_t, uint64_t


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


cdef class OffsetSet(OffsetBits):
    cdef readonly int64_t floor

    cdef bint covers(self, int64_t offset) noexcept
