from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from braidmq.record.batch cimport RecordBatch
from braidmq.wire.mqtt.fields cimport read_variable


cdef enum:
    QOS = 3
    RETAIN = 4
    DUP = 8
    HAS_PROPERTIES = 16       # others than the topic alias
    USER_PROPERTIES = 32
    EXPIRY = 64
    ALIAS = 128               # its packets are not for others as they are

cdef enum:
    AS_SERVER = 0
    AS_CLIENT = 1
    V3_1 = 3
    V5 = 5
    PUBLISH = 3

cdef enum Fault:
    OK
    ENDS_EARLY
    BAD_VARIABLE
    BAD_TEXT
    BAD_QOS
    BAD_DUP
    BAD_PROPERTY
    BAD_FLAGS
    BAD_KIND
    BAD_LENGTH
    WILDCARD
    TWICE
    BAD_VALUE
    NO_TOPIC
    NO_ID
    BAD_REASON
    RESPONSE_WILDCARD
    NOT_FOR_SENDER
    UNKNOWN_ALIAS
    BAD_ALIAS
    TOO_LARGE
    TOO_MANY
    NOT_CONNECT
    SECOND_CONNECT


cdef struct Found:  # what a packet's properties say that matters here
    int flags
    uint32_t expiry_s
    uint16_t alias
    const uint8_t *alias_at    # its three bytes; NULL: none


cdef struct Publish:
    const uint8_t *topic       # its two bytes of length stand before it
    Py_ssize_t topic_length
    const uint8_t *properties
    Py_ssize_t properties_length
    const uint8_t *payload
    Py_ssize_t payload_length
    uint16_t packet_id
    Found found


cdef inline Py_ssize_t packet_head(
    const uint8_t *p, const uint8_t *end, bint minimal, uint32_t *length
) noexcept:
    """Bytes of a packet's fixed header; 0: it is cut off, -1: its length is none."""
    cdef int size = read_variable(p + 1, end, minimal, length)
    return size + 1 if size > 0 else size


cdef bint is_text(const uint8_t *p, Py_ssize_t length) noexcept
cdef bint has_wildcard(const uint8_t *p, Py_ssize_t length) noexcept
cdef Fault read_properties(
    const uint8_t *p, const uint8_t *end, int packet, int role, Found *found
) noexcept
cdef Fault read_publish(
    const uint8_t *p, const uint8_t *end, uint8_t first, int version, int role, Publish *out
) noexcept


cdef class PublishRun:
    cdef readonly int flags
    cdef readonly bytes topic
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t stop
    cdef readonly Py_ssize_t payload_bytes
    cdef readonly object packet_ids
    cdef int version
    cdef int role
    cdef RecordBatch records(self, const uint8_t *p, int64_t now_ms, bint transient)
