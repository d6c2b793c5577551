"""Columns of the crossing table: each protocol as what publishes and receives ``Message``.

Two roads lead from a writer to a reader. A *queue* has a name that all protocols know; MQTT's plain
topics reach it by a binding. Who publishes to the *tree* of MQTT topics reaches plain subscribers.
"""

import base64
import contextlib
import queue as queue_module
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Protocol
from urllib.parse import quote

import httpx
import paho.mqtt.client as paho
import pika
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

import braidmq
from braidmq.testing.live import LiveNode

PATIENCE_MS = 20_000
ENCODED_KEY = "partition-key-base64"
PAYLOAD_FORMAT_INVALID = 0x99
GUEST = ("guest", "guest")


@dataclass(frozen=True)
class Message:
    """Metadata as the catalogue has it (rows B1, B6, E1), in no protocol's words."""

    value: bytes = b"value"
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str | None = None
    content_encoding: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    message_id: str | None = None
    type: str | None = None
    app_id: str | None = None
    user_id: str | None = None
    priority: int = 0
    ttl_ms: int = 0
    key: str | bytes | None = None
    """Bytes where it is no text."""
    # What only a publisher says: readers see it by when the message comes.
    delay_ms: int = 0
    deliver_at_ms: int = 0
    # What only a delivery says; None where nobody said it.
    redelivered: bool = False
    delivery_count: int | None = None
    first_seen_ms: int | None = None
    partition: int | None = None
    offset: int | None = None
    death: dict[str, str] | None = None
    """Row D6, of a dead letter: the cause of its end."""


CAUSE = ("topic", "partition", "offset", "reason", "attempts", "subscription", "error", "time")


def take_death(headers: dict[str, Any]) -> dict[str, str] | None:
    """What headers say of a message's end, which are not its publisher's."""
    cause = {
        name: str(headers[f"x-death-{name}"]) for name in CAUSE if f"x-death-{name}" in headers
    }
    for name in list(headers):
        if name.startswith(("x-death", "x-first-death")):
            del headers[name]
    return cause or None


NAMED = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "message_id",
    "type",
    "app_id",
    "user_id",
)
TEXTS = ("content_encoding", "message_id", "type", "app_id", "user_id")
"""What MQTT has no property for, and user properties have."""

PROPERTIES = frozenset({"headers", "priority", "ttl_ms", "key", *NAMED})
FACTS = frozenset({"delivery_count", "first_seen_ms", "partition", "offset"})


@dataclass(frozen=True)
class Place:
    """Where a pair of columns meets."""

    name: str
    in_tree: bool = False
    """Plain MQTT topics, where there is no queue between writer and reader but a session's."""

    def queue_of(self, reader: str) -> str:
        """The topic that the reader gets messages from."""
        return f"$mqtt/session/crossing-{reader}" if self.in_tree else self.name

    @property
    def exchange(self) -> str:
        return "amq.topic" if self.in_tree else ""

    @property
    def routing_key(self) -> str:
        return self.name.replace("/", ".") if self.in_tree else self.name


class Refused(Exception):
    """A publish was, and the writer was told why."""


class Column(Protocol):
    name: ClassVar[str]
    cant_write: ClassVar[frozenset[str]]
    """Fields that the protocol has no words for when it publishes …"""
    cant_read: ClassVar[frozenset[str]]
    """… and when it receives."""
    in_tree: ClassVar[bool]
    """Whether it can publish to the tree of MQTT topics."""

    def __init__(self, node: LiveNode) -> None: ...
    def publish(self, place: Place, message: Message) -> None: ...
    def listening(self, place: Place) -> contextlib.AbstractContextManager[None]:
        """Around publishing and receiving; what is read by name needs nothing."""

    def receive(self, place: Place, *, give_back: bool = False) -> Message: ...
    def close(self) -> None: ...


class ByName:
    """A reader of queues, which wait for it."""

    def listening(self, place: Place) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Http(ByName):
    name = "http"
    cant_write: ClassVar[frozenset[str]] = frozenset()
    cant_read: ClassVar[frozenset[str]] = frozenset()
    in_tree = False

    def __init__(self, node: LiveNode) -> None:
        self._client = httpx.Client(base_url=node.http_url, auth=GUEST, timeout=60)

    def publish(self, place: Place, message: Message) -> None:
        body: dict[str, Any] = {"value_base64": base64.b64encode(message.value).decode()}
        body |= {name: getattr(message, name) for name in NAMED}
        body |= {"priority": message.priority, "delay_ms": message.delay_ms or None}
        body |= {"ttl_ms": message.ttl_ms or None}
        if isinstance(message.key, bytes):
            body["key_base64"] = base64.b64encode(message.key).decode()
        else:
            body["key"] = message.key
        body |= {"deliver_at": message.deliver_at_ms or None}
        body |= {"headers": message.headers, "partition": message.partition}
        given = {name: value for name, value in body.items() if value is not None}
        self.post(f"/v1/topics/{place.name}/messages", given)

    def receive(
        self, place: Place, subscription: str = "queue", *, give_back: bool = False
    ) -> Message:
        path = f"/v1/topics/{place.name}/subscriptions/{subscription}/receive"
        (got,) = self.post(path, {"wait_ms": PATIENCE_MS})["messages"]
        verb, body = ("nack", {"delay_ms": 0}) if give_back else ("ack", {})
        self.post(f"/v1/receipts/{quote(got['receipt'], safe='')}/{verb}", body)
        seen_ms = got["timestamp_ms"]
        visible_ms = max(got.get("deliver_at_ms", 0), seen_ms)
        assert got["redelivered"] == (got["delivery_count"] > 1)
        value = got["value"].encode() if "value" in got else base64.b64decode(got["value_base64"])
        headers = got.get("headers", {})
        return Message(
            value=value,
            death=take_death(headers),
            headers=headers,
            priority=got.get("priority", 0),
            ttl_ms=got["expires_at_ms"] - visible_ms if "expires_at_ms" in got else 0,
            key=base64.b64decode(got["key_base64"]) if "key_base64" in got else got.get("key"),
            redelivered=got["redelivered"],
            delivery_count=got["delivery_count"],
            first_seen_ms=seen_ms,
            partition=got["partition"],
            offset=got["offset"],
            **{name: got.get(name) for name in NAMED},
        )

    def kill(self, place: Place, error: str) -> None:
        path = f"/v1/topics/{place.name}/subscriptions/queue/receive"
        (got,) = self.post(path, {"wait_ms": PATIENCE_MS})["messages"]
        self.post(f"/v1/receipts/{quote(got['receipt'], safe='')}/reject", {"error": error})

    def post(self, path: str, body: dict[str, Any]) -> Any:
        response = self._client.post(path, json=body)
        if response.status_code == httpx.codes.NOT_FOUND:
            raise Refused(response.text)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def get(self, path: str) -> Any:
        return self._client.get(path).raise_for_status().json()

    def newest(self, topic: str) -> Any:
        """The last message of partition 0."""
        path = f"/v1/topics/{quote(topic, safe='')}"
        last = self.get(path)["partitions"][0]["next_offset"] - 1
        (found,) = self.get(f"{path}/partitions/0/messages?start={last}&limit=1")["messages"]
        return found

    def give_up(self, place: Place, error: str) -> None:
        """For topics that try a message once."""
        path = f"/v1/topics/{place.name}/subscriptions/queue/receive"
        (got,) = self.post(path, {"wait_ms": PATIENCE_MS})["messages"]
        self.post(f"/v1/receipts/{quote(got['receipt'], safe='')}/nack", {"error": error})

    def put(self, path: str, body: dict[str, Any]) -> None:
        self._client.put(path, json=body).raise_for_status()

    def close(self) -> None:
        self._client.close()


class Amqp(ByName):
    name = "amqp"
    cant_write: ClassVar[frozenset[str]] = frozenset()
    cant_read: ClassVar[frozenset[str]] = frozenset()
    in_tree = True

    def __init__(self, node: LiveNode) -> None:
        where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
        self._connection = pika.BlockingConnection(where)
        self._open_channel()

    def _open_channel(self) -> None:
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def publish(self, place: Place, message: Message) -> None:
        headers: dict[str, Any] = dict(message.headers)
        if message.delay_ms:
            headers["x-delay"] = message.delay_ms
        if message.deliver_at_ms:
            headers["x-deliver-at"] = message.deliver_at_ms
        if message.key is not None:
            headers["x-key"] = message.key
        if message.partition is not None:
            headers["x-partition"] = message.partition
        properties = pika.BasicProperties(
            headers=headers or None,
            priority=message.priority or None,
            expiration=str(message.ttl_ms) if message.ttl_ms else None,
            delivery_mode=2,
            **{name: getattr(message, name) for name in NAMED},
        )
        try:
            self._channel.basic_publish(
                place.exchange, place.routing_key, message.value, properties
            )
        except pika.exceptions.ChannelClosedByBroker as error:
            self._open_channel()
            raise Refused(str(error)) from None

    def receive(self, place: Place, *, give_back: bool = False) -> Message:
        came = self._channel.consume(
            place.name,
            inactivity_timeout=PATIENCE_MS / 1000,
            arguments={"x-delivery-facts": True},
        )
        method, properties, body = next(came)
        assert method is not None, "nothing came"
        self._channel.cancel()  # first: it must not get again what it gives back
        if give_back:
            self._channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            self._channel.basic_ack(method.delivery_tag)
        headers = dict(properties.headers or {})
        return Message(
            value=body,
            death=take_death(headers),
            key=headers.pop("x-key", None),
            delivery_count=headers.pop("x-delivery-count") + 1,  # those before this one
            first_seen_ms=headers.pop("x-first-seen-ms"),
            partition=headers.pop("x-partition"),
            offset=headers.pop("x-offset"),
            headers=headers,
            priority=properties.priority or 0,
            ttl_ms=int(properties.expiration or 0),
            redelivered=method.redelivered,
            **{name: getattr(properties, name) for name in NAMED},
        )

    def kill(self, place: Place, error: str) -> None:
        """Its reject has no words for a reason."""
        came = self._channel.consume(place.name, inactivity_timeout=PATIENCE_MS / 1000)
        method, _, _ = next(came)
        assert method is not None, "nothing came"
        self._channel.cancel()
        self._channel.basic_reject(method.delivery_tag, requeue=False)

    def declare(self, queue: str) -> None:
        self._channel.queue_declare(queue, durable=True)

    def close(self) -> None:
        self._connection.close()


class Client(ByName):
    """The Python client."""

    name = "client"
    cant_write: ClassVar[frozenset[str]] = frozenset()
    cant_read: ClassVar[frozenset[str]] = frozenset()
    in_tree = True

    def __init__(self, node: LiveNode) -> None:
        address = f"amqp://127.0.0.1:{node.ports['amqp_port']}"
        self._broker = braidmq.connect_sync(address, http_url=node.http_url)
        self._broker.__enter__()

    def publish(self, place: Place, message: Message) -> None:
        said: Any = {name: getattr(message, name) for name in NAMED}
        said |= {"headers": message.headers, "key": message.key, "partition": message.partition}
        said |= {"priority": message.priority or None, "ttl_ms": message.ttl_ms or None}
        said |= {"delay_ms": message.delay_ms or None}
        said |= {"deliver_at": message.deliver_at_ms or None}
        given = {name: value for name, value in said.items() if value is not None}
        try:
            self._broker.publish(place.routing_key, message.value, exchange=place.exchange, **given)
        except braidmq.PublishRefused as error:
            raise Refused(repr(error.__cause__)) from None

    def receive(self, place: Place, *, give_back: bool = False) -> Message:
        with self._broker.consume(place.name, prefetch=1) as consumer:
            got = consumer.get(PATIENCE_MS / 1000)
            assert got is not None, "nothing came"
            if not give_back:  # what has no answer goes back when the consumer ends
                got.ack()
        headers: dict[str, Any] = dict(got.headers)
        headers.pop("x-key", None)
        take_death(headers)
        death = got.death and {name: _said_of(got.death, name) for name in CAUSE}
        return Message(
            value=got.value,
            death=death,
            headers=headers,
            priority=got.priority or 0,
            ttl_ms=got.ttl_ms or 0,
            key=None if got.key is None else text_if_it_is(got.key),
            redelivered=got.redelivered,
            delivery_count=got.delivery_count,
            first_seen_ms=got.first_seen_ms,
            partition=got.partition,
            offset=got.offset,
            **{name: getattr(got, name) for name in NAMED},
        )

    def kill(self, place: Place, error: str) -> None:
        with self._broker.consume(place.name, prefetch=1) as consumer:
            got = consumer.get(PATIENCE_MS / 1000)
            assert got is not None, "nothing came"
            got.reject(error=error)

    def close(self) -> None:
        self._broker.__exit__(None, None, None)


def _said_of(death: Any, name: str) -> str:
    value = getattr(death, name)
    return str(round(value.timestamp() * 1000) if isinstance(value, datetime) else value)


class MqttClient:
    """What the columns of MQTT share: a client that may have one message at a time."""

    name: ClassVar[str]
    protocol: ClassVar[paho.MQTTProtocolVersion] = paho.MQTTv5
    cant_write: ClassVar[frozenset[str]]
    cant_read: ClassVar[frozenset[str]]
    in_tree: ClassVar[bool] = True
    wishes: ClassVar[list[tuple[str, str]]] = []
    """User properties of CONNECT."""

    def __init__(self, node: LiveNode) -> None:
        self._port = node.ports["mqtt_port"]
        self._messages: queue_module.Queue[paho.MQTTMessage] = queue_module.Queue()
        self._events: queue_module.Queue[str] = queue_module.Queue()
        self._answers: queue_module.Queue[tuple[Any, Any]] = queue_module.Queue()
        self._is_v5 = self.protocol == paho.MQTTv5
        self._client = self._connected()

    def _connected(self) -> paho.Client:
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            f"crossing-{self.name}",
            clean_session=None if self._is_v5 else False,
            protocol=self.protocol,
            manual_ack=True,
        )
        client.on_connect = lambda *_: self._events.put("connected")
        client.on_subscribe = lambda *_: self._events.put("subscribed")
        client.on_unsubscribe = lambda *_: self._events.put("unsubscribed")
        client.on_publish = lambda _c, _u, _id, *answer: self._answers.put(answer)
        client.on_message = lambda _c, _u, message: self._messages.put(message)
        properties = None
        if self._is_v5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.ReceiveMaximum = 1
            properties.SessionExpiryInterval = 3600
            properties.UserProperty = self.wishes
        clean = False if self._is_v5 else paho.MQTT_CLEAN_START_FIRST_ONLY
        client.connect("127.0.0.1", self._port, clean_start=clean, properties=properties)
        client.loop_start()
        self._wait("connected")
        return client

    def publish(self, place: Place, message: Message) -> None:
        self._publish(self.topic(place), message.value, self._said(message))

    def topic(self, place: Place) -> str:
        return place.name

    def _publish(self, topic: str, value: bytes, properties: Properties | None) -> None:
        sent = self._client.publish(topic, value, 1, properties=properties)
        sent.wait_for_publish(PATIENCE_MS / 1000)
        reason, told = self._answers.get(timeout=PATIENCE_MS / 1000)
        if reason.is_failure:
            raise Refused(getattr(told, "ReasonString", ""))

    def _said(self, message: Message) -> Properties:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        user = list(message.headers.items())
        given = {name.replace("_", "-"): getattr(message, name) for name in TEXTS}
        encoded = isinstance(message.key, bytes)
        key = base64.b64encode(message.key).decode() if encoded else message.key
        given |= {"partition-key-base64" if encoded else "partition-key": key}
        given |= {"priority": message.priority or None}
        given |= {"delay-ms": message.delay_ms or None, "to-partition": message.partition}
        given |= {"deliver-at": message.deliver_at_ms or None}
        user += [(name, str(value)) for name, value in given.items() if value is not None]
        if user:
            properties.UserProperty = user
        if message.content_type is not None:
            properties.ContentType = message.content_type
        if message.correlation_id is not None:
            properties.CorrelationData = message.correlation_id.encode()
        if message.reply_to is not None:
            properties.ResponseTopic = message.reply_to
        if message.ttl_ms:
            properties.MessageExpiryInterval = message.ttl_ms // 1000
        return properties

    @contextlib.contextmanager
    def listening(self, place: Place) -> Iterator[None]:
        """As a member of the queue's own group, or for itself."""
        where = place.name if place.in_tree else f"$share/queue/$queue/{place.name}"
        properties = None
        if self._is_v5:
            properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
            properties.UserProperty = [("ack-mode", "puback")]
        self._subscribe(where, properties)
        yield
        self._unsubscribe(where)

    def _subscribe(self, where: str, properties: Properties | None) -> None:
        if self._is_v5:
            options = SubscribeOptions(qos=1)
            self._client.subscribe(where, options=options, properties=properties)
        else:
            self._client.subscribe(where, 1)
        self._wait("subscribed")

    def _unsubscribe(self, where: str) -> None:
        self._client.unsubscribe(where)
        self._wait("unsubscribed")

    def receive(self, place: Place, *, give_back: bool = False) -> Message:
        got = self._next()
        if give_back:
            # Who goes without an answer is sent it again when it comes back.
            self.close()
            self._client = self._connected()
        else:
            self._client.ack(got.mid, got.qos)
        return self.read(got)

    def _next(self) -> paho.MQTTMessage:
        return self._messages.get(timeout=PATIENCE_MS / 1000)

    def read(self, got: paho.MQTTMessage) -> Message:
        raise NotImplementedError

    def heard(self, got: paho.MQTTMessage) -> tuple[dict[str, Any], dict[str, str]]:
        """What properties say, and the user properties that are left."""
        said, user = got.properties, dict(getattr(got.properties, "UserProperty", ()))
        found: dict[str, Any] = {
            "content_type": getattr(said, "ContentType", None),
            "correlation_id": _text(getattr(said, "CorrelationData", None)),
            "reply_to": getattr(said, "ResponseTopic", None),
            # It counts down, in whole seconds.
            "ttl_ms": -(-getattr(said, "MessageExpiryInterval", 0) // 60) * 60_000,
            "key": user.pop("partition-key", None),
            **({"key": base64.b64decode(user.pop(ENCODED_KEY))} if ENCODED_KEY in user else {}),
            "priority": int(user.pop("priority", 0)),
        }
        return found | {name: user.pop(name.replace("_", "-"), None) for name in TEXTS}, user

    def _wait(self, wanted: str) -> None:
        assert self._events.get(timeout=PATIENCE_MS / 1000) == wanted

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class Mqtt3(MqttClient):
    """3.1.1 has no properties: a message is its value and DUP, and its topic may say when."""

    name = "mqtt3"
    protocol = paho.MQTTv311
    cant_write = PROPERTIES | {"partition"}
    cant_read = PROPERTIES | FACTS | {"death"}

    def publish(self, place: Place, message: Message) -> None:
        topic = self.topic(place)
        when_ms = message.delay_ms or message.deliver_at_ms
        if when_ms:
            topic = f"$delayed/{-(-when_ms // 1000)}/{topic}"  # whole seconds, rather late
        self._publish(topic, message.value, None)

    def read(self, got: paho.MQTTMessage) -> Message:
        return Message(value=got.payload, redelivered=got.dup)


class Mqtt5(MqttClient):
    """Plain topics of version 5; of a queue it is a consumer that answers with PUBACK."""

    name = "mqtt5"
    cant_write = frozenset({"key", "partition", "priority", "user_id"})
    cant_read = frozenset[str]()
    wishes: ClassVar[list[tuple[str, str]]] = [("delivery-facts", "true")]

    def kill(self, place: Place, error: str) -> None:
        """PUBACK has a number for a reason, and paho no words for it."""
        with self.listening(Place(place.name)):
            got = self._next()
            refusal = struct.pack("!BBHBB", paho.PUBACK, 4, got.mid, PAYLOAD_FORMAT_INVALID, 0)
            self._client._packet_queue(paho.PUBACK, refusal, got.mid, 1)

    def read(self, got: paho.MQTTMessage) -> Message:
        found, user = self.heard(got)
        assert got.dup == (user["delivery-count"] != "1")
        return read_facts(got, found, user)


class Queue(MqttClient):
    """``$queue``: durable queues of MQTT 5, with explicit answers."""

    name = "$queue"
    cant_write = frozenset[str]()
    cant_read = frozenset[str]()
    in_tree = False

    def topic(self, place: Place) -> str:
        return f"$queue/{place.name}"

    @contextlib.contextmanager
    def listening(self, place: Place) -> Iterator[None]:
        yield

    def receive(self, place: Place, *, give_back: bool = False) -> Message:
        self.join(place.name, "queue")
        return self.next(place.name, give_back=give_back)

    def join(self, queue: str, group: str) -> None:
        properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
        properties.UserProperty = ("consumer-group", group)
        self._subscribe(f"$queue/{queue}", properties)

    def kill(self, place: Place, error: str) -> None:
        self.join(place.name, "queue")
        self._answered(place.name, "$reject", ("reason", error))

    def next(self, queue: str, *, give_back: bool = False) -> Message:
        verb, more = ("$nack", ("delay-ms", "0")) if give_back else ("$ack", None)
        return self.read(self._answered(queue, verb, more))

    def _answered(
        self, queue: str, verb: str, more: tuple[str, str] | None = None
    ) -> paho.MQTTMessage:
        got = self._next()
        self._client.ack(got.mid, got.qos)
        user = dict(got.properties.UserProperty)
        if user["consumer-group"] == "queue":
            self._unsubscribe(f"$queue/{queue}")  # first: it must not get it again
        answer = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        answer.UserProperty = [("message-id", user["message-id"]), *([more] if more else [])]
        self._publish(f"$queue/{queue}/{verb}", b"", answer)
        return got

    def read(self, got: paho.MQTTMessage) -> Message:
        return read_facts(got, *self.heard(got))


def read_facts(got: paho.MQTTMessage, found: dict[str, Any], user: dict[str, str]) -> Message:
    partition, offset = user.pop("partition"), user.pop("offset")
    if found["message_id"] == f"{partition}-{offset}":
        found["message_id"] = None  # the broker's: the publisher gave none
    user.pop("consumer-group", None)
    count = int(user.pop("delivery-count"))
    return Message(
        value=got.payload,
        death=take_death(user),
        **found,
        redelivered=count > 1,
        delivery_count=count,
        first_seen_ms=int(user.pop("timestamp-ms")),
        partition=int(partition),
        offset=int(offset),
        headers={name: value for name, value in user.items() if not name.startswith("x-del")},
    )


def text_if_it_is(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


COLUMNS: list[type[Column]] = [Http, Amqp, Client, Mqtt3, Mqtt5, Queue]
