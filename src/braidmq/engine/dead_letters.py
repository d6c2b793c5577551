"""Where dead letters go: the topic a policy names, or whatever an exchange routes them to."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from braidmq.engine.administration import TopicAdministration
from braidmq.engine.envelope import (
    AMQP,
    Death,
    Deaths,
    annotate,
    death_writers,
    headers_of,
    is_cycle,
    routing_keys,
)
from braidmq.engine.exchanges import Exchanges
from braidmq.engine.limits import is_full
from braidmq.engine.routing.errors import ExchangeNotFound
from braidmq.engine.state import EngineState
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.record.batch import Record, RecordBatch
from braidmq.storage.partition_log import Run
from braidmq.wire.deaths import GRAVE_SIZE, DeathWriter, alike, copy_as

DEAD_TOPIC_SETTINGS = {
    "partitions": 1,
    "retry": {"attempts": 0},
    "dead_letter": {"topic": None},
}
"""A dead-letter topic keeps what it gets and gives nothing up: there is nowhere left to go."""

WRITERS_MAX = 1024


class DeadGroup(NamedTuple):
    targets: list[TopicPartition]
    batch: RecordBatch
    first_offset: int
    """Of the records it takes, where they come from."""


class DeadLetterTargets:
    def __init__(
        self, state: EngineState, exchanges: Exchanges, topics: TopicAdministration
    ) -> None:
        self._state = state
        self._exchanges = exchanges
        self._topics = topics
        self._writers: dict[tuple[object, ...], list[DeathWriter]] = {}
        """By what they write, but for the time."""

    def group(
        self, topic: Topic, runs: Iterable[Run], death: Death, now_ms: int
    ) -> list[DeadGroup]:
        """The dead records as batches with their targets, consecutive ones together.

        Those that go the same way and never died before are copied by a kernel, the others one by
        one: all that say the same of themselves with the first of them.
        """
        rule = topic.dead_letter
        own = rule.routing_key.encode() if rule.routing_key is not None else None
        writers = self._writers_of(death, rule.exchange, own)
        deaths = [(topic.name, death.reason)]
        groups: list[DeadGroup] = []
        alone = rule.exchange is not None and not self._go_by_key(topic)
        for run in runs:
            at = run.first
            while at < run.stop:
                for writer in writers:
                    key = writer.key_of(run.batch, at)
                    if key is not None:
                        break
                else:
                    here = through(death, rule.exchange, own)
                    at = self._one(topic, run, at, here, now_ms, groups, alone=alone)
                    continue
                keys = [own if own is not None else key]
                targets = self._targets(topic, keys, run, at, deaths, now_ms)
                # Also what goes nowhere is copied, but then thrown away.
                batch = self._batch_for(groups, targets, run, at) if targets else RecordBatch()
                stop = at + 1 if alone else run.stop
                one_key = own is None and rule.exchange is not None
                at = writer.copy(run.batch, at, stop, batch, now_ms, death.at_ms, one_key)
        return groups

    def _writers_of(
        self, death: Death, exchange: str | None, own: bytes | None
    ) -> list[DeathWriter]:
        if death.error:
            return death_writers(through(death, exchange, own))  # hardly ever the same again
        where = (death.topic, death.partition, death.subscription)
        key = (*where, death.reason, death.attempts, exchange, own)
        found = self._writers.get(key)
        if found is None:
            if len(self._writers) >= WRITERS_MAX:
                self._writers.clear()
            found = self._writers[key] = death_writers(through(death, exchange, own))
        return found

    def _one(
        self,
        topic: Topic,
        run: Run,
        at: int,
        death: Death,
        now_ms: int,
        groups: list[DeadGroup],
        *,
        alone: bool,
    ) -> int:
        """A record that no writer knows; returns the index behind it and those like it."""
        record = run.batch.record(at)
        keys = [death.to_key] if death.new_key else routing_keys(record)
        envelope_format, envelope, deaths = annotate(record, death._replace(to_key=keys[0]))
        targets = self._targets(topic, keys, run, at, deaths, now_ms)
        # Native ones say their offset in as many digits as it has.
        same = envelope_format == AMQP and not alone
        stop = alike(run.batch, at, run.stop) if same else at + 1
        if not targets:
            return stop
        offset_at = _offset_in(record, envelope, death) if stop > at + 1 else -1
        batch = self._batch_for(groups, targets, run, at)
        return copy_as(run.batch, at, stop, batch, envelope_format, envelope, now_ms, offset_at)

    def _targets(
        self, topic: Topic, keys: list[bytes], run: Run, at: int, deaths: Deaths, now_ms: int
    ) -> list[TopicPartition]:
        found = self._find_topics(topic, keys, lambda: headers_of(run.batch.record(at)), now_ms)
        return [each.partitions[0] for each in found if not is_cycle(each.name, deaths)]

    def _go_by_key(self, topic: Topic) -> bool:
        """Whether all dead records of a topic with one routing key go the same way."""
        exchange = topic.dead_letter.exchange
        router = self._exchanges.router(topic.namespace)
        return exchange is None or router.routes_by_key_only(exchange)

    def _find_topics(
        self,
        topic: Topic,
        keys: list[bytes],
        headers: Callable[[], Mapping[str, object]],
        now_ms: int,
    ) -> list[Topic]:
        """Target topics for a dead record, by the routing keys it has there and its headers."""
        rule = topic.dead_letter
        if rule.exchange is not None:
            router = self._exchanges.router(topic.namespace)
            names: dict[str, None] = {}
            for key in keys:
                try:
                    route = router.resolve(rule.exchange, key, headers)
                except ExchangeNotFound:
                    return []
                names |= dict.fromkeys(route.topics)
            found = [self._state.topics.get((topic.namespace, name)) for name in names]
            return [t for t in found if t is not None and not is_full(t)]
        if rule.topic is None:
            return []
        name = rule.topic.replace("{topic}", topic.name)
        existing = self._state.topics.get((topic.namespace, name))
        if existing is None:
            existing = self._topics.create(
                topic.namespace, name, DEAD_TOPIC_SETTINGS, now_ms=now_ms, durable=topic.durable
            )
        return [existing]

    def _batch_for(
        self, groups: list[DeadGroup], targets: list[TopicPartition], run: Run, at: int
    ) -> RecordBatch:
        """The batch for the next record: the last one, if that goes there and has room."""
        if groups and groups[-1].targets == targets and groups[-1].batch.size < GRAVE_SIZE:
            return groups[-1].batch
        groups.append(DeadGroup(targets, RecordBatch(), run.batch.offset_at(at)))
        return groups[-1].batch


def _offset_in(record: Record, envelope: bytes, death: Death) -> int:
    """Where in an envelope of AMQP the record's offset stands: where another would differ. -1 for
    one that does not say it."""
    other = annotate(record._replace(offset=~record.offset), death)[1]
    pairs = enumerate(zip(envelope, other, strict=True))
    return next((index for index, (ours, its) in pairs if ours != its), -1)


def through(death: Death, exchange: str | None, own: bytes | None) -> Death:
    """With where dead letters go: through an exchange, with a key of the topic's own."""
    return death._replace(to_exchange=exchange, to_key=own or b"", new_key=own is not None)
