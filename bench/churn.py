"""Clients that come and go: ``python -m bench.churn --connects 1000000``.

They connect over AMQP, MQTT and WebSocket, log in and leave; among them are some that reset their
connections, stop in the middle of the handshake, or have a wrong password. Whoever does it right
must be served, and in the end the node has as many files and as much memory as at the start.
"""

import argparse
import random
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path

from bench.connections import resident_bytes
from bench.hostile_wire import SWITCH, frame_head
from braidmq.model.limits import MIB
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import PROTOCOL_HEADER
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import Connect, encode

PROCESSES = 4
WAIT_S = 30.0
WARM = 2000
"""The first connections pay for what all share."""
FILES_MORE = 8
"""What a node may open by itself meanwhile: a file of the journal, a segment."""
MEMORY_MORE = 1.2
SETTLE_S = 20.0
RESET = struct.pack("ii", 1, 0)

Ports = dict[str, int]
Counts = Counter[str]


class Refused(Exception):
    """Somebody who did everything right was not served."""


def opened(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), WAIT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def heard(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(4096)
    while data and len(data) < size:
        more = sock.recv(4096)
        if not more:
            break
        data += more
    if len(data) < size:
        raise Refused(f"{len(data)} bytes, and not {size}: {data!r}")
    return data


# --- AMQP ---

AMQP_LOG_IN = m.method_frame(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
AMQP_WRONG = m.method_frame(0, m.ConnectionStartOk({}, "PLAIN", b"\0nobody\0wrong"))
AMQP_OPEN = m.method_frame(0, m.ConnectionTuneOk(2047, 131072, 0)) + m.method_frame(
    0, m.ConnectionOpen("/")
)
AMQP_CLOSE = m.method_frame(0, m.ConnectionClose(200, "", 0, 0))
OPEN_OK, CLOSE_OK = b"\0\x0a\0\x29", b"\0\x0a\0\x33"


def amqp_method(sock: socket.socket, ids: bytes) -> None:
    data = heard(sock, 12)
    if data[7:11] != ids:
        raise Refused(f"{data!r}")


def amqp_hello(ports: Ports) -> socket.socket:
    sock = opened(ports["amqp_port"])
    sock.sendall(PROTOCOL_HEADER)
    heard(sock, 100)
    return sock


def amqp(ports: Ports) -> socket.socket:
    sock = amqp_hello(ports)
    sock.sendall(AMQP_LOG_IN)
    heard(sock, 20)
    sock.sendall(AMQP_OPEN)
    amqp_method(sock, OPEN_OK)
    return sock


def amqp_polite(ports: Ports) -> None:
    with amqp(ports) as sock:
        sock.sendall(AMQP_CLOSE)
        amqp_method(sock, CLOSE_OK)


def amqp_reset(ports: Ports) -> None:
    with amqp(ports) as sock:
        sock.sendall(AMQP_CLOSE)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def amqp_half(ports: Ports) -> None:
    with amqp_hello(ports) as sock:
        sock.sendall(AMQP_LOG_IN[:9])


def amqp_wrong(ports: Ports) -> None:
    with amqp_hello(ports) as sock:
        sock.sendall(AMQP_WRONG)
        sock.recv(4096)


# --- MQTT ---

CONNECT = encode(Connect(Version.V3_1_1, ""), Version.V3_1_1)
WRONG = encode(Connect(Version.V3_1_1, "", user_name="nobody", password=b"x"), Version.V3_1_1)
CONNECTED = b"\x20\2\0\0"
DISCONNECT = b"\xe0\0"


def mqtt(ports: Ports, connect: bytes = CONNECT) -> socket.socket:
    sock = opened(ports["mqtt_port"])
    sock.sendall(connect)
    if connect == CONNECT and (answer := heard(sock, 4)) != CONNECTED:
        raise Refused(f"{answer!r}")
    return sock


def mqtt_polite(ports: Ports) -> None:
    with mqtt(ports) as sock:
        sock.sendall(DISCONNECT)


def mqtt_gone(ports: Ports) -> None:
    mqtt(ports).close()


def mqtt_reset(ports: Ports) -> None:
    with opened(ports["mqtt_port"]) as sock:
        sock.sendall(CONNECT + DISCONNECT)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def mqtt_half(ports: Ports) -> None:
    with opened(ports["mqtt_port"]) as sock:
        sock.sendall(CONNECT[:7])


def mqtt_wrong(ports: Ports) -> None:
    with mqtt(ports, WRONG) as sock:
        sock.recv(4096)


# --- MQTT over WebSocket ---


def websocket(ports: Ports) -> socket.socket:
    sock = opened(ports["ws_port"])
    sock.sendall(SWITCH)
    answer = heard(sock, 12)
    while not answer.endswith(b"\r\n\r\n"):
        answer += heard(sock, 1)
    if b" 101 " not in answer:
        raise Refused(f"{answer!r}")
    return sock


def websocket_polite(ports: Ports) -> None:
    with websocket(ports) as sock:
        sock.sendall(frame_head(len(CONNECT)) + CONNECT)
        if heard(sock, 6)[2:] != CONNECTED:
            raise Refused("not connected")
        sock.sendall(frame_head(len(DISCONNECT)) + DISCONNECT)


def websocket_reset(ports: Ports) -> None:
    with websocket(ports) as sock:
        sock.sendall(frame_head(len(CONNECT)) + CONNECT)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def websocket_half(ports: Ports) -> None:
    with opened(ports["ws_port"]) as sock:
        sock.sendall(SWITCH[:50])


COMINGS: list[tuple[Callable[[Ports], None], int]] = [
    (amqp_polite, 30),
    (amqp_reset, 5),
    (amqp_half, 5),
    (mqtt_polite, 30),
    (mqtt_gone, 5),
    (mqtt_reset, 5),
    (mqtt_half, 5),
    (websocket_polite, 10),
    (websocket_reset, 2),
    (websocket_half, 2),
    (mqtt_wrong, 0.05),
    (amqp_wrong, 0.05),
]
"""Who comes, and how often. A wrong password costs the node 20 ms, on purpose."""


def come_and_go(ports: Ports, count: int, seed: int, results: "Queue[Counts]") -> None:
    chosen = random.Random(seed)
    kinds, weights = zip(*COMINGS, strict=True)
    counts: Counts = Counter()
    for kind in chosen.choices(kinds, weights, k=count):
        try:
            kind(ports)
            counts[kind.__name__] += 1
        except (OSError, Refused) as error:
            counts[f"FAILED {kind.__name__}: {error!r}"[:200]] += 1
    results.put(counts)


def churn(ports: Ports, connects: int, processes: int = PROCESSES) -> Counts:
    """How often each kind came, and what failed that should not."""
    context = get_context("spawn")
    results: Queue[Counts] = context.Queue()
    workers = [
        context.Process(
            target=come_and_go, args=(dict(ports), connects // processes, seed, results)
        )
        for seed in range(processes)
    ]
    for each in workers:
        each.start()
    counts: Counts = Counter()
    for _ in workers:
        counts += results.get()
    for each in workers:
        each.join()
    return counts


def open_files(node: LiveNode) -> int:
    return sum(1 for _ in Path(f"/proc/{node.process.pid}/fd").iterdir())


def settled(node: LiveNode, files: int, memory: float) -> bool:
    """Whether the node has no more than that, before long."""
    deadline = time.monotonic() + SETTLE_S
    while open_files(node) > files or resident_bytes(node) > memory:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.churn")
    parser.add_argument("--connects", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as root, live_node(Path(root)) as node:
        churn(node.ports, WARM, options.processes)
        time.sleep(5)
        files, memory = open_files(node), resident_bytes(node)
        began = time.monotonic()
        counts = churn(node.ports, options.connects, options.processes)
        took_s = time.monotonic() - began
        is_settled = settled(node, files + FILES_MORE, MEMORY_MORE * memory)
        for name, count in sorted(counts.items()):
            print(f"{count:>9,}  {name}")
        print(f"{options.connects / took_s:,.0f} connects/s")
        print(f"files: {files} before, {open_files(node)} after")
        print(f"memory: {memory // MIB} MiB before, {resident_bytes(node) // MIB} MiB after")
        failed = any(name.startswith("FAILED") for name in counts) or not is_settled
        print("NOT as it must be" if failed else "as it must be")
        sys.exit(failed)


if __name__ == "__main__":
    main()
