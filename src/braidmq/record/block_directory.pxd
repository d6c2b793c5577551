# Slots for blocks of offsets, from the first block that is there to the last.

from libc.stdint cimport int64_t
from libc.stdlib cimport realloc
from libc.string cimport memmove, memset


cdef inline int64_t reserve_slot(
    void ***slots, Py_ssize_t *capacity, Py_ssize_t *used, int64_t *first_block,
    int64_t number, int64_t slots_max,
) except -1:
    """Stretch a directory so that it has a slot for block ``number``; returns how many slots came
    in front of those it had. New ones are NULL."""
    cdef int64_t before = 0
    cdef int64_t wanted
    cdef void **stretched
    if used[0] == 0:
        first_block[0] = number
    elif number < first_block[0]:
        before = first_block[0] - number
    wanted = max(used[0] + before, number - first_block[0] + 1)
    if wanted > slots_max:
        raise OverflowError("offsets too far apart")
    if wanted > capacity[0]:
        stretched = <void **>realloc(slots[0], max(wanted, 2 * capacity[0]) * sizeof(void *))
        if stretched == NULL:
            raise MemoryError
        slots[0] = stretched
        capacity[0] = max(wanted, 2 * capacity[0])
    if before:
        memmove(slots[0] + before, slots[0], used[0] * sizeof(void *))
        memset(slots[0], 0, before * sizeof(void *))
        first_block[0] = number
        used[0] += before
    if wanted > used[0]:
        memset(slots[0] + used[0], 0, (wanted - used[0]) * sizeof(void *))
        used[0] = wanted
    return before
