"""Where the dead go: the topic a policy names, or whatever an exchange routes them to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from braidmq.engine.envelope import Death, annotate, is_cycle, routing_keys
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.storage.record import FLAG_CONTROL, Record, RecordBatch

DEAD_TOPIC_SETTINGS = {
    "partitions": 1,
    "retry": {"attempts": 0},
    "dead_letter": {"topic": None},
}
"""A dead-letter topic keeps what it gets and gives nothing up: there is nowhere left to go."""

FindTopics = Callable[[Topic, list[bytes], Record, int], list[Topic]]
"""Target topics for a dead record of a topic, by the routing keys it has there."""


class Grave(NamedTuple):
    targets: list[TopicPartition]
    batch: RecordBatch
    first_offset: int
    """Of the records it takes, where they come from."""


class DeadLetterTargets:
    def __init__(self, find: FindTopics) -> None:
        self._find = find

    def group(
        self, topic: Topic, records: Sequence[Record], death: Death, now_ms: int
    ) -> list[Grave]:
        """The dead records as batches with their targets, consecutive ones together."""
        groups: list[Grave] = []
        for record in records:
            rule = topic.dead_letter
            own = rule.routing_key
            keys = [own.encode()] if own is not None else routing_keys(record)
            here = replace(
                death, to_exchange=rule.exchange, to_key=keys[0], new_key=own is not None
            )
            envelope_format, envelope, deaths = annotate(record, here)
            found = self._find(topic, keys, record, now_ms)
            targets = [each.partitions[0] for each in found if not is_cycle(each.name, deaths)]
            if not targets:
                continue
            if not groups or groups[-1].targets != targets:
                groups.append(Grave(targets, RecordBatch(), record.offset))
            groups[-1].batch.append(
                record.value,
                key=record.key,
                envelope=envelope,
                envelope_format=envelope_format,
                flags=record.flags & ~FLAG_CONTROL,
                priority=record.priority,
                timestamp_ms=now_ms,
            )
        return groups
