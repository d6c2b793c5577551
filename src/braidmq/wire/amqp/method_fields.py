"""Fields of AMQP's methods: one step per field, or per octet of neighbouring bits."""

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from braidmq.wire.amqp.errors import FrameError
from braidmq.wire.amqp.tables import (
    encode_table,
    read_long_string,
    read_short_string,
    read_table,
    write_long_string,
    write_short_string,
)


class Codec(NamedTuple):
    read: Callable[[bytes, int], tuple[Any, int]]
    write: Callable[[Any], bytes]
    zero: Any


def integer(layout: str) -> Codec:
    packer = struct.Struct(layout)

    def read(raw: bytes, position: int) -> tuple[int, int]:
        end = position + packer.size
        if end > len(raw):
            raise FrameError("payload ends inside an integer")
        return packer.unpack_from(raw, position)[0], end

    return Codec(read, packer.pack, 0)


OCTET = integer(">B")
CODECS: Final = {
    "octet": OCTET,
    "short": integer(">H"),
    "long": integer(">I"),
    "longlong": integer(">Q"),
    "shortstr": Codec(read_short_string, write_short_string, ""),
    "longstr": Codec(read_long_string, write_long_string, b""),
    "table": Codec(read_table, encode_table, {}),
}


class Step(NamedTuple):
    codec: Codec
    names: tuple[str, ...]  # more than one only for bits; "_" is reserved
    bits: bool


def steps_of(fields: str) -> tuple[Step, ...]:
    steps: list[Step] = []
    for field in fields.split():
        name, kind = field.split(":")
        if kind != "bit":
            steps.append(Step(CODECS[kind], (name,), False))
        elif steps and steps[-1].bits and len(steps[-1].names) < 8:
            steps[-1] = Step(OCTET, (*steps[-1].names, name), True)
        else:
            steps.append(Step(OCTET, (name,), True))
    return tuple(steps)
