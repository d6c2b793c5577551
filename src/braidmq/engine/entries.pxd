from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from braidmq.record.offset_set cimport braid_ctz

cdef enum:
    READY = 0
    IN_FLIGHT = 1
    WAITING = 2
    DELAYED = 3
    FIRST_TERMINAL = 4

cdef enum:
    BLOCK_SHIFT = 6
    BLOCK_SIZE = 64
    BLOCK_MASK = 63
    NO_STATE = 255          # of an entry that was just made


cdef struct Entry:
    int64_t deadline_ms     # in flight: visibility; waiting: back-off; delayed: due
    uint32_t consumer
    uint32_t size           # bytes of the value, so that settling needs no look at the record
    uint32_t nonce          # of this delivery: a receipt must name it
    uint16_t attempts       # deliveries so far
    uint8_t state
    uint8_t lane


cdef struct Block:
    uint64_t present        # which of its 64 offsets have an entry
    Entry common            # the entry of them all, while there is none for each
    Entry *entries          # NULL: they are alike
    uint32_t *sizes         # of each, where they are alike but for that


cdef inline int run_length(uint64_t mask, int low) noexcept:
    """How many bits from ``low`` on are set."""
    cdef uint64_t gap = ~(mask >> low)
    return 64 - low if gap << low == 0 else braid_ctz(gap)


cdef inline const Entry *entry_in(const Block *block, int index) noexcept:
    """What is known of a message with an entry; its size may stand elsewhere."""
    return &block.common if block.entries == NULL else &block.entries[index]


cdef inline uint32_t size_in(const Block *block, int index) noexcept:
    if block.entries == NULL and block.sizes != NULL:
        return block.sizes[index]
    return entry_in(block, index).size


cdef int64_t bytes_in(const Block *block, uint64_t mask) noexcept
cdef int separate(Block *block) except -1


cdef class RangeList:
    cdef list ranges
    cdef int64_t start, stop
    cdef readonly int64_t count
    cdef readonly int64_t size

    cdef int add(self, int64_t start, int64_t stop, int64_t size) except -1
    cdef int add_mask(self, int64_t base, uint64_t mask, int64_t size) except -1
    cdef int close(self) except -1
    cdef tuple result(self)


cdef class EntryTable:
    cdef Block **directory
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity
    cdef Py_ssize_t head    # the first block that is there
    cdef int64_t first_block

    cdef void forget_entries(self) noexcept
    cdef Block *block_at(self, int64_t number) noexcept
    cdef Block *make_block(self, int64_t number) except NULL
    cdef void drop_block(self, int64_t number) noexcept
    cdef const Entry *peek(self, int64_t offset) noexcept
    cdef Entry *find(self, int64_t offset) except? NULL
    cdef Entry *make(self, int64_t offset, uint32_t size, uint8_t lane) except NULL
    cdef void remove(self, int64_t offset) noexcept
    cdef void trim(self) noexcept
