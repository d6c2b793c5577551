from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t


cdef enum:
    HEADER_BYTES = 40
    TIMING_BYTES = 16
    REFERENCE_BYTES = 16
    MAGIC = 0xB4
    VERSION = 1
    REFERRING = 2        # the version of a record whose body is in a body file

cdef enum:
    CONTROL = 1          # not a message: a transaction marker
    COMMIT = 2           # with CONTROL: this marker commits; without: aborts
    TRANSACTIONAL = 4    # visible only once its transaction is committed
    TIMED = 8            # the two timing fields follow the header
    KEYED = 16           # has a key, if only an empty one
    TOMBSTONE = 32       # has no value: compaction removes its key
    TRANSIENT = 64       # not to be seen again after a restart
    SHARED = 128         # with version REFERRING; in what a batch or segment says of its records


cdef struct RecordHeader:
    uint32_t header_crc
    uint32_t body_crc
    uint8_t magic
    uint8_t version
    uint8_t flags
    uint8_t priority
    uint8_t envelope_format
    uint8_t reserved
    uint16_t key_length
    int64_t offset
    int64_t timestamp_ms
    uint32_t envelope_length
    uint32_t value_length


cdef struct RecordTiming:
    int64_t expires_at_ms
    int64_t due_at_ms


cdef struct BodyReference:
    int64_t file
    int64_t position


cdef inline Py_ssize_t aligned(Py_ssize_t size) noexcept:
    return (size + 7) & ~<Py_ssize_t>7


cdef inline Py_ssize_t header_bytes(const RecordHeader *header) noexcept:
    return HEADER_BYTES + (TIMING_BYTES if header.flags & TIMED else 0)


cdef inline Py_ssize_t body_bytes(const RecordHeader *header) noexcept:
    return <Py_ssize_t>header.key_length + header.envelope_length + header.value_length


cdef inline Py_ssize_t record_bytes(const RecordHeader *header) noexcept:
    return aligned(header_bytes(header) + body_bytes(header))


cdef inline bint refers(const RecordHeader *header) noexcept:
    return header.version == REFERRING


cdef inline const BodyReference *reference_of(const RecordHeader *header) noexcept:
    return <const BodyReference *>(<const unsigned char *>header + header_bytes(header))


cdef inline Py_ssize_t stored_bytes(const RecordHeader *header) noexcept:
    """What it takes where it is; ``record_bytes`` says what it takes with its body."""
    return header_bytes(header) + REFERENCE_BYTES if refers(header) else record_bytes(header)


cdef void seal_header(RecordHeader *header) noexcept
cdef bint is_wanted(int64_t offset, tuple acknowledged, int64_t start)
cdef Py_ssize_t whole_record(
    const unsigned char *data, Py_ssize_t at, Py_ssize_t size, bint verify, bint verify_body=*
) except -2


cdef class RecordBatch:
    cdef unsigned char *data
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef uint32_t *positions
    cdef Py_ssize_t positions_capacity
    cdef readonly Py_ssize_t count
    cdef readonly int64_t base_offset
    cdef readonly int64_t max_timestamp_ms
    cdef readonly bint time_ordered
    cdef readonly uint8_t summary
    cdef readonly int64_t value_bytes
    cdef readonly uint32_t value_bytes_max
    cdef readonly int64_t shared_bytes
    cdef readonly bint dense
    cdef object owner
    cdef int exports
    cdef Py_ssize_t shares
    cdef Py_ssize_t[3] holders

    cdef inline RecordHeader *header_at(self, Py_ssize_t index) noexcept:
        return <RecordHeader *>(self.data + self.positions[index])

    cdef RecordBatch whole(self)
    cdef Py_ssize_t weight(self, Py_ssize_t holders) noexcept
    cdef int reserve(self, Py_ssize_t extra_bytes, Py_ssize_t extra_records) except -1
    cdef int reserve_positions(self, Py_ssize_t extra_records) except -1
    cdef int note_references(self) except -1
    cdef void note(self, const RecordHeader *header, Py_ssize_t position) noexcept
    cdef Py_ssize_t take_intact(self, Py_ssize_t at, Py_ssize_t size) noexcept
    cdef bint is_even(self) noexcept
    cdef int64_t value_bytes_of(self, Py_ssize_t first, Py_ssize_t stop) noexcept
    cdef int64_t offset_of(self, Py_ssize_t index) noexcept
    cdef Py_ssize_t index_of(self, int64_t offset) noexcept
    cdef int put(
        self,
        const unsigned char *key, Py_ssize_t key_length,
        const unsigned char *envelope, Py_ssize_t envelope_length,
        const unsigned char *value, Py_ssize_t value_length,
        uint8_t envelope_format, uint8_t flags, uint8_t priority,
        int64_t timestamp_ms, int64_t expires_at_ms, int64_t due_at_ms,
    ) except -1
    cdef int put_run(
        self, list values, int64_t value_bytes, uint32_t value_bytes_max, bytes envelope,
        uint8_t envelope_format, uint8_t flags, uint8_t priority, int64_t timestamp_ms,
    ) except -1
