"""A replica as a pure function: what happened goes in, what is to be done comes out.

It knows no sockets, clock, disk or chance: time is an argument, and identities are drawn by who
makes it. The node performs the effects in order and reports what came of them. ``states.py`` has
the table of roles, ``following.py`` and ``leading.py`` what is done in them. These rules keep what
is confirmed, whatever the network, the clocks and the leases do:

1.  Committed is what everybody has on disk who is in the in-sync set or in a proposal for it that
    is undecided; not before the entry that began the term, and only while the set has its minimum.
2.  The set changes by compare-and-swap. An unanswered one is settled by another from the same
    revision, never by a read: the first may still arrive.
3.  The set never shrinks below its minimum: nothing is confirmed instead.
4.  Only a member of the set is elected, by one swap that also says who is in the set then.
5.  Who joins has what is committed and the entry that began the term, as its leader has on its own
    disk, and counts from the moment that etcd is asked.
6.  Members are directories, not names: a disk that was wiped is a stranger.
7.  A process never resumes a term: a leader that was restarted follows.
8.  Where a follower cuts is found by terms, never by the commit. Below its own commit it stops.
9.  Acknowledgements and groups carry the term; who has seen a newer one refuses.
10. Clocks and leases decide how soon something is done, never whether it is safe.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto

from braidmq.cluster.effects import Drained, Effect, Guard, Revoke, Send, TransferRefused
from braidmq.cluster.facts import Facts
from braidmq.cluster.following import Following
from braidmq.cluster.leading import Leading
from braidmq.cluster.log import Log, LogView
from braidmq.cluster.messages import Ack, Copy, Group, Hello, Message, Refused, Welcome
from braidmq.cluster.settings import DEFAULTS, ReplicaSettings
from braidmq.cluster.shard import (
    DirectoryId,
    Incarnation,
    Registration,
    Revision,
    ShardState,
    Term,
    Wish,
    elected,
)
from braidmq.cluster.states import Event, Role
from braidmq.model.ids import Lsn


class LinkEnd(Enum):
    CLOSED = auto()
    """By the peer or by us, or it has timed out."""
    RESET = auto()
    """The peer's machine is there, its process is not any more."""
    REFUSED = auto()
    """It could not be opened: nobody listens there."""


class Replica:
    """Every method but ``log`` and ``role`` is an input; each returns what is to be done."""

    def __init__(
        self,
        me: DirectoryId,
        incarnation: Incarnation,
        view: LogView,
        settings: ReplicaSettings = DEFAULTS,
    ) -> None:
        self._facts = Facts(me, incarnation, view, settings)
        self._following = Following(self._facts)
        self._leading: Leading | None = None
        self._etcd_answers = True
        self._stand_ms = 0  # not before
        self._is_draining = False

    @property
    def role(self) -> Role:
        return self._facts.role

    @property
    def log(self) -> Log:
        return self._facts.log

    # What etcd says

    def on_state(self, revision: Revision, state: ShardState, now_ms: int) -> list[Effect]:
        """From a watch or a read, in any order: only a newer revision is news."""
        return self._did(now_ms, lambda: self._learn(revision, state))

    def on_cas(self, revision: Revision, state: ShardState, now_ms: int) -> list[Effect]:
        """The answer to a ``Cas``, made or not: what the key holds after it."""
        return self._did(now_ms, lambda: self._learn(revision, state))

    def on_registrations(
        self, registrations: Mapping[DirectoryId, Registration], now_ms: int
    ) -> list[Effect]:
        self._facts.registrations = dict(registrations)
        return self._did(now_ms, self._stand)

    def on_wish(self, wish: Wish | None, now_ms: int) -> list[Effect]:
        self._facts.wish = wish
        return self._did(now_ms, lambda: None)

    def on_etcd(self, answers: bool, now_ms: int) -> list[Effect]:
        """It is away, or back: then registrations may be missing whose owners are there."""
        if answers and not self._etcd_answers:
            self._stand_ms = now_ms + self._facts.settings.lease_ttl_ms
        self._etcd_answers = answers
        return self._did(now_ms, lambda: None)

    # What peers say

    def on_message(self, peer: DirectoryId, message: Message, now_ms: int) -> list[Effect]:
        return self._did(now_ms, lambda: self._hear(peer, message))

    def on_link_lost(self, peer: DirectoryId, end: LinkEnd, now_ms: int) -> list[Effect]:
        return self._did(now_ms, lambda: self._lose(peer, end))

    # What the disk says

    def on_durable(self, lsn: Lsn, now_ms: int) -> list[Effect]:
        return self._did(now_ms, lambda: self._durable(lsn))

    def on_cut(self, lsn: Lsn, now_ms: int) -> list[Effect]:
        """``Truncate`` is done."""

        def cut() -> None:
            self._facts.log.cut(lsn)
            self._following.on_cut()
            self._lead_if_named()

        return self._did(now_ms, cut)

    def on_copied(self, view: LogView, now_ms: int) -> list[Effect]:
        """``CopyFrom`` is done, or has failed: then there is nothing here."""

        def copied() -> None:
            self._facts.log = Log(view)
            self._facts.go(Event.COPY_DONE)

        return self._did(now_ms, copied)

    def on_trimmed(self, first: Lsn, now_ms: int) -> list[Effect]:
        """The journal begins with ``first`` now: a snapshot has what is below."""
        assert self._facts.log.first <= first <= self._facts.log.committed + 1
        self._facts.log.first = first
        return self._did(now_ms, lambda: None)

    # What is asked of it

    def propose(self, first: Lsn, last: Lsn, size: int, now_ms: int) -> list[Effect]:
        """Entries that a leader has written to its journal; ``size`` in bytes."""

        def shipped() -> None:
            if self._leading is not None:
                self._leading.propose(first, last, size)

        return self._did(now_ms, shipped)

    def transfer(self, target: DirectoryId, now_ms: int) -> list[Effect]:
        def handed_over() -> None:
            if self._leading is None:
                self._facts.emit(TransferRefused(target, "this replica does not lead"))
            else:
                self._leading.transfer(target)

        return self._did(now_ms, handed_over)

    def drain(self, now_ms: int) -> list[Effect]:
        """This process is to stop, when it can be spared."""
        self._is_draining = True
        return self._did(now_ms, self._drain)

    def tick(self, now_ms: int) -> list[Effect]:
        """Every tenth of a second or so."""

        def ticked() -> None:
            if self._leading is not None:
                self._leading.tick()
            else:
                self._following.tick()
                self._stand()
            self._drain()

        return self._did(now_ms, ticked)

    def _did(self, now_ms: int, action: Callable[[], None]) -> list[Effect]:
        facts = self._facts
        facts.now_ms = max(facts.now_ms, now_ms)
        if not facts.is_over:
            action()
        return facts.taken()

    def _learn(self, revision: Revision, state: ShardState) -> None:
        if not self._facts.learn(revision, state):
            return
        if self._leading is not None:
            self._leading.learned()
        else:
            self._following.learned()
            self._lead_if_named()

    def _lead_if_named(self) -> None:
        facts = self._facts
        if facts.role in (Role.SEEKING, Role.FOLLOWING) and facts.is_named():
            self._following.leave()
            self._leading = Leading(facts)

    def _stand(self) -> None:
        """For election, when the leader's process is not registered any more."""
        facts = self._facts
        if not self._may_stand():
            return
        state = facts.state
        assert state is not None
        guards = [Guard(facts.me, facts.incarnation, registered=True)]
        if state.leader is not None:
            guards.append(Guard(state.leader, state.incarnation, registered=False))
        term = Term(max(facts.term, state.term) + 1)
        there = facts.registrations.keys()
        self._stand_ms = facts.now_ms + facts.settings.cas_timeout_ms
        facts.swap(elected(state, facts.me, facts.incarnation, term, there), *guards)

    def _may_stand(self) -> bool:
        facts, state = self._facts, self._facts.state
        return (
            state is not None
            and self._etcd_answers
            and facts.role in (Role.SEEKING, Role.FOLLOWING)
            and self.is_eligible()
            and facts.is_registered(facts.me, facts.incarnation)
            and (state.leader is None or not facts.is_registered(state.leader, state.incarnation))
            and facts.now_ms >= self._stand_ms
        )

    def is_eligible(self) -> bool:
        return self._facts.is_in_set(self._facts.me)

    def _hear(self, peer: DirectoryId, message: Message) -> None:
        leading, following = self._leading, self._following
        match message:
            case Hello() if leading is not None:
                leading.on_hello(peer, message)
            case Ack() if leading is not None:
                leading.on_ack(peer, message)
            case Refused() if leading is not None:
                leading.on_refused(peer, message)
            case Hello():
                self._facts.emit(Send(peer, Refused(self._facts.term)))
            case Group():
                following.on_group(peer, message)
            case Welcome():
                following.on_welcome(peer, message)
            case Copy():
                following.on_copy(peer, message)
            case Refused():
                following.on_refused(peer)
            case Ack():
                pass  # of a leadership that this process does not have

    def _lose(self, peer: DirectoryId, end: LinkEnd) -> None:
        if self._leading is not None:
            self._leading.on_link_lost(peer, end is LinkEnd.RESET)
        elif self._following.on_link_lost(peer) and end is LinkEnd.REFUSED:
            self._revoke(peer)

    def _revoke(self, peer: DirectoryId) -> None:
        """Its process has ended. If that is wrong it leads on until somebody else does."""
        facts, state = self._facts, self._facts.state
        found = facts.registrations.get(peer)
        if (
            state is not None
            and found is not None
            and (state.leader, state.incarnation) == (peer, found.incarnation)
            and facts.is_in_set(facts.me)
        ):
            facts.emit(Revoke(found.lease))

    def _durable(self, lsn: Lsn) -> None:
        log = self._facts.log
        if self._facts.role in (Role.CUTTING, Role.COPYING):
            return
        assert lsn <= log.last
        log.durable = max(log.durable, lsn)
        if self._leading is not None:
            self._leading.advance()
        else:
            self._following.on_durable()

    def _drain(self) -> None:
        facts, state = self._facts, self._facts.state
        if not self._is_draining or state is None:
            return
        if self._leading is not None:
            self._leading.hand_over_to_anyone()
            return
        others = [each for each in state.in_sync if each != facts.me]
        led = state.leader not in (None, facts.me)
        if led and len(others) >= state.min_in_sync:
            self._is_draining = False
            facts.emit(Drained())
