"""A replica in a test's hand: inputs at a time that the test sets, and all effects remembered."""

from collections.abc import Iterable
from typing import Any, TypeVar

from braidmq.cluster.core import Replica
from braidmq.cluster.effects import Cas, Connect, Effect, Send
from braidmq.cluster.log import LogView, TermStart
from braidmq.cluster.messages import Ack, Group, Hello, Message, Welcome
from braidmq.cluster.shard import (
    DirectoryId,
    Incarnation,
    Registration,
    Revision,
    ShardState,
    Term,
)
from braidmq.model.ids import Lsn

Kind = TypeVar("Kind", bound=Effect)
A, B, C, D = (DirectoryId(each) for each in "ABCD")
ABC = (A, B, C)
TICK_MS = 100


def registered(*names: DirectoryId, incarnation: int = 1) -> dict[DirectoryId, Registration]:
    return {each: Registration(Incarnation(incarnation), 100 + ord(each[0])) for each in names}


def shard_state(
    leader: DirectoryId | None = A,
    term: int = 1,
    in_sync: tuple[DirectoryId, ...] = ABC,
    replicas: tuple[DirectoryId, ...] = ABC,
    minimum: int = 2,
    incarnation: int = 1,
) -> ShardState:
    return ShardState(Term(term), leader, Incarnation(incarnation), in_sync, replicas, minimum)


def log_view(last: int, *terms: tuple[int, int], committed: int = 0, first: int = 1) -> LogView:
    starts = tuple(TermStart(Term(term), Lsn(lsn)) for term, lsn in terms)
    return LogView(Lsn(first), Lsn(last), Lsn(committed), starts)


def group(term: int, first: int, last: int, committed: int = 0, *begins: tuple[int, int]) -> Group:
    starts = tuple(TermStart(Term(each), Lsn(lsn)) for each, lsn in begins)
    return Group(Term(term), Lsn(first), Lsn(last), Lsn(committed), starts, "entries")


class Driven:
    def __init__(
        self, me: DirectoryId = A, view: LogView | None = None, incarnation: int = 1
    ) -> None:
        self.me = me
        self.incarnation = Incarnation(incarnation)
        self.replica = Replica(me, self.incarnation, view or LogView())
        self.now_ms = 10_000
        self.effects: list[Effect] = []

    def do(self, how: str, *args: Any) -> list[Effect]:
        done: list[Effect] = getattr(self.replica, how)(*args, self.now_ms)
        self.effects += done
        return done

    def pass_ms(self, pass_ms: int, saying: Iterable[tuple[DirectoryId, Message]] = ()) -> None:
        """Time goes by, in ticks; ``saying`` is heard at each of them."""
        said = tuple(saying)
        for _ in range(pass_ms // TICK_MS):
            self.now_ms += TICK_MS
            for peer, message in said:
                self.do("on_message", peer, message)
            self.do("tick")

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [each for each in self.effects if isinstance(each, kind)]

    def sent(self, kind: type[Message]) -> list[Any]:
        return [each.message for each in self.of(Send) if isinstance(each.message, kind)]

    def learn(self, revision: int, state: ShardState, *there: DirectoryId) -> None:
        self.do("on_registrations", registered(*(there or ABC)))
        self.do("on_state", Revision(revision), state)

    def answer(self, cas: Cas, revision: int) -> list[Effect]:
        """Etcd made the swap."""
        return self.do("on_cas", Revision(revision), cas.state)

    def hello(self, peer: DirectoryId, last: int = 0, *terms: tuple[int, int]) -> list[Effect]:
        view = log_view(last, *terms)
        hello = Hello(peer, Incarnation(1), Term(0), view.last, view.terms)
        return self.do("on_message", peer, hello)

    def ack(self, peer: DirectoryId, durable: int, term: int = 1) -> list[Effect]:
        return self.do("on_message", peer, Ack(Term(term), Lsn(durable)))

    def durable(self, lsn: int) -> list[Effect]:
        return self.do("on_durable", Lsn(lsn))

    def publish(self, first: int, last: int, size: int = 100) -> list[Effect]:
        return self.do("propose", Lsn(first), Lsn(last), size)


def leader(
    state: ShardState | None = None,
    view: LogView | None = None,
    followers: tuple[DirectoryId, ...] = (B, C),
) -> Driven:
    """A leads term 1 or what ``state`` says, and followers are connected; they have what A had
    before, and not yet the entry that began the term."""
    driven = Driven(A, view)
    named = state or shard_state()
    driven.learn(2, named, *named.replicas)
    last = driven.replica.log.last - 1
    terms = driven.replica.log.terms[:-1]
    for each in followers:
        driven.hello(each, last, *terms)
        driven.ack(each, last, named.term)
    return driven


def serving(state: ShardState | None = None, **given: Any) -> Driven:
    """A leader whose term has begun on all disks."""
    driven = leader(state, **given)
    begin = driven.replica.log.last
    driven.durable(begin)
    for each in given.get("followers", (B, C)):
        driven.ack(each, begin, driven.replica.log.term)
    assert driven.replica.log.committed == begin
    return driven


def follower(me: DirectoryId = B, view: LogView | None = None, term: int = 1) -> Driven:
    """It follows A in a term, from where its log ends."""
    driven = Driven(me, view)
    driven.learn(2, shard_state(A, term))
    driven.do("tick")
    assert [each.peer for each in driven.of(Connect)] == [A]
    driven.do("on_message", A, Welcome(Term(term), driven.replica.log.last, Lsn(0)))
    return driven
