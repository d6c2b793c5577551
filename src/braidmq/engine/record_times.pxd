from libc.stdint cimport int64_t

from braidmq.record.batch cimport RecordHeader


cdef class RecordClock:
    cdef readonly int64_t lead_ms
    cdef readonly int64_t newest_ms
    cdef public int64_t date_lead_ms

    cdef int64_t shift_of(self, const RecordHeader *header) noexcept
    cdef int64_t stamped(self, const RecordHeader *header) noexcept
    cdef int64_t due(self, const RecordHeader *header) noexcept
    cdef int64_t expires(self, const RecordHeader *header) noexcept
    cdef int64_t appeared(self, const RecordHeader *header) noexcept
    cdef int64_t expiry(self, const RecordHeader *header, int64_t ttl_ms) noexcept
