"""One AMQP channel: publishing, consuming, answering."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from braidmq.engine.errors import TopicFull
from braidmq.engine.publishing import Published
from braidmq.engine.routing.errors import ExchangeNotFound, InternalExchange
from braidmq.engine.routing.exchanges import wire_name
from braidmq.engine.topics import Consumer, Credit, Delivery, Topic
from braidmq.engine.transactions.publishing import Origin
from braidmq.gateways.amqp import transactions
from braidmq.gateways.amqp.confirms import Confirm, Confirms
from braidmq.gateways.amqp.errors import (
    access_refused,
    no_exchange,
    precondition_failed,
    translate,
)
from braidmq.gateways.amqp.output import ChannelOutput
from braidmq.gateways.amqp.queues import SUBSCRIPTION, is_quorum
from braidmq.gateways.amqp.routes import Destination
from braidmq.gateways.amqp.transactions import Buffered, Numbered
from braidmq.gateways.amqp.unacked import Unacked, UnackedRun
from braidmq.gateways.translation import amqp_envelope, amqp_parts
from braidmq.model.errors import BraidError, PartitionQuarantined, StorageError
from braidmq.model.ids import Lsn
from braidmq.record.batch import RecordBatch
from braidmq.record.copies import single
from braidmq.runtime.publish_batcher import can_batch
from braidmq.runtime.sliced_work import Steps
from braidmq.wire.amqp.constants import ReplyCode
from braidmq.wire.amqp.errors import ChannelError, ConnectionError_
from braidmq.wire.amqp.methods import (
    BasicCancel,
    BasicDeliver,
    BasicGetOk,
    BasicReturn,
    Method,
    encode,
    method_frame,
)
from braidmq.wire.amqp.properties import decode_properties
from braidmq.wire.amqp.render import all_amqp, render_content, render_deliveries
from braidmq.wire.amqp.scan import (
    FLAG_BAD_EXPIRATION,
    FLAG_BAD_MODE,
    FLAG_BAD_PROPERTIES,
    FLAG_COPIES,
    FLAG_HEADERS,
    FLAG_IMMEDIATE,
    FLAG_MANDATORY,
    FLAG_REPLY_TO,
    FLAG_TRANSIENT,
    FLAG_USER_ID,
)
from braidmq.wire.envelopes import split_amqp

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection

logger = logging.getLogger(__name__)

NO_ROUTE = 312
DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
REPLY_KEY = DIRECT_REPLY_TO.encode() + b"."
ONE_BY_ONE = (
    FLAG_BAD_EXPIRATION
    | FLAG_BAD_MODE
    | FLAG_BAD_PROPERTIES
    | FLAG_COPIES
    | FLAG_REPLY_TO
    | FLAG_USER_ID
)
"""Messages with one of these are looked at singly."""


class AmqpConsumer:
    """A consumer tag: takes deliveries from the engine to the socket."""

    __slots__ = ("by_offset", "channel", "consumer", "no_ack", "queue", "tag", "tag_bytes")
    __deletable__ = ("consumer",)

    def __init__(
        self, channel: "Channel", tag: str, queue: str, no_ack: bool, by_offset: bool = False
    ) -> None:
        self.channel = channel
        self.tag = tag
        self.tag_bytes = tag.encode()
        self.queue = queue
        self.no_ack = no_ack
        self.by_offset = by_offset
        """It reads from where it likes, with a subscription of its own, and is told offsets."""
        self.consumer: Consumer

    def deliver(self, delivery: Delivery) -> None:
        self.channel.deliver(self, delivery)


class Channel:
    def __init__(
        self, connection: "AmqpConnection", number: int, output: ChannelOutput | None = None
    ) -> None:
        """``output``: of the channel that had its number, which has not said all yet."""
        self.connection = connection
        self.node_loop = connection.node_loop
        self.number = number
        self.output = output or ChannelOutput(connection, number)
        self.vhost = connection.vhost
        self.consumers: dict[str, AmqpConsumer] = {}
        self.unacked = Unacked()
        self.confirms: Confirms | None = None
        self.prefetch = 0
        self.credit = Credit()
        """Shared by the consumers of the channel; limited by basic.qos with global."""
        self.active = True
        self.closing = False
        self.last_queue = ""
        self._transaction: Buffered | None = None
        self._buffered_bytes = 0
        """Of what it has published and not committed: that is memory too."""
        self.numbered: Numbered | None = None
        """Who publishes, if that is a producer of ours or a transaction."""
        self.reply_tag: str | None = None
        self.reply_address: str | None = None
        self._unconfirmed = connection.gateway.unconfirmed
        self._next_tag = 1
        self._getters: dict[str, Consumer] = {}

    @property
    def transaction(self) -> Buffered | None:
        """tx: what waits for the commit."""
        return self._transaction

    @transaction.setter
    def transaction(self, empty: Buffered | None) -> None:
        """What the last one held is decided."""
        self._transaction = empty
        self._hold_buffered(-self._buffered_bytes)

    def _hold_buffered(self, change: int) -> None:
        self._buffered_bytes += change
        self.connection.share.hold(change)

    def send(self, data: bytes) -> None:
        """All that it sends goes this way, or by ``reply``. What comes too late is not sent: the
        client has closed it, or somebody else has its number."""
        if not self.output.waiting and not self.closing:
            self.connection.send(data)
        elif not self.closing:
            self.output.follow(data)

    def reply(self, method: Method, lsn: Lsn | None = None) -> None:
        """Answer a method, once an entry is on disk if it is about one."""
        if not self.closing:
            self.output.reply(method, lsn)

    def next_tag(self) -> int:
        self._next_tag += 1
        return self._next_tag - 1

    # --- publishing ---

    def check_publish(self, exchange: str) -> None:
        """Before the body of a message comes: raises ChannelError for one that can't be taken."""
        self.connection.require_write(exchange)
        if not self.node_loop.engine.exchanges.router(self.vhost).has_exchange(exchange):
            raise no_exchange(exchange, self.vhost)

    def publish_run(
        self,
        flags: int,
        exchange: bytes,
        key: bytes,
        batch: RecordBatch,
        destination: Destination | None = None,
    ) -> None:
        """A run of messages with one exchange and one key, or one destination of several keys."""
        if destination is not None:
            self._publish_known(flags, exchange, key, batch, destination)
            return
        if flags & FLAG_IMMEDIATE:
            raise ConnectionError_(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
        if not exchange and key.startswith(REPLY_KEY):
            self._publish_reply(flags, exchange, key, batch)
            return
        if flags & ONE_BY_ONE:
            for index in range(batch.count):
                self._publish_checked(flags, exchange, key, single(batch, index))
            return
        if flags & FLAG_HEADERS and self._needs_headers(exchange):
            for index in range(batch.count):
                one = single(batch, index)
                self._publish(flags, exchange, key, one, self._headers_of(one))
            return
        self._publish(flags, exchange, key, batch, None)

    def publish_late(self, event: tuple[Any, ...]) -> None:
        """What waited for room, and its channel was closed meanwhile: nobody is told how it went,
        as nobody is who closes a channel without waiting for confirms."""
        _, _, flags, exchange, key, batch, destination = event
        try:
            if destination is None:
                self.publish_run(flags, exchange, key, batch)
            else:
                self.publish_each(flags, batch)
        except BraidError as error:
            logger.warning("publish dropped", extra={"reason": str(error)})

    def _publish_known(
        self, flags: int, exchange: bytes, key: bytes, batch: RecordBatch, destination: Destination
    ) -> None:
        if self.connection.routes.are_current() and not destination.is_gone():
            generation = self.connection.accounts.generation
            if destination.allowed_at != generation:
                self.connection.require_write(exchange.decode())
                destination.allowed_at = generation
            self._publish_topics(flags, exchange, key, batch, destination.topics)
            return
        # A binding changed in the very chunk of bytes that this run is from.
        self.publish_each(flags, batch)

    def publish_each(self, flags: int, batch: RecordBatch) -> None:
        """Messages that were thought to have one destination, each by its own key."""
        for index in range(batch.count):
            one = single(batch, index)
            own_exchange, own_key, _ = split_amqp(one.record(0).envelope)
            self.publish_run(flags, own_exchange, own_key, one)

    def _publish_reply(self, flags: int, exchange: bytes, key: bytes, batch: RecordBatch) -> None:
        """An answer to a direct reply-to address: from channel to channel."""
        if self.numbered is not None:
            self.numbered.take(batch.count)
        target = self.connection.gateway.replies.find(key)
        if flags & FLAG_MANDATORY:
            # No queue took it, delivered or not: RabbitMQ returns it all the same.
            self.give_back(batch, exchange, key)
        if target is not None and target.reply_tag is not None:
            for index in range(batch.count):
                record = batch.record(index)
                raw = amqp_parts(record.envelope)[2]
                self.connection.gateway.replies.send(
                    target, exchange, key, raw, record.value or b""
                )
        if self.confirms is not None:
            self._confirmed(self.confirms.expect(batch.count, batch.count), None)

    def _publish_checked(self, flags: int, exchange: bytes, key: bytes, batch: RecordBatch) -> None:
        properties = decode_properties(amqp_parts(batch.record(0).envelope)[2])
        if flags & FLAG_BAD_EXPIRATION:
            raise precondition_failed(
                f"invalid expiration '{properties.expiration}': {_reason(properties.expiration)}"
            )
        if flags & FLAG_BAD_MODE:
            raise precondition_failed(
                f"invalid message: {{delivery_mode_unknown,{properties.delivery_mode}}}"
            )
        if properties.user_id is not None and properties.user_id != self.connection.user:
            raise precondition_failed(
                f"user_id property set to '{properties.user_id}' but authenticated user was "
                f"'{self.connection.user}'"
            )
        headers: dict[str, Any] = dict(properties.headers or {})
        keys = [key, *self._copies(headers, "CC"), *self._copies(headers, "BCC")]
        if "BCC" in headers or properties.reply_to == DIRECT_REPLY_TO:
            batch = self._rewritten(batch, exchange, key, headers, properties)
        self._publish(flags, exchange, key, batch, lambda: headers, keys)

    def _copies(self, headers: Mapping[str, Any], name: str) -> list[bytes]:
        value = headers.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise precondition_failed(
                f'invalid message: {{unacceptable_type_in_header,"{name}",{wire_name(value)}}}'
            )
        # As RabbitMQ: what can't be a key is passed over.
        texts = [each for each in value if isinstance(each, str | bytes)]
        return [each.encode() if isinstance(each, str) else each for each in texts]

    def _rewritten(
        self,
        batch: RecordBatch,
        exchange: bytes,
        key: bytes,
        headers: dict[str, Any],
        properties: Any,
    ) -> RecordBatch:
        """BCC is not for the receivers to see, and direct reply-to becomes a real address."""
        headers.pop("BCC", None)
        if properties.reply_to == DIRECT_REPLY_TO:
            if self.reply_tag is None:
                raise precondition_failed("fast reply consumer does not exist")
            address = self.connection.gateway.replies.address(self)
            properties = msgspec.structs.replace(properties, reply_to=address)
        properties = msgspec.structs.replace(properties, headers=headers or None)
        return rewritten(batch, amqp_envelope(exchange, key, properties))

    def _headers_of(self, batch: RecordBatch) -> Callable[[], Mapping[str, Any]]:
        def headers() -> Mapping[str, Any]:
            raw = amqp_parts(batch.record(0).envelope)[2]
            return decode_properties(raw).headers or {}

        return headers

    def _needs_headers(self, exchange: bytes) -> bool:
        """Whether messages have to be looked into; then runs can't be handled as one."""
        router = self.node_loop.engine.exchanges.router(self.vhost)
        return not router.routes_by_key_only(exchange.decode())

    def _publish(
        self,
        flags: int,
        exchange: bytes,
        key: bytes,
        batch: RecordBatch,
        headers: Callable[[], Mapping[str, Any]] | None,
        keys: list[bytes] | None = None,
    ) -> None:
        name = exchange.decode()
        self.connection.require_write(name)
        if keys is None and headers is None:
            topics = self._route_by_key(name, exchange, key)
        else:
            topics = self._route(name, keys or [key], headers)
        self._publish_topics(flags, exchange, key, batch, topics)

    def _publish_topics(
        self, flags: int, exchange: bytes, key: bytes, batch: RecordBatch, topics: list[Topic]
    ) -> None:
        if self._transaction is not None:
            self._transaction.publishes.append((flags, exchange, key, batch, topics))
            self._hold_buffered(batch.memory_bytes)
            return
        if self.numbered is not None:
            self.node_loop.flush_batch()
            origin = self.numbered.take(batch.count)
            self.publish_to(flags, exchange, key, batch, topics, origin)
            return
        if len(topics) == 1 and can_batch(topics[0], batch):
            confirming, size = None if self.confirms is None else self, batch.size
            self.node_loop.publish_batched(topics[0], not flags & FLAG_TRANSIENT, batch, confirming)
            self._published(size)
            return
        self.node_loop.flush_batch()
        self.publish_to(flags, exchange, key, batch, topics)

    def _route_by_key(self, name: str, exchange: bytes, key: bytes) -> list[Topic]:
        """As ``_route``, and the scanner is told for the next time."""
        topics = self._route(name, [key], None)
        if topics and not self._needs_headers(exchange):
            self.connection.routes.learn(exchange, key, topics)
        return topics

    # --- as the broker's gathering knows a publisher ---

    def expect(self, count: int) -> Confirm:
        assert self.confirms is not None
        return self.confirms.expect(count, count)

    def expect_more(self, ticket: object, count: int) -> None:
        assert isinstance(ticket, Confirm)
        assert self.confirms is not None
        self.confirms.expect_more(ticket, count)

    def confirmed(self, ticket: object, failure: StorageError | None) -> None:
        assert isinstance(ticket, Confirm)
        self._confirmed(ticket, failure)

    def publish_to(
        self,
        flags: int,
        exchange: bytes,
        key: bytes,
        batch: RecordBatch,
        topics: list[Topic],
        origin: Origin | None = None,
    ) -> None:
        """Raises TopicFull only for who numbers its messages: what it sends again must not pass for
        what came behind a refused one."""
        if not topics and flags & FLAG_MANDATORY:
            self.give_back(batch, exchange, key)
            if self.numbered is not None:
                self.numbered.unroutable += batch.count
        count, size = batch.count, batch.size
        published = Published(None, count)
        topics = [topic for topic in topics if not topic.deleted]
        if topics:
            try:
                published = self.node_loop.engine.fan_out(
                    topics,
                    batch,
                    now_ms=self.node_loop.now_ms(),
                    durable=not flags & FLAG_TRANSIENT,
                    origin=origin,
                )
            except TopicFull:
                if origin is not None:
                    raise
                published = Published(None, 0)
            except PartitionQuarantined:
                if origin is not None or self.confirms is None:
                    raise
                published = Published(None, 0)
        confirm = None
        if self.confirms is not None:
            confirm = self.confirms.expect(count, published.accepted)
        self._published(size)
        if confirm is not None:
            self.node_loop.when_durable(
                published.lsn, lambda failure: self._confirmed(confirm, failure)
            )
        # Whoever consumes must not wait for it, with or without a confirm or a disk behind it.
        self.node_loop.schedule_turn()

    def _published(self, size: int) -> None:
        """Publishers that are too far ahead have to wait."""
        self.connection.published()
        if self.confirms is not None:
            self.confirms.weigh(size)
            if self.confirms.is_behind(self._unconfirmed):
                self.connection.wait_for_confirms(self)

    def _route(
        self,
        exchange: str,
        keys: list[bytes],
        headers: Callable[[], Mapping[str, Any]] | None,
    ) -> list[Topic]:
        engine = self.node_loop.engine
        router = engine.exchanges.router(self.vhost)
        names: dict[str, None] = {}
        for key in keys:
            try:
                route = router.resolve(exchange, key, headers, from_client=True)
            except ExchangeNotFound:
                raise no_exchange(exchange, self.vhost) from None
            except InternalExchange:
                raise access_refused(
                    f"cannot publish to internal exchange '{exchange}' in vhost '{self.vhost}'"
                ) from None
            names |= dict.fromkeys(route.topics)
        found = (engine.state.topics.get((self.vhost, name)) for name in names)
        return [topic for topic in found if topic is not None]

    def give_back(self, batch: RecordBatch, exchange: bytes, key: bytes) -> None:
        """basic.return: no queue gets these."""
        method = encode(BasicReturn(NO_ROUTE, "NO_ROUTE", exchange.decode(), key.decode()))
        for index in range(batch.count):
            record = batch.record(index)
            raw = amqp_parts(record.envelope)[2]
            self.send(
                render_content(
                    self.number, method, raw, record.value or b"", self.connection.frame_max
                )
            )

    def _confirmed(self, confirm: Confirm, failure: StorageError | None) -> None:
        if self.confirms is not None:
            self.confirms.settle(confirm, failure)
            if self.confirms.has_caught_up(self._unconfirmed):
                self.connection.has_confirms(self)

    # --- consuming ---

    def deliver(self, target: AmqpConsumer, delivery: Delivery) -> None:
        first_tag = self._next_tag
        count = delivery.stop - delivery.first
        self._next_tag += count
        if not target.no_ack:
            self.unacked.add(
                UnackedRun(
                    first_tag,
                    first_tag + count - 1,
                    delivery.consumer,
                    delivery.view,
                    delivery.start,
                    self.node_loop.now_ms(),
                )
            )
        frame_max = self.connection.frame_max
        if not (target.by_offset or self._is_annotated(delivery)) and all_amqp(
            delivery.batch, delivery.first, delivery.stop
        ):
            self.send(
                render_deliveries(
                    delivery.batch,
                    delivery.first,
                    delivery.stop,
                    self.number,
                    target.tag_bytes,
                    first_tag,
                    delivery.attempts > 1,
                    frame_max,
                )
            )
            return
        for index in range(delivery.first, delivery.stop):
            exchange, key, raw, body = self._parts(delivery, index, told_offset=target.by_offset)
            method = BasicDeliver(
                target.tag, first_tag + index - delivery.first, delivery.attempts > 1, exchange, key
            )
            self.send(render_content(self.number, encode(method), raw, body, frame_max))

    def _is_annotated(self, delivery: Delivery) -> bool:
        """Whether messages carry what only the queue knows of them: those of streams their offset,
        redelivered ones of quorum queues their delivery count."""
        kind = delivery.view.partition.topic.kind
        return kind == "stream" or (delivery.attempts > 1 and kind == "quorum")

    def _parts(
        self, delivery: Delivery, index: int, *, got: bool = False, told_offset: bool = False
    ) -> tuple[str, str, bytes, bytes]:
        topic, record = delivery.view.partition.topic, delivery.batch.record(index)
        counted = is_quorum(topic) and (got or delivery.attempts > 1)
        exchange, key, raw = amqp_parts(
            record.envelope,
            record.envelope_format,
            record,
            delivery_count=delivery.attempts - 1 if counted else None,
            stream_offset=record.offset if told_offset or topic.kind == "stream" else None,
            topic=topic.name,
        )
        return exchange.decode(), key.decode(), raw, record.value or b""

    def get(self, topic: Topic, no_ack: bool) -> bytes | None:
        """One message for basic.get-ok, or None."""
        engine, now_ms = self.node_loop.engine, self.node_loop.now_ms()
        subscription = topic.subscriptions[SUBSCRIPTION]
        getter = self._getters.get(topic.name)
        if getter is None or getter.subscription is not subscription:
            getter = self._getters[topic.name] = engine.attach(
                subscription, now_ms=now_ms, credits=[Credit()], visibility_ms=0, passive=True
            )
        getter.auto_ack = no_ack
        found = engine.pull(getter, 1, now_ms=now_ms)
        if not found:
            return None
        delivery = found[0]
        tag = self._next_tag
        self._next_tag += 1
        if not no_ack:
            run = UnackedRun(tag, tag, getter, delivery.view, delivery.start, now_ms)
            self.unacked.add(run)
        exchange, key, raw, body = self._parts(delivery, delivery.first, got=True)
        method = BasicGetOk(tag, delivery.attempts > 1, exchange, key, subscription.ready)
        return render_content(self.number, encode(method), raw, body, self.connection.frame_max)

    # --- answers ---

    def ack(self, first: int, last: int, multiple: bool) -> None:
        runs = self._take(first, last, multiple)
        if self._transaction is not None:
            self._transaction.answers.append(("ack", runs))
            return
        self.answer("ack", runs)

    def refuse(self, tag: int, multiple: bool, requeue: bool) -> None:
        """basic.nack and basic.reject."""
        verb = "requeue" if requeue else "reject"
        runs = self._take(tag, tag, multiple)
        if self._transaction is not None:
            self._transaction.answers.append((verb, runs))
            return
        self.answer(verb, runs)

    def retry(self, first: int, last: int, delay_ms: int | None) -> None:
        """basic.retry: they failed, and come again by the topic's policy or after ``delay_ms``."""
        engine, now_ms = self.node_loop.engine, self.node_loop.now_ms()
        for run in self._take(first, last, multiple=False):
            if not run.view.partition.topic.deleted:
                engine.nack(
                    run.consumer, run.view, run.start, run.stop, now_ms=now_ms, delay_ms=delay_ms
                )
        self.node_loop.schedule_turn()

    def answer(self, verb: str, runs: list[UnackedRun]) -> None:
        engine, now_ms = self.node_loop.engine, self.node_loop.now_ms()
        for run in runs:
            if run.view.partition.topic.deleted:
                continue  # its queue is gone, and so are its messages
            if verb == "ack":
                engine.ack(run.consumer, run.view, run.start, run.stop)
            elif verb == "requeue":
                engine.requeue(run.consumer, run.view, run.start, run.stop, now_ms=now_ms)
            else:
                engine.reject(run.consumer, run.view, run.start, run.stop, now_ms=now_ms)
        self.node_loop.schedule_turn()

    def _take(self, first: int, last: int, multiple: bool) -> list[UnackedRun]:
        if multiple:
            taken = self.unacked.take_all() if last == 0 else self.unacked.take_through(last)
            if taken is None:
                raise precondition_failed(f"unknown delivery tag {last}")
            return taken
        found, missing = self.unacked.take(first, last)
        if missing is not None:
            self.answer("ack", found)
            raise precondition_failed(f"unknown delivery tag {missing}")
        return found

    def overdue(self, now_ms: int, timeout_ms: int) -> ChannelError | None:
        """What to close the channel with when a delivery waits too long for its answer."""
        oldest = self.unacked.oldest_ms
        if oldest is None or now_ms - oldest <= timeout_ms:
            return None
        return precondition_failed(
            f"delivery acknowledgement on channel {self.number} timed out. "
            f"Timeout value used: {timeout_ms} ms. "
            "A consumer must answer for its messages within that time"
        )

    def recover(self) -> None:
        """Everything unanswered becomes ready again."""
        self.answer("requeue", self.unacked.take_all())

    # --- consumers ---

    def cancel(self, tag: str) -> AmqpConsumer | None:
        """Stop a consumer; what it has may still be acknowledged."""
        target = self.consumers.pop(tag, None)
        if target is not None:
            self._detach(target, requeue=False)
            self.connection.consumer_gone(target)
        return target

    def _detach(self, target: AmqpConsumer, *, requeue: bool) -> None:
        engine, consumer = self.node_loop.engine, target.consumer
        engine.detach(consumer, now_ms=self.node_loop.now_ms(), requeue=requeue)
        if target.by_offset and not consumer.subscription.topic.deleted:
            engine.delete_subscription(consumer.subscription)
        del target.consumer  # which knows its tag

    def cancelled(self, target: AmqpConsumer) -> None:
        """Its queue is gone: tell the client, if it wants to know."""
        if self.consumers.pop(target.tag, None) is None:
            return
        del target.consumer
        if self.connection.wants_cancel_notify:
            self.send(method_frame(self.number, BasicCancel(target.tag, nowait=True)))

    def end_unreadable(self) -> None:
        """Consumers whose queue the user may not read any more are cancelled, as if it were gone; a
        client that can't be told of that loses the channel. What they have may still be answered
        for."""
        grants = self.connection.grants
        for tag, target in list(self.consumers.items()):
            if grants.may_read(target.queue):
                continue
            refusal = self.connection.refusal("queue", target.queue)
            if not self.connection.wants_cancel_notify:
                self.connection.close_channel(self, refusal)
                return
            self.cancel(tag)
            self.send(method_frame(self.number, BasicCancel(tag, nowait=True)))
            facts = {"channel": self.number, "tag": tag, "reason": refusal.reply_text}
            logger.info("consumer ended", extra={**self.connection.log_fields(), **facts})
        self._getters = {
            name: getter for name, getter in self._getters.items() if grants.may_read(name)
        }

    def failed(self, target: AmqpConsumer, error: PartitionQuarantined) -> None:
        """It gets nothing any more: the channel ends with the reason."""
        if target.tag in self.consumers and not self.closing:
            self.connection.close_channel(self, translate(error))

    def pause(self, paused: bool) -> None:
        for target in self.consumers.values():
            if paused or not self.active:
                target.consumer.paused = True
            else:
                self.node_loop.engine.resume(target.consumer)
        self.node_loop.schedule_turn()

    def ending(self, *, left: bool = False) -> Steps:
        """What was delivered and not answered goes back to its queues, with what was answered in a
        transaction that is not committed. ``left``: the client wants it, and is done with it.

        From now on it gets nothing; what is left is to give back its consumers, one by one."""
        self.closing = True
        self.pause(True)
        if self._transaction is not None:
            self.unacked.put_back(self._transaction.answered())
            self._transaction = Buffered()
            self._hold_buffered(-self._buffered_bytes)
        self.connection.gateway.replies.forget(self)
        self.connection.has_confirms(self)
        held = {run.consumer.id: run.consumer for run in self.unacked}
        self.unacked.take_all()
        targets = list(self.consumers.values())
        self.consumers.clear()
        self.confirms = None  # which knows whom to send them to
        return self._giving_back(targets, held, left)

    def _giving_back(
        self, targets: list[AmqpConsumer], held: dict[int, Consumer], left: bool
    ) -> Iterator[None]:
        # From the last: where only one is served it is the first, and none has to follow it.
        for target in reversed(targets):
            held.pop(target.consumer.id, None)
            self._detach(target, requeue=True)
            yield
        for consumer in (*held.values(), *self._getters.values()):
            self.node_loop.engine.detach(consumer, now_ms=self.node_loop.now_ms())
        for target in targets:
            self.connection.consumer_gone(target)
            yield
        if left:
            transactions.left(self)
        self.node_loop.schedule_turn()


def _reason(expiration: str | None) -> str:
    """Why a text is no time to live, in RabbitMQ's words."""
    text = expiration or ""
    if text[:1] == "-" and text[1:].isdecimal():
        return f"{{value_negative,{text}}}"
    if text.isascii() and text.isdecimal():
        return f"{{value_too_large,{text}}}"
    return "no_integer"


def rewritten(batch: RecordBatch, envelope: bytes) -> RecordBatch:
    """A batch of one record with another envelope."""
    record = batch.record(0)
    changed = RecordBatch()
    changed.append(
        record.value,
        key=record.key,
        envelope=envelope,
        envelope_format=record.envelope_format,
        flags=record.flags,
        priority=record.priority,
        timestamp_ms=record.timestamp_ms,
        expires_at_ms=record.expires_at_ms,
        due_at_ms=record.due_at_ms,
        dated=record.dated,
    )
    return changed
