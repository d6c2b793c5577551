"""gmqtt, in both versions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import gmqtt
import pytest
from gmqtt.mqtt.constants import MQTTv50, MQTTv311

from braidmq.testing.live import LiveNode

WAIT_S = 20.0

versions = pytest.mark.parametrize("version", [MQTTv311, MQTTv50])


class Connected:
    def __init__(self, client_id: str, clean: bool, **properties: Any) -> None:
        self.client = gmqtt.Client(client_id, clean_session=clean, **properties)
        self.messages: asyncio.Queue[tuple[str, bytes, int, dict[str, Any]]] = asyncio.Queue()
        self.granted: asyncio.Queue[tuple[int, ...]] = asyncio.Queue()
        self.client.on_message = self._on_message
        self.client.on_subscribe = self._on_subscribe

    def _on_message(
        self, _client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        self.messages.put_nowait((topic, payload, qos, properties))
        return 0

    def _on_subscribe(self, _client: Any, _mid: int, qos: tuple[int, ...], _: Any) -> None:
        self.granted.put_nowait(qos)

    async def subscribe(self, topic: str, qos: int, **options: Any) -> None:
        self.client.subscribe(topic, qos, **options)
        assert await asyncio.wait_for(self.granted.get(), WAIT_S) == (qos,)

    async def message(self) -> tuple[str, bytes, int, dict[str, Any]]:
        return await asyncio.wait_for(self.messages.get(), WAIT_S)


@asynccontextmanager
async def connected(
    node: LiveNode, version: int, client_id: str, clean: bool = True, **properties: Any
) -> AsyncIterator[Connected]:
    one = Connected(client_id, clean, **properties)
    await one.client.connect("127.0.0.1", node.ports["mqtt_port"], version=version)
    try:
        yield one
    finally:
        await one.client.disconnect()


@versions
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_come_in_order(node: LiveNode, name: str, version: int, qos: int) -> None:
    async with (
        connected(node, version, f"{name}-r") as receiver,
        connected(node, version, f"{name}-s") as sender,
    ):
        await receiver.subscribe(f"{name}/+", qos)
        for number in range(50):
            sender.client.publish(f"{name}/x", b"%d" % number, qos=qos)
        got = [await receiver.message() for _ in range(50)]
        assert [each[1] for each in got] == [b"%d" % number for number in range(50)]
        assert {each[2] for each in got} == {qos}


async def test_properties_of_version_5(node: LiveNode, name: str) -> None:
    async with connected(node, MQTTv50, name, topic_alias_maximum=5) as client:
        await client.subscribe(name, 1, subscription_identifier=7)
        client.client.publish(
            name,
            b"text",
            qos=1,
            content_type="text/plain",
            response_topic="answers",
            correlation_data=b"17",
            user_property=[("a", "1"), ("a", "2")],
            message_expiry_interval=100,
        )
        topic, payload, _, properties = await client.message()
        assert (topic, payload) == (name, b"text")
        assert properties["content_type"] == ["text/plain"]
        assert properties["response_topic"] == ["answers"]
        assert properties["correlation_data"] == [b"17"]
        assert properties["user_property"] == [("a", "1"), ("a", "2")]
        assert properties["subscription_identifier"] == [7]
        assert 0 < properties["message_expiry_interval"][0] <= 100


async def test_a_session_with_an_expiry_interval(node: LiveNode, name: str) -> None:
    kept: dict[str, Any] = {"clean": False, "session_expiry_interval": 600}
    async with connected(node, MQTTv50, name, **kept) as client:
        await client.subscribe(name, 1)
    async with connected(node, MQTTv50, f"{name}-s") as sender:
        for number in range(5):
            sender.client.publish(name, b"%d" % number, qos=1)
    async with connected(node, MQTTv50, name, **kept) as client:
        got = [(await client.message())[1] for _ in range(5)]
        assert got == [b"%d" % number for number in range(5)]
