"""The envelope of an AMQP message, checked and taken apart where it is: nothing is copied.

    ┌────────┬──────────┬────────┬─────────────┬────────────┐
    │ length │ exchange │ length │ routing key │ properties │      lengths of 1 byte
    └────────┴──────────┴────────┴─────────────┴────────────┘

What passes here is what ``properties.decode_properties`` reads, and what does not raises there.
"""

from libc.stdint cimport uint8_t, uint16_t
from libc.string cimport memset

from braidmq.wire.amqp.frames cimport be16, be32, field_bytes
from braidmq.wire.utf8 cimport is_utf8

cdef enum:
    CONTINUED = 1                  # another word of flags follows
    UNDEFINED = 2                  # class basic has 14 properties
    # As in tables.py, with the reasons.
    DEPTH_MAX = 32
    VALUES_MAX = 16_384
    TABLE_BYTES_MAX = 1_048_576

cdef enum:
    PROPERTIES = 14
    # Their places among the properties.
    CONTENT_TYPE = 0
    CONTENT_ENCODING = 1
    HEADERS = 2
    DELIVERY_MODE = 3
    PRIORITY = 4
    CORRELATION_ID = 5
    REPLY_TO = 6
    EXPIRATION = 7
    MESSAGE_ID = 8
    TIMESTAMP = 9
    TYPE = 10
    USER_ID = 11
    APP_ID = 12


cdef struct Parts:
    const uint8_t *exchange                # a short string, its length in front
    const uint8_t *routing_key             # the same
    const uint8_t *values[PROPERTIES]      # NULL: it is not there
    const uint8_t *table_end               # of the headers


cdef inline bint take_route(const uint8_t *data, Py_ssize_t size, Parts *parts) noexcept:
    """Exchange and routing key; whether both are there, and room for properties behind them."""
    cdef Py_ssize_t middle, end
    if size < 4:
        return False
    middle = 1 + <Py_ssize_t>data[0]
    if middle >= size:
        return False
    end = middle + 1 + data[middle]
    if end + 2 > size:
        return False
    parts.exchange = data
    parts.routing_key = data + middle
    return True


cdef inline const char *check_fields(
    const uint8_t *p, const uint8_t *end, bint named, int depth, int *values_left
) noexcept:
    """Of a table, where they have names, or of an array."""
    cdef Py_ssize_t length
    cdef const char *fault
    if depth > DEPTH_MAX:
        return "its headers are nested too deeply"
    while p < end:
        if named:
            if end - p - 1 < p[0]:
                return "its headers end inside a name"
            if not is_utf8(p + 1, p[0], True):
                return "the name of a header is no text"
            p += 1 + p[0]
        if p >= end:
            return "its headers end before a value"
        values_left[0] -= 1
        if values_left[0] < 0:
            return "it has too many headers"
        length = field_bytes(p, end)
        if length < 0 or end - p - 1 < length:
            return "its headers have a value that is cut off or of an unknown type"
        if p[0] == c"A" or p[0] == c"F":
            fault = check_fields(p + 5, p + 1 + length, p[0] == c"F", depth + 1, values_left)
            if fault != NULL:
                return fault
        p += 1 + length
    return NULL


cdef inline const char *take_apart(const uint8_t *data, Py_ssize_t size, Parts *parts) noexcept:
    """What is wrong with an envelope; NULL: it is whole, and ``parts`` says where all of it is."""
    cdef const uint8_t *end = data + size
    cdef const uint8_t *p
    cdef uint16_t flags, word
    cdef int index, length, values_left = VALUES_MAX
    cdef const char *fault
    memset(parts, 0, sizeof(Parts))
    if not take_route(data, size, parts):
        return "it ends inside the exchange or the routing key"
    p = parts.routing_key + 1 + parts.routing_key[0]
    flags = word = be16(p)
    p += 2
    while word & CONTINUED:
        if end - p < 2:
            return "it ends inside the flags of properties"
        word = be16(p)
        p += 2
        if word & ~CONTINUED:
            return "it has flags of properties that do not exist"
    if flags & UNDEFINED:
        return "it has flags of properties that do not exist"
    for index in range(PROPERTIES):
        if not flags & (0x8000 >> index):
            continue
        parts.values[index] = p
        if index == HEADERS:
            if end - p < 4 or end - p - 4 < <Py_ssize_t>be32(p):
                return "it ends inside the headers"
            if <Py_ssize_t>be32(p) > TABLE_BYTES_MAX:
                return "its headers are too large"
            parts.table_end = p + 4 + be32(p)
            fault = check_fields(p + 4, parts.table_end, True, 1, &values_left)
            if fault != NULL:
                return fault
            p = parts.table_end
        elif index == DELIVERY_MODE or index == PRIORITY or index == TIMESTAMP:
            length = 8 if index == TIMESTAMP else 1
            if end - p < length:
                return "it ends inside a property"
            p += length
        else:
            if end - p < 1 or end - p - 1 < p[0]:
                return "it ends inside a property"
            if not is_utf8(p + 1, p[0], True):
                return "a property is no text"
            p += 1 + p[0]
    if p == end:
        return NULL
    return "bytes follow its last property"
