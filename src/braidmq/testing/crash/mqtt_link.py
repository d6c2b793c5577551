"""MQTT for many messages with little work, and with the state of a session that outlives its
connections on this side as well."""

from collections.abc import Iterator
from typing import TypeVar

from braidmq.testing.crash.clients import Link, NoAnswer
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Request,
    SubAck,
    Subscribe,
    decode,
    encode,
)
from braidmq.wire.mqtt.properties import NO_PROPERTIES, Properties

P = TypeVar("P", bound=Packet)
KEPT_S = 86_400


class Refused(Exception):
    """An error of the broker's, in its own words."""


class MqttLink(Link):
    def __init__(self, port: int, version: int, client_id: str, *, is_kept: bool = True) -> None:
        super().__init__(port)
        self.version = version
        is_5 = version == Version.V5
        keeping = Properties(session_expiry_interval=KEPT_S, receive_maximum=256)
        self.write(
            Connect(
                version,
                client_id,
                clean_start=not is_kept,
                properties=keeping if is_5 and is_kept else NO_PROPERTIES,
            )
        )
        connected = self._expect(ConnAck)
        if connected.reason:
            raise Refused(f"CONNACK 0x{connected.reason:02x}")
        self.session_present = connected.session_present

    def write(self, *packets: Packet) -> None:
        self.send(b"".join(encode(each, self.version) for each in packets))

    def subscribe(self, pattern: str, qos: int, *properties: tuple[str, str]) -> None:
        said = Properties(user_properties=properties) if properties else NO_PROPERTIES
        # Ids of publishes are below: one that is under way must not be taken for this.
        self.write(Subscribe(0xFFFF, (Request(pattern, qos),), said))

    def subscribed(self) -> None:
        reasons = self._expect(SubAck).reasons
        if any(reason > 2 for reason in reasons):
            raise Refused(f"SUBACK {reasons}")

    def _expect(self, kind: type[P]) -> P:
        while True:
            for packet in self.packets():
                if isinstance(packet, kind):
                    return packet
            if not self.receive():
                raise NoAnswer(f"{kind.__name__} did not come")

    def packets(self) -> Iterator[Packet]:
        data = self.input
        start = 0
        try:
            while True:
                found = _frame(data, start)
                if found is None:
                    return
                at, stop = found
                first = data[start]
                packet = decode(self.version, first >> 4, first & 15, bytes(data[at:stop]))
                start = stop
                if isinstance(packet, Disconnect):
                    raise Refused(f"DISCONNECT 0x{packet.reason:02x}")
                yield packet
        finally:
            del data[:start]


def _frame(data: bytearray, start: int) -> tuple[int, int] | None:
    """Where the body of the packet at ``start`` begins and ends; None while it is not all there."""
    length = 0
    for count in range(4):
        at = start + 1 + count
        if at >= len(data):
            return None
        length |= (data[at] & 0x7F) << 7 * count
        if data[at] < 0x80:
            return (at + 1, at + 1 + length) if len(data) >= at + 1 + length else None
    raise Refused("a packet without length")
