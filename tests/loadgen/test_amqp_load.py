"""The load generator's kernels against the plain codec: what miscounts proves nothing."""

import itertools
import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.loadgen.amqp_load import Consumer, Publisher, scan
from braidmq.loadgen.arrivals import BODY_BYTES_MIN, Arrivals, Histogram
from braidmq.wire.amqp.methods import (
    HEARTBEAT_FRAME,
    BasicAck,
    BasicDeliver,
    BasicNack,
    BasicPublish,
    BasicReturn,
    Method,
    decode,
    frame,
    method_frame,
)
from braidmq.wire.amqp.properties import (
    EMPTY_PROPERTIES,
    Properties,
    content_header_payload,
    encode_properties,
    split_content_header,
)

STAMP = struct.Struct("<IIQQ")
RUN = 77
NOW_NS = 10**12
PERSISTENT = encode_properties(Properties(delivery_mode=2))

Frame = tuple[int, int, bytes]


def frames(data: bytes) -> list[Frame]:
    """Every frame of whole ones."""
    found, at = [], 0
    while at < len(data):
        kind, channel, length = struct.unpack_from(">BHI", data, at)
        assert data[at + 7 + length] == 0xCE
        found.append((kind, channel, data[at + 7 : at + 7 + length]))
        at += length + 8
    return found


def publisher(window: int = 0, keys: Iterable[bytes] = (b"k",), body_bytes: int = 24) -> Publisher:
    return Publisher(5, b"x", list(keys), PERSISTENT, body_bytes, RUN, 3, window, Histogram())


def cut(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(each % (len(data) + 1) for each in cuts), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(edges)]


def fed(
    data: bytes,
    cuts: Iterable[int],
    *,
    sender: Publisher | None = None,
    receiver: Consumer | None = None,
    arrivals: Arrivals | None = None,
    now_ns: int = NOW_NS,
) -> list[Frame]:
    """As the driver does it: what is not whole stays for the next chunk."""
    others: list[Frame] = []
    tail = b""
    for chunk in cut(data, cuts):
        tail += chunk
        used, found = scan(tail + b"\xff" * 16, len(tail), sender, receiver, arrivals, now_ns)
        others += found
        tail = tail[used:]
    assert tail == b""
    return others


cuts = st.lists(st.integers(0, 10_000), max_size=6)


# --- publishes ---


@given(
    counts=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    keys=st.lists(
        st.binary(max_size=20).map(lambda raw: raw.hex().encode()), min_size=1, max_size=4
    ),
    body_bytes=st.integers(BODY_BYTES_MIN, 300),
)
def test_publishes_are_what_the_codec_reads(
    counts: list[int], keys: list[bytes], body_bytes: int
) -> None:
    sender = publisher(keys=keys, body_bytes=body_bytes)
    turn, sequence = itertools.cycle(keys), itertools.count(1)
    for step, count in enumerate(counts):
        found = frames(sender.render(count, NOW_NS + step))
        assert len(found) == 3 * count
        for method, header, body in zip(found[::3], found[1::3], found[2::3], strict=True):
            assert [method[:2], header[:2], body[:2]] == [(1, 5), (2, 5), (3, 5)]
            assert decode(method[2]) == BasicPublish("x", next(turn).decode())
            assert split_content_header(header[2]) == (body_bytes, PERSISTENT)
            assert STAMP.unpack_from(body[2]) == (RUN, 3, next(sequence), NOW_NS + step)
            assert len(body[2]) == body_bytes
    assert sender.published == sum(counts)


def test_a_body_has_room_for_its_stamp() -> None:
    with pytest.raises(ValueError, match="at least 24 bytes"):
        publisher(body_bytes=BODY_BYTES_MIN - 1)


# --- confirms ---


class Confirms:
    """A publisher's account, kept the plain way."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.published = self.confirmed = self.nacked = self.strange = 0

    def publish(self, count: int) -> None:
        self.open |= set(range(self.published + 1, self.published + count + 1))
        self.published += count

    @property
    def oldest(self) -> int:
        return min(self.open, default=self.published + 1)

    def settle(self, tag: int, multiple: bool, positive: bool) -> None:
        if multiple and tag == 0:
            tag = self.published
        first = self.oldest if multiple else tag
        if not self.oldest <= first <= tag <= self.published:
            self.strange += 1
            return
        settled = self.open & set(range(first, tag + 1))
        self.strange += not settled
        self.open -= settled
        if positive:
            self.confirmed += len(settled)
        else:
            self.nacked += len(settled)


steps = st.lists(
    st.one_of(
        st.integers(1, 9),
        st.tuples(st.integers(0, 40), st.booleans(), st.booleans()),
    ),
    max_size=40,
)


@given(steps=steps, window=st.integers(1, 20), cuts=cuts)
def test_confirms_are_counted_as_a_plain_account_does(
    steps: list[int | tuple[int, bool, bool]], window: int, cuts: list[int]
) -> None:
    sender, model = publisher(window), Confirms()
    for step in steps:
        if isinstance(step, int):
            count = min(step, sender.room)
            sender.render(count, NOW_NS)
            model.publish(count)
        else:
            tag, multiple, positive = step
            answer: Method = BasicAck(tag, multiple) if positive else BasicNack(tag, multiple)
            assert fed(method_frame(5, answer), cuts, sender=sender) == []
            model.settle(tag, multiple, positive)
        assert sender.room == window - (model.published + 1 - model.oldest)
        assert sender.outstanding == len(model.open)
    kept = (sender.published, sender.confirmed, sender.nacked, sender.strange)
    assert kept == (model.published, model.confirmed, model.nacked, model.strange)


def test_the_window_is_not_overdrawn() -> None:
    sender = publisher(window=2)
    sender.render(2, NOW_NS)
    with pytest.raises(ValueError, match="window"):
        sender.render(1, NOW_NS)


# --- deliveries ---


def delivered(tag: int, stamp: bytes, redelivered: bool = False, key: str = "k") -> bytes:
    method = method_frame(5, BasicDeliver("ctag", tag, redelivered, "x", key))
    return (
        method
        + frame(2, 5, content_header_payload(len(stamp), EMPTY_PROPERTIES))
        + frame(3, 5, stamp)
    )


stamps = st.tuples(
    st.sampled_from([RUN, RUN, RUN, RUN, RUN + 1]),  # run
    st.integers(0, 2),  # producer; the last is none of ours
    st.integers(1, 12),  # sequence
    st.booleans(),  # redelivered
    st.integers(0, 30),  # filler
)


@given(messages=st.lists(stamps, max_size=30), every=st.integers(0, 4), cuts=cuts)
def test_deliveries_are_counted_as_a_plain_account_does(
    messages: list[tuple[int, int, int, bool, int]], every: int, cuts: list[int]
) -> None:
    latency = Histogram()
    arrivals, receiver = Arrivals(RUN, 2, latency), Consumer(5, every)
    data = b"".join(
        delivered(tag, STAMP.pack(run, producer, sequence, NOW_NS) + b"f" * filler, redelivered)
        for tag, (run, producer, sequence, redelivered, filler) in enumerate(messages, 1)
    )
    between = method_frame(5, BasicReturn(312, "NO_ROUTE", "x", "k"))
    assert fed(data + between, cuts, receiver=receiver, arrivals=arrivals) == frames(between)

    ours = [each for each in messages if each[0] == RUN and each[1] < 2]
    seen: list[tuple[int, int]] = []
    reordered = 0
    for _, producer, sequence, _, _ in ours:
        if (producer, sequence) not in seen:
            reordered += any(p == producer and s > sequence for p, s in seen)
            seen.append((producer, sequence))
    assert arrivals.received == latency.total == len(seen)
    assert arrivals.duplicated == len(ours) - len(seen)
    assert arrivals.reordered == reordered
    assert arrivals.redelivered == sum(each[3] for each in ours)
    assert arrivals.foreign == len(messages) - len(ours)
    assert (receiver.delivered, receiver.strange) == (len(messages), 0)


@given(taken=st.lists(st.integers(1, 12), max_size=6), every=st.integers(0, 5))
def test_each_delivery_is_acknowledged_once(taken: list[int], every: int) -> None:
    arrivals, receiver = Arrivals(RUN, 1, Histogram()), Consumer(5, every)
    tags, answers = itertools.count(1), []
    for count in taken:
        data = b"".join(delivered(next(tags), STAMP.pack(RUN, 0, 1, 0)) for _ in range(count))
        fed(data, (), receiver=receiver, arrivals=arrivals)
        answers += frames(receiver.acks())
    answers += frames(receiver.acks(all=True))
    last = 0
    for kind, channel, payload in answers:
        answer = decode(payload)
        assert (kind, channel) == (1, 5)
        assert isinstance(answer, BasicAck)
        assert answer.multiple is (every > 1)
        assert 1 <= answer.delivery_tag - last <= every
        last = answer.delivery_tag
    assert last == receiver.acked == (sum(taken) if every else 0)


def test_a_tag_out_of_turn_is_strange() -> None:
    arrivals, receiver = Arrivals(RUN, 1, Histogram()), Consumer(5, 1)
    for tag in (1, 3, 4):
        fed(delivered(tag, STAMP.pack(RUN, 0, tag, 0)), (), receiver=receiver, arrivals=arrivals)
    assert receiver.strange == 1


def test_what_is_nobodys_is_handed_out() -> None:
    data = HEARTBEAT_FRAME + method_frame(5, BasicAck(1)) + delivered(1, STAMP.pack(RUN, 0, 1, 0))
    assert fed(data, (3, 30)) == frames(data)


def test_a_frame_without_its_end_is_refused() -> None:
    broken = HEARTBEAT_FRAME[:-1] + b"\x00"
    with pytest.raises(ValueError, match="frame-end"):
        scan(broken, len(broken), None, None, None, 0)


def test_a_delivery_in_pieces_is_refused() -> None:
    stamp = STAMP.pack(RUN, 0, 1, 0)
    method = method_frame(5, BasicDeliver("ctag", 1, False, "x", "k"))
    header = frame(2, 5, content_header_payload(len(stamp), EMPTY_PROPERTIES))
    data = method + header + frame(3, 5, stamp[:10]) + frame(3, 5, stamp[10:])
    with pytest.raises(ValueError, match="one body frame"):
        scan(data, len(data), None, Consumer(5, 1), Arrivals(RUN, 1, Histogram()), 0)


# --- durations ---


@given(
    values=st.lists(st.integers(0, 1 << 46), min_size=1, max_size=50),
    percent=st.sampled_from([0.0, 25.0, 50.0, 99.0, 100.0]),
)
def test_percentiles_are_a_bucket_wide_of_the_truth(values: list[int], percent: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[min(int(len(values) * percent / 100), len(values) - 1)]
    assert exact <= histogram.percentile(percent) <= exact + exact // 64
    assert (histogram.total, histogram.max_ns) == (len(values), max(values))
