"""The short way of QoS 0 and 1: whatever changes, the next message goes where it should."""

from collections.abc import Iterator
from contextlib import suppress

import httpx
import pika
import pytest
from express_pair import FIRST_ID, IDS, STOP_ID, Pair, encoded, is_short
from raw_mqtt import Gone, RawMqtt
from websockets.sync.client import connect as open_websocket
from websockets.typing import Subprotocol

from braidmq.testing.live import LiveNode
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    encode,
)
from braidmq.wire.mqtt.properties import Properties

ADMIN = ("guest", "guest")
VERSIONS = [Version.V3_1_1, Version.V5]
KEPT = Properties(session_expiry_interval=600)


@pytest.fixture(params=[(version, qos) for version in VERSIONS for qos in (0, 1)])
def pair(node: LiveNode, name: str, request: pytest.FixtureRequest) -> Iterator[Pair]:
    version, qos = request.param
    with Pair(node, name, version, qos) as made:
        yield made


@pytest.fixture(params=VERSIONS)
def answered(node: LiveNode, name: str, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """One of QoS 1."""
    with Pair(node, name, request.param) as made:
        yield made


def keeper(node: LiveNode, version: int, client_id: str) -> RawMqtt:
    """A client whose session is kept."""
    client = RawMqtt(node, version)
    if version == Version.V5:
        client.connect(client_id, clean_start=False, properties=KEPT)
    else:
        client.connect(client_id, clean_start=False)
    return client


# --- who gets it ---


def test_subscribers_that_come_and_go(node: LiveNode, pair: Pair) -> None:
    with RawMqtt(node, Version.V5) as other, RawMqtt(node, Version.V3_1_1) as older:
        other.connect()
        other.subscribe(
            Request(pair.topic + "/#", 1), properties=Properties(subscription_identifiers=(7,))
        )
        older.connect()
        older.subscribe(pair.topic)
        pair.passes(b"to three")
        got = other.message()
        assert (got.payload, got.properties.subscription_identifiers) == (b"to three", (7,))
        assert older.expect(Publish).payload == b"to three"
        other.send(Unsubscribe(9, (pair.topic + "/#",)))
        other.expect(UnsubAck)
        pair.passes(b"to two")
        assert other.ping() == []
        assert older.expect(Publish).payload == b"to two"
    pair.passes(b"to one")
    pair.opens()
    pair.subscriber.send(Unsubscribe(9, (pair.topic,)))
    pair.subscriber.expect(UnsubAck)
    sent = pair.say(b"to nobody")
    if sent.qos:
        nobody = Reason.NO_MATCHING_SUBSCRIBERS if pair.version == Version.V5 else 0
        assert pair.publisher.answer(sent) == nobody
    assert pair.publisher.ping() == []
    assert pair.subscriber.ping() == []


def test_a_session_that_comes_back_in_another_version(node: LiveNode, name: str) -> None:
    with (
        Pair(node, name, Version.V3_1_1, 0) as pair,
        RawMqtt(node, Version.V3_1_1) as before,
        RawMqtt(node, Version.V5) as after,
    ):
        before.connect(name, clean_start=False)
        before.subscribe(name)
        pair.passes(b"before")
        assert before.expect(Publish).payload == b"before"
        after.connect(name, clean_start=False)
        pair.passes(b"after")
        assert after.expect(Publish).payload == b"after"


def test_bindings_of_amqp(node: LiveNode, pair: Pair) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", "#")
        pair.passes(b"to both")
        assert channel.basic_get(queue, auto_ack=True)[2] == b"to both"
        pair.stays_closed()
        channel.queue_unbind(queue, "amq.topic", "#")
        channel.queue_purge(queue)
        pair.passes(b"to one")
        pair.opens()
        assert channel.basic_get(queue, auto_ack=True)[0] is None


def test_who_wants_no_copy_of_its_own(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client, RawMqtt(node) as other:
        client.connect()
        other.connect()
        other.subscribe(name, qos=1)
        client.subscribe(Request(name, 1, no_local=True))
        for number in range(8):
            sent = client.publish(name, b"%d" % number, number % 2)
            assert other.message().payload == b"%d" % number
            assert not sent.qos or client.answer(sent) == 0
        assert client.ping() == []


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_rights_that_end(node: LiveNode, name: str, version: int, qos: int) -> None:
    with httpx.Client(base_url=node.http_url, auth=ADMIN, timeout=20) as admin:
        admin.put(f"/v1/users/{name}", json={"password": "p", "tags": []}).raise_for_status()
        grants = {"configure": ".*", "write": ".*", "read": ".*"}
        admin.put(f"/v1/permissions/%2F/{name}", json=grants).raise_for_status()
        with Pair(node, name, version, qos) as pair:
            watcher, client = pair.subscriber, RawMqtt(node, version)
            client.connect(user_name=name, password=b"p")
            for number in range(8):
                sent = client.publish(name, b"%d" % number, qos)
                assert watcher.message().payload == b"%d" % number
                assert not qos or client.answer(sent) == 0
            grants["write"] = "^$"
            admin.put(f"/v1/permissions/%2F/{name}", json=grants).raise_for_status()
            sent = client.publish(name, b"no more", qos)
            if version == Version.V3_1_1:
                client.expect_end()
            elif qos:
                assert client.answer(sent) == Reason.NOT_AUTHORIZED
            else:
                assert client.closing() == Reason.NOT_AUTHORIZED
            assert watcher.ping() == []
            pair.opens()
            client.sock.close()


def test_who_publishes_to_itself(node: LiveNode, name: str) -> None:
    for version in VERSIONS:
        with RawMqtt(node, version) as client:
            client.connect()
            client.subscribe(name, qos=1)
            short = 0
            for number in range(20):
                sent = client.publish(name, b"%d" % number, 1)
                packets = [client.packet() for _ in range(2)]
                (answer,) = [each for each in packets if isinstance(each, PubAck)]
                (got,) = [each for each in packets if isinstance(each, Publish)]
                assert (answer.packet_id, answer.reason) == (sent.packet_id, 0)
                assert (got.payload, got.qos) == (b"%d" % number, 1)
                short += is_short(got)
                client.send(PubAck(got.packet_id))
                client.publish(name, b"and %d" % number)
                assert client.expect(Publish).payload == b"and %d" % number
            assert short
            assert client.ping() == []


def test_each_subscriber_has_ids_of_its_own(node: LiveNode, answered: Pair) -> None:
    with RawMqtt(node, answered.version) as second, RawMqtt(node, answered.version) as third:
        everybody = [answered.subscriber, second, third]
        for each in (second, third):
            each.connect()
            each.subscribe(answered.topic, qos=1)
        # The second owes every other answer, the third all of them.
        owed: dict[RawMqtt, list[int]] = {each: [] for each in everybody}
        together = 0
        for number in range(40):
            answered.said(b"%d" % number)
            got = [each.expect(Publish) for each in everybody]
            assert [each.payload for each in got] == [b"%d" % number] * 3
            together += all(map(is_short, got))
            assert len({is_short(each) for each in got}) == 1
            for index, (each, message) in enumerate(zip(everybody, got, strict=True)):
                assert message.packet_id not in owed[each]
                if index == 0 or index == number % 2:
                    each.send(PubAck(message.packet_id))
                else:
                    owed[each].append(message.packet_id)
            answered.publisher.ping()
        assert together
        assert [len(owed[each]) for each in everybody] == [0, 20, 40]
        for each in everybody:
            each.send(*[PubAck(number) for number in owed[each]], PingReq())
            each.expect(PingResp)
        answered.said(b"last")
        for each in everybody:
            assert each.message().payload == b"last"


def test_more_subscribers_than_the_short_way_has_room_for(node: LiveNode, name: str) -> None:
    with Pair(node, name, Version.V5) as pair:
        others = [RawMqtt(node) for _ in range(64)]
        for number, each in enumerate(others):
            each.connect()
            if number < 63:
                each.subscribe(name, qos=1)

        def reach(count: int) -> int:
            """How many of twenty messages took the short way."""
            short = 0
            for number in range(20):
                pair.said(b"%d" % number)
                got = [each.message() for each in (pair.subscriber, *others[: count - 1])]
                assert [each.payload for each in got] == [b"%d" % number] * count
                assert len({is_short(each) for each in got}) == 1
                short += is_short(got[0])
                pair.pauses()
            return short

        assert reach(64) > 0
        others[63].subscribe(name, qos=1)
        assert reach(65) == 0
        for each in others:
            each.sock.close()


def test_a_session_that_is_kept_closes_it(node: LiveNode, answered: Pair, name: str) -> None:
    with keeper(node, answered.version, name) as kept:
        kept.subscribe(answered.topic, qos=1)
        answered.said(b"to both")
        first = answered.heard()
        second = kept.expect(Publish)
        assert first.payload == second.payload == b"to both"
        assert not is_short(first)
        assert not is_short(second)
        kept.send(Disconnect())
        kept.expect_end()
    answered.said(b"while it was away")
    assert not is_short(answered.heard())
    with keeper(node, answered.version, name) as kept:
        again, later = kept.message(), kept.message()
        assert (again.payload, again.dup, again.packet_id) == (b"to both", True, second.packet_id)
        assert (later.payload, later.dup) == (b"while it was away", False)
        assert kept.ping() == []
        # QoS 0 may go to it as it is.
        answered.passes(b"nobody keeps it", 0)
        assert kept.expect(Publish).payload == b"nobody keeps it"
        kept.send(Unsubscribe(9, (answered.topic,)))
        kept.expect(UnsubAck)
    answered.opens()


def test_a_session_that_ended_with_its_connection_gets_nothing_again(answered: Pair) -> None:
    client_id = f"{answered.topic}-subscriber"
    lost = answered.unanswered(3)
    assert len({each.packet_id for each in lost}) == 3
    answered.subscriber.sock.close()
    answered.subscriber = RawMqtt(answered.node, answered.version)
    # In 3.1.1 whoever does not start clean wants its session kept from now on.
    clean = answered.version == Version.V3_1_1
    assert not answered.subscriber.connect(client_id, clean_start=clean).session_present
    assert answered.subscriber.ping() == []
    answered.subscriber.subscribe(answered.topic, qos=1)
    assert answered.subscriber.ping() == []
    # Its ids are all free again, though the one before it had some in use.
    everything = answered.unanswered(IDS)
    assert {each.packet_id for each in everything} == set(range(FIRST_ID, STOP_ID))
    answered.subscriber.send(*[PubAck(each.packet_id) for each in everything])
    answered.opens()


def test_a_subscriber_that_is_taken_over(answered: Pair) -> None:
    before = answered.subscriber
    answered.unanswered(2)
    with RawMqtt(answered.node, answered.version) as after:
        assert not after.connect(f"{answered.topic}-subscriber").session_present
        if answered.version == Version.V5:
            assert before.closing() == Reason.SESSION_TAKEN_OVER
        else:
            before.expect_end()
        sent = answered.say(b"to nobody")
        answered.publisher.answer(sent)
        assert after.ping() == []
        after.subscribe(answered.topic, qos=1)
        answered.subscriber = after
        answered.passes(b"to the other")
        # What the one before it says counts for nothing.
        before.send(PubAck(FIRST_ID), Publish(answered.topic, b"no more"))
        answered.opens()
        assert after.ping() == []
    before.sock.close()


def test_a_publisher_that_is_taken_over(answered: Pair) -> None:
    before = answered.publisher
    with RawMqtt(answered.node, answered.version) as after:
        after.connect(f"{answered.topic}-publisher")
        if answered.version == Version.V5:
            assert before.closing() == Reason.SESSION_TAKEN_OVER
        else:
            before.expect_end()
        before.send(*answered.numbered(b"no more"))
        answered.publisher = after
        answered.opens()
        assert answered.subscriber.ping() == []
    before.sock.close()


def test_a_subscriber_on_a_websocket(node: LiveNode, name: str) -> None:
    url = f"ws://127.0.0.1:{node.ports['ws_port']}/mqtt"
    with (
        Pair(node, name, Version.V3_1_1) as pair,
        open_websocket(url, subprotocols=[Subprotocol("mqtt")], open_timeout=20) as socket,
    ):

        def hear() -> bytes:
            data = socket.recv(20)
            assert isinstance(data, bytes)
            return data

        socket.send(encoded([Connect(4, name), Subscribe(1, (Request(name, 1),))], 4))
        greeting = b""
        while len(greeting) < 9:
            greeting += hear()
        assert greeting == b"\x20\2\0\0\x90\3\0\1\1"
        short = 0
        for number in range(100):
            payload = b"%d" % number
            pair.said(payload)
            packet_id = pair.heard().packet_id
            data = hear()
            own_id = int.from_bytes(data[4 + len(name) : 6 + len(name)], "big")
            assert data == encode(Publish(name, payload, 1, packet_id=own_id), 4)
            assert (own_id in range(FIRST_ID, STOP_ID)) == (packet_id in range(FIRST_ID, STOP_ID))
            short += own_id in range(FIRST_ID, STOP_ID)
            socket.send(encode(PubAck(own_id), 4))
            pair.passes(payload, 0)
            assert hear() == encode(Publish(name, payload), 4)
            pair.pauses()
        # More than it has ids for: its answers were heard.
        assert short > IDS


def test_what_others_have_to_be_told_in_another_way(node: LiveNode, name: str) -> None:
    for number, properties in enumerate(
        (Properties(maximum_packet_size=1000), Properties(topic_alias_maximum=5))
    ):
        with Pair(node, f"{name}-{number}", Version.V5) as pair, RawMqtt(node) as other:
            other.connect(properties=properties)
            other.subscribe(pair.topic, qos=1)
            for payload in (b"a", b"b", b"c"):
                assert not is_short(pair.passes(payload))
                got = other.message()
                assert got.payload == payload
                assert not is_short(got)
            pair.passes(bytes(2000))
            if number == 0:
                assert other.ping() == []
            else:
                assert other.message().payload == bytes(2000)


def test_ids_of_a_queue_and_of_the_short_way_are_not_the_same(answered: Pair) -> None:
    subscriber = answered.subscriber
    subscriber.subscribe(f"$queue/{answered.topic}", qos=1)
    open_ids = [each.packet_id for each in answered.unanswered(10)]
    for number in range(10):
        sent = answered.publisher.publish(f"$queue/{answered.topic}", b"q%d" % number, 1)
        assert answered.publisher.answer(sent) == 0
        got = subscriber.expect(Publish)
        assert (got.payload, is_short(got)) == (b"q%d" % number, False)
        open_ids.append(got.packet_id)
    open_ids += [each.packet_id for each in answered.unanswered(10)]
    assert len(set(open_ids)) == 30
    subscriber.send(*[PubAck(each) for each in reversed(open_ids)])
    assert subscriber.ping() == []
    everything = answered.unanswered(IDS)
    assert len({each.packet_id for each in everything}) == IDS


# --- what is between ---


def test_other_packets_between(pair: Pair) -> None:
    pair.publisher.send(Publish(pair.topic, b"a"), Publish(pair.topic, b"b"), PingReq())
    pair.publisher.expect(PingResp)
    assert [pair.subscriber.expect(Publish).payload for _ in range(2)] == [b"a", b"b"]
    whole, parts = (
        encode(Publish(pair.topic, each, pair.qos, packet_id=pair.qos), pair.version)
        for each in (b"whole", b"in two pieces")
    )
    pair.publisher.send_bytes(whole + parts[:7])
    assert pair.heard().payload == b"whole"
    pair.publisher.send_bytes(parts[7:])
    assert pair.heard().payload == b"in two pieces"
    answers = pair.publisher.ping()
    assert [type(each) for each in answers] == [PubAck, PubAck][: 2 * pair.qos]
    pair.passes(b"1", 1)
    pair.said(b"elsewhere", retain=True)
    assert pair.heard().payload == b"elsewhere"
    pair.publisher.publish(pair.topic + "/below", b"not subscribed")
    pair.passes(b"last")
    pair.opens()


def test_what_is_retained_is_kept(node: LiveNode, pair: Pair) -> None:
    pair.said(b"kept", retain=True)
    assert pair.heard().payload == b"kept"
    pair.passes(b"not kept")
    with RawMqtt(node) as late:
        late.connect()
        late.subscribe(pair.topic)
        assert late.expect(Publish).payload == b"kept"


def test_every_length_of_a_message(pair: Pair) -> None:
    """The header's length has one, two or three bytes; above 8192 in all it is the long way."""
    overhead = len(encode(Publish(pair.topic, b"", pair.qos, packet_id=pair.qos), pair.version)) - 2
    edges = [overhead, 127, 128, 8192 - 3, 16_383, 16_384]
    for length in [edge + step for edge in edges for step in (-1, 0, 1)]:
        for _ in range(2):
            pair.passes(b"x" * max(length - overhead, 0))
    pair.passes(b"")
    pair.opens()


def test_a_message_in_pieces(answered: Pair) -> None:
    """Every piece but the last is not a packet, and no shorter way goes through the middle."""
    for size in (0, 100, 300):
        (message,) = answered.numbered(b"p" * size)
        data = encode(message, answered.version)
        for cut in (1, 2, 3, len(answered.topic), len(data) - size, len(data) - 1):
            if cut >= len(data):
                continue
            answered.publisher.send_bytes(data[:cut])
            # It was read: what another connection said after it is answered.
            answered.subscriber.ping()
            answered.publisher.send_bytes(data[cut:])
            assert answered.publisher.answer(message) == 0
            assert answered.heard().payload == b"p" * size
            answered.passes(b"behind it")


def test_order_is_kept_over_both_ways(answered: Pair) -> None:
    publisher, subscriber, version = answered.publisher, answered.subscriber, answered.version
    published: list[bytes] = []
    ways: list[bool] = []

    def named(label: str, count: int = 1) -> list[bytes]:
        made = [b"%s %d %d" % (label.encode(), len(published), each) for each in range(count)]
        published.extend(made)
        return made

    def hear_all() -> None:
        while len(ways) < len(published):
            got = answered.heard()
            assert got.payload.rstrip(b".") == published[len(ways)]
            ways.append(is_short(got))

    def unusual(step: int) -> list[Publish]:
        """Sent, and not answered."""
        sent: list[Publish]
        if step == 0:
            sent = answered.numbered(*named("retained"), retain=True)
        elif step == 1:
            sent = answered.numbered(*[each.ljust(9000, b".") for each in named("large")])
        elif step == 2:
            sent = answered.numbered(*named("two", 2))
        elif step == 3:
            sent = answered.numbered(*named("hundred", 100))
        elif step == 4:
            sent = answered.numbered(*named("again"), dup=True)
        elif step == 5 and version == Version.V5:
            sent = answered.numbered(*named("typed"), properties=Properties(content_type="t"))
        elif step == 6 and version == Version.V5:
            alias = Properties(topic_alias=3)
            sent = answered.numbered(*named("aliased"), properties=alias)
        else:
            sent = answered.numbered(*named("plain"))
        publisher.send_bytes(encoded(sent, version))
        return sent

    for step in range(28):
        sent = unusual(step % 7)
        # At once, or when the answer is there: it finds the broker busy, or it does not.
        for _ in range(3):
            if step % 2:
                assert [publisher.answer(each) for each in sent] == [0] * len(sent)
                sent = []
            sent += answered.numbered(*named("single"))
            publisher.send(sent[-1])
        assert [publisher.answer(each) for each in sent] == [0] * len(sent)
        if step % 3 == 0:
            hear_all()
    hear_all()
    assert 0 < sum(ways) < len(ways)
    assert subscriber.ping() == []
    answered.opens()


def test_order_is_kept_while_an_exchange_of_qos_2_is_open(answered: Pair) -> None:
    publisher = answered.publisher
    for number in range(10):
        twice = answered.say(b"exactly %d" % number, 2)
        once = answered.say(b"at least %d" % number, 1)
        assert publisher.expect(PubRec).packet_id == twice.packet_id
        assert publisher.answer(once) == 0
        answered.said(b"in the middle %d" % number)
        publisher.send(PubRel(twice.packet_id))
        assert publisher.expect(PubComp).packet_id == twice.packet_id
        answered.said(b"behind %d" % number)
        got = [answered.heard() for _ in range(4)]
        assert [each.payload for each in got] == [
            each % number
            for each in (b"exactly %d", b"at least %d", b"in the middle %d", b"behind %d")
        ]
        assert len({each.packet_id for each in got}) == 4
    answered.opens()


def test_many_publishers_at_once(node: LiveNode, answered: Pair) -> None:
    """Who is read together with others may take another way than who is alone."""
    crowd = [RawMqtt(node, answered.version) for _ in range(8)]
    for each in crowd:
        each.connect()
    heard: dict[int, list[int]] = {number: [] for number in range(len(crowd))}
    ways: list[bool] = []
    for turn in range(60):
        talkers = crowd[: 1 + turn % len(crowd)]
        sent = [
            each.publish(answered.topic, b"%d %d" % (number, turn), 1)
            for number, each in enumerate(talkers)
        ]
        assert [each.answer(it) for each, it in zip(talkers, sent, strict=True)] == [0] * len(sent)
        for _ in talkers:
            got = answered.heard()
            who, what = map(int, got.payload.split())
            heard[who].append(what)
            ways.append(is_short(got))
    for number, turns in heard.items():
        assert turns == [turn for turn in range(60) if turn % len(crowd) >= number]
    assert any(ways)
    assert answered.subscriber.ping() == []
    for each in crowd:
        each.sock.close()


def test_nothing_is_delivered_behind_disconnect(pair: Pair) -> None:
    late = Publish(pair.topic, b"too late", pair.qos, packet_id=pair.qos)
    with RawMqtt(pair.node, pair.version) as other:
        other.connect()
        for number in range(10):
            sent = other.publish(pair.topic, b"%d" % number, pair.qos)
            assert pair.heard().payload == b"%d" % number
            assert not sent.qos or other.answer(sent) == 0
        other.send(late, Disconnect(), late)
        assert pair.heard().payload == b"too late"
        for _ in range(pair.qos):
            other.expect(PubAck)
        other.expect_end()
        # The broker has closed the socket, and nothing of this gets anywhere.
        with suppress(Gone):
            other.send(late)
            other.send(late, late)
        pair.passes(b"of another")
        assert pair.subscriber.ping() == []
