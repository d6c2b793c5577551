"""MQTT over TCP and WebSocket in a thread of this process, on a disk the test holds in its hand."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from braidmq.engine.engine import Engine
from braidmq.engine.pressure import Watermarks
from braidmq.gateways.mqtt.listener import MqttGateway
from braidmq.gateways.mqtt.settings import MqttSettings
from braidmq.model.clock import SystemClock
from braidmq.net.settings import ListenerSpec
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.accounts import Accounts
from braidmq.security.logins import Logins
from braidmq.storage.disk import MemoryDisk

WAIT_S = 20.0
STOP_S = 2.0
Answer = TypeVar("Answer")


class RoomyDisk(MemoryDisk):
    """Free space is what the test says."""

    free = 1 << 40

    def free_bytes(self, path: str) -> int:
        return self.free


@dataclass
class Port:
    gateway: MqttGateway
    loop: asyncio.AbstractEventLoop
    ports: dict[str, int]

    def ask(self, question: Callable[[MqttGateway], Answer]) -> Answer:
        """Of the gateway, between two turns of its loop."""

        async def answer() -> Answer:
            return question(self.gateway)

        return asyncio.run_coroutine_threadsafe(answer(), self.loop).result(WAIT_S)


@contextmanager
def mqtt_port(
    disk: RoomyDisk, marks: Watermarks | None = None, settings: MqttSettings | None = None
) -> Iterator[Port]:
    loop = asyncio.new_event_loop()
    engine = Engine.open(disk, SystemClock().now_ms(), marks=marks)
    accounts = Accounts(engine.store)
    logins = Logins(accounts)
    broker = NodeLoop(engine, SystemClock(), loop)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    gateway = MqttGateway(broker, accounts, logins, settings or MqttSettings())
    tcp = gateway.listener(ListenerSpec("mqtt", "mqtt", "127.0.0.1", 0, ("mqtt_port",)))
    ws = gateway.websocket_listener(ListenerSpec("ws", "ws", "127.0.0.1", 0, ("ws_port",)))
    thread.start()
    for each in (tcp, ws):
        asyncio.run_coroutine_threadsafe(each.start(), loop).result(WAIT_S)
    try:
        yield Port(gateway, loop, {"mqtt_port": tcp.port, "ws_port": ws.port})
    finally:
        for each in (tcp, ws):
            asyncio.run_coroutine_threadsafe(each.stop(STOP_S), loop).result(WAIT_S)
        asyncio.run_coroutine_threadsafe(gateway.stop(STOP_S), loop).result(WAIT_S)
        loop.call_soon_threadsafe(broker.stop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        logins.close()
        engine.close()
