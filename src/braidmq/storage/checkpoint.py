"""Checkpoints: the state at one LSN and the records behind it on their way to disk."""

import time
from dataclasses import dataclass, field

import msgspec

from braidmq.model.ids import Lsn
from braidmq.storage import aside, segment, snapshot
from braidmq.storage.disk import Disk
from braidmq.storage.flush import Rewrite, Rewritten, Salvage, Salvaged, SegmentWriter
from braidmq.storage.journal import Journal
from braidmq.storage.partition_log import FlushPlan, FlushResult, PartitionLog
from braidmq.storage.quarantine import Damage
from braidmq.storage.segment import Segment, bodies_path
from braidmq.storage.settings import StorageSettings
from braidmq.storage.snapshot import AcknowledgedState, PartitionState, Snapshot, State


@dataclass
class CheckpointWork:
    """What all checkpoints together have done."""

    count: int = 0
    seconds: float = 0.0
    bytes_written: int = 0
    segments_rewritten: int = 0
    segments_removed: int = 0


@dataclass
class Checkpoint:
    """State at one LSN on its way to disk: begun by the owner, carried out anywhere, finished by
    the owner."""

    journaled_lsn: Lsn
    """Everything this state stands on is durable once this is."""
    next_lsn: int
    first_epoch: int
    retire_below: int
    plans: list[FlushPlan]
    catalogue: bytes
    acknowledged: list[AcknowledgedState]
    untouched: list[PartitionState]
    obsolete: list[Segment]
    obsolete_bodies: list[int]
    """Body files that nothing but obsolete segments refers to."""
    kept_bodies: set[int]
    """Those of them that are set aside: they may hold what was skipped elsewhere."""
    sections: dict[str, bytes]
    terms: list[tuple[int, int]]
    rewrites: list[Rewrite]
    salvages: list[Salvage]
    previous: int
    """The number of the snapshot before this one; 0: there is none."""
    body_file: int
    """The number of the body file, if there is something to share."""
    results: list[FlushResult] = field(default_factory=list)
    rewritten: list[Rewritten] = field(default_factory=list)
    salvaged: list[Salvaged] = field(default_factory=list)
    damages: list[tuple[PartitionLog, Damage]] = field(default_factory=list)
    """What it met, by partition: those are quarantined when it is finished."""
    seconds: float = 0.0
    bytes_written: int = 0
    bodies_written: int = 0
    """The size of the body file; 0: there is none."""

    def carry_out(self, disk: Disk, target: Journal, settings: StorageSettings) -> None:
        """Segments first, then the snapshot that names them, then what neither needs."""
        started = time.perf_counter()
        writer = SegmentWriter(disk, settings.segment_bytes_max, self.body_file)
        writer.find_shared(self.plans)
        self.results = [writer.carry_out(plan) for plan in self.plans]
        rewritten = [writer.rewrite(each) for each in self.rewrites]
        self.rewritten = [each for each in rewritten if each is not None]
        salvaged = [writer.salvage(each) for each in self.salvages]
        self.salvaged = [each for each in salvaged if each is not None]
        self.damages = writer.damages
        writer.sync()
        snapshot.write(disk, Snapshot(self.next_lsn, self.first_epoch, self._state()))
        # What earlier checkpoints removed must be gone before the last snapshot is that names it:
        # after a crash nothing else would tell that those files are dead.
        disk.sync_directory(segment.DIRECTORY)
        snapshot.remove_old(disk)
        for each in self.salvaged:
            if each.segment is not None:
                set_segment_aside(disk, each.salvage.segment)
        for old in self.obsolete:
            remove_segment(disk, old)
        for number in self.obsolete_bodies:
            if not disk.exists(bodies_path(number)):
                continue
            if number in self.kept_bodies:
                aside.move(disk, bodies_path(number))
            else:
                disk.remove(bodies_path(number))
        target.retire(self.retire_below)
        target.prepare()
        self.bytes_written = writer.bytes_written
        self.bodies_written = writer.bodies_written
        self.seconds = time.perf_counter() - started

    def _state(self) -> State:
        touched = [
            PartitionState(
                result.plan.log.id,
                result.plan.start_offset,
                result.plan.end_offset,
                result.plan.end_offset,
                [*result.plan.kept, *result.segments],
            )
            for result in self.results
            if result.plan.log.durable
        ]
        partitions = self.untouched + touched
        if self.rewritten or self.salvaged:
            partitions = [self._with_rewritten(each) for each in partitions]
        return State(
            self.catalogue,
            self.acknowledged,
            partitions,
            self.sections,
            self.previous,
            self.terms,
        )

    def _with_rewritten(self, state: PartitionState) -> PartitionState:
        new = {
            (old.partition, old.base_offset): each.segment if old is first else None
            for each in self.rewritten
            for first in each.rewrite.segments[:1]
            for old in each.rewrite.segments
        } | {
            (each.segment.partition, each.segment.base_offset): each.segment
            for each in self.salvaged
            if each.segment is not None
        }
        segments = [new.get((old.partition, old.base_offset), old) for old in state.segments]
        return msgspec.structs.replace(state, segments=[each for each in segments if each])


def remove_segment(disk: Disk, old: Segment) -> None:
    for path in (old.path, old.index_path, old.keys_path):
        if disk.exists(path):
            disk.remove(path)


def set_segment_aside(disk: Disk, old: Segment) -> None:
    """Its index and filter of keys can be made again: only the records are kept."""
    if disk.exists(old.path):
        aside.move(disk, old.path)
    for path in (old.index_path, old.keys_path):
        if disk.exists(path):
            disk.remove(path)
