"""The consuming half of a channel: consumers, what they were given, and what is said to that."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from braidmq.engine.effects import DeliveriesTimedOut
from braidmq.engine.groups import Membership
from braidmq.engine.topics import Consumer, Credit, Delivery, Topic
from braidmq.gateways.amqp.errors import precondition_failed, translate
from braidmq.gateways.amqp.groups import NOTICE_PROPERTIES, Member, notice
from braidmq.gateways.amqp.output import ChannelSender
from braidmq.gateways.amqp.queues import SUBSCRIPTION, is_quorum
from braidmq.gateways.amqp.session import AmqpSession
from braidmq.gateways.amqp.transactions import TxMode
from braidmq.gateways.amqp.unacked import Unacked, UnackedRun
from braidmq.gateways.translation import amqp_facts, amqp_parts
from braidmq.model.errors import PartitionQuarantined
from braidmq.model.limits import ERROR_CHARACTERS_MAX
from braidmq.runtime.sessions import ClientInfo, client_of
from braidmq.runtime.sliced_work import Steps
from braidmq.wire.amqp.errors import ChannelError
from braidmq.wire.amqp.methods import (
    BasicCancel,
    BasicDeliver,
    BasicExtend,
    BasicFail,
    BasicGetOk,
    encode,
    method_frame,
)
from braidmq.wire.amqp.render import all_amqp, render_content, render_deliveries

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection

logger = logging.getLogger(__name__)

RAISED_S = 0.01
"""When what a raised limit lets through follows its basic.qos-ok. kombu raises it by one for each
task with an ETA; what it reads in one go with the answer it takes a second to raise the limit for,
and the next task waits as many seconds as there are such tasks."""


class AmqpConsumer:
    """A consumer tag: takes deliveries from the engine to the socket."""

    __slots__ = (
        "by_offset",
        "consumer",
        "consumers",
        "hears_timeouts",
        "member",
        "no_ack",
        "queue",
        "tag",
        "tag_bytes",
        "wants_facts",
    )
    __deletable__ = ("consumer",)

    def __init__(
        self,
        consumers: "Consumers",
        tag: str,
        queue: str,
        no_ack: bool,
        by_offset: bool = False,
        wants_facts: bool = False,
    ) -> None:
        self.consumers = consumers
        self.tag = tag
        self.tag_bytes = tag.encode()
        self.queue = queue
        self.no_ack = no_ack
        self.by_offset = by_offset
        """It reads from where it likes, with a subscription of its own, and is told offsets."""
        self.hears_timeouts = False
        """Its client understands basic.extend."""
        self.wants_facts = wants_facts
        """Each message says how often it was delivered, where it is, and since when."""
        self.member: Member | None = None
        """Where its partitions are assigned."""
        self.consumer: Consumer

    def deliver(self, delivery: Delivery) -> None:
        self.consumers.deliver(self, delivery)

    def client_info(self) -> ClientInfo:
        return self.consumers.client_info(self.tag)


class Consumers:
    def __init__(
        self, connection: "AmqpConnection", number: int, sender: ChannelSender, tx: TxMode
    ) -> None:
        self._connection = connection
        self._node_loop = connection.node_loop
        self._sender = sender
        self._meter = connection.node_loop.usage.meter(connection.vhost, "amqp")
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
        self.notice_tag: str | None = None
        """Of the one that is told which partitions the channel's members of groups have."""
        self._next_tag = 1
        self._getters: dict[str, Consumer] = {}
        self._told_until = 0
        """The last tag of which the client was told that its time is over."""
        self._had_timeouts = False
        self._is_raised = False
        """Whether consumers are soon to be asked again, because their limit was raised."""

    @property
    def is_closed(self) -> bool:
        return self._sender.is_closed

    def client_info(self, tag: str) -> ClientInfo:
        return client_of(AmqpSession(self._connection), tag)

    def has_tag(self, tag: str) -> bool:
        return tag in self.by_tag or tag in (self.reply_tag, self.notice_tag)

    def send_reply(self, exchange: bytes, key: bytes, raw: bytes, body: bytes) -> None:
        """An answer for the consumer of replies."""
        assert self.reply_tag is not None
        self._send_alone(self.reply_tag, exchange.decode(), key.decode(), raw, body)

    def _send_alone(self, tag: str, exchange: str, key: str, raw: bytes, body: bytes) -> None:
        """A message that is in no queue: nobody answers for it."""
        method = BasicDeliver(tag, self.next_tag(), False, exchange, key)
        frame_max = self._connection.frame_max
        self._sender.send(render_content(self.number, encode(method), raw, body, frame_max))

    def notify(self, target: AmqpConsumer, group: str, membership: Membership) -> None:
        """Tell the consumer of notices what another of the channel has."""
        if self.notice_tag is not None and self.by_tag.get(target.tag) is target:
            body = notice(target.tag, target.queue, group, membership)
            self._send_alone(self.notice_tag, "", target.tag, NOTICE_PROPERTIES, body)

    def notify_of_all(self) -> None:
        groups = self._node_loop.engine().groups
        for target in self.by_tag.values():
            if target.member is not None:
                namespace, group, member_id = target.member
                membership = groups.group(namespace, group).membership(member_id)
                self.notify(target, group, membership)

    def next_tag(self) -> int:
        self._next_tag += 1
        return self._next_tag - 1

    # --- delivering ---

    def deliver(self, target: AmqpConsumer, delivery: Delivery) -> None:
        first_tag = self._next_tag
        count = delivery.stop_index - delivery.first_index
        self._next_tag += count
        size = delivery.batch.value_bytes_between(delivery.first_index, delivery.stop_index)
        self._meter.gave(count, size)
        if self._connection.rates.limits_deliveries:
            self._connection.rates.gave(count, size)
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
        if not self._is_annotated(target, delivery) and all_amqp(
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
                    delivery.attempts,
                    frame_max,
                    delivery.view.partition.number if target.wants_facts else -1,
                )
            )
            return
        for index in range(delivery.first_index, delivery.stop_index):
            exchange, key, raw, body = self._parts(delivery, index, target)
            method = BasicDeliver(
                target.tag,
                first_tag + index - delivery.first_index,
                delivery.attempts > 1,
                exchange,
                key,
            )
            self._sender.send(render_content(self.number, encode(method), raw, body, frame_max))

    def _is_annotated(self, target: AmqpConsumer, delivery: Delivery) -> bool:
        """Whether messages carry what only the queue knows of them and RabbitMQ says of them too:
        those of streams their offset, redelivered ones of quorum queues their delivery count."""
        kind = delivery.view.partition.topic.kind
        if kind == "stream" or target.by_offset:
            return True
        return delivery.attempts > 1 and kind == "quorum" and not target.wants_facts

    def _parts(
        self, delivery: Delivery, index: int, target: AmqpConsumer | None = None
    ) -> tuple[str, str, bytes, bytes]:
        """Without a consumer: for basic.get."""
        topic, record = delivery.view.partition.topic, delivery.batch.record(index)
        told: dict[str, int] = {}
        if target is not None and target.wants_facts:
            told = amqp_facts(record, delivery.view.partition.number, delivery.attempts)
        elif is_quorum(topic) and (target is None or delivery.attempts > 1):
            told["x-delivery-count"] = delivery.attempts - 1
        if topic.kind == "stream" or (target is not None and target.by_offset):
            told["x-stream-offset"] = record.offset
        exchange, key, raw = amqp_parts(
            record.envelope, record.envelope_format, record, told=told, topic=topic.name
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
        size = delivery.batch.value_bytes_between(delivery.first_index, delivery.stop_index)
        self._meter.gave(1, size)
        self._connection.rates.gave(1, size)
        tag = self._next_tag
        self._next_tag += 1
        if not no_ack:
            run = UnackedRun(tag, tag, getter, delivery.view, delivery.start_offset, now_ms)
            self.unacked.add(run)
        exchange, key, raw, body = self._parts(delivery, delivery.first_index)
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
        self._fail(first, last, "", final=False, delay_ms=delay_ms)

    def fail(self, method: BasicFail, delay_ms: int) -> None:
        """basic.fail: as above, or given up; with what the consumer says of it."""
        if self._tx.buffered is not None:
            raise precondition_failed("basic.fail is no part of a transaction of AMQP")
        error = method.error.decode(errors="replace")
        if len(error) > ERROR_CHARACTERS_MAX:
            raise precondition_failed(
                f"an error of {len(error)} characters, at most {ERROR_CHARACTERS_MAX} are kept"
            )
        self._fail(
            method.first_tag,
            method.last_tag,
            error,
            final=method.final,
            delay_ms=delay_ms if method.delayed else None,
        )

    def _fail(
        self, first: int, last: int, error: str, *, final: bool, delay_ms: int | None
    ) -> None:
        settling, now_ms = self._node_loop.engine().settling, self._node_loop.now_ms()
        for run in self._take(first, last, multiple=False):
            where = (run.consumer, run.view, run.start, run.stop)
            if run.view.partition.topic.deleted:
                continue
            if final:
                settling.reject(*where, now_ms=now_ms, error=error)
            else:
                settling.nack(*where, now_ms=now_ms, error=error, delay_ms=delay_ms)

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
            if taken is None and last <= self._told_until:
                return self.unacked.take_within(1, last)
            if taken is None:
                raise self._unknown(last)
            return taken
        if first > 0 and last <= self._told_until:
            # Said before it could hear that its time was over: what is still its own counts.
            return self.unacked.take_within(first, last)
        found, missing = self.unacked.take(first, last)
        if missing is not None:
            self.answer("ack", found)
            raise self._unknown(missing)
        return found

    def _unknown(self, tag: int) -> ChannelError:
        why = ": answered before, or its visibility timeout is over" if self._had_timeouts else ""
        return precondition_failed(f"unknown delivery tag {tag}{why}")

    # --- their time ---

    def timed_out(self, target: AmqpConsumer, effect: DeliveriesTimedOut) -> None:
        """Its tags are unknown from now on: an answer to them can't settle another delivery."""
        runs = self.unacked.take_offsets(effect.consumer, effect.view, effect.start, effect.stop)
        self._had_timeouts = self._had_timeouts or bool(runs)
        if target.hears_timeouts and not self.is_closed:
            for run in runs:
                self._told_until = max(self._told_until, run.last_tag)
                method = BasicExtend(run.first_tag, run.last_tag, 0)
                self._sender.send(method_frame(self.number, method))

    def extend(self, first: int, last: int, visibility_ms: int) -> None:
        """basic.extend: more time for those that are still the client's."""
        engine, now_ms = self._node_loop.engine(), self._node_loop.now_ms()
        runs = self.unacked.renew(first, last, now_ms)
        if not runs and last > self._told_until:
            raise self._unknown(first)
        for run in runs:
            if not run.consumer.visibility_ms:
                raise precondition_failed(
                    f"delivery tag {run.first_tag} has no visibility timeout to extend"
                )
            engine.settling.extend(
                run.consumer, run.view, run.start, run.stop, until_ms=now_ms + visibility_ms
            )

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
        """Stop a consumer; what it has may still be acknowledged, unless it was a member of a
        group, and another has its partitions."""
        target = self.by_tag.pop(tag, None)
        if target is not None:
            self._detach(target, requeue=False)
            self._connection.consumer_gone(target)
        return target

    def _detach(self, target: AmqpConsumer, *, requeue: bool) -> None:
        engine, consumer = self._node_loop.engine(), target.consumer
        if target.member is not None:
            end = engine.groups.detach if requeue else engine.groups.end
            end(*target.member, consumer, now_ms=self._node_loop.now_ms())
            del target.consumer
            return
        engine.consumers.detach(consumer, now_ms=self._node_loop.now_ms(), requeue=requeue)
        if target.by_offset and not consumer.subscription.topic.deleted:
            engine.subscriptions.delete(consumer.subscription)
        del target.consumer  # which knows its tag

    def cancelled(self, target: AmqpConsumer) -> None:
        """Its queue is gone: tell the client, if it wants to know."""
        if self.by_tag.get(target.tag) is not target:
            return
        del self.by_tag[target.tag]
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

    def limit_all(self, limit: int) -> None:
        """The consumers of the channel together have at most so many, those that are there too."""
        is_raised = limit > self.credit.limit
        self.credit.limit = limit
        if is_raised and self.by_tag and not self._is_raised:
            self._is_raised = True
            self._node_loop.loop.call_later(RAISED_S, self._follow_limit)

    def _follow_limit(self) -> None:
        self._is_raised = False
        if not self.is_closed:
            for target in self.by_tag.values():
                self._node_loop.engine().consumers.resume(target.consumer)
            self.pause(self._connection.write_paused)

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
