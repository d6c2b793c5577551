"""What a replica knows, for all parts of the core, and the effects that they want."""

from collections.abc import Mapping

from braidmq.cluster.effects import Cas, Disconnect, Effect, Guard
from braidmq.cluster.log import Log, LogView
from braidmq.cluster.settings import ReplicaSettings
from braidmq.cluster.shard import (
    DirectoryId,
    Incarnation,
    Registration,
    Revision,
    ShardState,
    Wish,
)
from braidmq.cluster.states import FINAL, TRANSITIONS, Event, Role


class Facts:
    def __init__(
        self, me: DirectoryId, incarnation: Incarnation, view: LogView, settings: ReplicaSettings
    ) -> None:
        self.me = me
        self.incarnation = incarnation
        self.settings = settings
        self.log = Log(view)
        self.role = Role.SEEKING
        self.now_ms = 0
        self.term = self.log.term
        """The newest that this process has heard of."""
        self.revision = Revision(0)
        self.state: ShardState | None = None
        self.registrations: Mapping[DirectoryId, Registration] = {}
        self.wish: Wish | None = None
        self._effects: list[Effect] = []

    @property
    def is_over(self) -> bool:
        return self.role in FINAL

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def go(self, event: Event) -> None:
        following = TRANSITIONS[self.role].get(event)
        assert following is not None, f"{event} while {self.role}"
        self.role = following

    def learn(self, revision: Revision, state: ShardState) -> bool:
        """Whether it is news. A swap from an older revision can't be made any more."""
        if revision <= self.revision:
            return False
        self.revision, self.state = revision, state
        self.term = max(self.term, state.term)
        return True

    def swap(self, state: ShardState, *guards: Guard) -> None:
        self.emit(Cas(self.revision, state, guards))

    def is_in_set(self, member: DirectoryId) -> bool:
        return self.state is not None and member in self.state.in_sync

    def is_registered(self, member: DirectoryId, incarnation: Incarnation) -> bool:
        found = self.registrations.get(member)
        return found is not None and found.incarnation == incarnation

    def is_named(self) -> bool:
        """Etcd says that this process leads; another process on this directory never resumes."""
        state = self.state
        return (
            state is not None
            and (state.leader, state.incarnation) == (self.me, self.incarnation)
            and state.term == self.term > self.log.term
        )

    def refuse(self, peer: DirectoryId, reason: str) -> None:
        self.emit(Disconnect(peer, reason))
