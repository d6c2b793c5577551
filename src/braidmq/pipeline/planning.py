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

from braidmq.model.errors import NotFound
from braidmq.model.log_info import LogInfo, PartitionLogInfo, SegmentInfo
from braidmq.pipeline.broker import Broker, describe_log, find_times
from braidmq.pipeline.errors import BadOption, DataLoss
from braidmq.pipeline.offsets import (
    Logs,
    Offsets,
    ends_of,
    partitions_of,
    resolve,
)
from braidmq.pipeline.options import EARLIEST, LATEST, SourceOptions
from braidmq.storage.reader import LATEST as NEVER
from braidmq.storage.reader import Window

logger = logging.getLogger(__name__)

LIST_MAX = 1000


class _Named(msgspec.Struct):
    name: str


@dataclass(frozen=True)
class Split:
    topic: str
    partition: int
    start: int
    end: int
    directory: str = ""
    """Of the segments, where the broker is."""
    segments: tuple[SegmentInfo, ...] = ()
    """In the order of offsets; records beyond the last come from the broker."""
    hidden: tuple[tuple[int, int], ...] = ()
    """Ranges of offsets that nobody gets."""
    window: Window = field(default_factory=Window)
    keys: frozenset[bytes] | None = None
    lease: str = ""
    part: int = -1


def find_topics(broker: Broker, options: SourceOptions) -> list[str]:
    if options.topic:
        return [options.topic]
    try:
        pattern = re.compile(options.topic_pattern)
    except re.error as error:
        raise BadOption(
            f"topicPattern {options.topic_pattern!r} is not a valid pattern: {error}"
        ) from None
    found: list[str] = []
    after = ""
    while True:
        page = broker.get("topics", wanted=list[_Named], after=after, limit=LIST_MAX)
        found += [each.name for each in page if pattern.fullmatch(each.name)]
        if len(page) < LIST_MAX:
            return found
        after = page[-1].name


def find_logs(broker: Broker, options: SourceOptions, *, segments: bool = False) -> Logs:
    """Raises NotFound for a topic that is not there; one that matches a pattern may just go."""
    logs: Logs = {}
    for topic in find_topics(broker, options):
        try:
            logs[topic] = describe_log(broker, topic, segments=segments)
        except NotFound:
            if options.topic:
                raise
    return logs


# --- where to begin and to end ---


def starting(broker: Broker, logs: Logs, options: SourceOptions, otherwise: int) -> Offsets:
    """``otherwise``: where there is no word on it, EARLIEST or LATEST."""
    if options.starting_timestamp_ms is not None:
        return _by_time(broker, logs, options, options.starting_timestamp_ms)
    place = options.starting_offsets
    if place is None:
        place = "earliest" if otherwise == EARLIEST else "latest"
    return resolve(place, logs, options, EARLIEST)


def ending(broker: Broker, logs: Logs, options: SourceOptions) -> Offsets:
    if options.ending_timestamp_ms is not None:
        return _by_time(broker, logs, options, options.ending_timestamp_ms)
    return resolve(options.ending_offsets or "latest", logs, options, LATEST)


def _by_time(broker: Broker, logs: Logs, options: SourceOptions, time_ms: int) -> Offsets:
    ends = ends_of(logs, options)
    found: Offsets = {topic: {} for topic in logs}
    for topic in logs:
        for number, at in find_times(broker, topic, time_ms).items():
            if number in ends[topic]:
                found[topic][number] = min(at.offset, ends[topic][number])
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


def check_loss(start: Offsets, logs: Logs, options: SourceOptions) -> Offsets:
    """Where to go on, seeing what is still there. Raises DataLoss, or says so in the log."""
    found: Offsets = {}
    for topic, partitions in start.items():
        if topic not in logs:
            _lost(f"topic {topic!r} is gone", options)
            continue
        found[topic] = {}
        known = {each.partition: each for each in logs[topic].partitions}
        for number, at in partitions.items():
            log = known.get(number)
            if log is None:
                _lost(f"topic {topic!r} has no partition {number} any more", options)
            elif at < log.start_offset:
                _lost(
                    f"topic {topic!r}, partition {number}: offsets {at} to"
                    f" {log.start_offset - 1} are gone",
                    options,
                )
                found[topic][number] = log.start_offset
            elif at > log.end_offset:
                _lost(
                    f"topic {topic!r}, partition {number} ends at {log.end_offset}, before offset"
                    f" {at} that was read already: it was made anew",
                    options,
                )
                found[topic][number] = log.start_offset
            else:
                found[topic][number] = at
    for topic, log in partitions_of(logs):
        # New topics and partitions are read from their beginning: nothing of them was read yet.
        found.setdefault(topic, {}).setdefault(log.partition, log.start_offset)
    return found


def _lost(what: str, options: SourceOptions) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(what)
    logger.warning("%s; failOnDataLoss is false, so reading goes on", what)


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
    for topic, partitions in sorted(end.items()):
        for number, to in sorted(partitions.items()):
            at = start.get(topic, {}).get(number, 0)
            if at < to:
                splits += _split(logs[topic], number, at, to, options)
    if window is not None or keys is not None:
        splits = [replace(each, window=window or Window(), keys=keys) for each in splits]
    return splits


def _split(
    log: LogInfo, number: int, start: int, end: int, options: SourceOptions
) -> Iterator[Split]:
    partition = next(each for each in log.partitions if each.partition == number)
    whole = Split(log.topic, number, start, end, log.directory)
    pieces = list(_pieces(partition, start, end, options.read_mode == "segments"))
    taken: list[_Piece] = []
    size = 0
    for piece in _small_enough(pieces, options.split_bytes):
        if taken and size + piece.size > options.split_bytes:
            yield _made(whole, taken, partition)
            taken, size = [], 0
        taken.append(piece)
        size += piece.size
    if taken:
        yield _made(whole, taken, partition)


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


def _small_enough(pieces: list[_Piece], split_bytes: int) -> Iterator[_Piece]:
    """Cut at offsets: an executor finds the place by the segment's index."""
    for piece in pieces:
        count = min(max(-(-piece.size // split_bytes), 1), piece.end - piece.start)
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
