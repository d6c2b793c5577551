"""What is wrong with an envelope: asked before one is read, and before one from outside is kept.

AMQP's is in ``amqp/parts.pyx``. What passes can be read by ``native_headers``, and what does not
raises there.
"""

from libc.string cimport memset

from braidmq.wire.mqtt.fields cimport be16
from braidmq.wire.mqtt.publish cimport (
    AS_CLIENT,
    AS_SERVER,
    OK,
    PUBLISH,
    QOS,
    RETAIN,
    Found,
    has_wildcard,
    is_text,
    read_properties,
)
from braidmq.wire.native_headers cimport le16, le32
from braidmq.wire.utf8 cimport is_utf8


cdef inline const char *fault_in_native(const unsigned char *data, Py_ssize_t size) noexcept:
    cdef Py_ssize_t at = 2
    cdef int _left
    if size < 2:
        if size == 0:
            return NULL
        return "it ends inside the number of headers"
    for _left in range(le16(data), 0, -1):
        if size - at < 2 or size - at - 2 < le16(data + at):
            return "it ends inside the name of a header"
        if not is_utf8(data + at + 2, le16(data + at), True):
            return "the name of a header is no text"
        at += 2 + le16(data + at)
        if size - at < 4 or size - at - 4 < <Py_ssize_t>le32(data + at):
            return "it ends inside the value of a header"
        at += 4 + <Py_ssize_t>le32(data + at)
    if at == size:
        return NULL
    return "bytes follow its last header"


cdef inline const char *fault_in_mqtt(
    const unsigned char *data, Py_ssize_t size, bint published
) noexcept:
    """``published``: it must be one that a client could have published just so."""
    cdef Found found
    cdef Py_ssize_t end
    memset(&found, 0, sizeof(Found))
    if size < 3 or size - 3 < be16(data + 1):
        return "it ends inside the topic"
    end = 3 + <Py_ssize_t>be16(data + 1)
    if read_properties(
        data + end, data + size, PUBLISH, AS_SERVER if published else AS_CLIENT, &found
    ) != OK:
        return "its properties are not those of a PUBLISH"
    if not published:
        return NULL
    if data[0] & ~(QOS | RETAIN) or data[0] & QOS == QOS:
        return "it has flags that no PUBLISH has"
    if end == 3 or not is_text(data + 3, end - 3) or has_wildcard(data + 3, end - 3):
        return "its topic is none that can be published to"
    if found.alias_at != NULL:
        return "it has a topic alias, which only its connection knows"
    return NULL
