"""The rules of MQTT that a polite client library hides, over a plain socket."""

import contextlib
import struct
import time

import msgspec
import pytest
from raw_mqtt import Gone, RawMqtt

from braidmq.testing.live import LiveNode
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from braidmq.wire.mqtt.properties import Properties

V3, V5 = Version.V3_1_1, Version.V5
KEPT = Properties(session_expiry_interval=3600)

versions = pytest.mark.parametrize("version", [V3, V5])


def kept(version: int) -> dict[str, object]:
    """CONNECT of a client that keeps its session."""
    if version == V3:
        return {"clean_start": False}
    return {"clean_start": False, "properties": KEPT}


# --- connecting ---


def test_connack_says_the_limits_and_an_assigned_client_id(node: LiveNode) -> None:
    with RawMqtt(node) as client:
        answer = client.connect(properties=Properties(request_response_information=1))
    assert not answer.session_present
    said = answer.properties
    assert said.assigned_client_identifier
    assert said.response_information == f"response/{said.assigned_client_identifier}"
    assert (said.receive_maximum, said.topic_alias_maximum) == (1024, 256)
    assert said.maximum_packet_size == 16 << 20
    assert (said.maximum_qos, said.server_keep_alive) == (None, None)


@pytest.mark.parametrize(
    ("user", "password", "reason", "code"),
    [("guest", b"wrong", 0x86, 4), ("nobody", b"x", 0x86, 4), ("other:guest", b"guest", 0x87, 5)],
)
def test_who_may_not_enter_is_told_so(
    node: LiveNode, user: str, password: bytes, reason: int, code: int
) -> None:
    with RawMqtt(node) as client:
        answer = client.connect(user_name=user, password=password)
        assert answer.reason == reason
        assert answer.properties.reason_string
        client.expect_end()
    with RawMqtt(node, V3) as client:
        client.send(Connect(V3, "c", user_name=user, password=password))
        assert client.sock.recv(4) == bytes((0x20, 2, 0, code))


def test_the_namespace_may_stand_before_the_user(node: LiveNode) -> None:
    with RawMqtt(node) as client:
        assert client.connect(user_name="/:guest", password=b"guest").reason == 0


def test_enhanced_authentication_is_refused(node: LiveNode) -> None:
    with RawMqtt(node) as client:
        answer = client.connect(properties=Properties(authentication_method="SCRAM-SHA-1"))
        assert answer.reason == Reason.BAD_AUTHENTICATION_METHOD
    with RawMqtt(node) as client:
        client.connect()
        client.send(Auth(Reason.REAUTHENTICATE, Properties(authentication_method="x")))
        assert client.closing() == Reason.PROTOCOL_ERROR


def test_another_version_is_refused_in_words_of_3_1_1(node: LiveNode) -> None:
    with RawMqtt(node, V3) as client:
        connect = bytearray(encode(Connect(V3, "old")))
        connect[8] = 3
        client.send_bytes(bytes(connect))
        assert client.sock.recv(4) == b"\x20\x02\x00\x01"
        client.expect_end()


def test_takeover(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as old, RawMqtt(node) as new:
        old.connect(name, **kept(V5))
        assert new.connect(name, **kept(V5)).session_present
        assert old.closing() == Reason.SESSION_TAKEN_OVER
        assert new.ping() == []


@versions
def test_nothing_is_taken_before_connect_or_twice(node: LiveNode, version: int) -> None:
    with RawMqtt(node, version) as client:
        client.publish("a", b"x")
        client.expect_end()
    with RawMqtt(node, version) as client:
        client.connect("twice")
        client.send(Connect(version, "twice"))
        if version == V5:
            assert client.expect(Disconnect).reason == Reason.PROTOCOL_ERROR
        client.expect_end()


def test_what_comes_behind_connect_waits_for_the_login(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.send(
            Connect(V5, name), Subscribe(1, (Request(name),)), Publish(name, b"early"), Disconnect()
        )
        client.expect(ConnAck)
        assert client.packet().packet_id == 1  # type: ignore[attr-defined]
        assert client.expect(Publish).payload == b"early"
        client.expect_end()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00",
        b"\x30\xff\xff\xff\xff\x7f",
        b"\x36\x05\x00\x01a\x00\x01",
        b"\x30\x04\x00\x02\xff\xfe",
        b"\x82\x02\x00\x01",
        b"\x30\x05\x00\x03a/#",
        b"\x62\x02\x00\x00",
        b"\xf1\x00",
    ],
)
@versions
def test_malformed_packets_close_their_connection_and_no_other(
    node: LiveNode, version: int, garbage: bytes
) -> None:
    with RawMqtt(node, version) as other, RawMqtt(node, version) as client:
        other.connect("bystander")
        client.connect("malformed")
        client.send_bytes(garbage)
        if version == V5:
            assert client.expect(Disconnect).reason in (0x81, 0x82)
        client.expect_end()
        assert other.ping() == []


def test_silent_clients_are_disconnected_after_one_and_a_half_keep_alives(node: LiveNode) -> None:
    with RawMqtt(node) as client:
        client.connect(keep_alive_s=1)
        begun = time.monotonic()
        assert client.closing() == Reason.KEEP_ALIVE_TIMEOUT
        assert time.monotonic() - begun >= 1.4


# --- publishing ---


@versions
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_qos_to_each_qos(node: LiveNode, name: str, version: int, qos: int) -> None:
    with RawMqtt(node, version) as sender, RawMqtt(node, V5) as new, RawMqtt(node, V3) as old:
        sender.connect(f"{name}-sender")
        new.connect(f"{name}-new")
        old.connect(f"{name}-old")
        for wanted in (0, 1, 2):
            assert new.subscribe(f"{name}/{wanted}", qos=wanted) == (wanted,)
            assert old.subscribe(f"{name}/+", qos=wanted) == (wanted,)
            sent = sender.publish(f"{name}/{wanted}", b"payload", qos)
            if qos:
                assert sender.answer(sent) == 0
            for client in (new, old):
                got = client.message()
                assert (got.payload, got.qos, got.retain, got.dup) == (
                    b"payload",
                    min(qos, wanted),
                    False,
                    False,
                )


def test_nobody_subscribed(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect()
        for qos in (1, 2):
            sent = client.publish(name, b"", qos)
            assert client.answer(sent) == Reason.NO_MATCHING_SUBSCRIBERS


def test_publishes_to_the_brokers_topics_are_refused(node: LiveNode) -> None:
    with RawMqtt(node) as client:
        client.connect()
        for topic in ("$SYS/broker/uptime", "$mqtt/session/x", "$share/g/t"):
            assert client.answer(client.publish(topic, b"", 1)) == Reason.TOPIC_NAME_INVALID
        assert client.subscribe("$mqtt/orders", "ok") == (Reason.TOPIC_FILTER_INVALID, 0)
        client.publish("$mqtt/orders", b"")
        assert client.closing() == Reason.TOPIC_NAME_INVALID


def test_a_duplicate_of_qos_2_is_published_once(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client, RawMqtt(node) as watcher:
        watcher.connect()
        watcher.subscribe(name)
        client.connect(name, **kept(V5))
        sent = client.publish(name, b"once", 2)
        client.expect(PubRec)
        client.send(Publish(name, b"once", 2, dup=True, packet_id=sent.packet_id))
        client.expect(PubRec)
        client.sock.close()
        with RawMqtt(node) as again:
            assert again.connect(name, **kept(V5)).session_present
            again.send(Publish(name, b"once", 2, dup=True, packet_id=sent.packet_id))
            again.expect(PubRec)
            again.send(PubRel(sent.packet_id))
            assert again.expect(PubComp).reason == 0
            again.send(PubRel(sent.packet_id))
            assert again.expect(PubComp).reason == Reason.PACKET_IDENTIFIER_NOT_FOUND
        assert watcher.message().payload == b"once"
        assert watcher.ping() == []


def test_receive_maximum_of_the_broker(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect(name, **kept(V5))
        packets = [Publish(name, b"", 2, packet_id=number) for number in range(1, 1026)]
        client.send(*packets)
        found = [client.packet()]
        while isinstance(found[-1], PubRec):
            found.append(client.packet())
        assert found[-1].reason == Reason.RECEIVE_MAXIMUM_EXCEEDED  # type: ignore[attr-defined]


def test_receive_maximum_of_the_client(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client, RawMqtt(node) as sender:
        client.connect(properties=Properties(receive_maximum=2))
        client.subscribe(name, qos=1)
        sender.connect()
        for number in range(3):
            sender.answer(sender.publish(name, b"%d" % number, 1))
        first, second = client.expect(Publish), client.expect(Publish)
        assert client.ping() == []
        client.send(PubAck(second.packet_id))
        third = client.expect(Publish)
        assert [each.payload for each in (first, second, third)] == [b"0", b"1", b"2"]


def test_topic_aliases_of_the_client(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect()
        client.subscribe(f"{name}/#")
        alias = Properties(topic_alias=1)
        client.publish(f"{name}/a", b"1", properties=alias)
        client.publish("", b"2", properties=alias)
        client.publish(f"{name}/b", b"3", properties=alias)
        client.publish("", b"4", properties=alias)
        got = [client.message() for _ in range(4)]
        assert [(each.topic[-1], each.payload) for each in got] == [
            ("a", b"1"),
            ("a", b"2"),
            ("b", b"3"),
            ("b", b"4"),
        ]
        assert {each.properties.topic_alias for each in got} == {None}
        client.publish("x", b"", properties=Properties(topic_alias=257))
        assert client.closing() == Reason.TOPIC_ALIAS_INVALID


def test_packets_larger_than_the_client_takes_are_left_out(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client, RawMqtt(node) as sender:
        client.connect(properties=Properties(maximum_packet_size=100))
        client.subscribe(name, qos=1)
        sender.connect()
        for qos in (0, 1):
            for payload in (b"small", b"x" * 100, b"also small"):
                sent = sender.publish(name, payload, qos)
                if qos:
                    sender.answer(sent)
            assert [client.message().payload for _ in range(2)] == [b"small", b"also small"]
        assert client.ping() == []


@versions
def test_large_messages(node: LiveNode, name: str, version: int) -> None:
    payload = bytes(range(256)) * 12_000
    with RawMqtt(node, version) as client:
        client.connect("large")
        client.subscribe(name, qos=1)
        for qos in (0, 1):
            sent = client.publish(name, payload, qos)
            seen = {type(each := client.packet()): each for _ in range(1 + qos)}
            message = seen[Publish]
            assert isinstance(message, Publish)
            assert message.payload == payload
            if qos:
                assert isinstance(seen[PubAck], PubAck)
                assert sent.packet_id == seen[PubAck].packet_id
                client.send(PubAck(message.packet_id))


def test_properties_travel_with_a_message_and_expiry_counts_down(node: LiveNode, name: str) -> None:
    sent = Properties(
        payload_format_indicator=1,
        message_expiry_interval=100,
        content_type="text/plain",
        response_topic="answers/here",
        correlation_data=b"\x00\x01",
        user_properties=(("a", "1"), ("a", "2")),
    )
    with RawMqtt(node) as client:
        client.connect()
        client.subscribe(name, qos=1)
        for qos in (0, 1):
            client.send(Publish(name, b"p", qos, packet_id=qos, properties=sent))
            packets = [client.packet() for _ in range(1 + qos)]
            got = next(each for each in packets if isinstance(each, Publish))
            assert 0 < (got.properties.message_expiry_interval or 0) <= 100
            left = got.properties.message_expiry_interval
            assert got.properties == _with_expiry(sent, left)


def _with_expiry(properties: Properties, expiry_s: int | None) -> Properties:
    return msgspec.structs.replace(properties, message_expiry_interval=expiry_s)


# --- subscribing ---


def test_overlapping_subscriptions_are_one_message_with_all_identifiers(
    node: LiveNode, name: str
) -> None:
    with RawMqtt(node) as client:
        client.connect()
        for number, (pattern, qos) in enumerate([(f"{name}/#", 0), (f"{name}/+", 1)], start=1):
            identifier = Properties(subscription_identifiers=(number,))
            client.subscribe(pattern, qos=qos, properties=identifier)
        client.publish(f"{name}/a", b"one", 1)
        packets = {type(each := client.packet()): each for _ in range(2)}
        message = packets[Publish]
        assert isinstance(message, Publish)
        assert message.qos == 1
        assert message.properties.subscription_identifiers == (1, 2)


def test_no_local_and_retain_as_published(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client, RawMqtt(node) as other:
        client.connect()
        other.connect()
        client.subscribe(Request(name, no_local=True))
        other.subscribe(Request(name, retain_as_published=True))
        client.publish(name, b"mine", retain=True)
        assert other.message().retain
        other.publish(name, b"theirs")
        got = client.message()
        assert (got.payload, got.retain) == (b"theirs", False)
        assert not other.message().retain


def test_unsubscribe(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect()
        client.subscribe(name)
        client.send(Unsubscribe(9, (name, "never")))
        assert client.expect(UnsubAck).reasons == (0, Reason.NO_SUBSCRIPTION_EXISTED)
        client.publish(name, b"")
        assert client.ping() == []


def test_shared_subscriptions_take_turns(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as sender, RawMqtt(node) as one, RawMqtt(node) as two, RawMqtt(node) as all_:
        for client in (sender, one, two, all_):
            client.connect()
        for client in (one, two):
            assert client.subscribe(f"$share/group/{name}/+", qos=1) == (1,)
        all_.subscribe(f"{name}/#")
        for number in range(10):
            sender.answer(sender.publish(f"{name}/x", b"%d" % number, 1))
        halves = [[client.message().payload for _ in range(5)] for client in (one, two)]
        assert sorted(halves[0] + halves[1]) == [b"%d" % number for number in range(10)]
        assert [all_.message().payload for _ in range(10)] == [b"%d" % n for n in range(10)]
        one.send(Disconnect())
        one.expect_end()
        sender.answer(sender.publish(f"{name}/x", b"last", 1))
        assert two.message().payload == b"last"


# --- retained messages ---


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_messages_are_found_by_filter(node: LiveNode, name: str, qos: int) -> None:
    with RawMqtt(node) as client:
        client.connect()
        for topic in ("a", "a/b", "b"):
            sent = client.publish(f"{name}/{topic}", topic.encode(), qos, retain=True)
            if qos:
                client.answer(sent)
        identifier = Properties(subscription_identifiers=(7,))
        client.subscribe(f"{name}/#", qos=1, properties=identifier)
        got = [client.message() for _ in range(3)]
        assert [each.payload for each in got] == [b"a", b"a/b", b"b"]
        assert {(each.qos, each.retain) for each in got} == {(min(qos, 1), True)}
        assert {each.properties.subscription_identifiers for each in got} == {(7,)}
        client.send(Unsubscribe(99, (f"{name}/#",)))
        client.expect(UnsubAck)
        sent = client.publish(f"{name}/a/b", b"", qos, retain=True)
        if qos:
            client.answer(sent)
        client.subscribe(f"{name}/a/+")
        assert client.ping() == []


def test_retain_handling(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect()
        client.publish(name, b"kept", retain=True)
        client.subscribe(Request(name, retain_handling=2))
        assert client.ping() == []
        client.subscribe(Request(name, retain_handling=1))
        assert client.ping() == []
        client.subscribe(Request(name, retain_handling=0))
        assert client.message().payload == b"kept"
        client.send(Unsubscribe(99, (name,)))
        client.expect(UnsubAck)
        client.subscribe(Request(name, retain_handling=1))
        assert client.message().payload == b"kept"


# --- sessions ---


@versions
@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_keeps_messages_and_redelivers_what_was_not_answered(
    node: LiveNode, name: str, version: int, qos: int
) -> None:
    with RawMqtt(node, version) as client:
        assert not client.connect(name, **kept(version)).session_present
        client.subscribe(name, qos=qos)
    with RawMqtt(node) as sender:
        sender.connect()
        for payload in (b"one", b"two"):
            assert sender.answer(sender.publish(name, payload, qos)) == 0
    with RawMqtt(node, version) as client:
        assert client.connect(name, **kept(version)).session_present
        first = client.expect(Publish)
        second = client.expect(Publish)
        assert (first.payload, second.payload, first.dup) == (b"one", b"two", False)
        client.send(PubAck(second.packet_id) if qos == 1 else PubRec(second.packet_id))
        if qos == 2:
            client.expect(PubRel)
        assert client.ping() == []
    with RawMqtt(node, version) as client:
        client.connect(name, **kept(version))
        again = client.expect(Publish)
        assert (again.payload, again.dup, again.packet_id) == (b"one", True, first.packet_id)
        if qos == 2:
            assert client.expect(PubRel).packet_id == second.packet_id
            client.send(PubComp(second.packet_id))
        client.send(PubAck(again.packet_id) if qos == 1 else PubRec(again.packet_id))
        if qos == 2:
            client.expect(PubRel)
            client.send(PubComp(again.packet_id))
        assert client.ping() == []
    with RawMqtt(node, version) as client:
        assert client.connect(name, **kept(version)).session_present
        assert client.ping() == []
    with RawMqtt(node, version) as client:
        assert not client.connect(name, clean_start=True).session_present


def test_a_session_ends_when_it_expires(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect(name, clean_start=False, properties=Properties(session_expiry_interval=1))
        client.subscribe(name, qos=1)
        client.send(Disconnect())
        client.expect_end()
    with RawMqtt(node) as watcher:
        watcher.connect()
        # Nobody is told that a session ended; a publish tells whether anybody still waits for it.
        deadline = time.monotonic() + 20
        while watcher.answer(watcher.publish(name, b"", 1)) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with RawMqtt(node) as client:
        assert not client.connect(name, clean_start=False).session_present


def test_disconnect_may_shorten_a_session_and_not_begin_one(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect(name, **kept(V5))
        client.send(Disconnect(properties=Properties(session_expiry_interval=0)))
        client.expect_end()
    with RawMqtt(node) as client:
        assert not client.connect(name, clean_start=False).session_present
        client.send(Disconnect(properties=Properties(session_expiry_interval=5)))
        assert client.closing() == Reason.PROTOCOL_ERROR


def test_expired_messages_are_not_delivered(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect(name, **kept(V5))
        client.subscribe(name, qos=1)
    with RawMqtt(node) as sender:
        sender.connect()
        for payload, expiry_s in ((b"short", 1), (b"long", 1000)):
            properties = Properties(message_expiry_interval=expiry_s)
            sender.answer(sender.publish(name, payload, 1, properties=properties))
        time.sleep(1.1)  # the time to live is what is tested
    with RawMqtt(node) as client:
        client.connect(name, **kept(V5))
        assert client.message().payload == b"long"


# --- wills ---


def test_wills(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as watcher:
        watcher.connect()
        watcher.subscribe(f"{name}/#", qos=1)
        for reason, expected in ((0, False), (4, True), (None, True)):
            with RawMqtt(node) as client:
                properties = Properties(content_type="text/plain")
                will = Will(f"{name}/{reason}", b"gone", 1, False, properties)
                client.connect(will=will)
                if reason is not None:
                    client.send(Disconnect(reason))
                    client.expect_end()
            if expected:
                got = watcher.message()
                assert (got.topic, got.payload) == (f"{name}/{reason}", b"gone")
                assert got.properties.content_type == "text/plain"
        assert watcher.ping() == []


def test_a_delayed_will_is_cancelled_by_who_comes_back_and_sent_when_the_session_ends(
    node: LiveNode, name: str
) -> None:
    will = Will(name, b"gone", properties=Properties(will_delay_interval=600))
    with RawMqtt(node) as watcher:
        watcher.connect()
        watcher.subscribe(name)
        with RawMqtt(node) as client:
            client.connect(name, will=will, **kept(V5))
        with RawMqtt(node) as client:
            assert client.connect(name, will=will, **kept(V5)).session_present
        assert watcher.ping() == []
        with RawMqtt(node) as client:
            client.connect(name, clean_start=True)
            assert watcher.message().payload == b"gone"
        short = Will(name, b"later", properties=Properties(will_delay_interval=1))
        with RawMqtt(node) as client:
            client.connect(name, will=short, **kept(V5))
        assert watcher.message().payload == b"later"


# --- the broker about itself ---


def test_sys_topics(node: LiveNode) -> None:
    with RawMqtt(node) as client:
        client.connect()
        client.subscribe(Request("#", retain_handling=2), "+/broker/version")
        assert client.ping() == []
        client.subscribe("$SYS/broker/version", "$SYS/broker/clients/+")
        got = {each.topic: each.payload for each in client.ping() if isinstance(each, Publish)}
        assert got["$SYS/broker/version"].startswith(b"BraidMQ")
        assert int(got["$SYS/broker/clients/connected"]) >= 1
        assert len(got) == 4


def test_a_subscriber_that_does_not_read_is_bounded(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as lazy, RawMqtt(node) as sender:
        lazy.connect()
        lazy.subscribe(name)
        sender.connect()
        payload = struct.pack(">I", 0) * (1 << 16)
        for _ in range(160):
            sender.publish(name, payload)
        assert sender.ping() == []
        sender.subscribe("$SYS/broker/publish/messages/dropped")
        assert int(sender.message().payload) > 0
        with contextlib.suppress(Gone):
            assert lazy.message().payload == payload
