"""A message id counts once, whichever protocol brings it."""

from pathlib import Path

import httpx
import paho.mqtt.client as mqtt
import pika
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from braidmq.testing.live import LiveNode, live_node

GUEST = ("guest", "guest")
WAIT_S = 20


def publish_over_mqtt(node: LiveNode, topic: str, value: bytes, name: str) -> None:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.username_pw_set(*GUEST)
    client.connect("127.0.0.1", node.ports["mqtt_port"])
    client.loop_start()
    said = Properties(PacketTypes.PUBLISH)
    said.UserProperty = ("message-id", name)
    try:
        client.publish(topic, value, qos=1, properties=said).wait_for_publish(WAIT_S)
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_message_id_counts_once_over_all_protocols(tmp_path: Path):
    with live_node(tmp_path) as node, httpx.Client(base_url=node.http_url, auth=GUEST) as api:
        settings = {"partitions": 1, "deduplication_window_ms": 3_600_000}
        api.put("/v1/topics/t", json={"settings": settings}).raise_for_status()
        url = f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("t", passive=False, durable=True)
        channel.queue_bind("t", "amq.topic", "t")

        def over_http(value: str, name: str) -> None:
            body = {"value": value, "message_id": name}
            api.post("/v1/topics/t/messages", json=body).raise_for_status()

        def over_amqp(value: str, name: str) -> None:
            about = pika.BasicProperties(message_id=name, delivery_mode=2)
            channel.basic_publish("", "t", value.encode(), about)

        def over_mqtt(value: str, name: str) -> None:
            publish_over_mqtt(node, "t", value.encode(), name)

        for name, first in (("a", over_http), ("b", over_amqp), ("c", over_mqtt)):
            first("first", name)
            for each in (over_http, over_amqp, over_mqtt):
                each("again", name)
        connection.close()
        found = api.get("/v1/topics/t/partitions/0/messages").json()["messages"]
        assert [each["value"] for each in found] == ["first"] * 3
