"""Which partition a record goes to, and which slot of keys it belongs to.

Keys are hashed with Kafka's murmur2, not Murmur3: a record published here and one published by a
Kafka client with its default partitioner land in the same partition, ``toPositive(murmur2(key)) %
partitions``. An empty key is a key; only a record without one goes round robin.

    batch            k₁  –   k₂  k₁  –        –: no key
    partition        2   0   1   2   1        round robin started at 0
                     └───────┬───────┘
    one batch each   0: –    1: k₂ –    2: k₁ k₁

For consumers that share a partition and keep the order per key, keys fall into *slots* and every
slot has one owner. Slots come from the other end of the same hash.
"""

from cpython cimport array
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from braidmq.record.key_hash cimport hash_of_record, partition_of_hash
from braidmq.record.batch cimport KEYED, RecordBatch, RecordHeader, record_bytes, seal_header

import array

cdef enum:
    # Partition numbers are 16 bits wide while a batch is split.
    MOST_PARTITIONS = 0xffff
    # The highest 16-bit slot number is taken: it says that a record has no key.
    UNKEYED_SLOT = 0xffff

PARTITIONS_MAX = MOST_PARTITIONS
SLOTS_MAX = UNKEYED_SLOT
NO_SLOT = UNKEYED_SLOT

cdef array.array SLOT_NUMBERS = array.array("H")


# --- one batch into one per partition ---

cdef struct Share:
    # What one partition gets of a batch; ``start`` is its place in the order of copying.
    Py_ssize_t size
    uint32_t count
    uint32_t start


def split(
    RecordBatch batch not None, int32_t partitions, int64_t round_robin, bint by_place=False,
    bint by_key=True,
):
    """Split ``batch`` into one new batch per partition, None where nothing goes.

    Keyed records go by their hash, the others round robin from ``round_robin`` on; returns the
    batches and the ``round_robin`` to pass next time. Order is kept within each partition, and a
    record's offset field is its place in its new batch. When everything goes to one partition,
    ``batch`` itself stands there. ``by_place``: a record without key goes where its place in the
    batch says, whatever keys stand before it, so that one sent again goes there again. Not
    ``by_key``: keys count for nothing, all of it goes round robin.
    """
    cdef Share *shares
    cdef uint16_t *places
    cdef uint32_t turn
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ValueError(f"between 1 and {MOST_PARTITIONS} partitions, not {partitions}")
    if round_robin < 0:
        raise ValueError("a round robin counts up from 0")
    if batch.count == 0:
        return [None] * partitions, round_robin % partitions
    if partitions == 1:
        return [batch], 0
    shares = <Share *>calloc(partitions, sizeof(Share))
    places = <uint16_t *>malloc(batch.count * sizeof(uint16_t))
    try:
        if shares == NULL or places == NULL:
            raise MemoryError
        turn = choose_places(
            batch, partitions, <uint32_t>(round_robin % partitions), by_place, by_key, places,
            shares)
        return deal(batch, partitions, places, shares), turn
    finally:
        free(places)
        free(shares)


def places(
    RecordBatch batch not None, int32_t partitions, int64_t round_robin, bint by_key=True,
    bint by_place=True,
):
    """The partition of each record, as ``split`` deals them."""
    cdef array.array found = array.clone(SLOT_NUMBERS, batch.count, zero=False)
    cdef Share *shares
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ValueError(f"between 1 and {MOST_PARTITIONS} partitions, not {partitions}")
    shares = <Share *>calloc(partitions, sizeof(Share))
    if shares == NULL:
        raise MemoryError
    choose_places(
        batch, partitions, <uint32_t>(round_robin % partitions), by_place, by_key,
        <uint16_t *>found.data.as_ushorts, shares)
    free(shares)
    return found


cdef uint32_t choose_places(
    RecordBatch batch, uint32_t partitions, uint32_t turn, bint by_place, bint by_key,
    uint16_t *places, Share *shares,
) noexcept:
    """Choose each record's partition and add up what each gets; returns the next turn."""
    cdef const RecordHeader *header
    cdef Py_ssize_t i
    cdef uint32_t place
    cdef bint keyed
    for i in range(batch.count):
        header = batch.header_at(i)
        keyed = by_key and header.flags & KEYED
        if keyed:
            place = partition_of_hash(hash_of_record(header), partitions)
        else:
            place = turn
        if by_place or not keyed:
            turn = turn + 1 if turn + 1 < partitions else 0
        places[i] = <uint16_t>place
        shares[place].size += record_bytes(header)
        shares[place].count += 1
    return turn


cdef list deal(RecordBatch batch, Py_ssize_t partitions, const uint16_t *places, Share *shares):
    cdef list dealt = [None] * partitions
    cdef uint32_t *order
    cdef Py_ssize_t i
    if shares[places[0]].count == batch.count:
        dealt[places[0]] = batch
        return dealt
    order = <uint32_t *>malloc(batch.count * sizeof(uint32_t))
    if order == NULL:
        raise MemoryError
    try:
        sort_by_place(batch.count, partitions, places, shares, order)
        for i in range(partitions):
            if shares[i].count:
                dealt[i] = copy_of(batch, order + shares[i].start, &shares[i])
    finally:
        free(order)
    return dealt


cdef void sort_by_place(
    Py_ssize_t count, Py_ssize_t partitions, const uint16_t *places, Share *shares, uint32_t *order
) noexcept:
    """Record numbers by partition, in their old order within each: a counting sort."""
    cdef Py_ssize_t i
    cdef uint32_t start = 0
    cdef Share *share
    for i in range(partitions):
        start += shares[i].count
        shares[i].start = start
    # Backwards, so that each start ends where its partition begins.
    for i in range(count - 1, -1, -1):
        share = &shares[places[i]]
        share.start -= 1
        order[share.start] = <uint32_t>i


cdef RecordBatch copy_of(RecordBatch batch, const uint32_t *chosen, const Share *share):
    """A new batch of the chosen records: byte for byte, but for their offset field."""
    cdef RecordBatch copied = RecordBatch.__new__(RecordBatch)
    cdef RecordHeader *header
    cdef const RecordHeader *original
    cdef Py_ssize_t i, length
    copied.reserve(share.size, share.count)
    for i in range(share.count):
        original = batch.header_at(chosen[i])
        length = record_bytes(original)
        header = <RecordHeader *>(copied.data + copied.size)
        memcpy(header, original, length)
        header.offset = i
        seal_header(header)
        copied.note(header, copied.size)
        copied.size += length
    assert copied.size == share.size and copied.count == share.count
    return copied


# --- slots of keys ---

cdef int check_span(
    RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, Py_ssize_t slots
) except -1:
    if not 0 <= first <= stop <= batch.count:
        raise IndexError(f"records {first} to {stop} of {batch.count}")
    if not 1 <= slots <= UNKEYED_SLOT:
        raise ValueError(f"between 1 and {UNKEYED_SLOT} slots, not {slots}")
    return 0


def key_slots(RecordBatch batch not None, Py_ssize_t first, Py_ssize_t stop, Py_ssize_t slots):
    """The slot of each of the records with index ``first`` … ``stop - 1``; NO_SLOT without key."""
    cdef array.array found
    cdef const RecordHeader *header
    cdef Py_ssize_t i
    check_span(batch, first, stop, slots)
    found = array.clone(SLOT_NUMBERS, stop - first, zero=False)
    for i in range(first, stop):
        header = batch.header_at(i)
        found.data.as_ushorts[i - first] = (
            slot_of_hash(hash_of_record(header), <uint32_t>slots)
            if header.flags & KEYED else UNKEYED_SLOT
        )
    return found
