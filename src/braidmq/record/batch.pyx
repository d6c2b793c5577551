"""Records and batches of them. This module owns the record format.

    byte  0         4         8     9       10    11       12       13 14      16
          ┌─────────┬─────────┬─────┬───────┬─────┬────────┬────────┬──┬───────┐
          │ header  │ body    │magic│version│flags│priority│envelope│d.│key    │
          │ CRC32C  │ CRC32C  │ B4  │ 1     │     │        │format  │  │length │
          ├─────────┴─────────┼─────┴───────┴─────┴────────┼────────┴──┴───────┘
       16 │ offset            │ timestamp, ms              │
          ├─────────┬─────────┼────────────────────────────┘
       32 │envelope │ value   │
          │length   │ length  │
          ├─────────┴─────────┼────────────────────────────┐
       40 │ expires at, ms    │ due at, ms   only if TIMED │
          ├───────┬───────────┴──┬───────────┬─────────────┤
          │ key   │ envelope     │ value     │ 0–7 zeros   │
          └───────┴──────────────┴───────────┴─────────────┘

Little-endian, every record a multiple of 8 bytes. The header's CRC covers bytes 4 to the end of
the timing fields, the body's covers key, envelope and value. They are two so that a record can be
given another offset (one message in many topics, a batch moving to a segment) at the price of its
header alone.

In memory and in the journal a batch knows the offset of its first record and the offset field of
each record is only its place in the batch it was published in; in a segment it is the record's
own offset, and gaps are allowed.

The envelope is the message's properties as they came on the wire, with their format beside them.

Byte 13 says which times are dates (``DATED_DUE``, ``DATED_EXPIRY``) and not so long after the
timestamp.

In a segment a record may be a reference: version 2 and the flag SHARED, and after the timing fields

          ┌───────────────────┬────────────────────────────┐
          │ number of a body  │ position in it             │
          │ file              │                            │
          └───────────────────┴────────────────────────────┘

instead of key, envelope and value, which stand there for all who refer to them. Lengths and the
body's CRC are as they would be; the header's CRC covers the reference too. Whoever reads a log gets
whole records again (``shared_body``), and nothing but segments takes references.
"""

from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_IsContiguous
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from braidmq.record.offset_set cimport OffsetSet

from typing import NamedTuple


cdef extern from "crc32c.h" nogil:
    void braid_crc32c_init()
    uint32_t braid_crc32c(uint32_t crc, const void *data, size_t n)
    uint32_t braid_crc32c_header(const void *data, size_t n)
    uint32_t braid_crc32c_copy(uint32_t crc, void *target, const void *source, size_t n)
    int braid_crc32c_hardware

cdef extern from "record_run.h":
    ctypedef struct ValueRun "BraidRun":
        unsigned char *to
        uint32_t *positions
        uint32_t position
        uint64_t traits, offset, timestamp_ms
        const unsigned char *envelope
        size_t envelope_length
        PyObject **values
        size_t count

    size_t braid_encode_run(const ValueRun *run)
    PyObject **list_items "braid_list_items" (object values)

cdef extern from "record_scan.h":
    ctypedef struct IntactScan "BraidScan":
        const unsigned char *data
        size_t size, at
        uint32_t *positions
        size_t count, capacity
        int64_t max_timestamp_ms, value_bytes
        uint32_t value_bytes_max
        bint time_ordered
        uint8_t summary

    void braid_scan_intact(IntactScan *scan) nogil

braid_crc32c_init()

cdef bint HARDWARE = braid_crc32c_hardware != 0

HEADER_SIZE = HEADER_BYTES
FLAG_CONTROL = CONTROL
FLAG_COMMIT = COMMIT
FLAG_TRANSACTIONAL = TRANSACTIONAL
FLAG_TIMED = TIMED
FLAG_KEYED = KEYED
FLAG_TOMBSTONE = TOMBSTONE
FLAG_TRANSIENT = TRANSIENT
FLAG_SHARED = SHARED
DATED_DUE, DATED_EXPIRY = 1, 2

cdef enum:
    RESIDENT
    UNFLUSHED
    KEPT

LEDGER_RESIDENT = RESIDENT
LEDGER_UNFLUSHED = UNFLUSHED
LEDGER_KEPT = KEPT

cdef enum:
    # Positions in a batch are 32 bits wide.
    BATCH_BYTES_MAX = 0x7fffffff
    KEY_MAX = 0xffff
    # Room that a scan makes at a time for the positions of records like the one before.
    POSITIONS_AHEAD_MAX = 0x4000
    # The object itself, its slot in a list and the allocator's share.
    OBJECT_BYTES = 200


class BadRecord(ValueError):
    """Bytes that are not a whole, intact record; ``position`` says where."""

    def __init__(self, position, reason):
        super().__init__(f"byte {position}: {reason}")
        self.position = position
        self.reason = reason


class Record(NamedTuple):
    """One record as Python objects: for slow paths, tools and tests."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    envelope: bytes = b""
    envelope_format: int = 0
    flags: int = 0
    priority: int = 0
    expires_at_ms: int = 0
    due_at_ms: int = 0
    dated: int = 0


cdef inline uint64_t header_traits(
    uint8_t flags, uint8_t priority, uint8_t envelope_format, uint16_t key_length
) noexcept:
    """Bytes 8 to 16 of a header as one word."""
    return (
        MAGIC | <uint64_t>VERSION << 8 | <uint64_t>flags << 16 | <uint64_t>priority << 24
        | <uint64_t>envelope_format << 32 | <uint64_t>key_length << 48
    )


cdef void seal_header(RecordHeader *header) noexcept:
    header.header_crc = braid_crc32c_header(
        <unsigned char *>header + 4, header_bytes(header) - 4)


cdef inline bint header_is_intact(const RecordHeader *header) noexcept:
    return header.header_crc == braid_crc32c_header(
        <const unsigned char *>header + 4, header_bytes(header) - 4)


cdef inline bint body_is_intact(const RecordHeader *header) noexcept:
    return header.body_crc == braid_crc32c(
        0, <const unsigned char *>header + header_bytes(header), body_bytes(header))


cdef bint intact_but_for_timed(const RecordHeader *header) noexcept:
    """Whether a flipped bit only makes the header look longer: damage, not the end of the data."""
    cdef RecordHeader copy = header[0]
    copy.flags &= ~TIMED
    return header_is_intact(&copy)


cdef Py_ssize_t whole_record(
    const unsigned char *data, Py_ssize_t at, Py_ssize_t size, bint verify, bint verify_body=True
) except -2:
    """Bytes of the record at ``at``, or -1 when the data ends before the record does."""
    cdef const RecordHeader *header = <const RecordHeader *>(data + at)
    cdef Py_ssize_t length
    if size - at < HEADER_BYTES:
        return -1
    if header.magic != MAGIC:
        raise BadRecord(at, "not the beginning of a record")
    if header.version != VERSION:
        return whole_reference(header, at, size, verify)
    if size - at < header_bytes(header):
        if verify and intact_but_for_timed(header):
            raise BadRecord(at, "header checksum differs")
        return -1
    # The lengths are believed only once the header's own checksum has vouched for them.
    if verify and not header_is_intact(header):
        raise BadRecord(at, "header checksum differs")
    length = record_bytes(header)
    if size - at < length:
        return -1
    if verify and verify_body and not body_is_intact(header):
        raise BadRecord(at, "body checksum differs")
    return length


cdef Py_ssize_t whole_reference(
    const RecordHeader *header, Py_ssize_t at, Py_ssize_t size, bint verify
) except -2:
    """As ``whole_record``, for those whose version is another."""
    cdef unsigned char untimed[HEADER_BYTES + REFERENCE_BYTES]
    cdef Py_ssize_t length = header_bytes(header) + REFERENCE_BYTES
    if not refers(header):
        raise BadRecord(at, f"record version {header.version}, this BraidMQ reads {REFERRING}")
    if not header.flags & SHARED:
        raise BadRecord(at, "a reference that does not say so")
    if size - at >= length:
        if verify and not reference_is_intact(header):
            raise BadRecord(at, "header checksum differs")
        return length
    if verify and header.flags & TIMED and size - at >= length - TIMING_BYTES:
        memcpy(untimed, header, HEADER_BYTES + REFERENCE_BYTES)
        (<RecordHeader *>untimed).flags &= ~TIMED
        if reference_is_intact(<RecordHeader *>untimed):
            raise BadRecord(at, "header checksum differs")
    return -1


cdef bint reference_is_intact(const RecordHeader *header) noexcept:
    return header.header_crc == braid_crc32c_header(
        <const unsigned char *>header + 4, header_bytes(header) + REFERENCE_BYTES - 4)


cdef class RecordBatch:
    """``count`` encoded records end to end, with the offset of the first."""

    def __cinit__(self):
        self.data = NULL
        self.positions = NULL
        self.size = self.capacity = self.positions_capacity = self.count = 0
        self.base_offset = 0
        self.max_timestamp_ms = 0
        self.time_ordered = True
        self.summary = 0
        self.value_bytes = 0
        self.value_bytes_max = 0
        self.shared_bytes = 0
        self.dense = True
        self.owner = None
        self.exports = 0
        self.shares = 1
        self.holders[RESIDENT] = self.holders[UNFLUSHED] = self.holders[KEPT] = 0

    def __dealloc__(self):
        # A borrowed batch's memory belongs to its owner; capacity 0 says that it is borrowed.
        if self.capacity:
            free(self.data)
        if self.positions_capacity:
            free(self.positions)

    # --- the memory as bytes ---

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    def __len__(self):
        return self.count

    @property
    def first_timestamp_ms(self):
        """The lowest there is, as long as the batch is ``time_ordered``; 0 for an empty batch."""
        return self.header_at(0).timestamp_ms if self.count else 0

    @property
    def next_offset(self):
        """The offset after the last record's."""
        if self.count == 0:
            return self.base_offset
        return self.offset_of(self.count - 1) + 1

    @property
    def shared(self):
        """Whether other batches are over the same memory: it went to several partitions."""
        return self.shares > 1 or isinstance(self.owner, RecordBatch)

    @property
    def memory_bytes(self):
        """What this batch costs in memory: the object, and its share of the bytes and the index
        among the logs that hold them."""
        cdef RecordBatch whole = self.whole()
        cdef Py_ssize_t holders = max(whole.holders[RESIDENT], 1)
        return whole.weight(holders) // holders

    def hold(self, int ledger):
        """A log holds it; returns by how much all that is in the ledger grows. Twins hold their
        bytes together: all of them stay for as long as one log has one of the twins."""
        cdef RecordBatch whole = self.whole()
        cdef Py_ssize_t holders = whole.holders[ledger]
        whole.holders[ledger] = holders + 1
        return whole.weight(holders + 1) - whole.weight(holders)

    def release(self, int ledger):
        """A log no longer does; returns by how much all that is in the ledger shrinks."""
        cdef RecordBatch whole = self.whole()
        cdef Py_ssize_t holders = whole.holders[ledger]
        assert holders > 0
        whole.holders[ledger] = holders - 1
        return whole.weight(holders) - whole.weight(holders - 1)

    cdef RecordBatch whole(self):
        return <RecordBatch>self.owner if isinstance(self.owner, RecordBatch) else self

    cdef Py_ssize_t weight(self, Py_ssize_t holders) noexcept:
        """Of one that is no twin, in so many logs; each has an equal share."""
        if holders == 0:
            return 0
        return (
            (max(self.capacity, self.size) + 4 * self.count) // holders + OBJECT_BYTES
        ) * holders

    # --- building ---

    cdef int reserve(self, Py_ssize_t extra_bytes, Py_ssize_t extra_records) except -1:
        cdef Py_ssize_t wanted = self.size + extra_bytes
        cdef void *grown
        if wanted > BATCH_BYTES_MAX:
            raise OverflowError("a batch holds at most 2 GiB")
        if wanted > self.capacity:
            wanted = max(wanted, self.capacity + (self.capacity >> 1), 256)
            grown = realloc(self.data, wanted)
            if grown == NULL:
                raise MemoryError
            self.data = <unsigned char *>grown
            self.capacity = wanted
        return self.reserve_positions(extra_records)

    cdef int reserve_positions(self, Py_ssize_t extra_records) except -1:
        cdef Py_ssize_t wanted = self.count + extra_records
        cdef void *grown
        if wanted > self.positions_capacity:
            wanted = max(wanted, self.positions_capacity + (self.positions_capacity >> 1), 4)
            grown = realloc(self.positions, wanted * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError
            self.positions = <uint32_t *>grown
            self.positions_capacity = wanted
        return 0

    cdef void note(self, const RecordHeader *header, Py_ssize_t position) noexcept:
        """Take one more record, already in place, into the index and the summary."""
        self.positions[self.count] = <uint32_t>position
        self.count += 1
        self.summary |= header.flags
        if header.timestamp_ms < self.max_timestamp_ms:
            self.time_ordered = False
        else:
            self.max_timestamp_ms = header.timestamp_ms
        self.value_bytes += header.value_length
        self.value_bytes_max = max(self.value_bytes_max, header.value_length)

    cdef int put(
        self,
        const unsigned char *key, Py_ssize_t key_length,
        const unsigned char *envelope, Py_ssize_t envelope_length,
        const unsigned char *value, Py_ssize_t value_length,
        uint8_t envelope_format, uint8_t flags, uint8_t priority,
        int64_t timestamp_ms, int64_t expires_at_ms, int64_t due_at_ms,
    ) except -1:
        """Encode one record at the end of the batch."""
        cdef RecordHeader *header
        cdef uint64_t *words
        cdef RecordTiming *timing
        cdef unsigned char *body
        cdef Py_ssize_t start, length, total
        cdef uint32_t crc = 0
        if key_length > KEY_MAX:
            raise OverflowError(f"a key holds at most {KEY_MAX} bytes")
        if key != NULL:
            flags |= KEYED
        if value == NULL:
            flags |= TOMBSTONE
        if expires_at_ms or due_at_ms:
            flags |= TIMED
        start = HEADER_BYTES + (TIMING_BYTES if flags & TIMED else 0)
        length = key_length + envelope_length + value_length
        total = aligned(start + length)
        self.reserve(total, 1)
        header = <RecordHeader *>(self.data + self.size)
        # The padding's zeros go in first: the last word may be part value or timing, part padding.
        (<int64_t *>(self.data + self.size + total - 8))[0] = 0
        # In whole words: the checksum reads them back as such, and small stores could not be
        # forwarded to it.
        words = <uint64_t *>header
        words[1] = header_traits(flags, priority, envelope_format, <uint16_t>key_length)
        words[2] = self.count
        words[3] = timestamp_ms
        words[4] = <uint64_t>envelope_length | <uint64_t>value_length << 32
        if flags & TIMED:
            timing = <RecordTiming *>(self.data + self.size + HEADER_BYTES)
            timing.expires_at_ms = expires_at_ms
            timing.due_at_ms = due_at_ms
        body = self.data + self.size + start
        if key_length:
            crc = braid_crc32c_copy(crc, body, key, key_length)
            body += key_length
        if envelope_length:
            crc = braid_crc32c_copy(crc, body, envelope, envelope_length)
            body += envelope_length
        if value_length:
            crc = braid_crc32c_copy(crc, body, value, value_length)
        header.body_crc = crc
        seal_header(header)
        self.note(header, self.size)
        self.size += total
        return 0

    def append(
        self, value, *, key=None, envelope=b"", uint8_t envelope_format=0, uint8_t flags=0,
        uint8_t priority=0, int64_t timestamp_ms=0, int64_t expires_at_ms=0, int64_t due_at_ms=0,
        uint8_t dated=0,
    ):
        """Encode one record. The slow path: kernels or ``extend_values`` encode runs."""
        cdef const unsigned char[::1] key_view = None, value_view = None, envelope_view = envelope
        cdef const unsigned char *key_data = NULL
        cdef const unsigned char *value_data = NULL
        cdef const unsigned char *envelope_data = NULL
        cdef Py_ssize_t key_length = 0, value_length = 0
        if envelope_view.shape[0]:
            envelope_data = &envelope_view[0]
        if key is not None:
            key_view = key
            key_length = key_view.shape[0]
            key_data = <const unsigned char *>b"" if key_length == 0 else &key_view[0]
        if value is not None:
            value_view = value
            value_length = value_view.shape[0]
            value_data = <const unsigned char *>b"" if value_length == 0 else &value_view[0]
        self.must_be_open()
        self.put(
            key_data, key_length,
            envelope_data, envelope_view.shape[0],
            value_data, value_length,
            envelope_format, flags & ~(TIMED | KEYED | TOMBSTONE | SHARED), priority,
            timestamp_ms, expires_at_ms, due_at_ms,
        )
        if dated and (expires_at_ms or due_at_ms):
            self.header_at(self.count - 1).reserved = dated
            seal_header(self.header_at(self.count - 1))

    def extend_values(
        self, list values, int64_t timestamp_ms, list keys=None, bytes envelope not None=b"",
        uint8_t envelope_format=0, uint8_t flags=0, uint8_t priority=0,
    ):
        """Encode a run of values that share everything but their keys."""
        cdef Py_ssize_t i, count = len(values), total = 0, largest = 0, key_length
        cdef bytes value, key
        cdef const unsigned char *key_data
        self.must_be_open()
        flags &= ~(TIMED | KEYED | TOMBSTONE | SHARED)
        if keys is not None and len(keys) != count:
            raise ValueError("as many keys as values")
        for i in range(count):
            value = values[i]
            if value is None:
                raise TypeError("a value is bytes")
            total += PyBytes_GET_SIZE(value)
            largest = max(largest, PyBytes_GET_SIZE(value))
        self.reserve(total + count * (HEADER_BYTES + 8 + PyBytes_GET_SIZE(envelope)), count)
        if keys is None and HARDWARE:
            self.put_run(values, total, largest, envelope, envelope_format, flags, priority,
                         timestamp_ms)
            return
        for i in range(count):
            value = values[i]
            key_data = NULL
            key_length = 0
            if keys is not None:
                key = keys[i]
                if key is not None:
                    key_data = <const unsigned char *>PyBytes_AS_STRING(key)
                    key_length = PyBytes_GET_SIZE(key)
            self.put(
                key_data, key_length,
                <const unsigned char *>PyBytes_AS_STRING(envelope), PyBytes_GET_SIZE(envelope),
                <const unsigned char *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value),
                envelope_format, flags, priority, timestamp_ms, 0, 0,
            )

    cdef int put_run(
        self, list values, int64_t value_bytes, uint32_t value_bytes_max, bytes envelope,
        uint8_t envelope_format, uint8_t flags, uint8_t priority, int64_t timestamp_ms,
    ) except -1:
        """Encode values without keys, for which there is room, at the end of the batch."""
        cdef ValueRun run
        cdef Py_ssize_t count = len(values)
        if count == 0:
            return 0
        run.to = self.data + self.size
        run.positions = self.positions + self.count
        run.position = <uint32_t>self.size
        run.traits = header_traits(flags, priority, envelope_format, 0)
        run.offset = self.count
        run.timestamp_ms = timestamp_ms
        run.envelope = <const unsigned char *>PyBytes_AS_STRING(envelope)
        run.envelope_length = PyBytes_GET_SIZE(envelope)
        run.values = list_items(values)
        run.count = count
        self.size += braid_encode_run(&run)
        self.count += count
        self.summary |= flags
        self.max_timestamp_ms = max(self.max_timestamp_ms, timestamp_ms)
        self.value_bytes += value_bytes
        self.value_bytes_max = max(self.value_bytes_max, value_bytes_max)
        return 0

    def must_be_open(self):
        """A batch grows only while nobody looks at its memory and it is its own."""
        if self.exports or self.shares > 1:
            raise BufferError("the batch's memory is in use elsewhere")
        if self.owner is not None:
            raise BufferError("the batch is a view of other memory")

    def can_absorb(self, RecordBatch other):
        """Whether ``other``, which follows in offset, may be copied to this batch's end."""
        return (
            self.dense and other.dense and self.exports == 0 and self.shares == 1
            and other.shares == 1 and self.capacity > 0
            and self.base_offset + self.count == other.base_offset
        )

    def absorb(self, RecordBatch other):
        """Copy the records of ``other`` to the end: many small batches become one."""
        cdef Py_ssize_t i
        assert self.can_absorb(other)
        self.reserve(other.size, other.count)
        memcpy(self.data + self.size, other.data, other.size)
        for i in range(other.count):
            self.positions[self.count + i] = <uint32_t>(self.size + other.positions[i])
        self.size += other.size
        self.count += other.count
        self.summary |= other.summary
        self.time_ordered = (
            self.time_ordered and other.time_ordered
            and (other.count == 0 or other.header_at(0).timestamp_ms >= self.max_timestamp_ms)
        )
        self.max_timestamp_ms = max(self.max_timestamp_ms, other.max_timestamp_ms)
        self.value_bytes += other.value_bytes
        self.value_bytes_max = max(self.value_bytes_max, other.value_bytes_max)

    def at_offset(self, int64_t base_offset):
        """This batch with another first offset, over the same memory: one body, many topics."""
        cdef RecordBatch twin = RecordBatch.__new__(RecordBatch)
        assert self.dense and not isinstance(self.owner, RecordBatch)
        twin.owner = self
        # Growing would move the memory under the twin.
        self.shares += 1
        twin.data = self.data
        twin.size = self.size
        twin.positions = self.positions
        twin.count = self.count
        twin.base_offset = base_offset
        twin.max_timestamp_ms = self.max_timestamp_ms
        twin.time_ordered = self.time_ordered
        twin.summary = self.summary
        twin.value_bytes = self.value_bytes
        twin.value_bytes_max = self.value_bytes_max
        return twin

    def place(self, int64_t base_offset):
        """Give a freshly built batch its first offset."""
        assert self.dense
        self.base_offset = base_offset

    # --- reading ---

    @staticmethod
    def scan(data, *, int64_t base_offset=-1, bint verify=True):
        """The batch of whole records at the beginning of ``data``, over the same memory.

        With a ``base_offset`` the records are dense from it (journal, memory); without, each
        record's own offset counts (segments). A record that is cut off ends the scan; one that is
        damaged raises ``BadRecord``. ``size`` tells how far the scan came.
        """
        cdef RecordBatch batch = RecordBatch.__new__(RecordBatch)
        cdef Py_buffer *view
        cdef Py_ssize_t at = 0, length
        # The view holds the memory in place for as long as the batch lives.
        batch.owner = memoryview(data)
        view = PyMemoryView_GET_BUFFER(batch.owner)
        if not PyBuffer_IsContiguous(view, c'C'):
            raise BufferError("records need contiguous memory")
        batch.data = <unsigned char *>view.buf
        batch.dense = base_offset >= 0
        batch.base_offset = max(base_offset, 0)
        while True:
            length = whole_record(batch.data, at, view.len, verify)
            if length < 0:
                break
            if at + length > BATCH_BYTES_MAX:
                raise OverflowError("a batch holds at most 2 GiB")
            batch.reserve_positions(1)
            batch.note(<RecordHeader *>(batch.data + at), at)
            at += length
            if verify and HARDWARE:
                batch.reserve_positions(min((view.len - at) // length, POSITIONS_AHEAD_MAX))
                at = batch.take_intact(at, min(view.len, BATCH_BYTES_MAX))
        batch.size = at
        if batch.summary & SHARED:
            batch.note_references()
        if batch.count and not batch.dense:
            batch.base_offset = batch.header_at(0).offset
        return batch

    cdef Py_ssize_t take_intact(self, Py_ssize_t at, Py_ssize_t size) noexcept:
        """Note records from ``at`` on, as many as are whole and intact but for the last few;
        returns where they end."""
        cdef IntactScan scan = IntactScan(
            data=self.data, size=size, at=at, positions=self.positions, count=self.count,
            capacity=self.positions_capacity, max_timestamp_ms=self.max_timestamp_ms,
            value_bytes=self.value_bytes, value_bytes_max=self.value_bytes_max,
            time_ordered=self.time_ordered, summary=self.summary)
        braid_scan_intact(&scan)
        self.count = scan.count
        self.max_timestamp_ms = scan.max_timestamp_ms
        self.time_ordered = scan.time_ordered
        self.summary = scan.summary
        self.value_bytes = scan.value_bytes
        self.value_bytes_max = scan.value_bytes_max
        return scan.at

    cdef int note_references(self) except -1:
        cdef Py_ssize_t i
        for i in range(self.count):
            if not refers(self.header_at(i)):
                continue
            if self.dense:
                raise BadRecord(self.positions[i], "only a segment has references to bodies")
            self.shared_bytes += record_bytes(self.header_at(i)) - stored_bytes(self.header_at(i))
        return 0

    cdef int64_t offset_of(self, Py_ssize_t index) noexcept:
        if self.dense:
            return self.base_offset + index
        return self.header_at(index).offset

    cdef Py_ssize_t index_of(self, int64_t offset) noexcept:
        """Index of the first record at or after ``offset``; ``count`` when there is none."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        if self.dense:
            return min(max(offset - self.base_offset, 0), self.count)
        while low < high:
            middle = (low + high) >> 1
            if self.header_at(middle).offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, int64_t offset):
        """Index of the first record at or after ``offset``; ``count`` when there is none."""
        return self.index_of(offset)

    def find_time(self, int64_t timestamp_ms, Py_ssize_t first=0):
        """Index of the first record from ``first`` on that is stamped at or after a time; ``count``
        for none."""
        cdef Py_ssize_t i
        for i in range(max(first, 0), self.count):
            if self.header_at(i).timestamp_ms >= timestamp_ms:
                return i
        return self.count

    def find_time_end(self, int64_t timestamp_ms):
        """Index after the last record stamped before ``timestamp_ms``; 0 for none."""
        cdef Py_ssize_t i
        for i in range(self.count - 1, -1, -1):
            if self.header_at(i).timestamp_ms < timestamp_ms:
                return i + 1
        return 0

    cdef bint is_even(self) noexcept:
        """Whether all values are of one size."""
        return self.value_bytes == self.count * <int64_t>self.value_bytes_max

    cdef int64_t value_bytes_of(self, Py_ssize_t first, Py_ssize_t stop) noexcept:
        cdef int64_t total = 0
        cdef Py_ssize_t i
        if self.is_even():
            return max(stop - first, 0) * <int64_t>self.value_bytes_max
        if first == 0 and stop == self.count:
            return self.value_bytes
        for i in range(first, stop):
            total += self.header_at(i).value_length
        return total

    def value_bytes_between(self, Py_ssize_t first, Py_ssize_t stop):
        """Bytes of the values of records ``first`` … ``stop - 1``."""
        return self.value_bytes_of(max(first, 0), min(stop, self.count))

    def reach(self, Py_ssize_t first, Py_ssize_t stop, int64_t value_bytes):
        """The index behind as few records from ``first`` on as have ``value_bytes`` bytes of values
        together; ``stop`` when those before it have fewer."""
        stop = min(stop, self.count)
        if self.value_bytes_max and self.is_even() and value_bytes > 0:
            return min(first + (value_bytes - 1) // self.value_bytes_max + 1, stop)
        while first < stop and value_bytes > 0:
            value_bytes -= self.header_at(first).value_length
            first += 1
        return first

    def offset_at(self, Py_ssize_t index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.offset_of(index)

    def position_at(self, Py_ssize_t index):
        """Byte position of record ``index``; of the end for ``count``."""
        if not 0 <= index <= self.count:
            raise IndexError(index)
        return self.size if index == self.count else self.positions[index]

    def slice(self, int64_t start, int64_t stop):
        """The bytes of the records with offsets ``start`` … ``stop - 1``, without a copy."""
        cdef Py_ssize_t first = self.position_at(self.index_of(start))
        cdef Py_ssize_t after = self.position_at(self.index_of(stop))
        return memoryview(self)[first:max(first, after)]

    def record(self, Py_ssize_t index):
        """Record ``index`` as Python objects."""
        cdef const RecordHeader *header
        cdef const RecordTiming *timing
        cdef const unsigned char *body
        if not 0 <= index < self.count:
            raise IndexError(index)
        header = self.header_at(index)
        if refers(header):
            raise BufferError("the record's body is in another file")
        body = <const unsigned char *>header + header_bytes(header)
        timing = <const RecordTiming *>(<const unsigned char *>header + HEADER_BYTES)
        key = body[:header.key_length] if header.flags & KEYED else None
        body += header.key_length
        envelope = body[:header.envelope_length]
        body += header.envelope_length
        return Record(
            self.offset_of(index), header.timestamp_ms, key,
            None if header.flags & TOMBSTONE else body[:header.value_length],
            envelope, header.envelope_format, header.flags, header.priority,
            timing.expires_at_ms if header.flags & TIMED else 0,
            timing.due_at_ms if header.flags & TIMED else 0,
            header.reserved if header.flags & TIMED else 0,
        )

    def records(self):
        return [self.record(i) for i in range(self.count)]

    def verify(self):
        """Check every checksum; raises ``BadRecord`` at the first that differs."""
        cdef Py_ssize_t i
        for i in range(self.count):
            if whole_record(self.data, self.positions[i], self.size, True) < 0:
                raise BadRecord(self.positions[i], "header checksum differs")

    def index_points(
        self, Py_ssize_t position, Py_ssize_t interval, Py_ssize_t since, int64_t time
    ):
        """Entries for a sparse index, of records that will stand at ``position`` in their file.

        A record gets an entry when ``interval`` bytes have passed since the last one, which stood
        at ``since`` (-1: none yet). Each entry is ``(offset, position, highest timestamp before)``;
        ``time`` is the highest timestamp before this batch.
        """
        cdef list points = []
        cdef Py_ssize_t i, at
        for i in range(self.count):
            at = position + self.positions[i]
            if since < 0 or at - since >= interval:
                points.append((self.offset_of(i), at, time))
                since = at
            time = max(time, self.header_at(i).timestamp_ms)
        return points

    def stamped(self, tuple acknowledged=(), int64_t start=0):
        """The records as a segment stores them: own offsets, and only those still wanted.

        Records below ``start`` and those that every set in ``acknowledged`` covers are left out.
        Returns the bytes and how many records they hold.
        """
        cdef Py_ssize_t i, length, at = 0, kept = 0
        cdef int64_t offset
        cdef RecordHeader *header
        cdef bytes out = PyBytes_FromStringAndSize(NULL, self.size)
        cdef unsigned char *target = <unsigned char *>PyBytes_AS_STRING(out)
        for i in range(self.count):
            offset = self.offset_of(i)
            if not is_wanted(offset, acknowledged, start):
                continue
            length = record_bytes(self.header_at(i))
            memcpy(target + at, self.header_at(i), length)
            header = <RecordHeader *>(target + at)
            header.offset = offset
            seal_header(header)
            at += length
            kept += 1
        return (out if at == self.size else out[:at]), kept


cdef bint is_wanted(int64_t offset, tuple acknowledged, int64_t start):
    """Whether a record is to be in a segment; see ``RecordBatch.stamped``."""
    cdef OffsetSet one
    if offset < start:
        return False
    for one in acknowledged:
        if not one.covers(offset):
            return True
    return not acknowledged
