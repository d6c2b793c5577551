"""From runs of records to the bytes a consumer's socket gets: basic.deliver, header, body."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from braidmq.record.batch cimport RecordBatch, RecordHeader, header_bytes
from braidmq.wire.amqp.frames cimport (
    DELIVER, FRAME_END, FRAME_METHOD, FRAME_OVERHEAD, content_bytes, frame_start, piece_bytes,
    put32, put64, put_content,
)

cdef enum:
    ENVELOPE_AMQP = 1


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
    cdef Py_ssize_t piece = piece_bytes(frame_max)
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
