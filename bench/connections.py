"""Many idle connections: ``python -m bench.connections``.

AMQP: five thousand connections with a channel and a consumer each are held by another process,
which answers heartbeats. What they cost is taken from the broker's memory; what they do to others
is the latency of one more publisher, in turns with the same publisher on a node that has no others.

MQTT: ten thousand connections with a subscription of QoS 1 each, to a topic of its own, that ping
twice in their keep alive of a minute. What they cost is memory, and processor time while idle.

Log-ins: clients that connect, log in and leave, beside Mosquitto and RabbitMQ.
"""

import asyncio
import itertools
import os
import re
import resource
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

from bench.harness import Benchmark, Context, Measure, at_least, at_most, main, paired_ratio
from braidmq.client.address import parse_address
from braidmq.loadgen.amqp_client import CHANNEL, Client
from braidmq.loadgen.broker_process import BrokerProcess
from braidmq.model.limits import KIB
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind
from braidmq.wire.amqp.properties import Properties, content_header_payload, encode_properties
from braidmq.wire.mqtt.constants import Kind, Version
from braidmq.wire.mqtt.packets import Connect, PingReq, Request, Subscribe, encode

CONNECTIONS = 5000
WARM = 200
"""The first connections pay for what all share: arenas, caches, buffers."""
OPENING = 50
"""Connections that log in at a time."""
HEARTBEAT_S = 5
IDLE_S = 20
"""Four heartbeats: a broker or a client that misses them hangs up after two."""
DEVICES = 10_000
KEEP_ALIVE_S = 60
DEVICES_IDLE_S = 70
"""Longer than the keep alive: who was not heard by then is hung up on after half as much again."""
READY_S_MAX = 300.0
ROUNDS = 15
PUBLISHES = 200
ROUNDS_OF_LOGINS = 5
LOGIN_PROCESSES = 8
"""Clients at a time: the broker is to wait for none of them."""

BASIC_ACK = struct.pack(">HH", 60, 80)


# --- the fleet, in a process of its own ---


class Idle(asyncio.Protocol):
    """A client that logs in and then only says that it is there."""

    BEAT: ClassVar[bytes]
    BEAT_EVERY_S: ClassVar[float]
    transport: asyncio.Transport

    def __init__(self) -> None:
        self._input = b""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.heartbeats = 0
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if not self.ready.done():
            self.ready.set_exception(exc or ConnectionResetError("the broker hung up"))


class IdleAmqp(Idle):
    """Opens a channel, consumes from a queue of its own, and answers heartbeats."""

    BEAT = m.frame(FrameKind.HEARTBEAT, 0, b"")
    BEAT_EVERY_S = HEARTBEAT_S / 2

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(PROTOCOL_HEADER)

    def data_received(self, data: bytes) -> None:
        self._input += data
        while len(self._input) >= 8:
            kind, _, size = struct.unpack_from(">BHI", self._input)
            if len(self._input) < size + 8:
                return
            payload, self._input = self._input[7 : size + 7], self._input[size + 8 :]
            if kind == FrameKind.HEARTBEAT:
                self.heartbeats += 1
            else:
                self._answer(m.decode(payload))

    def _answer(self, method: m.Method) -> None:
        match method:
            case m.ConnectionStart():
                self._send(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
            case m.ConnectionTune(channel_max, frame_max):
                self._send(0, m.ConnectionTuneOk(channel_max, frame_max, HEARTBEAT_S))
                self._send(0, m.ConnectionOpen("/"))
            case m.ConnectionOpenOk():
                self._send(1, m.ChannelOpen())
            case m.ChannelOpenOk():
                self._send(1, m.QueueDeclare(exclusive=True))
            case m.QueueDeclareOk(queue):
                self._send(1, m.BasicConsume(queue))
            case m.BasicConsumeOk():
                self.ready.set_result(None)
            case _:
                raise AssertionError(method)

    def _send(self, channel: int, method: m.Method) -> None:
        self.transport.write(m.method_frame(channel, method))


class IdleMqtt(Idle):
    """Subscribes to a topic of its own, and pings."""

    BEAT = encode(PingReq(), Version.V3_1_1)
    BEAT_EVERY_S = KEEP_ALIVE_S / 2
    numbers = itertools.count()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._name = f"idle-{os.getpid()}-{next(self.numbers)}"
        connect = Connect(Version.V3_1_1, self._name, keep_alive_s=KEEP_ALIVE_S)
        self.transport.write(encode(connect, Version.V3_1_1))

    def data_received(self, data: bytes) -> None:
        self._input += data
        # All that a broker says to it is shorter than 128 bytes.
        while len(self._input) >= 2 and len(self._input) >= 2 + self._input[1]:
            kind, size = self._input[0] >> 4, 2 + self._input[1]
            self._input = self._input[size:]
            if kind == Kind.CONNACK:
                subscribe = Subscribe(1, (Request(f"devices/{self._name}/commands", 1),))
                self.transport.write(encode(subscribe, Version.V3_1_1))
            elif kind == Kind.SUBACK:
                self.ready.set_result(None)
            else:
                assert kind == Kind.PINGRESP, kind
                self.heartbeats += 1


FLEETS: dict[str, type[Idle]] = {"amqp": IdleAmqp, "mqtt": IdleMqtt}


async def hold(kind: str, port: int, count: int, control: Connection) -> None:
    loop = asyncio.get_running_loop()
    fleet: list[Idle] = []
    beating = loop.create_task(beat(fleet, FLEETS[kind].BEAT_EVERY_S))
    for first in range(0, count, OPENING):
        opened = await asyncio.gather(
            *(
                loop.create_connection(FLEETS[kind], "127.0.0.1", port)
                for _ in range(first, min(first + OPENING, count))
            )
        )
        group = [protocol for _, protocol in opened]
        await asyncio.gather(*(each.ready for each in group))
        fleet += group
    control.send("ready")
    await loop.run_in_executor(None, control.recv)
    beating.cancel()
    fewest = min(each.heartbeats for each in fleet)
    control.send((sum(each.lost for each in fleet), fewest))
    await loop.run_in_executor(None, control.recv)


async def beat(fleet: list[Idle], every_s: float) -> None:
    """Each twice in the agreed time, spread over it as those of separate clients are."""
    slices = 50
    while True:
        for start in range(slices):
            for each in fleet[start::slices]:
                each.transport.write(each.BEAT)
            await asyncio.sleep(every_s / slices)


def run_fleet(kind: str, port: int, count: int, control: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    asyncio.run(hold(kind, port, count, control))


class Fleet:
    def __init__(self, control: Connection) -> None:
        self._control = control

    def survivors(self) -> tuple[int, int]:
        """How many were lost, and the fewest heartbeats any of them got."""
        self._control.send("report")
        lost, heartbeats = self._receive()
        return int(lost), int(heartbeats)

    def wait_until_ready(self) -> None:
        assert self._receive() == "ready"

    def _receive(self) -> object:
        assert self._control.poll(READY_S_MAX), "the fleet does not answer"
        return self._control.recv()


@contextmanager
def fleet(kind: str, port: int, count: int) -> Iterator[Fleet]:
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=run_fleet, args=(kind, port, count, theirs))
    process.start()
    try:
        held = Fleet(ours)
        held.wait_until_ready()
        yield held
    finally:
        process.terminate()
        process.join()


# --- the publisher ---


class Publisher:
    """One confirmed, persistent message at a time."""

    def __init__(self, node: LiveNode) -> None:
        self._client = Client(parse_address(f"amqp://127.0.0.1:{node.ports['amqp_port']}"))
        self._client.call(m.QueueDeclare("q", durable=True, arguments={"x-max-length": 10}))
        self._client.call(m.ConfirmSelect())
        properties = encode_properties(Properties(delivery_mode=2))
        self._message = b"".join(
            (
                m.method_frame(CHANNEL, m.BasicPublish("", "q")),
                m.frame(FrameKind.HEADER, CHANNEL, content_header_payload(128, properties)),
                m.frame(FrameKind.BODY, CHANNEL, bytes(128)),
            )
        )

    def publish(self) -> float:
        """How long a confirm takes, in ms."""
        sock = self._client.socket
        began = time.perf_counter()
        sock.sendall(self._message)
        confirm = sock.recv(4096)
        took_s = time.perf_counter() - began
        assert confirm[7:11] == BASIC_ACK, confirm
        return took_s * 1000

    def close(self) -> None:
        self._client.socket.close()


def resident_bytes(node: LiveNode) -> int:
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * KIB


def idle_connections(context: Context) -> Iterator[Measure]:
    count = context.size(CONNECTIONS, 500)
    with live_node(context.directory()) as alone, live_node(context.directory()) as crowded:
        port = crowded.ports["amqp_port"]
        with fleet("amqp", port, WARM):
            before = resident_bytes(crowded)
            began = time.perf_counter()
            with fleet("amqp", port, count) as held:
                took_s = time.perf_counter() - began
                each = (resident_bytes(crowded) - before) / count
                yield Measure("log in, channel and consumer", count / took_s, "connections/s")
                yield Measure(
                    "AMQP: memory of an idle connection", each / KIB, "KiB", bar=at_most(40)
                )
                yield from latency(context, alone, crowded, count)
                time.sleep(IDLE_S)
                lost, heartbeats = held.survivors()
                yield Measure("AMQP: connections lost", lost, f"of {count}", bar=at_most(0))
                yield Measure("fewest heartbeats any got", heartbeats, "", guide=f"in {IDLE_S} s")


def idle_devices(context: Context) -> Iterator[Measure]:
    count = context.size(DEVICES, 500)
    with live_node(context.directory()) as node:
        port = node.ports["mqtt_port"]
        with fleet("mqtt", port, WARM):
            before = resident_bytes(node)
            began = time.perf_counter()
            with fleet("mqtt", port, count) as held:
                took_s = time.perf_counter() - began
                each = (resident_bytes(node) - before) / count
                yield Measure("connect and subscribe", count / took_s, "connections/s")
                yield Measure(
                    "MQTT: memory of an idle connection", each / KIB, "KiB", bar=at_most(20)
                )
                process = BrokerProcess(node.process.pid)
                used, began = process.cpu_s(), time.perf_counter()
                time.sleep(context.size(DEVICES_IDLE_S, 5))
                used_share = (process.cpu_s() - used) / (time.perf_counter() - began)
                yield Measure(
                    f"processor of {count} connections",
                    used_share * 100,
                    "% of a core",
                    bar=at_most(5),
                    note=f"keep alive {KEEP_ALIVE_S} s, a ping every {KEEP_ALIVE_S // 2} s",
                )
                lost, pings = held.survivors()
                yield Measure("MQTT: connections lost", lost, f"of {count}", bar=at_most(0))
                yield Measure("fewest pings answered to any", pings, "")


def latency(context: Context, alone: LiveNode, crowded: LiveNode, count: int) -> Iterator[Measure]:
    publishers = [Publisher(alone), Publisher(crowded)]
    rounds = []
    for _ in range(context.rounds(ROUNDS)):
        # In turns message by message: another process that takes the CPU for a while is no
        # business of either.
        times = [[each.publish() for each in publishers] for _ in range(PUBLISHES)]
        rounds.append([statistics.median(side) for side in zip(*times, strict=True)])
    for each in publishers:
        each.close()
    without, beside = ([one[side] for one in rounds] for side in (0, 1))
    yield Measure(
        f"confirmed publish beside {count} connections",
        statistics.median(beside),
        "ms",
        bar=at_most(1.5),
        ratio=paired_ratio(beside, without),
        baseline=statistics.median(without),
        against="alone",
    )


def log_in_rate(
    context: Context,
    ours: Callable[[Path], AbstractContextManager[str]],
    theirs: Callable[[Path], AbstractContextManager[str]],
    kind: str,
    rival: str,
    bar: float,
) -> Iterator[Measure]:
    """Clients that connect, log in and go, from several processes, in turns."""
    rates: dict[str, list[float]] = {"BraidMQ": [], rival: []}
    with ours(context.directory() / "ours") as our_url, theirs(context.directory() / "x") as url:
        for _ in range(context.rounds(ROUNDS_OF_LOGINS)):
            for name, at in (("BraidMQ", our_url), (rival, url)):
                port = int(at.rstrip("/").rpartition(":")[2])
                rates[name].append(logins_per_s(kind, port, context.size(4, 1)))
    yield Measure(
        f"{kind}: connect, log in and leave",
        statistics.median(rates["BraidMQ"]),
        "connections/s",
        bar=at_least(bar),
        ratio=paired_ratio(rates["BraidMQ"], rates[rival]),
        baseline=statistics.median(rates[rival]),
        against=rival,
    )


def logins_per_s(kind: str, port: int, seconds: float) -> float:
    spawn = get_context("spawn")
    with spawn.Pool(LOGIN_PROCESSES) as pool:
        jobs = [(kind, port, seconds)] * LOGIN_PROCESSES
        return sum(pool.starmap(log_in_and_leave, jobs))


def log_in_and_leave(kind: str, port: int, seconds: float) -> float:
    """How often a second one process does it."""
    from bench import churn

    once = {"MQTT": churn.mqtt_polite, "AMQP": churn.amqp_polite}[kind]
    ports = {"mqtt_port": port, "amqp_port": port}
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        once(ports)
        count += 1
    return count / (time.perf_counter() - began)


def mqtt_logins(context: Context) -> Iterator[Measure]:
    from bench import mqtt

    yield from log_in_rate(context, mqtt.braidmq, mqtt.mosquitto, "MQTT", "Mosquitto", 0.45)


def amqp_logins(context: Context) -> Iterator[Measure]:
    from bench import amqp, rabbitmq

    yield from log_in_rate(context, amqp.braidmq, rabbitmq.rabbitmq, "AMQP", "RabbitMQ", 3)


BENCHMARKS: dict[str, Benchmark] = {
    "mqtt log-ins": mqtt_logins,
    "amqp log-ins": amqp_logins,
    "idle connections": idle_connections,
    "idle mqtt connections": idle_devices,
}

if __name__ == "__main__":
    main("connections", BENCHMARKS)
