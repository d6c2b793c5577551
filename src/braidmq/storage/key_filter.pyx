"""Which keys may be among some records: a Bloom filter in blocks, each within a cache line.

    hash of a key ─┬─ its highest bits: which block, of a power of two
                   └─ times eight odd numbers: one bit in each word of the block

    block   ┌ word 0 ┬ word 1 ┬ … ┬ word 7 ┐   32 bits each, little-endian

It is made for as many keys as there are records. Then neighbouring blocks are laid over each other
while no more than half of all bits are set: a filter of few keys becomes small, and the number of
different keys need not be known. At most about one key in a hundred is taken for one that is there.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from braidmq.record.key_hash cimport murmur2_from
from braidmq.record.batch cimport KEYED, RecordBatch, RecordHeader, header_bytes

cdef extern from *:
    int popcount "__builtin_popcount"(unsigned int bits) nogil

cdef enum:
    WORDS = 8
    BLOCK_SIZE = 32
    BITS_FOR_A_KEY = 12
    # Not the partitioner's: the keys of one partition share bits of that hash.
    FILTER_SEED = 0x3c6ef372

BLOCK_BYTES = BLOCK_SIZE

cdef uint32_t[WORDS] FACTORS
FACTORS[:] = [
    0x9e3779b1, 0x85ebca6b, 0xc2b2ae35, 0x27d4eb2f, 0x165667b1, 0xd3a2646d, 0xfd7046c5, 0xb55a4f09,
]


cdef inline uint32_t *block_of(const uint32_t *words, Py_ssize_t blocks, uint32_t hashed) noexcept:
    return <uint32_t *>words + WORDS * <Py_ssize_t>(<uint64_t>hashed * <uint64_t>blocks >> 32)


cdef inline uint32_t bit_of(uint32_t hashed, int word) noexcept:
    return <uint32_t>1 << (hashed * FACTORS[word] >> 27)


cdef class KeyFilter:
    """Takes the keys of batches; ``folded`` gives the filter's bytes."""

    cdef uint32_t *words
    cdef Py_ssize_t blocks

    def __cinit__(self, Py_ssize_t keys_max):
        self.blocks = 1
        while self.blocks * BLOCK_SIZE * 8 < keys_max * BITS_FOR_A_KEY:
            self.blocks *= 2
        self.words = <uint32_t *>calloc(self.blocks, BLOCK_SIZE)
        if self.words == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.words)

    def add(self, RecordBatch batch not None):
        """The keys of all its records that have one."""
        cdef const RecordHeader *header
        cdef uint32_t *block
        cdef uint32_t hashed
        cdef Py_ssize_t i
        cdef int word
        for i in range(batch.count):
            header = batch.header_at(i)
            if not header.flags & KEYED:
                continue
            hashed = murmur2_from(
                FILTER_SEED,
                <const unsigned char *>header + header_bytes(header), header.key_length)
            block = block_of(self.words, self.blocks, hashed)
            for word in range(WORDS):
                block[word] |= bit_of(hashed, word)

    def folded(self):
        """The bytes of the filter, as few as do. Takes no more keys afterwards."""
        while self.blocks > 1 and self.bits_when_folded() <= self.blocks * BLOCK_SIZE * 2:
            self.fold()
        return PyBytes_FromStringAndSize(<const char *>self.words, self.blocks * BLOCK_SIZE)

    cdef uint64_t bits_when_folded(self) noexcept:
        cdef uint64_t bits = 0
        cdef Py_ssize_t block
        cdef uint32_t *at
        cdef int word
        for block in range(0, self.blocks, 2):
            at = self.words + block * WORDS
            for word in range(WORDS):
                bits += popcount(at[word] | at[word + WORDS])
        return bits

    cdef void fold(self) noexcept:
        cdef Py_ssize_t block
        cdef uint32_t *at
        cdef int word
        self.blocks //= 2
        for block in range(self.blocks):
            at = self.words + 2 * block * WORDS
            for word in range(WORDS):
                self.words[block * WORDS + word] = at[word] | at[word + WORDS]


def may_hold_key(const unsigned char[::1] filter not None, bytes key not None):
    """False: the key is not among those the filter was made of."""
    cdef Py_ssize_t blocks = filter.shape[0] // BLOCK_SIZE
    cdef uint32_t hashed = murmur2_from(
        FILTER_SEED, <const unsigned char *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
    cdef uint32_t *block
    cdef int word
    if blocks < 1 or filter.shape[0] % BLOCK_SIZE:
        raise ValueError(f"a filter has whole blocks of {BLOCK_SIZE} bytes")
    block = block_of(<const uint32_t *>&filter[0], blocks, hashed)
    for word in range(WORDS):
        if not block[word] & bit_of(hashed, word):
            return False
    return True
