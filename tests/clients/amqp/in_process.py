"""An AMQP port in a thread of this process, on a disk the test holds in its hand."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from braidmq.engine.engine import Engine
from braidmq.engine.pressure import Watermarks
from braidmq.gateways.amqp.listener import AmqpGateway
from braidmq.gateways.amqp.settings import UnconfirmedLimit
from braidmq.model.clock import SystemClock
from braidmq.net.settings import ListenerSpec
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.accounts import Accounts
from braidmq.security.logins import Logins
from braidmq.storage.disk import MemoryContent, MemoryDisk

WAIT_S = 20.0
STOP_S = 2.0
Answer = TypeVar("Answer")


class HeldDisk(MemoryDisk):
    """Syncs wait while it is held; free space is what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.free = 1 << 40
        self._may_sync = threading.Event()
        self._may_sync.set()

    def hold(self) -> None:
        self._may_sync.clear()

    def let_go(self) -> None:
        self._may_sync.set()

    def sync_contents(self, contents: Sequence[MemoryContent]) -> None:
        assert self._may_sync.wait(WAIT_S)
        super().sync_contents(contents)

    def free_bytes(self, path: str) -> int:
        return self.free


@dataclass
class Port:
    gateway: AmqpGateway
    loop: asyncio.AbstractEventLoop
    ports: dict[str, int]

    def ask(self, question: Callable[[AmqpGateway], Answer]) -> Answer:
        """Of the gateway, between two turns of its loop."""

        async def answer() -> Answer:
            return question(self.gateway)

        return asyncio.run_coroutine_threadsafe(answer(), self.loop).result(WAIT_S)


@contextmanager
def amqp_port(
    disk: HeldDisk,
    marks: Watermarks | None = None,
    unconfirmed: UnconfirmedLimit | None = None,
) -> Iterator[Port]:
    loop = asyncio.new_event_loop()
    engine = Engine.open(disk, SystemClock().now_ms(), marks=marks)
    accounts = Accounts(engine.store)
    logins = Logins(accounts)
    broker = NodeLoop(engine, SystemClock(), loop)
    gateway = AmqpGateway(broker, accounts, logins, unconfirmed=unconfirmed)
    listener = gateway.listener(ListenerSpec("amqp", "amqp", "127.0.0.1", 0, ("amqp_port",)))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(listener.start(), loop).result(WAIT_S)
    try:
        yield Port(gateway, loop, {"amqp_port": listener.port})
    finally:
        disk.let_go()
        asyncio.run_coroutine_threadsafe(listener.stop(STOP_S), loop).result(WAIT_S)
        asyncio.run_coroutine_threadsafe(gateway.stop(STOP_S), loop).result(WAIT_S)
        loop.call_soon_threadsafe(broker.stop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        logins.close()
        engine.close()
