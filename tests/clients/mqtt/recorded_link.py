"""A relay between a client and a node that keeps what both sides of a session say at QoS 2, through
all its connections: who sent a message again, and whether they had the right to."""

import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from braidmq.wire.mqtt.constants import Kind, Version
from braidmq.wire.mqtt.errors import MalformedPacket
from braidmq.wire.mqtt.packets import Packet, PubComp, Publish, PubRel, decode
from braidmq.wire.mqtt.text import Reader

EXACTLY_ONCE = 2
WAIT_S = 60.0


class Exchanges:
    """Of one side as the sender. Between PUBREL and PUBCOMP it must not publish again
    (MQTT-4.3.3-6): the receiver has forgotten the packet id, and takes it for another message. One
    that was killed in between can't know whether it had sent PUBCOMP, after which it has to."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[str, bool]] = {}
        """By packet id what was published with it, and whether PUBREL followed."""
        self.begun: Counter[str] = Counter()
        """How often the receiver may take each for a new one."""
        self.broken: Counter[str] = Counter()
        """How often each was published again in spite of its PUBREL."""

    def sent(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and packet.qos == EXACTLY_ONCE:
            what = f"{packet.topic}={packet.payload.decode()}"
            before, is_released = self._open.get(packet.packet_id, ("", False))
            if before == what and not is_released:
                return
            self.begun[what] += 1
            if before == what:
                self.broken[what] += 1
            self._open[packet.packet_id] = (what, False)
        elif isinstance(packet, PubRel) and packet.packet_id in self._open:
            self._open[packet.packet_id] = (self._open[packet.packet_id][0], True)

    def answered(self, packet: Packet) -> None:
        if isinstance(packet, PubComp):
            self._open.pop(packet.packet_id, None)


class RecordedLink:
    """It speaks 3.1.1; of other versions it keeps nothing, and hands on everything."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._changed = threading.Condition()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.refused = 0
        """Connections that found no node."""
        self.from_client, self.from_node = Exchanges(), Exchanges()

    def wait_until_refused(self, times: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.refused >= times, WAIT_S)

    def __enter__(self) -> "RecordedLink":
        self._run(self._accept)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: object, _trace: TracebackType | None
    ) -> None:
        self._end(self._listener)
        self._threads[0].join(WAIT_S)
        for each in self._sockets:
            self._end(each)
        for thread in self._threads[1:]:
            thread.join(WAIT_S)
        for each in (self._listener, *self._sockets):
            each.close()

    def _run(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # it ends with the listener
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                try:
                    node = socket.create_connection(("127.0.0.1", self._to_port), WAIT_S)
                except ConnectionRefusedError:
                    self._end(client)
                    with self._changed:
                        self.refused += 1
                        self._changed.notify_all()
                    continue
                node.settimeout(None)
                self._sockets.append(node)
                self._run(self._hand_on, client, node, self.from_client, self.from_node)
                self._run(self._hand_on, node, client, self.from_node, self.from_client)

    def _hand_on(
        self, source: socket.socket, to: socket.socket, sender: Exchanges, other: Exchanges
    ) -> None:
        """It is kept before it is handed on: nothing seems to be answered before it was said."""
        unread = b""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                unread = self._keep(unread + data, sender, other)
                to.sendall(data)
        self._end(source)
        self._end(to)

    def _keep(self, data: bytes, sender: Exchanges, other: Exchanges) -> bytes:
        """Returns what is not whole yet."""
        reader, done = Reader(data), 0
        with suppress(MalformedPacket), self._changed:
            while reader.left:
                first = reader.byte()
                body = reader.take(reader.variable())
                done = reader.at
                if first >> 4 in (Kind.PUBLISH, Kind.PUBREL, Kind.PUBCOMP):
                    packet = decode(Version.V3_1_1, first >> 4, first & 15, body)
                    sender.sent(packet)
                    other.answered(packet)
        return data[done:]

    @staticmethod
    def _end(sock: socket.socket) -> None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
