"""The packets of MQTT as bytes, for the scenarios' client: written apart from the product's codec.

What is sent may be wrong in any way, so nothing is checked; what comes back is read strictly.
"""

import struct
from typing import Any

V3, V5 = 4, 5

NAMES = (
    "", "connect", "connack", "publish", "puback", "pubrec", "pubrel", "pubcomp", "subscribe",
    "suback", "unsubscribe", "unsuback", "pingreq", "pingresp", "disconnect", "auth",
)  # fmt: skip
KINDS = {name: kind for kind, name in enumerate(NAMES) if name}

PROPERTIES: dict[str, tuple[int, str]] = {
    "payload_format": (0x01, "byte"),
    "message_expiry": (0x02, "u32"),
    "content_type": (0x03, "text"),
    "response_topic": (0x08, "text"),
    "correlation": (0x09, "data"),
    "subscription_id": (0x0B, "variable"),
    "session_expiry": (0x11, "u32"),
    "assigned_id": (0x12, "text"),
    "server_keep_alive": (0x13, "u16"),
    "auth_method": (0x15, "text"),
    "auth_data": (0x16, "data"),
    "request_problem": (0x17, "byte"),
    "will_delay": (0x18, "u32"),
    "request_response": (0x19, "byte"),
    "response_information": (0x1A, "text"),
    "server_reference": (0x1C, "text"),
    "reason_string": (0x1F, "text"),
    "receive_maximum": (0x21, "u16"),
    "topic_alias_maximum": (0x22, "u16"),
    "topic_alias": (0x23, "u16"),
    "maximum_qos": (0x24, "byte"),
    "retain_available": (0x25, "byte"),
    "user": (0x26, "pair"),
    "maximum_packet_size": (0x27, "u32"),
    "wildcards_available": (0x28, "byte"),
    "subscription_ids_available": (0x29, "byte"),
    "shared_available": (0x2A, "byte"),
}
SEVERAL = ("user", "subscription_id")

Properties = dict[str, Any] | None


# --- writing ---


def variable(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))


def data(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def text(value: str | bytes) -> bytes:
    return data(value if isinstance(value, bytes) else value.encode())


def packet(kind: str | int, body: bytes = b"", flags: int = 0) -> bytes:
    number = KINDS[kind] if isinstance(kind, str) else kind
    return bytes((number << 4 | flags,)) + variable(len(body)) + body


def properties(version: int, given: Properties) -> bytes:
    """With their length; nothing in 3.1.1. A list stands for the property several times."""
    if version != V5:
        return b""
    out = b""
    for name, value in (given or {}).items():
        number, kind = PROPERTIES[name]
        for each in value if isinstance(value, list) else [value]:
            out += bytes((number,)) + _WRITERS[kind](each)
    return variable(len(out)) + out


_WRITERS: dict[str, Any] = {
    "byte": lambda value: bytes((value,)),
    "u16": lambda value: struct.pack(">H", value),
    "u32": lambda value: struct.pack(">I", value),
    "variable": variable,
    "data": data,
    "text": text,
    "pair": lambda pair: text(pair[0]) + text(pair[1]),
}


def connect(
    version: int,
    client_id: str | bytes,
    *,
    clean: bool = True,
    keep_alive: int = 60,
    will: dict[str, Any] | None = None,
    user: str | bytes | None = None,
    password: bytes | None = None,
    protocol: str = "MQTT",
    level: int | None = None,
    flags: int = 0,
    tail: bytes = b"",
    props: Properties = None,
) -> bytes:
    """``flags`` are set besides those that are meant; ``tail`` stands behind the end."""
    flags |= 2 if clean else 0
    body = text(client_id)
    if will is not None:
        flags |= 4 | will.get("qos", 0) << 3 | (32 if will.get("retain") else 0)
        body += properties(version, will.get("props")) + text(will["topic"])
        body += data(will.get("payload", b"gone"))
    if user is not None:
        flags |= 128
        body += text(user)
    if password is not None:
        flags |= 64
        body += data(password)
    head = text(protocol) + bytes((version if level is None else level, flags))
    head += struct.pack(">H", keep_alive) + properties(version, props)
    return packet("connect", head + body + tail)


def publish(
    version: int,
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    props: Properties = None,
) -> bytes:
    flags = dup << 3 | qos << 1 | retain
    body = text(topic) + (struct.pack(">H", packet_id) if qos else b"")
    return packet("publish", body + properties(version, props) + payload, flags)


def answer(
    version: int, kind: str, packet_id: int, reason: int = 0, props: Properties = None
) -> bytes:
    """PUBACK and its kin, in their shortest form."""
    body = struct.pack(">H", packet_id)
    if version == V5 and (reason or props):
        body += bytes((reason,)) + (properties(version, props) if props else b"")
    return packet(kind, body, 2 if kind == "pubrel" else 0)


def subscribe(
    version: int, packet_id: int, filters: list[tuple[str | bytes, int]], props: Properties = None
) -> bytes:
    body = struct.pack(">H", packet_id) + properties(version, props)
    body += b"".join(text(each) + bytes((options,)) for each, options in filters)
    return packet("subscribe", body, 2)


def unsubscribe(
    version: int, packet_id: int, filters: list[str | bytes], props: Properties = None
) -> bytes:
    body = struct.pack(">H", packet_id) + properties(version, props)
    return packet("unsubscribe", body + b"".join(text(each) for each in filters), 2)


def ending(version: int, kind: str, reason: int | None = None, props: Properties = None) -> bytes:
    """DISCONNECT or AUTH."""
    body = b""
    if version == V5 and (reason is not None or props):
        body = bytes((reason or 0,)) + (properties(version, props) if props is not None else b"")
    return packet(kind, body)


# --- reading ---


class Unreadable(Exception):
    """The broker sent what the specification does not allow."""


class Reader:
    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def take(self, count: int) -> bytes:
        found = self.body[self.at : self.at + count]
        if len(found) < count:
            raise Unreadable("a packet ends inside a field")
        self.at += count
        return found

    @property
    def left(self) -> int:
        return len(self.body) - self.at

    def byte(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2))

    def u32(self) -> int:
        return int.from_bytes(self.take(4))

    def data(self) -> bytes:
        return self.take(self.u16())

    def text(self) -> str:
        return self.data().decode()

    def variable(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def properties(self) -> dict[str, Any]:
        part = Reader(self.take(self.variable()))
        found: dict[str, Any] = {}
        while part.left:
            number = part.byte()
            name, kind = next(
                (name, kind) for name, (id_, kind) in PROPERTIES.items() if id_ == number
            )
            value = _READERS[kind](part)
            if name in SEVERAL:
                found.setdefault(name, []).append(value)
            elif name in found:
                raise Unreadable(f"{name} twice")
            else:
                found[name] = value
        return found


_READERS: dict[str, Any] = {
    "byte": Reader.byte,
    "u16": Reader.u16,
    "u32": Reader.u32,
    "variable": Reader.variable,
    "data": lambda reader: reader.data().decode("latin-1"),
    "text": Reader.text,
    "pair": lambda reader: [reader.text(), reader.text()],
}


def read(version: int, first: int, body: bytes) -> dict[str, Any]:
    """A packet of the broker as plain data."""
    kind, flags = NAMES[first >> 4], first & 15
    if kind not in READ or (kind != "publish" and flags != (2 if kind == "pubrel" else 0)):
        raise Unreadable(f"{kind or 'kind 0'} with flags {flags} from a broker")
    reader = Reader(body)
    event: dict[str, Any] = {"m": kind}
    READ[kind](reader, version, flags, event)
    if reader.left:
        raise Unreadable(f"{reader.left} bytes too many in a {kind}")
    return event


def _read_connack(reader: Reader, _version: int, _flags: int, event: dict[str, Any]) -> None:
    event["present"], event["code"] = reader.byte(), reader.byte()
    if reader.left:  # the refusal of an unknown version is in the words of 3.1.1
        event["props"] = reader.properties()


def _read_publish(reader: Reader, version: int, flags: int, event: dict[str, Any]) -> None:
    event |= {"topic": reader.text(), "qos": flags >> 1 & 3}
    if flags & 8:
        event["dup"] = True
    if flags & 1:
        event["retain"] = True
    if flags & 6:
        event["id"] = reader.u16()
    if version == V5:
        event["props"] = reader.properties()
    event["payload"] = reader.take(reader.left).decode("latin-1")


def _read_answer(reader: Reader, version: int, _flags: int, event: dict[str, Any]) -> None:
    event["id"] = reader.u16()
    if version == V5:
        event["code"] = reader.byte() if reader.left else 0
        event["props"] = reader.properties() if reader.left else {}


def _read_suback(reader: Reader, version: int, _flags: int, event: dict[str, Any]) -> None:
    event["id"] = reader.u16()
    if version == V5:
        event["props"] = reader.properties()
    event["codes"] = list(reader.take(reader.left))


def _read_ending(reader: Reader, _version: int, _flags: int, event: dict[str, Any]) -> None:
    event["code"] = reader.byte() if reader.left else 0
    event["props"] = reader.properties() if reader.left else {}


READ: dict[str, Any] = {
    "connack": _read_connack,
    "publish": _read_publish,
    **dict.fromkeys(("puback", "pubrec", "pubrel", "pubcomp"), _read_answer),
    "suback": _read_suback,
    "unsuback": _read_suback,
    "pingresp": lambda *_: None,
    "disconnect": _read_ending,
    "auth": _read_ending,
}
