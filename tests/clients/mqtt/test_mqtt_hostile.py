"""Clients that send what is long to do, or has to be remembered, or do not read: it is their own
connection that waits, and what is remembered is bounded."""

from array import array
from collections.abc import Iterator
from contextlib import suppress

import pytest
from mqtt_in_process import Port, RoomyDisk, mqtt_port
from raw_mqtt import RawMqtt
from test_mqtt_unfinished import frame_head, held_bytes, until, websocket

from braidmq.engine.pressure import Watermarks
from braidmq.gateways.mqtt import connection as mqtt_connection
from braidmq.gateways.mqtt import subscription_index
from braidmq.gateways.mqtt.aliases import ALIASED_BYTES_MAX, ALIASES_MAX, Aliases
from braidmq.gateways.mqtt.connection import MqttConnection
from braidmq.gateways.mqtt.listener import MqttGateway
from braidmq.gateways.mqtt.subscriber import FILTERS_AT_ONCE
from braidmq.gateways.mqtt.subscription_index import REMEMBERED_BYTES_MAX
from braidmq.model.limits import KIB, MIB
from braidmq.security.permissions import NAME_CHARACTERS_MAX
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    FILTERS_MAX,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubComp,
    Publish,
    PubRel,
    Request,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    encode,
)
from braidmq.wire.mqtt.properties import Properties


@pytest.fixture
def port() -> Iterator[Port]:
    with mqtt_port(RoomyDisk(), Watermarks(64 * MIB, 128 * MIB, 0, 0)) as port:
        yield port


def only(gateway: MqttGateway) -> MqttConnection:
    (connection,) = gateway.connections
    return connection


def unsent_bytes(gateway: MqttGateway) -> int:
    return only(gateway).transport.unsent_bytes


def test_many_filters_of_one_packet_are_subscribed_to_in_slices(port: Port) -> None:
    filters = [f"f/{number}" for number in range(10 * FILTERS_AT_ONCE + 1)]
    with RawMqtt(port) as client:
        client.connect("c")
        client.send(
            Subscribe(1, tuple(Request(each) for each in filters)),
            Publish(filters[-1], b"after"),
            Unsubscribe(2, (*filters, "none")),
            PingReq(),
        )
        assert client.expect(SubAck).reasons == (0,) * len(filters)
        assert client.expect(Publish).payload == b"after"
        reasons = client.expect(UnsubAck).reasons
        assert reasons == (0,) * len(filters) + (Reason.NO_SUBSCRIPTION_EXISTED,)
        client.expect(PingResp)


def test_more_filters_than_a_packet_may_have_end_the_connection(port: Port) -> None:
    with RawMqtt(port) as client:
        client.connect("c")
        client.send(Subscribe(1, tuple(Request("f") for _ in range(FILTERS_MAX + 1))))
        assert client.expect(Disconnect).reason == Reason.PACKET_TOO_LARGE


def test_small_packets_of_one_read_are_handled_in_slices_and_in_order(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_connection, "READ_S", 0.0)
    with RawMqtt(port) as client:
        client.connect("c")
        client.subscribe("#")
        wanted = [f"t/{number}" for number in range(300)]
        data = b"".join(encode(Publish(each, b"x"), Version.V5) for each in wanted)
        client.send_bytes(data + encode(PingReq(), Version.V5))
        assert [client.expect(Publish).topic for _ in wanted] == wanted
        client.expect(PingResp)


def test_a_run_to_a_shared_subscription_is_taken_in_slices(port: Port) -> None:
    many = 5 * mqtt_connection.RUN_AT_ONCE
    with RawMqtt(port) as client:
        client.connect("c")
        client.subscribe("$share/g/t")
        client.send_bytes(
            b"".join(encode(Publish("t", b"%d" % number), Version.V5) for number in range(many))
        )
        got = [client.expect(Publish).payload for _ in range(many)]
        assert got == [b"%d" % number for number in range(many)]


def test_pubrel_of_unknown_ids_is_answered_for_each(port: Port) -> None:
    ids = array("H", range(1, 20_001))
    with RawMqtt(port) as client:
        client.connect("c")
        client.send(*[PubRel(each) for each in ids])
        for each in ids:
            answer = client.expect(PubComp)
            assert answer.packet_id == each
            assert answer.reason == Reason.PACKET_IDENTIFIER_NOT_FOUND


def test_aliases_of_long_topics_count_as_memory(port: Port) -> None:
    with RawMqtt(port) as client:
        client.connect("c")
        for alias in range(1, 101):
            topic = f"{alias}".ljust(50_000, "t")
            client.publish(topic, properties=Properties(topic_alias=alias))
        client.publish("short", properties=Properties(topic_alias=1))
        client.send(PingReq())
        client.expect(PingResp)
        assert port.ask(held_bytes) == 99 * 50_000 + len("short")
    until(lambda: port.ask(held_bytes) == 0)


def test_long_topics_are_not_remembered(port: Port) -> None:
    with RawMqtt(port) as client:
        client.connect("c")
        client.subscribe("#")
        long = "t/" + "x" * max(REMEMBERED_BYTES_MAX, NAME_CHARACTERS_MAX)
        for topic in ("short", long):
            client.publish(topic)
            assert client.expect(Publish).topic == topic
        connection = port.ask(only)
        assert list(connection.session.index.matches) == [b"short"]
        assert long not in connection.grants._read
        assert long not in connection.grants._write


def test_topics_with_many_subscribers_are_remembered_as_many(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_index, "MATCHES_MAX", 8)
    clients = [RawMqtt(port) for _ in range(4)]
    for number, client in enumerate(clients):
        client.connect(f"c{number}")
        client.subscribe("#")
    for number in range(5):
        clients[0].publish(f"t/{number}")
        for client in clients:
            assert client.expect(Publish).topic == f"t/{number}"
        index = port.ask(lambda gateway: next(iter(gateway.connections)).session.index)
        assert len(index.matches) <= 2
    for client in clients:
        client.sock.close()


def test_numbers_for_topics_are_few_and_for_short_ones() -> None:
    aliases = Aliases(65_535)
    assert aliases.look(b"x" * (ALIASED_BYTES_MAX + 1)) == (0, False)
    for number in range(ALIASES_MAX + 10):
        topic = b"%d" % number
        aliases.sent(topic, aliases.look(topic)[0])
    assert aliases.look(b"0") == (1, True)
    assert aliases.look(b"new") == (0, False)


def test_answers_to_pings_of_a_websocket_are_bounded(port: Port) -> None:
    limit = port.gateway.settings.output_bytes_max
    sock = websocket(port)
    connect = encode(Connect(Version.V3_1_1, "c"), Version.V3_1_1)
    sock.sendall(frame_head(len(connect)) + connect)
    until(lambda: port.ask(lambda gateway: only(gateway).is_established))
    pings = (b"\x89\xfd" + bytes(4 + 125)) * 8000
    sock.setblocking(False)

    sent = 0

    def is_full() -> bool:
        nonlocal sent
        with suppress(BlockingIOError):
            sent += sock.send(pings[sent % len(pings) :])
        return port.ask(unsent_bytes) > limit

    until(is_full)
    # Nothing more is read from it, so nothing is added.
    for _ in range(100):
        is_full()
    assert port.ask(unsent_bytes) < limit + 512 * KIB
    sock.close()
    until(lambda: not port.gateway.connections)
    assert port.ask(lambda gateway: gateway.node_loop.unsent.held_bytes) == 0


def test_a_packet_in_frames_of_one_byte_arrives(port: Port) -> None:
    sock = websocket(port)
    packets = encode(Connect(Version.V3_1_1, "c"), Version.V3_1_1)
    packets += encode(Publish("t", bytes(3000)), Version.V3_1_1)
    packets += encode(PingReq(), Version.V3_1_1)
    sock.sendall(b"".join(frame_head(1) + packets[at : at + 1] for at in range(len(packets))))
    heard = b""
    while not heard.endswith(encode(PingResp(), Version.V3_1_1)):
        heard += sock.recv(4096)
    sock.close()
