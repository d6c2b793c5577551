"""A blocking MQTT client of a few lines, for what no polite client does: half packets, wrong order,
silence, answers that never come."""

import socket
from typing import TypeVar

from braidmq.testing.hosted import HostedNode
from braidmq.testing.live import LiveNode
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    SubAck,
    Subscribe,
    decode,
    encode,
)
from braidmq.wire.mqtt.properties import NO_PROPERTIES, Properties
from braidmq.wire.mqtt.text import Reader

WAIT_S = 20.0
P = TypeVar("P", bound=Packet)


class Gone(Exception):
    """The broker hung up."""


class RawMqtt:
    def __init__(self, node: LiveNode | HostedNode, version: int = Version.V5) -> None:
        self.version = version
        self.sock = socket.create_connection(("127.0.0.1", node.ports["mqtt_port"]), WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = bytearray()
        self._next_id = 0

    def __enter__(self) -> "RawMqtt":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    # --- out ---

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join(encode(each, self.version) for each in packets))

    def send_bytes(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except ConnectionError as error:
            raise Gone from error

    def connect(self, client_id: str = "", **fields: object) -> ConnAck:
        self.send(Connect(self.version, client_id, **fields))  # type: ignore[arg-type]
        return self.expect(ConnAck)

    def subscribe(
        self, *filters: str | Request, qos: int = 0, properties: Properties = NO_PROPERTIES
    ) -> tuple[int, ...]:
        requests = [Request(each, qos) if isinstance(each, str) else each for each in filters]
        self.send(Subscribe(self.next_id(), tuple(requests), properties))
        return self.expect(SubAck).reasons

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **fields: object) -> Publish:
        packet = Publish(topic, payload, qos, packet_id=self.next_id() if qos else 0, **fields)  # type: ignore[arg-type]
        self.send(packet)
        return packet

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id

    # --- in ---

    def packet(self) -> Packet:
        """The next packet. Raises Gone at the end."""
        while True:
            found = self._parse()
            if found is not None:
                return found
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionError as error:
                raise Gone from error
            if not data:
                raise Gone
            self._input += data

    def _parse(self) -> Packet | None:
        data = bytes(self._input)
        reader = Reader(data, 1)
        for size in range(2, min(len(data), 5) + 1):
            if data[size - 1] < 0x80:
                length = reader.variable()
                if len(data) < size + length:
                    return None
                del self._input[: size + length]
                body = data[size : size + length]
                return decode(self.version, data[0] >> 4, data[0] & 15, body)
        return None

    def expect(self, kind: type[P]) -> P:
        packet = self.packet()
        assert isinstance(packet, kind), packet
        return packet

    def ping(self) -> list[Packet]:
        """All that comes before the answer to a ping: nothing that was sent earlier is missing."""
        self.send(PingReq())
        found = []
        while not isinstance(packet := self.packet(), PingResp):
            found.append(packet)
        return found

    def message(self) -> Publish:
        """The next message, answered as its QoS wants it."""
        message = self.expect(Publish)
        if message.qos == 1:
            self.send(PubAck(message.packet_id))
        if message.qos == 2:
            self.send(PubRec(message.packet_id))
            assert self.expect(PubRel).packet_id == message.packet_id
            self.send(PubComp(message.packet_id))
        return message

    def answer(self, sent: Publish) -> int:
        """The reason code of PUBACK or PUBREC; the exchange of QoS 2 is completed."""
        if sent.qos == 1:
            answer: PubAck | PubRec = self.expect(PubAck)
        else:
            answer = self.expect(PubRec)
            if answer.reason < 0x80:
                self.send(PubRel(sent.packet_id))
                assert self.expect(PubComp).reason == 0
        assert answer.packet_id == sent.packet_id
        return answer.reason

    def closing(self) -> int:
        """The reason of the broker's DISCONNECT, which must be the last thing it says."""
        reason = self.expect(Disconnect).reason
        self.expect_end()
        return reason

    def expect_end(self) -> None:
        try:
            packet = self.packet()
        except Gone:
            return
        raise AssertionError(packet)
