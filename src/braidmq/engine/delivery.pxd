from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from braidmq.storage.offset_set cimport OffsetBits, OffsetSet
from braidmq.storage.record cimport RecordBatch, RecordHeader


cdef struct Entry:
    int64_t deadline_ms     # in flight: visibility; waiting: back-off; delayed: due
    uint32_t consumer
    uint32_t size           # bytes of the value, so that settling needs no look at the record
    uint32_t nonce          # of this delivery: a receipt must name it
    uint16_t attempts       # deliveries so far
    uint8_t state
    uint8_t lane


cdef struct Block:
    uint64_t present        # which of its 64 offsets have an entry
    Entry common            # the entry of them all, while there is none for each
    Entry *entries          # NULL: they are alike
    uint32_t *sizes         # of each, where they are alike but for that


cdef class RangeList:
    cdef list ranges
    cdef int64_t start, stop
    cdef readonly int64_t count
    cdef readonly int64_t size

    cdef int add(self, int64_t start, int64_t stop, int64_t size) except -1
    cdef int add_mask(self, int64_t base, uint64_t mask, int64_t size) except -1
    cdef int close(self) except -1
    cdef tuple result(self)


cdef class DeliveryState:
    cdef readonly OffsetSet settled
    cdef readonly int64_t cursor
    cdef readonly int64_t end
    cdef readonly int64_t fresh_bytes
    cdef readonly list lanes
    cdef OffsetBits ahead
    cdef Block **directory
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity
    cdef Py_ssize_t head    # the first block that is there
    cdef int64_t first_block
    cdef int64_t counts[8]
    cdef int64_t sizes[8]
    cdef public uint32_t nonce  # of the latest delivery

    cdef Block *block_at(self, int64_t number) noexcept
    cdef Block *make_block(self, int64_t number) except NULL
    cdef void drop_block(self, int64_t number) noexcept
    cdef const Entry *peek(self, int64_t offset) noexcept
    cdef Entry *find(self, int64_t offset) except? NULL
    cdef Entry *make(self, int64_t offset, uint32_t size, uint8_t lane) except NULL
    cdef void remove(self, int64_t offset) noexcept
    cdef void trim(self) noexcept
    cdef OffsetBits lane_bits(self, int lane)
    cdef int change_lane(self, int lane, int64_t base, uint64_t mask, bint ready) except -1
    cdef int move_to_lane(self, int64_t offset, uint8_t lane) except -1
    cdef int pass_over(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop) except -1
    cdef int set_state(self, Entry *entry, int64_t offset, uint8_t state) except -1
    cdef int move_alike(self, Block *block, int64_t number, uint64_t mask, uint8_t state) except -1
    cdef int apply_in(
        self, Block *block, int64_t number, uint64_t mask, int event, uint32_t consumer,
        int64_t deadline_ms, int64_t not_after_ms, RangeList changed,
    ) except -1
    cdef int deliver_fresh(
        self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, const Entry *delivered
    ) except -1
    cdef int deliver_again(
        self, int64_t offset, Py_ssize_t count, const Entry *delivered
    ) except -1
    cdef void skip_ahead(self) noexcept
    cdef int admit(
        self, const RecordHeader *header, int64_t offset, int64_t now_ms, const uint8_t *lane_of
    ) except -1
