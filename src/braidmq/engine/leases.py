"""Leases: somebody reads a log in bulk, and what they have still to read must not go.

A lease names an offset in some partitions. As long as it lives, retention, compaction and the
forgetting of acknowledged messages stop there. It lives for its ``ttl_ms`` after each sign of life.
Leases are in the catalogue, because a node that restarts must not delete what a job is reading;
signs of life are not: after a restart every lease has its whole time again.

Orders go before leases: a topic that is deleted or purged is gone for those who read it too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from braidmq.engine.errors import UnknownLease
from braidmq.engine.hooks import Hooks
from braidmq.engine.retention import Retention
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.timers import Timers
from braidmq.engine.topics import TopicPartition
from braidmq.model.ids import PartitionId
from braidmq.storage.partition_log import UNPINNED

LEASES: Final = "leases"

Positions = dict[PartitionId, int]


class LeaseRecord(msgspec.Struct, frozen=True):
    """A lease in the catalogue; its key there is its namespace and name."""

    namespace: str
    name: str
    holder: str
    user: str
    ttl_ms: int
    parts: int
    created_ms: int
    positions: dict[int, int]


@dataclass(slots=True)
class Lease:
    number: int
    namespace: str
    name: str
    holder: str
    """What it is for, in words for people."""
    user: str
    ttl_ms: int
    parts: int
    """It ends when so many parts of the work are finished; 0: when its holder says so."""
    created_ms: int
    positions: Positions
    expires_ms: int = 0
    finished: set[int] = field(default_factory=set)


class Leases:
    def __init__(
        self, state: EngineState, timers: Timers, hooks: Hooks, retention: Retention
    ) -> None:
        self._state = state
        self._retention = retention
        self._leases: dict[tuple[str, str], Lease] = {}
        self._by_number: dict[int, Lease] = {}
        self._next_number = 1
        timers.register(TimerKind.LEASE, self._expire)
        hooks.namespace_deleted.append(self._namespace_deleted)

    def restore(self, now_ms: int) -> None:
        for _, value in self._state.store.catalogue.items(LEASES):
            record = msgspec.msgpack.decode(value, type=LeaseRecord)
            positions = {PartitionId(number): at for number, at in record.positions.items()}
            self._add(
                Lease(
                    self._number(),
                    record.namespace,
                    record.name,
                    record.holder,
                    record.user,
                    record.ttl_ms,
                    record.parts,
                    record.created_ms,
                    positions,
                ),
                now_ms,
            )

    def list(self, namespace: str) -> list[Lease]:
        return [each for each in self._leases.values() if each.namespace == namespace]

    def lease(self, namespace: str, name: str) -> Lease:
        found = self._leases.get((namespace, name))
        if found is None:
            raise UnknownLease(f"there is no lease {name!r} in namespace {namespace!r}")
        return found

    def owner_of(self, namespace: str, name: str) -> str | None:
        """Whose it is; None for what is not there."""
        found = self._leases.get((namespace, name))
        return None if found is None else found.user

    def hold(
        self,
        namespace: str,
        name: str,
        positions: Mapping[TopicPartition, int],
        *,
        now_ms: int,
        ttl_ms: int,
        holder: str = "",
        user: str = "",
        parts: int = 0,
    ) -> Lease:
        """Make a lease, or move one to other positions. What is gone already stays gone."""
        wanted = {
            partition.log.id: max(offset, partition.log.start_offset)
            for partition, offset in positions.items()
        }
        known = self._leases.get((namespace, name))
        created_ms = now_ms if known is None else known.created_ms
        number = self._number() if known is None else known.number
        lease = Lease(number, namespace, name, holder, user, ttl_ms, parts, created_ms, wanted)
        record = LeaseRecord(
            namespace,
            name,
            holder,
            user,
            ttl_ms,
            parts,
            created_ms,
            {int(number): at for number, at in wanted.items()},
        )
        self._state.store.change([(LEASES, _key(lease), msgspec.msgpack.encode(record))])
        before = {} if known is None else known.positions
        self._add(lease, now_ms, known is None)
        self._unpin(before, now_ms)
        return lease

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def _add(self, lease: Lease, now_ms: int, arm: bool = True) -> None:
        lease.expires_ms = now_ms + lease.ttl_ms
        self._leases[lease.namespace, lease.name] = lease
        self._by_number[lease.number] = lease
        if arm:
            self._state.wheel.schedule(lease.expires_ms, TimerKind.LEASE, lease.number)
        for partition in lease.positions:
            self._pin(partition)

    def renew(self, lease: Lease, now_ms: int, finished: tuple[int, ...] = ()) -> None:
        """A sign of life; with parts of the work that are done. The last of them ends it."""
        lease.expires_ms = now_ms + lease.ttl_ms
        lease.finished.update(part for part in finished if 0 <= part < lease.parts)
        if lease.parts and len(lease.finished) == lease.parts:
            self.end(lease, now_ms)

    def end(self, lease: Lease, now_ms: int) -> None:
        del self._leases[lease.namespace, lease.name]
        del self._by_number[lease.number]
        self._state.store.change([(LEASES, _key(lease), None)])
        self._unpin(lease.positions, now_ms)

    def _namespace_deleted(self, namespace: str, now_ms: int) -> None:
        for lease in self.list(namespace):
            self.end(lease, now_ms)

    def _expire(self, number: int, _a: int, _b: int, now_ms: int) -> None:
        """Its timer has come: it is over, or was renewed meanwhile."""
        lease = self._by_number.get(number)
        if lease is None:
            return
        if lease.expires_ms <= now_ms:
            self.end(lease, now_ms)
        else:
            self._state.wheel.schedule(lease.expires_ms, TimerKind.LEASE, number)

    def _unpin(self, positions: Positions, now_ms: int) -> None:
        for number in positions:
            self._pin(number)
            partition = self._state.partitions.get(number)
            if partition is not None:
                self._retention.unpinned(partition, now_ms)

    def _pin(self, number: PartitionId) -> None:
        partition = self._state.partitions.get(number)
        if partition is not None:
            held = [
                each.positions[number] for each in self._leases.values() if number in each.positions
            ]
            partition.log.pinned_offset = min(held, default=UNPINNED)


def _key(lease: Lease) -> str:
    # Names may have any character but a control one.
    return f"{lease.namespace}\0{lease.name}"
