from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from braidmq.record.offset_set cimport OffsetBits


cdef struct Link:
    int64_t next            # of the same key; -1: none
    uint32_t hash           # of the key
    uint8_t lane


cdef struct Links:
    uint64_t chained        # which of its 64 offsets have a link
    uint64_t live           # which of those are ready; another one leaves when it is reached
    uint64_t unkeyed        # which of those stand alone
    Link links[64]


cdef struct Chain:
    int64_t first
    int64_t last
    uint32_t hash
    bint used


cdef class KeyQueues:
    cdef readonly OffsetBits unread
    cdef list firsts
    cdef Links **directory
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity
    cdef Py_ssize_t head    # the first block that is there
    cdef int64_t first_block
    cdef Chain *chains
    cdef Py_ssize_t slots
    cdef Py_ssize_t count
    cdef int64_t hint
    cdef int64_t next_offset
    cdef int next_lane

    cdef int ready(self, int64_t start, int64_t stop) except -1
    cdef int left(self, int64_t start, int64_t stop) except -1
    cdef int enter(self, int64_t offset, uint8_t lane, uint32_t hashed, bint keyed) except -1
    cdef int enter_chain(self, int64_t offset, Link *link) except -1
    cdef int leave(self, int64_t offset) except -1
    cdef int show(self, int64_t offset, uint8_t lane, bint first) except -1
    cdef Links *links_at(self, int64_t number) noexcept
    cdef Link *link_at(self, int64_t offset) noexcept
    cdef bint is_live(self, int64_t offset) noexcept
    cdef void unlink(self, int64_t offset) noexcept
    cdef Py_ssize_t slot_of(self, uint32_t hashed) noexcept
    cdef int resize(self, Py_ssize_t slots) except -1
    cdef int forget_chain(self, Py_ssize_t slot) except -1
