"""What is owed on the short way: ids in use, PUBACK in every form, limits, and what is counted."""

import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import httpx
import pytest
from express_pair import FIRST_ID, IDS, STOP_ID, TRIES, Pair, encoded, is_short, publishes
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    encode,
)
from braidmq.wire.mqtt.properties import Properties

ADMIN = ("guest", "guest")
VERSIONS = [Version.V3_1_1, Version.V5]
MQTT = '{protocol="mqtt"}'


@pytest.fixture(params=VERSIONS)
def pair(node: LiveNode, name: str, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with Pair(node, name, request.param) as made:
        yield made


def limited(node: LiveNode, name: str, receive_maximum: int) -> Pair:
    return Pair(node, name, Version.V5, properties=Properties(receive_maximum=receive_maximum))


# --- the subscriber's limits ---


@pytest.mark.parametrize("most", [1, 3])
def test_never_more_unanswered_than_the_receive_maximum(
    node: LiveNode, name: str, most: int
) -> None:
    with limited(node, name, most) as pair:
        subscriber = pair.subscriber
        for in_turn in (True, False):
            for number in range(10):
                pair.said(b"%d" % number)
            owed = publishes(pair.settled())
            assert len(owed) == most
            heard = [each.payload for each in owed]
            chance = Random(most)
            while owed:
                # The oldest first, or any.
                subscriber.send(
                    PubAck(owed.pop(0 if in_turn else chance.randrange(len(owed))).packet_id)
                )
                come = publishes(pair.settled())
                assert len(come) == min(1, 10 - len(heard))
                owed += come
                heard += [each.payload for each in come]
                assert len({each.packet_id for each in owed}) == len(owed) <= most
            assert heard == [b"%d" % number for number in range(10)]
            pair.opens()


def test_room_for_some_of_what_comes_in_one_write(node: LiveNode, name: str) -> None:
    with limited(node, name, 3) as pair:
        subscriber = pair.subscriber
        for count in (2, 3, 4, 7):
            sent = pair.numbered(*[b"%d of %d" % (each, count) for each in range(count)])
            pair.publisher.send_bytes(encoded(sent, pair.version))
            assert [pair.publisher.answer(each) for each in sent] == [0] * count
            owed = publishes(pair.settled())
            assert len(owed) == min(count, 3)
            heard = [each.payload for each in owed]
            while owed:
                subscriber.send(*[PubAck(each.packet_id) for each in owed])
                owed = publishes(pair.settled())
                assert len(owed) <= 3
                heard += [each.payload for each in owed]
            assert heard == [each.payload for each in sent]
        pair.opens()


def test_qos_0_needs_no_room(node: LiveNode, name: str) -> None:
    with limited(node, name, 1) as pair:
        (owed,) = pair.unanswered(1)
        for number in range(10):
            pair.passes(b"%d" % number, 0)
        pair.said(b"waits")
        assert pair.settled() == []
        pair.subscriber.send(PubAck(owed.packet_id))
        assert pair.heard().payload == b"waits"
        pair.opens()


@pytest.mark.parametrize("at_once", [True, False], ids=["in one write", "one by one"])
def test_more_unanswered_than_there_are_ids(pair: Pair, at_once: bool) -> None:
    count = 3 * IDS
    owed = pair.unanswered(IDS)
    assert {each.packet_id for each in owed} == set(range(FIRST_ID, STOP_ID))
    for number in range(IDS, count):
        pair.said(b"%d" % number)
        owed.append(pair.subscriber.expect(Publish))
        assert owed[-1].payload == b"%d" % number
        assert not is_short(owed[-1])
    assert len({each.packet_id for each in owed}) == count
    acks: list[Packet] = [PubAck(each.packet_id) for each in owed]
    Random(count).shuffle(acks)
    if at_once:
        pair.subscriber.send(*acks)
    else:
        for each in acks:
            pair.subscriber.send(each)
    again = pair.unanswered(IDS)
    assert {each.packet_id for each in again} == set(range(FIRST_ID, STOP_ID))


def test_an_id_is_not_used_again_before_it_is_answered(pair: Pair) -> None:
    """Answers in any order, at any time: no id is in use twice."""
    chance, owed, short = Random(3), set[int](), 0
    for number in range(600):
        pair.said(b"%d" % number)
        got = pair.subscriber.expect(Publish)
        assert got.payload == b"%d" % number
        assert got.packet_id not in owed
        short += is_short(got)
        if not is_short(got):
            pair.pauses()
        owed.add(got.packet_id)
        if len(owed) > chance.randrange(IDS + 10):
            answered = chance.sample(sorted(owed), chance.randint(1, min(len(owed), 5)))
            owed.difference_update(answered)
            pair.subscriber.send(*[PubAck(each) for each in answered])
    assert short > 2 * IDS
    assert pair.settled() == []


# --- the subscriber's answers ---

Form = Callable[[Pair, list[int]], list[Packet]]
"""Sends PUBACKs; returns what came meanwhile."""


def one_by_one(pair: Pair, ids: list[int]) -> list[Packet]:
    for each in ids:
        pair.subscriber.send(PubAck(each))
    return []


def in_one_write(pair: Pair, ids: list[int]) -> list[Packet]:
    pair.subscriber.send(*[PubAck(each) for each in ids])
    return []


def with_a_reason(pair: Pair, ids: list[int]) -> list[Packet]:
    """0 is the default: 5 allows to leave it away, and the properties."""
    short = [b"\x40\x03" + each.to_bytes(2, "big") + b"\0" for each in ids[::2]]
    long = [b"\x40\x04" + each.to_bytes(2, "big") + b"\0\0" for each in ids[1::2]]
    pair.subscriber.send_bytes(b"".join(short + long))
    return []


def refusing(pair: Pair, ids: list[int]) -> list[Packet]:
    told = Properties(reason_string="no")
    pair.subscriber.send(*[PubAck(each, Reason.UNSPECIFIED_ERROR, told) for each in ids])
    return []


def with_a_ping(pair: Pair, ids: list[int]) -> list[Packet]:
    pair.subscriber.send(*[PubAck(each) for each in ids], PingReq())
    return until_pong(pair)


def behind_a_ping(pair: Pair, ids: list[int]) -> list[Packet]:
    pair.subscriber.send(PingReq(), *[PubAck(each) for each in ids])
    return until_pong(pair)


def until_pong(pair: Pair) -> list[Packet]:
    found = []
    while not isinstance(packet := pair.subscriber.packet(), PingResp):
        found.append(packet)
    return found


def with_a_message(pair: Pair, ids: list[int]) -> list[Packet]:
    own = Publish(f"{pair.topic}/own", b"own", 1, packet_id=77)
    pair.subscriber.send(*[PubAck(each) for each in ids], own)
    found = pair.settled()
    reason = Reason.NO_MATCHING_SUBSCRIBERS if pair.version == Version.V5 else 0
    found.remove(PubAck(77, reason))
    return found


def with_others_never_sent(pair: Pair, ids: list[int]) -> list[Packet]:
    unknown = [PubAck(each) for each in (0x7FFF, STOP_ID, 0xFFFF)]
    pair.subscriber.send(*unknown, *[PubAck(each) for each in ids], *unknown)
    return []


def twice(pair: Pair, ids: list[int]) -> list[Packet]:
    pair.subscriber.send(*[PubAck(each) for each in ids for _ in range(2)])
    pair.subscriber.send(*[PubAck(each) for each in ids])
    return []


def cut_in_the_middle(pair: Pair, ids: list[int]) -> list[Packet]:
    data = encoded([PubAck(each) for each in ids], pair.version)
    for cut in range(1, 8):
        pair.subscriber.send_bytes(data[:cut])
        pair.publisher.ping()
        data = data[cut:]
    pair.subscriber.send_bytes(data)
    return []


FORMS: list[Form] = [
    one_by_one,
    in_one_write,
    with_a_ping,
    behind_a_ping,
    with_a_message,
    with_others_never_sent,
    twice,
    cut_in_the_middle,
]
V5_FORMS: list[Form] = [with_a_reason, refusing]


@pytest.mark.parametrize("answer", FORMS)
def test_every_form_of_puback_frees_the_ids(pair: Pair, answer: Form) -> None:
    _frees(pair, answer)


@pytest.mark.parametrize("answer", V5_FORMS)
def test_every_form_of_puback_of_version_5(node: LiveNode, name: str, answer: Form) -> None:
    with Pair(node, name, Version.V5) as pair:
        _frees(pair, answer)


def _frees(pair: Pair, answer: Form) -> None:
    """With all in use a message takes the long way; that none does for long shows all are free."""
    ids = [each.packet_id for each in pair.unanswered(IDS)]
    assert answer(pair, ids) + pair.settled() == []
    again = pair.unanswered(IDS)
    assert sorted(each.packet_id for each in again) == sorted(ids)


@pytest.mark.parametrize("answer", [*FORMS, *V5_FORMS])
def test_every_form_of_puback_makes_room_once(node: LiveNode, name: str, answer: Form) -> None:
    """Two of three are answered, in one way or another, and two more come."""
    with limited(node, name, 3) as pair:
        owed = pair.unanswered(3)
        for number in range(5):
            pair.said(b"%d" % number)
        assert pair.settled() == []
        come = publishes(answer(pair, [each.packet_id for each in owed[:2]]) + pair.settled())
        assert [each.payload for each in come] == [b"0", b"1"]
        ids = [each.packet_id for each in (owed[2], *come)]
        pair.subscriber.send(*[PubAck(each) for each in ids])
        assert [pair.heard().payload for _ in range(3)] == [b"2", b"3", b"4"]
        assert pair.settled() == []
        pair.opens()


def test_pubacks_for_ids_never_sent_make_no_room(node: LiveNode, name: str) -> None:
    with limited(node, name, 2) as pair:
        owed = pair.unanswered(2)
        used = [each.packet_id for each in owed]
        pair.said(b"waits")
        others = [each for each in range(FIRST_ID, STOP_ID) if each not in used]
        pair.subscriber.send(*[PubAck(each) for each in (*others, 1, 2, STOP_ID, 0xFFFF)])
        for each in others[:5]:
            pair.subscriber.send(PubAck(each))
        assert pair.settled() == []
        pair.subscriber.send(PubAck(used[0]))
        assert pair.heard().payload == b"waits"
        pair.subscriber.send(PubAck(used[1]))
        pair.opens()


@pytest.mark.parametrize("short", [True, False], ids=["short way", "long way"])
def test_pubrec_for_a_message_of_qos_1_is_an_error(pair: Pair, short: bool) -> None:
    got = _unanswered(pair, short)
    pair.subscriber.send(PubRec(got.packet_id))
    if pair.version == Version.V5:
        assert pair.subscriber.closing() == Reason.PROTOCOL_ERROR
    else:
        pair.subscriber.expect_end()


@pytest.mark.parametrize("short", [True, False], ids=["short way", "long way"])
def test_pubrec_that_refuses_a_message_of_qos_1_is_an_answer_to_it(
    node: LiveNode, name: str, short: bool
) -> None:
    """Whoever refuses does not go on: its id is free, and there is room for the next."""
    with limited(node, name, 1) as pair:
        got = _unanswered(pair, short)
        pair.said(b"waits")
        assert pair.settled() == []
        pair.subscriber.send(PubRec(got.packet_id, Reason.UNSPECIFIED_ERROR))
        assert [each.payload for each in publishes(pair.settled())] == [b"waits"]


@pytest.mark.parametrize("short", [True, False], ids=["short way", "long way"])
def test_other_answers_for_a_message_of_qos_1_answer_nothing(pair: Pair, short: bool) -> None:
    got = _unanswered(pair, short)
    pair.subscriber.send(PubComp(got.packet_id))
    assert pair.settled() == []
    pair.subscriber.send(PubRel(got.packet_id))
    (answer,) = pair.subscriber.ping()
    assert isinstance(answer, PubComp)
    pair.subscriber.send(PubAck(got.packet_id))
    pair.opens()


def test_pubrec_for_an_id_that_is_not_in_use_any_more(pair: Pair) -> None:
    got = pair.opens()
    pair.subscriber.send(PubRec(got.packet_id))
    (answer,) = pair.subscriber.ping()
    assert isinstance(answer, PubRel)
    v5 = pair.version == Version.V5
    assert answer.reason == (Reason.PACKET_IDENTIFIER_NOT_FOUND if v5 else 0)
    pair.opens()


def _unanswered(pair: Pair, short: bool) -> Publish:
    if short:
        return pair.unanswered(1)[0]
    pair.said(b"kept", retain=True)
    got = pair.subscriber.expect(Publish)
    assert not is_short(got)
    return got


# --- who does not read ---


def test_nothing_is_lost_while_a_subscriber_does_not_read(pair: Pair) -> None:
    publisher, subscriber = pair.publisher, pair.subscriber
    subscriber.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    everything = encoded([PubAck(each) for each in range(FIRST_ID, STOP_ID)], pair.version)
    count, size = 2500, 4000
    for number in range(count):
        pair.said(b"%d" % number + bytes(size))
        if number % 16 == 0:
            # It answers for what it has not looked at, so that there is an id for the next.
            subscriber.send_bytes(everything)
            publisher.ping()
    short = 0
    for number in range(count):
        got = subscriber.expect(Publish)
        assert got.payload.rstrip(b"\0") == b"%d" % number
        assert len(got.payload) == size + len(b"%d" % number)
        assert not got.dup
        short += is_short(got)
        if not is_short(got):
            subscriber.send(PubAck(got.packet_id))
    # More than there are ids: it went on after the first were answered; and not for ever.
    assert IDS < short < count
    subscriber.send_bytes(everything)
    assert pair.settled() == []
    pair.opens()


def test_qos_0_that_a_subscriber_does_not_read_keeps_its_order(pair: Pair) -> None:
    """Nobody has to get it; whatever comes is whole, in order and no more than once."""
    subscriber = pair.subscriber
    subscriber.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    for number in range(1500):
        pair.said(b"%d" % number + bytes(4000), 0)
        if number % 100 == 0:
            pair.publisher.ping()
    pair.publisher.ping()
    heard = [int(each.payload.rstrip(b"\0") or b"0") for each in publishes(pair.settled())]
    assert heard == sorted(set(heard))
    assert len(heard) == 1500


# --- the publisher's answers ---


def test_pubacks_are_in_order_though_one_waits_for_the_disk(pair: Pair) -> None:
    elsewhere = f"{pair.topic}/kept"
    with RawMqtt(pair.node, pair.version) as keeper:
        kept = Properties(session_expiry_interval=60)
        given = {"properties": kept} if pair.version == Version.V5 else {}
        keeper.connect(elsewhere, clean_start=False, **given)
        keeper.subscribe(elsewhere, qos=1)
        short = 0
        for number in range(40):
            stored = pair.publisher.publish(elsewhere, b"%d" % number, 1)
            passing = [pair.say(b"%d.%d" % (number, each)) for each in range(number % 3 + 1)]
            assert [pair.publisher.answer(each) for each in (stored, *passing)] == [0] * (
                1 + len(passing)
            )
            assert keeper.message().payload == b"%d" % number
            for each in passing:
                got = pair.heard()
                assert got.payload == each.payload
            short += is_short(pair.passes(b"alone"))
        assert short
        assert pair.publisher.ping() == keeper.ping() == []


def test_a_publisher_may_use_any_id(pair: Pair) -> None:
    for number in (1, 0x7FFF, FIRST_ID, STOP_ID - 1, STOP_ID, 0xFFFF, 1, 1):
        for _ in range(3):
            sent = Publish(pair.topic, b"%d" % number, 1, packet_id=number)
            pair.publisher.send(sent)
            assert pair.publisher.answer(sent) == 0
            assert pair.heard().payload == b"%d" % number
    pair.opens()


def test_a_message_with_no_id_is_an_error(pair: Pair) -> None:
    good, bad = pair.numbered(b"good", b"bad")
    data = bytearray(encode(bad, pair.version))
    at = 4 + len(pair.topic)
    data[at : at + 2] = b"\0\0"
    pair.publisher.send_bytes(encode(good, pair.version) + bytes(data))
    assert pair.heard().payload == b"good"
    assert pair.publisher.answer(good) == 0
    if pair.version == Version.V5:
        assert pair.publisher.closing() == Reason.PROTOCOL_ERROR
    else:
        pair.publisher.expect_end()
    assert pair.settled() == []


# --- keep alive ---


def test_who_only_goes_the_short_way_is_heard(node: LiveNode, name: str) -> None:
    pairs = [Pair(node, f"{name}-{version}", version) for version in VERSIONS]
    for pair in pairs:
        for each in ("publisher", "subscriber"):
            client = RawMqtt(node, pair.version)
            client.connect(f"{pair.topic}-{each}-1", keep_alive_s=1)
            getattr(pair, each).sock.close()
            setattr(pair, each, client)
        pair.subscriber.subscribe(pair.topic, qos=1)
        pair.opens()
    # Longer than one and a half keep alives and a beat, with nothing on the long way.
    sockets = [each.sock for pair in pairs for each in (pair.publisher, pair.subscriber)]
    count, long_s = 0, time.monotonic()
    while time.monotonic() < long_s + 2.7:
        for pair in pairs:
            if not is_short(pair.passes(b"%d" % count)):
                pair.pauses()
                long_s = time.monotonic()
            count += 1
        # Nobody is told anything meanwhile, and nobody hung up on.
        assert select.select(sockets, [], [], 0.05)[0] == []
    for pair in pairs:
        assert pair.publisher.ping() == pair.subscriber.ping() == []
        pair.close()


# --- traces and counters ---


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    """A node that logs as JSON."""
    where = tmp_path_factory.mktemp("talker")
    (where / "braid.toml").write_text('[log]\nformat = "json"\n')
    with live_node(where / "data", config=where / "braid.toml") as node:
        yield node


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("whom", ["publisher", "subscriber"])
def test_a_trace_closes_it_while_it_lasts(
    talker: LiveNode, name: str, whom: str, version: int, qos: int
) -> None:
    with Pair(talker, name, version, qos) as pair:
        listed = httpx.get(f"{talker.http_url}/v1/connections", auth=ADMIN).json()
        (traced,) = [each["id"] for each in listed if each["client"] == f"{name}-{whom}"]
        url = f"{talker.http_url}/v1/connections/{traced}/trace"
        for turn in range(3):
            owed = pair.unanswered(2)
            assert httpx.put(url, auth=ADMIN).json()["trace"] is True
            pair.subscriber.send(PubAck(owed[0].packet_id))
            for number in range(5):
                assert not is_short(pair.passes(b"traced %d" % number))
            assert httpx.delete(url, auth=ADMIN).json()["trace"] is False
            pair.subscriber.send(PubAck(owed[1].packet_id))
            pair.opens()
            said = _traced(talker, traced, number=5 * (1 + qos) + (whom == "subscriber"))
            published = "received PUBLISH" if whom == "publisher" else "sent PUBLISH"
            answered = "sent PUBACK" if whom == "publisher" else "received PUBACK"
            assert said.count(published) == 5, turn
            assert said.count(answered) == 5 * qos + (whom == "subscriber"), turn
        everything = pair.unanswered(IDS)
        assert len({each.packet_id for each in everything}) == IDS


def _traced(node: LiveNode, connection: str, number: int) -> list[str]:
    """The next of what the trace says of a connection."""
    lines: list[dict[str, Any]] = []
    while len(lines) < number:
        line = json.loads(node.wait_for_log('"logger":"braidmq.trace"'))
        assert line["connection"] == connection
        lines.append(line)
    return [line["message"] for line in lines]


def test_what_passes_is_counted(fresh_node: LiveNode) -> None:
    def metric(name: str) -> int:
        text = httpx.get(f"{fresh_node.http_url}/metrics").text
        (line,) = [each for each in text.splitlines() if each.startswith(f"braid_{name}{MQTT}")]
        return int(float(line.rpartition(" ")[2]))

    names = ("received_messages", "sent_messages", "received_bytes", "sent_bytes")

    def read() -> list[int]:
        return [metric(f"{each}_total") for each in names]

    for version in VERSIONS:
        with (
            Pair(fresh_node, f"t{version}", version) as pair,
            RawMqtt(fresh_node, version) as other,
        ):
            other.connect()
            other.subscribe(pair.topic, qos=1)
            for _ in range(TRIES):
                pair.said(b"opens")
                other.message()
                if is_short(pair.heard()):
                    break
            for qos in (0, 1):
                pair.publisher.ping()
                pair.subscriber.ping()
                other.ping()
                before, short, size = read(), 0, 0
                for number in range(50):
                    sent = pair.say(bytes(1000 + number), qos)
                    size += len(encode(sent, version))
                    if qos:
                        assert pair.publisher.answer(sent) == 0
                    short += is_short(pair.heard(qos))
                    assert other.message().payload == sent.payload
                pair.subscriber.ping()
                other.ping()
                acks = 4 * 50 * qos
                pings = 4
                passed = [now - then for now, then in zip(read(), before, strict=True)]
                assert passed == [50, 100, size + 2 * acks + pings, 2 * size + acks + pings]
                assert short > 0 or not qos


def test_sys_topics_count_it(pair: Pair) -> None:
    def counted() -> list[int]:
        """Each time with a subscription that is new."""
        with RawMqtt(pair.node, pair.version) as client:
            client.connect()
            found = {}
            for direction in ("received", "sent"):
                client.subscribe(f"$SYS/broker/publish/messages/{direction}")
                found[direction] = int(client.expect(Publish).payload)
            return [found["received"], found["sent"]]

    before, short = counted(), 0
    for number in range(30):
        short += is_short(pair.passes(b"%d" % number, 1))
        pair.passes(b"%d" % number, 0)
    assert short
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [60, 60]
