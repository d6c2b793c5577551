"""One topic, every strand: what one protocol publishes, Spark and all the others receive."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import paho.mqtt.client as mqtt
import pika
import pytest
from braid_topics import Topics, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

SENT = {b"from http", b"from amqp", b"from mqtt", b"from spark"}


@contextmanager
def mqtt_worker(topics: Topics, topic: str) -> "Iterator[tuple[mqtt.Client, queue.Queue[bytes]]]":
    """In a group of its own: it is named after the client where nobody says otherwise."""
    got: queue.Queue[bytes] = queue.Queue()
    joined = queue.Queue[int]()
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, "sensors-1", protocol=mqtt.MQTTv311, clean_session=True
    )
    client.username_pw_set("guest", "guest")
    client.on_message = lambda *args: got.put(args[2].payload)
    client.on_subscribe = lambda *args: joined.put(args[3][0].value)
    client.connect("127.0.0.1", topics.node.ports["mqtt_port"])
    client.loop_start()
    try:
        client.subscribe(f"$queue/{topic}", qos=1)
        assert joined.get(timeout=30) == 1
        yield client, got
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_message_of_each_protocol_reaches_them_all(spark: "SparkSession", topics: Topics) -> None:
    topic = topics.create(partitions=2)
    web = f"/v1/topics/{topic}/subscriptions/web"
    topics.api.put(web, json={}).raise_for_status()
    address = {"url": topics.node.http_url, "topic": topic}
    reader = spark.readStream.format("braid").options(**address, startingOffsets="earliest")
    where = pika.ConnectionParameters("127.0.0.1", topics.node.ports["amqp_port"])
    query = reader.load().writeStream.format("memory").queryName("strands").start()
    try:
        with pika.BlockingConnection(where) as connection, mqtt_worker(topics, topic) as worker:
            client, sensed = worker
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare(topic, durable=True)
            queued: list[bytes] = []
            channel.basic_consume(topic, lambda *args: queued.append(args[3]), auto_ack=True)
            topics.publish(topic, [{"value": "from http"}])
            channel.basic_publish("", topic, b"from amqp")
            client.publish(f"$queue/{topic}", b"from mqtt", qos=1).wait_for_publish(30)
            frame = spark.createDataFrame([("from spark",)], "value STRING")
            frame.write.format("braid").options(**address).mode("append").save()

            assert {sensed.get(timeout=60) for _ in SENT} == SENT
            while len(queued) < len(SENT):
                connection.process_data_events(time_limit=None)
            assert set(queued) == SENT
            received = topics.api.post(
                f"{web}/receive", json={"limit": 4, "wait_ms": 20_000}
            ).json()
            assert {each["value"].encode() for each in received["messages"]} == SENT
            wait_until(lambda: spark.table("strands").count() == len(SENT), 120)
            assert {bytes(row["value"]) for row in spark.table("strands").collect()} == SENT
    finally:
        query.stop()
