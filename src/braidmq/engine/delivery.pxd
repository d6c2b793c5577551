from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

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
    int count
    Entry entries[64]


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

    cdef Entry *find(self, int64_t offset) noexcept
    cdef Entry *make(self, int64_t offset, uint32_t size, uint8_t lane) except NULL
    cdef void remove(self, int64_t offset) noexcept
    cdef void trim(self) noexcept
    cdef OffsetBits lane_bits(self, int lane)
    cdef int move_to_lane(self, Entry *entry, int64_t offset, uint8_t lane) except -1
    cdef int pass_over(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop) except -1
    cdef int set_state(self, Entry *entry, int64_t offset, uint8_t state) except -1
    cdef void skip_ahead(self) noexcept
    cdef int admit(
        self, const RecordHeader *header, int64_t offset, int64_t now_ms, const uint8_t *lane_of
    ) except -1
