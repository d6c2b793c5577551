"""Headers of many messages as the buffers of Arrow columns: what Spark reads.

Envelopes come as one Arrow column of bytes with their formats beside it. Native headers are decoded
here; of AMQP and MQTT it is seen here whether there are any, and those that have some are
translated once for each different envelope.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from braidmq.wire.envelopes import encode_headers, native_headers

cdef enum:
    NATIVE = 0
    AMQP = 1
    MQTT = 2
    # Properties that are no headers: delivery mode, priority, expiration, timestamp, cluster id.
    AMQP_NOT_HEADERS = 0x1000 | 0x0800 | 0x0100 | 0x0040 | 0x0004
    CACHED_MAX = 4096
    ATTEMPTS_DIGITS_MAX = 9

cdef bytes TRACE = b"traceparent"
cdef bytes ATTEMPTS = b"x-death-attempts"


cdef class Growing:
    """Bytes that grow."""

    cdef unsigned char *data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    def __cinit__(self):
        self.data = NULL
        self.size = self.capacity = 0

    def __dealloc__(self):
        free(self.data)

    cdef int append(self, const void *more, Py_ssize_t length) except -1:
        cdef Py_ssize_t wanted = self.size + length
        cdef void *grown
        if wanted > self.capacity:
            wanted = max(wanted, self.capacity * 2, 1024)
            grown = realloc(self.data, wanted)
            if grown == NULL:
                raise MemoryError
            self.data = <unsigned char *>grown
            self.capacity = wanted
        if length:
            memcpy(self.data + self.size, more, length)
        self.size += length
        return 0

    cdef int append_end(self, Py_ssize_t end) except -1:
        cdef int32_t value = <int32_t>end
        return self.append(&value, 4)

    cdef bytes take(self):
        return PyBytes_FromStringAndSize(<char *>self.data, self.size)


cdef class TextColumn:
    """A nullable column of text, filled from the first row to the last."""

    cdef bytes valid
    cdef Growing ends
    cdef Growing text

    def __cinit__(self, Py_ssize_t rows):
        self.valid = bytes((rows + 7) // 8)
        self.ends = Growing()
        self.text = Growing()
        self.ends.append_end(0)

    cdef int put(self, Py_ssize_t row, const unsigned char *text, Py_ssize_t length) except -1:
        cdef bytes clean
        (<uint8_t *>PyBytes_AS_STRING(self.valid))[row >> 3] |= 1 << (row & 7)
        if is_ascii(text, length):
            self.text.append(text, length)
        else:
            clean = text[:length].decode("utf-8", "replace").encode()
            self.text.append(PyBytes_AS_STRING(clean), PyBytes_GET_SIZE(clean))
        return 0

    cdef int end_row(self) except -1:
        return self.ends.append_end(self.text.size)

    cdef tuple take(self):
        return self.valid, self.ends.take(), self.text.take()


cdef inline bint is_ascii(const unsigned char *text, Py_ssize_t length) noexcept:
    cdef Py_ssize_t i
    for i in range(length):
        if text[i] & 0x80:
            return False
    return True


cdef inline uint16_t u16(const unsigned char *at) noexcept:
    return at[0] | (<uint16_t>at[1] << 8)


cdef inline uint32_t u32(const unsigned char *at) noexcept:
    return at[0] | (<uint32_t>at[1] << 8) | (<uint32_t>at[2] << 16) | (<uint32_t>at[3] << 24)


cdef class HeaderColumns:
    """The columns under way: lists of (name, value), and what single headers stand for."""

    cdef Py_ssize_t rows
    cdef bytes valid
    cdef Growing list_ends
    cdef Growing name_ends
    cdef Growing names
    cdef Growing value_ends
    cdef Growing values
    cdef TextColumn trace
    cdef TextColumn routing
    cdef bytes attempts_valid
    cdef bytes attempts
    cdef Py_ssize_t pairs
    cdef dict cache

    def __cinit__(self, Py_ssize_t rows, dict cache):
        self.rows = rows
        self.cache = cache
        self.valid = bytes((rows + 7) // 8)
        self.list_ends = Growing()
        self.name_ends = Growing()
        self.names = Growing()
        self.value_ends = Growing()
        self.values = Growing()
        self.trace = TextColumn(rows)
        self.routing = TextColumn(rows)
        self.attempts_valid = bytes((rows + 7) // 8)
        self.attempts = bytes(4 * rows)
        self.pairs = 0
        for ends in (self.list_ends, self.name_ends, self.value_ends):
            (<Growing>ends).append_end(0)

    cdef int add(
        self, Py_ssize_t row, int envelope_format, const unsigned char *data, Py_ssize_t size,
        bint has_key,
    ) except -1:
        cdef bytes native
        if envelope_format == NATIVE:
            self.add_native(row, data, size)
        elif envelope_format == AMQP or envelope_format == MQTT:
            if envelope_format == AMQP:
                plain = self.look_amqp(row, data, size)
            else:
                plain = self.look_mqtt(row, data, size)
            if not plain:
                native = self.translated(envelope_format, data[:size], has_key)
                self.add_native(
                    row, <const unsigned char *>PyBytes_AS_STRING(native), PyBytes_GET_SIZE(native))
        self.list_ends.append_end(self.pairs)
        self.trace.end_row()
        self.routing.end_row()
        return 0

    cdef bint look_amqp(
        self, Py_ssize_t row, const unsigned char *data, Py_ssize_t size
    ) except -1:
        """Note the routing key; True when there are no headers."""
        cdef Py_ssize_t middle, end
        cdef int flags
        if size < 4:
            return True
        middle = 1 + data[0]
        if middle >= size:
            return True
        end = middle + 1 + data[middle]
        if end + 2 > size:
            return True
        self.routing.put(row, data + middle + 1, data[middle])
        flags = (<int>data[end] << 8) | data[end + 1]
        return not flags & ~AMQP_NOT_HEADERS

    cdef bint look_mqtt(
        self, Py_ssize_t row, const unsigned char *data, Py_ssize_t size
    ) except -1:
        """Note the topic; True when there are no headers."""
        cdef Py_ssize_t end
        if size < 3:
            return True
        end = 3 + ((<Py_ssize_t>data[1] << 8) | data[2])
        if end > size:
            return True
        self.routing.put(row, data + 3, end - 3)
        return end == size

    cdef bytes translated(self, int envelope_format, bytes envelope, bint has_key):
        cdef tuple wanted = (envelope_format, has_key, envelope)
        found = self.cache.get(wanted)
        if found is None:
            try:
                found = encode_headers(native_headers(envelope_format, envelope, has_key))
            except Exception:
                found = b""  # a client's doing: what can't be read has no headers
            if len(self.cache) >= CACHED_MAX:
                self.cache.clear()
            self.cache[wanted] = found
        return found

    cdef int add_native(
        self, Py_ssize_t row, const unsigned char *data, Py_ssize_t size
    ) except -1:
        cdef Py_ssize_t at = 2, name_length, value_length
        cdef const unsigned char *name
        cdef const unsigned char *value
        if size < 2:
            return 0
        (<uint8_t *>PyBytes_AS_STRING(self.valid))[row >> 3] |= 1 << (row & 7)
        for _ in range(u16(data)):
            if at + 2 > size:
                return 0
            name_length = u16(data + at)
            name = data + at + 2
            at += 2 + name_length
            if at + 4 > size:
                return 0
            value_length = u32(data + at)
            value = data + at + 4
            at += 4 + value_length
            if at > size:
                return 0
            self.names.append(name, name_length)
            self.name_ends.append_end(self.names.size)
            self.values.append(value, value_length)
            self.value_ends.append_end(self.values.size)
            self.pairs += 1
            if equals(name, name_length, TRACE) and not is_set(self.trace.valid, row):
                self.trace.put(row, value, value_length)
            elif equals(name, name_length, ATTEMPTS):
                self.put_attempts(row, value, value_length)
        return 0

    cdef void put_attempts(
        self, Py_ssize_t row, const unsigned char *text, Py_ssize_t length
    ) noexcept:
        cdef int32_t number = 0
        cdef Py_ssize_t i
        if not 0 < length <= ATTEMPTS_DIGITS_MAX:
            return
        for i in range(length):
            if not c'0' <= text[i] <= c'9':
                return
            number = number * 10 + text[i] - c'0'
        (<int32_t *>PyBytes_AS_STRING(self.attempts))[row] = number
        (<uint8_t *>PyBytes_AS_STRING(self.attempts_valid))[row >> 3] |= 1 << (row & 7)

    cdef tuple take(self):
        return (
            self.pairs,
            (self.valid, self.list_ends.take()),
            (None, self.name_ends.take(), self.names.take()),
            (None, self.value_ends.take(), self.values.take()),
            self.trace.take(),
            self.routing.take(),
            (self.attempts_valid, self.attempts),
        )


cdef inline bint equals(const unsigned char *text, Py_ssize_t length, bytes word) noexcept:
    return length == PyBytes_GET_SIZE(word) and memcmp(text, PyBytes_AS_STRING(word), length) == 0


cdef inline bint is_set(bytes bits, Py_ssize_t at) noexcept:
    return (<uint8_t *>PyBytes_AS_STRING(bits))[at >> 3] & (1 << (at & 7)) != 0


def header_columns(
    const int32_t[::1] ends, const unsigned char[::1] envelopes, const unsigned char[::1] formats,
    const unsigned char[::1] key_valid, dict cache not None,
):
    """Buffers of these columns, for as many rows as there are formats:

    headers (number of pairs, then the list's, the names' and the values' buffers), the trace
    context, the routing key or MQTT topic, and the attempts that dead letters know. ``key_valid``
    is the bitmap of the column of keys, and ``cache`` what this function wants to remember.
    """
    cdef Py_ssize_t rows = formats.shape[0], i
    cdef HeaderColumns columns = HeaderColumns(rows, cache)
    cdef const unsigned char *data = &envelopes[0] if envelopes.shape[0] else NULL
    for i in range(rows):
        columns.add(
            i, formats[i], data + ends[i], ends[i + 1] - ends[i],
            key_valid[i >> 3] >> (i & 7) & 1,
        )
    return columns.take()
