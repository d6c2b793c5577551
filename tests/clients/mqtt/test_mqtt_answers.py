"""What an MQTT client is told, in order, and only what is true (docs/adr/0018).

The disk is the test's: commits wait until it lets them through, or fail.
"""

from collections.abc import Callable, Iterator

import pytest
from raw_mqtt import Gone, RawMqtt

from braidmq.testing.hosted import CommitGate, HostedNode, hosted_node
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from braidmq.wire.mqtt.properties import NO_PROPERTIES, Properties

KEPT = Properties(session_expiry_interval=600)


@pytest.fixture
def disk() -> CommitGate:
    return CommitGate()


@pytest.fixture
def node(disk: CommitGate) -> Iterator[HostedNode]:
    with hosted_node(disk) as node:
        yield node


def kept(node: HostedNode, client_id: str, version: int = Version.V5) -> RawMqtt:
    """A client whose session is on disk, with subscriptions of every QoS."""
    client = RawMqtt(node, version)
    properties = KEPT if version == Version.V5 else NO_PROPERTIES
    client.connect(client_id, clean_start=False, properties=properties)
    client.subscribe("one/#", qos=1)
    client.subscribe("two/#", qos=2)
    return client


def names(packets: list[Packet]) -> list[str]:
    return [type(each).__name__ for each in packets]


def subscribes(client: RawMqtt) -> None:
    client.send(Subscribe(100, (Request("new", 1),)))


def unsubscribes(client: RawMqtt) -> None:
    client.send(Unsubscribe(101, ("one/#",)))


def publishes_at_1(client: RawMqtt) -> None:
    client.send(Publish("one/x", b"x", 1, packet_id=102))


def publishes_at_2(client: RawMqtt) -> None:
    client.send(Publish("two/x", b"x", 2, packet_id=103))


def retains(client: RawMqtt) -> None:
    client.send(Publish("elsewhere", b"x", 1, retain=True, packet_id=104))


def asks_admin(client: RawMqtt) -> None:
    client.send(Publish("$admin/queue/create", b'{"name": "q"}', 1, packet_id=105))


def subscribes_to_queue(client: RawMqtt) -> None:
    client.send(Subscribe(106, (Request("$queue/new", 1),)))


WRITES: dict[str, tuple[Callable[[RawMqtt], None], type[Packet]]] = {
    "SUBSCRIBE": (subscribes, SubAck),
    "UNSUBSCRIBE": (unsubscribes, UnsubAck),
    "PUBLISH at QoS 1": (publishes_at_1, PubAck),
    "PUBLISH at QoS 2": (publishes_at_2, PubRec),
    "PUBLISH that is retained": (retains, PubAck),
    "PUBLISH to $admin": (asks_admin, PubAck),
    "SUBSCRIBE to a queue": (subscribes_to_queue, SubAck),
}
NO_DELIVERIES = (Publish,)


def answers(packets: list[Packet]) -> list[Packet]:
    return [each for each in packets if not isinstance(each, Publish)]


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
@pytest.mark.parametrize(("write", "answer"), WRITES.values(), ids=WRITES)
def test_nothing_is_said_to_be_done_that_the_disk_did_not_take(
    node: HostedNode,
    disk: CommitGate,
    write: Callable[[RawMqtt], None],
    answer: type[Packet],
    version: int,
) -> None:
    with kept(node, "c", version) as client:
        disk.shut()
        write(client)
        assert answers(client.ping()) == []
        disk.break_down()
        assert_gone(client)


def assert_gone(client: RawMqtt) -> None:
    """With the error of its version, and no other answer."""
    while isinstance(packet := next_or_none(client), Publish):
        pass
    if client.version == Version.V5:
        assert isinstance(packet, Disconnect)
        assert packet.reason == Reason.UNSPECIFIED_ERROR
        packet = next_or_none(client)
    assert packet is None


def next_or_none(client: RawMqtt) -> Packet | None:
    try:
        return client.packet()
    except Gone:
        return None


@pytest.mark.parametrize(("write", "answer"), WRITES.values(), ids=WRITES)
def test_each_is_answered_once_it_is_on_disk(
    node: HostedNode, disk: CommitGate, write: Callable[[RawMqtt], None], answer: type[Packet]
) -> None:
    with kept(node, "c") as client:
        disk.shut()
        write(client)
        assert answers(client.ping()) == []
        disk.let_through()
        while isinstance(packet := client.packet(), Publish):
            pass
        assert isinstance(packet, answer)


@pytest.mark.parametrize("fails", [True, False])
def test_pubcomp_and_pubrel_wait_for_the_disk(
    node: HostedNode, disk: CommitGate, fails: bool
) -> None:
    with kept(node, "c") as client, kept(node, "p") as publisher:
        publisher.send(Unsubscribe(1, ("two/#",)))
        publisher.expect(UnsubAck)
        publisher.send(Publish("two/x", b"x", 2, packet_id=5))
        publisher.expect(PubRec)
        message = client.expect(Publish)
        disk.shut()
        publisher.send(PubRel(5))
        client.send(PubRec(message.packet_id), PubRec(9))  # nobody knows the other
        assert publisher.ping() == []
        assert client.ping() == []
        if fails:
            disk.break_down()
            assert_gone(publisher)
            assert_gone(client)
        else:
            disk.let_through()
            assert publisher.expect(PubComp).packet_id == 5
            # MQTT-4.6.0-4: in the order of PUBREC.
            assert client.expect(PubRel).packet_id == message.packet_id
            assert client.expect(PubRel).packet_id == 9


@pytest.mark.parametrize("properties", [KEPT, NO_PROPERTIES], ids=["kept", "not kept"])
def test_answers_are_in_the_order_of_what_they_answer(
    node: HostedNode, disk: CommitGate, properties: Properties
) -> None:
    """Some of these wait for the disk and some don't."""
    with RawMqtt(node) as client:
        client.connect("c", properties=properties)
        disk.shut()
        client.send(
            Publish("nowhere", b"x", 1, retain=True, packet_id=10),
            Publish("nowhere", b"x", 1, packet_id=11),
            Subscribe(12, (Request("a", 1),)),
            Publish("nowhere", b"x", 2, packet_id=13),
            PubRel(99),
            Unsubscribe(14, ("a",)),
            Publish("nowhere", b"x", 1, packet_id=15),
        )
        assert client.ping() == []
        disk.let_through()
        got = [client.packet() for _ in range(7)]
        assert [each.packet_id for each in got] == [10, 11, 12, 13, 99, 14, 15]  # type: ignore[union-attr]
        assert names(got) == [
            *("PubAck", "PubAck", "SubAck", "PubRec", "PubComp", "UnsubAck", "PubAck")
        ]


def test_retained_messages_come_behind_suback(node: HostedNode, disk: CommitGate) -> None:
    with kept(node, "c") as client:
        client.publish("kept", b"x", retain=True)
        disk.shut()
        client.send(Subscribe(12, (Request("kept", 0),)))
        assert client.ping() == []
        disk.let_through()
        assert names([client.packet(), client.packet()]) == ["SubAck", "Publish"]


def test_who_is_gone_is_told_nothing_more(node: HostedNode, disk: CommitGate) -> None:
    """A SUBACK that nobody has seen is not given to who comes back. The subscription is there, and
    so are its retained messages, as after a crash."""
    with kept(node, "c") as client:
        client.answer(client.publish("kept", b"x", 1, retain=True))
        disk.shut()
        client.send(Subscribe(100, (Request("kept", 1),)))
        assert client.ping() == []
        with RawMqtt(node) as other:
            other.send(Connect(Version.V5, "c", clean_start=False, properties=KEPT))
            assert client.closing() == Reason.SESSION_TAKEN_OVER
            disk.let_through()
            assert other.expect(ConnAck).session_present
            assert other.expect(Publish).payload == b"x"
            other.subscribe("again", qos=1)  # what is behind it on disk is answered after it
            assert other.ping() == []


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
@pytest.mark.parametrize("clean", [True, False])
def test_connack_says_nothing_that_the_disk_did_not_take(
    node: HostedNode, disk: CommitGate, clean: bool, version: int
) -> None:
    """Neither that a session is kept nor that an old one is forgotten."""
    kept(node, "c", version).sock.close()
    disk.shut()
    with RawMqtt(node, version) as client:
        properties = KEPT if version == Version.V5 and not clean else NO_PROPERTIES
        client.send(Connect(version, "c", clean_start=clean, properties=properties))
        with RawMqtt(node) as other:
            other.connect("other")  # one that keeps nothing waits for nothing
        disk.break_down()
        assert client.expect(ConnAck).reason == Reason.SERVER_UNAVAILABLE
        client.expect_end()
