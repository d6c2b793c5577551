"""Groups whose partitions are assigned, over AMQP: members with any client, notices, fail-over."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from braidmq.testing.live import LiveNode

NOTICES = "amq.braidmq.group-notices"
PARTITIONS = 4


class Member:
    """A channel with one consumer of a group, and one of its notices."""

    def __init__(self, channel: BlockingChannel, topic: str, **arguments: Any) -> None:
        self.channel, self.topic = channel, topic
        self.got: list[tuple[int, bytes]] = []
        self.notices: list[dict[str, Any]] = []
        channel.basic_consume(NOTICES, self._on_notice, auto_ack=True)
        given = {"x-group": "g", "x-group-mode": "assigned"}
        given |= {name.replace("_", "-"): value for name, value in arguments.items()}
        self.tag = channel.basic_consume(topic, self._on_message, arguments=given)

    def _on_message(self, _: Any, method: Any, _properties: Any, body: bytes) -> None:
        self.got.append((method.delivery_tag, body))

    def _on_notice(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        assert (method.routing_key, properties.type) == (self.tag_or(method), "group-assignment")
        self.notices.append(json.loads(body))

    def tag_or(self, method: Any) -> str:
        return getattr(self, "tag", method.routing_key)

    @property
    def assigned(self) -> list[int]:
        return self.notices[-1]["assigned"] if self.notices else []

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.channel.connection.process_data_events(time_limit=0.05)


@contextmanager
def channels(node: LiveNode, count: int) -> Iterator[list[BlockingChannel]]:
    place = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    connections = [pika.BlockingConnection(place) for _ in range(count)]
    try:
        yield [each.channel() for each in connections]
    finally:
        for each in connections:
            with suppress(AMQPConnectionError):  # one was lost
                each.close()


@pytest.fixture
def topic(node: LiveNode, name: str) -> str:
    with api(node) as client:
        body = {"settings": {"partitions": PARTITIONS}}
        assert client.put(f"/v1/topics/{name}", json=body).is_success
    return name


def api(node: LiveNode) -> httpx.Client:
    return httpx.Client(base_url=node.http_url, auth=("guest", "guest"), timeout=60)


def fill(node: LiveNode, topic: str) -> None:
    """One message in each partition, which is its value."""
    messages = [{"value": str(number), "partition": number} for number in range(PARTITIONS)]
    with api(node) as client:
        path = f"/v1/topics/{topic}/messages/batch"
        assert client.post(path, json={"messages": messages}).is_success


def test_members_share_out_partitions_and_hear_of_it(node: LiveNode, topic: str) -> None:
    with channels(node, 2) as (first, second):
        one = Member(first, topic)
        one.until(lambda: one.assigned == [0, 1, 2, 3])
        two = Member(second, topic)
        two.until(lambda: len(two.assigned) == 2)
        one.until(lambda: len(one.assigned) == 2)
        assert sorted(one.assigned + two.assigned) == [0, 1, 2, 3]
        fill(node, topic)
        for each in (one, two):
            each.until(lambda each=each: len(each.got) == 2)
            assert sorted(int(body) for _, body in each.got) == each.assigned
        # The connection is gone: what it had in flight comes to the other.
        first.connection.close()
        two.until(lambda: two.assigned == [0, 1, 2, 3] and len(two.got) == 4)
        assert sorted(body for _, body in two.got) == [b"0", b"1", b"2", b"3"]


def test_a_partition_with_messages_in_flight_moves_when_they_are_answered(
    node: LiveNode, topic: str
) -> None:
    fill(node, topic)
    with channels(node, 2) as (first, second):
        one = Member(first, topic)
        one.until(lambda: len(one.got) == 4)
        two = Member(second, topic)
        one.until(lambda: bool(one.notices[-1]["revoking"]))
        moving = one.notices[-1]["revoking"]
        assert len(moving) == 2
        assert two.assigned == []
        for tag, body in one.got:
            if int(body) == moving[0]:
                first.basic_ack(tag)
        one.until(lambda: one.notices[-1]["revoking"] == moving[1:])
        two.until(lambda: two.assigned == moving[:1])
        assert two.got == []


def test_members_of_http_and_of_amqp_are_of_one_group(node: LiveNode, topic: str) -> None:
    with channels(node, 1) as (channel,), api(node) as client:
        one = Member(channel, topic)
        joined = client.post("/v1/groups/g/members", json={"topics": [topic]}).json()
        one.until(lambda: len(one.assigned) == 2)
        assert sorted(one.assigned + joined["assigned"][topic]) == [0, 1, 2, 3]
        shown = client.get("/v1/groups/g").json()["members"]
        assert len(shown) == 2
        path = f"/v1/groups/g/members/{joined['member_id']}"
        params = {"generation": joined["generation"]}
        assert client.delete(path, params=params).status_code == 204
        one.until(lambda: one.assigned == [0, 1, 2, 3])
        channel.basic_cancel(one.tag)
        assert client.get("/v1/groups/g").json()["members"] == []
        assert client.delete("/v1/groups/g").status_code == 204


def test_a_named_member_has_its_partitions_again(node: LiveNode, topic: str) -> None:
    with channels(node, 3) as (first, second, third):
        one, two = Member(first, topic, x_group_member="m1"), Member(second, topic)
        one.until(lambda: len(one.assigned) == 2)
        two.until(lambda: len(two.assigned) == 2)
        had = one.assigned
        # Not closed, which would cancel its consumer, but lost.
        first.connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
        again = Member(third, topic, x_group_member="m1")
        again.until(lambda: again.assigned == had)
        assert len(two.assigned) == 2
        assert again.notices[-1]["member_id"] == "m1"
        # Its new life ends the old one.
        fourth = second.connection.channel()
        newest = Member(fourth, topic, x_group_member="m1")
        newest.until(lambda: newest.assigned == had)
        third.connection.process_data_events(time_limit=1)
        assert not third.consumer_tags or again.tag not in third.consumer_tags


def test_notices_begin_with_what_there_is(node: LiveNode, topic: str) -> None:
    with channels(node, 1) as (channel,):
        arguments = {"x-group": "g", "x-group-mode": "assigned"}
        tag = channel.basic_consume(topic, lambda *_: None, arguments=arguments)
        found: list[dict[str, Any]] = []
        channel.basic_consume(NOTICES, lambda *got: found.append(json.loads(got[3])), auto_ack=True)
        while not found:
            channel.connection.process_data_events(time_limit=0.05)
        assert (found[0]["consumer_tag"], found[0]["assigned"]) == (tag, [0, 1, 2, 3])
        assert (found[0]["group"], found[0]["topic"], found[0]["revoking"]) == ("g", topic, [])


@pytest.mark.parametrize(
    ("arguments", "options", "complaint"),
    [
        ({"x-group-member": 5}, {}, "x-group-member"),
        ({"x-group-member": ""}, {}, "x-group-member"),
        ({"x-priority": 5}, {}, "x-priority"),
        ({}, {"exclusive": True}, "exclusive"),
    ],
)
def test_what_members_cannot_ask_for(
    node: LiveNode,
    topic: str,
    arguments: dict[str, Any],
    options: dict[str, Any],
    complaint: str,
) -> None:
    with channels(node, 1) as (channel,):
        given = {"x-group": "g", "x-group-mode": "assigned", **arguments}
        with pytest.raises(ChannelClosedByBroker, match=complaint):
            channel.basic_consume(topic, lambda *_: None, arguments=given, **options)


def test_modes_do_not_mix_and_notices_are_not_answered_for(node: LiveNode, topic: str) -> None:
    with channels(node, 4) as (one, two, three, four):
        one.basic_consume(topic, lambda *_: None, arguments={"x-group": "shared"})
        wanted = {"x-group": "shared", "x-group-mode": "assigned"}
        with pytest.raises(ChannelClosedByBroker):
            two.basic_consume(topic, lambda *_: None, arguments=wanted)
        with pytest.raises(ChannelClosedByBroker, match="no-ack"):
            three.basic_consume(NOTICES, lambda *_: None)
        four.basic_consume(NOTICES, lambda *_: None, auto_ack=True)
        with pytest.raises(ChannelClosedByBroker, match="already"):
            four.basic_consume(NOTICES, lambda *_: None, auto_ack=True)
