"""Normative statements of MQTT 5 that no other test shows; all are in docs/mqtt-conformance.md."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    Subscribe,
)
from braidmq.wire.mqtt.properties import Properties

SETTINGS = """
[mqtt]
topic_alias_maximum = 0
retained_messages_max = 0
session_messages_max = 3
"""
KEPT = {"clean_start": False, "properties": Properties(session_expiry_interval=600)}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    """Takes neither topic aliases nor retained messages."""
    where = tmp_path_factory.mktemp("strict")
    (where / "braid.toml").write_text(SETTINGS)
    with live_node(where / "data", config=where / "braid.toml") as node:
        yield node


# --- reason strings, and packets larger than the client takes ---


def test_reason_strings_are_left_out_where_they_do_not_fit(strict: LiveNode, name: str) -> None:
    for limit, fits in ((1000, True), (40, False)):
        with RawMqtt(strict) as client:
            client.connect(f"c{limit}", properties=Properties(maximum_packet_size=limit))
            for qos in (1, 2):
                sent = client.publish(name, b"x", qos, retain=True)
                answer = client.packet()
                assert answer.packet_id == sent.packet_id  # type: ignore[attr-defined]
                assert answer.reason == Reason.QUOTA_EXCEEDED  # type: ignore[attr-defined]
                assert bool(answer.properties.reason_string) is fits  # type: ignore[attr-defined]
            client.send(Publish(name, b"x", properties=Properties(topic_alias=1)))
            said = client.expect(Disconnect)
            assert said.reason == Reason.TOPIC_ALIAS_INVALID
            assert bool(said.properties.reason_string) is fits


def test_the_reason_string_of_connack_is_left_out_where_it_does_not_fit(node: LiveNode) -> None:
    for limit, fits in ((1000, True), (20, False)):
        with RawMqtt(node) as client:
            properties = Properties(maximum_packet_size=limit)
            answer = client.connect(user_name="guest", password=b"wrong", properties=properties)
            assert answer.reason == Reason.BAD_USER_NAME_OR_PASSWORD
            assert bool(answer.properties.reason_string) is fits


def test_who_wants_no_problem_information_gets_none(strict: LiveNode, name: str) -> None:
    with RawMqtt(strict) as client:
        client.connect(properties=Properties(request_problem_information=0))
        for qos in (1, 2):
            client.publish(name, b"x", qos, retain=True)
            answer = client.packet()
            assert answer.reason == Reason.QUOTA_EXCEEDED  # type: ignore[attr-defined]
            assert answer.properties == Properties()  # type: ignore[attr-defined]


def test_a_suback_larger_than_the_client_takes_is_not_sent(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect(properties=Properties(maximum_packet_size=50))
        filters = tuple(Request(f"{name}/{number}") for number in range(60))
        assert client.subscribe(*filters[:40]) == (0,) * 40
        client.send(Subscribe(client.next_id(), filters))
        assert client.ping() == []


# --- client ids, response information, keep alive ---


def test_assigned_client_ids_are_new_and_good_for_coming_back(node: LiveNode) -> None:
    given = []
    for _ in range(3):
        with RawMqtt(node) as client:
            assigned = client.connect(**KEPT).properties.assigned_client_identifier
            assert assigned
            given.append(assigned)
    assert len(set(given)) == 3
    with RawMqtt(node) as client:
        answer = client.connect(given[0], **KEPT)
        assert answer.session_present
        assert answer.properties.assigned_client_identifier is None


def test_nothing_is_returned_that_was_not_asked_for(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        said = client.connect(name).properties
        assert (said.response_information, said.authentication_method) == (None, None)
        assert (said.server_keep_alive, said.assigned_client_identifier) == (None, None)


# --- topic aliases ---


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_topic_aliases_of_the_broker(node: LiveNode, name: str, qos: int) -> None:
    """Up to the client's maximum, first come first served; whoever allows none gets none."""
    with RawMqtt(node) as client, RawMqtt(node) as plain, RawMqtt(node) as sender:
        client.connect(properties=Properties(topic_alias_maximum=2))
        plain.connect()
        sender.connect()
        for each in (client, plain):
            each.subscribe(f"{name}/#", qos=qos)
        wanted = [f"{name}/{topic}" for topic in "aabcabc"]
        known: dict[int, str] = {}
        heard = []
        for topic in wanted:
            sent = sender.publish(topic, topic.encode(), qos)
            if qos:
                sender.answer(sent)
            message = client.message()
            alias = message.properties.topic_alias
            heard.append((bool(message.topic), alias))
            if alias is not None:
                known[alias] = message.topic or known[alias]
            assert (message.topic or known[alias or 0]) == topic == message.payload.decode()
            assert (got := plain.message()).topic == topic
            assert got.properties.topic_alias is None
        assert heard == [
            (True, 1), (False, 1), (True, 2), (True, None), (False, 1), (False, 2), (True, None),
        ]  # fmt: skip


def test_aliases_of_the_broker_end_with_the_connection(node: LiveNode, name: str) -> None:
    properties = Properties(topic_alias_maximum=5, session_expiry_interval=600)
    for _ in range(2):
        with RawMqtt(node) as client, RawMqtt(node) as sender:
            client.connect(name, clean_start=False, properties=properties)
            client.subscribe(name, qos=1)
            sender.connect()
            for topic in (name, ""):
                sender.answer(sender.publish(name, b"", 1))
                message = client.message()
                assert (message.topic, message.properties.topic_alias) == (topic, 1)


def test_an_alias_is_not_taken_for_set_by_a_packet_that_was_left_out(
    node: LiveNode, name: str
) -> None:
    with RawMqtt(node) as client, RawMqtt(node) as sender:
        client.connect(properties=Properties(topic_alias_maximum=5, maximum_packet_size=200))
        client.subscribe(name, qos=1)
        sender.connect()
        for qos in (0, 1):
            sender.send(*(Publish(name, each, qos, packet_id=7) for each in (b"x" * 300, b"ok")))
        got = [client.message() for _ in range(2)]
        assert [each.payload for each in got] == [b"ok", b"ok"]
        assert got[0].topic == name


def test_a_broker_without_aliases_takes_none(strict: LiveNode, name: str) -> None:
    with RawMqtt(strict) as client:
        assert client.connect().properties.topic_alias_maximum in (None, 0)
        client.publish(name, properties=Properties(topic_alias=1))
        assert client.closing() == Reason.TOPIC_ALIAS_INVALID


# --- QoS 2 ---


def test_a_refused_packet_id_is_free_again(strict: LiveNode, name: str) -> None:
    with RawMqtt(strict) as client, RawMqtt(strict) as watcher:
        watcher.connect()
        watcher.subscribe(name)
        client.connect()
        client.send(Publish(name, b"refused", 2, retain=True, packet_id=9))
        assert client.expect(PubRec).reason == Reason.QUOTA_EXCEEDED
        client.send(Publish(name, b"taken", 2, packet_id=9))
        assert client.expect(PubRec).reason == 0
        client.send(PubRel(9))
        assert client.expect(PubComp).reason == 0
        assert watcher.message().payload == b"taken"


def test_a_release_is_sent_again_though_its_message_is_gone(strict: LiveNode, name: str) -> None:
    with RawMqtt(strict) as client, RawMqtt(strict) as sender:
        client.connect(name, **KEPT)
        client.subscribe(name, qos=2)
        sender.connect()
        sender.answer(sender.publish(name, b"released", 2))
        message = client.expect(Publish)
        client.send(PubRec(message.packet_id))
        client.expect(PubRel)
        client.send(Disconnect())
        client.expect_end()
        for number in range(5):
            sender.answer(sender.publish(name, b"%d" % number, 2))
    with RawMqtt(strict) as client:
        client.connect(name, **KEPT)
        assert client.expect(PubRel).packet_id == message.packet_id
        client.send(PubComp(message.packet_id))
        assert [client.expect(Publish).payload for _ in range(3)] == [b"2", b"3", b"4"]
        assert client.ping() == []
    with RawMqtt(strict) as client:
        client.connect(name, **KEPT)
        assert not [each for each in client.ping() if isinstance(each, PubRel)]


# --- subscriptions ---


def test_replacing_a_subscription_loses_and_repeats_nothing(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client, RawMqtt(node) as sender:
        client.connect()
        client.subscribe(name, qos=1)
        sender.connect()
        for number in range(0, 20, 2):
            sender.send(Publish(name, b"%d" % number, 1, packet_id=number + 1))
            again = Request(name, 1 + number % 2, retain_handling=2)
            client.send(Subscribe(client.next_id(), (again,)))
            sender.send(Publish(name, b"%d" % (number + 1), 1, packet_id=number + 2))
        got: list[bytes] = []
        while len(got) < 20:
            packet = client.packet()
            if isinstance(packet, Publish):
                got.append(packet.payload)
        assert sorted(map(int, got)) == list(range(20))


def test_a_shared_message_of_qos_2_stays_with_who_has_it(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as other, RawMqtt(node) as sender:
        with RawMqtt(node) as chosen:
            chosen.connect(name, **KEPT)
            chosen.subscribe(f"$share/g/{name}", qos=2)
            sender.connect()
            sender.answer(sender.publish(name, b"yours", 2))
            first = chosen.expect(Publish)
            other.connect()
            other.subscribe(f"$share/g/{name}", qos=2)
        assert other.ping() == []
        with RawMqtt(node) as chosen:
            assert chosen.connect(name, **KEPT).session_present
            again = chosen.expect(Publish)
            assert (again.packet_id, again.dup, again.payload) == (first.packet_id, True, b"yours")
        with RawMqtt(node) as chosen:
            chosen.connect(name, clean_start=True)
            assert other.ping() == []


def test_a_shared_message_that_is_refused_goes_to_nobody_else(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as one, RawMqtt(node) as two, RawMqtt(node) as sender:
        for client in (one, two):
            client.connect()
            client.subscribe(f"$share/g/{name}", qos=2)
        sender.connect()
        sender.answer(sender.publish(name, b"no", 2))
        [message] = [each for each in (*one.ping(), *two.ping()) if isinstance(each, Publish)]
        for client in (one, two):
            client.send(PubRec(message.packet_id, Reason.UNSPECIFIED_ERROR))
        answers = [*one.ping(), *two.ping()]
        assert not [each for each in answers if isinstance(each, Publish)]


# --- server redirect ---


def test_clients_are_sent_to_another_server(tmp_path: Path) -> None:
    (tmp_path / "braid.toml").write_text('[mqtt]\nredirect = "mqtt.example.com:1883"\n')
    with live_node(tmp_path / "data", config=tmp_path / "braid.toml") as node:
        with RawMqtt(node) as client:
            answer = client.connect("c")
            assert answer.reason == Reason.USE_ANOTHER_SERVER
            assert answer.properties.server_reference == "mqtt.example.com:1883"
            client.expect_end()
        with RawMqtt(node, Version.V3_1_1) as client:
            client.send(Connect(Version.V3_1_1, "c"))
            assert client.expect(ConnAck).reason == Reason.SERVER_UNAVAILABLE
            client.expect_end()
