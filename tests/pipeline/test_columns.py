"""Rows of messages from every protocol, and the buffers they are made of."""

import threading
from typing import Any

import paho.mqtt.client as mqtt
import pika
import pyarrow as pa
import pytest
from braid_topics import rows
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyspark.sql.pandas.types import to_arrow_schema

from braidmq.gateways.translation import native_headers
from braidmq.pipeline.columns import SCHEMA, Rows
from braidmq.pipeline.source import MESSAGES
from braidmq.record.batch import RecordBatch
from braidmq.record.columns import decode_columns
from braidmq.storage.reader import EARLIEST, LATEST, ROWS_MAX
from braidmq.wire.amqp.properties import Properties as AmqpProperties
from braidmq.wire.envelopes import (
    AMQP,
    MQTT,
    NATIVE,
    amqp_envelope,
    encode_headers,
    split_amqp,
    split_mqtt,
)
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import Properties as MqttProperties
from braidmq.wire.mqtt.properties import encode_properties
from braidmq.wire.mqtt.text import write_string

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_schema_is_the_one_spark_would_make():
    assert to_arrow_schema(MESSAGES, timezone="UTC").equals(SCHEMA)


# --- from the wire ---


def pairs(row: dict[str, Any]) -> list[tuple[str, bytes]] | None:
    found = row["headers"]
    return None if found is None else [(each["key"], each["value"]) for each in found]


def test_messages_of_http(topics):
    topic = topics.create(partitions=1)
    message = {
        "value": "v",
        "key": "k",
        "headers": {"traceparent": TRACE, "a": "1"},
        "content_type": "text/plain",
        "priority": "high",
        "ttl_ms": 60_000,
        "delay_ms": 1000,
    }
    topics.publish(topic, [message, {"value": None, "key": "k"}, {"value_base64": "AP8="}])
    full, tombstone, binary = topics.read(topic=topic)
    assert sorted(pairs(full)) == [
        ("a", b"1"),
        ("content-type", b"text/plain"),
        ("traceparent", TRACE.encode()),
    ]
    assert full["trace_context"] == TRACE
    assert (full["key"], full["value"], full["priority"]) == (b"k", b"v", 4)
    delivery = full["delivery"]
    assert delivery["protocol"] == "native"
    assert (delivery["deliver_at"] - full["timestamp"]).total_seconds() == 1
    assert (delivery["expires_at"] - delivery["deliver_at"]).total_seconds() == 60
    assert (tombstone["key"], tombstone["value"], pairs(tombstone)) == (b"k", None, None)
    assert (binary["key"], binary["value"], binary["trace_context"]) == (None, b"\0\xff", None)
    assert binary["delivery"]["expires_at"] is None


def test_messages_of_amqp(topics):
    topic = topics.create(partitions=1)
    port = topics.node.ports["amqp_port"]
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        headers = {"traceparent": TRACE, "n": 5}
        properties = pika.BasicProperties(content_type="a/b", headers=headers, priority=3)
        channel.basic_publish("", topic, b"full", properties)
        channel.basic_publish("", topic, b"plain", pika.BasicProperties(delivery_mode=2))
    full, plain = topics.read(topic=topic)
    assert sorted(pairs(full)) == [
        ("content-type", b"a/b"),
        ("n", b"5"),
        ("traceparent", TRACE.encode()),
    ]
    assert (full["value"], full["trace_context"], full["priority"]) == (b"full", TRACE, 3)
    assert full["delivery"]["protocol"] == "amqp"
    assert full["delivery"]["routing_key"] == topic
    assert (plain["value"], pairs(plain), plain["trace_context"]) == (b"plain", None, None)


def test_messages_of_mqtt(topics):
    """They come to a topic through a queue that is bound to what they are published to."""
    topic = topics.create(partitions=1)
    binding = {"source": "amq.topic", "destination": topic, "routing_key": "plant.#"}
    topics.api.post("/v1/bindings", json=binding).raise_for_status()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.username_pw_set("guest", "guest")
    client.connect("127.0.0.1", topics.node.ports["mqtt_port"])
    done = threading.Event()
    client.on_publish = lambda *args: done.set()
    client.loop_start()
    try:
        properties = Properties(PacketTypes.PUBLISH)
        properties.ContentType = "text/plain"
        properties.UserProperty = [("a", "1"), ("a", "2"), ("traceparent", TRACE)]
        client.publish("plant/é/5", b"hot", qos=1, properties=properties).wait_for_publish(30)
        client.publish("plant/6", b"cold", qos=1).wait_for_publish(30)
    finally:
        client.disconnect()
        client.loop_stop()
    hot, cold = topics.read(topic=topic)
    assert pairs(hot) == [
        ("content-type", b"text/plain"),
        ("a", b"1"),
        ("a", b"2"),
        ("traceparent", TRACE.encode()),
    ]
    assert hot["trace_context"] == TRACE
    assert (hot["delivery"]["protocol"], hot["delivery"]["routing_key"]) == ("mqtt", "plant/é/5")
    assert (cold["value"], pairs(cold)) == (b"cold", None)


def test_dead_letters_know_their_attempts(topics):
    topic = topics.create(partitions=1, retry={"attempts": 1})
    topics.api.put(f"/v1/topics/{topic}/subscriptions/s", json={}).raise_for_status()
    topics.publish(topic, [{"value": "v"}])
    answer = topics.api.post(f"/v1/topics/{topic}/subscriptions/s/receive", json={})
    receipt = answer.json()["messages"][0]["receipt"]
    topics.api.post(f"/v1/receipts/{receipt}/nack", json={}).raise_for_status()
    (dead,) = topics.read(topic=f"{topic}.dlq")
    assert dead["delivery"]["attempts"] == 1


# --- any envelope ---

texts = st.text(max_size=5).filter(lambda text: "\0" not in text)
names = st.one_of(texts, st.just("traceparent"), st.just("x-death-attempts"))
short = st.binary(max_size=4)


@st.composite
def amqp_envelopes(draw: st.DrawFn) -> bytes:
    fields = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "content_type": texts,
                "message_id": texts,
                "delivery_mode": st.just(2),
                "timestamp": st.integers(0, 100),
                "headers": st.dictionaries(names, st.one_of(texts, st.integers(0, 9)), max_size=3),
            },
        )
    )
    return amqp_envelope(draw(short), draw(short), AmqpProperties(**fields))


@st.composite
def mqtt_envelopes(draw: st.DrawFn) -> bytes:
    properties = MqttProperties(
        content_type=draw(st.none() | texts),
        user_properties=tuple(draw(st.lists(st.tuples(names, texts), max_size=3))),
    )
    topic = draw(texts)
    return b"\x01" + write_string(topic) + encode_properties(properties, Kind.PUBLISH)


envelopes = st.one_of(
    st.tuples(st.just(NATIVE), st.lists(st.tuples(names, short), max_size=3).map(encode_headers)),
    st.tuples(st.just(AMQP), amqp_envelopes()),
    st.tuples(st.just(MQTT), mqtt_envelopes()),
)


@given(st.lists(st.tuples(envelopes, st.none() | short), max_size=12))
def test_headers_are_what_the_gateways_translate(messages):
    batch = RecordBatch()
    for (envelope_format, envelope), key in messages:
        batch.append(b"v", key=key, envelope=envelope, envelope_format=envelope_format)
    data = RecordBatch.scan(batch, base_offset=0).stamped()[0]
    _, count, columns = decode_columns(data, EARLIEST, LATEST, EARLIEST, LATEST, ROWS_MAX)
    assert count == len(messages)
    found = rows(iter([Rows("t", 3).batch(count, columns)] if count else []))
    for row, record in zip(found, batch.records(), strict=True):
        wanted = native_headers(record)
        assert (pairs(row) or []) == wanted
        traces = [value for name, value in wanted if name == "traceparent"]
        trace = traces[0].decode("utf-8", "replace") if traces else None
        assert row["trace_context"] == trace
        assert row["delivery"]["routing_key"] == routing_key(
            record.envelope_format, record.envelope
        )


def routing_key(envelope_format: int, envelope: bytes) -> str | None:
    if envelope_format == NATIVE:
        return None
    split = split_amqp if envelope_format == AMQP else split_mqtt
    return split(envelope)[1].decode("utf-8", "replace")


@given(st.binary(max_size=30), st.integers(0, 3))
def test_envelopes_that_nobody_can_read_have_no_headers(envelope, envelope_format):
    batch = RecordBatch()
    batch.append(b"v", envelope=envelope, envelope_format=envelope_format)
    data = RecordBatch.scan(batch, base_offset=0).stamped()[0]
    _, count, columns = decode_columns(data, EARLIEST, LATEST, EARLIEST, LATEST, ROWS_MAX)
    made = Rows("t", 0).batch(count, columns)
    made.column("offset").validate(full=True)
    assert made.num_rows == 1


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 1000])
def test_columns_that_are_the_same_in_every_row(count):
    batch = RecordBatch()
    batch.extend_values([b"v"] * count, 5)
    data = RecordBatch.scan(batch, base_offset=0).stamped()[0]
    _, rows_found, columns = decode_columns(data, EARLIEST, LATEST, EARLIEST, LATEST, ROWS_MAX)
    made = Rows("täglich", 7).batch(rows_found, columns)
    assert made.column("topic").to_pylist() == ["täglich"] * count
    assert made.column("partition").to_pylist() == [7] * count
    assert made.column("headers").null_count == count
    assert pa.ipc.open_stream(_written(made)).read_all().num_rows == count


def _written(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
