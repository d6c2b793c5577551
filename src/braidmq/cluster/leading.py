"""The part of a replica that leads: what is committed, who is in sync, who leads next."""

from collections.abc import Iterator

from braidmq.cluster.effects import Commit, Deposed, Lead, Quiet, Send, Ship, TransferRefused
from braidmq.cluster.facts import Facts
from braidmq.cluster.log import NOTHING, TermStart, is_history
from braidmq.cluster.messages import Ack, Copy, Group, Hello, Refused, Welcome
from braidmq.cluster.peers import BackOff, Peer
from braidmq.cluster.shard import (
    DirectoryId,
    ShardState,
    Term,
    grown,
    step_towards,
    transferred,
    without,
)
from braidmq.cluster.states import Event, Role
from braidmq.model.ids import Lsn


class Leading:
    def __init__(self, facts: Facts) -> None:
        assert facts.state is not None
        facts.go(Event.NAMED)
        self._facts = facts
        self.term = facts.state.term
        self.begin = Lsn(facts.log.last + 1)
        self._proposals: list[ShardState] = []  # all from the newest revision known, undecided
        self._peers: dict[DirectoryId, Peer] = {}
        self._back_off = BackOff(facts.settings)
        self._since_ms = self._ticked_ms = self._said_ms = self._asked_ms = facts.now_ms
        self._joining: DirectoryId | None = None
        self._joining_until_ms = 0
        self._target: DirectoryId | None = None
        self._quiet_until_ms = self._transfer_ms = 0
        self._back_off.learned(facts.state.in_sync, facts.now_ms)
        facts.log.append(self.begin, self.begin, [TermStart(self.term, self.begin)])
        facts.emit(Lead(self.term, self.begin))

    @property
    def state(self) -> ShardState:
        assert self._facts.state is not None
        return self._facts.state

    # What is committed

    def advance(self) -> None:
        log = self._facts.log
        lsn = self.committable()
        if self.may_commit(lsn) and lsn > log.committed:
            log.committed = lsn
            self._facts.emit(Commit(lsn))

    def committable(self) -> Lsn:
        return min(self.durable_of(each) for each in self.counted())

    def counted(self) -> set[DirectoryId]:
        """Whoever may be elected by the state that is, or by one that may have come to be; and who
        is about to join, so that the commit does not run away from it."""
        members = set(self.state.in_sync).union(*(each.in_sync for each in self._proposals))
        return members if self._joining is None else members | {self._joining}

    def may_commit(self, lsn: Lsn) -> bool:
        return lsn >= self.begin and len(self.state.in_sync) >= self.state.min_in_sync

    def durable_of(self, member: DirectoryId) -> Lsn:
        if member == self._facts.me:
            return self._facts.log.durable
        peer = self._peers.get(member)
        return peer.acked if peer is not None else NOTHING

    # What peers say

    def on_hello(self, peer: DirectoryId, hello: Hello) -> None:
        facts = self._facts
        if not self._is_replica(peer):
            facts.emit(Send(peer, Refused(facts.term)))
        elif self.is_superseded(peer, hello.term):
            self.depose(hello.term)
        elif hello.directory != peer or not is_history(hello.terms, hello.last):
            facts.refuse(peer, "its HELLO contradicts itself")
        else:
            self._welcome(peer, hello)

    def on_ack(self, peer: DirectoryId, ack: Ack) -> None:
        known = self._peers.get(peer)
        if self.is_superseded(peer, ack.term):
            self.depose(ack.term)
        elif known is None or not known.linked or ack.term != self.term:
            return
        elif not known.acked <= ack.durable <= known.sent:
            self._facts.refuse(peer, f"it acknowledges {ack.durable} of {known.sent}")
            known.close()
        else:
            facts = self._facts
            known.acknowledge(ack.durable, facts.log.last, facts.settings.lag_ms, facts.now_ms)
            self.advance()
            self._ship(known)
            self._hand_over()
            if peer == self._joining and self.has_enough(known):
                self._change()

    def on_refused(self, peer: DirectoryId, refused: Refused) -> None:
        if self.is_superseded(peer, refused.term):
            self.depose(refused.term)

    def on_link_lost(self, peer: DirectoryId, was_reset: bool) -> None:
        known = self._peers.get(peer)
        if known is not None:
            known.close()
            known.is_gone = known.is_gone or was_reset
            self._stop_waiting()
            self._change()

    def is_superseded(self, peer: DirectoryId, term: Term) -> bool:
        """Strangers are not believed: any number would end a leadership."""
        return term > self.term and self._is_replica(peer)

    # What is to be sent

    def propose(self, first: Lsn, last: Lsn, size: int) -> None:
        self._facts.log.append(first, last, size=size)
        for peer in self._peers.values():
            self._ship(peer)

    def _welcome(self, peer: DirectoryId, hello: Hello) -> None:
        facts = self._facts
        known = self._peers.setdefault(peer, Peer(peer, hello.incarnation))
        cut = self.cut_for(hello)
        if cut + 1 >= facts.log.first:
            known.open(hello.incarnation, cut, facts.log.last, facts.now_ms)
            facts.emit(Send(peer, Welcome(self.term, cut, facts.log.committed)))
        elif peer in self.counted():
            facts.refuse(peer, "a member of the in-sync set has not what is committed")
        else:
            known.close()
            facts.emit(Send(peer, Copy(self.term, Lsn(facts.log.first - 1))))

    def cut_for(self, hello: Hello) -> Lsn:
        return self._facts.log.agreement(hello.terms, hello.last)

    def _ship(self, peer: Peer) -> None:
        facts, settings = self._facts, self._facts.settings
        if not peer.has_acked:
            return
        if peer.sent + 1 < facts.log.first:
            facts.refuse(peer.name, "what comes next is no longer in the journal")
            peer.close()
            return
        while peer.sent < facts.log.last and peer.sent - peer.acked < settings.unacked_entries:
            first = Lsn(peer.sent + 1)
            peer.sent = min(facts.log.last, Lsn(peer.sent + settings.ship_entries))
            facts.emit(Ship(peer.name, self.term, first, peer.sent, facts.log.committed))

    def _heartbeat(self) -> None:
        facts = self._facts
        if facts.now_ms - self._said_ms < facts.settings.heartbeat_ms:
            return
        self._said_ms = facts.now_ms
        for peer in self._peers.values():
            if peer.has_acked:
                first = Lsn(peer.sent + 1)
                beat = Group(self.term, first, peer.sent, facts.log.committed)
                facts.emit(Send(peer.name, beat))

    # Who is in sync

    def learned(self) -> None:
        """What was proposed is decided: it came to be, or can't any more."""
        facts, state = self._facts, self.state
        if (state.term, state.leader, state.incarnation) != (
            self.term,
            facts.me,
            facts.incarnation,
        ):
            self.depose(state.term)
            return
        self._proposals.clear()
        for name in [each for each in self._peers if each not in state.replicas]:
            del self._peers[name]
            facts.refuse(name, "it is not a replica of this shard any more")
        self._back_off.learned(state.in_sync, facts.now_ms)
        self.advance()
        self._hand_over()

    def tick(self) -> None:
        self._forgive_a_pause()
        self._heartbeat()
        self._end_quiet()
        self._stop_waiting()
        if self._facts.now_ms - self._asked_ms >= self._facts.settings.cas_timeout_ms:
            self.settle()
        self._change()

    def settle(self) -> None:
        """No answer came: the swap may have been made or may still be, whatever a read says now.
        Only another one from the same revision decides."""
        if self._proposals and self._facts.role is Role.LEADING:
            self._propose(self._proposals[-1])

    def _propose(self, state: ShardState) -> None:
        if state not in self._proposals:
            self._proposals.append(state)
        self._asked_ms = self._facts.now_ms
        self._facts.swap(state)

    def _change(self) -> None:
        if self._proposals or self._facts.role is not Role.LEADING:
            return
        proposal = next(self._changes(), None)
        if proposal is not None:
            self._propose(proposal)
        else:
            self._follow_wish()

    def _changes(self) -> Iterator[ShardState]:
        shrunk = self.shrunk()
        if shrunk is not None:
            yield shrunk
        growing = self._growing()
        if growing is not None:
            yield growing
        if self._facts.wish is not None:
            step = step_towards(self.state, self._facts.wish)
            if step is not None:
                yield step

    def shrunk(self) -> ShardState | None:
        lost = [each for each in self.state.in_sync if self._is_lost(each)]
        return without(self.state, lost, sorted(lost, key=self.durable_of, reverse=True))

    def _is_lost(self, member: DirectoryId) -> bool:
        if member == self._facts.me:
            return False
        peer = self._peers.get(member)
        if peer is None:
            return self._facts.now_ms - self._since_ms >= self._facts.settings.silence_ms
        return peer.is_lost(self._facts.settings, self._facts.now_ms)

    def _growing(self) -> ShardState | None:
        facts = self._facts
        for peer in self._peers.values():
            if not self._may_join(peer):
                continue
            if self.has_enough(peer):
                self._joining = None
                return grown(self.state, peer.name)
            if self._joining is None:
                self._joining = peer.name
                self._joining_until_ms = facts.now_ms + facts.settings.lag_ms
        return None

    def _may_join(self, peer: Peer) -> bool:
        facts = self._facts
        return (
            peer.has_acked
            and peer.name not in self.state.in_sync
            and (facts.wish is None or peer.name in facts.wish.replicas)
            and facts.is_registered(peer.name, peer.incarnation)
            and not peer.is_lost(facts.settings, facts.now_ms)
            and peer.level_ms is not None
            and (
                self._back_off.is_over(peer.name, facts.now_ms - peer.level_ms)
                or self._is_blocked()
            )
        )

    def has_enough(self, peer: Peer) -> bool:
        """What is committed, which is not known before the first entry of the term is. And we have
        that entry: a leader that lost it would follow an older one when it is back, who could
        confirm with it what the new member has not."""
        log = self._facts.log
        return log.durable >= self.begin and peer.acked >= max(self.begin, log.committed)

    def _stop_waiting(self) -> None:
        """Who keeps up gets there in a moment; publishers do not wait longer for who does not."""
        if self._joining is None:
            return
        peer = self._peers.get(self._joining)
        if peer is not None and self._facts.now_ms >= self._joining_until_ms:
            peer.level_ms = None
        if peer is None or not self._may_join(peer):
            self._joining = None
            self.advance()

    def _is_blocked(self) -> bool:
        """Nothing is confirmed because of members that are lost and can't be spared."""
        return any(self._is_lost(each) for each in self.state.in_sync)

    def _forgive_a_pause(self) -> None:
        """Who was not listening can't say that the others were silent."""
        facts = self._facts
        if facts.now_ms - self._ticked_ms >= facts.settings.silence_ms // 2:
            for peer in self._peers.values():
                peer.forgive(facts.now_ms)
        self._ticked_ms = facts.now_ms

    # Who leads next

    def transfer(self, target: DirectoryId) -> None:
        facts = self._facts
        reason = self.why_not(target)
        if reason is not None:
            facts.emit(TransferRefused(target, reason))
            return
        facts.go(Event.HAND_OVER)
        self._target = target
        self._quiet_until_ms = facts.now_ms + facts.settings.quiet_ms
        facts.emit(Quiet(True))
        self._hand_over()

    def why_not(self, target: DirectoryId) -> str | None:
        facts, peer = self._facts, self._peers.get(target)
        if self._proposals or facts.role is not Role.LEADING:
            return "another change is under way"
        if target == facts.me:
            return "it leads already"
        if target not in self.state.in_sync:
            return "it is not in the in-sync set"
        if peer is None or not peer.has_acked or not facts.is_registered(target, peer.incarnation):
            return "it is not connected"
        if facts.registrations[target].draining:
            return "it is to stop"
        behind = facts.log.bytes_after(peer.acked)
        if peer.acked < self.begin or behind is None or behind > facts.settings.transfer_bytes_max:
            return "it has too much to get"
        return None

    def hand_over_to_anyone(self) -> None:
        """To who has least to get, the one that is wished for before others."""
        wish = self._facts.wish
        wanted = wish.replicas if wish is not None else ()
        preferred = wish.preferred if wish is not None else None
        names = [name for name in self.state.in_sync if self.why_not(name) is None]
        if names and self._facts.now_ms >= self._transfer_ms:
            self._try_transfer(
                max(
                    names,
                    key=lambda each: (each == preferred, each in wanted, self.durable_of(each)),
                )
            )

    def _follow_wish(self) -> None:
        wish, me = self._facts.wish, self._facts.me
        if wish is None or self._facts.now_ms < self._transfer_ms:
            return
        if wish.preferred is not None and wish.preferred != me and wish.preferred in wish.replicas:
            if self.why_not(wish.preferred) is None:
                self._try_transfer(wish.preferred)
        elif me not in wish.replicas and set(wish.replicas) <= set(self.state.in_sync):
            self.hand_over_to_anyone()

    def _try_transfer(self, target: DirectoryId) -> None:
        self._transfer_ms = self._facts.now_ms + self._facts.settings.transfer_retry_ms
        self.transfer(target)

    def _hand_over(self) -> None:
        """As soon as the target has everything."""
        facts = self._facts
        if facts.role is not Role.QUIET or self._proposals:
            return
        assert self._target is not None
        if self.durable_of(self._target) == facts.log.last:
            incarnation = self._peers[self._target].incarnation
            self._propose(transferred(self.state, self._target, incarnation))

    def _end_quiet(self) -> None:
        """Publishers have waited long enough. What etcd was asked for may still come to be, so it
        is asked to leave everything as it is."""
        facts = self._facts
        if facts.role is not Role.QUIET or facts.now_ms < self._quiet_until_ms:
            return
        facts.go(Event.GIVEN_UP)
        facts.emit(Quiet(False))
        if self._proposals:
            self._propose(self.state)

    def depose(self, term: Term) -> None:
        facts = self._facts
        facts.term = max(facts.term, term)
        facts.go(Event.NEWER_TERM)
        facts.emit(Deposed(facts.term))

    def _is_replica(self, peer: DirectoryId) -> bool:
        return any(peer in each.replicas for each in (self.state, *self._proposals))
