"""One death written into the envelopes of many messages, as they are copied to where the dead go.

What is written is what ``annotate_amqp`` and ``annotate_native`` write into one. Here is only the
death that nearly all die: the first one, of a message that names no other keys. Whoever died
before, or can't be read, is left to those two: a writer stops in front of it.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from braidmq.record.batch cimport (
    CONTROL, KEYED, SHARED, TIMED, TOMBSTONE, RecordBatch, RecordHeader, header_bytes, refers,
)

cdef enum:
    NATIVE_FORMAT = 0
    AMQP_FORMAT = 1

cdef enum:
    NOWHERE = -1

cdef enum:
    # A batch this large is as good as two: more would only be moved about as it grows.
    GRAVE_BYTES = 1 << 20

GRAVE_SIZE = GRAVE_BYTES

# --- records ---


cdef inline const unsigned char *body_of(const RecordHeader *header) noexcept:
    return <const unsigned char *>header + header_bytes(header)


cdef inline const unsigned char *envelope_of(const RecordHeader *header) noexcept:
    return body_of(header) + header.key_length


cdef int put_dead(
    RecordBatch target, const RecordHeader *header, uint8_t envelope_format,
    const unsigned char *envelope, Py_ssize_t length, int64_t now_ms,
) except -1:
    """A record with another envelope. Its times have been: it does not expire where it lies."""
    cdef uint8_t flags = header.flags & ~(CONTROL | TIMED | KEYED | TOMBSTONE | SHARED)
    return target.put(
        body_of(header) if header.flags & KEYED else NULL, header.key_length,
        envelope, length,
        NULL if header.flags & TOMBSTONE else envelope_of(header) + header.envelope_length,
        header.value_length,
        envelope_format, flags, header.priority, now_ms, 0, 0,
    )


def alike(RecordBatch batch not None, Py_ssize_t first, Py_ssize_t stop):
    """The index behind the records from ``first`` on that say the same of themselves: envelope,
    key and priority, the second of their time, and no times of their own."""
    cdef const RecordHeader *one = batch.header_at(first)
    cdef const RecordHeader *other
    cdef Py_ssize_t i
    if one.flags & TIMED or refers(one):
        return first + 1
    for i in range(first + 1, stop):
        other = batch.header_at(i)
        if (
            other.flags != one.flags or other.priority != one.priority or refers(other)
            or other.envelope_format != one.envelope_format
            or other.key_length != one.key_length
            or other.envelope_length != one.envelope_length
            or other.timestamp_ms // 1000 != one.timestamp_ms // 1000
            or memcmp(body_of(other), body_of(one), one.key_length + one.envelope_length)
        ):
            return i
    return stop


def copy_as(
    RecordBatch source not None, Py_ssize_t first, Py_ssize_t stop, RecordBatch target not None,
    uint8_t envelope_format, bytes envelope not None, int64_t now_ms, Py_ssize_t offset_at=-1,
):
    """Copy records with this envelope instead of theirs, in which the offset of each stands at
    ``offset_at``, with 8 bytes, the highest first; returns the index of the first that is left for
    another batch."""
    cdef bytearray written = bytearray(envelope)
    cdef unsigned char *data = <unsigned char *>PyByteArray_AS_STRING(written)
    cdef Py_ssize_t size = len(written)
    cdef uint64_t offset
    cdef int i
    if offset_at != -1 and not 0 <= offset_at <= size - 8:
        raise ValueError("no room for an offset there")
    target.must_be_open()
    while first < stop and target.size < GRAVE_BYTES:
        if offset_at >= 0:
            offset = <uint64_t>source.offset_of(first)
            for i in range(8):
                data[offset_at + i] = <unsigned char>(offset >> (56 - 8 * i))
        put_dead(target, source.header_at(first), envelope_format, data, size, now_ms)
        first += 1
    return first


# --- writing ---


cdef class DeathWriter:
    """Writes one death into envelopes of one format."""

    cdef readonly uint8_t envelope_format
    # Whether they stood in a partition: what a full topic refused has no offset.
    cdef public bint placed
    cdef unsigned char *data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    def __cinit__(self, *args):
        self.data = NULL
        self.size = self.capacity = 0
        self.placed = True

    def __dealloc__(self):
        free(self.data)

    def key_of(self, RecordBatch batch not None, Py_ssize_t index):
        """The routing key of a record; None of one whose death is not for this writer."""
        cdef const unsigned char *key = NULL
        cdef Py_ssize_t length = 0
        if not self.reads(batch.header_at(index), &key, &length):
            return None
        return key[:length]

    def copy(
        self, RecordBatch source not None, Py_ssize_t first, Py_ssize_t stop,
        RecordBatch target not None, int64_t now_ms, int64_t at_ms, bint one_key,
    ):
        """Copy records that died at ``at_ms``; returns the index of the first that is left for
        somebody else: for another writer, for another batch or, with ``one_key``, because its
        routing key is another than that of the first."""
        cdef const RecordHeader *header
        cdef const unsigned char *key = NULL
        cdef const unsigned char *other = NULL
        cdef Py_ssize_t i = first, length = 0, other_length = 0
        target.must_be_open()
        while i < stop and target.size < GRAVE_BYTES:
            header = source.header_at(i)
            if not self.reads(header, &other, &other_length):
                break
            if i == first:
                key, length = other, other_length
            elif one_key and (length != other_length or memcmp(key, other, length)):
                break
            self.size = 0
            if not self.write(
                envelope_of(header), header.envelope_length,
                source.offset_of(i) if self.placed else NOWHERE, at_ms,
            ):
                break
            put_dead(target, header, self.envelope_format, self.data, self.size, now_ms)
            i += 1
        return i

    def written(self, bytes envelope not None, int64_t offset, int64_t at_ms):
        """An envelope with the death in it; None of one that is not for this writer."""
        self.size = 0
        if not self.write(
            <const unsigned char *>PyBytes_AS_STRING(envelope), PyBytes_GET_SIZE(envelope),
            offset if self.placed else NOWHERE, at_ms,
        ):
            return None
        return self.data[:self.size]

    cdef bint reads(
        self, const RecordHeader *header, const unsigned char **key, Py_ssize_t *length
    ) noexcept:
        """Whether a record is for this writer, and its routing key."""
        return False

    cdef bint write(
        self, const unsigned char *envelope, Py_ssize_t length, int64_t offset, int64_t at_ms
    ) except -1:
        """Whether the envelope could be read; then it stands in ``data``, with the death."""
        return False

    # --- what both are made of ---

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t wanted = self.size + more
        cdef void *grown
        if wanted > self.capacity:
            wanted = max(wanted, 2 * self.capacity, 512)
            grown = realloc(self.data, wanted)
            if grown == NULL:
                raise MemoryError
            self.data = <unsigned char *>grown
            self.capacity = wanted
        return 0

    cdef inline void put(self, const void *data, Py_ssize_t length) noexcept:
        memcpy(self.data + self.size, data, length)
        self.size += length

    cdef inline void put_bytes(self, bytes data) noexcept:
        self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef inline void put_byte(self, uint8_t value) noexcept:
        self.data[self.size] = value
        self.size += 1

    cdef inline void put_big(self, uint64_t value, int count) noexcept:
        """A number of so many bytes, the highest first."""
        while count:
            count -= 1
            self.put_byte(<uint8_t>(value >> (8 * count)))


# --- AMQP ---

cdef enum:
    HEADERS_FLAG = 0x2000
    EXPIRATION_FLAG = 0x0100
    NO_PROPERTY = 0x0003        # the bits of the flags that no property has
    TABLE_MOST = 1 << 20
    PROPERTIES = 14
    # Bytes of a field of x-death besides its contents: the length of its name, name, type, and
    # where the contents have any length that of theirs.
    TIME_FIELD = 1 + 4 + 1 + 8
    EXCHANGE_FIELD = 1 + 8 + 1 + 4
    KEYS_FIELD = 1 + 12 + 1 + 4 + 1 + 4
    COUNT_FIELD = 1 + 5 + 1 + 8
    EXPIRATION_FIELD = 1 + 19 + 1 + 4
    FIRST_EXCHANGE_FIELD = 1 + 22 + 1 + 4
    OFFSET_FIELD = 1 + 14 + 1 + 8
    TIME_MS_FIELD = 1 + 12 + 1 + 8
    # x-death itself, its array and the table in it.
    DEATH_FIELD = 1 + 7 + 1 + 4 + 1 + 4

# Of each property the bytes it takes; 0 has a short string, -1 is the table of headers.
cdef int[PROPERTIES] PROPERTY_BYTES = [0, 0, -1, 1, 1, 0, 0, 0, 0, 8, 0, 0, 0, 0]


cdef inline uint32_t big32(const unsigned char *data) noexcept:
    return (
        <uint32_t>data[0] << 24 | <uint32_t>data[1] << 16 | <uint32_t>data[2] << 8 | data[3]
    )


cdef struct AmqpParts:
    # Of an envelope, as far as a death changes it; positions in it.
    Py_ssize_t exchange_length
    Py_ssize_t key
    Py_ssize_t key_length
    Py_ssize_t properties       # their values, behind the flags
    Py_ssize_t table            # where it stands or would, its size included
    Py_ssize_t table_end
    Py_ssize_t expiration       # where it stands or would, its length included
    Py_ssize_t expiration_end
    uint16_t flags


cdef bint is_plain_table(const unsigned char *data, Py_ssize_t at, Py_ssize_t end) noexcept:
    """Whether it has neither deaths nor further keys, and ends where a field does."""
    cdef Py_ssize_t length
    cdef const unsigned char *name
    cdef unsigned char kind
    while at < end:
        length = data[at]
        name = data + at + 1
        at += 1 + length
        if at >= end:
            return False
        if (
            (length == 2 and memcmp(name, b"CC", 2) == 0)
            or (length >= 7 and memcmp(name, b"x-death", 7) == 0)
            or (length >= 14 and memcmp(name, b"x-first-death-", 14) == 0)
        ):
            return False
        kind = data[at]
        at += 1
        if kind == c"V":
            continue
        elif kind in b"tbB":
            at += 1
        elif kind in b"su":
            at += 2
        elif kind in b"Iif":
            at += 4
        elif kind in b"lLdT":
            at += 8
        elif kind == c"D":
            at += 5
        elif kind in b"SxAF":
            if end - at < 4:
                return False
            at += 4 + <Py_ssize_t>big32(data + at)
        else:
            return False
    return at == end


cdef bint split_amqp(const unsigned char *data, Py_ssize_t size, AmqpParts *parts) noexcept:
    """Whether it can be read and is plain; then its parts."""
    cdef Py_ssize_t at
    cdef int i
    cdef uint16_t flag = 0x8000
    if size < 2 or size < data[0] + 4:
        return False
    parts.exchange_length = data[0]
    parts.key = 2 + parts.exchange_length
    parts.key_length = data[parts.key - 1]
    at = parts.key + parts.key_length
    if size < at + 2:
        return False
    parts.flags = <uint16_t>(data[at] << 8 | data[at + 1])
    if parts.flags & NO_PROPERTY:
        return False
    at += 2
    parts.properties = at
    for i in range(PROPERTIES):
        if PROPERTY_BYTES[i] < 0:
            parts.table = parts.table_end = at
        elif i == 7:
            parts.expiration = parts.expiration_end = at
        if parts.flags & flag:
            if PROPERTY_BYTES[i] > 0:
                at += PROPERTY_BYTES[i]
            elif at >= size:
                return False
            elif PROPERTY_BYTES[i] == 0:
                at += 1 + data[at]
            else:
                if size - at < 4 or big32(data + at) > TABLE_MOST:
                    return False
                at += 4 + <Py_ssize_t>big32(data + at)
            if at > size:
                return False
            if flag == HEADERS_FLAG:
                parts.table_end = at
                if not is_plain_table(data, parts.table + 4, at):
                    return False
            elif flag == EXPIRATION_FLAG:
                parts.expiration_end = at
        flag >>= 1
    return at == size


cdef class AmqpDeath(DeathWriter):
    """``x-death`` and ``x-first-death-…`` as RabbitMQ writes them.

    ``said`` are the fields of the death that come before its time, ``first_said`` the headers that
    come after ``x-first-death-exchange``; the last two are where and when this one died. The
    message goes on through ``exchange``, if that is given, with its own key or with ``key``.
    """
    cdef bytes said
    cdef bytes first_said
    cdef bytes exchange
    cdef bytes key

    def __init__(self, bytes said not None, bytes first_said not None, bytes exchange, bytes key):
        self.envelope_format = AMQP_FORMAT
        self.said = said
        self.first_said = first_said
        self.exchange = exchange
        self.key = key

    cdef bint reads(
        self, const RecordHeader *header, const unsigned char **key, Py_ssize_t *length
    ) noexcept:
        cdef AmqpParts parts
        if header.envelope_format != AMQP_FORMAT or refers(header):
            return False
        if not split_amqp(envelope_of(header), header.envelope_length, &parts):
            return False
        key[0] = envelope_of(header) + parts.key
        length[0] = parts.key_length
        return True

    cdef bint write(
        self, const unsigned char *envelope, Py_ssize_t length, int64_t offset, int64_t at_ms
    ) except -1:
        cdef AmqpParts parts
        cdef Py_ssize_t entry, added, table, expiration
        if not split_amqp(envelope, length, &parts):
            return False
        table = parts.table_end - parts.table - 4 if parts.flags & HEADERS_FLAG else 0
        expiration = parts.expiration_end - parts.expiration - 1
        entry = (
            PyBytes_GET_SIZE(self.said) + TIME_FIELD + EXCHANGE_FIELD + parts.exchange_length
            + KEYS_FIELD + parts.key_length + COUNT_FIELD
        )
        if parts.flags & EXPIRATION_FLAG:
            entry += EXPIRATION_FIELD + expiration
        added = (
            DEATH_FIELD + entry + FIRST_EXCHANGE_FIELD + parts.exchange_length
            + PyBytes_GET_SIZE(self.first_said) + OFFSET_FIELD + TIME_MS_FIELD
        )
        self.reserve(length + added + 4 + 2 * 256)
        self.put_head(envelope, &parts)
        self.put_big((parts.flags | HEADERS_FLAG) & ~EXPIRATION_FLAG, 2)
        self.put(envelope + parts.properties, parts.table - parts.properties)
        self.put_big(table + added, 4)
        if table:
            self.put(envelope + parts.table + 4, table)
        self.put_death(envelope, &parts, entry, at_ms // 1000)
        self.put(b"\x0ex-death-offsetl", 16)
        self.put_big(<uint64_t>offset, 8)
        self.put(b"\x0cx-death-timel", 14)
        self.put_big(<uint64_t>at_ms, 8)
        self.put(envelope + parts.table_end, parts.expiration - parts.table_end)
        self.put(envelope + parts.expiration_end, length - parts.expiration_end)
        return True

    cdef void put_head(self, const unsigned char *envelope, const AmqpParts *parts) noexcept:
        if self.exchange is None:
            self.put(envelope, parts.key + parts.key_length)
            return
        self.put_byte(<uint8_t>PyBytes_GET_SIZE(self.exchange))
        self.put_bytes(self.exchange)
        if self.key is None:
            self.put(envelope + parts.key - 1, 1 + parts.key_length)
        else:
            self.put_byte(<uint8_t>PyBytes_GET_SIZE(self.key))
            self.put_bytes(self.key)

    cdef void put_death(
        self, const unsigned char *envelope, const AmqpParts *parts, Py_ssize_t entry,
        int64_t seconds,
    ) noexcept:
        cdef Py_ssize_t expiration = parts.expiration_end - parts.expiration - 1
        self.put(b"\x07x-deathA", 9)
        self.put_big(entry + 5, 4)
        self.put_byte(c"F")
        self.put_big(entry, 4)
        self.put_bytes(self.said)
        self.put(b"\x04timeT", 6)
        self.put_big(seconds, 8)
        self.put(b"\x08exchangeS", 10)
        self.put_big(parts.exchange_length, 4)
        self.put(envelope + 1, parts.exchange_length)
        self.put(b"\x0crouting-keysA", 14)
        self.put_big(5 + parts.key_length, 4)
        self.put_byte(c"S")
        self.put_big(parts.key_length, 4)
        self.put(envelope + parts.key, parts.key_length)
        self.put(b"\x05countl", 7)
        self.put_big(1, 8)
        if parts.flags & EXPIRATION_FLAG:
            self.put(b"\x13original-expirationS", 21)
            self.put_big(expiration, 4)
            self.put(envelope + parts.expiration + 1, expiration)
        self.put(b"\x16x-first-death-exchangeS", 24)
        self.put_big(parts.exchange_length, 4)
        self.put(envelope + 1, parts.exchange_length)
        self.put_bytes(self.first_said)


# --- native ---

cdef enum:
    HEADERS_MOST = 0xffff
    DIGITS_MOST = 24


cdef class NativeDeath(DeathWriter):
    """Headers whose names begin with ``x-death-``.

    ``before``, ``between`` and ``after`` are ``added`` headers as they are encoded, but for the
    values of two: the offset stands between the first two parts, the time between the last two.
    """
    cdef bytes before
    cdef bytes between
    cdef bytes after
    cdef int added

    def __init__(
        self, bytes before not None, bytes between not None, bytes after not None, int added
    ):
        self.envelope_format = NATIVE_FORMAT
        self.before = before
        self.between = between
        self.after = after
        self.added = added

    cdef bint reads(
        self, const RecordHeader *header, const unsigned char **key, Py_ssize_t *length
    ) noexcept:
        if header.envelope_format != NATIVE_FORMAT or refers(header):
            return False
        key[0] = body_of(header)
        length[0] = header.key_length
        return self.plain_end(envelope_of(header), header.envelope_length) >= 0

    cdef Py_ssize_t plain_end(self, const unsigned char *data, Py_ssize_t size) noexcept:
        """Where headers end that say nothing of a death; -1 for others, or what is none."""
        cdef Py_ssize_t at = 2, name
        cdef int left
        if size == 0:
            return 0
        if size < 2:
            return -1
        left = (<const uint16_t *>data)[0]
        if left + self.added > HEADERS_MOST:
            return -1
        while left:
            left -= 1
            if size - at < 2:
                return -1
            name = (<const uint16_t *>(data + at))[0]
            at += 2
            if size - at < name + 4:
                return -1
            if name >= 8 and memcmp(data + at, b"x-death-", 8) == 0:
                return -1
            at += name
            at += 4 + <Py_ssize_t>(<const uint32_t *>(data + at))[0]
            if at > size:
                return -1
        return at

    cdef bint write(
        self, const unsigned char *envelope, Py_ssize_t length, int64_t offset, int64_t at_ms
    ) except -1:
        cdef Py_ssize_t end = self.plain_end(envelope, length)
        cdef int count
        if end < 0:
            return False
        self.reserve(
            end + 2 + PyBytes_GET_SIZE(self.before) + PyBytes_GET_SIZE(self.between)
            + PyBytes_GET_SIZE(self.after) + 2 * (4 + DIGITS_MOST)
        )
        count = self.added + ((<const uint16_t *>envelope)[0] if end else 0)
        self.put_byte(count & 0xff)
        self.put_byte(count >> 8)
        if end:
            self.put(envelope + 2, end - 2)
        self.put_bytes(self.before)
        self.put_number(offset)
        self.put_bytes(self.between)
        self.put_number(at_ms)
        self.put_bytes(self.after)
        return True

    cdef void put_number(self, int64_t value) noexcept:
        """A value of decimal digits, with its length before it."""
        cdef unsigned char[DIGITS_MOST] digits
        cdef int at = DIGITS_MOST
        cdef uint64_t left = <uint64_t>(-value if value < 0 else value)
        cdef uint32_t size
        while True:
            at -= 1
            digits[at] = <unsigned char>(c"0" + left % 10)
            left //= 10
            if left == 0:
                break
        if value < 0:
            at -= 1
            digits[at] = c"-"
        size = DIGITS_MOST - at
        self.put(&size, 4)
        self.put(digits + at, size)
