"""The client's kernel: pika reads what it writes, it reads what pika writes, and a ledger that is a
plain dict agrees with its own."""

import random
from itertools import pairwise

import pika.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import spec
from test_tables import pika_tables

from braidmq.wire.amqp.client import (
    EVENT_CONFIRM,
    EVENT_DELIVERIES,
    EVENT_FRAME,
    Delivery,
    DeliveryRun,
    Ledger,
    PublishBatch,
    deliveries,
    publish_head,
    scan,
)
from braidmq.wire.amqp.errors import FrameError
from braidmq.wire.amqp.methods import BasicReject, decode
from braidmq.wire.amqp.properties import Properties, decode_properties, encode_properties

FRAME_MAX = 4096

words = st.text(max_size=20).filter(lambda text: len(text.encode()) <= 255)
said = st.fixed_dictionaries(
    {},
    optional={
        "content_type": words,
        "content_encoding": words,
        "headers": pika_tables,
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "correlation_id": words,
        "reply_to": words,
        "expiration": st.integers(0, 10**9).map(str),
        "message_id": words,
        "timestamp": st.integers(0, 2**40),
        "type": words,
        "user_id": words,
        "app_id": words,
        "cluster_id": words,
    },
)
bodies = st.one_of(
    st.binary(max_size=40), st.integers(0, 3 * FRAME_MAX).map(lambda size: b"b" * size)
)
messages = st.lists(st.tuples(words, words, said, bodies), max_size=6)


# --- out ---


def read_by_pika(data: bytes) -> list[tuple[int, str, str, bool, dict[str, object], bytes]]:
    found = []
    while data:
        used, method = pika.frame.decode_frame(data)
        data = data[used:]
        assert isinstance(method.method, spec.Basic.Publish)
        used, header = pika.frame.decode_frame(data)
        data = data[used:]
        body = b""
        while len(body) < header.body_size:
            used, piece = pika.frame.decode_frame(data)
            data = data[used:]
            assert used <= FRAME_MAX
            body += piece.fragment
        publish, properties = method.method, header.properties
        values = {k: v for k, v in vars(properties).items() if v is not None}
        found.append(
            (
                method.channel_number,
                publish.exchange,
                publish.routing_key,
                publish.mandatory,
                values,
                body,
            )
        )
    return found


@given(messages, st.integers(1, 0xFFFF), st.booleans())
def test_pika_reads_what_we_publish(messages, channel, mandatory):
    batch = PublishBatch()
    for exchange, key, properties, body in messages:
        head = publish_head(channel, exchange.encode(), key.encode(), mandatory)
        batch.add(head, encode_properties(Properties(**properties)), body)
    expected = [(channel, e, k, mandatory, p, b) for e, k, p, b in messages]
    assert read_by_pika(batch.render(0, FRAME_MAX)) == expected
    assert batch.count == len(messages)
    if messages:
        assert read_by_pika(batch.render(1, FRAME_MAX)) == expected[1:]


def test_extend_is_many_adds():
    head, properties = publish_head(3, b"", b"q"), encode_properties(Properties(priority=1))
    values = [b"%d" % number for number in range(10)]
    one, many = PublishBatch(), PublishBatch()
    for value in values:
        one.add(head, properties, value)
    many.extend(head, properties, values)
    assert one.render(0, 0) == many.render(0, 0)
    assert (one.count, one.size) == (many.count, many.size)
    assert many.message(9) == (head, properties, b"9")


@pytest.mark.parametrize("values", [["text"], [bytearray(b"x")], [b"fine", None]])
def test_a_batch_holds_only_bytes(values):
    with pytest.raises(TypeError):
        PublishBatch().extend(b"", b"", values)


def test_names_have_an_end():
    with pytest.raises(ValueError, match="255"):
        publish_head(1, b"", b"k" * 256)


# --- in ---


class Arrived(Delivery):
    __slots__ = ()


def written_by_pika(channel: int, tag: int, message: tuple, redelivered: bool) -> bytes:
    exchange, key, properties, body = message
    method = spec.Basic.Deliver("ctag", tag, redelivered, exchange, key)
    header = pika.frame.Header(channel, len(body), spec.BasicProperties(**properties))
    piece = FRAME_MAX - 8
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
    return b"".join(
        (
            pika.frame.Method(channel, method).marshal(),
            header.marshal(),
            *(pika.frame.Body(channel, each).marshal() for each in pieces),
        )
    )


def fed(data: bytes, cuts: list[int]) -> list[tuple]:
    """Events, the bytes coming in pieces."""
    events, kept = [], b""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    since = 0
    for place in places:
        kept += data[since:place]
        since = place
        found, used = scan(kept, len(kept), FRAME_MAX)
        events += found
        kept = kept[used:]
    assert kept == b""
    return events


def read_by_us(events: list[tuple]) -> list[tuple]:
    """Messages of runs and those in pieces, in the order they came."""
    found, open_content = [], None
    for event in events:
        if event[0] == EVENT_DELIVERIES:
            _, channel, run = event
            assert run.consumer_tag == b"ctag"
            for one in deliveries(run, Arrived, "ledger"):
                assert one._ledger == "ledger"
                assert one.value == run.value(one._index)
                exchange, key = run.route(one._index)
                raw = run.properties(one._index)
                found.append((channel, one.delivery_tag, one.redelivered, exchange, key, raw,
                              one.value))  # fmt: skip
            assert run.values() == [run.value(index) for index in range(len(run))]
            continue
        assert event[0] == EVENT_FRAME
        _, kind, channel, payload = event
        if kind == 1:
            open_content = [channel, decode(payload), None, 0, b""]
        elif kind == 2:
            assert open_content is not None
            open_content[2], open_content[3] = payload[12:], int.from_bytes(payload[4:12])
        else:
            assert open_content is not None
            open_content[4] += payload
        if open_content is not None and open_content[2] is not None:
            channel, method, raw, size, body = open_content
            if len(body) == size:
                route = (method.exchange.encode(), method.routing_key.encode())
                found.append((channel, method.delivery_tag, method.redelivered, *route, raw, body))
                open_content = None
    return found


@given(messages, st.lists(st.integers(0, 1 << 20), max_size=8), st.booleans())
def test_we_read_what_pika_delivers(messages, cuts, redelivered):
    data = b"".join(
        written_by_pika(7, tag, message, redelivered) for tag, message in enumerate(messages, 1)
    )
    found = read_by_us(fed(data, cuts))
    assert [(each[:5], each[6]) for each in found] == [
        ((7, tag, redelivered, exchange.encode(), key.encode()), body)
        for tag, (exchange, key, _, body) in enumerate(messages, 1)
    ]
    for (_, _, properties, _), each in zip(messages, found, strict=True):
        assert decode_properties(each[5]) == Properties(**properties)


def test_consecutive_deliveries_are_one_run():
    data = b"".join(
        written_by_pika(1, tag, ("", "q", {}, b"v%d" % tag), False) for tag in (5, 6, 7)
    )
    (event,), used = scan(data, len(data), FRAME_MAX)
    run = event[2]
    assert (used, run.first_tag, run.last_tag, run.count) == (len(data), 5, 7, 3)
    assert run.values() == [b"v5", b"v6", b"v7"]
    with pytest.raises(IndexError):
        run.value(3)


@pytest.mark.parametrize("second", [(2, 2), (1, 3)])
def test_another_channel_or_a_gap_begins_a_run(second):
    data = written_by_pika(1, 1, ("", "q", {}, b"a"), False)
    data += written_by_pika(*second, ("", "q", {}, b"b"), False)
    events, _ = scan(data, len(data), FRAME_MAX)
    assert [(channel, run.first_tag) for _, channel, run in events] == [(1, 1), second]


def test_a_run_of_one_in_pieces():
    run = DeliveryRun.single(4, b"tag", 9, True, b"ex", b"key", b"\0\0", b"body")
    (one,) = deliveries(run, Arrived, None)
    assert (one.value, one.delivery_tag, one.redelivered) == (b"body", 9, True)
    assert (run.route(0), run.properties(0), run.channel) == ((b"ex", b"key"), b"\0\0", 4)


def test_confirms():
    frames = [
        pika.frame.Method(1, spec.Basic.Ack(3)),
        pika.frame.Method(1, spec.Basic.Ack(9, multiple=True)),
        pika.frame.Method(2, spec.Basic.Nack(4)),
        pika.frame.Method(2, spec.Basic.Nack(5, multiple=True)),
    ]
    data = b"".join(frame.marshal() for frame in frames)
    assert scan(data, len(data), FRAME_MAX)[0] == [
        (EVENT_CONFIRM, 1, 3, 3, True),
        (EVENT_CONFIRM, 1, 0, 9, True),
        (EVENT_CONFIRM, 2, 4, 4, False),
        (EVENT_CONFIRM, 2, 0, 5, False),
    ]


@pytest.mark.parametrize("data", [b"\x01\0\0\xff\xff\xff\xff", b"\x08\0\0\0\0\0\0\xcd"])
def test_what_is_no_frame(data):
    with pytest.raises(FrameError):
        scan(data, len(data), FRAME_MAX)


@given(st.binary(max_size=200), st.integers(0, 1 << 30))
def test_damage_is_found_or_harmless(garbage, seed):
    data = bytearray(
        b"".join(written_by_pika(1, tag, ("", "q", {"priority": 1}, b"x" * 9), False)
                 for tag in range(1, 5))
    )  # fmt: skip
    random.Random(seed).shuffle(places := list(range(len(data))))
    for place, byte in zip(places, garbage[:5], strict=False):
        data[place] = byte
    try:
        events, used = scan(bytes(data), len(data), FRAME_MAX)
    except FrameError:
        return
    assert used <= len(data)
    for event in events:
        if event[0] == EVENT_DELIVERIES:
            event[2].values()


# --- answers ---


class Model:
    """Delivery tags in a dict."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.due: set[int] = set()
        self.held: set[int] = set()


tags = st.integers(1, 60)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(1, 900)),
        st.tuples(st.just("ack"), tags, st.integers(0, 900)),
        st.tuples(st.just("settle"), tags, st.integers(0, 30)),
        st.tuples(st.just("hold"), tags, st.integers(0, 30)),
        st.tuples(st.just("let go"), tags, st.integers(0, 30)),
        st.tuples(st.just("reject"), tags, st.integers(0, 30)),
        st.tuples(
            st.just("take"),
        ),
    ),
    max_size=40,
)


def acknowledged(frames: bytes, waiting: set[int]) -> set[int]:
    """What a broker takes from the frames, for which ``waiting`` are unanswered; it refuses tags
    that are not."""
    found: set[int] = set()
    while frames:
        used, frame = pika.frame.decode_frame(frames)
        frames = frames[used:]
        tag = frame.method.delivery_tag
        assert tag in waiting - found
        found |= {each for each in waiting if each <= tag} if frame.method.multiple else {tag}
    return found


@given(steps)
@settings(max_examples=300)
def test_the_ledger_agrees_with_a_set(steps):
    ledger, model, delivered = Ledger(5), Model(), 0
    base = 0
    for step, *numbers in [*steps, ("take",)]:
        if step == "deliver":
            ledger.deliver(delivered + 1, delivered + numbers[0])
            model.waiting |= set(range(delivered + 1, delivered + numbers[0] + 1))
            delivered += numbers[0]
            base = max(0, delivered - 50)
        elif step == "take":
            # A broker knows of what is settled by other means, and waits for the rest.
            frames = ledger.take()
            unknown = model.waiting | model.due | model.held
            assert acknowledged(frames, unknown) == model.due
            model.due = set()
        else:
            first, last = base + numbers[0], base + numbers[0] + numbers[1]
            if step == "let go":
                ledger.let_go(first, last)
                model.held -= set(range(first, last + 1))
                continue
            hit = {tag for tag in model.waiting if first <= tag <= last}
            model.waiting -= hit
            if step == "ack":
                assert ledger.ack(first, last) == len(hit)
                model.due |= hit
            elif step in ("settle", "hold"):
                ranges = getattr(ledger, step)(first, last)
                model.held |= hit if step == "hold" else set()
                assert {t for a, b in ranges for t in range(a, b + 1)} == hit
                assert all(b + 1 < c for (_, b), (c, _) in pairwise(ranges))
            else:
                assert rejected(ledger.refuse(first, last, requeue=False)) == sorted(hit)
        assert ledger.unsettled == len(model.waiting)
        assert ledger.delivered == delivered


def rejected(frames: bytes) -> list[int]:
    found = []
    for at in range(0, len(frames), 21):
        method = decode(frames[at + 7 : at + 20])
        assert isinstance(method, BasicReject)
        assert not method.requeue
        found.append(method.delivery_tag)
    return found


def test_acks_in_order_are_one_frame():
    ledger = Ledger(1)
    ledger.deliver(1, 5000)
    for tag in range(1, 5001):
        assert ledger.ack(tag, tag) == 1
    assert len(ledger.take()) == 21
    assert ledger.take() == b""


def test_what_is_settled_without_acks_takes_no_room():
    ledger = Ledger(1)
    for first in range(1, 5_000_000, 1000):
        ledger.deliver(first, first + 999)
        assert ledger.hold(first, first + 999) == [(first, first + 999)]
        ledger.let_go(first, first + 999)
    assert ledger.room <= 4096


def test_tags_must_be_the_next():
    ledger = Ledger(1)
    with pytest.raises(FrameError):
        ledger.deliver(2, 2)
