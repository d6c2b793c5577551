"""Journal entries. This module owns the entry format.

    byte  0        4        8     10   11      12            16      24     32
          ┌────────┬────────┬─────┬────┬───────┬─────────────┬───────┬──────┐
          │ CRC32C │ length │ BJ  │kind│version│ meta length │ epoch │ LSN  │
          ├────────┴────────┴──┬──┴────┴───────┴─────────────┴───────┴──────┤
       32 │ meta, zeros to 8   │ payload: encoded records, a multiple of 8  │
          └────────────────────┴────────────────────────────────────────────┘

Little-endian. The length is the whole entry's, a multiple of 8; the CRC covers everything after
itself. The epoch is that of this use of the file, so what an earlier use left behind is never
taken for an entry. The LSN counts entries across files without a gap.

A MARK closes every group of entries that is written together, and says through which LSN the disk
had answered before that group was written. It is what tells damage from a torn tail: a group is
written only after the one before was synced, so an unreadable entry at or below a later mark was
once safe on disk and has been damaged since, while one above every mark was never confirmed.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset


cdef extern from "crc32c.h" nogil:
    void braid_crc32c_init()
    uint32_t braid_crc32c(uint32_t crc, const void *data, size_t n)

braid_crc32c_init()

cdef enum:
    HEADER_BYTES = 32
    MARK_BYTES = 40
    MAGIC = 0x4A42
    VERSION = 1
    KIND_MARK = 1
    KEPT_BYTES = 4 << 20

KIND_OF_MARK = KIND_MARK
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


cdef inline Py_ssize_t aligned(Py_ssize_t size) noexcept:
    return (size + 7) & ~<Py_ssize_t>7


cdef class EntryBuffer:
    """Entries waiting for the next write to one journal file, laid out as the file will be."""

    cdef unsigned char *data
    cdef Py_ssize_t capacity
    cdef int exports
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t room
    cdef readonly uint64_t epoch
    cdef readonly uint64_t next_lsn

    def __cinit__(self):
        self.data = NULL
        self.capacity = self.size = self.room = 0

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    def __len__(self):
        return self.size

    def begin(self, uint64_t epoch, uint64_t next_lsn, Py_ssize_t room):
        """Start over for the file of ``epoch`` that has ``room`` bytes left."""
        assert self.exports == 0
        self.size = 0
        self.epoch = epoch
        self.next_lsn = next_lsn
        self.room = room
        if self.capacity > KEPT_BYTES:
            # One giant batch must not hold its memory for ever.
            free(self.data)
            self.data = NULL
            self.capacity = 0

    cdef unsigned char *make_room(self, Py_ssize_t length) except NULL:
        cdef Py_ssize_t wanted = self.size + length
        cdef void *grown
        if wanted > self.capacity:
            wanted = max(wanted, self.capacity + (self.capacity >> 1), 4096)
            grown = realloc(self.data, wanted)
            if grown == NULL:
                raise MemoryError
            self.data = <unsigned char *>grown
            self.capacity = wanted
        return self.data + self.size

    cdef void finish(self, uint8_t kind, uint32_t meta_length, Py_ssize_t length) noexcept:
        cdef EntryHeader *header = <EntryHeader *>(self.data + self.size)
        header.length = <uint32_t>length
        header.magic = MAGIC
        header.kind = kind
        header.version = VERSION
        header.meta_length = meta_length
        header.epoch = self.epoch
        header.lsn = self.next_lsn
        header.crc = braid_crc32c(0, self.data + self.size + 4, length - 4)
        self.next_lsn += 1
        self.size += length

    def append(self, uint8_t kind, bytes meta, const unsigned char[::1] payload=None):
        """Add an entry; returns its LSN, or 0 when the file has no room for it and a mark."""
        cdef Py_ssize_t meta_length = len(meta)
        cdef Py_ssize_t payload_length = 0 if payload is None else payload.shape[0]
        cdef Py_ssize_t start = HEADER_BYTES + aligned(meta_length)
        cdef Py_ssize_t length = start + payload_length
        cdef unsigned char *entry
        assert payload_length % 8 == 0 and self.exports == 0
        if length > 0x7fffffff:
            raise OverflowError("a journal entry holds at most 2 GiB")
        if self.size + length + MARK_BYTES > self.room:
            return 0
        entry = self.make_room(length)
        memcpy(entry + HEADER_BYTES, <const unsigned char *>meta, meta_length)
        memset(entry + HEADER_BYTES + meta_length, 0, start - HEADER_BYTES - meta_length)
        if payload_length:
            memcpy(entry + start, &payload[0], payload_length)
        self.finish(kind, <uint32_t>meta_length, length)
        return self.next_lsn - 1

    def mark(self, uint64_t durable_lsn):
        """Close the group: what was durable before it is written. False when there is no room."""
        cdef unsigned char *entry
        assert self.exports == 0
        if self.size + MARK_BYTES > self.room:
            return False
        entry = self.make_room(MARK_BYTES)
        memcpy(entry + HEADER_BYTES, &durable_lsn, 8)
        self.finish(KIND_MARK, 8, MARK_BYTES)
        return True


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
        next_lsn += 1
        at += header.length
    return found, at, next_lsn


def inspect_tail(const unsigned char[::1] data, Py_ssize_t at, uint64_t epoch):
    """What stands behind the last readable entry of ``epoch``.

    Returns the highest LSN that an intact mark there calls durable (0 for none), and how many
    bytes hold pieces of this epoch's entries (0 when nothing was torn).
    """
    cdef const unsigned char *base = &data[0] if data.shape[0] else NULL
    cdef const EntryHeader *header
    cdef uint64_t durable = 0
    cdef Py_ssize_t size = data.shape[0], start = at, end = at
    while at + HEADER_BYTES <= size:
        header = <const EntryHeader *>(base + at)
        if header.magic == MAGIC and header.epoch == epoch:
            end = max(end, min(size, at + max(<Py_ssize_t>header.length, HEADER_BYTES)))
            if (
                header.kind == KIND_MARK and header.length == MARK_BYTES
                and is_intact(base, at, size, epoch)
            ):
                durable = max(durable, (<const uint64_t *>(base + at + HEADER_BYTES))[0])
        at += 8
    return durable, end - start


def first_lsn(const unsigned char[::1] data, Py_ssize_t at, uint64_t epoch):
    """LSN of the entry at byte ``at``, or 0 when no intact entry of ``epoch`` begins there."""
    if data.shape[0] and is_intact(&data[0], at, data.shape[0], epoch):
        return (<const EntryHeader *>(&data[0] + at)).lsn
    return 0
