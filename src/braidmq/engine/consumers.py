"""Consumers: they come, have room again, and go."""

from collections.abc import Sequence

from braidmq.engine.dispatching import Dispatching
from braidmq.engine.effects import ConsumerFailed
from braidmq.engine.errors import ExclusiveConsumer
from braidmq.engine.settling import Settling
from braidmq.engine.state import EngineState
from braidmq.engine.subscriptions import Subscriptions
from braidmq.engine.topics import Consumer, Credit, Mode, Receiver, Subscription

IN_FLIGHT_MAX = 1000
"""Messages in flight at one consumer unless it says otherwise (catalogue row D7)."""


class Consumers:
    def __init__(
        self,
        state: EngineState,
        subscriptions: Subscriptions,
        settling: Settling,
        dispatching: Dispatching,
    ) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._settling = settling
        self._dispatching = dispatching

    def attach(
        self,
        subscription: Subscription,
        now_ms: int,
        *,
        credits: Sequence[Credit] | None = None,
        priority: int = 0,
        auto_ack: bool = False,
        exclusive: bool = False,
        visibility_ms: int | None = None,
        passive: bool = False,
        receiver: Receiver | None = None,
    ) -> Consumer:
        """``passive``: it pulls, and nothing is pushed to it."""
        self._subscriptions.require_existing(subscription)
        alone = exclusive or subscription.exclusive or subscription.mode is Mode.EXCLUSIVE
        if subscription.consumers and alone and not passive:
            raise ExclusiveConsumer(
                f"subscription {subscription.name!r} of topic {subscription.topic.name!r} "
                f"has a consumer already"
            )
        if not passive:
            subscription.exclusive = exclusive
        if visibility_ms is None:
            visibility_ms = subscription.topic.policy.visibility_ms
        consumer = Consumer(
            self._state.next_id("consumer"),
            subscription,
            tuple(credits) if credits is not None else (Credit(IN_FLIGHT_MAX),),
            priority=priority,
            auto_ack=auto_ack,
            visibility_ms=visibility_ms,
            passive=passive,
            receiver=receiver,
        )
        self._state.consumers[consumer.id] = consumer
        if passive:
            return consumer
        subscription.consumers[consumer] = None
        subscription.topic.last_used_ms = now_ms
        self._dispatching.choose_active(subscription)
        self._state.mark_dirty(subscription)
        if subscription.topic.is_quarantined:
            error = subscription.topic.partitions[0].log.quarantined()
            self._state.effects.append(ConsumerFailed(consumer, error))
        return consumer

    def detach(self, consumer: Consumer, now_ms: int, *, requeue: bool = True) -> None:
        """A consumer is gone; what it had becomes ready again, unless it is kept for its owner
        (a cancelled AMQP consumer may still acknowledge: ``requeue=False``)."""
        subscription = consumer.subscription
        if consumer in subscription.consumers:
            del subscription.consumers[consumer]
            subscription.exclusive = False
            # It may keep what it has, but gets no more, not even of a key that is still its own.
            consumer.paused = True
            numbers = [n for n, owner in subscription.assignment.items() if owner is consumer]
            for number in numbers:
                del subscription.assignment[number]
        if requeue:
            self._state.consumers.pop(consumer.id, None)
            if subscription.keys is not None:
                subscription.keys.gone(consumer)
            self._settling.disconnect(consumer, now_ms)
        subscription.topic.last_used_ms = now_ms
        self._dispatching.choose_active(subscription)
        self._state.mark_dirty(subscription)

    def resume(self, consumer: Consumer) -> None:
        """A consumer has room again: its credit or its socket."""
        consumer.paused = False
        self._state.mark_dirty(consumer.subscription)

    def release(self, credit: Credit, count: int) -> None:
        """Room in a credit that its owner had held back."""
        credit.used -= count
        awaited, credit.awaited = credit.awaited, {}
        for subscription in awaited:
            self._state.mark_dirty(subscription)
