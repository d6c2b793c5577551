"""Messages of every protocol with all that they can carry, from real clients, and records as they
are in the log."""

import struct
import threading
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import paho.mqtt.client as mqtt
import pika
from braid_topics import Topics
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from braidmq.record.batch import RecordBatch

PLANT = "plant.#"

SCALARS = [
    b"t\1",
    b"b\xff",
    b"B\xff",
    b"s\xff\xfe",
    b"u\xff\xfe",
    b"I\xff\xff\xff\xfe",
    b"i\xff\xff\xff\xfe",
    b"l" + struct.pack(">q", -5),
    b"L" + struct.pack(">q", 1 << 60),
    b"f" + struct.pack(">f", 1.5),
    b"d" + struct.pack(">d", -0.1),
    b"D\2" + struct.pack(">i", -1234),
    b"T" + struct.pack(">Q", 1_700_000_000),
    b"V",
    b"S\0\0\0\2\xc3\xa9",
    b"x\0\0\0\2\xff\0",
]
"""A value of each type that is not made of others."""


def table(values: list[bytes]) -> bytes:
    body = b"".join(b"\2h%c" % (97 + at) + each for at, each in enumerate(values))
    return struct.pack(">I", len(body)) + body


def array(values: list[bytes]) -> bytes:
    body = b"".join(values)
    return struct.pack(">I", len(body)) + body


EVERY_TYPE = [*SCALARS, b"A" + array([*SCALARS, b"F" + table(SCALARS)]), b"F" + table(SCALARS)]


class RawProperties(pika.BasicProperties):
    """Headers of types that pika never writes."""

    def encode(self) -> list[bytes]:
        return [b"\x20\x00", table(EVERY_TYPE)]


def publish_amqp(topics: Topics, topic: str) -> None:
    port = topics.node.ports["amqp_port"]
    every = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={
            "x-key": "order-1",
            "five": 5,
            "nothing": None,
            "price": Decimal("9.50"),
            "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "raw": b"\xff",
            "list": [1, None, {"a": True}],
        },
        delivery_mode=2,
        priority=7,
        correlation_id="c-1",
        reply_to="answers",
        expiration="3600000",
        message_id="m-1",
        timestamp=1_700_000_000,
        type="order",
        user_id="guest",
        app_id="shop",
        cluster_id="none",
    )
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", topic, b"every property", every)
        channel.basic_publish("", topic, b"every type", RawProperties())
        channel.basic_publish("", topic, b"nothing at all")
        channel.basic_publish("", topic, b"", pika.BasicProperties(delivery_mode=1))


def publish_mqtt(topics: Topics, topic: str) -> None:
    """They come to a topic through what it is bound to, and as to a queue."""
    binding = {"source": "amq.topic", "destination": topic, "routing_key": PLANT}
    topics.api.post("/v1/bindings", json=binding).raise_for_status()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.username_pw_set("guest", "guest")
    ready = threading.Event()
    client.on_connect = lambda *args: ready.set()
    client.connect("127.0.0.1", topics.node.ports["mqtt_port"])
    client.loop_start()
    try:
        assert ready.wait(30)
        properties = Properties(PacketTypes.PUBLISH)
        properties.PayloadFormatIndicator = 1
        properties.MessageExpiryInterval = 3600
        properties.ContentType = "text/plain"
        properties.ResponseTopic = "answers/here"
        properties.CorrelationData = b"\0\xff"
        properties.UserProperty = [("a", "1"), ("a", "2"), ("é", "")]
        client.publish("plant/é/5", b"hot", qos=1, properties=properties).wait_for_publish(30)
        client.publish("plant/6", b"cold", qos=2).wait_for_publish(30)
        client.publish(f"$queue/{topic}", b"queued", qos=1).wait_for_publish(30)
    finally:
        client.disconnect()
        client.loop_stop()


def publish_http(topics: Topics, topic: str) -> None:
    topics.publish(
        topic,
        [
            {"value": "v", "key": "k", "headers": {"a": "1"}, "priority": 9, "type": "order"},
            {"value": "deleted soon", "key": "gone"},
            {"value": None, "key": "gone"},
            {"value_base64": "AP8=", "ttl_ms": 3_600_000},
        ],
    )


def mixed(topics: Topics, partitions: int = 2) -> str:
    topic = topics.create(partitions=partitions)
    publish_http(topics, topic)
    publish_amqp(topics, topic)
    publish_mqtt(topics, topic)
    publish_http(topics, topic)
    return topic


def in_the_log(topics: Topics, topic: str) -> list[list[tuple[Any, ...]]]:
    """By partition, in order: timestamp, key, value, priority, format and envelope."""
    found = []
    for partition in topics.log(topic)["partitions"]:
        number = partition["partition"]
        answer = topics.api.get(
            f"/v1/topics/{topic}/partitions/{number}/records",
            params={"start": partition["start_offset"], "end": partition["end_offset"]},
        )
        answer.raise_for_status()
        found.append(
            [
                (
                    each.timestamp_ms,
                    each.key,
                    each.value,
                    each.priority,
                    each.envelope_format,
                    each.envelope,
                )
                for each in RecordBatch.scan(answer.content).records()
                if not each.flags & 1
            ]
        )
    return found
