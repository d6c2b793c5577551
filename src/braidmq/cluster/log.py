"""What a replica knows of its journal: how far it goes, how far it is on disk, how far committed,
and where each term begins. The entries themselves stay in the journal."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from braidmq.cluster.shard import Term
from braidmq.model.ids import Lsn

NOTHING: Final = Lsn(0)  # before the first entry
FIRST: Final = Lsn(1)
GROUPS_REMEMBERED: Final = 4096  # whose sizes are known; who is further behind is far behind


class TermStart(NamedTuple):
    """A leadership, and the entry it began with."""

    term: Term
    first: Lsn


@dataclass(frozen=True, slots=True)
class LogView:
    """A journal as it was found on disk."""

    first: Lsn = FIRST
    """The first entry that can still be sent; a snapshot holds what is below."""
    last: Lsn = NOTHING
    committed: Lsn = NOTHING
    """What the snapshot knows of it, as checkpoints wait for the commit."""
    terms: tuple[TermStart, ...] = ()


class Log:
    def __init__(self, view: LogView) -> None:
        self.first = view.first
        self.last = view.last
        self.durable = view.last
        self.committed = view.committed
        self.terms = list(view.terms)
        self._sizes: deque[tuple[Lsn, Lsn, int]] = deque(maxlen=GROUPS_REMEMBERED)

    @property
    def term(self) -> Term:
        return self.terms[-1].term if self.terms else Term(0)

    def append(
        self, first: Lsn, last: Lsn, begins: Iterable[TermStart] = (), size: int = 0
    ) -> None:
        assert self.last + 1 == first <= last
        self.last = last
        self.terms += begins
        self._sizes.append((first, last, size))

    def cut(self, lsn: Lsn) -> None:
        assert self.committed <= lsn <= self.last
        self.last = lsn
        self.durable = min(self.durable, lsn)
        self.terms = [each for each in self.terms if each.first <= lsn]
        self._sizes.clear()

    def bytes_after(self, lsn: Lsn) -> int | None:
        """How much is behind ``lsn``; None when it is further back than is remembered."""
        if lsn >= self.last:
            return 0
        if not self._sizes or self._sizes[0][0] > lsn + 1:
            return None
        return sum(size for _, last, size in self._sizes if last > lsn)

    def agreement(self, theirs: Sequence[TermStart], their_last: Lsn) -> Lsn:
        """Up to where another log says the same as ours.

        A term has one leader, so entries with one term and one LSN are one entry, and all before
        them are (KIP-101). What is from before the first term is of the shard's first replica.
        """
        ours = {each.term: each.first for each in self.terms}
        common = [each for each in theirs if ours.get(each.term) == each.first]
        term = common[-1].term if common else Term(0)
        return min(_end_of(term, self.terms, self.last), _end_of(term, theirs, their_last))


def is_history(terms: Sequence[TermStart], last: Lsn) -> bool:
    """Whether this can be the history of a log that goes up to ``last``."""
    known = [(0, 0), *terms, (terms[-1].term + 1 if terms else 1, last + 1)]
    return all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(known))


def _end_of(term: Term, terms: Sequence[TermStart], last: Lsn) -> Lsn:
    following = bisect_left(terms, (term + 1, 0))
    return Lsn(terms[following].first - 1) if following < len(terms) else last
