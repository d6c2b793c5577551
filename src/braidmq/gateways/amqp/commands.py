"""What each method of a channel does. One short function a method."""

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from braidmq.engine.errors import ExclusiveConsumer
from braidmq.engine.routing import errors as routing
from braidmq.engine.routing.bindings import Destination
from braidmq.engine.routing.bindings import exchange as to_exchange
from braidmq.engine.routing.bindings import topic as to_topic
from braidmq.engine.routing.effects import ExchangeInfo
from braidmq.engine.routing.exchanges import wire_name
from braidmq.engine.topics import Credit, Mode, Topic
from braidmq.gateways.amqp import places, transactions, visibility
from braidmq.gateways.amqp.channel import Channel
from braidmq.gateways.amqp.consumers import AmqpConsumer
from braidmq.gateways.amqp.errors import (
    access_refused,
    no_exchange,
    no_queue,
    precondition_failed,
    resource_locked,
)
from braidmq.gateways.amqp.groups import NOTICES, group_subscription, is_assigned, join
from braidmq.gateways.amqp.queues import (
    SUBSCRIPTION,
    check_properties,
    describe_difference,
    is_quorum,
    mode_of,
    one_line,
    queue_type,
    require_equivalent,
    server_name,
    settings_of,
    storable,
    stream_start,
)
from braidmq.gateways.amqp.renewal import update_secret
from braidmq.gateways.amqp.replies import PREFIX as REPLY_TO
from braidmq.gateways.amqp.rights import METHODS
from braidmq.gateways.amqp.transactions import Buffered
from braidmq.logs import log_change
from braidmq.model.ids import PRIVATE_PREFIX, Lsn
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import ReplyCode
from braidmq.wire.amqp.errors import ChannelError, ConnectionError_

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection

UNLIMITED = 1 << 62
RESERVED = "amq."
OWN_PLACE = frozenset({"x-group", "x-stream-offset"})
"""Consumers with one of these have a place of their own in any topic, also one that is no queue."""
COMMITTED_AT_ONCE = 32
"""Publishes and answers of a transaction, beyond which it is committed in slices."""
RETRY_MS_MAX = 1 << 53
"""As in a topic's policy."""


class Commands:
    def __init__(self, connection: "AmqpConnection") -> None:
        self._connection = connection
        self._node_loop = connection.node_loop
        self._lsn_before = Lsn(0)
        """Of the last entry before the method that is run."""

    # --- which is which ---

    def run(self, channel: Channel, method: m.Method) -> None:
        handler = HANDLERS.get(type(method))
        if handler is None:
            raise ConnectionError_(ReplyCode.COMMAND_INVALID, "unimplemented method")
        self._lsn_before = self._node_loop.engine().store.journal.last_lsn
        handler(self, channel, method)

    def run_connection(self, method: m.Method) -> None:
        if isinstance(method, m.ConnectionUpdateSecret):
            update_secret(self._connection, method)
            return
        raise ConnectionError_(
            ReplyCode.CHANNEL_ERROR, "unexpected method in connection state running"
        )

    def _reply(self, channel: Channel, answer: m.Method, nowait: bool = False) -> None:
        """Once all that was done so far is on disk, also by others: who declares a queue that is
        just being made is told so when it is."""
        if not nowait:
            channel.reply(answer, self._node_loop.pending_lsn())

    def _reply_own(self, channel: Channel, answer: m.Method, nowait: bool) -> None:
        """Once what the method itself wrote is on disk, which mostly is nothing."""
        if not nowait:
            last_lsn = self._node_loop.view.store.journal.last_lsn
            channel.reply(answer, last_lsn if last_lsn > self._lsn_before else None)

    # --- exchanges ---

    def exchange_declare(self, channel: Channel, method: m.ExchangeDeclare) -> None:
        name = one_line(method.exchange)
        if not name:
            raise access_refused("operation not permitted on the default exchange")
        if method.passive:
            self._exchange(channel, name)
            self._reply(channel, m.ExchangeDeclareOk(), method.nowait)
            return
        self._connection.require_configure("exchange", name)
        arguments = dict(method.arguments)
        alternate = arguments.get("alternate-exchange")
        if self._is_declared(channel, name, method):
            self._adopt_alternate(channel, name, alternate)
            self._reply(channel, m.ExchangeDeclareOk(), method.nowait)
            return
        if alternate is not None and not isinstance(alternate, str):
            raise precondition_failed(
                f"invalid type '{wire_name(alternate)}' for arg 'alternate-exchange' in exchange "
                f"'{name}' in vhost '{channel.vhost}'"
            )
        if alternate is not None:
            self._connection.require_read(name, "exchange")
            self._connection.require_write(alternate)
        try:
            self._node_loop.engine().exchanges.declare(
                channel.vhost,
                name,
                method.type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=arguments,
                alternate_exchange=alternate,
                set_by=self._connection.maker,
            )
            log_change("amqp", "exchange.declare", name)
        except routing.UnknownKind:
            word = "unknown" if method.type else "invalid"
            raise ConnectionError_(
                ReplyCode.COMMAND_INVALID, f"{word} exchange type '{method.type}'"
            ) from None
        except routing.ReservedName:
            raise access_refused(
                f"exchange name '{name}' contains reserved prefix 'amq.*'"
            ) from None
        self._reply(channel, m.ExchangeDeclareOk(), method.nowait)

    def _adopt_alternate(self, channel: Channel, name: str, alternate: object) -> None:
        """Who declares an exchange again, and may, makes a disabled alternate hold again."""
        exchanges = self._node_loop.engine().exchanges
        info = exchanges.router(channel.vhost).exchange(name)
        if isinstance(alternate, str) and exchanges.is_denied(channel.vhost, info):
            exchanges.adopt(channel.vhost, info, self._connection.maker)

    def _exchange(self, channel: Channel, name: str) -> ExchangeInfo:
        try:
            return self._node_loop.view.router(channel.vhost).exchange(name)
        except routing.ExchangeNotFound:
            raise no_exchange(name, channel.vhost) from None

    def _is_declared(self, channel: Channel, name: str, method: m.ExchangeDeclare) -> bool:
        """Whether the exchange exists; then it must be as declared, in what RabbitMQ compares."""
        try:
            current = self._node_loop.view.router(channel.vhost).exchange(name)
        except routing.ExchangeNotFound:
            return False
        alternate = method.arguments.get("alternate-exchange")
        for what, received, is_now in (
            ("type", method.type, current.kind),
            ("durable", method.durable, current.durable),
            ("auto_delete", method.auto_delete, current.auto_delete),
            ("internal", method.internal, current.internal),
            ("alternate-exchange", alternate, current.alternate_exchange),
        ):
            if received != is_now:
                new, old = describe_difference(received, is_now)
                raise precondition_failed(
                    f"inequivalent arg '{what}' for exchange '{name}' in vhost '{channel.vhost}': "
                    f"received {new} but current is {old}"
                )
        return True

    def exchange_delete(self, channel: Channel, method: m.ExchangeDelete) -> None:
        name = method.exchange
        if not name:
            raise access_refused("operation not permitted on the default exchange")
        if name.startswith(RESERVED):
            raise access_refused(
                f"deletion of system exchange '{name}' in vhost '{channel.vhost}' not allowed"
            )
        self._connection.require_configure("exchange", name)
        try:
            self._node_loop.engine().exchanges.delete(
                channel.vhost, name, if_unused=method.if_unused
            )
            log_change("amqp", "exchange.delete", name)
        except routing.ExchangeInUse:
            raise precondition_failed(
                f"exchange '{name}' in vhost '{channel.vhost}' in use"
            ) from None
        except routing.ExchangeNotFound:
            pass  # as RabbitMQ: what is not there is deleted already
        self._reply(channel, m.ExchangeDeleteOk(), method.nowait)

    def exchange_bind(self, channel: Channel, method: m.ExchangeBind) -> None:
        self._bind_exchange(channel, method, bind=True)
        self._reply(channel, m.ExchangeBindOk(), method.nowait)

    def exchange_unbind(self, channel: Channel, method: m.ExchangeUnbind) -> None:
        self._bind_exchange(channel, method, bind=False)
        self._reply(channel, m.ExchangeUnbindOk(), method.nowait)

    def _bind_exchange(
        self, channel: Channel, method: m.ExchangeBind | m.ExchangeUnbind, *, bind: bool
    ) -> None:
        self._connection.require_write(method.destination)
        if not method.destination or not method.source:
            raise access_refused("operation not permitted on the default exchange")
        self._connection.require_read(method.source, "exchange")
        try:
            info = [self._exchange(channel, n) for n in (method.source, method.destination)][-1]
        except ChannelError:
            if bind:
                raise
            return  # what is not there is not bound
        destination = to_exchange(method.destination)
        self._change_binding(
            channel,
            method.source,
            destination,
            method.routing_key,
            method.arguments,
            bind,
            info.durable,
        )

    # --- queues ---

    def queue_declare(self, channel: Channel, method: m.QueueDeclare) -> None:
        name = one_line(method.queue)
        engine = self._node_loop.engine()
        if method.passive:
            if self._is_reply_address(channel, name):
                self._reply(channel, m.QueueDeclareOk(name, 0, 1), method.nowait)
                return
            if not name:
                raise no_queue(name, channel.vhost)
            topic = self._queue(channel, name)
            channel.last_queue = topic.name
            self._declared(channel, topic, method.nowait)
            return
        existing = engine.state.topics.get((channel.vhost, name)) if name else None
        if existing is None and name.startswith(RESERVED):
            raise access_refused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        if existing is not None:
            self._connection.require_configure("queue", name)
            self._require_unlocked(channel, existing, method.exclusive)
            require_equivalent(
                existing,
                durable=method.durable,
                auto_delete=method.auto_delete,
                arguments=method.arguments,
            )
            engine.references.adopt(existing, self._connection.maker)
            channel.last_queue = name
            if SUBSCRIPTION not in existing.subscriptions:
                # It was made over another protocol: it is a queue from now on.
                self._subscribe(existing, method)
            self._declared(channel, existing, method.nowait)
            return
        name = name or server_name()
        self._connection.require_configure("queue", name)
        topic = self._create(channel, name, method)
        channel.last_queue = name
        self._declared(channel, topic, method.nowait)

    def _create(self, channel: Channel, name: str, method: m.QueueDeclare) -> Topic:
        engine, now_ms = self._node_loop.engine(), self._node_loop.now_ms()
        arguments = dict(method.arguments)
        settings = settings_of(arguments, name, channel.vhost)
        dead_letters = arguments.get("x-dead-letter-exchange")
        if dead_letters is not None:
            self._connection.require_read(name)
            self._connection.require_write(str(dead_letters))
        check_properties(
            arguments,
            name,
            channel.vhost,
            durable=method.durable,
            exclusive=method.exclusive,
            auto_delete=method.auto_delete,
        )
        self._connection.gateway.require_queue_room(channel.vhost, queue_type(arguments))
        durable = method.durable and not method.exclusive
        topic = engine.topics.create(
            channel.vhost,
            name,
            settings,
            now_ms=now_ms,
            durable=durable,
            kind=queue_type(arguments),
            attributes={
                "amqp": {
                    "durable": method.durable,
                    "auto_delete": method.auto_delete,
                    "exclusive": method.exclusive,
                    "arguments": storable(arguments),
                }
            },
            set_by=self._connection.maker,
        )
        self._subscribe(topic, method)
        if method.exclusive:
            self._connection.gateway.registry.own(self._connection, name)
        log_change("amqp", "queue.declare", name)
        return topic

    def _subscribe(self, topic: Topic, method: m.QueueDeclare) -> None:
        self._node_loop.engine().subscriptions.subscribe(
            topic,
            SUBSCRIPTION,
            now_ms=self._node_loop.now_ms(),
            mode=mode_of(method.arguments),
            durable=topic.durable,
        )

    def _declared(self, channel: Channel, topic: Topic, nowait: bool) -> None:
        subscription = topic.subscriptions[SUBSCRIPTION]
        topic.last_used_ms = self._node_loop.now_ms()
        self._reply(
            channel,
            m.QueueDeclareOk(topic.name, subscription.ready, len(subscription.consumers)),
            nowait,
        )

    def _queue(self, channel: Channel, name: str) -> Topic:
        name = self._queue_name(channel, name)
        topic = self._topic(channel, name)
        if SUBSCRIPTION not in topic.subscriptions:
            raise no_queue(name, channel.vhost)
        return topic

    def _topic(self, channel: Channel, name: str) -> Topic:
        """Any topic, an AMQP queue or not."""
        topic = self._node_loop.view.state.topics.get((channel.vhost, name))
        if topic is None or name.startswith(PRIVATE_PREFIX):
            raise no_queue(name, channel.vhost)
        owner = self._connection.gateway.registry.owner(channel.vhost, name)
        if owner is not None and owner is not self._connection:
            raise resource_locked(name, channel.vhost)
        return topic

    def _queue_name(self, channel: Channel, name: str) -> str:
        """An empty one is the last this channel declared."""
        if not name:
            name = channel.last_queue
            if not name:
                raise ChannelError(ReplyCode.NOT_FOUND, "no previously declared queue")
        return name

    def _readable_queue(self, channel: Channel, name: str) -> Topic:
        # As RabbitMQ: who may not read a queue does not learn whether it is there.
        self._connection.require_read(self._queue_name(channel, name))
        return self._queue(channel, name)

    def _require_unlocked(self, channel: Channel, topic: Topic, exclusive: bool) -> None:
        owner = self._connection.gateway.registry.owner(channel.vhost, topic.name)
        if (owner is not None and owner is not self._connection) or (
            (owner is not None) != exclusive
        ):
            raise resource_locked(topic.name, channel.vhost)

    def queue_bind(self, channel: Channel, method: m.QueueBind) -> None:
        self._bind_queue(channel, method, bind=True)
        self._reply(channel, m.QueueBindOk(), method.nowait)

    def queue_unbind(self, channel: Channel, method: m.QueueUnbind) -> None:
        self._bind_queue(channel, method, bind=False)
        self._reply(channel, m.QueueUnbindOk())

    def _bind_queue(
        self, channel: Channel, method: m.QueueBind | m.QueueUnbind, *, bind: bool
    ) -> None:
        self._connection.require_write(self._queue_name(channel, method.queue), "queue")
        if not method.exchange:
            raise access_refused("operation not permitted on the default exchange")
        self._connection.require_read(method.exchange, "exchange")
        try:
            self._exchange(channel, method.exchange)
            topic = self._queue(channel, method.queue)
        except ChannelError as error:
            if bind or error.reply_code != ReplyCode.NOT_FOUND or not method.queue:
                raise
            return  # what is not there is not bound
        key = method.routing_key
        if not key and not method.queue:
            key = topic.name
        self._change_binding(
            channel,
            method.exchange,
            to_topic(topic.name),
            key,
            method.arguments,
            bind,
            topic.durable,
        )

    def _change_binding(
        self,
        channel: Channel,
        source: str,
        destination: Destination,
        key: str,
        arguments: dict[str, Any],
        bind: bool,
        durable: bool,
    ) -> None:
        exchanges = self._node_loop.engine().exchanges
        router = self._node_loop.view.router(channel.vhost)
        before = router.generation
        try:
            if bind:
                exchanges.bind(
                    channel.vhost,
                    source,
                    destination,
                    key.encode(),
                    dict(arguments),
                    durable=durable,
                    bound_by=self._connection.maker,
                )
            else:
                exchanges.unbind(channel.vhost, source, destination, key.encode(), dict(arguments))
        except routing.ExchangeNotFound:
            raise no_exchange(source, channel.vhost) from None
        if router.generation != before:
            verb = "bind" if bind else "unbind"
            log_change("amqp", verb, destination.name, source=source, key=key)

    def queue_purge(self, channel: Channel, method: m.QueuePurge) -> None:
        topic = self._readable_queue(channel, method.queue)
        count = self._node_loop.engine().retention.purge(topic)
        log_change("amqp", "queue.purge", topic.name, messages=count)
        self._reply(channel, m.QueuePurgeOk(count), method.nowait)

    def queue_delete(self, channel: Channel, method: m.QueueDelete) -> None:
        self._connection.require_configure("queue", self._queue_name(channel, method.queue))
        try:
            topic = self._queue(channel, method.queue)
        except ChannelError as error:
            if error.reply_code != ReplyCode.NOT_FOUND or not method.queue:
                raise
            self._reply(channel, m.QueueDeleteOk(0), method.nowait)
            return
        subscription = topic.subscriptions[SUBSCRIPTION]
        if is_quorum(topic) and (method.if_unused or method.if_empty):
            flag = "if-unused" if method.if_unused else "if-empty"
            raise ConnectionError_(
                ReplyCode.NOT_IMPLEMENTED,
                f"cannot delete queue '{topic.name}' in vhost '{channel.vhost}'. queue.delete "
                f"operations with {flag} flag set are not supported by quorum queues",
            )
        if method.if_empty and subscription.ready:
            raise precondition_failed(f"queue '{topic.name}' in vhost '{channel.vhost}' not empty")
        if method.if_unused and subscription.consumers:
            raise precondition_failed(f"queue '{topic.name}' in vhost '{channel.vhost}' in use")
        count = subscription.ready
        self._connection.gateway.registry.disown(channel.vhost, topic.name)
        self._node_loop.engine().topics.delete(topic)
        log_change("amqp", "queue.delete", topic.name, messages=count)
        self._reply(channel, m.QueueDeleteOk(count), method.nowait)

    # --- consuming ---

    def basic_qos(self, channel: Channel, method: m.BasicQos) -> None:
        if method.prefetch_size:
            raise ConnectionError_(
                ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})"
            )
        limit = method.prefetch_count or UNLIMITED
        if method.global_qos:
            channel.consumers.limit_all(limit)
        else:
            channel.consumers.prefetch = method.prefetch_count
            # As in RabbitMQ, it lifts the channel's own limit.
            channel.consumers.limit_all(UNLIMITED)
        channel.reply(m.BasicQosOk())

    def basic_consume(self, channel: Channel, method: m.BasicConsume) -> None:
        tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        if channel.consumers.has_tag(tag):
            raise ConnectionError_(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        if method.queue == REPLY_TO:
            self._consume_replies(channel, method, tag)
            return
        if method.queue == NOTICES:
            self._consume_notices(channel, method, tag)
            return
        if OWN_PLACE.isdisjoint(method.arguments):
            topic = self._readable_queue(channel, method.queue)
        else:
            name = self._queue_name(channel, method.queue)
            self._connection.require_read(name)
            topic = self._topic(channel, name)
        by_offset = "x-stream-offset" in method.arguments and "x-group" not in method.arguments
        facts = method.arguments.get("x-delivery-facts", False)
        if not isinstance(facts, bool):
            raise precondition_failed(
                f"invalid arg 'x-delivery-facts' for queue '{topic.name}' in vhost "
                f"'{channel.vhost}': \"expected boolean, got {wire_name(facts)}\""
            )
        target = AmqpConsumer(channel.consumers, tag, topic.name, method.no_ack, by_offset, facts)
        visibility_ms = visibility.asked(channel, method, target)
        priority = method.arguments.get("x-priority", 0)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise precondition_failed(
                f"invalid arg 'x-priority' for queue '{topic.name}' in vhost '{channel.vhost}': "
                f'"expected integer, got {wire_name(priority)}"'
            )
        if is_quorum(topic) and channel.consumers.credit.limit != UNLIMITED:
            raise ConnectionError_(
                ReplyCode.NOT_IMPLEMENTED,
                f"queue '{topic.name}' in vhost '{channel.vhost}' does not support global qos",
            )
        self._connection.rates.subscribe()
        if is_assigned(topic, method.arguments):
            self._join_group(channel, topic, method, target)
        else:
            self._attach(channel, topic, method, target, priority)
        target.consumer.visibility_ms = visibility_ms
        channel.consumers.by_tag[tag] = target
        if self._connection.write_paused:
            target.consumer.paused = True
        # Before any delivery: the client learns the tag first. A group made for it is on disk.
        self._reply_own(channel, m.BasicConsumeOk(tag), method.nowait)

    def _attach(
        self,
        channel: Channel,
        topic: Topic,
        method: m.BasicConsume,
        target: AmqpConsumer,
        priority: int,
    ) -> None:
        subscription = self._subscription_for(channel, topic, method)
        if method.exclusive and subscription.mode is Mode.SINGLE_ACTIVE:
            raise _in_exclusive_use(topic)
        self._node_loop.view.state.quotas.require(channel.vhost, "max_consumers")
        try:
            target.consumer = self._node_loop.engine().consumers.attach(
                subscription,
                now_ms=self._node_loop.now_ms(),
                credits=_credits(channel),
                priority=priority,
                auto_ack=method.no_ack,
                exclusive=method.exclusive,
                visibility_ms=0,
                receiver=target,
            )
        except ExclusiveConsumer:
            raise _in_exclusive_use(topic) from None

    def _join_group(
        self, channel: Channel, topic: Topic, method: m.BasicConsume, target: AmqpConsumer
    ) -> None:
        if method.exclusive:
            raise precondition_failed("a member of a group can't be its only consumer: exclusive")
        target.consumer, target.member = join(
            self._node_loop.engine(),
            topic,
            method.arguments,
            self._node_loop.now_ms(),
            owner=self._connection.user,
            receiver=target,
            credits=_credits(channel),
            auto_ack=method.no_ack,
        )

    def _subscription_for(self, channel: Channel, topic: Topic, method: m.BasicConsume) -> Any:
        """Queues have one subscription; a stream is read by each consumer from where it likes, and
        any topic by groups."""
        if "x-group" in method.arguments:
            return group_subscription(
                self._node_loop.engine(), topic, method.arguments, self._node_loop.now_ms()
            )
        if "x-stream-offset" not in method.arguments:
            return topic.subscriptions[SUBSCRIPTION]
        where = f"invalid arg 'x-stream-offset' for queue '{topic.name}' in vhost '{channel.vhost}'"
        if topic.policy.retention.until_acked:
            raise precondition_failed(f"{where} of queue type rabbit_{topic.kind}_queue")
        start = stream_start(topic, method.arguments["x-stream-offset"], self._node_loop.now_ms())
        if start is None:
            raise precondition_failed(where)
        return self._node_loop.engine().subscriptions.subscribe(
            topic,
            f"{SUBSCRIPTION}.{secrets.token_hex(8)}",
            now_ms=self._node_loop.now_ms(),
            mode=Mode.SHARED,
            start=start,
            durable=False,
        )

    def _consume_replies(self, channel: Channel, method: m.BasicConsume, tag: str) -> None:
        if not method.no_ack:
            raise precondition_failed("reply consumer cannot acknowledge")
        if channel.consumers.reply_tag is not None:
            raise precondition_failed("reply consumer already set")
        channel.consumers.reply_tag = tag
        self._reply_own(channel, m.BasicConsumeOk(tag), method.nowait)

    def _consume_notices(self, channel: Channel, method: m.BasicConsume, tag: str) -> None:
        if not method.no_ack:
            raise precondition_failed("notices are not acknowledged: consume them with no-ack")
        if channel.consumers.notice_tag is not None:
            raise precondition_failed("this channel has a consumer of notices already")
        channel.consumers.notice_tag = tag
        self._reply_own(channel, m.BasicConsumeOk(tag), method.nowait)
        channel.consumers.notify_of_all()

    def basic_cancel(self, channel: Channel, method: m.BasicCancel) -> None:
        if method.consumer_tag == channel.consumers.reply_tag:
            channel.consumers.reply_tag = None
        if method.consumer_tag == channel.consumers.notice_tag:
            channel.consumers.notice_tag = None
        channel.consumers.cancel(method.consumer_tag)
        # A queue may have gone with its last consumer.
        self._reply_own(channel, m.BasicCancelOk(method.consumer_tag), method.nowait)

    def basic_get(self, channel: Channel, method: m.BasicGet) -> None:
        topic = self._readable_queue(channel, method.queue)
        topic.last_used_ms = self._node_loop.now_ms()
        data = channel.consumers.get(topic, method.no_ack)
        if data is None:
            channel.reply(m.BasicGetEmpty())
        else:
            channel.send(data)

    def basic_ack(self, channel: Channel, method: m.BasicAck) -> None:
        channel.consumers.ack(method.delivery_tag, method.delivery_tag, method.multiple)

    def basic_nack(self, channel: Channel, method: m.BasicNack) -> None:
        channel.consumers.refuse(method.delivery_tag, method.multiple, method.requeue)

    def basic_reject(self, channel: Channel, method: m.BasicReject) -> None:
        channel.consumers.refuse(method.delivery_tag, False, method.requeue)

    def basic_retry(self, channel: Channel, method: m.BasicRetry) -> None:
        delay_ms = min(method.delay_ms, RETRY_MS_MAX) if method.delayed else None
        channel.consumers.retry(method.first_tag, method.last_tag, delay_ms)

    def basic_extend(self, channel: Channel, method: m.BasicExtend) -> None:
        visibility.extend(channel, method)

    def basic_fail(self, channel: Channel, method: m.BasicFail) -> None:
        channel.consumers.fail(method, min(method.delay_ms, RETRY_MS_MAX))

    def basic_recover(self, channel: Channel, method: m.BasicRecover) -> None:
        self._recover(channel, method.requeue)
        channel.reply(m.BasicRecoverOk())

    def basic_recover_async(self, channel: Channel, method: m.BasicRecoverAsync) -> None:
        self._recover(channel, method.requeue)

    def _recover(self, channel: Channel, requeue: bool) -> None:
        if not requeue:
            raise ConnectionError_(ReplyCode.NOT_IMPLEMENTED, "requeue=false")
        channel.consumers.recover()

    # --- modes ---

    def confirm_select(self, channel: Channel, method: m.ConfirmSelect) -> None:
        if channel.tx.buffered is not None:
            raise precondition_failed("cannot switch from tx to confirm mode")
        channel.publisher.select_confirms()
        if not method.nowait:
            channel.reply(m.ConfirmSelectOk())

    def tx_select(self, channel: Channel, method: m.TxSelect) -> None:
        if channel.publisher.confirms is not None:
            raise precondition_failed("cannot switch from confirm to tx mode")
        if channel.publisher.numbered is not None:
            raise precondition_failed("the channel publishes for a producer or a transaction")
        visibility.require_none(channel)
        if channel.tx.buffered is None:
            channel.tx.restart()
        channel.reply(m.TxSelectOk())

    def tx_commit(self, channel: Channel, method: m.TxCommit) -> None:
        buffered = self._buffered(channel)
        steps = self._committing(channel, buffered)
        if len(buffered) > COMMITTED_AT_ONCE:
            self._connection.input.do(steps)
        else:
            for _ in steps:
                pass

    def _committing(self, channel: Channel, buffered: Buffered) -> Iterator[None]:
        yield from transactions.committing(channel, buffered)
        # Not before: a channel that is closed on the way gives back what was answered on it.
        channel.tx.restart()
        self._reply(channel, m.TxCommitOk())

    def tx_rollback(self, channel: Channel, method: m.TxRollback) -> None:
        buffered = self._buffered(channel)
        channel.consumers.unacked.put_back(buffered.answered())
        channel.tx.restart()
        channel.reply(m.TxRollbackOk())

    def _buffered(self, channel: Channel) -> Buffered:
        if channel.tx.buffered is None:
            raise precondition_failed("channel is not transactional")
        return channel.tx.buffered

    def tx_begin(self, channel: Channel, method: m.TxBegin) -> None:
        # Not kept yet: if it is lost with the node, whoever goes on with it is told so.
        begun = transactions.begin(channel, method)
        channel.reply(m.TxBeginOk(begun.begun.name, begun.number))

    def tx_ack(self, channel: Channel, method: m.TxAck) -> None:
        transactions.acknowledge(channel, method)

    def tx_return(self, channel: Channel, method: m.TxReturn) -> None:
        channel.consumers.answer(
            "requeue", channel.consumers.unacked.take_within(method.first_tag, method.last_tag)
        )

    def tx_end(self, channel: Channel, method: m.TxEnd) -> None:
        transactions.end(channel, method)
        self._reply(channel, m.TxCommitOk() if method.commit else m.TxRollbackOk())

    def tx_heartbeat(self, channel: Channel, method: m.TxHeartbeat) -> None:
        transactions.heartbeat(channel)

    def tx_producer(self, channel: Channel, method: m.TxProducer) -> None:
        producer = transactions.attach_producer(channel, method)
        self._reply(channel, m.TxProducerOk(producer.id, producer.epoch))

    def channel_flow(self, channel: Channel, method: m.ChannelFlow) -> None:
        if not method.active:
            raise ConnectionError_(ReplyCode.NOT_IMPLEMENTED, "active=false")
        channel.reply(m.ChannelFlowOk(True))

    def access_request(self, channel: Channel, method: m.AccessRequest) -> None:
        """Of AMQP 0-8: RabbitMQ grants it to whoever still asks."""
        channel.reply(m.AccessRequestOk(1))

    def _is_reply_address(self, channel: Channel, name: str) -> bool:
        if name == REPLY_TO:
            return True
        return self._connection.gateway.replies.find(name.encode()) is not None


HANDLERS: dict[type[m.Method], Callable[..., None]] = {
    m.ExchangeDeclare: Commands.exchange_declare,
    m.ExchangeDelete: Commands.exchange_delete,
    m.ExchangeBind: Commands.exchange_bind,
    m.ExchangeUnbind: Commands.exchange_unbind,
    m.QueueDeclare: Commands.queue_declare,
    m.QueueBind: Commands.queue_bind,
    m.QueueUnbind: Commands.queue_unbind,
    m.QueuePurge: Commands.queue_purge,
    m.QueueDelete: Commands.queue_delete,
    m.BasicQos: Commands.basic_qos,
    m.BasicConsume: Commands.basic_consume,
    m.BasicCancel: Commands.basic_cancel,
    m.BasicGet: Commands.basic_get,
    m.BasicAck: Commands.basic_ack,
    m.BasicNack: Commands.basic_nack,
    m.BasicReject: Commands.basic_reject,
    m.BasicRecover: Commands.basic_recover,
    m.BasicRetry: Commands.basic_retry,
    m.BasicExtend: Commands.basic_extend,
    m.BasicFail: Commands.basic_fail,
    m.BasicRecoverAsync: Commands.basic_recover_async,
    m.ConfirmSelect: Commands.confirm_select,
    m.ConfirmPlaces: places.ask,
    m.TxSelect: Commands.tx_select,
    m.TxCommit: Commands.tx_commit,
    m.TxRollback: Commands.tx_rollback,
    m.TxBegin: Commands.tx_begin,
    m.TxAck: Commands.tx_ack,
    m.TxReturn: Commands.tx_return,
    m.TxEnd: Commands.tx_end,
    m.TxHeartbeat: Commands.tx_heartbeat,
    m.TxProducer: Commands.tx_producer,
    m.ChannelFlow: Commands.channel_flow,
    m.AccessRequest: Commands.access_request,
}


assert HANDLERS.keys() <= METHODS, "a method without a right"


def _credits(channel: Channel) -> list[Credit]:
    return [Credit(channel.consumers.prefetch or UNLIMITED), channel.consumers.credit]


def _in_exclusive_use(topic: Topic) -> ChannelError:
    return access_refused(f"queue '{topic.name}' in vhost '{topic.namespace}' in exclusive use")
