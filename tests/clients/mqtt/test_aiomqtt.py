"""aiomqtt, in both versions."""

import asyncio
from typing import Any

import aiomqtt
import pytest
from aiomqtt import ProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from braidmq.testing.live import LiveNode

WAIT_S = 20.0

versions = pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])


def client(node: LiveNode, version: ProtocolVersion, **options: Any) -> aiomqtt.Client:
    port = node.ports["mqtt_port"]
    return aiomqtt.Client("127.0.0.1", port, protocol=version, timeout=WAIT_S, **options)


def kept(version: ProtocolVersion) -> dict[str, Any]:
    if version == ProtocolVersion.V311:
        return {"clean_session": False}
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 600
    return {"clean_start": False, "properties": properties}


async def payloads(receiver: aiomqtt.Client, count: int) -> list[Any]:
    async with asyncio.timeout(WAIT_S):
        return [(await anext(receiver.messages)).payload for _ in range(count)]


@versions
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publish_and_subscribe_at_once(
    node: LiveNode, name: str, version: ProtocolVersion, qos: int
) -> None:
    wanted = [b"%d" % number for number in range(100)]
    async with client(node, version) as receiver, client(node, version) as sender:
        await receiver.subscribe(f"{name}/#", qos)
        await asyncio.gather(*(sender.publish(f"{name}/x", each, qos) for each in wanted))
        assert await payloads(receiver, 100) == wanted


@versions
async def test_a_session_is_kept(node: LiveNode, name: str, version: ProtocolVersion) -> None:
    options = {"identifier": name, **kept(version)}
    async with client(node, version, **options) as receiver:
        await receiver.subscribe(name, 2)
    async with client(node, version) as sender:
        for number in range(10):
            await sender.publish(name, b"%d" % number, 2)
    async with client(node, version, **options) as receiver:
        assert await payloads(receiver, 10) == [b"%d" % number for number in range(10)]


@versions
async def test_a_will_and_a_retained_message(
    node: LiveNode, name: str, version: ProtocolVersion
) -> None:
    async with client(node, version) as watcher:
        await watcher.subscribe(name, 1)
        going = client(node, version, will=aiomqtt.Will(name, b"gone", 1, retain=True))
        await going.__aenter__()
        going._client._sock_close()
        assert await payloads(watcher, 1) == [b"gone"]
        async with client(node, version) as later:
            await later.subscribe(name, 1)
            assert await payloads(later, 1) == [b"gone"]
