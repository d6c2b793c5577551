from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from braidmq.engine.entries cimport Block, Entry, EntryTable, RangeList
from braidmq.engine.record_times cimport RecordClock
from braidmq.record.offset_set cimport OffsetBits, OffsetSet
from braidmq.record.batch cimport RecordBatch, RecordHeader


cdef class DeliveryState(EntryTable):
    cdef readonly OffsetSet settled
    cdef readonly int64_t cursor
    cdef readonly int64_t end
    cdef readonly int64_t fresh_bytes
    cdef readonly list lanes
    cdef OffsetBits ahead
    cdef int64_t counts[8]
    cdef int64_t sizes[8]
    cdef public uint32_t nonce  # of the latest delivery

    cdef int64_t count_ready(self) noexcept
    cdef bint first_ready(self, int lane, int64_t limit, int64_t *start, int64_t *stop) except -1
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
    cdef bint is_all_fresh(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop) noexcept
    cdef int admit(
        self, const RecordHeader *header, int64_t offset, int64_t now_ms, const uint8_t *lane_of,
        RecordClock clock,
    ) except -1
