"""Records as the buffers of Arrow columns."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from braidmq.record.offset_set cimport OffsetBits
from braidmq.record.batch cimport (
    CONTROL, HEADER_BYTES, KEYED, TIMED, TOMBSTONE, RecordHeader, RecordTiming, header_bytes,
    refers, whole_record,
)
from braidmq.record.key_hash cimport hash_of_record

cdef enum:
    # 32-bit Arrow offsets: a column of one batch stays below 2 GiB.
    COLUMN_BYTES_MAX = 0x7fffffff

cdef enum:
    # In the order of the columns.
    OFFSET = 1
    TIMESTAMP = 2
    PRIORITY = 4
    FLAGS = 8
    FORMAT = 16
    KEY = 32
    ENVELOPE = 64
    VALUE = 128
    EXPIRY = 256
    DUE = 512
    # A body has one checksum for all of it.
    BODY = KEY | ENVELOPE | VALUE

EVERY_COLUMN = 1023

cdef int64_t TIME_MS_MAX = 0x7fffffffffffffff // 1000


cdef bytes empty_bytes(Py_ssize_t size):
    return PyBytes_FromStringAndSize(NULL, size)


def decode_columns(
    const unsigned char[::1] data, int64_t offset_min, int64_t offset_max,
    int64_t time_min, int64_t time_max, Py_ssize_t rows_max, object keys=None,
    OffsetBits hidden=None, int wanted=EVERY_COLUMN, uint32_t share=0, uint32_t shares=1,
):
    """Verify and decode whole records into the buffers of Arrow columns.

    Takes records whose offset is in ``[offset_min, offset_max)`` and whose timestamp is in
    ``[time_min, time_max)``, at most ``rows_max`` of them, and stops at a record that is cut off or
    whose body is in another file.
    With ``keys`` (a set of bytes) it takes those with one of these keys alone, and none whose
    offset is ``hidden``. Control records are not rows. Returns ``(bytes consumed, rows, columns)``
    with the columns' buffers in the order of ``braidmq.storage.reader.COLUMNS``: None for those
    whose bit is not set in ``wanted``, the first's being the lowest. Bodies that nothing is taken
    of are not looked at, so their checksums are not either.
    Of ``shares`` it takes one: who reads another has other keys, and the rest of what has none.
    """
    cdef const unsigned char *base = &data[0] if data.shape[0] else NULL
    cdef Py_ssize_t size = data.shape[0], at = 0, length, rows = 0
    cdef Py_ssize_t key_total = 0, envelope_total = 0, value_total = 0
    cdef const RecordHeader *header
    cdef uint32_t *chosen
    cdef bint bodies = wanted & BODY != 0 or keys is not None or shares > 1
    if share >= shares:
        raise ValueError(f"there is no share {share} of {shares}")
    rows_max = min(rows_max, size // HEADER_BYTES)
    chosen = <uint32_t *>malloc(max(rows_max, 1) * sizeof(uint32_t))
    if chosen == NULL:
        raise MemoryError
    try:
        while rows < rows_max:
            length = whole_record(base, at, size, True, bodies)
            if length < 0 or key_total + envelope_total + value_total + length > COLUMN_BYTES_MAX:
                break
            header = <const RecordHeader *>(base + at)
            if refers(header):
                break
            if (
                offset_min <= header.offset < offset_max
                and time_min <= header.timestamp_ms < time_max
                and not header.flags & CONTROL
                and (keys is None or has_key(header, keys))
                and (shares == 1 or share_of(header, shares) == share)
                and (hidden is None or not hidden.has(header.offset))
            ):
                chosen[rows] = <uint32_t>at
                rows += 1
                if wanted & KEY and header.flags & KEYED:
                    key_total += header.key_length
                if wanted & ENVELOPE:
                    envelope_total += header.envelope_length
                if wanted & VALUE and not header.flags & TOMBSTONE:
                    value_total += header.value_length
            at += length
        return at, rows, fill_columns(
            base, chosen, rows, wanted, key_total, envelope_total, value_total)
    finally:
        free(chosen)


cdef bint has_key(const RecordHeader *header, object keys) except -1:
    cdef const unsigned char *body = <const unsigned char *>header + header_bytes(header)
    return bool(header.flags & KEYED) and body[:header.key_length] in keys


cdef inline uint32_t share_of(const RecordHeader *header, uint32_t shares) noexcept:
    # Mixed again: of one partition all keys have the same rest, when divided as partitions are.
    cdef uint32_t hashed = (
        hash_of_record(header) if header.flags & KEYED else <uint32_t>header.offset)
    return (hashed * <uint32_t>0x9e3779b1 >> 8) % shares


cdef inline int64_t microseconds(int64_t time_ms) noexcept:
    """As Spark and Parquet keep times; what is too far away for that is as far as they go."""
    return min(max(time_ms, -TIME_MS_MAX), TIME_MS_MAX) * 1000


cdef class Bodies:
    """A column of keys, envelopes or values under way; not ``wanted`` it has no memory."""

    cdef bytes valid
    cdef bytes ends
    cdef bytes data
    cdef uint8_t *valid_out
    cdef int32_t *end
    cdef unsigned char *out
    cdef int32_t at

    def __cinit__(self, Py_ssize_t rows, Py_ssize_t total, bint wanted):
        self.end = NULL
        self.at = 0
        if wanted:
            self.valid, self.ends = bytes((rows + 7) // 8), empty_bytes(4 * rows + 4)
            self.data = empty_bytes(total)
            self.valid_out = <uint8_t *>PyBytes_AS_STRING(self.valid)
            self.end = <int32_t *>PyBytes_AS_STRING(self.ends)
            self.out = <unsigned char *>PyBytes_AS_STRING(self.data)
            self.end[0] = 0

    cdef inline void put(
        self, Py_ssize_t row, bint valid, const unsigned char *body, uint32_t length
    ) noexcept:
        if valid:
            self.valid_out[row >> 3] |= 1 << (row & 7)
            memcpy(self.out + self.at, body, length)
            self.at += <int32_t>length
        self.end[row + 1] = self.at


cdef tuple fill_columns(
    const unsigned char *base, const uint32_t *chosen, Py_ssize_t rows, int wanted,
    Py_ssize_t key_total, Py_ssize_t envelope_total, Py_ssize_t value_total,
):
    """One pass over the records: they are more than a processor keeps at hand."""
    cdef bytes offsets, times, priorities, flag_words, formats
    cdef bytes expiry_valid, expiries, due_valid, dues
    cdef int64_t *offset_out = NULL
    cdef int64_t *time_out = NULL
    cdef int32_t *priority_out = NULL
    cdef int32_t *flag_out = NULL
    cdef uint8_t *format_out = NULL
    cdef uint8_t *expiry_valid_out = NULL
    cdef uint8_t *due_valid_out = NULL
    cdef int64_t *expiry_out = NULL
    cdef int64_t *due_out = NULL
    cdef Bodies keys = Bodies(rows, key_total, wanted & KEY)
    cdef Bodies envelopes = Bodies(rows, envelope_total, wanted & ENVELOPE)
    cdef Bodies values = Bodies(rows, value_total, wanted & VALUE)
    cdef const RecordHeader *header
    cdef const RecordTiming *timing
    cdef const unsigned char *body
    cdef Py_ssize_t i
    if wanted & OFFSET:
        offsets = empty_bytes(8 * rows)
        offset_out = <int64_t *>PyBytes_AS_STRING(offsets)
    if wanted & TIMESTAMP:
        times = empty_bytes(8 * rows)
        time_out = <int64_t *>PyBytes_AS_STRING(times)
    if wanted & PRIORITY:
        priorities = empty_bytes(4 * rows)
        priority_out = <int32_t *>PyBytes_AS_STRING(priorities)
    if wanted & FLAGS:
        flag_words = empty_bytes(4 * rows)
        flag_out = <int32_t *>PyBytes_AS_STRING(flag_words)
    if wanted & FORMAT:
        formats = empty_bytes(rows)
        format_out = <uint8_t *>PyBytes_AS_STRING(formats)
    # All zeros: most records have neither of these times.
    if wanted & EXPIRY:
        expiry_valid, expiries = bytes((rows + 7) // 8), bytes(8 * rows)
        expiry_valid_out = <uint8_t *>PyBytes_AS_STRING(expiry_valid)
        expiry_out = <int64_t *>PyBytes_AS_STRING(expiries)
    if wanted & DUE:
        due_valid, dues = bytes((rows + 7) // 8), bytes(8 * rows)
        due_valid_out = <uint8_t *>PyBytes_AS_STRING(due_valid)
        due_out = <int64_t *>PyBytes_AS_STRING(dues)
    for i in range(rows):
        header = <const RecordHeader *>(base + chosen[i])
        if offset_out != NULL:
            offset_out[i] = header.offset
        if time_out != NULL:
            time_out[i] = microseconds(header.timestamp_ms)
        if priority_out != NULL:
            priority_out[i] = header.priority
        if flag_out != NULL:
            flag_out[i] = header.flags
        if format_out != NULL:
            format_out[i] = header.envelope_format
        if header.flags & TIMED:
            timing = <const RecordTiming *>(<const unsigned char *>header + HEADER_BYTES)
            if expiry_out != NULL and timing.expires_at_ms:
                expiry_valid_out[i >> 3] |= 1 << (i & 7)
                expiry_out[i] = microseconds(timing.expires_at_ms)
            if due_out != NULL and timing.due_at_ms:
                due_valid_out[i >> 3] |= 1 << (i & 7)
                due_out[i] = microseconds(timing.due_at_ms)
        body = <const unsigned char *>header + header_bytes(header)
        if keys.end != NULL:
            keys.put(i, header.flags & KEYED != 0, body, header.key_length)
        body += header.key_length
        if envelopes.end != NULL:
            envelopes.put(i, True, body, header.envelope_length)
        body += header.envelope_length
        if values.end != NULL:
            values.put(i, not header.flags & TOMBSTONE, body, header.value_length)
    return (
        (None, offsets) if wanted & OFFSET else None,
        (None, times) if wanted & TIMESTAMP else None,
        (None, priorities) if wanted & PRIORITY else None,
        (None, flag_words) if wanted & FLAGS else None,
        (None, formats) if wanted & FORMAT else None,
        (keys.valid, keys.ends, keys.data) if wanted & KEY else None,
        (None, envelopes.ends, envelopes.data) if wanted & ENVELOPE else None,
        (values.valid, values.ends, values.data) if wanted & VALUE else None,
        (expiry_valid, expiries) if wanted & EXPIRY else None,
        (due_valid, dues) if wanted & DUE else None,
    )
