"""While memory or disk is low nothing is published, whatever acknowledges goes on, and so a queue
that is full of what nobody may add to can be emptied."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from mqtt_in_process import WAIT_S, Port, RoomyDisk, mqtt_port
from raw_mqtt import RawMqtt

from braidmq.engine.pressure import Watermarks
from braidmq.gateways.mqtt.connection import LARGE_BYTES
from braidmq.gateways.mqtt.listener import MqttGateway
from braidmq.model.limits import MIB
from braidmq.runtime.parked import PARKED_BYTES_MAX, PARKED_S
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import Disconnect, PubAck, Publish, PubRec, PubRel
from braidmq.wire.mqtt.properties import Properties

MARKS = Watermarks(1 << 40, 1 << 41, disk_slow_bytes=20 * MIB, disk_block_bytes=10 * MIB)
V3, V5 = Version.V3_1_1, Version.V5


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def counts(gateway: MqttGateway) -> tuple[int, int]:
    """Of the queue: ready, and with somebody."""
    (topic,) = [each for each in gateway.node_loop.view.state.topics_of("/") if each.name == "q"]
    found = topic.subscriptions.values()
    return sum(each.ready for each in found), sum(each.in_flight for each in found)


def is_blocked(gateway: MqttGateway) -> bool:
    return gateway.node_loop.is_blocked()


@contextmanager
def worker(version: int) -> Iterator[tuple[Port, RoomyDisk, RawMqtt, list[Publish]]]:
    """A client that publishes, has two messages of a queue, and then the disk is full."""
    disk = RoomyDisk()
    with mqtt_port(disk, MARKS) as port, RawMqtt(port, version) as client:
        client.connect("worker-1")
        client.subscribe("$queue/q", qos=1)
        got = []
        for number in range(2):
            client.publish("$queue/q", b"%d" % number, 1)
            pair = [client.packet(), client.packet()]
            got += [each for each in pair if isinstance(each, Publish)]
        assert port.ask(counts) == (0, 2)
        disk.free = 5 * MIB
        until(lambda: port.ask(is_blocked))
        yield port, disk, client, got


def message_id(message: Publish) -> str:
    return dict(message.properties.user_properties)["message-id"]


@pytest.mark.parametrize("verb", ["$ack", "$reject"])
def test_answers_are_publishes_and_are_read_all_the_same(verb: str) -> None:
    with worker(V5) as (port, disk, client, got):
        client.publish("$queue/q", b"parked, as it can't be refused")
        for each in got:
            client.send(PubAck(each.packet_id))
            properties = Properties(user_properties=(("message-id", message_id(each)),))
            answer = client.publish(f"$queue/q/{verb}", qos=1, properties=properties)
            assert client.answer(answer) == Reason.SUCCESS
        assert port.ask(counts) == (0, 0)
        disk.free = 1 << 40
        assert client.expect(Publish).payload == b"parked, as it can't be refused"


def test_pubacks_behind_a_publish_are_read() -> None:
    """3.1.1: they are the answers, and the publish can't be refused."""
    with worker(V3) as (port, disk, client, got):
        sent = client.publish("$queue/q", b"waits", 1)
        client.send(*(PubAck(each.packet_id) for each in got))
        assert client.ping() == []
        assert port.ask(counts) == (0, 0)
        client.subscribe("other")
        disk.free = 1 << 40
        pair = [client.packet(), client.packet()]
        assert {type(each) for each in pair} == {PubAck, Publish}
        assert [each.packet_id for each in pair if isinstance(each, PubAck)] == [sent.packet_id]


@pytest.mark.parametrize("topic", ["$queue/q", "t"])
@pytest.mark.parametrize("qos", [1, 2])
def test_version_5_is_told_that_there_is_no_room_from_the_first_publish_on(
    topic: str, qos: int
) -> None:
    with worker(V5) as (port, disk, client, _), RawMqtt(port) as other:
        other.connect("new")
        for _ in range(2):
            other.publish(topic, b"x", qos)
            answer = other.expect(PubAck if qos == 1 else PubRec)
            assert answer.reason == Reason.QUOTA_EXCEEDED
        assert port.ask(counts) == (0, 2)
        disk.free = 1 << 40
        until(lambda: not port.ask(is_blocked))
        client.subscribe("t")
        assert other.answer(other.publish(topic, b"x", qos)) == Reason.SUCCESS


@pytest.mark.parametrize("size", [1, 4 * LARGE_BYTES])
def test_an_exchange_of_qos_2_that_had_begun_is_completed(size: int) -> None:
    """A large one would be refused by its first bytes, were it new."""
    body = bytes(size)
    disk = RoomyDisk()
    with mqtt_port(disk, MARKS) as port, RawMqtt(port) as client:
        client.connect("c", clean_start=False, properties=Properties(session_expiry_interval=60))
        client.subscribe("t")
        sent = client.publish("t", body, 2)
        assert {type(client.packet()), type(client.packet())} == {PubRec, Publish}
        disk.free = 5 * MIB
        until(lambda: port.ask(is_blocked))
        client.send(Publish("t", body, 2, dup=True, packet_id=sent.packet_id))
        assert client.expect(PubRec).reason == Reason.SUCCESS
        client.send(PubRel(sent.packet_id))
        assert client.packet().packet_id == sent.packet_id  # type: ignore[union-attr]


@pytest.mark.parametrize(("version", "qos"), [(V3, 0), (V3, 1), (V5, 0)])
def test_what_waits_is_taken_in_order(version: int, qos: int) -> None:
    with worker(version) as (port, disk, client, _), RawMqtt(port) as reader:
        reader.connect("reader")
        reader.subscribe("t", qos=1)
        for number in range(20):
            client.publish("t", b"%d" % number, qos)
        assert client.ping() == []
        assert reader.ping() == []
        disk.free = 1 << 40
        assert [reader.message().payload for _ in range(20)] == [b"%d" % n for n in range(20)]
        assert port.ask(lambda gateway: gateway.node_loop.input_budget.held_bytes) == 0


def test_what_waits_is_bounded_and_who_does_not_answer_is_closed_in_the_end() -> None:
    with worker(V5) as (port, _, client, _):
        body = bytes(PARKED_BYTES_MAX // 4)
        client.send(*(Publish("t", body) for _ in range(4)))

        def held(gateway: MqttGateway) -> int:
            return gateway.node_loop.input_budget.held_bytes

        until(lambda: port.ask(held) > PARKED_BYTES_MAX)
        client.send(*(Publish("t", body) for _ in range(20)))
        assert port.ask(held) < 3 * PARKED_BYTES_MAX

        def check(after_s: float) -> Callable[[MqttGateway], None]:
            def later(gateway: MqttGateway) -> None:
                for each in list(gateway.connections):
                    each.check_parked(gateway.node_loop.loop.time() + after_s)

            return later

        port.ask(check(PARKED_S - 5))
        assert port.ask(counts) == (0, 2)
        port.ask(check(PARKED_S + 5))
        assert client.expect(Disconnect).reason == Reason.QUOTA_EXCEEDED
        until(lambda: port.ask(counts) == (2, 0))
        assert port.ask(held) == 0


def test_a_large_publish_is_refused_before_it_is_there() -> None:
    with worker(V5) as (port, _, client, _):
        whole = Publish("t", bytes(4 * MIB), 1, packet_id=9)
        client.send(whole)
        answer = client.expect(PubAck)
        assert (answer.packet_id, answer.reason) == (9, Reason.QUOTA_EXCEEDED)
        assert client.ping() == []
        assert port.ask(lambda gateway: gateway.node_loop.input_budget.held_bytes) == 0
        assert client.subscribe("u") == (0,)


def test_subscribing_and_leaving_go_on() -> None:
    with worker(V3) as (port, _, client, _):
        client.publish("$queue/q", b"waits", 1)
        client.subscribe("a")
        client.send(Disconnect())
        until(lambda: port.ask(counts) == (2, 0))
