"""Bodies that several partitions want: found, written once and referred to, and put back.

A checkpoint shows ``SharedBodies`` the records it is about to write, partition by partition; a body
that more than one partition wants becomes a reference in each of their segments (``record`` has the
format) and is given out once, for the body file. Whoever reads such a segment asks ``References``
which bytes of which body files it needs, and gets whole records for them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy, memset

from braidmq.record.offset_set cimport OffsetBits
from braidmq.record.batch cimport (
    REFERENCE_BYTES, REFERRING, SHARED, VERSION, BodyReference, RecordBatch, RecordHeader,
    body_bytes, header_bytes, is_wanted, record_bytes, reference_of, refers, seal_header,
    stored_bytes,
)


cdef extern from "crc32c.h" nogil:
    void braid_crc32c_init()
    uint32_t braid_crc32c_header(const void *data, size_t n)
    uint32_t braid_crc32c_copy(uint32_t crc, void *target, const void *source, size_t n)

braid_crc32c_init()

cdef enum:
    # Four references: for less, a look into another file costs more than it saves.
    SHARED_BYTES_MIN = 64
    # Bodies this near to each other are read together: a read costs about as much as these bytes.
    GAP_BYTES_MAX = 1024
    # One read is at most this long, but for a body that is longer.
    RANGE_BYTES_MAX = 1 << 20

SHARED_SIZE_MIN = SHARED_BYTES_MIN


class BadBody(ValueError):
    """A body that is not what its record says; where it should be."""

    def __init__(self, file, position, reason):
        super().__init__(f"body file {file}, byte {position}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason


cdef void seal_reference(RecordHeader *header) noexcept:
    header.header_crc = braid_crc32c_header(
        <unsigned char *>header + 4, header_bytes(header) + REFERENCE_BYTES - 4)


def body_files(RecordBatch batch not None):
    """Numbers of the body files that the records of a segment refer to."""
    cdef Py_ssize_t i
    cdef int64_t file = -1
    cdef set found = set()
    for i in range(batch.count if batch.shared_bytes else 0):
        if refers(batch.header_at(i)) and reference_of(batch.header_at(i)).file != file:
            file = reference_of(batch.header_at(i)).file
            found.add(file)
    return found


def is_reference(const unsigned char[::1] data):
    """Whether a record that begins here is whole but for its body."""
    return data.shape[0] >= <Py_ssize_t>sizeof(RecordHeader) and refers(<RecordHeader *>&data[0])


# --- writing ---

cdef struct Body:
    const unsigned char *data   # NULL: a free slot
    int64_t position            # in the body file; -1: not given out yet
    uint32_t length
    uint32_t crc
    int32_t owner               # the first partition that wants it
    bint shared


cdef class SharedBodies:
    """The bodies of one checkpoint; ``count`` of them are wanted by several partitions.

    It looks at the memory of the batches it was shown: they have to stay as they are.
    """

    cdef Body *slots
    cdef Py_ssize_t capacity
    cdef Py_ssize_t used
    cdef readonly Py_ssize_t count
    cdef readonly int64_t file
    cdef readonly int64_t end

    def __cinit__(self, int64_t file, int64_t start):
        self.file = file
        self.end = start
        self.used = self.count = 0
        self.capacity = 256
        self.slots = <Body *>calloc(self.capacity, sizeof(Body))
        if self.slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.slots)

    cdef int make_room(self, Py_ssize_t more) except -1:
        cdef Body *old = self.slots
        cdef Py_ssize_t i, before = self.capacity, capacity = self.capacity
        while (self.used + more) * 2 > capacity:
            capacity *= 2
        if capacity == before:
            return 0
        self.slots = <Body *>calloc(capacity, sizeof(Body))
        if self.slots == NULL:
            self.slots = old
            raise MemoryError
        self.capacity = capacity
        for i in range(before):
            if old[i].data != NULL:
                self.slot_of(old[i].data, old[i].length, old[i].crc)[0] = old[i]
        free(old)
        return 0

    cdef Body *slot_of(
        self, const unsigned char *data, uint32_t length, uint32_t crc
    ) noexcept:
        """Where this body is, or would be."""
        cdef uint64_t mask = self.capacity - 1, at = (crc ^ <uint64_t>length << 7) & mask
        cdef Body *slot
        while True:
            slot = &self.slots[at]
            if slot.data == NULL or (
                slot.crc == crc and slot.length == length
                and (slot.data == data or memcmp(slot.data, data, length) == 0)
            ):
                return slot
            at = (at + 1) & mask

    cdef Body *body_of(self, const RecordHeader *header) noexcept:
        """NULL for one that is too small to be shared."""
        cdef Py_ssize_t length = body_bytes(header)
        if length < SHARED_BYTES_MIN or length > 0xffffffff:
            return NULL
        return self.slot_of(
            <const unsigned char *>header + header_bytes(header), <uint32_t>length, header.body_crc)

    def note(
        self, RecordBatch batch not None, tuple acknowledged, int64_t start, int32_t owner
    ):
        """A partition, ``owner``, wants what ``RecordBatch.stamped`` would give of a batch."""
        cdef const RecordHeader *header
        cdef Body *body
        cdef Py_ssize_t i
        self.make_room(batch.count)
        for i in range(batch.count):
            if not is_wanted(batch.offset_of(i), acknowledged, start):
                continue
            header = batch.header_at(i)
            body = self.body_of(header)
            if body == NULL:
                continue
            if body.data == NULL:
                body.data = <const unsigned char *>header + header_bytes(header)
                body.length = <uint32_t>body_bytes(header)
                body.crc = header.body_crc
                body.owner = owner
                body.position = -1
                self.used += 1
            elif body.owner != owner and not body.shared:
                body.shared = True
                self.count += 1

    def stamped(self, RecordBatch batch not None, tuple acknowledged, int64_t start):
        """As ``RecordBatch.stamped``, with references to what is shared.

        Returns the bytes, how many they would be with all bodies in them (0: no record is wanted),
        and the bodies that nobody referred to before, which stand in the body file from where
        ``end`` was on.
        """
        cdef bytes out = PyBytes_FromStringAndSize(NULL, batch.size)
        cdef bytes bodies = PyBytes_FromStringAndSize(NULL, batch.size)
        cdef unsigned char *target = <unsigned char *>PyBytes_AS_STRING(out)
        cdef unsigned char *body_target = <unsigned char *>PyBytes_AS_STRING(bodies)
        cdef Py_ssize_t i, at = 0, whole = 0, fresh = 0
        cdef int64_t offset
        cdef RecordHeader *header
        cdef Body *body
        for i in range(batch.count):
            offset = batch.offset_of(i)
            if not is_wanted(offset, acknowledged, start):
                continue
            header = batch.header_at(i)
            body = self.body_of(header)
            if body == NULL or not body.shared:
                at += put_whole(target + at, header, offset)
            else:
                if body.position < 0:
                    body.position = self.end + fresh
                    memcpy(body_target + fresh, body.data, body.length)
                    fresh += body.length
                at += put_reference(target + at, header, offset, self.file, body.position)
            whole += record_bytes(header)
        self.end += fresh
        return (out if at == batch.size else out[:at]), whole, bodies[:fresh]


cdef Py_ssize_t put_whole(
    unsigned char *target, const RecordHeader *header, int64_t offset
) noexcept:
    cdef Py_ssize_t length = record_bytes(header)
    cdef RecordHeader *stamped = <RecordHeader *>target
    memcpy(target, header, length)
    stamped.offset = offset
    seal_header(stamped)
    return length


cdef Py_ssize_t put_reference(
    unsigned char *target, const RecordHeader *header, int64_t offset,
    int64_t file, int64_t position,
) noexcept:
    cdef RecordHeader *stamped = <RecordHeader *>target
    cdef BodyReference *reference
    memcpy(target, header, header_bytes(header))
    stamped.offset = offset
    stamped.version = REFERRING
    stamped.flags |= SHARED
    reference = <BodyReference *>reference_of(stamped)
    reference.file = file
    reference.position = position
    seal_reference(stamped)
    return stored_bytes(stamped)


# --- reading ---

cdef struct Place:
    int64_t file
    int64_t position
    int64_t length
    Py_ssize_t record


cdef int by_place(const void *one, const void *other) noexcept nogil:
    cdef const Place *a = <const Place *>one
    cdef const Place *b = <const Place *>other
    if a.file != b.file:
        return -1 if a.file < b.file else 1
    return (a.position > b.position) - (a.position < b.position)


cdef class References:
    """The records of a segment from ``first`` on, as many as have ``bytes_max`` bytes with their
    bodies, but at least one. ``ranges`` are the bytes of body files they need: file, start, stop.
    """

    cdef RecordBatch batch
    cdef Py_ssize_t first
    cdef Py_ssize_t stop
    cdef Py_ssize_t size
    cdef int32_t *range_of      # of each record, its bytes among the ranges
    cdef readonly list ranges

    def __cinit__(self, RecordBatch batch not None, Py_ssize_t first, Py_ssize_t bytes_max):
        cdef Place *places
        if not 0 <= first < batch.count:
            raise IndexError(first)
        self.batch = batch
        self.first = self.stop = first
        self.ranges = []
        while self.stop < batch.count and (self.stop == first or self.size < bytes_max):
            self.size += record_bytes(batch.header_at(self.stop))
            self.stop += 1
        self.range_of = <int32_t *>malloc((self.stop - first) * sizeof(int32_t))
        places = <Place *>malloc((self.stop - first) * sizeof(Place))
        if self.range_of == NULL or places == NULL:
            free(places)
            raise MemoryError
        try:
            self.join(places, self.find(places))
        finally:
            free(places)

    def __dealloc__(self):
        free(self.range_of)

    cdef Py_ssize_t find(self, Place *places) noexcept:
        """Fills in the places of all bodies that are elsewhere, in their order; how many."""
        cdef const RecordHeader *header
        cdef Py_ssize_t i, count = 0
        cdef bint ordered = True
        for i in range(self.first, self.stop):
            header = self.batch.header_at(i)
            if not refers(header):
                continue
            places[count].file = reference_of(header).file
            places[count].position = reference_of(header).position
            places[count].length = body_bytes(header)
            places[count].record = i - self.first
            if count and by_place(&places[count - 1], &places[count]) > 0:
                ordered = False
            count += 1
        if not ordered:
            qsort(places, count, sizeof(Place), by_place)
        return count

    cdef int join(self, const Place *places, Py_ssize_t count) except -1:
        cdef int64_t file = -1, start = 0, stop = 0
        cdef const Place *place
        cdef Py_ssize_t i
        for i in range(count):
            place = &places[i]
            if i and (
                place.file != file or place.position - stop > GAP_BYTES_MAX
                or place.position + place.length - start > RANGE_BYTES_MAX
            ):
                self.ranges.append((file, start, stop))
                stop = 0
            if not stop:
                file = place.file
                start = place.position
            stop = max(stop, place.position + place.length)
            self.range_of[place.record] = <int32_t>len(self.ranges)
        if count:
            self.ranges.append((file, start, stop))
        return 0

    def resolved(self, list pieces not None):
        """The records with their bodies, which are in ``pieces``: the bytes of each range, or as
        many as there are. Damage ends them; raises BadBody when it is in the first.
        """
        cdef RecordBatch whole = RecordBatch.__new__(RecordBatch)
        cdef list views = [memoryview(piece) for piece in pieces]
        cdef const RecordHeader *header
        cdef Py_ssize_t i, length
        if len(views) != len(self.ranges):
            raise ValueError("as many pieces as ranges")
        whole.reserve(self.size, self.stop - self.first)
        whole.dense = False
        for i in range(self.first, self.stop):
            header = self.batch.header_at(i)
            if refers(header):
                length = self.put(whole.data + whole.size, header, i - self.first, views)
                if length < 0:
                    break
            else:
                length = record_bytes(header)
                memcpy(whole.data + whole.size, header, length)
            whole.note(<RecordHeader *>(whole.data + whole.size), whole.size)
            whole.size += length
        whole.base_offset = whole.header_at(0).offset
        return whole

    cdef Py_ssize_t put(
        self, unsigned char *target, const RecordHeader *header, Py_ssize_t record, list views
    ) except -2:
        """Write the whole record, and say how long it is; -1 when its body is damaged."""
        cdef const BodyReference *reference = reference_of(header)
        cdef int64_t start = self.ranges[self.range_of[record]][1]
        cdef Py_buffer *view = PyMemoryView_GET_BUFFER(views[self.range_of[record]])
        cdef Py_ssize_t within = reference.position - start
        cdef Py_ssize_t before = header_bytes(header), length = body_bytes(header)
        cdef RecordHeader *whole = <RecordHeader *>target
        cdef str reason = ""
        if view.len - within < length:
            reason = "the file ends within a body"
        elif header.body_crc != braid_crc32c_copy(
            0, target + before, <const unsigned char *>view.buf + within, length
        ):
            reason = "body checksum differs"
        if reason:
            if record:
                return -1
            raise BadBody(reference.file, reference.position, reason)
        memcpy(target, header, before)
        whole.version = VERSION
        whole.flags &= ~SHARED
        seal_header(whole)
        memset(target + before + length, 0, record_bytes(whole) - before - length)
        return record_bytes(whole)


def without(RecordBatch batch not None, OffsetBits unwanted not None):
    """The records of a segment but for some, with their references; and how many they are."""
    cdef Py_ssize_t i, length, at = 0, kept = 0
    cdef bytes out = PyBytes_FromStringAndSize(NULL, batch.size)
    cdef unsigned char *target = <unsigned char *>PyBytes_AS_STRING(out)
    for i in range(batch.count):
        if unwanted.has(batch.offset_of(i)):
            continue
        length = stored_bytes(batch.header_at(i))
        memcpy(target + at, batch.header_at(i), length)
        at += length
        kept += 1
    return (out if at == batch.size else out[:at]), kept
