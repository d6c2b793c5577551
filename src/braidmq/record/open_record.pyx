"""A record whose value comes in pieces.

A large value would be put together first, then copied into its record and summed up, and all others
wait for that. Here each piece goes to its place when it comes.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport realloc
from libc.string cimport memset

from braidmq.record.batch cimport (
    HEADER_BYTES, TIMED, RecordBatch, RecordHeader, RecordTiming, body_bytes, header_bytes,
    record_bytes, seal_header,
)

cdef extern from "crc32c.h" nogil:
    void braid_crc32c_init()
    uint32_t braid_crc32c_copy(uint32_t crc, void *target, const void *source, size_t n)

braid_crc32c_init()


cdef class OpenRecord:
    cdef readonly RecordBatch batch
    cdef readonly Py_ssize_t filled, length
    cdef Py_ssize_t start
    cdef uint32_t crc
    cdef int64_t began_ms

    def __init__(self, RecordBatch batch not None, Py_ssize_t length):
        """``batch`` has one record, with an empty value that is to have ``length`` bytes."""
        cdef RecordHeader *header
        if batch.count != 1 or batch.exports or batch.capacity == 0:
            raise ValueError("not a batch of one record that may be changed")
        header = batch.header_at(0)
        if header.value_length:
            raise ValueError("the record has a value")
        self.batch = batch
        self.length = length
        self.start = header_bytes(header) + body_bytes(header)
        self.crc = header.body_crc
        self.began_ms = header.timestamp_ms

    @property
    def is_whole(self):
        return self.filled == self.length

    @property
    def held_bytes(self):
        """What it takes in memory."""
        return self.batch.capacity

    def fill(self, data):
        """The next piece of the value."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if view.len > self.length - self.filled:
                raise ValueError("more than the value has")
            self.make_room(view.len)
            self.crc = braid_crc32c_copy(
                self.crc, self.batch.data + self.start + self.filled, view.buf, view.len)
            self.filled += view.len
        finally:
            PyBuffer_Release(&view)

    cdef int make_room(self, Py_ssize_t more) except -1:
        """Twice what came, as much as is said to come may never do; in the end just enough."""
        cdef RecordBatch batch = self.batch
        cdef Py_ssize_t used = self.start + self.filled
        cdef Py_ssize_t wanted = min(self.start + self.length + 8, 2 * (used + more) + 8)
        cdef void *grown
        if used + more + 8 <= batch.capacity:
            return 0
        # Not `reserve`, which makes room for more records.
        grown = realloc(batch.data, wanted)
        if grown == NULL:
            raise MemoryError
        batch.data = <unsigned char *>grown
        batch.capacity = wanted
        return 0

    def seal(self, int64_t now_ms):
        """The batch, with its record as if it had been encoded now."""
        cdef RecordBatch batch = self.batch
        cdef RecordHeader *header = batch.header_at(0)
        cdef RecordTiming *timing
        cdef Py_ssize_t end = self.start + self.length
        if self.filled != self.length:
            raise ValueError("the value is not complete")
        self.make_room(0)
        header = batch.header_at(0)
        header.value_length = <uint32_t>self.length
        header.body_crc = self.crc
        header.timestamp_ms = now_ms
        if header.flags & TIMED:
            timing = <RecordTiming *>(batch.data + HEADER_BYTES)
            if timing.expires_at_ms:
                timing.expires_at_ms += now_ms - self.began_ms
        batch.size = record_bytes(header)
        memset(batch.data + end, 0, batch.size - end)
        seal_header(header)
        batch.max_timestamp_ms = now_ms
        batch.value_bytes = self.length
        batch.value_bytes_max = <uint32_t>self.length
        return batch
