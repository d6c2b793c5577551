"""Long polls: what a poll takes is what it answers with."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from starlette.requests import Request

from braidmq.api.long_polls import Waiting
from braidmq.api.messages import Message
from braidmq.engine.topics import Mode, Subscription
from braidmq.runtime.node_loop import NodeLoop


class Shared:
    mode, consumers = Mode.SHARED, ()


SUBSCRIPTION = cast(Subscription, Shared())
MESSAGE = cast(Message, object())


async def test_a_poll_that_gives_up_takes_nothing_any_more() -> None:
    """A message that comes at that very moment stays for the next one. A group's member whose poll
    took it and did not answer with it would commit beyond it: it were lost."""
    engine = SimpleNamespace(dispatching=SimpleNamespace(watch=lambda subscription: None))
    broker = SimpleNamespace(loop=asyncio.get_running_loop(), listeners=[], engine=lambda: engine)
    waiting = Waiting(cast(NodeLoop, broker), wait_ms=1)
    taken: list[Message] = []
    tries = 0

    def take() -> list[Message]:
        nonlocal tries
        tries += 1
        if tries == 1:
            return []
        taken.append(MESSAGE)
        return [MESSAGE]

    class Listening:
        """A client that stays; a message comes when its poll is not waited for any more."""

        async def receive(self) -> Any:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                waiting.wake(SUBSCRIPTION)

    request = cast(Request, Listening())
    assert await waiting.wait(request, [SUBSCRIPTION], take, wait_ms=1) == taken
    assert waiting.count(SUBSCRIPTION) == 0
