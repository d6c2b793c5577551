"""Transactions on a channel.

AMQP's own: publishes and answers wait on the channel for tx.commit, and become a transaction of the
engine then, so that all of them happen or none. Ours: a channel publishes in a transaction that is
known by its name, or as a producer that numbers its messages, through the same path as any other.
"""

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from braidmq.engine.errors import TopicFull
from braidmq.engine.topics import Topic
from braidmq.engine.transactions.coordinator import SESSION_MS, TIMEOUT_MS
from braidmq.engine.transactions.entries import Application
from braidmq.engine.transactions.errors import NotInFlight
from braidmq.engine.transactions.ledger import Branch, Producer, Transaction
from braidmq.engine.transactions.publishing import Origin
from braidmq.gateways.amqp.errors import precondition_failed
from braidmq.gateways.amqp.unacked import UnackedRun
from braidmq.model.errors import BraidError
from braidmq.net.input_budget import InputShare
from braidmq.record.batch import RecordBatch
from braidmq.wire.amqp.constants import ReplyCode
from braidmq.wire.amqp.errors import ChannelError
from braidmq.wire.amqp.methods import TxAck, TxBegin, TxEnd, TxProducer
from braidmq.wire.amqp.scan import FLAG_TRANSIENT, partition_in

if TYPE_CHECKING:
    from braidmq.gateways.amqp.channel import Channel

NUMBER_MAX = 1 << 62
"""The journal keeps numbers with a sign, and messages are counted on from what a client says."""

Publish = tuple[int, bytes, bytes, RecordBatch, list[Topic]]
"""Flags, exchange, key, messages, and where they go."""


class Buffered:
    """tx: publishes and answers that wait for the commit."""

    def __init__(self) -> None:
        self.publishes: list[Publish] = []
        self.answers: list[tuple[str, list[UnackedRun]]] = []

    def __len__(self) -> int:
        return len(self.publishes) + len(self.answers)

    def acknowledged(self) -> list[UnackedRun]:
        return [run for verb, runs in self.answers if verb == "ack" for run in runs]

    def answered(self) -> list[UnackedRun]:
        """Whatever the answer was."""
        return [run for _, runs in self.answers for run in runs]


class TxMode:
    """Whether a channel is in tx mode, and then what waits on it for the commit."""

    __slots__ = ("_held_bytes", "_share", "buffered")

    def __init__(self, share: InputShare) -> None:
        self._share = share
        self._held_bytes = 0
        """Of what it has published and not committed: that is memory too."""
        self.buffered: Buffered | None = None

    def restart(self) -> None:
        """It is selected, or what waited is decided."""
        self.buffered = Buffered()
        self._hold(-self._held_bytes)

    def add(self, publish: Publish) -> None:
        assert self.buffered is not None
        self.buffered.publishes.append(publish)
        self._hold(publish[3].memory_bytes)

    def _hold(self, change: int) -> None:
        self._held_bytes += change
        self._share.hold(change)


class Numbered:
    """Who publishes on a channel, and the number of its next message."""

    __slots__ = ("author", "sequence", "unroutable")

    def __init__(self, author: Producer | Branch, sequence: int) -> None:
        self.author = author
        self.sequence = sequence
        self.unroutable = 0
        """Mandatory messages that went nowhere: their transaction can't be committed here."""

    def take(self, count: int) -> Origin:
        """For that many messages. They are numbered wherever they go."""
        origin = Origin(self.author, self.sequence, strict=False)
        self.sequence += count
        return origin


# --- AMQP's own ---


def committing(channel: "Channel", buffered: Buffered) -> Iterator[None]:
    """All of it at once, as others see it, however many steps that takes: a client decides how much
    it is. Raises ``precondition_failed`` when a queue was full and refused some: then the rest
    counts."""
    engine, now_ms = channel.node_loop.engine(), channel.node_loop.now_ms()
    acknowledged, whole = buffered.acknowledged(), True
    for exchange in {publish[1] for publish in buffered.publishes}:
        # It was allowed when it was said, and takes effect now.
        channel.connection.require_write(exchange.decode())
    if buffered.publishes or acknowledged:
        transactions = engine.transactions
        owner = channel.connection.user
        transaction, _ = transactions.begin(channel.vhost, owner=owner, now_ms=now_ms)
        try:
            for run in acknowledged:
                _acknowledge_if_there(channel, transaction, run)
                yield
            origin = Origin(transactions.branch(transaction))
            for publish in buffered.publishes:
                whole &= _publish(channel, publish, origin)
                yield
        except (BraidError, GeneratorExit):
            # The connection may be over before the last step.
            transactions.abort(transaction, now_ms=channel.node_loop.now_ms())
            raise
        transactions.commit(transaction, now_ms=channel.node_loop.now_ms())
    for verb, runs in buffered.answers:
        if verb != "ack":
            channel.consumers.answer(verb, runs)
            yield
    if not whole:
        raise precondition_failed("partial tx completion")


def _acknowledge_if_there(channel: "Channel", transaction: Transaction, run: UnackedRun) -> None:
    """As basic.ack: what is not there any more needs none."""
    if run.view.partition.topic.deleted:
        return
    try:
        channel.node_loop.engine().transactions.acknowledge(
            transaction, run.consumer, run.view, run.start, run.stop
        )
    except NotInFlight:
        return


def _publish(channel: "Channel", publish: Publish, origin: Origin) -> bool:
    flags, exchange, key, batch, topics = publish
    try:
        channel.publisher.publish_to(flags, exchange, key, batch, topics, origin)
    except TopicFull:
        channel.publisher.meter.took(batch.count, batch.value_bytes)
        return _publish_singly(channel, flags, batch, topics, origin)
    return True


def _publish_singly(
    channel: "Channel", flags: int, batch: RecordBatch, topics: list[Topic], origin: Origin
) -> bool:
    """A full queue takes what fits; the others take all of it."""
    engine, now_ms = channel.node_loop.engine(), channel.node_loop.now_ms()
    whole, partition = True, partition_in(flags)
    for topic in topics:
        for index in range(batch.count):
            data = memoryview(batch)[batch.position_at(index) : batch.position_at(index + 1)]
            one = RecordBatch.scan(bytes(data), base_offset=0, verify=False)
            durable = not flags & FLAG_TRANSIENT
            try:
                engine.publishing.publish(
                    topic, one, now_ms=now_ms, partition=partition, durable=durable, origin=origin
                )
            except TopicFull:
                whole = False
    return whole


# --- ours ---


def begin(channel: "Channel", method: TxBegin) -> Transaction:
    """The transaction that the channel publishes in from here on."""
    _require_plain(channel)
    _check_numbers(method.sequence, method.application_epoch, method.application_sequence)
    engine, now_ms = channel.node_loop.engine(), channel.node_loop.now_ms()
    transactions, owner = engine.transactions, channel.connection.user
    name = method.name or uuid.uuid4().hex
    if method.join:
        found = transactions.find(
            channel.vhost, name, now_ms=now_ms, owner=owner, number=method.number
        )
    else:
        producer = None
        if method.producer:
            producer = transactions.producer(
                channel.vhost, method.producer, method.epoch, owner=owner, now_ms=now_ms
            )
        application = None
        if method.application:
            application = Application(
                method.application, method.application_epoch, method.application_sequence
            )
        found, _ = transactions.begin(
            channel.vhost,
            name,
            now_ms=now_ms,
            owner=owner,
            producer=producer,
            application=application,
            timeout_ms=method.timeout_ms or TIMEOUT_MS,
            session_ms=method.session_ms or SESSION_MS,
        )
    channel.publisher.numbered = Numbered(
        transactions.branch(found, method.branch), method.sequence
    )
    return found


def acknowledge(channel: "Channel", method: TxAck) -> None:
    """Deliveries of another channel of the connection, all of them or none."""
    transaction = _transaction(channel)
    source = channel.connection.channels.get(method.channel)
    if source is None:
        raise NotInFlight(f"channel {method.channel} is not open, and what it had is ready again")
    runs, missing = source.consumers.unacked.take(method.first_tag, method.last_tag)
    if missing is not None:
        source.consumers.unacked.put_back(runs)
        raise NotInFlight(f"unknown delivery tag {missing} of channel {method.channel}")
    try:
        channel.node_loop.engine().transactions.acknowledge_all(
            transaction, [(run.consumer, run.view, run.start, run.stop) for run in runs]
        )
    except BraidError:
        source.consumers.unacked.put_back(runs)
        raise


def heartbeat(channel: "Channel") -> None:
    transaction = _transaction(channel)
    channel.node_loop.engine().transactions.require_open(transaction)
    transaction.last_seen_ms = channel.node_loop.now_ms()


def end(channel: "Channel", method: TxEnd) -> None:
    transaction = _transaction(channel)
    branches = method.arguments.get("branches") if method.chosen else None
    unroutable = (
        channel.publisher.numbered.unroutable if channel.publisher.numbered is not None else 0
    )
    if unroutable and method.commit:
        raise ChannelError(
            ReplyCode.NO_ROUTE, f"{unroutable} messages of the transaction found no queue"
        )
    channel.publisher.numbered = None
    channel.node_loop.engine().transactions.conclude(
        transaction,
        commit=method.commit,
        now_ms=channel.node_loop.now_ms(),
        branches=None if branches is None else [str(each) for each in _listed(branches)],
    )


def _listed(branches: object) -> list[object]:
    if not isinstance(branches, list):
        raise precondition_failed("tx.end: branches must be a list of names")
    return branches


def attach_producer(channel: "Channel", method: TxProducer) -> Producer:
    """The producer whose messages the channel publishes from here on."""
    _require_plain(channel)
    _check_numbers(method.sequence)
    transactions, now_ms = channel.node_loop.engine().transactions, channel.node_loop.now_ms()
    owner = channel.connection.user
    if method.producer:
        producer = transactions.producer(
            channel.vhost, method.producer, method.epoch, owner=owner, now_ms=now_ms
        )
    else:
        producer, _ = transactions.open_producer(
            channel.vhost, method.name, owner=owner, now_ms=now_ms
        )
    channel.publisher.numbered = Numbered(producer, method.sequence)
    return producer


def left(channel: "Channel") -> None:
    """The client closed the channel: it will not come back as the producer that it was here."""
    numbered = channel.publisher.numbered
    if numbered is not None and isinstance(numbered.author, Producer):
        channel.node_loop.engine().transactions.close_producer(numbered.author)


def _check_numbers(*numbers: int) -> None:
    if max(numbers) > NUMBER_MAX:
        raise precondition_failed(f"numbers must be below {NUMBER_MAX}")


def _require_plain(channel: "Channel") -> None:
    if channel.tx.buffered is not None:
        raise precondition_failed("the channel is in tx mode")


def _transaction(channel: "Channel") -> Transaction:
    numbered = channel.publisher.numbered
    if numbered is None or not isinstance(numbered.author, Branch):
        raise precondition_failed("the channel has no transaction")
    return numbered.author.transaction
