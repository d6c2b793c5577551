"""Journal entries. This module owns the entry format.

    byte  0        4        8     10   11      12            16      24     32
          ┌────────┬────────┬─────┬────┬───────┬─────────────┬───────┬──────┐
          │ CRC32C │ length │ BJ  │kind│version│ meta length │ epoch │ LSN  │
          ├────────┴────────┴──┬──┴────┴───────┴─────────────┴───────┴──────┤
       32 │ meta, zeros to 8   │ payload: encoded records, a multiple of 8  │
          └────────────────────┴────────────────────────────────────────────┘

Little-endian. The length is the whole entry's, a multiple of 8; the CRC covers everything after
itself. The epoch is that of this use of the file, so what an earlier use left behind is never
taken for an entry. The LSN counts entries across files without a gap. How they are grouped and
which file they are in is this journal's own affair, and takes no number: a MARK and a ROLL carry
the LSN of the entry that comes next.

A MARK closes every group of entries that is written together, and says through which byte of the
file the disk had answered before that group was written. It is what tells damage from a torn tail:
a group is written only after the one before was synced, so what can't be read below the byte that
a later mark names was once safe on disk and has been damaged since, while what lies above every
mark was never confirmed.

In version 1, which is still read, marks and rolls had LSNs of their own, and a mark said through
which LSN the disk had answered.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset


cdef extern from "crc32c.h" nogil:
    void braid_crc32c_init()
    uint32_t braid_crc32c(uint32_t crc, const void *data, size_t n)
    uint32_t braid_crc32c_copy(uint32_t crc, void *target, const void *source, size_t n)

braid_crc32c_init()

cdef enum:
    HEADER_BYTES = 32
    MARK_BYTES = 40
    MAGIC = 0x4A42
    VERSION = 2
    VERSION_UNNUMBERED = 2    # from here on marks and rolls take no LSN
    KIND_MARK = 1
    KIND_ROLL = 10
    CAPACITY_MIN = 4096
    CAPACITY_EXPECTED_MAX = 1 << 20
    # Below this a copy costs less than one more piece to write.
    REFERENCED_MIN = 16 << 10

KIND_OF_MARK = KIND_MARK
KIND_OF_ROLL = KIND_ROLL
ENTRY_HEADER_SIZE = HEADER_BYTES
MARK_SIZE = MARK_BYTES
ENTRY_VERSION = VERSION


cdef struct EntryHeader:
    uint32_t crc
    uint32_t length
    uint16_t magic
    uint8_t kind
    uint8_t version
    uint32_t meta_length
    uint64_t epoch
    uint64_t lsn


cdef inline bint takes_lsn(uint8_t kind, uint8_t version) noexcept:
    return version < VERSION_UNNUMBERED or (kind != KIND_MARK and kind != KIND_ROLL)


cdef inline Py_ssize_t aligned(Py_ssize_t size) noexcept:
    return (size + 7) & ~<Py_ssize_t>7


cdef class EntryBuffer:
    """Entries waiting for the next write to one journal file.

    Headers, metas and small payloads are laid out as the file will be. Large payloads stay where
    they are until they are written: ``pieces`` has them between what is laid out.

    Every call is one step for other threads: none lets go of the interpreter's lock.
    """

    cdef unsigned char *data
    cdef Py_ssize_t capacity
    cdef Py_ssize_t laid
    cdef Py_ssize_t expected
    cdef list referenced    # (bytes laid out before it, payload)
    cdef int exports
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t room
    cdef readonly uint64_t epoch
    cdef readonly uint64_t next_lsn

    def __cinit__(self, uint64_t epoch, uint64_t next_lsn, Py_ssize_t room, Py_ssize_t position=0):
        """For the file of ``epoch`` that has ``room`` bytes left from ``position`` on."""
        self.data = NULL
        self.referenced = []
        self.capacity = self.laid = self.size = self.expected = 0
        self.epoch = epoch
        self.next_lsn = next_lsn
        self.room = room
        self.position = position

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.laid, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    def __len__(self):
        return self.size

    def pieces(self):
        """What is to be written, in order, without a copy."""
        cdef list found = []
        cdef Py_ssize_t at = 0
        if not self.referenced:
            return [memoryview(self)]
        whole = memoryview(self)
        for end, payload in self.referenced:
            found.append(whole[at:end])
            found.append(payload)
            at = end
        found.append(whole[at:])
        return found

    cdef unsigned char *make_room(self, Py_ssize_t length) except NULL:
        cdef Py_ssize_t wanted = self.laid + length
        cdef void *grown
        assert self.exports == 0
        if wanted > self.capacity:
            wanted = max(wanted, self.capacity + (self.capacity >> 1), self.expected, CAPACITY_MIN)
            grown = realloc(self.data, wanted)
            if grown == NULL:
                raise MemoryError
            self.data = <unsigned char *>grown
            self.capacity = wanted
        return self.data + self.laid

    cdef EntryHeader *begin(
        self, uint8_t kind, uint32_t meta_length, Py_ssize_t laid, Py_ssize_t length
    ) except NULL:
        """The next entry's header, with room for what is laid out of it."""
        cdef EntryHeader *header = <EntryHeader *>self.make_room(laid)
        header.length = <uint32_t>length
        header.magic = MAGIC
        header.kind = kind
        header.version = VERSION
        header.meta_length = meta_length
        header.epoch = self.epoch
        header.lsn = self.next_lsn
        return header

    cdef void finish(self, uint8_t kind, Py_ssize_t laid, Py_ssize_t length) noexcept:
        self.next_lsn += takes_lsn(kind, VERSION)
        self.laid += laid
        self.size += length

    def append(self, uint8_t kind, bytes meta, payload=None):
        """Add an entry; returns its LSN, or 0 when the file has no room for it and a mark. Of one
        that takes none it is the next entry's.

        Nobody may change the payload before it is written.
        """
        cdef Py_buffer view
        if payload is None:
            return self.add(kind, meta, NULL, 0, None)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            return self.add(kind, meta, <const unsigned char *>view.buf, view.len, payload)
        finally:
            PyBuffer_Release(&view)

    cdef uint64_t add(
        self, uint8_t kind, bytes meta, const unsigned char *payload, Py_ssize_t payload_length,
        owner,
    ) except? 0:
        cdef Py_ssize_t meta_length = len(meta)
        cdef Py_ssize_t start = HEADER_BYTES + aligned(meta_length)
        cdef Py_ssize_t length = start + payload_length, laid = length
        cdef bint referenced = payload_length >= REFERENCED_MIN
        cdef EntryHeader *header
        cdef unsigned char *entry
        cdef uint32_t crc
        cdef uint64_t lsn = self.next_lsn
        assert payload_length % 8 == 0
        if length > 0x7fffffff:
            raise OverflowError("a journal entry holds at most 2 GiB")
        if self.size + length + MARK_BYTES > self.room:
            return 0
        if referenced:
            laid = start
        header = self.begin(kind, <uint32_t>meta_length, laid, length)
        entry = <unsigned char *>header
        memset(entry + start - 8, 0, 8 if meta_length else 0)
        memcpy(entry + HEADER_BYTES, <const unsigned char *>meta, meta_length)
        crc = braid_crc32c(0, entry + 4, start - 4)
        if referenced:
            crc = braid_crc32c(crc, payload, payload_length)
            self.referenced.append((self.laid + start, memoryview(owner)))
        else:
            crc = braid_crc32c_copy(crc, entry + start, payload, payload_length)
        header.crc = crc
        self.finish(kind, laid, length)
        return lsn

    def mark(self, uint64_t durable):
        """Close the group: through which byte of the file all was durable before it is written.
        False when there is no room."""
        cdef EntryHeader *header
        if self.size + MARK_BYTES > self.room:
            return False
        header = self.begin(KIND_MARK, 8, MARK_BYTES, MARK_BYTES)
        memcpy(<unsigned char *>header + HEADER_BYTES, &durable, 8)
        header.crc = braid_crc32c(0, <unsigned char *>header + 4, MARK_BYTES - 4)
        self.finish(KIND_MARK, MARK_BYTES, MARK_BYTES)
        return True

    def take_idle(self, uint64_t durable):
        """A mark and nothing else; None when something waits or there is no room."""
        if self.size or not self.mark(durable):
            return None
        return self.take()

    def take(self, durable=None):
        """Hand over what waits, to be written at its ``position``; this buffer goes on behind it.

        With ``durable`` it ends with a mark, if there is room. None when nothing waits.
        """
        cdef EntryBuffer taken
        if durable is not None:
            self.mark(durable)
        if self.size == 0:
            return None
        taken = EntryBuffer(self.epoch, self.next_lsn, self.room, self.position)
        taken.data, self.data = self.data, NULL
        taken.capacity, self.capacity = self.capacity, 0
        taken.referenced, self.referenced = self.referenced, []
        taken.laid, self.laid = self.laid, 0
        taken.size, self.size = self.size, 0
        self.position += taken.size
        self.room -= taken.size
        # As much again is likely, but one giant group must not hold its memory for ever.
        self.expected = min(taken.laid, CAPACITY_EXPECTED_MAX)
        return taken


cdef bint is_intact(
    const unsigned char *data, Py_ssize_t at, Py_ssize_t size, uint64_t epoch
) noexcept:
    """Whether a whole, undamaged entry of this epoch begins at ``at``."""
    cdef const EntryHeader *header = <const EntryHeader *>(data + at)
    if size - at < HEADER_BYTES or header.magic != MAGIC or header.epoch != epoch:
        return False
    if header.length < HEADER_BYTES or header.length % 8 or header.length > size - at:
        return False
    if HEADER_BYTES + aligned(header.meta_length) > header.length:
        return False
    return header.crc == braid_crc32c(0, data + at + 4, header.length - 4)


def scan_entries(
    const unsigned char[::1] data, Py_ssize_t at, uint64_t epoch, uint64_t next_lsn,
    Py_ssize_t limit=65536, Py_ssize_t bytes_max=0x7fffffffffffffff,
):
    """Intact entries of ``epoch`` from byte ``at`` on, whose LSNs continue from ``next_lsn``.

    Returns ``(entries, position, next_lsn)``: at most ``limit`` entries, and no more after
    ``bytes_max`` bytes, as ``(kind, version, lsn, position, meta start, meta end, payload end)``,
    and where the scan stopped. Marks are left out; no entries mean that what stands at
    ``position`` is no such entry.
    """
    cdef const unsigned char *base = &data[0] if data.shape[0] else NULL
    cdef const EntryHeader *header
    cdef list found = []
    cdef Py_ssize_t size = data.shape[0], start = at, meta_start
    while (
        len(found) < limit and (at - start < bytes_max or not found)
        and is_intact(base, at, size, epoch)
    ):
        header = <const EntryHeader *>(base + at)
        if header.lsn != next_lsn:
            break
        meta_start = at + HEADER_BYTES
        if header.kind != KIND_MARK:
            found.append((
                header.kind, header.version, header.lsn, at,
                meta_start, meta_start + header.meta_length, at + header.length,
            ))
        next_lsn += takes_lsn(header.kind, header.version)
        at += header.length
    return found, at, next_lsn


def inspect_tail(
    const unsigned char[::1] data, Py_ssize_t at, uint64_t epoch, uint64_t next_lsn
):
    """What stands behind the last readable entry of ``epoch``, where that of ``next_lsn`` would.

    Returns whether an intact mark there says that what stood at ``at`` was durable, and how many
    bytes hold pieces of this epoch's entries (0 when nothing was torn).
    """
    cdef const unsigned char *base = &data[0] if data.shape[0] else NULL
    cdef const EntryHeader *header
    cdef bint was_durable = False
    cdef uint64_t durable
    cdef Py_ssize_t size = data.shape[0], start = at, end = at
    while at + HEADER_BYTES <= size:
        header = <const EntryHeader *>(base + at)
        if header.magic == MAGIC and header.epoch == epoch:
            end = max(end, min(size, at + max(<Py_ssize_t>header.length, HEADER_BYTES)))
            if (
                header.kind == KIND_MARK and header.length == MARK_BYTES
                and is_intact(base, at, size, epoch)
            ):
                durable = (<const uint64_t *>(base + at + HEADER_BYTES))[0]
                if header.version < VERSION_UNNUMBERED:
                    was_durable |= durable >= next_lsn
                else:
                    was_durable |= durable > <uint64_t>start
        at += 8
    return was_durable, end - start


def first_lsn(const unsigned char[::1] data, Py_ssize_t at, uint64_t epoch):
    """LSN of the entry at byte ``at``, or 0 when no intact entry of ``epoch`` begins there."""
    if data.shape[0] and is_intact(&data[0], at, data.shape[0], epoch):
        return (<const EntryHeader *>(&data[0] + at)).lsn
    return 0
