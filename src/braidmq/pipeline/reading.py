"""What an executor does: one split in, Arrow batches out.

Segments are read in place where their directory is reachable and the file is the one the broker
means, else as ranges of bytes over HTTP. What is in no segment, what was in one that is gone by
now, and what shares bodies with other topics and can't be read in place, comes from the broker as
records. All of it goes through the same kernel.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from braidmq.model.errors import BraidError, NotFound
from braidmq.model.limits import MIB
from braidmq.model.log_info import SegmentInfo
from braidmq.pipeline.broker import Broker, Reply
from braidmq.pipeline.columns import SCHEMA, Rows, last_offset
from braidmq.pipeline.errors import DataLoss, TopicRecreated
from braidmq.pipeline.leases import SplitLease
from braidmq.pipeline.options import SourceOptions
from braidmq.pipeline.planning import Split, lost
from braidmq.record.batch import HEADER_SIZE
from braidmq.record.offset_set import OffsetBits
from braidmq.storage.key_filter import may_hold_key
from braidmq.storage.reader import MappedBodies, Window, decode_span, map_segment, span
from braidmq.storage.segment import (
    INDEX_SUFFIX,
    KEYS_SUFFIX,
    SUFFIX,
    Segment,
    SegmentIndex,
    decode_index,
)
from braidmq.storage.segment_keys import decode_keys

logger = logging.getLogger(__name__)

PAGE_BYTES = 8 * MIB
GONE = frozenset({"unknown-topic", "unknown-partition", "bad-position"})
"""What the broker says of records that were there when the read was planned."""


class SplitReader:
    """Reads these ``columns`` of messages, in this order. ``bytes_read`` counts what was looked at,
    wherever it came from."""

    def __init__(
        self,
        split: Split,
        options: SourceOptions,
        columns: Sequence[str] = tuple(SCHEMA.names),
    ) -> None:
        self._split = split
        self._options = options
        self._broker = Broker(options)
        self._rows = Rows(split.topic, split.partition, columns)
        self._hidden = OffsetBits() if split.hidden else None
        for start, stop in split.hidden:
            assert self._hidden is not None
            self._hidden.add(max(start, split.start), min(stop, split.end))
        self._at = split.start
        self.bytes_read = 0

    def read(self) -> Iterator[pa.RecordBatch]:
        with self._broker, SplitLease(self._split.lease, self._split.part, self._options):
            for segment in self._split.segments:
                if self._at < min(segment.end_offset, self._split.end):
                    yield from self._read_segment(segment)
            yield from self._read_records(self._split.end)

    def _window(self, stop: int) -> Window:
        wanted = self._split.window
        return replace(
            wanted,
            offset_min=max(wanted.offset_min, self._at),
            offset_max=min(wanted.offset_max, stop),
        )

    # --- segments ---

    def _read_segment(self, segment: SegmentInfo) -> Iterator[pa.RecordBatch]:
        stop = min(segment.end_offset, self._split.end)
        window = self._window(stop)
        if may_hold(segment, window):
            try:
                mapped = self._in_place(segment)
                if self._may_hold_keys(segment, mapped is not None):
                    if mapped is None and segment.shared_bytes:
                        yield from self._read_records(stop)
                    else:
                        yield from self._decoded(segment, mapped, window)
            except NotFound:
                # Written anew by compaction, or dropped: the broker knows what is left of it.
                logger.info("segment %s is gone: asking the broker", segment.name)
                yield from self._read_records(stop)
        self._at = stop

    def _decoded(
        self, segment: SegmentInfo, mapped: memoryview | None, window: Window
    ) -> Iterator[pa.RecordBatch]:
        descriptor = described(segment)
        index = self._index(segment, descriptor, mapped is not None)
        first, last = span(descriptor, index, segment.header_bytes, segment.size, window)
        fetch: Callable[[int, int], memoryview]
        bodies = None
        if mapped is None:
            fetch = Ranges(lambda at, length: self._ranged(segment, at, length)).fetch
        else:
            self.bytes_read += last - first
            fetch = _slices(mapped)
            bodies = MappedBodies(Path(self._split.directory)).fetch
        for rows, columns in decode_span(
            segment.name,
            fetch,
            first,
            last,
            window,
            self._split.keys,
            self._hidden,
            bodies,
            self._rows.wanted,
            self._split.share,
        ):
            yield self._rows.batch(rows, columns)
            self._at = last_offset(columns) + 1

    def _may_hold_keys(self, segment: SegmentInfo, in_place: bool) -> bool:
        """By the filter beside the segment, which those that had no keys when sealed don't have."""
        keys = self._split.keys
        if keys is None or not segment.sealed:
            return True
        name = segment.name.removesuffix(SUFFIX) + KEYS_SUFFIX
        try:
            if in_place:
                data = (Path(self._split.directory) / name).read_bytes()
            else:
                path = ("topics", self._split.topic, "segments", name)
                data = self._broker.ask("GET", path, {}).body
        except (OSError, NotFound):
            return True
        self.bytes_read += len(data)
        blocks = decode_keys(described(segment), data)
        return blocks is None or any(may_hold_key(blocks, each) for each in keys)

    def _in_place(self, segment: SegmentInfo) -> memoryview | None:
        """The segment's memory, if its file is on this machine and is the one that is meant."""
        path = Path(self._split.directory) / segment.name
        if not self._split.directory or not path.is_file():
            return None
        try:
            mapped = map_segment(path, segment.size)
        except (OSError, BraidError):
            return None
        first = mapped[segment.header_bytes : segment.header_bytes + HEADER_SIZE]
        return mapped if first == segment.first_record else None

    def _ranged(self, segment: SegmentInfo, at: int, length: int) -> bytes:
        self.bytes_read += length
        path = ("topics", self._split.topic, "segments", segment.name)
        return self._broker.read_range(path, at, length)

    def _index(
        self, segment: SegmentInfo, descriptor: Segment, in_place: bool
    ) -> SegmentIndex | None:
        name = segment.name.removesuffix(SUFFIX) + INDEX_SUFFIX
        if in_place and segment.sealed:
            try:
                found = decode_index(descriptor, (Path(self._split.directory) / name).read_bytes())
            except OSError:
                found = None
            if found is not None:
                return found
        path = ("topics", self._split.topic, "segments", name)
        # An unsealed segment may have grown meanwhile: then its index is not that of our part.
        return decode_index(descriptor, self._broker.ask("GET", path, {}).body)

    # --- the tail ---

    def _read_records(self, stop: int) -> Iterator[pa.RecordBatch]:
        while self._at < stop:
            window = self._window(stop)
            if window.offset_min >= window.offset_max:
                return
            reply = self._page(stop)
            if reply is None:
                return
            self.bytes_read += len(reply.body)
            page = memoryview(reply.body)
            name = f"{self._split.topic}/{self._split.partition}"
            for rows, columns in decode_span(
                name,
                _slices(page),
                0,
                len(page),
                window,
                self._split.keys,
                self._hidden,
                wanted=self._rows.wanted,
                share=self._split.share,
            ):
                yield self._rows.batch(rows, columns)
            self._at = int(reply.headers["braid-next-offset"])

    def _page(self, stop: int) -> Reply | None:
        """None: there is no more, the log is gone. Raises DataLoss, or says so in the log."""
        split = self._split
        which = f"topic {split.topic!r}, partition {split.partition}"
        try:
            reply = self._broker.ask(
                "GET",
                ("topics", split.topic, "partitions", split.partition, "records"),
                {"start": self._at, "end": stop, "bytes_max": PAGE_BYTES},
            )
        except BraidError as error:
            if error.code not in GONE:
                raise
            lost(DataLoss(f"{which} is gone while it was read: {error}"), self._options)
            return None
        if split.log_id and reply.headers.get("braid-log-id", split.log_id) != split.log_id:
            what = f"{which} was deleted and created again while it was read"
            lost(TopicRecreated(what), self._options)
            return None
        start_offset = int(reply.headers["braid-start-offset"])
        if start_offset > self._at:
            gone = f"offsets {self._at} to {start_offset - 1} were lost while they were read"
            lost(DataLoss(f"{which}: {gone}"), self._options)
        return reply


class Ranges:
    """Bytes of a segment that come over HTTP, each once: a batch seldom takes all of a chunk."""

    def __init__(self, ask: Callable[[int, int], bytes]) -> None:
        self._ask = ask
        self._held = memoryview(b"")
        self._end = 0

    def fetch(self, at: int, length: int) -> memoryview:
        left = self._end - at
        kept = self._held[-left:] if 0 < left <= len(self._held) else memoryview(b"")
        if len(kept) < length:
            more = self._ask(at + len(kept), length - len(kept))
            kept = memoryview(b"".join((kept, more)))
        self._held, self._end = kept, at + len(kept)
        return kept[:length]


def _slices(mapped: memoryview) -> Callable[[int, int], memoryview]:
    return lambda at, length: mapped[at : at + length]


def may_hold(segment: SegmentInfo, window: Window) -> bool:
    """Whether any record of a segment can be in a window, by what is known without opening it."""
    return (
        segment.base_offset < window.offset_max
        and segment.end_offset > window.offset_min
        and segment.max_timestamp_ms >= window.time_min_ms
        and not (segment.time_ordered and segment.first_timestamp_ms >= window.time_max_ms)
    )


def described(segment: SegmentInfo) -> Segment:
    """As storage describes it: an index is checked against this."""
    return Segment(
        0,
        segment.base_offset,
        segment.end_offset,
        segment.size,
        segment.records,
        segment.max_timestamp_ms,
        segment.sealed,
        first_timestamp_ms=segment.first_timestamp_ms,
        time_ordered=segment.time_ordered,
        generation=segment.generation,
    )
