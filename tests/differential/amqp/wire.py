"""AMQP 0-9-1 on the wire, for tests only: methods, properties and field tables.

Written apart from the product's codec on purpose, so that both can't be wrong in the same way.

    frame:  type u8 | channel u16 | size u32 | payload[size] | 0xCE
    method: class u16 | method u16 | arguments
    header: class u16 | weight u16 | body size u64 | flags u16 | properties

A field table is decoded with its types kept: a string (``S``), a boolean (``t``), a table and an
array become themselves, anything else a text such as ``"l:1"``, because a client can tell a
``long`` from an ``int``.
"""

import struct
from dataclasses import dataclass
from typing import Any

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

# Fields are name:type; o octet, s short, l long, L longlong, b bit, $ shortstr, S longstr, F table.
SPEC = """
10 10 connection.start version_major:o version_minor:o server_properties:F mechanisms:S locales:S
10 11 connection.start-ok client_properties:F mechanism:$ response:S locale:$
10 20 connection.secure challenge:S
10 21 connection.secure-ok response:S
10 30 connection.tune channel_max:s frame_max:l heartbeat:s
10 31 connection.tune-ok channel_max:s frame_max:l heartbeat:s
10 40 connection.open virtual_host:$ reserved1:$ reserved2:b
10 41 connection.open-ok reserved1:$
10 50 connection.close code:s text:$ class:s method:s
10 51 connection.close-ok
10 60 connection.blocked reason:$
10 61 connection.unblocked
10 70 connection.update-secret secret:S reason:$
10 71 connection.update-secret-ok
20 10 channel.open reserved1:$
20 11 channel.open-ok reserved1:S
20 20 channel.flow active:b
20 21 channel.flow-ok active:b
20 40 channel.close code:s text:$ class:s method:s
20 41 channel.close-ok
30 10 access.request realm:$ exclusive:b passive:b active:b write:b read:b
30 11 access.request-ok ticket:s
40 10 exchange.declare ticket:s exchange:$ type:$ passive:b durable:b auto_delete:b internal:b nowait:b arguments:F
40 11 exchange.declare-ok
40 20 exchange.delete ticket:s exchange:$ if_unused:b nowait:b
40 21 exchange.delete-ok
40 30 exchange.bind ticket:s destination:$ source:$ routing_key:$ nowait:b arguments:F
40 31 exchange.bind-ok
40 40 exchange.unbind ticket:s destination:$ source:$ routing_key:$ nowait:b arguments:F
40 51 exchange.unbind-ok
50 10 queue.declare ticket:s queue:$ passive:b durable:b exclusive:b auto_delete:b nowait:b arguments:F
50 11 queue.declare-ok queue:$ messages:l consumers:l
50 20 queue.bind ticket:s queue:$ exchange:$ routing_key:$ nowait:b arguments:F
50 21 queue.bind-ok
50 30 queue.purge ticket:s queue:$ nowait:b
50 31 queue.purge-ok messages:l
50 40 queue.delete ticket:s queue:$ if_unused:b if_empty:b nowait:b
50 41 queue.delete-ok messages:l
50 50 queue.unbind ticket:s queue:$ exchange:$ routing_key:$ arguments:F
50 51 queue.unbind-ok
60 10 basic.qos size:l count:s global:b
60 11 basic.qos-ok
60 20 basic.consume ticket:s queue:$ consumer_tag:$ no_local:b no_ack:b exclusive:b nowait:b arguments:F
60 21 basic.consume-ok consumer_tag:$
60 30 basic.cancel consumer_tag:$ nowait:b
60 31 basic.cancel-ok consumer_tag:$
60 40 basic.publish ticket:s exchange:$ routing_key:$ mandatory:b immediate:b
60 50 basic.return code:s text:$ exchange:$ routing_key:$
60 60 basic.deliver consumer_tag:$ tag:L redelivered:b exchange:$ routing_key:$
60 70 basic.get ticket:s queue:$ no_ack:b
60 71 basic.get-ok tag:L redelivered:b exchange:$ routing_key:$ messages:l
60 72 basic.get-empty reserved1:$
60 80 basic.ack tag:L multiple:b
60 90 basic.reject tag:L requeue:b
60 100 basic.recover-async requeue:b
60 110 basic.recover requeue:b
60 111 basic.recover-ok
60 120 basic.nack tag:L multiple:b requeue:b
85 10 confirm.select nowait:b
85 11 confirm.select-ok
90 10 tx.select
90 11 tx.select-ok
90 20 tx.commit
90 21 tx.commit-ok
90 30 tx.rollback
90 31 tx.rollback-ok
"""  # noqa: E501  a method a line

PROPERTIES = [
    ("content_type", "$"),
    ("content_encoding", "$"),
    ("headers", "F"),
    ("delivery_mode", "o"),
    ("priority", "o"),
    ("correlation_id", "$"),
    ("reply_to", "$"),
    ("expiration", "$"),
    ("message_id", "$"),
    ("timestamp", "L"),
    ("type", "$"),
    ("user_id", "$"),
    ("app_id", "$"),
    ("cluster_id", "$"),
]

INTEGERS = {"o": ">B", "s": ">H", "l": ">I", "L": ">Q"}
TABLE_NUMBERS = {
    "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q",
    "f": ">f", "d": ">d", "T": ">Q",
}  # fmt: skip

# A bool is an int, so it comes first.
PYTHON_TYPES = ((bool, "t"), (float, "d"), (str, "S"), (bytes, "x"), (dict, "F"), (list, "A"))

Fields = list[tuple[str, str]]


@dataclass(frozen=True)
class Typed:
    """A field-table value whose wire type is chosen by the test: ``Typed("b", 5)``."""

    tag: str
    value: Any


def _parsed() -> tuple[dict[str, tuple[int, int, Fields]], dict[tuple[int, int], str]]:
    by_name: dict[str, tuple[int, int, Fields]] = {}
    for line in SPEC.strip().splitlines():
        class_id, method_id, name, *fields = line.split()
        pairs = [(field.partition(":")[0], field.partition(":")[2]) for field in fields]
        by_name[name] = (int(class_id), int(method_id), pairs)
    return by_name, {(c, m): name for name, (c, m, _) in by_name.items()}


METHODS, NAMES = _parsed()


def text(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def shortstr(value: str | bytes) -> bytes:
    raw = text(value)
    return struct.pack(">B", len(raw)) + raw


def longstr(value: str | bytes) -> bytes:
    raw = text(value)
    return struct.pack(">I", len(raw)) + raw


def table(values: dict[str, Any] | bytes) -> bytes:
    """Bytes are taken as the encoded table, for tests that want a wrong one."""
    if isinstance(values, bytes):
        return longstr(values)
    return longstr(b"".join(shortstr(name) + field_value(v) for name, v in values.items()))


def field_value(value: Any) -> bytes:
    if isinstance(value, Typed):
        return _typed(value.tag, value.value)
    for kind, tag in PYTHON_TYPES:
        if isinstance(value, kind):
            return _typed(tag, value)
    if value is None:
        return b"V"
    return _typed("I" if -(2**31) <= value < 2**31 else "l", value)


def _typed(tag: str, value: Any) -> bytes:
    head = tag.encode()
    if tag in TABLE_NUMBERS:
        return head + struct.pack(TABLE_NUMBERS[tag], value)
    if tag == "t":
        return head + bytes([bool(value)])
    if tag in "Sx":
        return head + longstr(value)
    if tag == "F":
        return head + table(value)
    if tag == "A":
        return head + longstr(b"".join(field_value(item) for item in value))
    if tag == "D":
        return head + struct.pack(">BI", *value)
    if tag == "V":
        return head
    raise ValueError(f"no field-table type {tag!r}")


def arguments(fields: Fields, values: dict[str, Any]) -> bytes:
    unknown = set(values) - {name for name, _ in fields}
    assert not unknown, f"no such argument: {sorted(unknown)}"
    out, bits = bytearray(), []
    for name, kind in [*fields, ("", "")]:
        if kind == "b":
            bits.append(bool(values.get(name, False)))
            continue
        if bits:
            out.append(sum(bit << place for place, bit in enumerate(bits)))
            bits = []
        if kind in INTEGERS:
            out += struct.pack(INTEGERS[kind], values.get(name, 0))
        elif kind == "$":
            out += shortstr(values.get(name, ""))
        elif kind == "S":
            out += longstr(values.get(name, ""))
        elif kind == "F":
            out += table(values.get(name, {}))
    return bytes(out)


def method_payload(name: str, values: dict[str, Any]) -> bytes:
    class_id, method_id, fields = METHODS[name]
    return struct.pack(">HH", class_id, method_id) + arguments(fields, values)


def header_payload(size: int, values: dict[str, Any], class_id: int = 60, weight: int = 0) -> bytes:
    flags, body = 0, b""
    for place, (name, kind) in enumerate(PROPERTIES):
        if name in values:
            flags |= 1 << (15 - place)
            body += arguments([(name, kind)], {name: values[name]})
    return struct.pack(">HHQH", class_id, weight, size, flags) + body


def frame(kind: int, channel: int, payload: bytes, end: int = FRAME_END) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        assert len(piece) == count, "the broker sent a short payload"
        self.at += count
        return piece

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def shortstr(self) -> str:
        return self.take(self.number(">B")).decode("utf-8", "surrogateescape")

    def longstr(self) -> bytes:
        return self.take(self.number(">I"))

    def table(self) -> dict[str, Any]:
        inner, values = Reader(self.longstr()), {}
        while inner.at < len(inner.data):
            name = inner.shortstr()
            values[name] = inner.field_value()
        return values

    def field_value(self) -> Any:
        tag = chr(self.number(">B"))
        if tag in TABLE_NUMBERS:
            return f"{tag}:{self.number(TABLE_NUMBERS[tag])}"
        if tag == "t":
            return self.number(">B") != 0
        if tag == "S":
            return self.longstr().decode("utf-8", "surrogateescape")
        if tag == "x":
            return f"x:{self.longstr().hex()}"
        if tag == "F":
            return self.table()
        if tag == "A":
            inner, items = Reader(self.longstr()), []
            while inner.at < len(inner.data):
                items.append(inner.field_value())
            return items
        if tag == "D":
            return f"D:{self.number('>B')},{self.number('>I')}"
        assert tag == "V", f"the broker sent field-table type {tag!r}"
        return "V:"

    def fields(self, fields: Fields) -> dict[str, Any]:
        values: dict[str, Any] = {}
        bits = place = 0
        for name, kind in fields:
            if kind == "b":
                bits = self.number(">B") if place == 0 else bits
                values[name] = bool(bits >> place & 1)
                place += 1
                continue
            place = 0
            if kind in INTEGERS:
                values[name] = self.number(INTEGERS[kind])
            elif kind == "F":
                values[name] = self.table()
            elif kind == "S":
                values[name] = self.longstr().decode("utf-8", "surrogateescape")
            else:
                values[name] = self.shortstr()
        return values


def read_method(payload: bytes) -> dict[str, Any]:
    reader = Reader(payload)
    name = NAMES[reader.number(">H"), reader.number(">H")]
    values = reader.fields(METHODS[name][2])
    kept = {key: value for key, value in values.items() if not key.startswith("reserved")}
    return {"m": name, **kept}


def read_header(payload: bytes) -> tuple[int, dict[str, Any]]:
    reader = Reader(payload)
    reader.number(">I")
    size, flags = reader.number(">Q"), reader.number(">H")
    present = [field for place, field in enumerate(PROPERTIES) if flags & 1 << (15 - place)]
    return size, reader.fields(present)
