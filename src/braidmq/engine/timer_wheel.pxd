cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    LIST_COUNT = 256 + 3 * 64 + 1
    WORD_COUNT = 8


# One cache line: with a million pending, what a call costs is the lines it touches.
cdef struct TimerKind:
    uint32_t next
    uint32_t prev
    uint32_t generation  # odd while the timer is pending
    uint32_t owner
    uint64_t tick
    int64_t due_ms
    int64_t a
    int64_t b
    uint8_t kind
    uint8_t padding[15]


@cython.final
cdef class TimerWheel:
    cdef TimerKind **chunks
    cdef uint64_t chunk_count
    cdef uint64_t capacity
    cdef uint64_t used
    cdef uint32_t first_free
    cdef uint64_t cursor
    cdef uint64_t first_revolution
    cdef uint32_t head[LIST_COUNT]
    cdef uint32_t tail[LIST_COUNT]
    cdef uint64_t occupied[WORD_COUNT]
    cdef Py_ssize_t pending
    cdef readonly int64_t now_ms

    cdef TimerKind *at(self, uint32_t index) noexcept
    cdef int grow(self) except -1
    cdef int add_chunk(self, uint64_t timers) except -1
    cdef uint32_t acquire(self) except 0
    cdef void release(self, uint32_t index) noexcept
    cdef uint32_t find(self, uint64_t handle) noexcept
    cdef uint64_t tick_of(self, int64_t due_ms) noexcept
    cdef int list_of(self, uint64_t tick) noexcept
    cdef void append(self, uint32_t index) noexcept
    cdef void unlink(self, uint32_t index) noexcept
    cdef void forget_list(self, int which) noexcept
    cdef void cascade(self, int which) noexcept
    cdef int first_list(self) noexcept
    cdef uint64_t start_of(self, int which) noexcept
    cdef bint seek(self, uint64_t target) except -1
    cdef tuple pop(self)
    cdef uint64_t add(
        self, int64_t due_ms, uint8_t kind, uint32_t owner, int64_t a, int64_t b
    ) except 0
    cdef bint remove(self, uint64_t handle) noexcept
