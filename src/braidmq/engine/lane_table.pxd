from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from braidmq.engine.entries cimport Block, Entry, EntryTable
from braidmq.engine.key_queues cimport KeyQueues
from braidmq.record.offset_set cimport OffsetBits


cdef struct Flight:
    uint32_t nonce          # of its first delivery
    int64_t since_ms
    int64_t count           # messages of it that are still in flight


cdef struct Flights:
    uint32_t last_nonce
    int used, capacity
    Flight *places          # the oldest first, behind one for what is older than all of them


cdef class LaneTable(EntryTable):
    cdef readonly list lanes
    cdef readonly KeyQueues key_queues  # only where lanes and the order of keys are both kept
    cdef int64_t *lane_flights  # in flight by lane; NULL: none but those of lane 0 ever were
    cdef Flights *flights   # NULL: nothing ever was
    cdef int64_t counts[8]
    cdef int64_t sizes[8]

    cdef OffsetBits lane_bits(self, int lane)
    cdef int change_lane(self, int lane, int64_t base, uint64_t mask, bint ready) except -1
    cdef int set_ready(self, int lane, int64_t start, int64_t stop, bint ready) except -1
    cdef int count_flights(self, int lane, int64_t count) except -1
    cdef int begin_flight(self, uint32_t nonce, int64_t now_ms) except -1
    cdef int reserve_flights(self) except -1
    cdef Flight *flight_of(self, uint32_t nonce) noexcept
    cdef int count_in_flight(self, uint32_t nonce, int64_t count) except -1
    cdef int move_to_lane(self, int64_t offset, uint8_t lane) except -1
    cdef int set_state(self, Entry *entry, int64_t offset, uint8_t state) except -1
    cdef int move_alike(self, Block *block, int64_t number, uint64_t mask, uint8_t state) except -1
    cdef void forget_states(self) noexcept
