"""Choosing one of several owners for a key, by weight, so that few keys move when owners change.

Every owner draws a number for the key from a hash of both, and the highest wins. An owner of weight
w has w draws; the best of w even draws is distributed as one draw to the power 1/w, so a single
hash and a logarithm do for any weight:

    u = hash(owner, key) in (0, 1)        the least  -log(u) / weight  wins

A new owner wins exactly the keys on which it outdraws all others, and when one goes, only its own
keys are drawn anew. On a ring of points the same keys stay, but shares stray from weights by about
1/√points: some thousand points per unit of weight for a few percent.

Where a key goes is the same in every process and after every restart.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.math cimport log
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc

cdef uint64_t FNV_BASIS = <uint64_t>0xcbf29ce484222325
cdef uint64_t FNV_PRIME = <uint64_t>0x100000001b3
cdef uint64_t MIX_1 = <uint64_t>0xbf58476d1ce4e5b9
cdef uint64_t MIX_2 = <uint64_t>0x94d049bb133111eb

cdef struct Owner:
    uint64_t hash
    int64_t id
    int64_t weight


cdef inline uint64_t mixed(uint64_t value) noexcept:
    """The finalizer of splitmix64: every bit of the result depends on every bit of the value."""
    value = (value ^ (value >> 30)) * MIX_1
    value = (value ^ (value >> 27)) * MIX_2
    return value ^ (value >> 31)


cdef inline uint64_t hash_of(bytes data) noexcept:
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef uint64_t value = FNV_BASIS
    cdef Py_ssize_t i
    for i in range(PyBytes_GET_SIZE(data)):
        value = (value ^ at[i]) * FNV_PRIME
    return mixed(value)


cdef class Rendezvous:
    """Owners with weights. The name decides what an owner draws; ``choose`` answers with the id."""

    cdef Owner *owners
    cdef Py_ssize_t count, capacity

    def __dealloc__(self):
        free(self.owners)

    def __len__(self):
        return self.count

    cdef Py_ssize_t position(self, int64_t id) noexcept:
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.owners[i].id == id:
                return i
        return -1

    def put(self, int64_t id, bytes name not None, int64_t weight):
        """Add an owner, or give it another weight."""
        cdef Py_ssize_t at = self.position(id), capacity
        cdef Owner *owners
        if id < 0 or weight < 1:
            raise ValueError("ids are not negative and weights are positive")
        if at < 0:
            if self.count == self.capacity:
                capacity = max(2 * self.capacity, 4)
                owners = <Owner *>realloc(self.owners, capacity * sizeof(Owner))
                if owners == NULL:
                    raise MemoryError
                self.owners = owners
                self.capacity = capacity
            at = self.count
            self.count += 1
        self.owners[at] = Owner(hash=hash_of(name), id=id, weight=weight)

    def remove(self, int64_t id):
        """KeyError if there is no such owner."""
        cdef Py_ssize_t at = self.position(id)
        if at < 0:
            raise KeyError(id)
        self.count -= 1
        self.owners[at] = self.owners[self.count]

    def choose(self, bytes key not None):
        """The id of the key's owner, or -1 if there are no owners."""
        cdef uint64_t key_hash = hash_of(key), draw
        cdef double cost, least = 0.0
        cdef Py_ssize_t i, best = -1
        for i in range(self.count):
            draw = mixed(key_hash ^ self.owners[i].hash)
            # 53 bits are what a double holds; the half keeps the logarithm finite.
            cost = -log((<double>(draw >> 11) + 0.5) / 9007199254740992.0) / self.owners[i].weight
            if best < 0 or cost < least or (
                cost == least and self.owners[i].hash < self.owners[best].hash
            ):
                least = cost
                best = i
        return self.owners[best].id if best >= 0 else -1
