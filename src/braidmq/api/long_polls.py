"""Long polls: requests that wait for a message, and are woken by one.

A poll that finds nothing has its subscriptions watched. The engine says when one of them may have
something (``SubscriptionReady``), and then the polls that wait there try again, the oldest first.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from starlette.requests import Request

from braidmq.api.messages import Message
from braidmq.engine.effects import Effect, SubscriptionReady
from braidmq.engine.topics import Subscription
from braidmq.model.errors import BraidError
from braidmq.runtime.node_loop import NodeLoop

WAIT_MS_MAX = 30_000
"""Catalogue row C4; proxies between us and a client often give up after a minute."""

Take = Callable[[], list[Message]]


class Poll:
    __slots__ = ("future", "take")

    def __init__(self, take: Take, future: "asyncio.Future[list[Message]]") -> None:
        self.take = take
        self.future = future

    def try_again(self) -> bool:
        """True when it need not wait any more."""
        if self.future.done():
            return True
        try:
            found = self.take()
        except BraidError as error:
            self.future.set_exception(error)
            return True
        if found:
            self.future.set_result(found)
        return bool(found)


class Waiting:
    def __init__(self, node_loop: NodeLoop) -> None:
        self._node_loop = node_loop
        self._polls: dict[Subscription, dict[Poll, None]] = {}
        self._stopping = False
        node_loop.listeners.append(self._on_effect)

    async def wait(
        self, request: Request, subscriptions: Sequence[Subscription], take: Take, wait_ms: int
    ) -> list[Message]:
        """What ``take`` finds, now or within ``wait_ms``."""
        found = take()
        if found or not wait_ms or self._stopping:
            return found
        poll = Poll(take, self._node_loop.loop.create_future())
        for subscription in subscriptions:
            self._polls.setdefault(subscription, {})[poll] = None
            self._node_loop.engine().dispatching.watch(subscription)
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            either: set[asyncio.Future[Any]] = {poll.future, gone}
            await asyncio.wait(either, timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Before anything else is awaited: what it took meanwhile nobody would answer with.
            for subscription in subscriptions:
                self._forget(subscription, poll)
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone
        return poll.future.result() if poll.future.done() else []

    def count(self, subscription: Subscription) -> int:
        return len(self._polls.get(subscription, ()))

    def _forget(self, subscription: Subscription, poll: Poll) -> None:
        polls = self._polls.get(subscription)
        if polls is not None:
            polls.pop(poll, None)
            if not polls:
                del self._polls[subscription]

    def wake(self, subscription: Subscription) -> None:
        """Let those who wait try again, as long as they find something."""
        for poll in list(self._polls.get(subscription, ())):
            if not poll.try_again():
                self._node_loop.engine().dispatching.watch(subscription)
                return

    def recheck(self) -> None:
        """Somebody's rights have changed: who may not wait for a message any more is told so."""
        for subscription in list(self._polls):
            for poll in list(self._polls.get(subscription, ())):
                poll.try_again()
            if subscription in self._polls:
                self._node_loop.engine().dispatching.watch(subscription)

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


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
