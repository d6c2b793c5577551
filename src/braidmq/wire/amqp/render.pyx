"""From runs of records to the bytes a consumer's socket gets: basic.deliver, header, body."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from braidmq.record.batch cimport RecordBatch, RecordHeader, header_bytes
from braidmq.wire.amqp.frames cimport (
    DELIVER, FRAME_END, FRAME_METHOD, FRAME_OVERHEAD, be16, be32, content_bytes, field_bytes,
    frame_start, is_named, piece_bytes, put16, put32, put64, put_body, put_content,
    put_content_header,
)

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t n, const void *needle, size_t m)

cdef enum:
    ENVELOPE_AMQP = 1


def all_amqp(RecordBatch batch, Py_ssize_t first, Py_ssize_t stop):
    """Whether every record came over AMQP, so that its envelope can be sent as it is."""
    cdef Py_ssize_t i
    for i in range(first, stop):
        if batch.header_at(i).envelope_format != ENVELOPE_AMQP:
            return False
    return True


# --- with what only the broker knows of a message ---

cdef enum:
    HAS_TYPE = 0x8000
    HAS_ENCODING = 0x4000
    HAS_HEADERS = 0x2000
    # Where the values are, each behind a short string and the octet of its type.
    COUNT_AT = 18
    PARTITION_AT = COUNT_AT + 8 + 13
    OFFSET_AT = PARTITION_AT + 8 + 10
    SEEN_AT = OFFSET_AT + 8 + 17
    FACTS_BYTES = SEEN_AT + 8

cdef bytes FACTS = b"".join(
    bytes((len(name),)) + name + b"l" + bytes(8)
    for name in (b"x-delivery-count", b"x-partition", b"x-offset", b"x-first-seen-ms"))
assert len(FACTS) == FACTS_BYTES


cdef struct Told:
    # The properties of a message, cut where facts go.
    uint16_t flags
    Py_ssize_t before     # from the flags to the table of headers; 0: there is no place for them
    Py_ssize_t table      # bytes in it, without its length
    Py_ssize_t kept       # … and without what publishers call as we do facts
    Py_ssize_t behind     # where the rest begins


cdef bint is_fact(const uint8_t *name) noexcept:
    return (
        is_named(name, "x-delivery-count", 16) or is_named(name, "x-partition", 11)
        or is_named(name, "x-offset", 8) or is_named(name, "x-first-seen-ms", 15))


cdef Py_ssize_t keep_headers(uint8_t *out, const uint8_t *p, Py_ssize_t length) noexcept:
    """Copy a table's fields but those that are called as facts are, or with NULL only see how many
    bytes they have. Behind what is no field all is kept."""
    cdef const uint8_t *end = p + length
    cdef const uint8_t *name
    cdef Py_ssize_t kept = 0, size
    while end - p >= 2 and end - p - 1 > p[0]:
        name = p
        size = field_bytes(p + 1 + p[0], end)
        if size < 0 or end - p - 2 - p[0] < size:
            break
        size += 2 + p[0]
        p += size
        if is_fact(name):
            continue
        if out != NULL:
            memcpy(out + kept, name, size)
        kept += size
    if out != NULL:
        memcpy(out + kept, p, end - p)
    return kept + (end - p)


cdef Py_ssize_t cut(
    const uint8_t *properties, Py_ssize_t length, Py_ssize_t piece, Told *told
) noexcept:
    """Where facts go; gives how long the properties are with them. They are left out where the
    frame would be larger than the client takes, and of what can't be read, which the scanner does
    not let in."""
    cdef Py_ssize_t at = 2, longer
    told.before = 0
    if length < 2:
        return length
    told.flags = be16(properties)
    if told.flags & HAS_TYPE and at < length:
        at += 1 + properties[at]
    if told.flags & HAS_ENCODING and at < length:
        at += 1 + properties[at]
    told.behind = at
    told.table = told.kept = 0
    if told.flags & HAS_HEADERS:
        if length - at < 4:
            return length
        told.table = told.kept = be32(properties + at)
        told.behind += 4 + told.table
        if told.behind <= length and memmem(properties + at + 4, told.table, b"x-", 2) != NULL:
            told.kept = keep_headers(NULL, properties + at + 4, told.table)
    if told.behind > length:
        return length
    longer = length + FACTS_BYTES + told.kept - told.table
    if not told.flags & HAS_HEADERS:
        longer += 4
    if 12 + longer > piece:
        return length
    told.before = at
    return longer


cdef uint8_t *put_facts(
    uint8_t *p, const uint8_t *properties, Py_ssize_t length, const Told *told,
    int64_t before, int64_t partition, int64_t offset, int64_t seen_ms,
) noexcept:
    """Properties with facts before the headers they came with."""
    if not told.before:
        memcpy(p, properties, length)
        return p + length
    memcpy(p, properties, told.before)
    put16(p, told.flags | HAS_HEADERS)
    p = put32(p + told.before, <uint32_t>(FACTS_BYTES + told.kept))
    memcpy(p, PyBytes_AS_STRING(FACTS), FACTS_BYTES)
    put64(p + COUNT_AT, before)
    put64(p + PARTITION_AT, partition)
    put64(p + OFFSET_AT, offset)
    put64(p + SEEN_AT, seen_ms)
    p += FACTS_BYTES
    if told.table == told.kept:
        memcpy(p, properties + told.behind - told.table, told.table)
    else:
        keep_headers(p, properties + told.behind - told.table, told.table)
    p += told.kept
    memcpy(p, properties + told.behind, length - told.behind)
    return p + length - told.behind


def render_deliveries(
    RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, uint16_t channel, bytes consumer_tag,
    uint64_t delivery_tag, int64_t attempts, uint32_t frame_max, int64_t partition=-1,
):
    """basic.deliver with content for records ``first`` … ``stop - 1``, tags rising from
    ``delivery_tag``. All of them must have come over AMQP. With a ``partition`` each says in its
    headers what the broker knows of it."""
    cdef Py_ssize_t i, total = 0, route_length, tag_length = len(consumer_tag)
    cdef Py_ssize_t piece = piece_bytes(frame_max), length
    cdef RecordHeader *header
    cdef const uint8_t *envelope
    cdef Told told
    cdef bytes out
    cdef uint8_t *p
    for i in range(first, stop):
        header = batch.header_at(i)
        envelope = <const uint8_t *>header + header_bytes(header) + header.key_length
        route_length = 2 + envelope[0] + envelope[1 + envelope[0]]
        length = header.envelope_length - route_length
        if partition >= 0:
            length = cut(envelope + route_length, length, piece, &told)
        total += FRAME_OVERHEAD + 4 + 1 + tag_length + 8 + 1 + route_length
        total += content_bytes(length, header.value_length, piece)
    out = PyBytes_FromStringAndSize(NULL, total)
    p = <uint8_t *>PyBytes_AS_STRING(out)
    for i in range(first, stop):
        header = batch.header_at(i)
        envelope = <const uint8_t *>header + header_bytes(header) + header.key_length
        route_length = 2 + envelope[0] + envelope[1 + envelope[0]]
        p = frame_start(
            p, FRAME_METHOD, channel, <uint32_t>(4 + 1 + tag_length + 8 + 1 + route_length))
        p = put32(p, DELIVER)
        p[0] = <uint8_t>tag_length
        memcpy(p + 1, PyBytes_AS_STRING(consumer_tag), tag_length)
        p = put64(p + 1 + tag_length, delivery_tag)
        delivery_tag += 1
        p[0] = attempts > 1
        memcpy(p + 1, envelope, route_length)
        p += 1 + route_length
        p[0] = FRAME_END
        p += 1
        length = header.envelope_length - route_length
        if partition < 0:
            p = put_content(
                p, channel, envelope + route_length, length,
                envelope + header.envelope_length, header.value_length, piece)
            continue
        p = put_content_header(
            p, channel, cut(envelope + route_length, length, piece, &told), header.value_length)
        p = put_facts(
            p, envelope + route_length, length, &told,
            attempts - 1, partition, batch.offset_of(i), header.timestamp_ms)
        p = put_body(
            p, channel, envelope + header.envelope_length, header.value_length, piece)
    assert p == <uint8_t *>PyBytes_AS_STRING(out) + total
    return out


def render_content(
    uint16_t channel, bytes method, const unsigned char[::1] properties,
    const unsigned char[::1] body, uint32_t frame_max,
):
    """Any method with content: its frame, then header and body."""
    cdef Py_ssize_t piece = piece_bytes(frame_max)
    cdef Py_ssize_t body_length = body.shape[0], properties_length = properties.shape[0]
    cdef bytes out = PyBytes_FromStringAndSize(
        NULL, FRAME_OVERHEAD + len(method) + content_bytes(properties_length, body_length, piece))
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(out)
    p = frame_start(p, FRAME_METHOD, channel, <uint32_t>len(method))
    memcpy(p, PyBytes_AS_STRING(method), len(method))
    p += len(method)
    p[0] = FRAME_END
    put_content(
        p + 1, channel, &properties[0] if properties_length else NULL, properties_length,
        &body[0] if body_length else NULL, body_length, piece)
    return out
