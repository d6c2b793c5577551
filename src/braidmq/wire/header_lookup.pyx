"""One header of a message, found in its envelope: AMQP's table and properties, MQTT's properties,
native headers.

What is found is what ``native_headers`` says of it, the last where a name is there twice, and
nothing in what can't be read.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp

from braidmq.wire.envelopes import key_of_topic, native_headers
from braidmq.wire.mqtt.fields cimport be16, be32, read_variable
from braidmq.wire.native_headers cimport le16, le32

cdef enum:
    NATIVE = 0
    AMQP = 1
    MQTT = 2

cdef enum:
    HEADERS = 0x2000
    CONTINUED = 0x0001
    PROPERTIES = 14
    # Properties of AMQP that are no strings.
    DELIVERY_MODE = 3
    PRIORITY = 4
    TIMESTAMP = 9

cdef enum:
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    USER_PROPERTY = 0x26

cdef list AMQP_NAMES = [
    b"content-type", b"content-encoding", None, None, None, b"correlation-id", b"reply-to", None,
    b"message-id", None, b"type", b"user-id", b"app-id", None,
]


cdef struct Found:
    const unsigned char *data
    Py_ssize_t size
    char letter       # of an AMQP field; 0: it is text


cdef inline bint same(const unsigned char *data, Py_ssize_t size, bytes name) noexcept:
    return size == len(name) and memcmp(data, <const char *>name, size) == 0


cdef inline uint64_t be64(const unsigned char *p) noexcept:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)


cdef inline Py_ssize_t field_bytes(
    char letter, const unsigned char *at, const unsigned char *end
) noexcept:
    """How long the value of a field is; -1 when it is cut off or unknown."""
    cdef Py_ssize_t size
    if letter in b"tbB":
        size = 1
    elif letter in b"su":
        size = 2
    elif letter in b"Iif":
        size = 4
    elif letter in b"lLdT":
        size = 8
    elif letter == c"D":
        size = 5
    elif letter == c"V":
        size = 0
    elif letter in b"SxAF":
        if end - at < 4:
            return -1
        size = 4 + <Py_ssize_t>be32(at)
    else:
        return -1
    return size if size <= end - at else -1


cdef bint find_in_table(
    const unsigned char *at, const unsigned char *end, bytes name, Found *found
) noexcept:
    """The first field of a name, as in RabbitMQ; False when there is none."""
    cdef const unsigned char *key
    cdef Py_ssize_t key_size, size
    cdef char letter
    while at < end:
        key_size = at[0]
        key = at + 1
        at = key + key_size
        if at >= end:
            return False
        letter = <char>at[0]
        at += 1
        size = field_bytes(letter, at, end)
        if size < 0:
            return False
        if same(key, key_size, name):
            found.data, found.size, found.letter = at, size, letter
            return True
        at += size
    return False


cdef bint find_amqp(
    const unsigned char *at, const unsigned char *end, bytes name, Found *found
) except -1:
    cdef int index, flags, more
    cdef Py_ssize_t size
    cdef bint has = False
    cdef bytes known
    for _ in range(2):  # exchange and routing key
        if at >= end or end - at < 1 + at[0]:
            return False
        at += 1 + at[0]
    if end - at < 2:
        return False
    flags = more = be16(at)
    at += 2
    while more & CONTINUED:
        if end - at < 2:
            return False
        more = be16(at)
        at += 2
    for index in range(PROPERTIES):
        if not flags & (0x8000 >> index):
            continue
        if 0x8000 >> index == HEADERS:
            if end - at < 4 or <Py_ssize_t>be32(at) > end - at - 4:
                return False
            if find_in_table(at + 4, at + 4 + be32(at), name, found):
                return True
            at += 4 + be32(at)
        elif index in (DELIVERY_MODE, PRIORITY, TIMESTAMP):
            size = 8 if index == TIMESTAMP else 1
            if end - at < size:
                return False
            at += size
        else:
            if at >= end or end - at < 1 + at[0]:
                return False
            known = AMQP_NAMES[index]
            if known is not None and known == name:
                # A header of the same name, which comes first, is what counts.
                found.data, found.size, found.letter = at + 1, at[0], 0
                has = True
            at += 1 + at[0]
    return has


cdef bytes amqp_value(const Found *found):
    """As ``native_headers`` writes it, or None for what is left to that."""
    cdef const unsigned char *p = found.data
    cdef char letter = found.letter
    if letter == 0:
        return p[:found.size]
    if letter == c"S" or letter == c"x":
        return p[4:found.size]
    if letter == c"t":
        return b"true" if p[0] else b"false"
    if letter == c"b":
        return b"%d" % <int8_t>p[0]
    if letter == c"B":
        return b"%d" % p[0]
    if letter == c"s":
        return b"%d" % <int16_t>be16(p)
    if letter == c"u":
        return b"%d" % be16(p)
    if letter == c"I":
        return b"%d" % <int32_t>be32(p)
    if letter == c"i":
        return b"%d" % be32(p)
    if letter == c"l" or letter == c"L":
        return b"%d" % <int64_t>be64(p)
    return None


cdef bint find_mqtt(
    const unsigned char *at, const unsigned char *end, bytes name, Found *found
) noexcept:
    """Flags, topic, then properties without their length. A user property wins over a property of
    MQTT, and the last of two equal ones."""
    cdef uint32_t ignored = 0
    cdef int length
    cdef unsigned char kind
    cdef Py_ssize_t size
    cdef bint has = False, is_user = False, matches
    if end - at < 3 or end - at < 3 + be16(at + 1):
        return False
    at += 3 + be16(at + 1)
    while at < end:
        kind = at[0]
        at += 1
        if kind == USER_PROPERTY or kind in (CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA):
            if end - at < 2 or end - at < 2 + be16(at):
                return has
            matches = (
                same(at + 2, be16(at), name) if kind == USER_PROPERTY
                else not is_user and same_property(kind, name)
            )
            if kind == USER_PROPERTY:
                at += 2 + be16(at)
                if end - at < 2 or end - at < 2 + be16(at):
                    return has
                is_user = is_user or matches
            if matches:
                found.data, found.size = at + 2, be16(at)
                found.letter = c"r" if kind == RESPONSE_TOPIC else 0
                has = True
            at += 2 + be16(at)
            continue
        if kind == 0x01:                  # payload format
            size = 1
        elif kind == 0x02:                # expiry
            size = 4
        elif kind == 0x23:                # topic alias
            size = 2
        elif kind == 0x0B:                # subscription identifier
            length = read_variable(at, end, False, &ignored)
            if length <= 0:
                return has
            size = length
        else:
            return has
        if end - at < size:
            return has
        at += size
    return has


cdef inline bint same_property(unsigned char kind, bytes name) noexcept:
    if kind == CONTENT_TYPE:
        return name == b"content-type"
    if kind == RESPONSE_TOPIC:
        return name == b"reply-to"
    return name == b"correlation-id"


cdef bint find_native(
    const unsigned char *at, const unsigned char *end, bytes name, Found *found
) noexcept:
    cdef int count
    cdef bint has = False, matches
    if end - at < 2:
        return False
    count = le16(at)
    at += 2
    for _ in range(count):
        if end - at < 2 or end - at < 2 + le16(at) + 4:
            return False
        matches = same(at + 2, le16(at), name)
        at += 2 + le16(at)
        if end - at - 4 < <Py_ssize_t>le32(at):
            return False
        if matches:
            found.data, found.size, found.letter = at + 4, le32(at), 0
            has = True
        at += 4 + le32(at)
    return has


cdef bytes header_value(
    int envelope_format, const unsigned char *envelope, Py_ssize_t size, bytes name
):
    """The value of a header; None when the message has none of that name."""
    cdef Found found
    cdef const unsigned char *end = envelope + size
    cdef bytes value
    if envelope_format == NATIVE:
        return found.data[:found.size] if find_native(envelope, end, name, &found) else None
    if envelope_format == MQTT:
        if not find_mqtt(envelope, end, name, &found):
            return None
        value = found.data[:found.size]
        return key_of_topic(value) if found.letter == c"r" else value
    if envelope_format != AMQP or not find_amqp(envelope, end, name, &found):
        return None
    value = amqp_value(&found)
    if value is None:
        # A table, a date, a fraction: as everybody else reads it.
        value = dict(native_headers(AMQP, envelope[:size])).get(name.decode())
    return value


def find_header(int envelope_format, bytes envelope not None, bytes name not None):
    """The value of a header in an envelope; None when there is none of that name."""
    return header_value(envelope_format, envelope, len(envelope), name)
