"""One message, published over one protocol and received over another: every field arrives.

A protocol is a column: a class that publishes and receives ``Message``. The table runs all ordered
pairs of columns, so a new protocol is one more class in ``COLUMNS``.
"""

import base64
import queue as queue_module
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol
from urllib.parse import quote

import httpx
import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from braidmq.testing.live import LiveNode, live_node

PATIENCE_MS = 20_000
DELAY_MS = 300
HOUR_MS = 3_600_000
GUEST = ("guest", "guest")


@dataclass(frozen=True)
class Message:
    """Metadata as the catalogue has it (row B6), in no protocol's words."""

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
    delay_ms: int = 0
    ttl_ms: int = 0
    key: str | None = None
    redelivered: bool = False
    delivery_count: int = field(default=1, compare=False)
    first_seen_ms: int | None = field(default=None, compare=False)
    """None where nobody said it."""


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


class Column(Protocol):
    name: ClassVar[str]

    def __init__(self, node: LiveNode) -> None: ...
    def publish(self, queue: str, message: Message) -> None: ...
    def receive(self, queue: str, *, give_back: bool = False) -> Message: ...
    def close(self) -> None: ...


class Http:
    name = "http"

    def __init__(self, node: LiveNode) -> None:
        self._client = httpx.Client(base_url=node.http_url, auth=GUEST, timeout=60)

    def publish(self, queue: str, message: Message) -> None:
        body: dict[str, Any] = {"value_base64": base64.b64encode(message.value).decode()}
        body |= {name: getattr(message, name) for name in NAMED}
        body |= {"priority": message.priority, "delay_ms": message.delay_ms}
        body |= {"ttl_ms": message.ttl_ms or None, "key": message.key}
        body["headers"] = message.headers
        given = {name: value for name, value in body.items() if value is not None}
        self._post(f"/v1/topics/{queue}/messages", given)

    def receive(
        self, queue: str, subscription: str = "queue", *, give_back: bool = False
    ) -> Message:
        path = f"/v1/topics/{queue}/subscriptions/{subscription}/receive"
        (got,) = self._post(path, {"wait_ms": PATIENCE_MS})["messages"]
        verb, body = ("nack", {"delay_ms": 0}) if give_back else ("ack", {})
        self._post(f"/v1/receipts/{quote(got['receipt'], safe='')}/{verb}", body)
        seen_ms = got["timestamp_ms"]
        visible_ms = max(got.get("deliver_at_ms", 0), seen_ms)
        assert got["redelivered"] == (got["delivery_count"] > 1)
        value = got["value"].encode() if "value" in got else base64.b64decode(got["value_base64"])
        return Message(
            value=value,
            headers=got.get("headers", {}),
            priority=got.get("priority", 0),
            delay_ms=visible_ms - seen_ms,
            ttl_ms=got["expires_at_ms"] - visible_ms if "expires_at_ms" in got else 0,
            key=got.get("key"),
            redelivered=got["redelivered"],
            delivery_count=got["delivery_count"],
            first_seen_ms=seen_ms,
            **{name: got.get(name) for name in NAMED},
        )

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        response = self._client.post(path, json=body)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def get(self, path: str) -> Any:
        return self._client.get(path).raise_for_status().json()

    def put(self, path: str, body: dict[str, Any]) -> None:
        self._client.put(path, json=body).raise_for_status()

    def close(self) -> None:
        self._client.close()


class Amqp:
    name = "amqp"

    def __init__(self, node: LiveNode) -> None:
        where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
        self._connection = pika.BlockingConnection(where)
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._channel.exchange_declare(
            "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )

    def publish(self, queue: str, message: Message) -> None:
        headers: dict[str, Any] = dict(message.headers)
        exchange = ""
        if message.delay_ms:
            exchange, headers["x-delay"] = "later", message.delay_ms
            self._channel.queue_bind(queue, exchange)
        if message.key is not None:
            headers["x-key"] = message.key
        properties = pika.BasicProperties(
            headers=headers or None,
            priority=message.priority or None,
            expiration=str(message.ttl_ms) if message.ttl_ms else None,
            delivery_mode=2,
            **{name: getattr(message, name) for name in NAMED},
        )
        self._channel.basic_publish(exchange, queue, message.value, properties)

    def receive(self, queue: str, *, give_back: bool = False) -> Message:
        method, properties, body = next(
            self._channel.consume(queue, inactivity_timeout=PATIENCE_MS / 1000)
        )
        assert method is not None, "nothing came"
        self._channel.cancel()  # first: it must not get again what it gives back
        if give_back:
            self._channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            self._channel.basic_ack(method.delivery_tag)
        headers = dict(properties.headers or {})
        return Message(
            value=body,
            delay_ms=headers.pop("x-delay", 0),
            key=headers.pop("x-key", None),
            delivery_count=headers.pop("x-delivery-count", 0) + 1,  # those before this one
            headers=headers,
            priority=properties.priority or 0,
            ttl_ms=int(properties.expiration or 0),
            first_seen_ms=properties.timestamp and properties.timestamp * 1000,
            redelivered=method.redelivered,
            **{name: getattr(properties, name) for name in NAMED},
        )

    def declare(self, queue: str) -> None:
        self._channel.queue_declare(queue, durable=True)

    def close(self) -> None:
        self._connection.close()


class Mqtt:
    """A durable queue, by a client that may have one message at a time."""

    name = "mqtt"
    TEXTS = ("content_encoding", "message_id", "type", "app_id", "user_id")
    """What MQTT has no property for, and user properties have."""

    def __init__(self, node: LiveNode) -> None:
        self._messages: queue_module.Queue[paho.MQTTMessage] = queue_module.Queue()
        self._events: queue_module.Queue[str] = queue_module.Queue()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "crossing", protocol=paho.MQTTv5)
        client.on_connect = lambda *_: self._events.put("connected")
        client.on_subscribe = lambda *_: self._events.put("subscribed")
        client.on_unsubscribe = lambda *_: self._events.put("unsubscribed")
        client.on_message = lambda _c, _u, message: self._messages.put(message)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.ReceiveMaximum = 1
        client.connect("127.0.0.1", node.ports["mqtt_port"], properties=properties)
        client.loop_start()
        self._client = client
        self._wait("connected")

    def publish(self, queue: str, message: Message) -> None:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        user = list(message.headers.items())
        given = {name.replace("_", "-"): getattr(message, name) for name in self.TEXTS}
        given |= {"partition-key": message.key, "priority": message.priority or None}
        given |= {"delay-ms": message.delay_ms or None}
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
        sent = self._client.publish(f"$queue/{queue}", message.value, 1, properties=properties)
        sent.wait_for_publish(PATIENCE_MS / 1000)

    def receive(self, queue: str, *, give_back: bool = False) -> Message:
        self.join(queue, "queue")
        return self.next(queue, give_back=give_back)

    def join(self, queue: str, group: str) -> None:
        properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
        properties.UserProperty = ("consumer-group", group)
        self._client.subscribe(
            f"$queue/{queue}", options=SubscribeOptions(qos=1), properties=properties
        )
        self._wait("subscribed")

    def next(self, queue: str, *, give_back: bool = False) -> Message:
        got = self._messages.get(timeout=PATIENCE_MS / 1000)
        user = dict(got.properties.UserProperty)
        if user["consumer-group"] == "queue":
            self._client.unsubscribe(f"$queue/{queue}")  # first: it must not get it again
            self._wait("unsubscribed")
        answer = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        answer.UserProperty = [("message-id", user["message-id"]), ("delay-ms", "0")]
        verb = "$nack" if give_back else "$ack"
        done = self._client.publish(f"$queue/{queue}/{verb}", b"", 1, properties=answer)
        done.wait_for_publish(PATIENCE_MS / 1000)
        place = f"{user.pop('partition')}-{user.pop('offset')}"
        if user["message-id"] == place:
            del user["message-id"]  # the broker's: the publisher gave none
        del user["consumer-group"]
        count = int(user.pop("delivery-count"))
        said = got.properties
        return Message(
            value=got.payload,
            priority=int(user.pop("priority", 0)),
            # It counts down, in whole seconds.
            ttl_ms=-(-getattr(said, "MessageExpiryInterval", 0) // 60) * 60_000,
            key=user.pop("partition-key", None),
            redelivered=count > 1,
            delivery_count=count,
            first_seen_ms=int(user.pop("timestamp-ms")),
            content_type=getattr(said, "ContentType", None),
            correlation_id=_text(getattr(said, "CorrelationData", None)),
            reply_to=getattr(said, "ResponseTopic", None),
            **{name: user.pop(name.replace("_", "-"), None) for name in self.TEXTS},
            headers={name: value for name, value in user.items() if name != "x-delay"},
        )

    def _wait(self, wanted: str) -> None:
        assert self._events.get(timeout=PATIENCE_MS / 1000) == wanted

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


COLUMNS: list[type[Column]] = [Http, Amqp, Mqtt]

FIELDS: dict[str, Message] = {
    "text": Message("grüße".encode()),
    "binary value": Message(bytes(range(256))),
    "empty value": Message(b""),
    "headers": Message(headers={"colour": "blue", "Größe": "XL", "empty": ""}),
    "priority": Message(priority=7),
    "key": Message(key="customer-5"),
    "ttl": Message(ttl_ms=HOUR_MS),
    **{name: Message(**{name: "some-text"}) for name in NAMED if name != "user_id"},
    "user_id": Message(user_id="guest"),
    "all at once": Message(
        headers={"a": "b"}, priority=3, content_type="text/plain", correlation_id="é", reply_to="r"
    ),
}


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Column]]:
    with live_node(tmp_path_factory.mktemp("data"), ws_port=0) as node:
        made = {column.name: column(node) for column in COLUMNS}
        where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
        with pika.BlockingConnection(where) as connection:
            arguments = {"x-max-priority": 10}
            connection.channel().queue_declare("crossing", durable=True, arguments=arguments)
            arguments = {"x-queue-type": "quorum"}
            connection.channel().queue_declare("counting", durable=True, arguments=arguments)
        yield made
        for column in made.values():
            column.close()


@pytest.fixture
def amqp(columns: dict[str, Column]) -> Amqp:
    found = columns["amqp"]
    assert isinstance(found, Amqp)
    return found


@pytest.fixture
def http(columns: dict[str, Column]) -> Http:
    found = columns["http"]
    assert isinstance(found, Http)
    return found


pairs = pytest.mark.parametrize(
    ("writer", "reader"),
    [(writer.name, reader.name) for writer in COLUMNS for reader in COLUMNS],
)


@pairs
@pytest.mark.parametrize("what", FIELDS)
def test_every_field_arrives(
    columns: dict[str, Column], writer: str, reader: str, what: str
) -> None:
    columns[writer].publish("crossing", FIELDS[what])
    assert columns[reader].receive("crossing") == FIELDS[what]


@pairs
def test_a_delayed_message_arrives_in_its_time(
    columns: dict[str, Column], writer: str, reader: str
) -> None:
    began = time.time()
    columns[writer].publish("crossing", Message(b"delayed", delay_ms=DELAY_MS))
    assert columns[reader].receive("crossing").value == b"delayed"
    assert (time.time() - began) * 1000 >= DELAY_MS


@pairs
def test_a_message_given_back_is_redelivered(
    columns: dict[str, Column], writer: str, reader: str
) -> None:
    columns[writer].publish("crossing", Message())
    first = columns[reader].receive("crossing", give_back=True)
    again = columns[reader].receive("crossing")
    assert (first.redelivered, again.redelivered) == (False, True)
    assert replace(again, redelivered=False) == first


@pairs
def test_a_message_that_outlived_its_time_is_not_delivered(
    columns: dict[str, Column], http: Http, writer: str, reader: str
) -> None:
    path = "/v1/topics/crossing/subscriptions/queue"
    expired = http.get(path)["expired"]
    columns[writer].publish("crossing", Message(b"late", ttl_ms=1))
    while http.get(path)["expired"] == expired:
        pass
    columns[writer].publish("crossing", Message(b"next"))
    assert columns[reader].receive("crossing").value == b"next"


@pairs
@pytest.mark.parametrize("last", [column.name for column in COLUMNS])
def test_deliveries_are_counted_over_all_protocols(
    columns: dict[str, Column], writer: str, reader: str, last: str
) -> None:
    """AMQP tells the count where RabbitMQ does: in quorum queues."""
    columns[writer].publish("counting", Message())
    counts = [
        columns[reader].receive("counting", give_back=True).delivery_count,
        columns[last].receive("counting", give_back=True).delivery_count,
        columns[reader].receive("counting").delivery_count,
    ]
    assert counts == [1, 2, 3]


@pairs
def test_when_the_broker_first_saw_a_message(
    columns: dict[str, Column], writer: str, reader: str
) -> None:
    """To the second in AMQP, where a message of AMQP's own has only the time its publisher gave."""
    began_ms = int(time.time()) * 1000
    columns[writer].publish("crossing", Message())
    ended_ms = time.time() * 1000
    first = columns[reader].receive("crossing", give_back=True).first_seen_ms
    again = columns[reader].receive("crossing").first_seen_ms
    assert first == again
    if writer == reader == "amqp":
        assert first is None
    else:
        assert first is not None
        assert began_ms <= first <= ended_ms


def test_a_topic_made_over_http_is_a_queue_once_it_is_declared(
    columns: dict[str, Column], http: Http, amqp: Amqp
) -> None:
    http.put("/v1/topics/made-over-http", {})
    columns["http"].publish("made-over-http", Message(b"before"))
    for _ in range(2):
        amqp.declare("made-over-http")
    columns["http"].publish("made-over-http", Message(b"after"))
    received = {columns["amqp"].receive("made-over-http").value for _ in range(2)}
    assert received == {b"before", b"after"}


def test_one_message_reaches_consumers_of_all_protocols(
    columns: dict[str, Column], http: Http, amqp: Amqp
) -> None:
    """Each with a subscription of its own; the queue is one topic."""
    mqtt = columns["mqtt"]
    assert isinstance(mqtt, Mqtt)
    mqtt.publish("for-all", Message(b"first", key="k"))
    amqp.declare("for-all")
    http.put("/v1/topics/for-all/subscriptions/http-readers", {})
    mqtt.join("for-all", "mqtt-readers")
    for number, (name, column) in enumerate(columns.items()):
        value = f"{number} from {name}".encode()
        column.publish("for-all", Message(value, headers={"by": name}))
    wanted = {b"first", *(f"{n} from {name}".encode() for n, name in enumerate(columns))}
    assert {amqp.receive("for-all").value for _ in wanted} == wanted
    assert {http.receive("for-all", "http-readers").value for _ in wanted} == wanted
    assert {mqtt.next("for-all").value for _ in wanted} == wanted
