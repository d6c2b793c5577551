"""Any bytes in any pieces, to the AMQP decoders alone: no socket, no broker.

    python -m tests.fuzz.amqp_decoder -max_total_time=600      arguments are libFuzzer's

An input opens with how the rest is cut and read:

    ┌───────────┬────────┬───────────────┬────────────────────────────────────┐
    │ frame max │ pieces │ their lengths │ the bytes that a socket would give │
    └───────────┴────────┴───────────────┴────────────────────────────────────┘
      1 byte      1 byte   1 byte each     a length of 0 is a piece of 256

However they are cut, the bytes are the same events; every frame is either read, and then means the
same when it is written again, or refused with one of our own errors.
"""

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

from tests.fuzz.hostile import conversation, mutated
from tests.wire.amqp.oracle import Event, Fault, Frame, Publish, flattened

from braidmq.wire.amqp import methods, properties, tables
from braidmq.wire.amqp.constants import FrameKind
from braidmq.wire.amqp.errors import AmqpError
from braidmq.wire.amqp.methods import decode, encode
from braidmq.wire.amqp.properties import (
    decode_properties,
    encode_properties,
    split_content_header,
)
from braidmq.wire.amqp.scan import scan

FRAME_MAXES = (4096, 131_072, 8, 64)
NOW_MS = 1_700_000_000_000


def check(data: bytes) -> None:
    """One input. Whatever is raised is a finding."""
    if len(data) < 2:
        return
    frame_max = FRAME_MAXES[data[0] % len(FRAME_MAXES)]
    lengths, stream = data[2 : 2 + data[1]], data[2 + data[1] :]
    for fast in (True, False):
        whole, used = read([stream], frame_max, fast)
        assert read(list(pieces(stream, lengths)), frame_max, fast) == (whole, used)
        for event in whole:
            check_event(event)


def pieces(stream: bytes, lengths: bytes) -> Iterator[bytes]:
    at = 0
    for length in lengths:
        yield stream[at : at + (length or 256)]
        at += length or 256
    yield stream[at:]


def read(chunks: list[bytes], frame_max: int, fast: bool) -> tuple[list[Event], int]:
    """As a connection does it: what was not used is kept and put in front of the next chunk."""
    events: list[Event] = []
    tail, consumed = b"", 0
    for chunk in chunks:
        tail += chunk
        # Behind the data there is what was in the buffer before: it must not matter.
        found, used = scan(tail + b"\xce\x01" * 8, len(tail), frame_max, NOW_MS, fast)
        assert 0 <= used <= len(tail)
        events += flattened(found)
        tail = tail[used:]
        consumed += used
        if events and isinstance(events[-1], Fault):
            break
    return events, consumed


def check_event(event: Event) -> None:
    try:
        if isinstance(event, Publish):
            decode_properties(raw_properties(event.record.envelope))
        elif isinstance(event, Frame) and event.kind == FrameKind.METHOD:
            method = decode(event.payload)
            assert_same(decode(encode(method)), method)
        elif isinstance(event, Frame) and event.kind == FrameKind.HEADER:
            _, raw = split_content_header(event.payload)
            found = decode_properties(raw)
            assert_same(decode_properties(encode_properties(found)), found)
    except AmqpError:
        return


def raw_properties(envelope: bytes) -> bytes:
    key = 1 + envelope[0]
    return envelope[key + 1 + envelope[key] :]


def assert_same(again: object, first: object) -> None:
    # By what they print: NaN is not equal to itself.
    assert repr(again) == repr(first)


# --- inputs ---


def inputs(seed: int, count: int) -> Iterator[bytes]:
    """Conversations of ``hostile``, cut at random, some with octets changed."""
    source = random.Random(seed)
    for _ in range(count):
        stream = b"".join(conversation(source.getrandbits(32)).pieces)
        if source.random() < 0.5:
            stream = mutated(source, stream)
        lengths = source.randbytes(source.randrange(40))
        yield bytes([source.randrange(256), len(lengths)]) + lengths + stream


def plain_functions(*modules: ModuleType) -> Iterator[FunctionType]:
    """What the fuzzer can watch: the kernels are compiled, and only see what gets through."""
    for module in modules:
        named = [module, *(each for each in vars(module).values() if isinstance(each, type))]
        for owner in named:
            yield from (each for each in vars(owner).values() if isinstance(each, FunctionType))


def main() -> None:
    import atheris  # type: ignore[import-untyped]  # only for the long run

    with tempfile.TemporaryDirectory() as corpus:
        for number, each in enumerate(inputs(seed=0, count=500)):
            Path(corpus, f"seed-{number}").write_bytes(each)
        for function in plain_functions(methods, properties, tables):
            atheris.instrument_func(function)
        files = [each for each in sys.argv[1:] if not each.startswith("-")]
        atheris.Setup(sys.argv if files else [*sys.argv, corpus], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
