"""Reading in bulk: what a log is made of, and its bytes as they are stored.

For readers that take a whole topic (Spark): sealed segments they read in place or by ranges of
bytes, the rest as encoded records. Only what is on disk already is told of, so what such a reader
has once seen is there after a crash too.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from braidmq.api.context import ApiContext, InNamespace
from braidmq.api.endpoints import BINARY, Body, Call, operation
from braidmq.api.messages import Partition
from braidmq.api.problems import NO_STORE
from braidmq.api.resources.reading import OFFSET_MAX, Offset
from braidmq.engine.errors import BadPosition, UnknownPartition, UnknownSubscription, UnknownTopic
from braidmq.engine.state import CANCELLED
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.model.errors import BadRequest, Conflict, CorruptData, ForeignFile, NotFound
from braidmq.model.limits import MIB
from braidmq.model.log_info import (
    ClosedPartition,
    FoundLogs,
    LogInfo,
    PartitionLogInfo,
    PartitionTime,
    SegmentInfo,
)
from braidmq.record.batch import HEADER_SIZE, RecordBatch
from braidmq.security.rights import read
from braidmq.storage.disk import File
from braidmq.storage.partition_log import PartitionLog, Run
from braidmq.storage.quarantine import Damage, damage_of
from braidmq.storage.segment import (
    DIRECTORY,
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    Segment,
    encode_index,
    read_header,
)

PAGE_BYTES_MAX = 16 * MIB
CHUNK_BYTES = MIB
TOPICS_MAX = 1000
"""Logs that are described in one answer: as many as names in a page of topics."""

TOPICS_PER_TURN = 20
"""After so many others have their turn: a log with hundreds of segments takes its time."""

FIRST_RECORDS_MAX = 10_000
"""First records of segments that are remembered: some hundred bytes each."""

RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class UnknownSegment(NotFound):
    """It was written anew or removed: ask for the log again."""

    code = "unknown-segment"


class AnotherLog(Conflict):
    """Offsets say nothing in it."""

    code = "another-log"


class LogQuery(InNamespace, frozen=True):
    segments: Annotated[bool, Meta(description="Whether to list segments")] = True


class RecordsQuery(InNamespace, frozen=True, kw_only=True):
    start: Offset
    end: Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="The offset to stop before")]
    bytes_max: Annotated[
        int, Meta(ge=1, le=PAGE_BYTES_MAX, description="Stop after about this much")
    ] = 4 * MIB


class TimesQuery(InNamespace, frozen=True, kw_only=True):
    time_ms: Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="Milliseconds since 1970, UTC")]


class WantedLogs(Body, frozen=True):
    topics: Annotated[list[str], Meta(max_length=TOPICS_MAX, description="Their names")]
    segments: Annotated[bool, Meta(description="Whether to list segments")] = False


class SettledBefore(Body, frozen=True):
    partition: Partition
    offset: Offset


class SettledOffsets(Body, frozen=True):
    offsets: list[SettledBefore]
    log: Annotated[
        str,
        Meta(
            description="Which log they are of, as `GET …/log` says it: refused if the topic was"
            " deleted and created again since. Empty: whichever it is"
        ),
    ] = ""


class Bulk:
    def __init__(self, context: ApiContext, data_dir: Path | None) -> None:
        self._context = context
        self._directory = "" if data_dir is None else str(data_dir / DIRECTORY)
        self._first_records: dict[str, tuple[int, bytes]] = {}

    @operation(
        "GET", "/v1/topics/{topic}/log", right=read("topic"), tag="bulk", errors=(UnknownTopic,)
    )
    async def describe_log(self, call: Call, topic: str, query: LogQuery) -> LogInfo:
        """Say what the log of a topic is made of: partitions and their segments.

        Only what is on disk counts: a crash takes nothing of it away.
        """
        found = self._log(self._context.topic(call, topic), query.segments)
        await self._context.done()
        return found

    @operation(
        "POST",
        "/v1/logs",
        right=read("body.topics").and_(read()),
        tag="bulk",
        errors=(NotFound,),
        body_bytes_max=MIB,
        examples=({"topics": ["orders", "payments"]},),
        traffic=True,
    )
    async def describe_logs(self, call: Call, query: InNamespace, body: WantedLogs) -> FoundLogs:
        """Say what the logs of many topics are made of, in one answer.

        For those who follow hundreds of topics: where each begins and ends, which log it is, and
        with `segments` of which segments it is made. Topics that are not there are named.
        """
        found: list[LogInfo] = []
        missing: list[str] = []
        for at, name in enumerate(dict.fromkeys(body.topics)):
            if at and at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                found.append(self._log(self._context.topic(call, name), body.segments))
            except UnknownTopic:
                missing.append(name)
        await self._context.done()
        return FoundLogs(found, missing)

    def _log(self, topic: Topic, segments: bool) -> LogInfo:
        partitions = [self._described(each, segments) for each in topic.partitions]
        closed = [ClosedPartition(*each) for each in sorted((topic.closed or {}).items())]
        return LogInfo(
            topic.namespace, topic.name, self._directory, partitions, closed, log_id(topic)
        )

    def _described(self, partition: TopicPartition, with_segments: bool) -> PartitionLogInfo:
        log = partition.log
        segments = [each for each in log.segments if each.end_offset > log.start_offset]
        return PartitionLogInfo(
            partition=partition.number,
            id=log.id,
            start_offset=log.start_offset,
            end_offset=log.next_offset,
            stable_offset=partition.stable_offset,
            flushed_offset=log.flushed_offset,
            size=sum(each.whole_size for each in segments) + log.unflushed_bytes,
            hidden=self._hidden(partition),
            segments=self._segments(log, segments) if with_segments else [],
        )

    def _hidden(self, partition: TopicPartition) -> list[tuple[int, int]]:
        log = partition.log
        cancelled = self._context.engine().store.acknowledged.get((CANCELLED, log.id))
        if cancelled is None:
            return []
        ranges = [(0, cancelled.floor), *cancelled.ranges_above_floor()]
        return [each for each in ranges if each[1] > max(each[0], log.start_offset)]

    def _segments(self, log: PartitionLog, segments: list[Segment]) -> list[SegmentInfo]:
        if log.damage is not None:
            raise log.quarantined()
        found = []
        for each in segments:
            try:
                found.append(self._segment(each))
            except (CorruptData, ForeignFile) as error:
                log.on_damage(log, damage_of(error, each.path))
                raise log.quarantined() from error
            except FileNotFoundError as error:
                log.on_damage(log, Damage(each.path, 0, "the file is missing"))
                raise log.quarantined() from error
        return found

    def _segment(self, each: Segment) -> SegmentInfo:
        header_bytes, first_record = self._first_record(each)
        return SegmentInfo(
            name=each.path.rpartition("/")[2],
            base_offset=each.base_offset,
            end_offset=each.end_offset,
            size=each.size,
            header_bytes=header_bytes,
            records=each.records,
            max_timestamp_ms=each.max_timestamp_ms,
            first_timestamp_ms=each.first_timestamp_ms,
            time_ordered=each.time_ordered,
            sealed=each.sealed,
            generation=each.generation,
            shared_bytes=each.shared_bytes,
            first_record=first_record,
        )

    def _first_record(self, segment: Segment) -> tuple[int, bytes]:
        known = self._first_records.get(segment.path)
        if known is None:
            file = self._context.engine().store.disk.open(segment.path)
            try:
                length = read_header(file).length
                known = length, file.read(HEADER_SIZE, length)
            finally:
                file.close()
            if len(self._first_records) >= FIRST_RECORDS_MAX:
                self._first_records.clear()
            self._first_records[segment.path] = known
        return known

    @operation(
        "GET",
        "/v1/topics/{topic}/log/times",
        right=read("topic"),
        tag="bulk",
        errors=(UnknownTopic,),
    )
    async def find_times(self, call: Call, topic: str, query: TimesQuery) -> list[PartitionTime]:
        """Find the offsets where a time begins, in every partition."""
        found = self._context.topic(call, topic)
        times = [
            PartitionTime(
                each.number,
                each.log.find_time(query.time_ms),
                each.log.find_time_end(query.time_ms),
            )
            for each in found.partitions
        ]
        await self._context.done()
        return times

    @operation(
        "GET",
        "/v1/topics/{topic}/segments/{name}",
        right=read("topic"),
        tag="bulk",
        statuses=(200, 206),
        errors=(UnknownTopic, UnknownSegment),
        binary=True,
    )
    async def read_segment(self, call: Call, topic: str, name: str, query: InNamespace) -> Response:
        """Read a segment, its index, or the filter of its keys, as it is stored.

        Takes a range of bytes (`Range: bytes=…-…`). The index of a segment has its name, ends in
        `.index` and comes whole, as does the filter, which ends in `.keys`: a sealed segment with
        keys has one. Bodies that it shares with segments of other topics are not there
        (`shared_bytes` in its description): read those as records.
        """
        found = self._context.topic(call, topic)
        log, segment = self._named(found, name)
        if log.damage is not None:
            raise log.quarantined()
        if name.endswith(INDEX_SUFFIX):
            index = encode_index(segment, log.index(segment))
            return Response(index, 200, headers=NO_STORE, media_type=BINARY)
        if name.endswith(KEYS_SUFFIX):
            return Response(self._keys(segment), 200, headers=NO_STORE, media_type=BINARY)
        size = segment.size
        start, stop, status = requested(call.request.headers.get("range"), size)
        file = self._context.engine().store.disk.open(segment.path)
        headers = {**NO_STORE, "accept-ranges": "bytes", "content-length": str(stop - start)}
        if status == 206:
            headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
        return StreamingResponse(
            pieces(
                file, start, stop, lambda: call.require_still(lambda: call.grants.may_read(topic))
            ),
            status,
            headers=headers,
            media_type=BINARY,
        )

    def _keys(self, segment: Segment) -> bytes:
        disk = self._context.engine().store.disk
        if not disk.exists(segment.keys_path):
            raise UnknownSegment(f"segment {segment.path} has no key filter")
        file = disk.open(segment.keys_path)
        try:
            return file.read(file.size(), 0)
        finally:
            file.close()

    def _named(self, topic: Topic, name: str) -> tuple[PartitionLog, Segment]:
        """The segment with this name, or whose index or filter has it."""
        for partition in topic.partitions:
            for each in partition.log.segments:
                if f"{DIRECTORY}/{name}" in (each.path, each.index_path, each.keys_path):
                    return partition.log, each
        raise UnknownSegment(f"topic {topic.name!r} has no segment {name!r}")

    @operation(
        "GET",
        "/v1/topics/{topic}/partitions/{partition}/records",
        right=read("topic"),
        tag="bulk",
        errors=(UnknownTopic, UnknownPartition, BadPosition),
        binary=True,
    )
    async def read_records(
        self, call: Call, topic: str, partition: Partition, query: RecordsQuery
    ) -> Response:
        """Read records of a partition as a segment would store them.

        Headers of the answer say where to read on (`Braid-Next-Offset`), where the log now begins
        (`Braid-Start-Offset`), and which log it is (`Braid-Log-Id`).
        """
        found = self._context.topic(call, topic)
        log = found.partition(partition).log
        if query.start > log.next_offset:
            raise BadPosition(f"{log.label} ends at {log.next_offset}, before {query.start}")
        end = min(query.end, log.next_offset)
        parts: list[bytes] = []
        at, left = query.start, query.bytes_max
        while at < end and left > 0:
            runs = log.read(at, left)
            if not runs:
                at = end  # the rest is gone
            for run in runs:
                data, at = stamped(run, end)
                parts.append(data)
                left -= len(data)
        await self._context.done()
        headers = {
            **NO_STORE,
            "braid-next-offset": str(min(at, end)),
            "braid-start-offset": str(log.start_offset),
            "braid-log-id": log_id(found),
        }
        return Response(b"".join(parts), 200, headers=headers, media_type=BINARY)

    @operation(
        "POST",
        "/v1/topics/{topic}/subscriptions/{subscription}/commit",
        right=read("topic"),
        tag="subscriptions",
        statuses=(204,),
        errors=(UnknownTopic, UnknownSubscription, UnknownPartition, BadPosition, AnotherLog),
        body_bytes_max=MIB,
        examples=({"offsets": [{"partition": 0, "offset": 1200}]},),
        traffic=True,
    )
    async def commit_subscription(
        self, call: Call, topic: str, subscription: str, query: InNamespace, body: SettledOffsets
    ) -> None:
        """Settle all messages before an offset, in each of some partitions.

        For readers that keep their own place and report it, so that their lag is known.
        """
        found = self._context.subscription(call, topic, subscription)
        if body.log and body.log != log_id(found.topic):
            raise AnotherLog(f"topic {topic!r} was deleted and created again: it has another log")
        engine = self._context.engine()
        for each in body.offsets:
            found.topic.partition(each.partition)
            engine.offsets.commit(found.views[each.partition], each.offset)
        await self._context.done()


def log_id(topic: Topic) -> str:
    """Never that of another: by its time not of a topic of another node either, whose numbers begin
    at 1 too."""
    return f"{topic.id:x}-{topic.created_ms:x}"


def stamped(run: Run, end: int) -> tuple[bytes, int]:
    """The records of a run below ``end``, each with its own offset, and where to go on."""
    batch = run.batch
    first = batch.offset_at(run.first)
    stop = min(batch.offset_at(run.stop - 1) + 1, end)
    records = batch.slice(first, stop)
    if not batch.dense:
        return bytes(records), stop
    return RecordBatch.scan(records, base_offset=first, verify=False).stamped()[0], stop


def requested(header: str | None, size: int) -> tuple[int, int, int]:
    """First byte, the one after the last, and the status. RFC 9110, 14.2: one range, or all."""
    found = RANGE.fullmatch(header.strip()) if header is not None else None
    if found is None:
        return 0, size, 200
    start = int(found[1])
    stop = min(int(found[2]) + 1, size) if found[2] else size
    if start >= size or stop <= start:
        raise BadRequest(f"the file has {size} bytes: there is nothing from byte {start} on")
    return start, stop, 206


async def pieces(
    file: File, start: int, stop: int, require_still: Callable[[], None]
) -> AsyncIterator[bytes]:
    """Read in another thread: the disk may be slow, and the loop has other things to do. It breaks
    off once its reader may not read that any more."""
    try:
        while start < stop:
            require_still()
            data = await asyncio.to_thread(file.read, min(CHUNK_BYTES, stop - start), start)
            if not data:
                return
            start += len(data)
            yield data
    finally:
        file.close()
