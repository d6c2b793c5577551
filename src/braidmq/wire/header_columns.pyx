"""Headers of many messages as the buffers of Arrow columns: what Spark reads.

Envelopes come as one Arrow column of bytes with their formats beside it. Each is checked whole and
then decoded where it is; one that can't be read has no headers (a client's doing, and no reason to
fail who reads its neighbours). What comes out is what ``native_headers`` says of it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from braidmq.record.batch cimport KEYED
from braidmq.wire.amqp.frames cimport be16, be32, be64, field_bytes, is_named
from braidmq.wire.amqp.parts cimport (
    APP_ID,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    HEADERS,
    MESSAGE_ID,
    REPLY_TO,
    TYPE,
    USER_ID,
    Parts,
    take_apart,
    take_route,
)
from braidmq.wire.envelope_faults cimport fault_in_mqtt, fault_in_native
from braidmq.wire.mqtt.fields cimport read_variable
from braidmq.wire.native_headers cimport le16, le32
from braidmq.wire.utf8 cimport is_utf8

import struct
from decimal import Decimal

import msgspec

from braidmq.wire.envelopes import encode_headers, native_headers

cdef enum:
    NATIVE = 0
    AMQP = 1
    MQTT = 2

cdef enum:
    WANTS_HEADERS = 1
    WANTS_TRACE = 2
    WANTS_ROUTING = 4
    WANTS_ATTEMPTS = 8

WANT_HEADERS, WANT_TRACE, WANT_ROUTING, WANT_ATTEMPTS = 1, 2, 4, 8

cdef enum:
    ATTEMPTS_DIGITS_MAX = 9
    # Of two fields with one name the first counts: in a table with more names than these they are
    # not compared with each other but left to a dictionary.
    NAMES_COMPARED_MAX = 64
    DAY_S = 86_400

cdef uint64_t SECONDS_MAX = 253_402_300_799     # the last second of the year 9999
cdef bytes TRACE = b"traceparent"
cdef bytes ATTEMPTS = b"x-death-attempts"
cdef bytes HEX = b"0123456789abcdef"
cdef bytes BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

cdef int[8] named_at = [
    CONTENT_TYPE, CONTENT_ENCODING, CORRELATION_ID, REPLY_TO, MESSAGE_ID, TYPE, USER_ID, APP_ID]
cdef list NAMED = [
    b"content-type", b"content-encoding", b"correlation-id", b"reply-to", b"message-id", b"type",
    b"user-id", b"app-id",
]

cdef enum:
    MQTT_CONTENT_TYPE = 0x03
    MQTT_RESPONSE_TOPIC = 0x08
    MQTT_CORRELATION_DATA = 0x09
    MQTT_SUBSCRIPTION_ID = 0x0B
    MQTT_PAYLOAD_FORMAT = 0x01
    MQTT_EXPIRY = 0x02
    MQTT_USER_PROPERTY = 0x26
    MQTT_TOPIC_ALIAS = 0x23


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

    cdef int put_byte(self, unsigned char byte) except -1:
        return self.append(&byte, 1)

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
        if is_utf8(text, length, True):
            self.text.append(text, length)
        else:
            clean = text[:length].decode("utf-8", "replace").encode()
            self.text.append(PyBytes_AS_STRING(clean), PyBytes_GET_SIZE(clean))
        return 0

    cdef int end_row(self) except -1:
        return self.ends.append_end(self.text.size)

    cdef tuple take(self):
        return self.valid, self.ends.take(), self.text.take()


cdef class JsonWriter(Growing):
    """Values of AMQP fields as ``envelopes.py`` writes them: text and bytes as they are, all others
    as msgspec writes them in JSON."""

    cdef int put_field(self, const unsigned char *p, Py_ssize_t length) except -1:
        """The letter at ``p``, its value of ``length`` bytes behind it."""
        if p[0] == c"S" or p[0] == c"x":
            return self.append(p + 5, length - 4)
        return self.put_json(p, length)

    cdef int put_json(self, const unsigned char *p, Py_ssize_t length) except -1:
        cdef unsigned char letter = p[0]
        p += 1
        if letter == c"S":
            if is_utf8(p + 4, length - 4, True):
                return self.put_text(p + 4, length - 4)
            return self.put_base64(p + 4, length - 4)
        if letter == c"x":
            return self.put_base64(p + 4, length - 4)
        if letter == c"A" or letter == c"F":
            return self.put_fields(p + 4, p + length, letter == c"F")
        if letter == c"t":
            return self.append(b"true", 4) if p[0] else self.append(b"false", 5)
        if letter == c"V":
            return self.append(b"null", 4)
        if letter == c"T":
            return self.put_time(be64(p))
        if letter in b"fdD":
            return self.put_fraction(letter, p, length)
        return self.put_integer(integer_of(letter, p))

    cdef int put_fields(
        self, const unsigned char *p, const unsigned char *end, bint named
    ) except -1:
        cdef const unsigned char *first = p
        cdef const unsigned char *name
        cdef Py_ssize_t length
        cdef bint started = False
        self.put_byte(c"{" if named else c"[")
        while p < end:
            name = p
            if named:
                p += 1 + p[0]
            length = field_bytes(p, end)
            if not named or not was_named(first, name, end):
                if started:
                    self.put_byte(c",")
                started = True
                if named:
                    self.put_text(name + 1, name[0])
                    self.put_byte(c":")
                self.put_json(p, length)
            p += 1 + length
        return self.put_byte(c"}" if named else c"]")

    cdef int put_text(self, const unsigned char *text, Py_ssize_t length) except -1:
        cdef Py_ssize_t i, begun = 0
        cdef unsigned char[6] escape = [c"\\", c"u", c"0", c"0", 0, 0]
        cdef unsigned char short_one
        self.put_byte(c'"')
        for i in range(length):
            if text[i] >= 0x20 and text[i] != c'"' and text[i] != c"\\":
                continue
            self.append(text + begun, i - begun)
            begun = i + 1
            short_one = short_escape(text[i])
            if short_one:
                self.put_byte(c"\\")
                self.put_byte(short_one)
            else:
                escape[4] = HEX[text[i] >> 4]
                escape[5] = HEX[text[i] & 15]
                self.append(escape, 6)
        self.append(text + begun, length - begun)
        return self.put_byte(c'"')

    cdef int put_base64(self, const unsigned char *data, Py_ssize_t length) except -1:
        cdef Py_ssize_t i
        cdef uint32_t word
        cdef unsigned char[4] out
        self.put_byte(c'"')
        for i in range(0, length, 3):
            word = <uint32_t>data[i] << 16
            if i + 1 < length:
                word |= <uint32_t>data[i + 1] << 8
            if i + 2 < length:
                word |= data[i + 2]
            out[0] = BASE64[word >> 18]
            out[1] = BASE64[word >> 12 & 63]
            out[2] = BASE64[word >> 6 & 63] if i + 1 < length else c"="
            out[3] = BASE64[word & 63] if i + 2 < length else c"="
            self.append(out, 4)
        return self.put_byte(c'"')

    cdef int put_integer(self, int64_t number) except -1:
        if number < 0:
            self.put_byte(c"-")
            return self.put_digits(<uint64_t>0 - <uint64_t>number, 1)
        return self.put_digits(<uint64_t>number, 1)

    cdef int put_digits(self, uint64_t number, int digits_min) except -1:
        cdef unsigned char[20] digits
        cdef int at = 20
        while number or digits_min > 0:
            at -= 1
            digits_min -= 1
            digits[at] = c"0" + number % 10
            number //= 10
        return self.append(&digits[at], 20 - at)

    cdef int put_time(self, uint64_t seconds) except -1:
        """A date in quotes; a number where no date is so far away."""
        cdef uint64_t days, era, day, year, month, rest
        if seconds > SECONDS_MAX:
            return self.put_digits(seconds, 1)
        # Days from the first of March of the year 0: leap days are then the last of their year.
        days = seconds // DAY_S + 719_468
        rest = seconds % DAY_S
        era = days // 146_097
        day = days % 146_097
        year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
        day -= 365 * year + year // 4 - year // 100
        month = (5 * day + 2) // 153
        day += 1 - (153 * month + 2) // 5
        year += 400 * era + (month >= 10)
        month = month + 3 if month < 10 else month - 9
        self.put_byte(c'"')
        self.put_digits(year, 4)
        self.put_byte(c"-")
        self.put_digits(month, 2)
        self.put_byte(c"-")
        self.put_digits(day, 2)
        self.put_byte(c"T")
        self.put_digits(rest // 3600, 2)
        self.put_byte(c":")
        self.put_digits(rest // 60 % 60, 2)
        self.put_byte(c":")
        self.put_digits(rest % 60, 2)
        return self.append(b'Z"', 2)

    cdef int put_fraction(
        self, unsigned char letter, const unsigned char *p, Py_ssize_t length
    ) except -1:
        """By Python: the shortest digits of a fraction are a science of their own."""
        cdef bytes raw = p[:length]
        cdef bytes text
        if letter == c"D":
            scale, digits = struct.unpack(">Bi", raw)
            text = msgspec.json.encode(Decimal(digits).scaleb(-scale))
        else:
            text = msgspec.json.encode(struct.unpack(">f" if letter == c"f" else ">d", raw)[0])
        return self.append(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef inline unsigned char short_escape(unsigned char byte) noexcept:
    if byte == c'"' or byte == c"\\":
        return byte
    if byte == c"\n":
        return c"n"
    if byte == c"\r":
        return c"r"
    if byte == c"\t":
        return c"t"
    if byte == 8:
        return c"b"
    return c"f" if byte == 12 else 0


cdef inline int64_t integer_of(unsigned char letter, const unsigned char *p) noexcept:
    if letter == c"b":
        return <int8_t>p[0]
    if letter == c"B":
        return p[0]
    if letter == c"s":
        return <int16_t>be16(p)
    if letter == c"u":
        return be16(p)
    if letter == c"I":
        return <int32_t>be32(p)
    if letter == c"i":
        return be32(p)
    return <int64_t>be64(p)


cdef inline bint was_named(
    const unsigned char *p, const unsigned char *name, const unsigned char *end
) noexcept:
    """Whether a field of a table before this one has the same name."""
    while p < name:
        if p[0] == name[0] and memcmp(p + 1, name + 1, name[0]) == 0:
            return True
        p += 1 + p[0]
        p += 1 + field_bytes(p, end)
    return False


cdef bint is_narrow(const unsigned char *p, const unsigned char *end, bint named) noexcept:
    """Whether no table in it has more names than are compared."""
    cdef Py_ssize_t length, count = 0
    while p < end:
        if named:
            p += 1 + p[0]
            count += 1
        length = field_bytes(p, end)
        if p[0] == c"A" or p[0] == c"F":
            if not is_narrow(p + 5, p + 1 + length, p[0] == c"F"):
                return False
        p += 1 + length
    return count <= NAMES_COMPARED_MAX


cdef class HeaderColumns:
    """The columns under way: lists of (name, value), and what single headers stand for."""

    cdef int wanted
    cdef bytes valid
    cdef Growing list_ends
    cdef Growing name_ends
    cdef Growing names
    cdef Growing value_ends
    cdef JsonWriter values
    cdef TextColumn trace
    cdef TextColumn routing
    cdef bytes attempts_valid
    cdef bytes attempts
    cdef Py_ssize_t pairs

    def __cinit__(self, Py_ssize_t rows, int wanted):
        self.wanted = wanted
        self.valid = bytes((rows + 7) // 8)
        self.list_ends = Growing()
        self.name_ends = Growing()
        self.names = Growing()
        self.value_ends = Growing()
        self.values = JsonWriter()
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
        if envelope_format == NATIVE:
            if size and self.wanted & ~WANTS_ROUTING and fault_in_native(data, size) == NULL:
                self.add_native(row, data)
        elif envelope_format == AMQP:
            self.add_amqp(row, data, size, has_key)
        elif envelope_format == MQTT:
            self.add_mqtt(row, data, size)
        if self.wanted & WANTS_HEADERS:
            self.list_ends.append_end(self.pairs)
        else:
            self.names.size = self.values.size = self.name_ends.size = self.value_ends.size = 0
        self.trace.end_row()
        self.routing.end_row()
        return 0

    cdef int add_amqp(
        self, Py_ssize_t row, const unsigned char *data, Py_ssize_t size, bint has_key
    ) except -1:
        cdef Parts parts
        cdef bytes translated
        cdef const unsigned char *text
        cdef int i
        if not take_route(data, size, &parts):
            return 0
        if self.wanted & WANTS_ROUTING:
            self.routing.put(row, parts.routing_key + 1, parts.routing_key[0])
        if not self.wanted & ~WANTS_ROUTING or take_apart(data, size, &parts) != NULL:
            return 0
        if parts.values[HEADERS] != NULL and not is_narrow(
            parts.values[HEADERS] + 4, parts.table_end, True
        ):
            translated = encode_headers(native_headers(AMQP, data[:size], has_key))
            if not translated:
                return 0
            return self.add_native(row, <const unsigned char *>PyBytes_AS_STRING(translated))
        for i in range(8):
            text = parts.values[named_at[i]]
            if text != NULL:
                self.values.append(text + 1, text[0])
                self.end_pair(
                    row, <const unsigned char *>PyBytes_AS_STRING(<bytes>NAMED[i]),
                    PyBytes_GET_SIZE(<bytes>NAMED[i]))
        if parts.values[HEADERS] != NULL:
            self.add_table(row, parts.values[HEADERS] + 4, parts.table_end, has_key)
        return 0

    cdef int add_table(
        self, Py_ssize_t row, const unsigned char *p, const unsigned char *end, bint has_key
    ) except -1:
        cdef const unsigned char *first = p
        cdef const unsigned char *name
        cdef Py_ssize_t length
        while p < end:
            name = p
            p += 1 + p[0]
            length = field_bytes(p, end)
            # AMQP has no other place for the key and the partition; here they have their own.
            if not (
                is_named(name, "x-partition", 11)
                or has_key and is_named(name, "x-key", 5)
                or was_named(first, name, end)
            ):
                self.values.put_field(p, length)
                self.end_pair(row, name + 1, name[0])
            p += 1 + length
        return 0

    cdef int add_mqtt(
        self, Py_ssize_t row, const unsigned char *data, Py_ssize_t size
    ) except -1:
        """Properties have their places in what comes out, whatever their order on the wire."""
        cdef Py_ssize_t end
        cdef const unsigned char *content_type = NULL
        cdef const unsigned char *correlation = NULL
        cdef const unsigned char *response = NULL
        cdef const unsigned char *p
        cdef const unsigned char *stop = data + size
        cdef bint has_pairs = False
        if size < 3 or size - 3 < be16(data + 1):
            return 0
        end = 3 + <Py_ssize_t>be16(data + 1)
        if self.wanted & WANTS_ROUTING:
            self.routing.put(row, data + 3, end - 3)
        if end == size or not self.wanted & ~WANTS_ROUTING:
            return 0
        if fault_in_mqtt(data, size, False) != NULL:
            return 0
        p = data + end
        while p < stop:
            if p[0] == MQTT_CONTENT_TYPE:
                content_type = p + 1
            elif p[0] == MQTT_CORRELATION_DATA:
                correlation = p + 1
            elif p[0] == MQTT_RESPONSE_TOPIC:
                response = p + 1
            elif p[0] == MQTT_USER_PROPERTY:
                has_pairs = True
            p += 1 + property_bytes(p, stop)
        if content_type != NULL:
            self.put_pair(row, b"content-type", content_type)
        if correlation != NULL:
            self.put_pair(row, b"correlation-id", correlation)
        if response != NULL:
            self.put_topic(row, response)
        p = data + end
        while has_pairs and p < stop:
            if p[0] == MQTT_USER_PROPERTY:
                content_type = p + 3 + be16(p + 1)
                self.values.append(content_type + 2, be16(content_type))
                self.end_pair(row, p + 3, be16(p + 1))
            p += 1 + property_bytes(p, stop)
        return 0

    cdef int put_pair(self, Py_ssize_t row, bytes name, const unsigned char *value) except -1:
        self.values.append(value + 2, be16(value))
        return self.end_pair(
            row, <const unsigned char *>PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))

    cdef int put_topic(self, Py_ssize_t row, const unsigned char *value) except -1:
        """An address of ours: ``key_of_topic`` says how it is written."""
        cdef Py_ssize_t i, begun = self.values.size
        self.values.append(value + 2, be16(value))
        for i in range(begun, self.values.size):
            if self.values.data[i] == c"/":
                self.values.data[i] = c"."
            elif self.values.data[i] == c".":
                self.values.data[i] = c"/"
        return self.end_pair(row, b"reply-to", 8)

    cdef int add_native(self, Py_ssize_t row, const unsigned char *data) except -1:
        cdef const unsigned char *name
        cdef int _left
        (<uint8_t *>PyBytes_AS_STRING(self.valid))[row >> 3] |= 1 << (row & 7)
        for _left in range(le16(data), 0, -1):
            name = data + 2
            data = name + 2 + le16(name)
            self.values.append(data + 4, le32(data))
            self.end_pair(row, name + 2, le16(name))
            data += 2 + le32(data)
        return 0

    cdef int end_pair(
        self, Py_ssize_t row, const unsigned char *name, Py_ssize_t name_length
    ) except -1:
        """A header whose value was written last."""
        cdef Py_ssize_t begun = self.last_end()
        cdef const unsigned char *value = self.values.data + begun
        (<uint8_t *>PyBytes_AS_STRING(self.valid))[row >> 3] |= 1 << (row & 7)
        if equals(name, name_length, TRACE):
            if self.wanted & WANTS_TRACE and not is_set(self.trace.valid, row):
                self.trace.put(row, value, self.values.size - begun)
        elif equals(name, name_length, ATTEMPTS):
            self.put_attempts(row, value, self.values.size - begun)
        self.names.append(name, name_length)
        self.name_ends.append_end(self.names.size)
        self.value_ends.append_end(self.values.size)
        self.pairs += 1
        return 0

    cdef inline Py_ssize_t last_end(self) noexcept:
        if not self.value_ends.size:
            return 0
        return (<int32_t *>(self.value_ends.data + self.value_ends.size - 4))[0]

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
        cdef int wanted = self.wanted
        return (
            self.pairs,
            (self.valid, self.list_ends.take()) if wanted & WANTS_HEADERS else None,
            (None, self.name_ends.take(), self.names.take()) if wanted & WANTS_HEADERS else None,
            (None, self.value_ends.take(), self.values.take()) if wanted & WANTS_HEADERS else None,
            self.trace.take() if wanted & WANTS_TRACE else None,
            self.routing.take() if wanted & WANTS_ROUTING else None,
            (self.attempts_valid, self.attempts) if wanted & WANTS_ATTEMPTS else None,
        )


cdef inline Py_ssize_t property_bytes(const unsigned char *p, const unsigned char *end) noexcept:
    """Bytes behind the number of a property of a PUBLISH that was checked."""
    cdef uint32_t ignored
    if p[0] == MQTT_PAYLOAD_FORMAT:
        return 1
    if p[0] == MQTT_EXPIRY:
        return 4
    if p[0] == MQTT_TOPIC_ALIAS:
        return 2
    if p[0] == MQTT_SUBSCRIPTION_ID:
        return read_variable(p + 1, end, True, &ignored)
    if p[0] == MQTT_USER_PROPERTY:
        return 4 + <Py_ssize_t>be16(p + 1) + be16(p + 3 + be16(p + 1))
    return 2 + <Py_ssize_t>be16(p + 1)


cdef inline bint equals(const unsigned char *text, Py_ssize_t length, bytes word) noexcept:
    return length == PyBytes_GET_SIZE(word) and memcmp(text, PyBytes_AS_STRING(word), length) == 0


cdef inline bint is_set(bytes bits, Py_ssize_t at) noexcept:
    return (<uint8_t *>PyBytes_AS_STRING(bits))[at >> 3] & (1 << (at & 7)) != 0


def header_columns(
    const int32_t[::1] ends, const unsigned char[::1] envelopes, const unsigned char[::1] formats,
    const int32_t[::1] flags, int wanted,
):
    """Buffers of these columns; None for those that are not ``wanted``, which are not made:

    headers (number of pairs, then the list's, the names' and the values' buffers), the trace
    context, the routing key or MQTT topic, and the attempts that dead letters know. ``flags`` are
    those of the records. Without formats each envelope has its own in front.
    """
    cdef Py_ssize_t rows = ends.shape[0] - 1, i
    cdef HeaderColumns columns = HeaderColumns(rows, wanted)
    cdef const unsigned char *data = &envelopes[0] if envelopes.shape[0] else NULL
    cdef bint has_key
    for i in range(rows):
        has_key = flags[i] & KEYED != 0
        if formats is not None:
            columns.add(i, formats[i], data + ends[i], ends[i + 1] - ends[i], has_key)
        elif ends[i] < ends[i + 1]:
            columns.add(
                i, data[ends[i]], data + ends[i] + 1, ends[i + 1] - ends[i] - 1, has_key)
        else:
            columns.add(i, NATIVE, data, 0, has_key)
    return columns.take()


def tagged_envelopes(
    const int32_t[::1] ends, const unsigned char[::1] envelopes, const unsigned char[::1] formats
):
    """Buffers of a column of envelopes, each with its format in front; null for none at all."""
    cdef Py_ssize_t rows = formats.shape[0], i, length
    cdef const unsigned char *data = &envelopes[0] if envelopes.shape[0] else NULL
    cdef TextColumn column = TextColumn(rows)
    for i in range(rows):
        length = ends[i + 1] - ends[i]
        if length or formats[i] != NATIVE:
            (<uint8_t *>PyBytes_AS_STRING(column.valid))[i >> 3] |= 1 << (i & 7)
            column.text.put_byte(formats[i])
            column.text.append(data + ends[i], length)
        column.end_row()
    return column.take()
