"""What TLS costs a link: processor time to read and to write, beside the same link without it.

In one process and in turns; of many rounds the least counts, which hardly depends on what else the
machine does. The floor is the cipher alone, as ``openssl speed`` has it.
"""

import asyncio
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

import uvloop

from bench.harness import Context, Measure
from braidmq.model.limits import KIB, MIB
from braidmq.net.tcp import Poller, TcpLink
from braidmq.net.tls import TlsLink
from braidmq.net.tls_contexts import TlsContext
from braidmq.net.tls_handshakes import Handshakes, TlsPort
from braidmq.testing.certificates import Authority

TURN_BYTES = 160_000
"""A thousand publishes of QoS 1 with 128 bytes."""
SEGMENT_BYTES = 1448
"""Of TCP over Ethernet: what a receiver that is quick sees at a time."""
SMALL_BYTES = 100
ROUNDS = 1500
OUTPUT_HIGH_BYTES = 16 * MIB


class Sink:
    """Takes all that comes."""

    wanted_bytes = 0
    received = 0

    def receive(self, data: memoryview, size: int) -> int:
        self.received += size
        return size

    def pause_output(self, paused: bool) -> None:
        """There is room for all."""

    def refuse_output(self, text: str) -> None:
        """As above."""

    def lost(self) -> None:
        """At the end."""


class Plain:
    """A link, and the socket at its other end."""

    kind: type[TcpLink] = TcpLink

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        ours, self.peer = socket.socketpair()
        for each in (ours, self.peer):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
        self.sink = Sink()
        self.poller = Poller(loop)
        self.link = self.kind(self.poller, ours.detach(), "::1", 7, 256 * KIB, OUTPUT_HIGH_BYTES)

    async def establish(self, _: Authority) -> None:
        self.link.start(self.sink)

    def close(self) -> None:
        self.link.abort()
        self.poller.close()
        self.peer.close()

    def encrypted(self, data: bytes) -> bytes:
        return data

    def decrypted(self, data: bytes) -> int:
        return len(data)

    def read(self, data: bytes, segment: int) -> int:
        """Nanoseconds of processor, of which what the peer does is none."""
        view, used = memoryview(self.encrypted(data)), 0
        wanted = self.sink.received + len(data)
        while self.sink.received < wanted:
            if view:
                view = view[self.peer.send(view[:segment]) :]
            began = time.thread_time_ns()
            self.poller._ready()  # type: ignore[attr-defined]  # what the loop calls
            used += time.thread_time_ns() - began
        return used

    def write(self, data: bytes) -> int:
        got, began = 0, time.thread_time_ns()
        self.link.write(data)
        used = time.thread_time_ns() - began
        while got < len(data):
            got += self.decrypted(self.peer.recv(MIB))
            began = time.thread_time_ns()
            self.poller._ready()  # type: ignore[attr-defined]  # on with what there was no room for
            used += time.thread_time_ns() - began if self.link.unsent_bytes else 0
        return used


class Encrypted(Plain):
    kind = TlsLink

    async def establish(self, authority: Authority) -> None:
        pair = authority.for_node()
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(pair.cert, pair.key)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = ssl.create_default_context(cafile=str(authority.file)).wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost"
        )
        loop = asyncio.get_running_loop()
        handshakes = Handshakes(loop, 60)
        assert isinstance(self.link, TlsLink)
        port = TlsPort(handshakes, "tls", TlsContext(server, (), None))
        port.begin(self.link, lambda _: self.sink)
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await loop.sock_sendall(self.peer, self.outgoing.read())
                self.incoming.write(await loop.sock_recv(self.peer, MIB))
        await loop.sock_sendall(self.peer, self.outgoing.read())
        while not handshakes.counts.done["tls"]:
            await asyncio.sleep(0)
        handshakes.close()

    def encrypted(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    def decrypted(self, data: bytes) -> int:
        self.incoming.write(data)
        got = 0
        try:
            while True:
                got += len(self.tls.read(MIB))
        except ssl.SSLWantReadError:
            return got


def link(context: Context) -> Iterator[Measure]:
    loop = uvloop.new_event_loop()
    authority = Authority(context.directory())
    large, small = bytes(TURN_BYTES), bytes(SMALL_BYTES)
    with (
        closing(loop),
        closing(Plain(loop)) as plain,
        closing(Encrypted(loop)) as encrypted,
    ):
        least: dict[str, dict[Plain, int]] = {}
        for each in (plain, encrypted):
            loop.run_until_complete(each.establish(authority))
        for _ in range(context.size(ROUNDS, 100)):
            for each in (plain, encrypted):
                for what, used in (
                    (f"read {TURN_BYTES} bytes at once", each.read(large, TURN_BYTES * 2)),
                    (f"read them by {SEGMENT_BYTES}", each.read(large, SEGMENT_BYTES)),
                    (f"write {TURN_BYTES} bytes", each.write(large)),
                    (f"read {SMALL_BYTES} bytes", each.read(small, SMALL_BYTES * 2)),
                    (f"write {SMALL_BYTES} bytes", each.write(small)),
                ):
                    found = least.setdefault(what, {})
                    found[each] = min(used, found.get(each, used))
    for what, of in least.items():
        yield Measure(
            f"a link over TLS: {what}",
            of[encrypted] / 1000,
            "µs of processor",
            ratio=of[encrypted] / of[plain],
            baseline=of[plain] / 1000,
            against="plain",
        )
    yield Measure(
        f"the cipher alone: {TURN_BYTES} bytes",
        TURN_BYTES / cipher_bytes_a_second() * 1e6,
        "µs of processor",
        note=f"AES-256-GCM, {ssl.OPENSSL_VERSION}",
    )


def cipher_bytes_a_second() -> float:
    command = ["openssl", "speed", "-seconds", "1", "-bytes", "16384", "-evp", "aes-256-gcm"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"^AES-256-GCM +([\d.]+)k", done.stdout, re.MULTILINE | re.IGNORECASE)
    assert found, done.stdout
    return float(found[1]) * 1000
