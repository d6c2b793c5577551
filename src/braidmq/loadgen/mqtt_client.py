"""One MQTT connection: calls while it is set up, then bytes."""

import time
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from braidmq.client.tls import TlsOptions, options_in
from braidmq.loadgen.link import CALL_S_MAX, Link, LoadFailed
from braidmq.loadgen.mqtt_load import Publisher, Subscriber, scan
from braidmq.model.errors import SetupError
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Request,
    SubAck,
    Subscribe,
    decode,
    encode,
)
from braidmq.wire.mqtt.properties import NO_PROPERTIES, Properties

PORT, TLS_PORT = 1883, 8883
ERROR = 0x80
VERSION_TOPIC = "$SYS/broker/version"
NAME_S_MAX = 1.0
KEPT_S = 3600
"""How long a persistent session of version 5 outlives its connection."""

_PacketT = TypeVar("_PacketT", bound=Packet)


class BadMqttAddress(SetupError):
    code = "bad-address"
    remedy = "Use a URL such as mqtt://user:password@host:1883"


@dataclass(frozen=True, slots=True)
class MqttAddress:
    host: str
    port: int
    user: str | None
    password: str | None
    tls: TlsOptions | None = None


def parse_mqtt_address(url: str) -> MqttAddress:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise BadMqttAddress(f"{parts.netloc.rpartition('@')[2]} has no valid port") from None
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname:
        raise BadMqttAddress(f"{parts.scheme}://{parts.hostname or ''} is not an MQTT URL")
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    if parts.scheme == "mqtt":
        return MqttAddress(parts.hostname, port or PORT, user, password)
    tls = options_in(parse_qs(parts.query))
    return MqttAddress(parts.hostname, port or TLS_PORT, user, password, tls)


class MqttClient(Link):
    """Set-up calls block; after ``start`` there are only ``receive`` and ``send``."""

    def __init__(
        self, address: MqttAddress, client_id: str, version: int, *, clean: bool = True
    ) -> None:
        super().__init__(address.host, address.port, address.tls)
        self.version = version
        self._unread: list[Packet] = []
        kept = version == Version.V5 and not clean
        connect = Connect(
            version=version,
            client_id=client_id,
            clean_start=clean,
            user_name=address.user,
            password=None if address.password is None else address.password.encode(),
            properties=Properties(session_expiry_interval=KEPT_S) if kept else NO_PROPERTIES,
        )
        answer = self._ask(connect, ConnAck)
        if answer.reason != Reason.SUCCESS:
            raise LoadFailed(f"the broker refused the connection: {answer.reason:#x}")

    # --- set-up, blocking ---

    def subscribe(self, pattern: str, qos: int, options: Properties = NO_PROPERTIES) -> None:
        answer = self._ask(Subscribe(1, (Request(pattern, qos),), options), SubAck)
        if answer.reasons[0] >= ERROR:
            raise LoadFailed(f"the broker refused the subscription: {answer.reasons[0]:#x}")

    def server(self) -> str:
        """What the broker calls itself, if it does."""
        self.subscribe(VERSION_TOPIC, 0)
        self.socket.settimeout(NAME_S_MAX)
        try:
            return self._expect(Publish).payload.decode(errors="replace")
        except LoadFailed:
            return "a broker that does not say its name"
        finally:
            self.socket.settimeout(CALL_S_MAX)

    def _ask(self, packet: Packet, reply: type[_PacketT]) -> _PacketT:
        self.say(encode(packet, self.version))
        return self._expect(reply)

    def _expect(self, wanted: type[_PacketT]) -> _PacketT:
        while True:
            while self._unread:
                packet = self._unread.pop(0)
                if isinstance(packet, wanted):
                    return packet
            self._unread = self.receive(None, None)

    def close(self) -> None:
        try:
            self.socket.settimeout(CALL_S_MAX)
            self.say(encode(Disconnect(), self.version))
        except OSError:
            pass  # whatever was to be learnt is known by now
        finally:
            self.socket.close()

    # --- load ---

    def receive(self, publisher: Publisher | None, subscriber: Subscriber | None) -> list[Packet]:
        """Take what is there; gives the packets that are neither answers nor deliveries."""
        buffer, size = self._fill()
        if not size:
            return []
        took, others = scan(buffer, size, publisher, subscriber, time.perf_counter_ns())
        self._keep(took, size)
        return [self._read(*each) for each in others]

    def read_rest(self, subscriber: Subscriber) -> None:
        """Deliveries that came together with the answer to a call."""
        unread, self._unread = self._unread, []
        data = b"".join(encode(each, self.version) for each in unread)
        if data:
            scan(bytearray(data), len(data), None, subscriber, time.perf_counter_ns())

    def _read(self, kind: int, flags: int, body: bytes) -> Packet:
        packet = decode(self.version, kind, flags, body)
        if isinstance(packet, Disconnect):
            raise LoadFailed(f"the broker disconnected: {packet.reason:#x}")
        return packet
