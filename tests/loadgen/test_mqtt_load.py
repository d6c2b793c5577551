"""The load generator's kernel: it counts what is lost, twice, late or not asked for."""

import struct
from array import array

import pytest

from braidmq.loadgen.arrivals import BODY_BYTES_MIN, Arrivals, Histogram
from braidmq.loadgen.mqtt_load import Publisher, Subscriber, scan
from braidmq.wire.mqtt.constants import Kind, Reason, Version
from braidmq.wire.mqtt.packets import Publish, decode, encode
from braidmq.wire.mqtt.render import render_acks
from braidmq.wire.mqtt.scan import EVENT_PUBLISH, SERVER, Scanner

RUN = 77
VERSIONS = pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])


def publisher(
    qos: int, version: int, window: int = 4, latency: Histogram | None = None
) -> Publisher:
    window = window if qos else 0
    return Publisher(b"a/b", qos, version, 40, RUN, 0, window, latency or Histogram())


def subscriber(version: int = Version.V3_1_1, producers: int = 1) -> Subscriber:
    return Subscriber(Arrivals(RUN, producers, Histogram()), version)


def publish(
    sequence: int, qos: int = 0, packet_id: int = 0, dup: bool = False, run: int = RUN
) -> bytes:
    stamp = struct.pack("=IIQQ", run, 0, sequence, 0)
    assert len(stamp) == BODY_BYTES_MIN
    packet = Publish("a/b", stamp, qos, packet_id=packet_id, dup=dup)
    return encode(packet, Version.V3_1_1)


def taken(data: bytes, one: Subscriber) -> Arrivals:
    assert scan(data, len(data), None, one, 10) == (len(data), [])
    return one.arrivals


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_it_publishes_is_well_formed_and_arrives(version: int, qos: int) -> None:
    one = publisher(qos, version)
    data = one.render(3, 5)
    events, used = Scanner(SERVER, version).scan(data, len(data))
    (kind, run), *others = events
    assert (kind, used, others) == (EVENT_PUBLISH, len(data), [])
    assert (run.topic, run.qos, run.count) == (b"a/b", qos, 3)
    assert run.packet_ids == (array("H", [1, 2, 3]) if qos else None)
    other = subscriber(version)
    arrivals = taken(data, other)
    assert (arrivals.received, arrivals.duplicated, arrivals.reordered) == (3, 0, 0)
    answers = (
        b""
        if not qos
        else render_acks(Kind.PUBACK if qos == 1 else Kind.PUBREC, run.packet_ids, version)
    )
    assert other.answers() == answers
    assert other.answers() == b""


def test_an_answer_makes_room_in_the_window_and_is_timed() -> None:
    latency = Histogram()
    one = publisher(1, Version.V5, 4, latency)
    one.render(4, 1000)
    assert (one.room, one.outstanding) == (0, 4)
    with pytest.raises(ValueError, match="window"):
        one.render(1, 1000)
    data = render_acks(Kind.PUBACK, array("H", [1, 2]), Version.V5)
    data += render_acks(Kind.PUBACK, array("H", [3]), Version.V5, Reason.QUOTA_EXCEEDED)
    assert scan(data, len(data), one, None, 1064) == (len(data), [])
    assert (one.confirmed, one.nacked, one.room, one.outstanding) == (2, 1, 3, 1)
    assert (latency.total, latency.max_ns) == (2, 64)
    again = render_acks(Kind.PUBACK, array("H", [1, 9]), Version.V5)
    scan(again, len(again), one, None, 1064)
    assert one.strange == 2


def test_packet_ids_follow_the_sequence_beyond_the_highest() -> None:
    one = publisher(1, Version.V3_1_1, 65_535)
    one.render(65_535, 1)
    every = render_acks(Kind.PUBACK, array("H", range(1, 65_536)), Version.V3_1_1)
    scan(every, len(every), one, None, 2)
    assert (one.confirmed, one.strange) == (65_535, 0)
    packet = one.render(2, 3)
    events, _ = Scanner(SERVER, Version.V3_1_1).scan(packet, len(packet))
    assert events[0][1].packet_ids == array("H", [1, 2])
    scan(every[:8], 8, one, None, 4)
    assert (one.confirmed, one.strange, one.outstanding) == (65_537, 0, 0)


def test_qos_2_is_released_and_then_complete() -> None:
    one, other = publisher(2, Version.V3_1_1), subscriber()
    arrivals = taken(one.render(2, 1), other)
    for kind in (Kind.PUBREC, Kind.PUBREL, Kind.PUBCOMP):
        side = one if kind == Kind.PUBREL else other
        data = side.answers()
        assert data == render_acks(kind, array("H", [1, 2]), Version.V3_1_1)
        towards = (None, other) if kind == Kind.PUBREL else (one, None)
        scan(data, len(data), *towards, 2)
    assert (one.confirmed, one.outstanding, one.strange, other.strange) == (2, 0, 0, 0)
    early = render_acks(Kind.PUBCOMP, array("H", [3]), Version.V3_1_1)
    one.render(1, 3)
    scan(early, len(early), one, None, 4)
    assert (one.strange, one.outstanding) == (1, 1)
    assert arrivals.received == 2


def test_an_open_packet_id_is_not_taken_twice_and_a_new_exchange_is() -> None:
    one = subscriber()
    taken(publish(1, 2, 5), one)
    arrivals = taken(publish(1, 2, 5, dup=True), one)
    assert (arrivals.received, arrivals.duplicated, arrivals.redelivered) == (1, 0, 1)
    released = render_acks(Kind.PUBREL, array("H", [5, 6]), Version.V3_1_1)
    taken(released, one)
    assert one.strange == 1
    taken(publish(1, 2, 5), one)
    assert arrivals.duplicated == 1


def test_what_goes_wrong_is_counted() -> None:
    one = subscriber()
    arrivals = taken(publish(1) + publish(3) + publish(2) + publish(3) + publish(4, run=8), one)
    counts = (arrivals.received, arrivals.duplicated, arrivals.reordered, arrivals.foreign)
    assert counts == (3, 1, 1, 1)


def test_other_packets_are_handed_out_and_what_is_cut_off_waits() -> None:
    data = bytes.fromhex("20020000") + publish(1)
    took, others = scan(data, len(data) - 1, None, subscriber(), 1)
    assert took == 4
    assert [decode(Version.V3_1_1, *each) for each in others]
