"""From a range of offsets to the pieces of work that executors read.

A split is a range of one partition that fits in one task. It carries all an executor needs: which
segments hold it and how to know them again; what lies beyond them comes from the broker.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec

from braidmq.model.errors import NotFound, OffsetOutOfRange
from braidmq.model.log_info import LogInfo, PartitionLogInfo, SegmentInfo
from braidmq.pipeline.broker import Broker, committed_offsets, describe_logs, find_times
from braidmq.pipeline.errors import BadOption, DataLoss, TopicRecreated
from braidmq.pipeline.offsets import (
    Logs,
    Offsets,
    Places,
    Position,
    ends_of,
    partitions_of,
    refuse_unknown,
    resolve,
)
from braidmq.pipeline.options import BY_KEY, EARLIEST, LATEST, SourceOptions, Times
from braidmq.storage.reader import LATEST as NEVER
from braidmq.storage.reader import Window

logger = logging.getLogger(__name__)

LIST_MAX = 1000
SHARES_MAX = 16
"""Tasks that share a partition by key: each reads all of it, and hands on its own."""


class _Named(msgspec.Struct):
    name: str


@dataclass(frozen=True)
class Split:
    topic: str
    partition: int
    start: int
    end: int
    log_id: str = ""
    """So that nothing is read of a log that has come to have the topic's name."""
    directory: str = ""
    """Of the segments, where the broker is."""
    segments: tuple[SegmentInfo, ...] = ()
    """In the order of offsets; records beyond the last come from the broker."""
    hidden: tuple[tuple[int, int], ...] = ()
    """Ranges of offsets that nobody gets."""
    window: Window = field(default_factory=Window)
    keys: frozenset[bytes] | None = None
    share: tuple[int, int] = (0, 1)
    """Which of how many: those that read the others have other keys."""
    lease: str = ""
    part: int = -1


def find_topics(broker: Broker, options: SourceOptions) -> list[str]:
    if options.named_topics:
        return options.named_topics
    try:
        pattern = re.compile(options.topic_pattern)
    except re.error as error:
        raise BadOption(
            f"topicPattern {options.topic_pattern!r} is not a valid pattern: {error}"
        ) from None
    return [
        each.name
        for page in broker.pages("topics", wanted=list[_Named], limit=LIST_MAX)
        for each in page
        if pattern.fullmatch(each.name)
    ]


def find_logs(
    broker: Broker, options: SourceOptions, *, segments: bool = False, begun: bool = False
) -> Logs:
    """Raises NotFound for a topic that is not there; one that matches a pattern may just go, and so
    may any once a stream has ``begun``: what that loses, its checkpoint tells."""
    logs, missing = describe_logs(broker, find_topics(broker, options), segments=segments)
    if missing and options.named_topics and not begun:
        raise NotFound(
            f"there is no topic {missing[0]!r} in namespace {options.namespace!r}",
        )
    if options.assigned is not None:
        logs = {
            topic: _assigned(log, options.assigned[topic], begun) for topic, log in logs.items()
        }
    return logs


def _assigned(log: LogInfo, numbers: tuple[int, ...], begun: bool) -> LogInfo:
    """Of a log only some partitions."""
    found = [each for each in log.partitions if each.partition in numbers]
    known = {each.partition for each in found}
    if not begun and (missing := [each for each in numbers if each not in known]):
        raise NotFound(f"topic {log.topic!r} has no partition {missing[0]}")
    return msgspec.structs.replace(log, partitions=found)


# --- where to begin and to end ---


def starting(broker: Broker, logs: Logs, options: SourceOptions, otherwise: int) -> Offsets:
    """``otherwise``: where there is no word on it, EARLIEST or LATEST."""
    if options.starting_timestamp_ms is not None:
        times = _everywhere(logs, options.starting_timestamp_ms)
        return _by_time(broker, logs, options, times, EARLIEST)
    if options.starting_times is not None:
        return _by_time(broker, logs, options, options.starting_times, EARLIEST)
    place = options.starting_offsets
    if place is None:
        place = "earliest" if otherwise == EARLIEST else "latest"
    if place == "committed":
        return unsettled(broker, logs, options)
    return resolve(place, logs, options, EARLIEST)


def unsettled(broker: Broker, logs: Logs, options: SourceOptions) -> Offsets:
    """From where on some subscription has not settled everything; the end, where all have, or where
    there is none. What retention took meanwhile is nobody's loss here."""
    found = ends_of(logs, options)
    for topic, log in logs.items():
        try:
            committed = committed_offsets(broker, topic)
        except NotFound:
            continue  # deleted since it was listed
        for each in log.partitions:
            end = found[topic][each.partition]
            at = max(committed.get(each.partition, end), each.start_offset)
            found[topic][each.partition] = min(at, end)
    return found


def ending(broker: Broker, logs: Logs, options: SourceOptions) -> Offsets:
    if options.ending_timestamp_ms is not None:
        times = _everywhere(logs, options.ending_timestamp_ms)
        return _by_time(broker, logs, options, times, LATEST)
    if options.ending_times is not None:
        return _by_time(broker, logs, options, options.ending_times, LATEST)
    return resolve(options.ending_offsets or "latest", logs, options, LATEST)


def _everywhere(logs: Logs, time_ms: int) -> Times:
    return {
        topic: {each.partition: time_ms for each in log.partitions} for topic, log in logs.items()
    }


def _by_time(
    broker: Broker, logs: Logs, options: SourceOptions, times: Times, otherwise: int
) -> Offsets:
    """Partitions without a time are ``otherwise``, EARLIEST or LATEST."""
    found = resolve("earliest" if otherwise == EARLIEST else "latest", logs, options, otherwise)
    refuse_unknown(times, found)
    ends = ends_of(logs, options)
    for topic, partitions in times.items():
        by_time = {each: find_times(broker, topic, each) for each in set(partitions.values())}
        last = {each.partition: each.end_offset for each in logs[topic].partitions}
        for number, time_ms in partitions.items():
            at = by_time[time_ms][number].offset
            begins = otherwise == EARLIEST
            if begins and at >= last[number] and options.unmatched_time == "error":
                raise OffsetOutOfRange(
                    f"topic {topic!r}, partition {number} has no message stamped at {time_ms} ms"
                    " or later",
                    remedy="Give an earlier time, or startingOffsetsByTimestampStrategy=latest",
                )
            found[topic][number] = min(at, ends[topic][number])
    return found


def narrow(
    broker: Broker,
    start: Offsets,
    end: Offsets,
    window: Window,
    partitions: frozenset[int] | None,
) -> tuple[Offsets, Offsets]:
    """The part of a range that filters leave; by offset, so that segments outside are not read."""
    begins: Offsets = {}
    ends: Offsets = {}
    for topic, places in end.items():
        first = find_times(broker, topic, window.time_min_ms) if window.time_min_ms > 0 else {}
        last = find_times(broker, topic, window.time_max_ms) if window.time_max_ms < NEVER else {}
        for number, to in places.items():
            if partitions is not None and number not in partitions:
                continue
            low, high = max(start[topic][number], window.offset_min), min(to, window.offset_max)
            if number in first:
                low = max(low, first[number].offset)
            if number in last:
                high = min(high, last[number].end)
            begins.setdefault(topic, {})[number] = low
            ends.setdefault(topic, {})[number] = max(low, high)
    return begins, ends


def check_loss(begin: Position, logs: Logs, options: SourceOptions) -> Offsets:
    """Where to go on, seeing what is still there: in every partition of ``logs``. Raises DataLoss,
    or says so in the log."""
    found: Offsets = {}
    for topic, partitions in begin.offsets.items():
        if topic not in logs:
            lost(DataLoss(f"topic {topic!r} is gone"), options)
        elif recreated(begin, logs[topic]):
            what = f"topic {topic!r} was deleted and created again since the checkpoint"
            lost(TopicRecreated(what), options)
        else:
            found[topic] = _still_there(partitions, logs[topic], options)
    for topic, log in partitions_of(logs):
        # New topics and partitions are read from their beginning: nothing of them was read yet.
        found.setdefault(topic, {}).setdefault(log.partition, log.start_offset)
    return found


def recreated(position: Position, log: LogInfo) -> bool:
    """Whether a topic has another log by now. Not known of checkpoints and nodes before version 2:
    there the log that is met first is taken for the right one."""
    known = position.log_ids.get(log.topic, "")
    return bool(known and log.id) and known != log.id


def _still_there(partitions: dict[int, int], log: LogInfo, options: SourceOptions) -> Places:
    found: Places = {}
    known = {each.partition: each for each in log.partitions}
    closed = {each.partition: each.end_offset for each in log.closed}
    for number, at in partitions.items():
        which = f"topic {log.topic!r}, partition {number}"
        partition = known.get(number)
        if partition is None:
            if at < closed.get(number, NEVER):  # otherwise all of it was read
                lost(DataLoss(f"topic {log.topic!r} has no partition {number} any more"), options)
            continue
        found[number] = at
        if at < partition.start_offset:
            what = f"{which}: offsets {at} to {partition.start_offset - 1} are gone"
        elif at > partition.end_offset:
            what = (
                f"{which} ends at {partition.end_offset}, before offset {at} that was read already:"
                " it was made anew"
            )
        else:
            continue
        lost(DataLoss(what), options)
        found[number] = partition.start_offset
    return found


def check_end(begin: Offsets, end: Position, logs: Logs, options: SourceOptions) -> Offsets:
    """The part of a range that was planned earlier whose logs are still there."""
    found: Offsets = {}
    for topic, partitions in end.offsets.items():
        if topic not in logs:
            lost(DataLoss(f"topic {topic!r} is gone before all of it was read"), options)
            continue
        if recreated(end, logs[topic]):
            what = f"topic {topic!r} was deleted and created again before all of it was read"
            lost(TopicRecreated(what), options)
            continue
        known = {each.partition for each in logs[topic].partitions}
        closed = {each.partition: each.end_offset for each in logs[topic].closed}
        for number, to in partitions.items():
            at = begin.get(topic, {}).get(number, closed.get(number, 0))
            if number in known:
                found.setdefault(topic, {})[number] = to
            elif at < to:
                what = f"topic {topic!r}: partition {number} is gone before all of it was read"
                lost(DataLoss(what), options)
    return found


def lost(error: DataLoss, options: SourceOptions) -> None:
    """Raises it, or says so in the log."""
    if options.fail_on_data_loss:
        raise error
    logger.warning("%s; failOnDataLoss is false, so reading goes on", error.args[0])


# --- splits ---


def plan(
    logs: Logs,
    start: Offsets,
    end: Offsets,
    options: SourceOptions,
    window: Window | None = None,
    keys: frozenset[bytes] | None = None,
) -> list[Split]:
    splits: list[Split] = []
    work = [
        (logs[topic], partition, at, to)
        for topic, ends in sorted(end.items())
        for partition in sorted(logs[topic].partitions, key=lambda each: each.partition)
        if (to := ends.get(partition.partition, 0))
        > (at := start.get(topic, {}).get(partition.partition, 0))
    ]
    size = _split_bytes(work, options)
    for log, partition, at, to in work:
        split = _shared if options.split_by == BY_KEY else _split
        splits += split(log, partition, at, to, options, size)
    if window is not None or keys is not None:
        splits = [replace(each, window=window or Window(), keys=keys) for each in splits]
    return splits


def _split_bytes(
    work: list[tuple[LogInfo, PartitionLogInfo, int, int]], options: SourceOptions
) -> int:
    """What a task may have, so that there are as many as wanted."""
    if not options.splits_min:
        return options.split_bytes
    from_segments = options.read_mode == "segments"
    total = sum(
        piece.size
        for _, partition, start, end in work
        for piece in _pieces(partition, start, end, from_segments)
    )
    return min(options.split_bytes, max(total // options.splits_min, 1))


def _split(
    log: LogInfo,
    partition: PartitionLogInfo,
    start: int,
    end: int,
    options: SourceOptions,
    split_bytes: int,
) -> Iterator[Split]:
    whole = Split(log.topic, partition.partition, start, end, log.id, log.directory)
    pieces = list(_pieces(partition, start, end, options.read_mode == "segments"))
    records_max = options.records_per_split_max or NEVER
    taken: list[_Piece] = []
    size = 0
    for piece in _small_enough(pieces, split_bytes, records_max):
        too_many = taken and piece.end - taken[0].start > records_max
        if taken and (too_many or size + piece.size > split_bytes):
            yield _made(whole, taken, partition)
            taken, size = [], 0
        taken.append(piece)
        size += piece.size
    if taken:
        yield _made(whole, taken, partition)


def _shared(
    log: LogInfo,
    partition: PartitionLogInfo,
    start: int,
    end: int,
    options: SourceOptions,
    split_bytes: int,
) -> Iterator[Split]:
    whole = Split(log.topic, partition.partition, start, end, log.id, log.directory)
    pieces = list(_pieces(partition, start, end, options.read_mode == "segments"))
    shares = min(-(-sum(each.size for each in pieces) // split_bytes), SHARES_MAX, end - start)
    found = _made(whole, pieces, partition)
    for number in range(max(shares, 1)):
        yield replace(found, share=(number, max(shares, 1)))


@dataclass(frozen=True)
class _Piece:
    """Part of a segment, or of what is in no segment."""

    start: int
    end: int
    size: int
    segment: SegmentInfo | None


def _pieces(log: PartitionLogInfo, start: int, end: int, from_segments: bool) -> Iterator[_Piece]:
    at = start
    for segment in log.segments if from_segments else ():
        stop = min(segment.end_offset, end)
        if stop <= at:
            continue
        share = (stop - max(at, segment.base_offset)) / (segment.end_offset - segment.base_offset)
        size = int((segment.size + segment.shared_bytes) * share)
        yield _Piece(at, stop, size, segment)
        at = stop
    if at < end:
        offsets = max(log.end_offset - log.start_offset, 1)
        yield _Piece(at, end, log.size * (end - at) // offsets, None)


def _small_enough(pieces: list[_Piece], split_bytes: int, records_max: int) -> Iterator[_Piece]:
    """Cut at offsets: an executor finds the place by the segment's index."""
    for piece in pieces:
        records = piece.end - piece.start
        wanted = max(-(-piece.size // split_bytes), -(-records // records_max), 1)
        count = min(wanted, records)
        cuts = [piece.start + (piece.end - piece.start) * i // count for i in range(count + 1)]
        for at, stop in pairwise(cuts):
            yield replace(piece, start=at, end=stop, size=piece.size // count)


def _made(whole: Split, pieces: list[_Piece], log: PartitionLogInfo) -> Split:
    start, end = pieces[0].start, pieces[-1].end
    return replace(
        whole,
        start=start,
        end=end,
        hidden=tuple(each for each in log.hidden if each[0] < end and each[1] > start),
        segments=tuple(each.segment for each in pieces if each.segment is not None),
    )
