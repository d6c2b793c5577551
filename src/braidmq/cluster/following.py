"""The part of a replica that follows: where to go on, what to cut, what is committed."""

from braidmq.cluster.effects import (
    Append,
    Commit,
    Connect,
    CopyFrom,
    Disconnect,
    Halt,
    Send,
    Truncate,
)
from braidmq.cluster.facts import Facts
from braidmq.cluster.log import NOTHING, is_history
from braidmq.cluster.messages import Ack, Copy, Group, Hello, Refused, Welcome
from braidmq.cluster.shard import DirectoryId, Term
from braidmq.cluster.states import Event, Role
from braidmq.model.ids import Lsn


class Following:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._leader: DirectoryId | None = None  # who was asked, or is followed
        self._term = Term(0)  # the one it welcomed us into
        self._confirmed = NOTHING  # as it says
        self._asked_ms = -facts.settings.hello_retry_ms
        self._heard_ms = 0
        self._acked_ms = 0

    def learned(self) -> None:
        """Another may lead now."""
        facts = self._facts
        assert facts.state is not None
        if self._leader is None or facts.state.term <= self._term:
            return
        self._drop("another term has begun")
        if facts.role is Role.FOLLOWING:
            facts.go(Event.NEWER_TERM)
        self._asked_ms = facts.now_ms - facts.settings.hello_retry_ms

    def tick(self) -> None:
        facts, settings = self._facts, self._facts.settings
        if facts.role is Role.FOLLOWING:
            if facts.now_ms - self._heard_ms >= settings.silence_ms:
                self._drop("the leader is silent")
                facts.go(Event.LINK_LOST)
            elif facts.now_ms - self._acked_ms >= settings.heartbeat_ms:
                self.ack()
        if facts.role is Role.SEEKING and facts.now_ms - self._asked_ms >= settings.hello_retry_ms:
            self._ask()

    def leave(self) -> None:
        """This replica leads from now on."""
        self._drop("it leads itself")

    def on_link_lost(self, peer: DirectoryId) -> bool:
        """Whether it was the leader's."""
        if peer != self._leader:
            return False
        self._leader = None
        if self._facts.role is Role.FOLLOWING:
            self._facts.go(Event.LINK_LOST)
            self._asked_ms = self._facts.now_ms
            self._ask()  # at once: when it is refused the process is gone
        return True

    def on_welcome(self, peer: DirectoryId, message: Welcome) -> None:
        facts = self._facts
        if not self._is_answer(peer, message.term):
            return
        if not 0 <= message.cut <= facts.log.last:
            self._lose(peer, f"it can't be cut at {message.cut}")
        elif message.cut < facts.log.committed:
            self._halt(peer, f"would cut at {message.cut}")
        else:
            self._enter(message.term)
            self._go_on(message)

    def on_copy(self, peer: DirectoryId, message: Copy) -> None:
        facts = self._facts
        if not self._is_answer(peer, message.term):
            return
        if facts.is_in_set(facts.me):
            # What it holds may be what the others count on.
            self._lose(peer, "a member of the in-sync set does not copy")
        elif message.lsn < facts.log.committed:
            self._halt(peer, f"would copy what ends at {message.lsn}")
        else:
            self._enter(message.term)
            facts.go(Event.MUST_COPY)
            facts.emit(CopyFrom(peer, message.lsn))

    def on_refused(self, peer: DirectoryId) -> None:
        if peer == self._leader:
            self._lose(peer, "it refused")

    def on_group(self, peer: DirectoryId, group: Group) -> None:
        facts = self._facts
        if self.is_outdated(group.term):
            facts.emit(Send(peer, Refused(facts.term)))
            return
        if facts.role is not Role.FOLLOWING or peer != self._leader:
            return
        problem = self._problem(group)
        if problem:
            self._lose(peer, problem)
            return
        self._heard_ms = facts.now_ms
        self._confirmed = max(self._confirmed, group.committed)
        if group.first <= group.last:
            facts.log.append(group.first, group.last, group.begins)
            facts.emit(Append(group))
        self._commit()

    def on_durable(self) -> None:
        if self._facts.role is Role.FOLLOWING:
            self.ack()
            self._commit()

    def on_cut(self) -> None:
        self._asked_ms = self._facts.now_ms - self._facts.settings.hello_retry_ms
        self._facts.go(Event.CUT_DONE)
        self.tick()

    def ack(self) -> None:
        facts = self._facts
        assert self._leader is not None
        self._acked_ms = facts.now_ms
        facts.emit(Send(self._leader, Ack(self._term, self.acknowledged())))

    def acknowledged(self) -> Lsn:
        return self._facts.log.durable

    def is_outdated(self, term: Term) -> bool:
        return term < self._facts.term

    def _ask(self) -> None:
        facts, state = self._facts, self._facts.state
        if state is None or state.leader in (None, facts.me) or facts.me not in state.replicas:
            return
        assert state.leader is not None
        self._leader = state.leader
        self._asked_ms = facts.now_ms
        log = facts.log
        hello = Hello(facts.me, facts.incarnation, facts.term, log.last, tuple(log.terms))
        facts.emit(Connect(self._leader, hello))

    def _is_answer(self, peer: DirectoryId, term: Term) -> bool:
        facts = self._facts
        if facts.role is not Role.SEEKING or peer != self._leader:
            return False
        if self.is_outdated(term):
            facts.emit(Send(peer, Refused(facts.term)))
            self._lose(peer, "its term is over")
            return False
        return True

    def _enter(self, term: Term) -> None:
        self._facts.term = self._term = term
        self._confirmed = NOTHING
        self._heard_ms = self._facts.now_ms

    def _go_on(self, message: Welcome) -> None:
        facts = self._facts
        if message.cut < facts.log.last:
            facts.go(Event.MUST_CUT)
            self._drop("it cuts its journal first")
            facts.emit(Truncate(message.cut))
            return
        self._confirmed = message.committed
        facts.go(Event.WELCOMED)
        self.ack()
        self._commit()

    def _problem(self, group: Group) -> str | None:
        log = self._facts.log
        if group.term != self._term:
            return f"a group of term {group.term} on a link of term {self._term}"
        if group.first != log.last + 1 or group.last < log.last:
            return f"entries {group.first} to {group.last} after {log.last}"
        terms = (*log.terms, *group.begins)
        begin = group.begins[0].first if group.begins else group.first
        if (
            begin < group.first
            or not is_history(terms, group.last)
            or terms[-1:] > ((group.term, group.last),)
        ):
            return f"terms {group.begins} can't begin between {group.first} and {group.last}"
        return None

    def _commit(self) -> None:
        log = self._facts.log
        lsn = min(self._confirmed, log.durable)
        if lsn > log.committed:
            log.committed = lsn
            self._facts.emit(Commit(lsn))

    def _halt(self, peer: DirectoryId, what: str) -> None:
        facts = self._facts
        reason = f"{peer} {what}, but {facts.log.committed} is committed here"
        self._drop(reason)
        facts.go(Event.BELOW_COMMIT)
        facts.emit(Halt(reason))

    def _lose(self, peer: DirectoryId, reason: str) -> None:
        self._drop(reason)
        if self._facts.role is Role.FOLLOWING:
            self._facts.go(Event.LINK_LOST)

    def _drop(self, reason: str) -> None:
        if self._leader is not None:
            self._facts.emit(Disconnect(self._leader, reason))
            self._leader = None
