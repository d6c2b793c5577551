"""From runs of records to the bytes a consumer's socket gets: basic.deliver, header, body."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from braidmq.storage.record cimport RecordBatch, RecordHeader, header_bytes

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8
    DELIVER = 0x003C003C
    ENVELOPE_AMQP = 1


cdef inline uint8_t *put16(uint8_t *p, uint16_t value) noexcept:
    p[0] = value >> 8
    p[1] = value & 0xff
    return p + 2


cdef inline uint8_t *put32(uint8_t *p, uint32_t value) noexcept:
    p[0] = value >> 24
    p[1] = value >> 16 & 0xff
    p[2] = value >> 8 & 0xff
    p[3] = value & 0xff
    return p + 4


cdef inline uint8_t *put64(uint8_t *p, uint64_t value) noexcept:
    return put32(put32(p, value >> 32), value & 0xffffffff)


cdef inline uint8_t *frame_start(
    uint8_t *p, uint8_t kind, uint16_t channel, uint32_t length
) noexcept:
    p[0] = kind
    return put32(put16(p + 1, channel), length)


cdef uint8_t *put_content(
    uint8_t *p, uint16_t channel, const uint8_t *properties, Py_ssize_t properties_length,
    const uint8_t *body, Py_ssize_t body_length, Py_ssize_t piece
) noexcept:
    """Content header frame and body frames."""
    cdef Py_ssize_t done = 0, length
    p = frame_start(p, FRAME_HEADER, channel, <uint32_t>(12 + properties_length))
    p = put16(p, 60)
    p = put16(p, 0)
    p = put64(p, body_length)
    memcpy(p, properties, properties_length)
    p += properties_length
    p[0] = FRAME_END
    p += 1
    while done < body_length:
        length = min(piece, body_length - done)
        p = frame_start(p, FRAME_BODY, channel, <uint32_t>length)
        memcpy(p, body + done, length)
        p += length
        p[0] = FRAME_END
        p += 1
        done += length
    return p


cdef inline Py_ssize_t content_bytes(
    Py_ssize_t properties_length, Py_ssize_t body_length, Py_ssize_t piece
) noexcept:
    cdef Py_ssize_t frames = (body_length + piece - 1) // piece
    return FRAME_OVERHEAD + 12 + properties_length + body_length + frames * FRAME_OVERHEAD


def all_amqp(RecordBatch batch, Py_ssize_t first, Py_ssize_t stop):
    """Whether every record came over AMQP, so that its envelope can be sent as it is."""
    cdef Py_ssize_t i
    for i in range(first, stop):
        if batch.header_at(i).envelope_format != ENVELOPE_AMQP:
            return False
    return True


def render_deliveries(
    RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, uint16_t channel, bytes consumer_tag,
    uint64_t delivery_tag, bint redelivered, uint32_t frame_max,
):
    """basic.deliver with content for records ``first`` … ``stop - 1``, tags rising from
    ``delivery_tag``. All of them must have come over AMQP."""
    cdef Py_ssize_t i, total = 0, route_length, tag_length = len(consumer_tag)
    cdef Py_ssize_t piece = (frame_max if frame_max else 0x7fffffff) - FRAME_OVERHEAD
    cdef RecordHeader *header
    cdef const uint8_t *envelope
    cdef bytes out
    cdef uint8_t *p
    for i in range(first, stop):
        header = batch.header_at(i)
        envelope = <const uint8_t *>header + header_bytes(header) + header.key_length
        route_length = 2 + envelope[0] + envelope[1 + envelope[0]]
        total += FRAME_OVERHEAD + 4 + 1 + tag_length + 8 + 1 + route_length
        total += content_bytes(header.envelope_length - route_length, header.value_length, piece)
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
        p[0] = redelivered
        memcpy(p + 1, envelope, route_length)
        p += 1 + route_length
        p[0] = FRAME_END
        p = put_content(
            p + 1, channel, envelope + route_length, header.envelope_length - route_length,
            envelope + header.envelope_length, header.value_length, piece)
    return out


def render_content(
    uint16_t channel, bytes method, const unsigned char[::1] properties,
    const unsigned char[::1] body, uint32_t frame_max,
):
    """Any method with content: its frame, then header and body."""
    cdef Py_ssize_t piece = (frame_max if frame_max else 0x7fffffff) - FRAME_OVERHEAD
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
