"""Single messages to persistent sessions, and acknowledgements that wait for the next turn: that
they do may not be seen, but for the time."""

from collections.abc import Iterator
from itertools import count

import httpx
import pika
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import Disconnect, PubAck, Publish, PubRec
from braidmq.wire.mqtt.properties import Properties

VERSIONS = [Version.V3_1_1, Version.V5]

numbers = count(1)


def say(publisher: RawMqtt, topic: str, payload: bytes) -> None:
    assert publisher.answer(publisher.publish(topic, payload, 1)) == 0


class Keeper:
    """A client with a persistent session."""

    def __init__(self, node: LiveNode, name: str, version: int, receive_maximum: int = 0) -> None:
        self._node, self._name, self._version = node, name, version
        self._receive_maximum = receive_maximum
        self.client = self.come()
        self.client.subscribe(name, qos=1)

    def come(self) -> RawMqtt:
        self.client = RawMqtt(self._node, self._version)
        given = Properties(session_expiry_interval=600)
        if self._receive_maximum:
            given = Properties(session_expiry_interval=600, receive_maximum=self._receive_maximum)
        if self._version != Version.V5:
            given = Properties()
        self.client.connect(f"keeper-{self._name}", clean_start=False, properties=given)
        return self.client

    def leave(self) -> None:
        self.client.send(Disconnect())
        self.client.expect_end()
        self.client.sock.close()

    def come_back(self) -> None:
        self.client.sock.close()
        self.come()

    def gets(self, payload: bytes, *, dup: bool = False) -> int:
        got = self.client.expect(Publish)
        assert (got.payload, got.qos, got.dup) == (payload, 1, dup)
        return got.packet_id

    def answers(self, *packet_ids: int) -> None:
        self.client.send(*[PubAck(each) for each in packet_ids])

    def is_refused(self, reason: Reason) -> None:
        if self._version == Version.V5:
            assert self.client.closing() == reason
        else:
            self.client.expect_end()

    def has_no_more(self) -> None:
        assert self.client.ping() == []


@pytest.fixture(params=VERSIONS)
def keeper(node: LiveNode, name: str, request: pytest.FixtureRequest) -> Iterator[Keeper]:
    made = Keeper(node, name, request.param)
    yield made
    made.client.sock.close()


@pytest.fixture
def publisher(node: LiveNode, keeper: Keeper) -> Iterator[RawMqtt]:
    with RawMqtt(node, keeper.client.version) as client:
        client.connect()
        yield client


def depth(node: LiveNode, name: str) -> int:
    """Messages of its queue that are not acknowledged."""
    with httpx.Client(base_url=node.http_url, auth=("guest", "guest"), timeout=20) as admin:
        found = admin.get(f"/v1/topics/$mqtt%2Fsession%2Fkeeper-{name}")
        found.raise_for_status()
        return int(found.json()["depth"])


def test_each_message_comes_once_and_in_order(
    node: LiveNode, keeper: Keeper, publisher: RawMqtt, name: str
) -> None:
    ids = []
    for number in range(200):
        say(publisher, name, b"%d" % number)
        ids.append(keeper.gets(b"%d" % number))
        if number % 3:
            keeper.answers(ids.pop())
    keeper.has_no_more()
    assert len(set(ids)) == len(ids)
    assert depth(node, name) == len(ids)
    keeper.answers(*ids)
    keeper.has_no_more()
    assert depth(node, name) == 0


def test_what_is_not_acknowledged_comes_again_and_the_rest_does_not(
    keeper: Keeper, publisher: RawMqtt, name: str
) -> None:
    for number in range(6):
        say(publisher, name, b"%d" % number)
        packet_id = keeper.gets(b"%d" % number)
        if number % 2:
            keeper.answers(packet_id)
    # Not even a ping between the last acknowledgement and the end of the connection.
    keeper.come_back()
    again = [keeper.gets(b"%d" % number, dup=True) for number in (0, 2, 4)]
    keeper.answers(*again)
    keeper.has_no_more()
    keeper.come_back()
    keeper.has_no_more()
    say(publisher, name, b"new")
    keeper.gets(b"new")


def test_what_was_sent_while_it_was_away_comes_first(
    keeper: Keeper, publisher: RawMqtt, name: str
) -> None:
    for payload in (b"a", b"b"):
        say(publisher, name, payload)
        keeper.answers(keeper.gets(payload))
    keeper.leave()
    for payload in (b"c", b"d"):
        say(publisher, name, payload)
    keeper.come()
    for payload in (b"c", b"d"):
        keeper.gets(payload)
    say(publisher, name, b"e")
    keeper.gets(b"e")


def test_no_more_than_its_receive_maximum(node: LiveNode, name: str) -> None:
    keeper = Keeper(node, name, Version.V5, receive_maximum=2)
    with RawMqtt(node) as publisher, keeper.client:
        publisher.connect()
        for number in range(6):
            say(publisher, name, b"%d" % number)
        waiting = [keeper.gets(b"0"), keeper.gets(b"1")]
        keeper.has_no_more()
        for number in range(2, 6):
            keeper.answers(waiting.pop(0))
            waiting.append(keeper.gets(b"%d" % number))
            keeper.has_no_more()


def test_the_same_message_twice_is_two(keeper: Keeper, publisher: RawMqtt, name: str) -> None:
    for _ in range(20):
        say(publisher, name, b"same")
        keeper.answers(keeper.gets(b"same"))
    publisher.send(*[Publish(name, b"same", 1, packet_id=number) for number in range(1, 6)])
    assert len({keeper.gets(b"same") for _ in range(5)}) == 5
    keeper.has_no_more()


def test_other_ways_into_its_queue(
    node: LiveNode, keeper: Keeper, publisher: RawMqtt, name: str
) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(10):
            channel.basic_publish("amq.topic", name, b"amqp %d" % number)
            keeper.client.expect(Publish)
            say(publisher, name, b"mqtt %d" % number)
            keeper.answers(keeper.gets(b"mqtt %d" % number))
    keeper.has_no_more()


def test_pubrec_for_a_message_of_qos_1_is_an_error(
    keeper: Keeper, publisher: RawMqtt, name: str
) -> None:
    for payload in (b"1", b"2", b"3"):
        say(publisher, name, payload)
        packet_id = keeper.gets(payload)
    keeper.client.send(PubRec(packet_id))
    keeper.is_refused(Reason.PROTOCOL_ERROR)


def test_a_persistent_and_a_passing_subscriber(
    node: LiveNode, keeper: Keeper, publisher: RawMqtt, name: str
) -> None:
    with RawMqtt(node, keeper.client.version) as passing:
        passing.connect()
        passing.subscribe(name, qos=1)
        for number in range(20):
            say(publisher, name, b"%d" % number)
            keeper.answers(keeper.gets(b"%d" % number))
            got = passing.expect(Publish)
            assert (got.payload, got.qos) == (b"%d" % number, 1)
            passing.send(PubAck(got.packet_id))
        assert passing.ping() == []
    keeper.has_no_more()


def test_acknowledgements_of_messages_that_never_were(
    keeper: Keeper, publisher: RawMqtt, name: str
) -> None:
    for payload in (b"1", b"2"):
        say(publisher, name, payload)
        keeper.answers(keeper.gets(payload))
    keeper.answers(7, 0x7FFF, 0x8000, 0xFFFF, 3)
    keeper.has_no_more()
    for payload in (b"3", b"4"):
        say(publisher, name, payload)
        keeper.answers(keeper.gets(payload))
    keeper.come_back()
    keeper.has_no_more()


def test_an_acknowledgement_without_an_id_is_an_error(
    keeper: Keeper, publisher: RawMqtt, name: str
) -> None:
    for payload in (b"1", b"2", b"3"):
        say(publisher, name, payload)
        keeper.gets(payload)
    keeper.client.send_bytes(b"\x40\x02\0\0")
    keeper.is_refused(Reason.PROTOCOL_ERROR)


steps = st.lists(
    st.tuples(
        st.sampled_from(["one", "one", "one", "other", "two", "ack", "ack", "back", "large"]),
        st.integers(0, 3),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=steps, version=st.sampled_from(VERSIONS))
def test_any_order_of_publishing_acknowledging_and_coming_back(
    node: LiveNode, name: str, script: list[tuple[str, int]], version: int
) -> None:
    """What came and was not acknowledged comes again after a reconnect; nothing else does."""
    topic = f"{name}-{next(numbers)}"
    keeper = Keeper(node, topic, version)
    open_ids: dict[bytes, int] = {}
    number = 0
    with RawMqtt(node, version) as one, RawMqtt(node, Version.V5) as other:
        one.connect()
        other.connect()
        for what, count in script:
            if what == "ack":
                for payload in list(open_ids)[:count]:
                    keeper.answers(open_ids.pop(payload))
            elif what == "back":
                keeper.come_back()
                for payload in open_ids:
                    open_ids[payload] = keeper.gets(payload, dup=True)
            else:
                sender = other if what == "other" else one
                rest = b"x" * 9000 if what == "large" else b""
                packets = []
                for _ in range(2 if what == "two" else 1):
                    number += 1
                    payload = b"%d %s" % (number, rest)
                    packets.append(Publish(topic, payload, 1, packet_id=sender.next_id()))
                sender.send(*packets)
                for packet in packets:
                    open_ids[packet.payload] = keeper.gets(packet.payload)
                    assert sender.answer(packet) == 0
        keeper.has_no_more()
        assert len(set(open_ids.values())) == len(open_ids)
    keeper.client.sock.close()
