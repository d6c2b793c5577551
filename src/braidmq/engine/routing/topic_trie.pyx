"""Patterns of words with wildcards, and which of them a key matches.

    a.*.c, a.#, a.b           root ── a ──┬── b ●           ● has targets
                                          ├── * ── c ●
                                          └── # ●

The trie is read as a non-deterministic automaton: a set of nodes is active, and each word of the
key moves all of them at once. A node is active at most once, so a key costs at most words × nodes
however many multi wildcards its patterns have; trying the ways one by one is exponential there.

A multi node, once reached, takes any words that follow. So its targets have matched at once, and it
is ``sticky``: active until the end of the key.

Literal children are in one table for the whole trie, found by (parent, word).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_FromLongLong
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static inline uint64_t braid_fold(uint64_t a, uint64_t b) {
        __uint128_t product = (__uint128_t)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }

    static inline uint64_t braid_word_hash(const char *word, size_t size, uint64_t seed) {
        uint64_t hash = seed ^ (size * 0x9e3779b97f4a7c15u), chunk;
        for (; size >= 8; size -= 8, word += 8) {
            memcpy(&chunk, word, 8);
            hash = braid_fold(hash ^ chunk, 0xa0761d6478bd642fu);
        }
        for (chunk = 0; size; size--) chunk = chunk << 8 | (unsigned char)*word++;
        return braid_fold(hash ^ chunk, 0xe7037ed1a0b428dbu);
    }
    """
    uint64_t braid_word_hash(const char *word, size_t size, uint64_t seed) noexcept nogil

cdef enum:
    SLOTS_MIN = 16  # a power of two: slots are picked by mask
    SORT_BY_INSERTION_MAX = 24  # beyond it qsort's calls cost less than the moves

cdef uint64_t GOLDEN = <uint64_t>0x9e3779b97f4a7c15

cdef struct Target:
    int64_t id
    int64_t references

cdef struct Node:
    Node *parent
    Node *single
    Node *multi
    char *word  # NULL for the root and the wildcards
    Py_ssize_t word_bytes
    uint64_t edge_hash  # of (parent, word)
    uint64_t salt  # tells this node's children from another's in the table
    uint64_t reached_in  # the match that last reached this multi node
    Target *targets  # by id
    Py_ssize_t target_count
    Py_ssize_t target_capacity
    Py_ssize_t literal_count
    Py_ssize_t index  # in TopicTrie.nodes


cdef int compare_ids(const void *left, const void *right) noexcept nogil:
    cdef int64_t a = (<const int64_t *>left)[0]
    cdef int64_t b = (<const int64_t *>right)[0]
    return (a > b) - (a < b)


cdef Py_ssize_t sort_distinct(int64_t *ids, Py_ssize_t count) noexcept:
    """Sort in place and drop repeats; returns how many are left."""
    cdef Py_ssize_t i, j, kept = 1
    cdef int64_t id
    if count < 2:
        return count
    if count > SORT_BY_INSERTION_MAX:
        qsort(ids, count, sizeof(int64_t), compare_ids)
    else:
        for i in range(1, count):
            id = ids[i]
            j = i
            while j > 0 and ids[j - 1] > id:
                ids[j] = ids[j - 1]
                j -= 1
            ids[j] = id
    for i in range(1, count):
        if ids[i] != ids[kept - 1]:
            ids[kept] = ids[i]
            kept += 1
    return kept


cdef inline bint is_bare(Node *node) noexcept:
    """Nothing ends here and nothing goes on from here."""
    return (node.target_count == 0 and node.literal_count == 0
            and node.single == NULL and node.multi == NULL)


cdef Py_ssize_t target_position(Node *node, int64_t id) noexcept:
    """Where the target is, or where it would go."""
    cdef Py_ssize_t low = 0, high = node.target_count, middle
    while low < high:
        middle = (low + high) >> 1
        if node.targets[middle].id < id:
            low = middle + 1
        else:
            high = middle
    return low


cdef class TopicTrie:
    """Patterns with targets. ``match`` gives the targets of all patterns that a key matches.

    ``single`` stands for exactly one word; ``multi`` for any number of them, and also for none if
    ``multi_matches_parent``. A key that begins with the byte ``hidden`` is not matched by a
    wildcard at the first level. The empty key has no words; ``a.`` has two, the second one empty.
    """

    cdef char separator
    cdef bytes single, multi
    cdef bint multi_matches_parent, hides
    cdef char hidden
    cdef uint64_t seed, salt_next, match_number
    cdef Node *root
    cdef Node **nodes
    cdef Py_ssize_t count, capacity
    cdef Node **slots
    cdef Py_ssize_t slot_mask, slots_used
    # Room for a match, made when patterns are added: a node is active once, a pair found once.
    cdef Node **active
    cdef Node **upcoming
    cdef Node **sticky
    cdef Py_ssize_t upcoming_count, sticky_count
    cdef int64_t *found
    cdef Py_ssize_t found_count, found_capacity, pairs

    def __cinit__(self, bytes separator not None, bytes single not None, bytes multi not None, *,
                  bint multi_matches_parent=True, bytes hidden not None=b""):
        if len(separator) != 1 or len(hidden) > 1:
            raise ValueError("separator and hidden are one byte")
        if not single or not multi or single == multi or separator in single + multi:
            raise ValueError("wildcards are two different words")
        self.separator = PyBytes_AS_STRING(separator)[0]
        self.single = single
        self.multi = multi
        self.multi_matches_parent = multi_matches_parent
        self.hides = len(hidden) == 1
        self.hidden = PyBytes_AS_STRING(hidden)[0]
        # Python's hash of bytes has a secret of the process in it: nobody can choose words that
        # all land in one slot. The hash decides only where nodes lie, never what matches.
        self.seed = <uint64_t><int64_t>hash(b"braidmq topic trie") | 1
        self.slots = <Node **>calloc(SLOTS_MIN, sizeof(Node *))
        if self.slots == NULL:
            raise MemoryError
        self.slot_mask = SLOTS_MIN - 1
        self.root = self.new_node(NULL)

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            free(self.nodes[i].word)
            free(self.nodes[i].targets)
            free(self.nodes[i])
        free(self.nodes)
        free(self.slots)
        free(self.active)
        free(self.upcoming)
        free(self.sticky)
        free(self.found)

    def __len__(self):
        """Distinct pairs of pattern and target."""
        return self.pairs

    @property
    def node_count(self):
        """Nodes in use, the root among them."""
        return self.count

    # --- nodes ---

    cdef int reserve_nodes(self) except -1:
        cdef Py_ssize_t capacity = max(2 * self.capacity, 8)
        if self.count < self.capacity:
            return 0
        self.nodes = <Node **>grown(self.nodes, capacity * sizeof(Node *))
        self.active = <Node **>grown(self.active, capacity * sizeof(Node *))
        self.upcoming = <Node **>grown(self.upcoming, capacity * sizeof(Node *))
        self.sticky = <Node **>grown(self.sticky, capacity * sizeof(Node *))
        self.capacity = capacity
        return 0

    cdef Node *new_node(self, Node *parent) except NULL:
        cdef Node *node
        self.reserve_nodes()
        node = <Node *>calloc(1, sizeof(Node))
        if node == NULL:
            raise MemoryError
        node.parent = parent
        self.salt_next += GOLDEN
        node.salt = self.salt_next
        node.index = self.count
        self.nodes[self.count] = node
        self.count += 1
        return node

    cdef void drop_node(self, Node *node) noexcept:
        cdef Node *last = self.nodes[self.count - 1]
        cdef Node *parent = node.parent
        if parent.single == node:
            parent.single = NULL
        elif parent.multi == node:
            parent.multi = NULL
        elif node.word != NULL:
            self.leave_slot(node)
            parent.literal_count -= 1
        self.nodes[node.index] = last
        last.index = node.index
        self.count -= 1
        free(node.word)
        free(node.targets)
        free(node)

    cdef void prune(self, Node *node) noexcept:
        """Drop nodes without targets or children, from here towards the root."""
        cdef Node *parent
        while node != self.root and is_bare(node):
            parent = node.parent
            self.drop_node(node)
            node = parent

    # --- the table of literal children: open addressing, at most half full ---

    cdef inline Node *literal(
        self, Node *parent, const char *word, Py_ssize_t size, uint64_t word_hash
    ) noexcept:
        cdef uint64_t edge_hash = word_hash ^ parent.salt
        cdef Py_ssize_t slot = edge_hash & self.slot_mask
        cdef Node *node = self.slots[slot]
        while node != NULL:
            if (node.edge_hash == edge_hash and node.parent == parent
                    and node.word_bytes == size and memcmp(node.word, word, size) == 0):
                return node
            slot = (slot + 1) & self.slot_mask
            node = self.slots[slot]
        return NULL

    cdef void take_slot(self, Node *node) noexcept:
        cdef Py_ssize_t slot = node.edge_hash & self.slot_mask
        while self.slots[slot] != NULL:
            slot = (slot + 1) & self.slot_mask
        self.slots[slot] = node
        self.slots_used += 1

    cdef void leave_slot(self, Node *node) noexcept:
        """Empty the node's slot and move back those that had to go around it."""
        cdef Py_ssize_t hole = node.edge_hash & self.slot_mask
        cdef Py_ssize_t slot, home
        while self.slots[hole] != node:
            hole = (hole + 1) & self.slot_mask
        slot = hole
        while True:
            slot = (slot + 1) & self.slot_mask
            if self.slots[slot] == NULL:
                break
            home = self.slots[slot].edge_hash & self.slot_mask
            if ((slot - home) & self.slot_mask) >= ((slot - hole) & self.slot_mask):
                self.slots[hole] = self.slots[slot]
                hole = slot
        self.slots[hole] = NULL
        self.slots_used -= 1

    cdef int reserve_slot(self) except -1:
        cdef Py_ssize_t size = self.slot_mask + 1, i
        cdef Node **old = self.slots
        cdef Node **slots
        if 2 * (self.slots_used + 1) <= size:
            return 0
        slots = <Node **>calloc(2 * size, sizeof(Node *))
        if slots == NULL:
            raise MemoryError
        self.slots = slots
        self.slot_mask = 2 * size - 1
        self.slots_used = 0
        for i in range(size):
            if old[i] != NULL:
                self.take_slot(old[i])
        free(old)
        return 0

    # --- changing patterns ---

    cdef Node *child(self, Node *parent, bytes word, bint make) except? NULL:
        """The node for the next word of a pattern; NULL if there is none and none is to be made."""
        cdef Node *node
        if word == self.single:
            if parent.single == NULL and make:
                parent.single = self.new_node(parent)
            return parent.single
        if word == self.multi:
            if parent.multi == NULL and make:
                parent.multi = self.new_node(parent)
            return parent.multi
        node = self.literal(parent, PyBytes_AS_STRING(word), PyBytes_GET_SIZE(word),
                            self.hash_of(word))
        return self.new_literal(parent, word) if node == NULL and make else node

    cdef inline uint64_t hash_of(self, bytes word) noexcept:
        return braid_word_hash(PyBytes_AS_STRING(word), PyBytes_GET_SIZE(word), self.seed)

    cdef Node *new_literal(self, Node *parent, bytes word) except NULL:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(word)
        cdef char *copy
        cdef Node *node
        self.reserve_slot()
        copy = <char *>malloc(size + 1)
        if copy == NULL:
            raise MemoryError
        memcpy(copy, PyBytes_AS_STRING(word), size + 1)
        try:
            node = self.new_node(parent)
        except MemoryError:
            free(copy)
            raise
        node.word = copy
        node.word_bytes = size
        node.edge_hash = self.hash_of(word) ^ parent.salt
        parent.literal_count += 1
        self.take_slot(node)
        return node

    cdef Node *walk(self, bytes pattern, bint make) except? NULL:
        cdef Node *node = self.root
        cdef Node *below
        if not pattern:
            return node
        for word in pattern.split(bytes((<unsigned char>self.separator,))):
            try:
                below = self.child(node, word, make)
            except MemoryError:
                self.prune(node)
                raise
            if below == NULL:
                return NULL
            node = below
        return node

    cdef int reserve_target(self, Node *node) except -1:
        cdef Py_ssize_t capacity
        if node.target_count == node.target_capacity:
            # One target is by far the most common number.
            capacity = 2 * node.target_capacity or 1
            node.targets = <Target *>grown(node.targets, capacity * sizeof(Target))
            node.target_capacity = capacity
        if self.pairs == self.found_capacity:
            capacity = max(2 * self.found_capacity, 8)
            self.found = <int64_t *>grown(self.found, capacity * sizeof(int64_t))
            self.found_capacity = capacity
        return 0

    def add(self, bytes pattern not None, int64_t target):
        """Count one more reference from pattern to target; True if it is the first."""
        cdef Node *node = self.walk(pattern, True)
        cdef Py_ssize_t at = target_position(node, target)
        if at < node.target_count and node.targets[at].id == target:
            node.targets[at].references += 1
            return False
        try:
            self.reserve_target(node)
        except MemoryError:
            self.prune(node)
            raise
        memmove(node.targets + at + 1, node.targets + at,
                (node.target_count - at) * sizeof(Target))
        node.targets[at].id = target
        node.targets[at].references = 1
        node.target_count += 1
        self.pairs += 1
        return True

    def remove(self, bytes pattern not None, int64_t target):
        """Take one reference back; True if it was the last. KeyError if there is none."""
        cdef Node *node = self.walk(pattern, False)
        cdef Py_ssize_t at = 0
        if node != NULL:
            at = target_position(node, target)
        if node == NULL or at == node.target_count or node.targets[at].id != target:
            raise KeyError((pattern, target))
        node.targets[at].references -= 1
        if node.targets[at].references:
            return False
        node.target_count -= 1
        memmove(node.targets + at, node.targets + at + 1,
                (node.target_count - at) * sizeof(Target))
        self.pairs -= 1
        self.prune(node)
        return True

    # --- matching ---

    cdef inline void collect(self, Node *node) noexcept:
        cdef Py_ssize_t i
        for i in range(node.target_count):
            self.found[self.found_count] = node.targets[i].id
            self.found_count += 1

    cdef void stick(self, Node *node) noexcept:
        """Reach a multi node, and those that its taking no words at all leads to."""
        while node != NULL and node.reached_in != self.match_number:
            node.reached_in = self.match_number
            self.collect(node)
            if node.literal_count or node.single != NULL or node.multi != NULL:
                self.sticky[self.sticky_count] = node
                self.sticky_count += 1
            node = node.multi if self.multi_matches_parent else NULL

    cdef inline void reach(self, Node *node) noexcept:
        self.upcoming[self.upcoming_count] = node
        self.upcoming_count += 1
        if node.multi != NULL and self.multi_matches_parent:
            self.stick(node.multi)

    cdef inline void advance(
        self, Node *node, const char *word, Py_ssize_t size, uint64_t word_hash, bint wild
    ) noexcept:
        cdef Node *below
        if node.literal_count:
            below = self.literal(node, word, size, word_hash)
            if below != NULL:
                self.reach(below)
        if not wild:
            return
        if node.single != NULL:
            self.reach(node.single)
        if node.multi != NULL and not self.multi_matches_parent:
            self.stick(node.multi)

    cdef void run(self, const char *key, Py_ssize_t size) noexcept:
        """Leave the targets of all matching patterns in ``found``, in no order, with repeats."""
        cdef bint wild = not (self.hides and size and key[0] == self.hidden)
        cdef Py_ssize_t start = 0, stop, active_count, sticky_before, i
        cdef uint64_t word_hash
        self.match_number += 1
        self.found_count = self.sticky_count = 0
        self.upcoming[0] = self.root
        self.upcoming_count = 1
        if wild and self.multi_matches_parent:
            self.stick(self.root.multi)
        while size and start <= size and (self.upcoming_count or self.sticky_count):
            stop = start
            while stop < size and key[stop] != self.separator:
                stop += 1
            word_hash = braid_word_hash(key + start, stop - start, self.seed)
            self.active, self.upcoming = self.upcoming, self.active
            active_count = self.upcoming_count
            # A multi node reached by this word must not take it again.
            sticky_before = self.sticky_count
            self.upcoming_count = 0
            for i in range(active_count):
                self.advance(self.active[i], key + start, stop - start, word_hash, wild)
            for i in range(sticky_before):
                self.advance(self.sticky[i], key + start, stop - start, word_hash, True)
            wild = True
            start = stop + 1
        for i in range(self.upcoming_count):
            self.collect(self.upcoming[i])

    def match(self, bytes key not None):
        """Targets of the patterns that match, distinct and ascending."""
        cdef Py_ssize_t count, i
        cdef tuple targets
        cdef object target
        self.run(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        count = sort_distinct(self.found, self.found_count)
        if count == 0:
            return ()
        targets = PyTuple_New(count)
        for i in range(count):
            target = PyLong_FromLongLong(self.found[i])
            Py_INCREF(target)
            PyTuple_SET_ITEM(targets, i, target)
        return targets


cdef void *grown(void *block, size_t size) except NULL:
    cdef void *larger = realloc(block, size)
    if larger == NULL:
        raise MemoryError
    return larger
