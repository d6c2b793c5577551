"""Where a reader stands: an offset for each partition of each topic, and in which log.

A stream's checkpoint keeps it as JSON, word for word, and a later version must still read it:

    {"version": 2, "topics": {"orders": {"0": 1200, "1": 1180}}, "logs": {"orders": "1f-19a9…"}}

Version 1 had no ``logs``: offsets alone do not show that a topic was deleted and created again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from braidmq.model.errors import NotFound, OffsetOutOfRange
from braidmq.model.log_info import LogInfo, PartitionLogInfo
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.options import EARLIEST, LATEST, Place, SourceOptions

VERSION = 2
READABLE = (1, VERSION)

Places = dict[int, int]
"""An offset for each partition."""

Offsets = dict[str, Places]
Logs = dict[str, LogInfo]


@dataclass(frozen=True)
class Position:
    """Offsets, and of which logs: an offset says nothing in another."""

    offsets: Offsets
    log_ids: dict[str, str] = field(default_factory=dict)
    """By topic; one that is not here is not known."""

    def to_json(self) -> dict[str, Any]:
        """Sorted: Spark takes two offsets for the same if their texts are."""
        topics = {
            topic: {str(number): at for number, at in sorted(partitions.items())}
            for topic, partitions in sorted(self.offsets.items())
        }
        logs = {topic: self.log_ids[topic] for topic in topics if topic in self.log_ids}
        return {"version": VERSION, "topics": topics, "logs": logs}


def position_in(logs: Logs, offsets: Offsets) -> Position:
    return Position(offsets, {topic: log.id for topic, log in logs.items() if log.id})


def from_json(document: dict[str, Any]) -> Position:
    version = document.get("version")
    if version not in READABLE:
        raise BadOption(
            f"the checkpoint has offsets of version {version!r}, this BraidMQ reads"
            f" {READABLE[0]} to {VERSION}",
            remedy="Use the version of BraidMQ that wrote it, or start with a new checkpoint",
        )
    offsets = {
        topic: {int(number): at for number, at in partitions.items()}
        for topic, partitions in document["topics"].items()
    }
    return Position(offsets, document.get("logs", {}))


def visible_end(log: PartitionLogInfo, options: SourceOptions) -> int:
    """How far a query may read. The one place that knows of isolation: below ``stable_offset``
    no transaction is open any more."""
    return log.stable_offset if options.isolation == "read_committed" else log.end_offset


def partitions_of(logs: Logs) -> Iterator[tuple[str, PartitionLogInfo]]:
    for topic, log in logs.items():
        for partition in log.partitions:
            yield topic, partition


def ends_of(logs: Logs, options: SourceOptions) -> Offsets:
    found: Offsets = {topic: {} for topic in logs}
    for topic, log in partitions_of(logs):
        found[topic][log.partition] = visible_end(log, options)
    return found


def resolve(place: Place, logs: Logs, options: SourceOptions, otherwise: int) -> Offsets:
    """A place in words or numbers as offsets. Partitions it does not name are ``otherwise``."""
    assert place != "committed", "only the broker knows that: planning.unsettled"
    if isinstance(place, dict):
        refuse_unknown(place, ends_of(logs, options))
    found: Offsets = {topic: {} for topic in logs}
    for topic, log in partitions_of(logs):
        wanted = (
            {"earliest": EARLIEST, "latest": LATEST}.get(place)
            if isinstance(place, str)
            else (place.get(topic, {}).get(log.partition, otherwise))
        )
        assert wanted is not None
        found[topic][log.partition] = _at(wanted, topic, log, options)
    return found


def _at(wanted: int, topic: str, log: PartitionLogInfo, options: SourceOptions) -> int:
    end = visible_end(log, options)
    if wanted == EARLIEST:
        return min(log.start_offset, end)
    if wanted == LATEST:
        return end
    if log.start_offset <= wanted <= end:
        return wanted
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"topic {topic!r}, partition {log.partition}: offset {wanted} is not between"
            f" {log.start_offset} and {end}",
            remedy="Give one that is, or set failOnDataLoss to false to take the nearest",
        )
    return min(max(wanted, log.start_offset), end)


def refuse_unknown(given: Offsets, known: Offsets) -> None:
    """Raises NotFound for topics and partitions that are not read."""
    for topic, partitions in given.items():
        if topic not in known:
            raise NotFound(f"offsets are given for topic {topic!r}, which is not read")
        for number in partitions:
            if number not in known[topic]:
                raise NotFound(f"topic {topic!r} has no partition {number}")


def not_before(begin: Offsets, end: Offsets) -> Offsets:
    """``end``, and where that is earlier (a stream that read uncommitted records), ``begin``."""
    return {
        topic: {
            number: max(to, begin.get(topic, {}).get(number, to))
            for number, to in partitions.items()
        }
        for topic, partitions in end.items()
    }


# --- limits of one trigger ---


def records_between(start: Offsets, end: Offsets) -> int:
    """At the most: compaction leaves gaps."""
    return sum(
        max(to - start.get(topic, {}).get(number, 0), 0)
        for topic, partitions in end.items()
        for number, to in partitions.items()
    )


def limited(start: Offsets, end: Offsets, records_max: int) -> Offsets:
    """As far towards ``end`` as ``records_max`` go; each partition gets its share of them."""
    waiting = {
        (topic, number): max(to - start.get(topic, {}).get(number, 0), 0)
        for topic, partitions in end.items()
        for number, to in partitions.items()
    }
    total = sum(waiting.values())
    if total <= records_max:
        return end
    found: Offsets = {topic: {} for topic in end}
    left = records_max
    # Cut down to whole numbers: what is left over goes to the first that still wait.
    shares = {each: records_max * count // total for each, count in waiting.items()}
    left -= sum(shares.values())
    for (topic, number), count in waiting.items():
        more = min(left, count - shares[topic, number])
        left -= more
        begin = end[topic][number] - count
        found[topic][number] = begin + shares[topic, number] + more
    return found
