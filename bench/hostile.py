"""Hostile clients beside a polite one: ``python -m bench.hostile``.

Each attack runs from a process of its own against a fresh node with little memory, while one client
publishes and waits for its confirms. Held against the bars: the node's memory while it goes on, how
long the polite client waits, and what is left of the memory a while later.

An attack is a function of the node's ports and of how long it may take; add it to ``ATTACKS``.
"""

import contextlib
import itertools
import resource
import socket
import struct
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench.connections import Publisher, resident_bytes
from bench.harness import Benchmark, Context, Measure, at_most, main
from bench.hostile_protocols import PROTOCOL_ATTACKS
from bench.hostile_wire import (
    Attack,
    Ports,
    amqp,
    frame_head,
    message_frames,
    mqtt,
    pour,
    request,
    tcp,
    websocket,
)
from braidmq.model.limits import KIB, MIB
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.amqp import methods as m
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import Connect, Publish, encode

MEMORY_BYTES = 512 * MIB
"""What the nodes are allowed."""
ABOVE_MEMORY_BYTES = 128 * MIB
"""The process itself: code, buffers, what is being written."""
PROBE_MS_MAX = 250
LEFT_MAX = 1.2
LEFT_AFTER_S = 60
ATTACK_S = 20.0
SAMPLE_S = 0.02

# --- the attacks ---


def amqp_bodies(ports: Ports, seconds: float) -> None:
    """Twenty messages of 120 MiB that lack their end."""
    data = memoryview(message_frames(120 * MIB, 115 * MIB))
    pour([(amqp(ports), data) for _ in range(20)], seconds)


def amqp_channels(ports: Ports, seconds: float) -> None:
    """One connection, and the same on a hundred channels at once."""
    sock = amqp(ports)
    opening = b"".join(m.method_frame(each, m.ChannelOpen()) for each in range(2, 101))
    data = b"".join(message_frames(120 * MIB, 10 * MIB, channel=each) for each in range(1, 101))
    pour([(sock, memoryview(opening + data))], seconds)


def amqp_without_right(ports: Ports, seconds: float) -> None:
    """Messages to an exchange that the user may not write to."""
    for path, body in (
        ("users/nobody", {"password": "nobody", "tags": []}),
        ("permissions/%2F/nobody", {"configure": "^$", "write": "^$", "read": "^$"}),
    ):
        request(ports, "PUT", f"/v1/{path}", body)
    data = memoryview(message_frames(120 * MIB, 115 * MIB, "amq.topic"))
    pour([(amqp(ports, "nobody"), data) for _ in range(20)], seconds)


def amqp_transactions(ports: Ports, seconds: float) -> None:
    """Transactions that are never committed."""
    sockets = [amqp(ports) for _ in range(20)]
    data = memoryview(m.method_frame(1, m.TxSelect()) + message_frames(64 * KIB, 64 * KIB) * 1600)
    pour([(sock, data) for sock in sockets], seconds)


def amqp_strangers(ports: Ports, seconds: float) -> None:
    """Handshakes that begin with a large frame."""
    data = memoryview(b"AMQP\0\0\x09\x01" + struct.pack(">BHI", 1, 0, 8000) + bytes(7999))
    pour([(tcp(ports["amqp_port"]), data) for _ in range(1000)], min(seconds, 8))


def amqp_large(ports: Ports, seconds: float) -> None:
    """Whole messages of 100 MiB, one after the other."""
    deadline = time.monotonic() + seconds
    sock = amqp(ports)
    sock.sendall(
        m.method_frame(1, m.QueueDeclare("hostile", exclusive=True, arguments={"x-max-length": 1}))
        + m.method_frame(1, m.ConfirmSelect())
    )
    time.sleep(0.2)
    sock.recv(65536)
    data = message_frames(100 * MIB, 100 * MIB)
    while time.monotonic() < deadline:
        sock.sendall(data)
        sock.recv(65536)


def mqtt_packets(ports: Ports, seconds: float) -> None:
    """Packets of 16 MiB that lack their end."""
    whole = encode(Publish("t", bytes(16 * MIB - 100)), Version.V3_1_1)
    data = memoryview(whole)[: 15 * MIB]
    pour([(mqtt(ports, f"h{number}"), data) for number in range(120)], seconds)


def mqtt_announced(ports: Ports, seconds: float) -> None:
    """Many packets of which only the size is sent."""
    data = memoryview(b"\x30\xff\xff\xff\x07\0\1t")
    pour([(mqtt(ports, f"h{number}"), data) for number in range(2000)], min(seconds, 8))


def mqtt_strangers(ports: Ports, seconds: float) -> None:
    """The same with CONNECT."""
    data = memoryview(b"\x10\xff\x7f" + bytes(16_000))
    pour([(tcp(ports["mqtt_port"]), data) for _ in range(2000)], min(seconds, 8))


def websocket_strangers(ports: Ports, seconds: float) -> None:
    """Frames of 16 MiB that lack their end, before anybody logged in."""
    data = memoryview(frame_head(16 * MIB) + bytes(15 * MIB))
    pour([(websocket(ports), data) for _ in range(150)], seconds)


def websocket_packets(ports: Ports, seconds: float) -> None:
    """The same by clients that did."""
    pieces = []
    for number in range(100):
        connect = encode(Connect(Version.V3_1_1, f"h{number}"), Version.V3_1_1)
        whole = encode(Publish("t", bytes(16 * MIB - 200)), Version.V3_1_1)
        head = frame_head(len(connect)) + connect + frame_head(len(whole))
        pieces.append((websocket(ports), memoryview(head + whole)[: 15 * MIB]))
    pour(pieces, seconds)


def http_bodies(ports: Ports, seconds: float) -> None:
    """Requests whose bodies lack their end."""
    login = b64encode(b"guest:guest").decode()
    head = (
        f"POST /v1/topics/hostile/records HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Basic {login}\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Length: {16 * MIB}\r\n\r\n"
    )
    data = memoryview(head.encode() + bytes(15 * MIB))
    pour([(tcp(ports["http_port"]), data) for _ in range(100)], seconds)


def mqtt_churn(ports: Ports, seconds: float) -> None:
    """Clients that connect, log in and go, and do not close their end."""
    deadline = time.monotonic() + seconds
    kept: list[socket.socket] = []
    for number in itertools.count():
        if time.monotonic() > deadline:
            break
        sock = mqtt(ports, f"h{number % 1000}")
        sock.sendall(b"\xe0\0")
        kept.append(sock)
        if len(kept) > 2000:
            kept.pop(0).close()


ATTACKS: dict[str, Attack] = {
    "unfinished AMQP bodies": amqp_bodies,
    "unfinished bodies on 100 channels": amqp_channels,
    "bodies without permission": amqp_without_right,
    "transactions without end": amqp_transactions,
    "AMQP strangers": amqp_strangers,
    "messages of 100 MiB": amqp_large,
    "unfinished MQTT packets": mqtt_packets,
    "announced MQTT packets": mqtt_announced,
    "MQTT strangers": mqtt_strangers,
    "WebSocket strangers": websocket_strangers,
    "unfinished WebSocket frames": websocket_packets,
    "unfinished HTTP bodies": http_bodies,
    "MQTT churn": mqtt_churn,
    **PROTOCOL_ATTACKS,
}


# --- the measure ---


def run_attack(name: str, ports: Ports, seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with contextlib.suppress(OSError, AssertionError, EOFError):
        ATTACKS[name](ports, seconds)


class Watch:
    """The node's memory, as often as it can be looked at."""

    def __init__(self, node: LiveNode) -> None:
        self.peak = resident_bytes(node)
        self._node = node
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.peak = max(self.peak, resident_bytes(self._node))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def probe(publisher: Publisher, is_over: Callable[[], bool]) -> list[float]:
    times = []
    while not is_over():
        times.append(publisher.publish())
        time.sleep(0.002)
    return sorted(times)


@contextlib.contextmanager
def small_node(directory: Path) -> Iterator[LiveNode]:
    directory.mkdir(exist_ok=True)
    config = directory / "braid.toml"
    config.write_text(
        f"[limits]\nmemory_slow_bytes = {MEMORY_BYTES * 3 // 4}\n"
        f"memory_block_bytes = {MEMORY_BYTES}\n"
    )
    with live_node(directory / "data", config=config) as node:
        yield node


def measure(name: str, context: Context) -> Iterator[Measure]:
    seconds = context.size(int(ATTACK_S), 4)
    with small_node(context.directory()) as node:
        publisher = Publisher(node)
        for _ in range(200):
            publisher.publish()
        before = resident_bytes(node)
        watch = Watch(node)
        process = get_context("spawn").Process(
            target=run_attack, args=(name, dict(node.ports), seconds)
        )
        process.start()
        times = probe(publisher, lambda: not process.is_alive())
        process.join()
        watch.stop()
        yield Measure(
            f"{name}: memory",
            watch.peak / MIB,
            "MiB",
            bar=at_most((MEMORY_BYTES + ABOVE_MEMORY_BYTES) / MIB),
            note=f"before {before // MIB} MiB",
        )
        yield Measure(
            f"{name}: publish p99",
            times[int(len(times) * 0.99)],
            "ms",
            bar=at_most(PROBE_MS_MAX),
            note=f"longest {times[-1]:.0f} ms, of {len(times)}",
        )
        deadline = time.monotonic() + context.size(LEFT_AFTER_S, 15)
        while (left := resident_bytes(node)) > LEFT_MAX * before and time.monotonic() < deadline:
            time.sleep(0.2)
        yield Measure(f"{name}: memory left", left / before, "of before", bar=at_most(LEFT_MAX))
        publisher.close()
        assert node.process.poll() is None, "the node is gone"


BENCHMARKS: dict[str, Benchmark] = {name: partial(measure, name) for name in ATTACKS}

if __name__ == "__main__":
    main("hostile", BENCHMARKS)
