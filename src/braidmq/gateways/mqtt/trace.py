"""Everything one connection says and hears, decoded, in the log: for whoever looks for a mistake.

It reads the packets for itself, beside the fast path and not in it. Payloads are only counted, and
what a login is made of is left out.
"""

from typing import Any

import msgspec

from braidmq.logs import TRACE, Subject
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.packets import Connect, Packet, Publish, decode
from braidmq.wire.mqtt.properties import Properties
from braidmq.wire.mqtt.text import Reader


class Trace:
    def __init__(self, connection: Subject, version: int) -> None:
        self._connection = connection
        self._version = version

    def received(self, data: bytes) -> None:
        self._split("received", data)

    def sent(self, data: bytes) -> None:
        self._split("sent", data)

    def _split(self, direction: str, data: bytes) -> None:
        """Whole packets only."""
        reader = Reader(data)
        while reader.left:
            first = reader.byte()
            body = reader.take(reader.variable())
            what, facts = self._decoded(first, body)
            facts = {**self._connection.log_fields(), **facts}
            TRACE.info(f"{direction} {what}", extra=facts)

    def _decoded(self, first: int, body: bytes) -> tuple[str, dict[str, Any]]:
        kind = first >> 4
        try:
            packet = decode(self._version, kind, first & 15, body)
        except MqttError as error:
            return "a packet that can't be read", {"kind": kind, "reason": str(error)}
        return Kind(kind).name, {"fields": _facts(packet)}


def _facts(packet: Packet) -> dict[str, Any]:
    facts = msgspec.structs.asdict(packet)
    if isinstance(packet, Publish):
        facts["payload"] = f"{len(packet.payload)} bytes"
    if isinstance(packet, Connect):
        facts |= {"password": "(secret)", "will": None if packet.will is None else "(will)"}
    given = facts.pop("properties", None)
    if isinstance(given, Properties):
        said = msgspec.structs.asdict(given)
        facts |= {name: value for name, value in said.items() if value not in (None, ())}
    return {name: _text(value) for name, value in facts.items()}


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return msgspec.to_builtins(value)
