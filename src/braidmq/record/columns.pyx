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

cdef enum:
    # 32-bit Arrow offsets: a column of one batch stays below 2 GiB.
    COLUMN_BYTES_MAX = 0x7fffffff

cdef int64_t TIME_MS_MAX = 0x7fffffffffffffff // 1000


cdef bytes empty_bytes(Py_ssize_t size):
    return PyBytes_FromStringAndSize(NULL, size)


def decode_columns(
    const unsigned char[::1] data, int64_t offset_min, int64_t offset_max,
    int64_t time_min, int64_t time_max, Py_ssize_t rows_max, object keys=None,
    OffsetBits hidden=None,
):
    """Verify and decode whole records into the buffers of Arrow columns.

    Takes records whose offset is in ``[offset_min, offset_max)`` and whose timestamp is in
    ``[time_min, time_max)``, at most ``rows_max`` of them, and stops at a record that is cut off or
    whose body is in another file.
    With ``keys`` (a set of bytes) it takes those with one of these keys alone, and none whose
    offset is ``hidden``. Control records are not rows. Returns ``(bytes consumed, rows, columns)``
    with the columns' buffers in the order of ``braidmq.storage.reader.COLUMNS``.
    """
    cdef const unsigned char *base = &data[0] if data.shape[0] else NULL
    cdef Py_ssize_t size = data.shape[0], at = 0, length, rows = 0
    cdef Py_ssize_t key_total = 0, envelope_total = 0, value_total = 0
    cdef const RecordHeader *header
    cdef uint32_t *chosen
    rows_max = min(rows_max, size // HEADER_BYTES)
    chosen = <uint32_t *>malloc(max(rows_max, 1) * sizeof(uint32_t))
    if chosen == NULL:
        raise MemoryError
    try:
        while rows < rows_max:
            length = whole_record(base, at, size, True)
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
                and (hidden is None or not hidden.has(header.offset))
            ):
                chosen[rows] = <uint32_t>at
                rows += 1
                if header.flags & KEYED:
                    key_total += header.key_length
                envelope_total += header.envelope_length
                if not header.flags & TOMBSTONE:
                    value_total += header.value_length
            at += length
        return at, rows, fill_columns(
            base, chosen, rows, key_total, envelope_total, value_total)
    finally:
        free(chosen)


cdef bint has_key(const RecordHeader *header, object keys) except -1:
    cdef const unsigned char *body = <const unsigned char *>header + header_bytes(header)
    return bool(header.flags & KEYED) and body[:header.key_length] in keys


cdef inline int64_t microseconds(int64_t time_ms) noexcept:
    """As Spark and Parquet keep times; what is too far away for that is as far as they go."""
    return min(max(time_ms, -TIME_MS_MAX), TIME_MS_MAX) * 1000


cdef tuple fill_columns(
    const unsigned char *base, const uint32_t *chosen, Py_ssize_t rows,
    Py_ssize_t key_total, Py_ssize_t envelope_total, Py_ssize_t value_total,
):
    cdef bytes offsets = empty_bytes(8 * rows), times = empty_bytes(8 * rows)
    cdef bytes priorities = empty_bytes(4 * rows), flag_words = empty_bytes(4 * rows)
    cdef bytes formats = empty_bytes(rows)
    cdef bytes key_valid = bytes((rows + 7) // 8), key_ends = empty_bytes(4 * rows + 4)
    cdef bytes envelope_ends = empty_bytes(4 * rows + 4)
    cdef bytes value_valid = bytes((rows + 7) // 8), value_ends = empty_bytes(4 * rows + 4)
    cdef bytes keys = empty_bytes(key_total), envelopes = empty_bytes(envelope_total)
    cdef bytes values = empty_bytes(value_total)
    # All zeros: most records have neither of these times.
    cdef bytes expiry_valid = bytes((rows + 7) // 8), expiries = bytes(8 * rows)
    cdef bytes due_valid = bytes((rows + 7) // 8), dues = bytes(8 * rows)
    cdef uint8_t *expiry_valid_out = <uint8_t *>PyBytes_AS_STRING(expiry_valid)
    cdef uint8_t *due_valid_out = <uint8_t *>PyBytes_AS_STRING(due_valid)
    cdef int64_t *expiry_out = <int64_t *>PyBytes_AS_STRING(expiries)
    cdef int64_t *due_out = <int64_t *>PyBytes_AS_STRING(dues)
    cdef int64_t *offset_out = <int64_t *>PyBytes_AS_STRING(offsets)
    cdef int64_t *time_out = <int64_t *>PyBytes_AS_STRING(times)
    cdef int32_t *priority_out = <int32_t *>PyBytes_AS_STRING(priorities)
    cdef int32_t *flag_out = <int32_t *>PyBytes_AS_STRING(flag_words)
    cdef uint8_t *format_out = <uint8_t *>PyBytes_AS_STRING(formats)
    cdef uint8_t *key_valid_out = <uint8_t *>PyBytes_AS_STRING(key_valid)
    cdef uint8_t *value_valid_out = <uint8_t *>PyBytes_AS_STRING(value_valid)
    cdef int32_t *key_end = <int32_t *>PyBytes_AS_STRING(key_ends)
    cdef int32_t *envelope_end = <int32_t *>PyBytes_AS_STRING(envelope_ends)
    cdef int32_t *value_end = <int32_t *>PyBytes_AS_STRING(value_ends)
    cdef unsigned char *key_out = <unsigned char *>PyBytes_AS_STRING(keys)
    cdef unsigned char *envelope_out = <unsigned char *>PyBytes_AS_STRING(envelopes)
    cdef unsigned char *value_out = <unsigned char *>PyBytes_AS_STRING(values)
    cdef int32_t key_at = 0, envelope_at = 0, value_at = 0
    cdef const RecordHeader *header
    cdef const RecordTiming *timing
    cdef const unsigned char *body
    cdef Py_ssize_t i
    key_end[0] = envelope_end[0] = value_end[0] = 0
    for i in range(rows):
        header = <const RecordHeader *>(base + chosen[i])
        body = <const unsigned char *>header + header_bytes(header)
        offset_out[i] = header.offset
        time_out[i] = microseconds(header.timestamp_ms)
        priority_out[i] = header.priority
        flag_out[i] = header.flags
        format_out[i] = header.envelope_format
        if header.flags & TIMED:
            timing = <const RecordTiming *>(<const unsigned char *>header + HEADER_BYTES)
            if timing.expires_at_ms:
                expiry_valid_out[i >> 3] |= 1 << (i & 7)
                expiry_out[i] = microseconds(timing.expires_at_ms)
            if timing.due_at_ms:
                due_valid_out[i >> 3] |= 1 << (i & 7)
                due_out[i] = microseconds(timing.due_at_ms)
        if header.flags & KEYED:
            key_valid_out[i >> 3] |= 1 << (i & 7)
            memcpy(key_out + key_at, body, header.key_length)
            key_at += header.key_length
        body += header.key_length
        if header.envelope_length:
            memcpy(envelope_out + envelope_at, body, header.envelope_length)
            envelope_at += header.envelope_length
        body += header.envelope_length
        if not header.flags & TOMBSTONE:
            value_valid_out[i >> 3] |= 1 << (i & 7)
            memcpy(value_out + value_at, body, header.value_length)
            value_at += header.value_length
        key_end[i + 1] = key_at
        envelope_end[i + 1] = envelope_at
        value_end[i + 1] = value_at
    return (
        (None, offsets), (None, times), (None, priorities), (None, flag_words), (None, formats),
        (key_valid, key_ends, keys), (None, envelope_ends, envelopes),
        (value_valid, value_ends, values), (expiry_valid, expiries), (due_valid, dues),
    )
