from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from braidmq.engine.entries cimport Block, Entry, RangeList
from braidmq.engine.lane_table cimport LaneTable
from braidmq.engine.record_times cimport RecordClock
from braidmq.record.offset_set cimport OffsetBits, OffsetSet
from braidmq.record.batch cimport RecordBatch, RecordHeader


cdef class DeliveryState(LaneTable):
    cdef readonly OffsetSet settled
    cdef readonly int64_t cursor
    cdef readonly int64_t end
    cdef public int64_t ceiling  # from here on nothing is handed out
    cdef readonly int64_t fresh_bytes
    cdef OffsetBits ahead
    cdef public uint32_t nonce  # of the latest delivery

    cdef int64_t count_fresh(self) noexcept
    cdef int64_t count_ready(self) noexcept
    cdef bint first_ready(
        self, int lane, int64_t limit, int64_t ceiling, int64_t *start, int64_t *stop
    ) except -1
    cdef int pass_over(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop) except -1
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
