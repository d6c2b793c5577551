"""Delays and TTLs count from when a message was read, however long ago the turn began."""

from collections.abc import Iterator
from typing import Any

import pytest

from braidmq.api.access import Access
from braidmq.api.context import ApiContext
from braidmq.record.batch import Record
from braidmq.storage.disk import MemoryDisk
from braidmq.testing.clock import FakeClock
from braidmq.testing.crash.amqp_link import AmqpLink, content
from braidmq.testing.crash.mqtt_link import MqttLink
from braidmq.testing.hosted import HostedNode, hosted_node
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.methods import BasicDeliver
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import Publish, encode
from braidmq.wire.mqtt.properties import Properties

TURN_MS = 70
"""So long was somebody else's part of the turn already."""
DELAY_MS = 5
TTL_S = 1


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def node(clock: FakeClock) -> Iterator[HostedNode]:
    with hosted_node(MemoryDisk(), clock) as node:
        yield node


def hear(node: HostedNode, data: bytes) -> None:
    """As if its socket had brought this to the only connection there is."""
    (session,) = node.node_loop.sessions.all()
    reader: Any = getattr(session, "_connection", session)
    assert reader.receive(memoryview(data), len(data)) == len(data)


def heard_late(node: HostedNode, clock: FakeClock, data: bytes) -> int:
    """Have something read in a turn that began long before; returns when."""

    def read() -> int:
        node.node_loop.schedule_turn()
        clock.advance(TURN_MS)
        hear(node, data)
        node.node_loop.flush_batch()
        return clock.now_ms()

    return node.call(read)


def only_record(node: HostedNode, topic: str) -> Record:
    def read() -> Record:
        (run,) = node.engine.reading.read(node.engine.state.topic("/", topic), 0, 0)
        return run.batch.record(run.first)

    return node.call(read)


@pytest.fixture
def link(node: HostedNode) -> Iterator[AmqpLink]:
    link = AmqpLink(node.ports["amqp_port"])
    link.call(m.QueueDeclare("q", durable=True))
    yield link
    link.close()


@pytest.mark.usefixtures("link")
def test_an_amqp_delay_is_not_over_early(node: HostedNode, clock: FakeClock) -> None:
    arrived = heard_late(node, clock, content("", "q", b"x", {"x-delay": DELAY_MS}))
    assert only_record(node, "q").due_at_ms == arrived + DELAY_MS


def test_an_mqtt_message_does_not_expire_early(node: HostedNode, clock: FakeClock) -> None:
    link = MqttLink(node.ports["mqtt_port"], Version.V5, "c", is_kept=False)
    properties = Properties(message_expiry_interval=TTL_S)
    packet = Publish("$queue/q", b"x", 1, packet_id=1, properties=properties)
    arrived = heard_late(node, clock, encode(packet, Version.V5))
    record = only_record(node, "q")
    assert (record.timestamp_ms, record.expires_at_ms) == (arrived, arrived + TTL_S * 1000)
    link.close()


def test_http_counts_from_when_the_request_is_handled(node: HostedNode, clock: FakeClock) -> None:
    access: Any = Access

    def handle() -> int:
        node.node_loop.schedule_turn()
        clock.advance(TURN_MS)
        return ApiContext(node.node_loop, access).now_ms

    assert node.call(handle) == clock.now_ms()


def test_the_turn_itself_ends_no_message_that_it_brought(
    node: HostedNode, clock: FakeClock, link: AmqpLink
) -> None:
    """It lives for a millisecond, and others are read for longer before consumers get theirs."""
    link.call(m.BasicConsume("q", "c"))

    def read() -> None:
        (topic,) = [each for each in node.engine.state.topics.values() if each.name == "q"]
        node.engine.topics.alter(topic, {"ttl_ms": 1}, now_ms=clock.now_ms())
        hear(node, content("", "q", b"x"))
        clock.advance(TURN_MS)
        hear(node, content("", "none", b"x"))

    node.call(read)
    while not any(isinstance(method, BasicDeliver) for method, _ in link.events()):
        assert link.receive()
