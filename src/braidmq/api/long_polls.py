"""Long polls: requests that wait for a message, and are woken by one.

A poll that finds nothing has its subscriptions watched. The engine says when one of them may have
something (``SubscriptionReady``), and then the polls it may concern try again, the oldest first:

- those who receive from a subscription do so as one consumer, so that the first that finds nothing
  speaks for all behind it;
- a member of a group has partitions of its own, so that each whose partitions have something tries.

Who finds nothing waits on. A member's poll is also over when its partitions are others
(``MemberNotice``), which its answer tells, and when it is no member any more.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType
from starlette.requests import Request

from braidmq.api.messages import Message
from braidmq.api.settings import HttpSettings
from braidmq.engine.effects import ConsumerCancelled, Effect, MemberNotice, SubscriptionReady
from braidmq.engine.topics import Consumer, Mode, Subscription
from braidmq.model.errors import BadRequest, BraidError
from braidmq.runtime.node_loop import NodeLoop

Take = Callable[[], list[Message]]

Place = Subscription | Consumer
"""Where somebody waits: a subscription, or as a member of a group in one of its topics."""


class Poll:
    __slots__ = ("future", "take")

    def __init__(self, take: Take, future: "asyncio.Future[list[Message]]") -> None:
        self.take = take
        self.future = future

    def try_again(self, *, last: bool = False) -> bool:
        """True when it need not wait any more, which after the ``last`` time it does not."""
        if self.future.done():
            return True
        try:
            found = self.take()
        except BraidError as error:
            self.future.set_exception(error)
            return True
        if found or last:
            self.future.set_result(found)
        return bool(found) or last


class Waiting:
    def __init__(self, node_loop: NodeLoop, wait_ms: int) -> None:
        self.wait_ms = wait_ms
        """How long polls wait unless they say, and at most."""
        self._node_loop = node_loop
        self._polls: dict[Place, dict[Poll, None]] = {}
        self._stopping = False
        node_loop.listeners.append(self._on_effect)

    def replace(self, settings: HttpSettings) -> None:
        """For polls that come from now on."""
        self.wait_ms = settings.poll_wait_ms

    def wanted_ms(self, asked_ms: int | UnsetType) -> int:
        if asked_ms is UNSET:
            return self.wait_ms
        if asked_ms > self.wait_ms:
            raise BadRequest(
                f"wait_ms is {asked_ms}, and nobody waits longer than {self.wait_ms} here",
                remedy="Ask again when nothing came, or have the operator raise http.poll_wait_ms",
            )
        return asked_ms

    async def wait(
        self,
        request: Request,
        places: Sequence[Place],
        take: Take,
        wait_ms: int,
        stay: "Stay | None" = None,
        left_s: float | None = None,
    ) -> list[Message]:
        """What ``take`` finds, now or within ``wait_ms``. ``left_s``: until the caller's token
        ends, which ``take`` refuses then."""
        found = take()
        if found or not wait_ms or self._stopping:
            return found
        poll = Poll(take, self._node_loop.loop.create_future())
        for place in places:
            self._polls.setdefault(place, {})[poll] = None
            self._watch(place)
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            wait_s = wait_ms / 1000
            if left_s is None:
                left_s = wait_s
            await self._until_either(poll, gone, min(left_s, wait_s), stay)
            if left_s < wait_s and not gone.done():
                poll.try_again(last=True)
        finally:
            # Before anything else is awaited: what it took meanwhile nobody would answer with.
            for place in places:
                self._forget(place, poll)
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone
        return poll.future.result() if poll.future.done() else []

    async def _until_either(
        self, poll: Poll, gone: "asyncio.Future[None]", wait_s: float, stay: "Stay | None"
    ) -> None:
        loop = self._node_loop.loop
        either: set[asyncio.Future[Any]] = {poll.future, gone}
        end_s = loop.time() + wait_s
        while (left_s := end_s - loop.time()) > 0:
            part_s = left_s if stay is None else min(left_s, stay.every_ms / 1000)
            done, _ = await asyncio.wait(
                either, timeout=part_s, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return
            if stay is not None:
                stay.say()

    def count(self, subscription: Subscription) -> int:
        places: list[Place] = [subscription, *subscription.consumers]
        return len({poll for place in places for poll in self._polls.get(place, ())})

    def _watch(self, place: Place) -> None:
        subscription = place.subscription if isinstance(place, Consumer) else place
        self._node_loop.engine().dispatching.watch(subscription)

    def _forget(self, place: Place, poll: Poll) -> None:
        polls = self._polls.get(place)
        if polls is not None:
            polls.pop(poll, None)
            if not polls:
                del self._polls[place]

    def wake(self, subscription: Subscription) -> None:
        """There may be something: let those who wait for it try again."""
        if subscription.mode is Mode.ASSIGNED:
            self._wake_members(subscription)
            return
        for poll in list(self._polls.get(subscription, ())):
            if not poll.try_again():
                self._watch(subscription)
                return

    def _wake_members(self, subscription: Subscription) -> None:
        for consumer in self._node_loop.engine().dispatching.with_ready(subscription):
            for poll in list(self._polls.get(consumer, ())):
                poll.try_again()
        if any(consumer in self._polls for consumer in subscription.consumers):
            self._watch(subscription)

    def recheck(self) -> None:
        """Somebody's rights have changed: who may not wait for a message any more is told so."""
        for place in list(self._polls):
            for poll in list(self._polls.get(place, ())):
                poll.try_again()
            if place in self._polls:
                self._watch(place)

    def stop(self) -> None:
        """The node stops: nobody waits any more."""
        self._stopping = True
        for polls in self._polls.values():
            for poll in polls:
                if not poll.future.done():
                    poll.future.set_result([])

    def _on_effect(self, effect: Effect) -> None:
        if isinstance(effect, SubscriptionReady):
            self.wake(effect.subscription)
        elif isinstance(effect, MemberNotice):
            for consumer in effect.consumers:
                self._end(consumer)
        elif isinstance(effect, ConsumerCancelled):
            self._end(effect.consumer)

    def _end(self, consumer: Consumer) -> None:
        for poll in list(self._polls.get(consumer, ())):
            poll.try_again(last=True)


class Stay(NamedTuple):
    """What somebody who waits would say now and then if it could."""

    say: Callable[[], object]
    every_ms: int


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
