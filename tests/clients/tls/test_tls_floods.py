"""Strangers who mean harm before anybody knows them: bounded, and others are served."""

import contextlib
import socket
import ssl
import threading

import pytest
from tls_node import TlsNode

from braidmq.loadgen.broker_process import BrokerProcess
from braidmq.model.limits import MIB
from braidmq.net.tls_handshakes import HANDSHAKES_MAX

WAIT_S = 60
CONNECT = b"\x10\x0c\0\4MQTT\4\2\0\0\0\0"
PING, PONG = b"\xc0\0", b"\xd0\0"
HALF = HANDSHAKES_MAX + 200


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("said", ["nothing", "half", "whole"])
def test_handshakes_that_never_go_on(secure: TlsNode, said: str) -> None:
    """More than may be under way: memory stays, and who comes and who is there is served."""
    hello = client_hello()
    data = {"nothing": b"", "half": hello[: len(hello) // 2], "whole": hello}[said]
    broker = BrokerProcess(secure.live.process.pid)
    before = broker.rss_bytes()
    address = ("localhost", secure.ports["amqps"])
    plain = socket.create_connection(("localhost", secure.ports["mqtts"]), WAIT_S)
    with (
        contextlib.ExitStack() as stack,
        secure.context().wrap_socket(plain, server_hostname="localhost") as link,
    ):
        link.sendall(CONNECT)
        assert link.recv(4) == b"\x20\2\0\0"
        for number in range(HALF):
            half = stack.enter_context(socket.create_connection(address, WAIT_S))
            with contextlib.suppress(OSError):
                half.sendall(data)
            if number % 100 == 0:
                link.sendall(PING)
                assert link.recv(2) == PONG
        with secure.http() as http:
            text = http.get("/metrics").text
        (line,) = [each for each in text.splitlines() if each.startswith("braid_tls_handshakes_op")]
        assert float(line.rpartition(" ")[2]) <= HANDSHAKES_MAX
        assert broker.rss_bytes() - before < HANDSHAKES_MAX * 100_000 + 20 * MIB


def test_a_flood_of_handshakes(secure: TlsNode) -> None:
    """Whoever is connected is answered meanwhile."""
    hello = client_hello()
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("localhost", secure.ports["amqps"]), WAIT_S) as sock,
            ):
                sock.sendall(hello)
                sock.recv(1)

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for each in threads:
        each.start()
    try:
        plain = socket.create_connection(("localhost", secure.ports["mqtts"]), WAIT_S)
        with secure.context().wrap_socket(plain, server_hostname="localhost") as link:
            link.sendall(CONNECT)
            assert link.recv(4) == b"\x20\2\0\0"
            for _ in range(200):
                link.sendall(PING)
                assert link.recv(2) == PONG
    finally:
        stop.set()
        for each in threads:
            each.join(WAIT_S)


@pytest.mark.parametrize("port", ["amqps", "mqtts", "wss", "https"])
def test_bytes_of_all_kinds(secure: TlsNode, port: str) -> None:
    """Records of any kind, with any length, cut anywhere: only that connection ends."""
    hello = client_hello()
    kinds = [bytes([kind, 3, 3]) + size + b"x" * 50 for kind in range(20, 25) for size in SIZES]
    for data in (hello * 9, hello[:5] + b"\xff" * 500, hello[:100] + hello, *kinds):
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("localhost", secure.ports[port]), WAIT_S) as sock,
        ):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
    with secure.http() as http:
        assert http.get("/health").status_code == 200


SIZES = [b"\0\0", b"\0\1", b"\x40\0", b"\xff\xff"]
