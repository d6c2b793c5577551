"""Octets and frames, for every kernel that reads or writes AMQP."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8
    PUBLISH = 0x003C0028
    DELIVER = 0x003C003C
    ACK = 0x003C0050
    REJECT = 0x003C005A
    NACK = 0x003C0078
    ACK_FRAME_BYTES = 21      # of basic.ack and basic.nack


cdef enum Found:   # where a method, its header and its body are looked for, to read in one step
    NOT_A_RUN      # some other frame, or not the three in a row
    INCOMPLETE     # could be, once more bytes are there
    COMPLETE


cdef inline uint16_t be16(const uint8_t *p) noexcept:
    return (<uint16_t>p[0] << 8) | p[1]


cdef inline uint32_t be32(const uint8_t *p) noexcept:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t be64(const uint8_t *p) noexcept:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)


cdef inline Found whole_body(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t method_at, Py_ssize_t body_at, uint64_t length
) noexcept:
    """Whether all of a message's body is in one frame, on the channel of its method."""
    cdef const uint8_t *p = data + body_at
    if size - body_at < 7:
        return INCOMPLETE
    if p[0] != FRAME_BODY or p[1] != data[method_at + 1] or p[2] != data[method_at + 2]:
        return NOT_A_RUN
    if be32(p + 3) != length:
        return NOT_A_RUN
    if size - body_at < <Py_ssize_t>length + FRAME_OVERHEAD:
        return INCOMPLETE
    if p[7 + length] != FRAME_END:
        return NOT_A_RUN
    return COMPLETE


cdef inline Py_ssize_t field_bytes(const uint8_t *p, const uint8_t *end) noexcept:
    """Length of a field's value, its type at ``p``; -1 for what is none."""
    cdef uint8_t kind = p[0]
    if kind == c't' or kind == c'b' or kind == c'B':
        return 1
    if kind == c's' or kind == c'u':
        return 2
    if kind == c'I' or kind == c'i' or kind == c'f':
        return 4
    if kind == c'D':
        return 5
    if kind == c'l' or kind == c'L' or kind == c'd' or kind == c'T':
        return 8
    if kind == c'V':
        return 0
    if kind == c'S' or kind == c'x' or kind == c'A' or kind == c'F':
        return 4 + <Py_ssize_t>be32(p + 1) if end - p >= 5 else -1
    return -1


cdef inline bint is_named(const uint8_t *name, const char *wanted, Py_ssize_t length) noexcept:
    return name[0] == length and memcmp(name + 1, wanted, length) == 0


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
    # Not ``value & 0xffffffff``: a literal beyond 31 bits is a Python object to Cython.
    return put32(put32(p, <uint32_t>(value >> 32)), <uint32_t>value)


cdef inline uint8_t *frame_start(
    uint8_t *p, uint8_t kind, uint16_t channel, uint32_t length
) noexcept:
    p[0] = kind
    return put32(put16(p + 1, channel), length)


cdef inline uint8_t *put_answer(
    uint8_t *p, uint16_t channel, uint32_t method, uint64_t tag, uint8_t bits
) noexcept:
    """basic.ack, nack or reject: all are a tag and an octet of bits."""
    p = put64(put32(frame_start(p, FRAME_METHOD, channel, 13), method), tag)
    p[0] = bits
    p[1] = FRAME_END
    return p + 2


cdef inline Py_ssize_t piece_bytes(uint32_t frame_max) noexcept:
    """How much of a body one frame holds; a maximum of 0 is none."""
    return (frame_max if frame_max else 0x7fffffff) - FRAME_OVERHEAD


cdef inline Py_ssize_t content_bytes(
    Py_ssize_t properties_length, Py_ssize_t body_length, Py_ssize_t piece
) noexcept:
    cdef Py_ssize_t frames = (body_length + piece - 1) // piece
    return FRAME_OVERHEAD + 12 + properties_length + body_length + frames * FRAME_OVERHEAD


cdef inline uint8_t *put_content_header(
    uint8_t *p, uint16_t channel, Py_ssize_t properties_length, Py_ssize_t body_length
) noexcept:
    """Up to where the properties go."""
    p = frame_start(p, FRAME_HEADER, channel, <uint32_t>(12 + properties_length))
    return put64(put32(p, 60 << 16), body_length)


cdef inline uint8_t *put_body(
    uint8_t *p, uint16_t channel, const uint8_t *body, Py_ssize_t body_length, Py_ssize_t piece
) noexcept:
    """What follows the properties: the header's end, and body frames."""
    cdef Py_ssize_t done = 0, length
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


cdef inline uint8_t *put_content(
    uint8_t *p, uint16_t channel, const uint8_t *properties, Py_ssize_t properties_length,
    const uint8_t *body, Py_ssize_t body_length, Py_ssize_t piece
) noexcept:
    """Content header frame and body frames."""
    p = put_content_header(p, channel, properties_length, body_length)
    memcpy(p, properties, properties_length)
    return put_body(p + properties_length, channel, body, body_length, piece)
