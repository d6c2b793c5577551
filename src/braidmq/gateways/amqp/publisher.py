"""The publishing half of a channel: where messages go, what is checked, and what is confirmed."""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from braidmq.engine.appending import Published
from braidmq.engine.errors import TopicFull
from braidmq.engine.routing.errors import ExchangeNotFound, InternalExchange
from braidmq.engine.routing.exchanges import wire_name
from braidmq.engine.topics import Topic
from braidmq.engine.transactions.publishing import Origin
from braidmq.gateways.amqp.confirms import Confirm, Confirms
from braidmq.gateways.amqp.consumers import Consumers
from braidmq.gateways.amqp.errors import access_refused, no_exchange, precondition_failed
from braidmq.gateways.amqp.output import ChannelSender
from braidmq.gateways.amqp.places import PLACE_BYTES, Places
from braidmq.gateways.amqp.routes import Destination
from braidmq.gateways.amqp.transactions import Numbered, TxMode
from braidmq.gateways.translation import amqp_parts
from braidmq.model.errors import BraidError, PartitionQuarantined, StorageError
from braidmq.model.limits import KEY_BYTES_MAX
from braidmq.record.batch import RecordBatch
from braidmq.record.copies import single
from braidmq.runtime.publish_batcher import can_batch
from braidmq.wire.amqp.constants import ReplyCode
from braidmq.wire.amqp.errors import ConnectionError_
from braidmq.wire.amqp.methods import BasicReturn, encode
from braidmq.wire.amqp.properties import decode_properties
from braidmq.wire.amqp.render import render_content
from braidmq.wire.amqp.scan import (
    FLAG_BAD_EXPIRATION,
    FLAG_BAD_MODE,
    FLAG_BAD_PLACE,
    FLAG_BAD_PROPERTIES,
    FLAG_BAD_TIME,
    FLAG_COPIES,
    FLAG_HEADERS,
    FLAG_IMMEDIATE,
    FLAG_MANDATORY,
    FLAG_PARTITION,
    FLAG_REPLY_TO,
    FLAG_TRANSIENT,
    FLAG_USER_ID,
    partition_in,
)
from braidmq.wire.envelopes import amqp_envelope, split_amqp

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection

logger = logging.getLogger(__name__)

NO_ROUTE = 312
DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
REPLY_KEY = DIRECT_REPLY_TO.encode() + b"."
ONE_BY_ONE = (
    FLAG_BAD_EXPIRATION
    | FLAG_BAD_MODE
    | FLAG_BAD_PLACE
    | FLAG_BAD_PROPERTIES
    | FLAG_BAD_TIME
    | FLAG_COPIES
    | FLAG_REPLY_TO
    | FLAG_USER_ID
)
"""Messages with one of these are looked at singly."""


class Publisher:
    def __init__(
        self,
        connection: "AmqpConnection",
        number: int,
        sender: ChannelSender,
        tx: TxMode,
        consumers: Consumers,
    ) -> None:
        """``consumers``: of the same channel, where answers to its requests go."""
        self._connection = connection
        self._node_loop = connection.node_loop
        self._vhost = connection.vhost
        self._number = number
        self._sender = sender
        self._tx = tx
        self._consumers = consumers
        self._quotas = connection.node_loop.view.state.quotas
        self._unconfirmed = connection.gateway.unconfirmed
        self.meter = connection.node_loop.usage.meter(connection.vhost, "amqp")
        self.confirms: Confirms | None = None
        self._wants_places = False
        self.numbered: Numbered | None = None
        """Who publishes, if that is a producer of ours or a transaction."""

    def select_confirms(self) -> None:
        """What is published from here on is confirmed."""
        if self.confirms is None:
            self.confirms = Confirms(self._number, self._sender.send)

    def tell_places(self) -> None:
        """From here on confirms are preceded by where the messages are."""
        self._wants_places = True

    def end(self) -> None:
        """The channel is closed: nobody is told of confirms, or waits for them."""
        self._connection.has_confirms(self)
        self.confirms = None

    def check_publish(self, exchange: str) -> None:
        """Before the body of a message comes: raises ChannelError for one that can't be taken."""
        self._connection.require_write(exchange)
        if not self._node_loop.view.router(self._vhost).has_exchange(exchange):
            raise no_exchange(exchange, self._vhost)

    def take_run(
        self,
        flags: int,
        exchange: bytes,
        key: bytes,
        batch: RecordBatch,
        destination: Destination | None,
    ) -> None:
        """A run that was just received: as much of it as the client may send. Raises RateExceeded
        for the rest."""
        rates = self._connection.rates
        throttle = None if rates.client is None else rates.client.throttle
        if throttle is None or throttle.admit(
            batch.count, batch.value_bytes, self._node_loop.now_ms()
        ):
            self.publish_run(flags, exchange, key, batch, destination)
            return
        taken = rates.publish(batch.count, batch.value_bytes)
        if taken == batch.count:
            self.publish_run(flags, exchange, key, batch, destination)
            return
        for index in range(taken):
            one = single(batch, index)
            if destination is None:
                self.publish_run(flags, exchange, key, one)
            else:
                self.publish_each(flags, one)
        assert rates.client is not None
        raise rates.client.too_fast()

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
        if self._connection.routes.are_current() and not destination.is_gone():
            generation = self._connection.accounts.generation
            if destination.allowed_at != generation:
                self._connection.require_write(exchange.decode())
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
        target = self._connection.gateway.replies.find(key)
        if flags & FLAG_MANDATORY:
            # No queue took it, delivered or not: RabbitMQ returns it all the same.
            self.give_back(batch, exchange, key)
        if target is not None and target.reply_tag is not None:
            for index in range(batch.count):
                record = batch.record(index)
                raw = amqp_parts(record.envelope)[2]
                target.send_reply(exchange, key, raw, record.value or b"")
        if self.confirms is not None:
            self._confirmed(self.confirms.expect(batch.count, batch.count), None)

    def _publish_checked(self, flags: int, exchange: bytes, key: bytes, batch: RecordBatch) -> None:
        properties = decode_properties(amqp_parts(batch.record(0).envelope)[2])
        if flags & FLAG_BAD_EXPIRATION:
            raise precondition_failed(
                f"invalid expiration '{properties.expiration}': {_reason(properties.expiration)}"
            )
        if flags & FLAG_BAD_TIME:
            raise precondition_failed(
                "invalid time: x-delay and x-deliver-at are integers, in milliseconds, and a"
                " message has at most one of them"
            )
        if flags & FLAG_BAD_MODE:
            raise precondition_failed(
                f"invalid message: {{delivery_mode_unknown,{properties.delivery_mode}}}"
            )
        if flags & FLAG_BAD_PLACE:
            raise precondition_failed(_wrong_place(properties.headers or {}))
        if properties.user_id is not None and properties.user_id != self._connection.user:
            raise precondition_failed(
                f"user_id property set to '{properties.user_id}' but authenticated user was "
                f"'{self._connection.user}'"
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
            if self._consumers.reply_tag is None:
                raise precondition_failed("fast reply consumer does not exist")
            address = self._connection.gateway.replies.address(self._consumers)
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
        router = self._node_loop.view.router(self._vhost)
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
        self._connection.require_write(name)
        if keys is None and headers is None:
            topics = self._route_by_key(name, exchange, key)
        else:
            topics = self._route(name, keys or [key], headers)
        self._publish_topics(flags, exchange, key, batch, topics)

    def _publish_topics(
        self, flags: int, exchange: bytes, key: bytes, batch: RecordBatch, topics: list[Topic]
    ) -> None:
        if self._tx.buffered is not None:
            self._tx.add((flags, exchange, key, batch, topics))
            return
        if self.numbered is not None:
            origin = self.numbered.take(batch.count)
            self.publish_to(flags, exchange, key, batch, topics, origin)
            return
        # What may be refused is told to who sent it: it is not gathered.
        anywhere = flags < FLAG_PARTITION and not self._quotas.limits_storage
        if len(topics) == 1 and anywhere and can_batch(topics[0], batch):
            confirming, size = None if self.confirms is None else self, batch.size
            self.meter.took(batch.count, batch.value_bytes)
            self._node_loop.publish_batched(
                topics[0], not flags & FLAG_TRANSIENT, batch, confirming
            )
            self._published(size)
            return
        self.publish_to(flags, exchange, key, batch, topics)

    def _route_by_key(self, name: str, exchange: bytes, key: bytes) -> list[Topic]:
        """As ``_route``, and the scanner is told for the next time."""
        topics = self._route(name, [key], None)
        if topics and not self._needs_headers(exchange):
            self._connection.routes.learn(exchange, key, topics)
        return topics

    # --- as the batcher knows a publisher ---

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

    @property
    def wants_places(self) -> bool:
        return self._wants_places

    def placed(self, ticket: object, topic: Topic, offset: int) -> None:
        assert isinstance(ticket, Confirm)
        ticket.placed.append((0, 0, topic.name, 0, offset))

    # --- to topics, and back ---

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
        count, size, value_bytes = batch.count, batch.size, batch.value_bytes
        published = Published(None, count)
        topics = [topic for topic in topics if not topic.deleted]
        places: Places | None = None
        if topics:
            if self._wants_places:
                sequence = -1 if origin is None else origin.sequence
                places = Places(topics, batch, partition_in(flags), sequence)
            try:
                published = self._node_loop.engine().publishing.fan_out(
                    topics,
                    batch,
                    now_ms=self._node_loop.now_ms(),
                    durable=not flags & FLAG_TRANSIENT,
                    origin=origin,
                    partition=partition_in(flags),
                )
            except TopicFull:
                if origin is not None:
                    raise
                published = Published(None, 0)
            except PartitionQuarantined:
                if origin is not None or self.confirms is None:
                    raise
                published = Published(None, 0)
        if published.accepted == count:
            self.meter.took(count, value_bytes)
        elif published.accepted:
            self.meter.took(published.accepted, batch.value_bytes_between(0, published.accepted))
        confirm = None
        if self.confirms is not None:
            confirm = self.confirms.expect(count, published.accepted)
            if places is not None and published.accepted == count:
                confirm.placed = places.found()
                size += PLACE_BYTES * len(confirm.placed)
        self._published(size)
        if confirm is not None:
            self._node_loop.when_durable(
                published.lsn, lambda failure: self._confirmed(confirm, failure)
            )

    def _published(self, size: int) -> None:
        """Publishers that are too far ahead have to wait."""
        self._connection.published()
        if self.confirms is not None:
            self.confirms.weigh(size)
            if self.confirms.is_behind(self._unconfirmed):
                self._connection.wait_for_confirms(self)

    def _route(
        self,
        exchange: str,
        keys: list[bytes],
        headers: Callable[[], Mapping[str, Any]] | None,
    ) -> list[Topic]:
        view = self._node_loop.view
        router = view.router(self._vhost)
        names: dict[str, None] = {}
        for key in keys:
            try:
                route = router.resolve(exchange, key, headers, from_client=True)
            except ExchangeNotFound:
                raise no_exchange(exchange, self._vhost) from None
            except InternalExchange:
                raise access_refused(
                    f"cannot publish to internal exchange '{exchange}' in vhost '{self._vhost}'"
                ) from None
            names |= dict.fromkeys(route.topics)
        found = (view.state.topics.get((self._vhost, name)) for name in names)
        return [topic for topic in found if topic is not None]

    def give_back(self, batch: RecordBatch, exchange: bytes, key: bytes) -> None:
        """basic.return: no queue gets these."""
        method = encode(BasicReturn(NO_ROUTE, "NO_ROUTE", exchange.decode(), key.decode()))
        for index in range(batch.count):
            record = batch.record(index)
            raw = amqp_parts(record.envelope)[2]
            self._sender.send(
                render_content(
                    self._number, method, raw, record.value or b"", self._connection.frame_max
                )
            )

    def _confirmed(self, confirm: Confirm, failure: StorageError | None) -> None:
        if self.confirms is not None:
            self.confirms.settle(confirm, failure)
            if self.confirms.has_caught_up(self._unconfirmed):
                self._connection.has_confirms(self)


def _wrong_place(headers: Mapping[str, Any]) -> str:
    key = headers.get("x-key", "")
    if not isinstance(key, str | bytes):
        return f"invalid x-key {key!r}: a key is text or bytes"
    if len(key.encode() if isinstance(key, str) else key) > KEY_BYTES_MAX:
        return f"invalid x-key: a key has at most {KEY_BYTES_MAX} bytes"
    return f"invalid x-partition {headers.get('x-partition')!r}: not a partition's number"


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
