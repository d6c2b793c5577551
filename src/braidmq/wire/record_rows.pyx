"""Rows of Arrow columns as records, and records from outside: what bulk publishers send.

The other way round than ``header_columns``: a publisher encodes its columns here into a batch as
the log stores it, and the node that gets the bytes checks here all that ``RecordBatch.scan`` does
not.
"""

from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from braidmq.record.batch cimport (
    COMMIT,
    CONTROL,
    TIMED,
    TRANSACTIONAL,
    RecordBatch,
    RecordHeader,
    RecordTiming,
    header_bytes,
    seal_header,
)
from braidmq.wire.amqp.parts cimport DELIVERY_MODE, EXPIRATION, USER_ID, Parts, take_apart
from braidmq.wire.envelope_faults cimport fault_in_mqtt, fault_in_native
from braidmq.wire.mqtt.fields cimport be16
from braidmq.wire.utf8 cimport is_utf8

cdef enum:
    DATED_DUE = 1
    DATED_EXPIRY = 2


from braidmq.record.batch import BadRecord

cdef enum:
    NATIVE = 0
    AMQP = 1
    MQTT = 2
    # A content header is one frame, of at most 128 KiB and without what is around and before them.
    PROPERTIES_BYTES_MAX = 131_072 - 8 - 12
    EXPIRATION_DIGITS_MAX = 15
    HEADERS_MAX = 0xffff
    NAME_BYTES_MAX = 0xffff

cdef int64_t TIME_MS_MAX = 0x7fffffffffffffff // 1000


cdef class Column:
    """An Arrow array: its buffers, and at which of their elements it begins."""

    cdef const uint8_t *valid
    cdef const unsigned char *second
    cdef const unsigned char *third
    cdef Py_ssize_t first
    cdef list held

    def __cinit__(self, tuple buffers, Py_ssize_t first):
        self.held = []
        self.first = first
        self.valid = <const uint8_t *>self.memory(buffers[0])
        self.second = self.memory(buffers[1])
        self.third = self.memory(buffers[2]) if len(buffers) > 2 else NULL

    cdef const unsigned char *memory(self, buffer) except? NULL:
        if buffer is None:
            return NULL
        view = memoryview(buffer)
        self.held.append(view)
        return <const unsigned char *>PyMemoryView_GET_BUFFER(view).buf

    cdef inline bint is_null(self, Py_ssize_t row) noexcept:
        cdef Py_ssize_t at = self.first + row
        return self.valid != NULL and not (self.valid[at >> 3] >> (at & 7)) & 1

    cdef inline int32_t start(self, Py_ssize_t row) noexcept:
        return (<const int32_t *>self.second)[self.first + row]

    cdef inline Py_ssize_t length(self, Py_ssize_t row) noexcept:
        return self.start(row + 1) - self.start(row)

    cdef inline const unsigned char *data(self, Py_ssize_t row) noexcept:
        """Never NULL: that would mean that there is nothing."""
        return <const unsigned char *>b"" if self.third == NULL else self.third + self.start(row)

    cdef inline int64_t number(self, Py_ssize_t row) noexcept:
        return (<const int64_t *>self.second)[self.first + row]


cdef class Envelope:
    """Native headers of one row after the other, in the same memory."""

    cdef unsigned char *data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.data)

    cdef int grow(self, Py_ssize_t length) except -1:
        cdef Py_ssize_t wanted = self.size + length
        cdef void *grown
        if wanted > self.capacity:
            wanted = max(wanted, self.capacity * 2, 1024)
            grown = realloc(self.data, wanted)
            if grown == NULL:
                raise MemoryError
            self.data = <unsigned char *>grown
            self.capacity = wanted
        return 0

    cdef int put(self, const void *more, Py_ssize_t length) except -1:
        self.grow(length)
        if length:
            memcpy(self.data + self.size, more, length)
        self.size += length
        return 0

    cdef int fill(self, Column names, Column values, Py_ssize_t start, Py_ssize_t stop) except -1:
        """``wire/envelopes.py`` has the format. A header without a name is left out."""
        cdef Py_ssize_t at
        cdef uint16_t count = 0, name_length
        cdef uint32_t length
        self.size = 0
        if stop - start > HEADERS_MAX:
            raise OverflowError(f"a message has at most {HEADERS_MAX} headers")
        self.put(&count, 2)
        for at in range(start, stop):
            if names.is_null(at):
                continue
            if names.length(at) > NAME_BYTES_MAX:
                raise OverflowError(f"a header's name has at most {NAME_BYTES_MAX} bytes")
            name_length = <uint16_t>names.length(at)
            length = 0 if values.is_null(at) else <uint32_t>values.length(at)
            self.put(&name_length, 2)
            self.put(names.data(at), name_length)
            self.put(&length, 4)
            self.put(values.data(at), length)
            count += 1
        memcpy(self.data, &count, 2)
        if not count:
            self.size = 0
        return 0


cdef Column column(given):
    return None if given is None else Column(given[0], given[1])


def encode_rows(
    Py_ssize_t first, Py_ssize_t stop, value, timestamp_ms, key=None, headers=None, names=None,
    header_values=None, priority=None, due_at_ms=None, expires_at_ms=None, envelope=None,
):
    """Rows from ``first`` to ``stop`` as a batch. Each column is its buffers and the number of its
    first element; key, value, envelope and those of headers are of bytes, all others of 64 bits.
    An envelope that is not null, its format in front, is kept as it is and goes before headers."""
    cdef RecordBatch batch = RecordBatch()
    cdef Column value_column = column(value), time_column = column(timestamp_ms)
    cdef Column key_column = column(key), list_column = column(headers)
    cdef Column name_column = column(names), header_column = column(header_values)
    cdef Column priority_column = column(priority), due_column = column(due_at_ms)
    cdef Column expiry_column = column(expires_at_ms)
    cdef Column envelope_column = column(envelope)
    cdef Envelope headers_made = Envelope()
    cdef const unsigned char *envelope_data
    cdef Py_ssize_t envelope_length
    cdef uint8_t envelope_format
    cdef const unsigned char *key_data
    cdef const unsigned char *value_data
    cdef Py_ssize_t row, key_length, value_length
    cdef RecordHeader *header
    for row in range(first, stop):
        key_data = value_data = NULL
        key_length = value_length = envelope_length = 0
        envelope_data, envelope_format = NULL, NATIVE
        if key_column is not None and not key_column.is_null(row):
            key_data, key_length = key_column.data(row), key_column.length(row)
        if not value_column.is_null(row):
            value_data, value_length = value_column.data(row), value_column.length(row)
        if envelope_column is not None and not envelope_column.is_null(row):
            if not envelope_column.length(row):
                raise OverflowError("an envelope is empty: it has not even a format")
            envelope_format = envelope_column.data(row)[0]
            envelope_data = envelope_column.data(row) + 1
            envelope_length = envelope_column.length(row) - 1
        elif list_column is not None and not list_column.is_null(row) and list_column.length(row):
            headers_made.fill(
                name_column, header_column, list_column.start(row), list_column.start(row + 1))
            envelope_data, envelope_length = headers_made.data, headers_made.size
        batch.put(
            key_data, key_length,
            envelope_data, envelope_length,
            value_data, value_length,
            envelope_format, 0,
            0 if priority_column is None else <uint8_t>priority_column.number(row),
            time_column.number(row),
            0 if expiry_column is None else expiry_column.number(row),
            0 if due_column is None else due_column.number(row),
        )
        header = batch.header_at(batch.count - 1)
        if header.flags & TIMED:
            # Both are columns of timestamps.
            header.reserved = DATED_DUE | DATED_EXPIRY
            seal_header(header)
    return batch


# --- at the node ---


def check_rows(RecordBatch batch not None):
    """Raise ``BadRecord`` for what a publisher may not send: marks of the broker itself, times out
    of range, envelopes that can't be read or that no client of their protocol could have sent.

    Returns what the envelopes say of who published the messages and where, each of it once: users,
    exchanges and MQTT topics. It is for the caller to believe.
    """
    cdef Py_ssize_t i
    cdef RecordHeader *header
    cdef RecordTiming *timing
    cdef const char *fault
    cdef set users = set(), exchanges = set(), topics = set()
    if batch.summary & (CONTROL | COMMIT | TRANSACTIONAL):
        raise BadRecord(0, "marks of transactions are the broker's")
    for i in range(batch.count):
        header = batch.header_at(i)
        if header.offset != i:
            raise BadRecord(batch.positions[i], "records are numbered from 0")
        if not 0 <= header.timestamp_ms <= TIME_MS_MAX:
            raise BadRecord(batch.positions[i], "a timestamp is out of range")
        if header.flags & TIMED:
            timing = <RecordTiming *>(header + 1)
            if not (0 <= timing.due_at_ms <= TIME_MS_MAX
                    and 0 <= timing.expires_at_ms <= TIME_MS_MAX):
                raise BadRecord(batch.positions[i], "a time is out of range")
        fault = envelope_fault(
            header.envelope_format,
            <unsigned char *>header + header_bytes(header) + header.key_length,
            header.envelope_length, users, exchanges, topics)
        if fault != NULL:
            raise BadRecord(
                batch.positions[i], f"its envelope can't be taken: {fault.decode()}")
    return users, exchanges, topics


cdef const char *envelope_fault(
    int envelope_format, const unsigned char *data, Py_ssize_t size,
    set users, set exchanges, set topics,
) except? NULL:
    cdef Parts parts
    cdef const char *fault
    if envelope_format == NATIVE:
        return fault_in_native(data, size)
    if envelope_format == MQTT:
        fault = fault_in_mqtt(data, size, True)
        if fault == NULL:
            topics.add(data[3:3 + be16(data + 1)])
        return fault
    if envelope_format != AMQP:
        return "its format is unknown"
    fault = take_apart(data, size, &parts)
    if fault == NULL:
        fault = amqp_fault(&parts, data + size)
    if fault == NULL:
        exchanges.add(short_string(parts.exchange))
        if parts.values[USER_ID] != NULL:
            users.add(short_string(parts.values[USER_ID]))
    return fault


cdef bytes short_string(const unsigned char *text):
    return text[1:1 + text[0]]


cdef const char *amqp_fault(const Parts *parts, const unsigned char *end) noexcept:
    """What the AMQP gateway refuses in a message though it can be read."""
    cdef const unsigned char *text = parts.values[EXPIRATION]
    cdef int at
    if end - parts.routing_key - 1 - parts.routing_key[0] > PROPERTIES_BYTES_MAX:
        return "its properties don't fit in a frame"
    if not is_utf8(parts.exchange + 1, parts.exchange[0], True):
        return "the name of its exchange is no text"
    if not is_utf8(parts.routing_key + 1, parts.routing_key[0], True):
        return "its routing key is no text"
    if text != NULL:
        if not 0 < text[0] <= EXPIRATION_DIGITS_MAX:
            return "its expiration is no number of milliseconds"
        for at in range(1, text[0] + 1):
            if not c"0" <= text[at] <= c"9":
                return "its expiration is no number of milliseconds"
    text = parts.values[DELIVERY_MODE]
    if text != NULL and text[0] != 1 and text[0] != 2:
        return "its delivery mode is neither transient nor persistent"
    return NULL
