"""What a leader knows of one follower; and how long one that fell out of the set stays out."""

from collections.abc import Collection
from dataclasses import dataclass

from braidmq.cluster.log import NOTHING
from braidmq.cluster.settings import ReplicaSettings
from braidmq.cluster.shard import DirectoryId, Incarnation
from braidmq.model.ids import Lsn


@dataclass(slots=True)
class Peer:
    name: DirectoryId
    incarnation: Incarnation
    linked: bool = False
    has_acked: bool = False
    """It has acknowledged on this link: what had to be cut is cut."""
    is_gone: bool = False
    """Its process has ended."""
    acked: Lsn = NOTHING
    """On its disk, as it said on this link."""
    sent: Lsn = NOTHING
    heard_ms: int = 0
    level_ms: int | None = None
    """Since when it has kept up: got to where the log ended a short while before."""
    _awaited: Lsn = NOTHING
    _awaited_ms: int = 0

    def open(self, incarnation: Incarnation, sent: Lsn, last: Lsn, now_ms: int) -> None:
        self.close()
        self.incarnation = incarnation
        self.linked, self.is_gone = True, False
        self.sent = sent
        self._awaited = last
        self.forgive(now_ms)

    def close(self) -> None:
        """What it acknowledged counts no more: it will say anew what it has."""
        self.linked = self.has_acked = False
        self.acked = NOTHING
        self.level_ms = None

    def forgive(self, now_ms: int) -> None:
        self.heard_ms = self._awaited_ms = now_ms

    def acknowledge(self, durable: Lsn, last: Lsn, lag_ms: int, now_ms: int) -> None:
        self.has_acked = True
        self.acked = durable
        self.heard_ms = now_ms
        if durable < self._awaited:
            return
        if now_ms - self._awaited_ms >= lag_ms:
            self.level_ms = None
        elif self.level_ms is None:
            self.level_ms = now_ms
        self._awaited, self._awaited_ms = last, now_ms

    def is_lost(self, settings: ReplicaSettings, now_ms: int) -> bool:
        silent = now_ms - self.heard_ms >= settings.silence_ms
        lagging = self.acked < self._awaited and now_ms - self._awaited_ms >= settings.lag_ms
        return self.is_gone or silent or lagging


@dataclass(slots=True)
class _Absence:
    wait_ms: int
    joined_ms: int | None = None


class BackOff:
    """A member that falls out again and again stalls publishers each time."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self._settings = settings
        self._members: frozenset[DirectoryId] = frozenset()
        self._absences: dict[DirectoryId, _Absence] = {}

    def learned(self, members: Collection[DirectoryId], now_ms: int) -> None:
        for each in self._members.difference(members):
            self._absences[each] = _Absence(self._next_wait(each, now_ms))
        for each in self._absences.keys() & set(members):
            if self._absences[each].joined_ms is None:
                self._absences[each].joined_ms = now_ms
        self._members = frozenset(members)

    def is_over(self, member: DirectoryId, kept_up_ms: int) -> bool:
        absence = self._absences.get(member)
        return absence is None or kept_up_ms >= absence.wait_ms

    def _next_wait(self, member: DirectoryId, now_ms: int) -> int:
        before, settings = self._absences.get(member), self._settings
        if before is None or (
            before.joined_ms is not None and now_ms - before.joined_ms >= settings.rejoin_ms_max
        ):
            return settings.rejoin_ms
        return min(2 * before.wait_ms, settings.rejoin_ms_max)
