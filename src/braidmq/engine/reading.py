"""What readers may see of a partition: up to its stable offset, without what nobody gets.

On a partition without transactions this costs one look at a field per batch, and nothing per
message.
"""

from braidmq.engine.errors import BadPosition
from braidmq.engine.state import EngineState
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.storage.partition_log import PartitionLog, Run

READ_BYTES_MAX = 1 << 20

TIME_MAX_MS = (1 << 63) - 1

Position = int | str
"""An offset, ``earliest``, ``latest``, or ``@`` and a time in ms."""


class Reading:
    def __init__(self, state: EngineState) -> None:
        self._state = state

    def read(
        self,
        topic: Topic,
        number: int,
        offset: int,
        bytes_max: int = READ_BYTES_MAX,
        *,
        uncommitted: bool = False,
    ) -> list[Run]:
        """Records by offset: replay, for anybody, without touching a subscription. Nothing behind
        the stable offset, nor what was aborted or cancelled."""
        partition = topic.partition(number)
        log = partition.log
        runs = log.read(offset, bytes_max)
        if not partition.open_transactions and self._state.cancelled(partition) is None:
            return runs
        stop = log.next_offset if uncommitted else partition.stable_offset
        while runs:
            visible = [part for run in runs for part in self._visible(partition, run, stop)]
            end = runs[-1].batch.offset_at(runs[-1].stop - 1) + 1
            if visible or end >= stop:
                return visible
            runs = log.read(end, bytes_max)
        return []

    def visible_runs(self, partition: TopicPartition, start: int, stop: int) -> list[Run]:
        """Everything between two offsets that somebody may get, in runs without gaps."""
        return [
            part
            for run in partition.runs(start, stop)
            for visible in self._visible(partition, run, stop)
            for part in _unbroken(visible)
        ]

    def visible_slice(
        self, partition: TopicPartition, start: int, stop: int
    ) -> tuple[list[Run], int]:
        """What one read brings of ``visible_runs``, and the offset to go on from: for who has
        others to serve between two of them."""
        found = partition.log.read(start, READ_BYTES_MAX, stop) if start < stop else []
        if not found:
            return [], stop
        parts = [
            part
            for run in found
            for visible in self._visible(partition, run, stop)
            for part in _unbroken(visible)
        ]
        last = found[-1]
        return parts, min(last.batch.offset_at(last.stop - 1) + 1, stop)

    def _visible(self, partition: TopicPartition, run: Run, stop: int) -> list[Run]:
        """The parts of a run below ``stop`` that were not cancelled."""
        batch, first = run.batch, run.first
        end = min(run.stop, batch.find(stop))
        if end <= first:
            return []
        low, high = batch.offset_at(first), batch.offset_at(end - 1) + 1
        cancelled = self._state.cancelled(partition)
        gaps = cancelled.ranges(low, high) if cancelled is not None else []
        if cancelled is not None and cancelled.floor > low:
            gaps = [(low, cancelled.floor), *gaps]
        found: list[Run] = []
        for gap_start, gap_stop in gaps:
            cut = batch.find(gap_start)
            if cut > first:
                found.append(Run(batch, first, min(cut, end)))
            first = max(first, min(batch.find(gap_stop), end))
        if first < end:
            found.append(Run(batch, first, end))
        return found

    def find_offset(self, topic: Topic, number: int, wanted: Position) -> int:
        return find_offset(topic.partition(number).log, wanted)


def find_offset(log: PartitionLog, wanted: Position) -> int:
    """An offset from what a caller may say; clamped to what the log has."""
    if wanted == "earliest":
        return log.start_offset
    if wanted == "latest":
        return log.next_offset
    if isinstance(wanted, int):
        if not 0 <= wanted <= log.next_offset:
            raise BadPosition(
                f"{log.label}: offset {wanted} is not between 0 and {log.next_offset}"
            )
        return max(wanted, log.start_offset)
    if wanted[:1] == "@" and wanted[1:].isdecimal():
        return log.find_time(min(int(wanted[1:]), TIME_MAX_MS))
    raise BadPosition(
        f"{wanted!r} is no position",
        remedy="Say an offset, 'earliest', 'latest', or '@' and a time in milliseconds",
    )


def _unbroken(run: Run) -> list[Run]:
    """A run cut where offsets are missing."""
    batch, first = run.batch, run.first
    if batch.offset_at(run.stop - 1) - batch.offset_at(first) == run.stop - 1 - first:
        return [run]
    found = []
    for index in range(first + 1, run.stop):
        if batch.offset_at(index) != batch.offset_at(index - 1) + 1:
            found.append(Run(batch, first, index))
            first = index
    found.append(Run(batch, first, run.stop))
    return found
