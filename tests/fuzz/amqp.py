"""Hold hostile conversations with a live node: ``python -m tests.fuzz.amqp --minutes 600``."""

import argparse
import json
import random
import re
import socket
import struct
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from pathlib import Path

from tests.fuzz.hostile import FRAME_MAX, OPEN, Conversation, conversation

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind

VHOST = "fuzz"
WAIT_S = 20.0
BATCH = 200
"""Conversations in one namespace, which is then deleted with all they left in it."""
GROWTH_BYTES_MAX = 48 << 20


class Found(AssertionError):
    """A finding, with what is needed to see it again."""


class Peer:
    """A socket, and the frames that come from it."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = bytearray()

    def send(self, data: bytes) -> bool:
        try:
            self.sock.sendall(data)
        except ConnectionError:
            return False
        return True

    def frame(self) -> tuple[int, int, bytes] | None:
        """None at the end. A silent broker is a finding: whoever asks expects something."""
        while True:
            if self._input.startswith(b"AMQP"):
                return None  # it answered with its version and will hang up
            if len(self._input) >= 7:
                kind, channel, size = struct.unpack_from(">BHI", self._input)
                if size > FRAME_MAX:
                    raise Found(f"a frame of {size} bytes")
                if len(self._input) >= size + 8:
                    if self._input[size + 7] != 0xCE:
                        raise Found("a frame without its end")
                    payload = bytes(self._input[7 : size + 7])
                    del self._input[: size + 8]
                    return kind, channel, payload
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionError:
                return None
            except TimeoutError:
                raise Found("neither an answer nor an end") from None
            if not data:
                if self._input:
                    raise Found(f"half a frame at the end: {bytes(self._input[:20])!r}")
                return None
            self._input += data

    def log_in(self, vhost: str) -> None:
        self.send(PROTOCOL_HEADER)
        for answer in (
            m.ConnectionStartOk({"capabilities": {"basic.nack": True}}, "PLAIN", b"\0guest\0guest"),
            m.ConnectionTuneOk(2047, FRAME_MAX, 0),
        ):
            self.frame()
            self.send(m.method_frame(0, answer))
        self.send(m.method_frame(0, m.ConnectionOpen(vhost)))
        self.send(b"".join(m.method_frame(channel, m.ChannelOpen()) for channel in OPEN))
        for _ in ("connection", *OPEN):
            if self.frame() is None:
                raise Found("a good login is refused")

    def end(self, how: str) -> None:
        if how == "reset":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Neighbour:
    """It publishes and consumes all the while, and each message comes back, once and whole."""

    def __init__(self, port: int) -> None:
        self._peer = Peer(port)
        self._peer.log_in("/")
        self._number = 0
        for method in (m.QueueDeclare("n", exclusive=True), m.BasicConsume("n", no_ack=True)):
            self._peer.send(m.method_frame(1, method))
            self._peer.frame()

    def works(self) -> None:
        self._number += 1
        body = str(self._number).encode()
        publish = m.method_frame(1, m.BasicPublish("", "n"))
        header = struct.pack(">HHQH", 60, 0, len(body), 0)
        self._peer.send(publish + m.frame(2, 1, header) + m.frame(3, 1, body))
        got = [self._peer.frame() for _ in range(3)]
        if [each and each[0] for each in got] != [1, 2, 3] or got[2] is None or got[2][2] != body:
            raise Found(f"the neighbour got {got} for its message {self._number}")

    def close(self) -> None:
        self._peer.sock.close()


def hold(port: int, talk: Conversation) -> None:
    peer = Peer(port)
    try:
        if talk.logged_in:
            peer.log_in(VHOST)
        for piece in talk.pieces:
            if not peer.send(piece):
                break
        if talk.ending in ("drop", "reset"):
            return
        if talk.ending == "shut":
            try:
                peer.sock.shutdown(socket.SHUT_WR)
            except OSError:
                return
        listen(peer, talk.codes)
    finally:
        peer.end(talk.ending)


def listen(peer: Peer, wanted: tuple[int, ...]) -> None:
    """To the end, or to the close that is wanted."""
    while (frame := peer.frame()) is not None:
        kind, _, payload = frame
        if kind != FrameKind.METHOD:
            continue
        method = m.decode(payload)
        if isinstance(method, m.ConnectionClose):
            if method.reply_code == 541:
                raise Found(f"internal error: {method.reply_text}")
            if wanted and method.reply_code not in wanted:
                raise Found(f"{wanted} was due, not {method.reply_code} {method.reply_text}")
            peer.send(m.method_frame(0, m.ConnectionCloseOk()))
            wanted = ()
        elif isinstance(method, m.ChannelClose) and method.reply_code == 541:
            raise Found(f"internal error: {method.reply_text}")
    if wanted:
        raise Found(f"{wanted} was due, and it hung up without a word")


class Session:
    """A node, its neighbour, and what is watched."""

    def __init__(self, node: LiveNode) -> None:
        self.node = node
        self.port = node.ports["amqp_port"]
        self.neighbour = Neighbour(self.port)
        self.before = 0

    def run(self, seed: int, first: int, count: int) -> None:
        for number in range(first, first + count):
            if number % BATCH == 0 or number == first:
                self._renew()
            talk = conversation(seed << 32 | number)
            try:
                hold(self.port, talk)
                self.neighbour.works()
                self._look_at_output()
            except Exception as error:
                raise Found(f"--seed {seed} --only {number}: {error}") from error

    def _renew(self) -> None:
        for method, path, body in (
            ("DELETE", f"namespaces/{VHOST}", None),
            ("PUT", f"namespaces/{VHOST}", {}),
            (
                "PUT",
                f"permissions/{VHOST}/guest",
                dict.fromkeys(("configure", "write", "read"), ".*"),
            ),
        ):
            request = urllib.request.Request(
                f"{self.node.http_url}/v1/{path}",
                None if body is None else json.dumps(body).encode(),
                {"Authorization": "Basic " + b64encode(b"guest:guest").decode()},
                method=method,
            )
            try:
                urllib.request.urlopen(request, timeout=WAIT_S).close()
            except urllib.error.HTTPError as error:
                error.close()
                if error.code != 404:
                    raise

    def _look_at_output(self) -> None:
        if self.node.process.poll() is not None:
            raise Found("the node is gone")
        said = self.node.complaints
        if said:
            raise Found("the node said: " + " / ".join(said))

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.node.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def check_growth(self) -> int:
        """From the first time it is asked; everything the peers left is deleted first."""
        self._renew()
        now = self.resident_bytes()
        self.before = self.before or now
        if now - self.before > GROWTH_BYTES_MAX:
            raise Found(f"memory grew from {self.before >> 20} to {now >> 20} MiB")
        return now


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 16))
    parser.add_argument("--only", type=int, help="one conversation")
    options = parser.parse_args()
    deadline = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory() as data, live_node(Path(data)) as node:
        session = Session(node)
        if options.only is not None:
            session.run(options.seed, options.only, 1)
            return 0
        number = 0
        while time.monotonic() < deadline:
            session.run(options.seed, number, 5 * BATCH)
            number += 5 * BATCH
            memory = session.check_growth()
            sys.stdout.write(f"seed {options.seed}: {number} held, {memory >> 20} MiB\n")
            sys.stdout.flush()
        session.neighbour.close()
        return node.stop()


if __name__ == "__main__":
    sys.exit(main())
