"""The consuming half of a channel: consumers, what they were given, and what is said to that."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from braidmq.engine.topics import Consumer, Credit, Delivery, Topic
from braidmq.gateways.amqp.errors import precondition_failed, translate
from braidmq.gateways.amqp.output import ChannelSender
from braidmq.gateways.amqp.queues import SUBSCRIPTION, is_quorum
from braidmq.gateways.amqp.transactions import TxMode
from braidmq.gateways.amqp.unacked import Unacked, UnackedRun
from braidmq.gateways.translation import amqp_parts
from braidmq.model.errors import PartitionQuarantined
from braidmq.runtime.sliced_work import Steps
from braidmq.wire.amqp.errors import ChannelError
from braidmq.wire.amqp.methods import BasicCancel, BasicDeliver, BasicGetOk, encode, method_frame
from braidmq.wire.amqp.render import all_amqp, render_content, render_deliveries

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection

logger = logging.getLogger(__name__)


class AmqpConsumer:
    """A consumer tag: takes deliveries from the engine to the socket."""

    __slots__ = ("by_offset", "consumer", "consumers", "no_ack", "queue", "tag", "tag_bytes")
    __deletable__ = ("consumer",)

    def __init__(
        self, consumers: "Consumers", tag: str, queue: str, no_ack: bool, by_offset: bool = False
    ) -> None:
        self.consumers = consumers
        self.tag = tag
        self.tag_bytes = tag.encode()
        self.queue = queue
        self.no_ack = no_ack
        self.by_offset = by_offset
        """It reads from where it likes, with a subscription of its own, and is told offsets."""
        self.consumer: Consumer

    def deliver(self, delivery: Delivery) -> None:
        self.consumers.deliver(self, delivery)


class Consumers:
    def __init__(
        self, connection: "AmqpConnection", number: int, sender: ChannelSender, tx: TxMode
    ) -> None:
        self._connection = connection
        self._node_loop = connection.node_loop
        self._sender = sender
        self._tx = tx
        self.number = number
        self.by_tag: dict[str, AmqpConsumer] = {}
        self.unacked = Unacked()
        self.prefetch = 0
        self.credit = Credit()
        """Shared by the consumers of the channel; limited by basic.qos with global."""
        self.reply_tag: str | None = None
        """Of the one that gets answers to a direct reply-to address."""
        self.reply_address: str | None = None
        self._next_tag = 1
        self._getters: dict[str, Consumer] = {}

    @property
    def is_closed(self) -> bool:
        return self._sender.is_closed

    def send_reply(self, exchange: bytes, key: bytes, raw: bytes, body: bytes) -> None:
        """An answer for the consumer of replies."""
        assert self.reply_tag is not None
        method = BasicDeliver(
            self.reply_tag, self.next_tag(), False, exchange.decode(), key.decode()
        )
        frame_max = self._connection.frame_max
        self._sender.send(render_content(self.number, encode(method), raw, body, frame_max))

    def next_tag(self) -> int:
        self._next_tag += 1
        return self._next_tag - 1

    # --- delivering ---

    def deliver(self, target: AmqpConsumer, delivery: Delivery) -> None:
        first_tag = self._next_tag
        count = delivery.stop_index - delivery.first_index
        self._next_tag += count
        if not target.no_ack:
            self.unacked.add(
                UnackedRun(
                    first_tag,
                    first_tag + count - 1,
                    delivery.consumer,
                    delivery.view,
                    delivery.start_offset,
                    self._node_loop.now_ms(),
                )
            )
        frame_max = self._connection.frame_max
        if not (target.by_offset or self._is_annotated(delivery)) and all_amqp(
            delivery.batch, delivery.first_index, delivery.stop_index
        ):
            self._sender.send(
                render_deliveries(
                    delivery.batch,
                    delivery.first_index,
                    delivery.stop_index,
                    self.number,
                    target.tag_bytes,
                    first_tag,
                    delivery.attempts > 1,
                    frame_max,
                )
            )
            return
        for index in range(delivery.first_index, delivery.stop_index):
            exchange, key, raw, body = self._parts(delivery, index, told_offset=target.by_offset)
            method = BasicDeliver(
                target.tag,
                first_tag + index - delivery.first_index,
                delivery.attempts > 1,
                exchange,
                key,
            )
            self._sender.send(render_content(self.number, encode(method), raw, body, frame_max))

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
        engine, now_ms = self._node_loop.engine(), self._node_loop.now_ms()
        subscription = topic.subscriptions[SUBSCRIPTION]
        getter = self._getters.get(topic.name)
        if getter is None or getter.subscription is not subscription:
            getter = self._getters[topic.name] = engine.consumers.attach(
                subscription, now_ms=now_ms, credits=[Credit()], visibility_ms=0, passive=True
            )
        getter.auto_ack = no_ack
        found = engine.dispatching.pull(getter, 1, now_ms=now_ms)
        if not found:
            return None
        delivery = found[0]
        tag = self._next_tag
        self._next_tag += 1
        if not no_ack:
            run = UnackedRun(tag, tag, getter, delivery.view, delivery.start_offset, now_ms)
            self.unacked.add(run)
        exchange, key, raw, body = self._parts(delivery, delivery.first_index, got=True)
        method = BasicGetOk(tag, delivery.attempts > 1, exchange, key, subscription.ready)
        return render_content(self.number, encode(method), raw, body, self._connection.frame_max)

    # --- answers ---

    def ack(self, first: int, last: int, multiple: bool) -> None:
        runs = self._take(first, last, multiple)
        if self._tx.buffered is not None:
            self._tx.buffered.answers.append(("ack", runs))
            return
        self.answer("ack", runs)

    def refuse(self, tag: int, multiple: bool, requeue: bool) -> None:
        """basic.nack and basic.reject."""
        verb = "requeue" if requeue else "reject"
        runs = self._take(tag, tag, multiple)
        if self._tx.buffered is not None:
            self._tx.buffered.answers.append((verb, runs))
            return
        self.answer(verb, runs)

    def retry(self, first: int, last: int, delay_ms: int | None) -> None:
        """basic.retry: they failed, and come again by the topic's policy or after ``delay_ms``."""
        engine, now_ms = self._node_loop.engine(), self._node_loop.now_ms()
        for run in self._take(first, last, multiple=False):
            if not run.view.partition.topic.deleted:
                engine.settling.nack(
                    run.consumer, run.view, run.start, run.stop, now_ms=now_ms, delay_ms=delay_ms
                )

    def answer(self, verb: str, runs: list[UnackedRun]) -> None:
        engine, now_ms = self._node_loop.engine(), self._node_loop.now_ms()
        for run in runs:
            if run.view.partition.topic.deleted:
                continue  # its queue is gone, and so are its messages
            if verb == "ack":
                engine.settling.ack(run.consumer, run.view, run.start, run.stop)
            elif verb == "requeue":
                engine.settling.requeue(run.consumer, run.view, run.start, run.stop, now_ms=now_ms)
            else:
                engine.settling.reject(run.consumer, run.view, run.start, run.stop, now_ms=now_ms)

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

    # --- their lives ---

    def cancel(self, tag: str) -> AmqpConsumer | None:
        """Stop a consumer; what it has may still be acknowledged."""
        target = self.by_tag.pop(tag, None)
        if target is not None:
            self._detach(target, requeue=False)
            self._connection.consumer_gone(target)
        return target

    def _detach(self, target: AmqpConsumer, *, requeue: bool) -> None:
        engine, consumer = self._node_loop.engine(), target.consumer
        engine.consumers.detach(consumer, now_ms=self._node_loop.now_ms(), requeue=requeue)
        if target.by_offset and not consumer.subscription.topic.deleted:
            engine.subscriptions.delete(consumer.subscription)
        del target.consumer  # which knows its tag

    def cancelled(self, target: AmqpConsumer) -> None:
        """Its queue is gone: tell the client, if it wants to know."""
        if self.by_tag.pop(target.tag, None) is None:
            return
        del target.consumer
        if self._connection.wants_cancel_notify:
            self._sender.send(method_frame(self.number, BasicCancel(target.tag, nowait=True)))

    def end_unreadable(self) -> None:
        """Consumers whose queue the user may not read any more are cancelled, as if it were gone; a
        client that can't be told of that loses the channel. What they have may still be answered
        for."""
        grants = self._connection.grants
        for tag, target in list(self.by_tag.items()):
            if grants.may_read(target.queue):
                continue
            refusal = self._connection.refusal("queue", target.queue)
            if not self._connection.wants_cancel_notify:
                self._connection.close_channel(self.number, refusal)
                return
            self.cancel(tag)
            self._sender.send(method_frame(self.number, BasicCancel(tag, nowait=True)))
            facts = {"channel": self.number, "tag": tag, "reason": refusal.reply_text}
            logger.info("consumer ended", extra={**self._connection.log_fields(), **facts})
        self._getters = {
            name: getter for name, getter in self._getters.items() if grants.may_read(name)
        }

    def failed(self, target: AmqpConsumer, error: PartitionQuarantined) -> None:
        """It gets nothing any more: the channel ends with the reason."""
        if target.tag in self.by_tag and not self._sender.is_closed:
            self._connection.close_channel(self.number, translate(error))

    def pause(self, paused: bool) -> None:
        for target in self.by_tag.values():
            if paused:
                target.consumer.paused = True
            else:
                self._node_loop.engine().consumers.resume(target.consumer)

    def ending(self) -> Steps:
        """The channel is closed: what was delivered and not answered goes back to its queues, with
        what was answered in a transaction that is not committed."""
        self.pause(True)
        if self._tx.buffered is not None:
            self.unacked.put_back(self._tx.buffered.answered())
            self._tx.restart()
        self._connection.gateway.replies.forget(self)
        held = {run.consumer.id: run.consumer for run in self.unacked}
        self.unacked.take_all()
        targets = list(self.by_tag.values())
        self.by_tag.clear()
        return self._giving_back(targets, held)

    def _giving_back(
        self, targets: list[AmqpConsumer], held: dict[int, Consumer]
    ) -> Iterator[None]:
        # From the last: where only one is served it is the first, and none has to follow it.
        for target in reversed(targets):
            held.pop(target.consumer.id, None)
            self._detach(target, requeue=True)
            yield
        consumers, now_ms = self._node_loop.engine().consumers, self._node_loop.now_ms()
        for consumer in (*held.values(), *self._getters.values()):
            consumers.detach(consumer, now_ms=now_ms)
        for target in targets:
            self._connection.consumer_gone(target)
            yield
