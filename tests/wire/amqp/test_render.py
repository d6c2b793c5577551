"""Deliveries against the oracle's bytes, and back: what was published is what is read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle import BODY, HEADER, METHOD, content, deliveries, split_frames

from braidmq.record.batch import RecordBatch
from braidmq.wire.amqp.methods import (
    BasicDeliver,
    BasicGetOk,
    BasicPublish,
    decode,
    encode,
    frame,
    method_frame,
)
from braidmq.wire.amqp.properties import (
    EMPTY_PROPERTIES,
    Properties,
    content_header_payload,
    decode_properties,
    encode_properties,
    split_content_header,
)
from braidmq.wire.amqp.render import all_amqp, render_content, render_deliveries
from braidmq.wire.amqp.scan import ENVELOPE_AMQP, scan

FRAME_MAXES = (4096, 131_072, 0)
NOW_MS = 1_700_000_000_000

names = st.sampled_from(["", "x", "ключ", "n" * 255])
raw_properties = st.one_of(
    st.just(EMPTY_PROPERTIES),
    st.builds(
        lambda **values: encode_properties(Properties(**values)),
        content_type=st.sampled_from(["", "text/plain"]),
        headers=st.sampled_from([None, {}, {"a": [1, {"b": "c"}]}, {"long": "z" * 700}]),
        delivery_mode=st.sampled_from([None, 1, 2]),
        expiration=st.sampled_from([None, "1000"]),
    ),
)
edges = [0, 1, 4087, 4088, 4089, 2 * 4088 - 1, 2 * 4088, 2 * 4088 + 1]
edges += [131_063, 131_064, 131_065]
bodies = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(edges).map(lambda size: (bytes(range(256)) * 513)[:size]),
)
messages = st.tuples(names, names, raw_properties, bodies, st.booleans())
channels = st.sampled_from([1, 2, 0xFFFF])
consumer_tags = st.sampled_from(["", "ctag1.é", "t" * 255])
delivery_tags = st.sampled_from([1, 255, 256, (1 << 32) - 1, 1 << 40, (1 << 63) - 1])


def envelope(exchange: str, key: str, properties: bytes) -> bytes:
    first, second = exchange.encode(), key.encode()
    return bytes([len(first)]) + first + bytes([len(second)]) + second + properties


def batch_of(messages) -> RecordBatch:
    batch = RecordBatch()
    for exchange, key, properties, body, timed in messages:
        batch.append(
            body,
            # Timing fields and a key move what comes after them.
            key=b"some key" if timed else None,
            expires_at_ms=NOW_MS if timed else 0,
            envelope=envelope(exchange, key, properties),
            envelope_format=ENVELOPE_AMQP,
            timestamp_ms=NOW_MS,
        )
    return batch


@given(
    st.lists(messages, max_size=6),
    st.data(),
    channels,
    consumer_tags,
    delivery_tags,
    st.booleans(),
    st.sampled_from(FRAME_MAXES),
)
@settings(deadline=None, max_examples=150)
def test_deliveries(messages, data, channel, consumer_tag, tag, redelivered, frame_max):
    batch = batch_of(messages)
    first = data.draw(st.integers(0, batch.count))
    stop = data.draw(st.integers(first, batch.count))
    rendered = render_deliveries(
        batch, first, stop, channel, consumer_tag.encode(), tag, 1 + redelivered, frame_max
    )
    records = batch.records()[first:stop]
    assert rendered == deliveries(records, channel, consumer_tag, tag, redelivered, frame_max)


FACT_NAMES = ("x-delivery-count", "x-partition", "x-offset", "x-first-seen-ms")
tables = st.dictionaries(
    st.one_of(st.sampled_from(FACT_NAMES), st.text(max_size=8)),
    st.one_of(st.none(), st.booleans(), st.integers(-9, 1 << 60), st.text(max_size=9)),
    max_size=6,
)
properties = st.builds(
    lambda **values: Properties(**values),
    content_type=st.one_of(st.none(), st.text(max_size=9)),
    content_encoding=st.one_of(st.none(), st.text(max_size=9)),
    headers=st.one_of(st.none(), tables),
    priority=st.one_of(st.none(), st.integers(0, 255)),
    message_id=st.one_of(st.none(), st.text(max_size=9)),
)


@given(st.lists(properties, min_size=1, max_size=4), st.integers(1, 9), st.integers(0, 9))
@settings(deadline=None, max_examples=150)
def test_facts_are_headers_whatever_publishers_call_so(given, attempts, partition):
    batch = batch_of([("x", "k", encode_properties(each), b"v", False) for each in given])
    batch.place(70)
    frames = split_frames(
        render_deliveries(batch, 0, batch.count, 1, b"c", 1, attempts, 4096, partition)
    )
    found = [decode_properties(each.payload[12:]) for each in frames if each.kind == HEADER]
    for number, (before, after) in enumerate(zip(given, found, strict=True)):
        facts = (attempts - 1, partition, 70 + number, batch.record(number).timestamp_ms)
        kept = {k: v for k, v in (before.headers or {}).items() if k not in FACT_NAMES}
        assert after.headers == {**kept, **dict(zip(FACT_NAMES, facts, strict=True))}
        assert replace(after, headers=None) == replace(before, headers=None)


def test_facts_are_left_out_where_a_frame_would_be_too_large():
    for size in range(3900, 4080):
        raw = encode_properties(Properties(headers={"x-long": "z" * size}))
        if 12 + len(raw) > 4088:
            break
        batch = batch_of([("x", "k", raw, b"v", False)])
        rendered = render_deliveries(batch, 0, 1, 1, b"c", 1, 1, 4096, 0)
        (header,) = [each.payload for each in split_frames(rendered) if each.kind == HEADER]
        assert len(header) <= 4088
        assert (header[12:] == raw) == (12 + len(raw) + 90 > 4088)


@pytest.mark.parametrize("size", edges)
@pytest.mark.parametrize("frame_max", FRAME_MAXES)
def test_bodies_are_split_at_frame_max(size, frame_max):
    body = b"b" * size
    batch = batch_of([("x", "k", EMPTY_PROPERTIES, body, False)])
    frames = split_frames(render_deliveries(batch, 0, 1, 1, b"c", 1, 1, frame_max))
    assert [each.kind for each in frames[:2]] == [METHOD, HEADER]
    pieces = [each.payload for each in frames[2:]]
    assert b"".join(pieces) == body
    if frame_max:
        assert len(pieces) == -(-size // (frame_max - 8))
        assert all(len(each) == frame_max - 8 for each in pieces[:-1])
    else:
        assert len(pieces) == (1 if size else 0)


def test_a_batch_read_back_from_memory_of_others():
    """As records come from a segment: the batch does not own its bytes."""
    batch = batch_of([("x", "k", EMPTY_PROPERTIES, b"%d" % i, i % 2 == 0) for i in range(5)])
    again = RecordBatch.scan(bytes(batch), base_offset=70)
    moved = batch.at_offset(1000)
    for each in (again, moved):
        assert render_deliveries(each, 1, 4, 3, b"c", 9, 2, 4096) == render_deliveries(
            batch, 1, 4, 3, b"c", 9, 2, 4096
        )


@given(
    channels,
    st.sampled_from([BasicGetOk(7, True, "x", "k", 3), BasicDeliver("c", 1, False, "", "q")]),
    st.sampled_from([b"", EMPTY_PROPERTIES, b"\x80\x00\x04text"]),
    bodies,
    st.sampled_from(FRAME_MAXES),
)
@settings(deadline=None, max_examples=100)
def test_content(channel, method, properties, body, frame_max):
    rendered = render_content(channel, encode(method), properties, body, frame_max)
    assert rendered == method_frame(channel, method) + content(channel, properties, body, frame_max)


def test_all_amqp():
    batch = RecordBatch()
    for envelope_format in (1, 1, 0, 1, 2):
        batch.append(b"v", envelope_format=envelope_format)
    told = {(a, b): all_amqp(batch, a, b) for a in range(6) for b in range(a, 6)}
    assert {span for span, told in told.items() if told} == {
        *((a, a) for a in range(6)),
        *((0, 1), (0, 2), (1, 2), (3, 4)),
    }


# --- there and back ---

published = st.tuples(names, names, raw_properties, bodies.filter(lambda body: len(body) < 131_065))


@given(st.lists(published, min_size=1, max_size=5), st.sampled_from(FRAME_MAXES))
@settings(deadline=None, max_examples=100)
def test_round_trip(messages, frame_max):
    data = b"".join(
        method_frame(1, BasicPublish(exchange, key))
        + frame(HEADER, 1, content_header_payload(len(body), properties))
        + (frame(BODY, 1, body) if body else b"")
        for exchange, key, properties, body in messages
    )
    events, used = scan(data, len(data), 131_072, NOW_MS)
    assert used == len(data)
    rendered, tag = b"", 1
    for *_, batch, _ in events:
        rendered += render_deliveries(batch, 0, batch.count, 5, b"me", tag, 1, frame_max)
        tag += batch.count
    assert delivered(rendered) == [
        (5, BasicDeliver("me", tag, False, exchange, key), properties, body)
        for tag, (exchange, key, properties, body) in enumerate(messages, 1)
    ]


def delivered(data: bytes) -> list[tuple[int, object, bytes, bytes]]:
    """As a client reads it."""
    found = []
    frames = iter(split_frames(data))
    for kind, channel, payload in frames:
        assert kind == METHOD
        method = decode(payload)
        header = next(frames)
        assert (header.kind, header.channel) == (HEADER, channel)
        size, properties = split_content_header(header.payload)
        body = b""
        while len(body) < size:
            piece = next(frames)
            assert (piece.kind, piece.channel) == (BODY, channel)
            body += piece.payload
        assert len(body) == size
        found.append((channel, method, properties, body))
    return found
