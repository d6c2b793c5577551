"""``$admin/queue/…``: durable queues made, changed and watched by publishing JSON.

$admin/queue/create          {"name": …, settings}
$admin/queue/{name}/config   settings to change; an empty payload asks for those it has
$admin/queue/{name}/stats    what it holds; who subscribes to it gets it now and then

The answer goes to the response topic of the request with its correlation data; without one to
the topic of the request and ``/response``, to the client that asked alone.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from braidmq.engine.keeping import kept_of
from braidmq.engine.makers import SetBy
from braidmq.engine.policy import merge
from braidmq.engine.references import names_target
from braidmq.engine.topics import Subscription as EngineSubscription
from braidmq.engine.topics import Topic
from braidmq.gateways.mqtt.errors import translate
from braidmq.gateways.mqtt.message import Arrival, make_arrival
from braidmq.gateways.mqtt.queues import config as queue_config
from braidmq.gateways.mqtt.queues.names import QUEUE, Address, is_queue, parse
from braidmq.gateways.mqtt.queues.registry import batch_size
from braidmq.gateways.mqtt.router import Routed
from braidmq.gateways.mqtt.subscription_index import Subscription
from braidmq.logs import about, log_change
from braidmq.model.errors import BadRequest, BraidError, NotFound, StorageFailed
from braidmq.record.batch import Record
from braidmq.security.permissions import maker_of
from braidmq.wire.envelopes import split_mqtt
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import Properties, decode_properties

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection
    from braidmq.gateways.mqtt.listener import MqttGateway

ADMIN: Final = "$admin/"
ADMIN_BYTES: Final = ADMIN.encode()
PREFIX: Final = "$admin/queue/"
RESPONSE: Final = "/response"
CONTENT_TYPE: Final = "application/json"

_COUNTS = (
    "depth",
    "ready",
    "in_flight",
    "delivered",
    "redelivered",
    "acked",
    "nacked",
    "rejected",
    "expired",
    "dead_lettered",
)


class UnknownRequest(NotFound):
    code = "unknown-request"
    remedy = "Publish to $admin/queue/create, $admin/queue/{name}/config or …/stats"


class UnknownQueue(NotFound):
    code = "unknown-queue"


def is_admin(topic: str) -> bool:
    return topic.startswith(ADMIN)


class Admin:
    def __init__(self, gateway: "MqttGateway") -> None:
        self._gateway = gateway
        self._node_loop = gateway.node_loop
        self._published = gateway.node_loop.loop.time()

    # --- requests ---

    def request(self, connection: "MqttConnection", arrival: Arrival) -> Routed:
        """Do what is asked and answer once it is on disk. Mistakes are told in the answer."""
        topic = arrival.topic.decode()
        token = about.set(connection)
        try:
            for record in arrival.batch.records():
                answer = self._answer(connection, topic, record.value or b"")
                self._when_done(connection, topic, record, answer)
        finally:
            about.reset(token)
        return Routed(self._node_loop.pending_lsn(), True)

    def _answer(self, connection: "MqttConnection", topic: str, payload: bytes) -> dict[str, Any]:
        try:
            return {"ok": True, **self._perform(connection, topic, payload)}
        except StorageFailed:
            raise
        except BraidError as error:
            return {"ok": False, "error": {"code": error.code, "message": str(error)}}

    def _perform(self, connection: "MqttConnection", topic: str, payload: bytes) -> dict[str, Any]:
        name, _, verb = topic.removeprefix(PREFIX).rpartition("/")
        if not topic.startswith(PREFIX):
            raise UnknownRequest(f"there is no {topic!r}")
        if not name and verb == "create":
            return self._create(connection, queue_config.read(payload))
        if name and verb == "config":
            return self._configure(connection, _address(name), payload)
        if name and verb == "stats":
            return self._stats(connection, _address(name))
        raise UnknownRequest(f"there is no {topic!r}")

    def _create(
        self, connection: "MqttConnection", config: queue_config.QueueConfig
    ) -> dict[str, Any]:
        """A queue that is just so already is fine, too."""
        if not isinstance(config.name, str):
            raise BadRequest("a queue needs a name")
        address = _address(config.name)
        if address.dead:
            raise BadRequest(f"{config.name!r} can't be created: it is created with its queue")
        connection.grants.need_configure(address.name)
        settings, size = queue_config.settings_of(config), queue_config.batch_size_of(config)
        engine, now_ms = self._node_loop.engine(), self._node_loop.now_ms()
        topic = engine.state.topics.get((connection.namespace, address.name))
        if topic is not None and topic.settings == settings and size == batch_size(topic):
            engine.references.adopt(topic, _maker(connection))
            return self._made(topic, config)
        if topic is None:
            self._gateway.queues.require_room(connection.namespace)
        topic = engine.topics.create(
            connection.namespace,
            address.name,
            settings,
            now_ms=now_ms,
            kind="queue",
            attributes={"mqtt": {"batch_size": size}} if size else None,
            set_by=_maker(connection),
        )
        log_change("mqtt", "queue.create", topic.name)
        return self._made(topic, config)

    def _configure(
        self, connection: "MqttConnection", address: Address, payload: bytes
    ) -> dict[str, Any]:
        grants = connection.grants
        if payload or not grants.may_read(address.name):
            grants.need_configure(address.name)
        topic = self._found(connection, address)
        config = queue_config.read(payload)
        if payload:
            given = queue_config.settings_of(config)
            size = queue_config.batch_size_of(config)
            engine = self._node_loop.engine()
            engine.topics.alter(
                topic,
                merge(topic.settings, given),
                now_ms=self._node_loop.now_ms(),
                set_by=_maker(connection) if names_target(given) else None,
            )
            if size is not None:
                topic.attributes["mqtt"] = {"batch_size": size}
                engine.state.save_topic(topic)
            log_change("mqtt", "queue.config", topic.name)
        return self._made(topic, config)

    def _made(self, topic: Topic, config: queue_config.QueueConfig) -> dict[str, Any]:
        answer: dict[str, Any] = {"queue": self._shown(topic)}
        if unused := queue_config.without_effect(config):
            answer["without_effect"] = unused
        return answer

    def _stats(self, connection: "MqttConnection", address: Address) -> dict[str, Any]:
        connection.grants.need_read(address.name)
        return {"stats": self._counted(self._found(connection, address))}

    def _found(self, connection: "MqttConnection", address: Address) -> Topic:
        topic = self._gateway.queues.find(connection.namespace, address)
        if topic is None:
            raise UnknownQueue(f"there is no queue {address.name!r}")
        return topic

    def _shown(self, topic: Topic) -> dict[str, Any]:
        return queue_config.shown(topic, batch_size(topic) or self._gateway.settings.queue_batch)

    def _counted(self, topic: Topic) -> dict[str, Any]:
        dead = self._node_loop.engine().dead_letter_places.own(topic)
        return {
            "name": QUEUE + topic.name,
            "partitions": topic.width,
            "published": topic.published,
            "depth": topic.load[0] if not topic.subscriptions else topic.depth,
            "kept": sum(kept_of(each)[0] for each in topic.partitions),
            "kept_bytes": sum(kept_of(each)[1] for each in topic.partitions),
            "dead_letters": self._node_loop.engine().dead_letter_queue.count(dead)
            if dead is not None
            else 0,
            "groups": [_group(each) for each in topic.subscriptions.values()],
        }

    # --- answers ---

    def _when_done(
        self, connection: "MqttConnection", topic: str, request: Record, answer: dict[str, Any]
    ) -> None:
        given = decode_properties(split_mqtt(request.envelope)[2], Kind.PUBLISH)
        payload = msgspec.json.encode(answer)
        send = partial(self._send, connection, topic, payload, given)
        connection.answers.reply(b"", self._node_loop.pending_lsn(), send)

    def _send(
        self, connection: "MqttConnection", topic: str, payload: bytes, given: Properties
    ) -> None:
        target = given.response_topic or topic + RESPONSE
        properties = Properties(content_type=CONTENT_TYPE, correlation_data=given.correlation_data)
        arrival = make_arrival(
            target.encode(), payload, self._node_loop.now_ms(), properties=properties
        )
        if given.response_topic is None:
            options = connection.session.index.match(arrival.topic).delivery(connection.session)
            if options is not None:
                connection.router.send(arrival, connection.session, options)
            return
        try:
            connection.check_publish(target)
            connection.publish(arrival)
        except BraidError as error:
            connection.fail(translate(error))

    # --- the stream of statistics ---

    def send_to(self, connection: "MqttConnection", new: Subscription) -> None:
        """What a new subscription to the statistics of a queue is about, as if it were retained."""
        name, _, verb = new.filter.removeprefix(PREFIX).rpartition("/")
        if verb != "stats" or not name:
            return
        try:
            stats = self._stats(connection, _address(name))
        except BraidError:
            return  # no queue yet, or nothing for this client
        arrival = make_arrival(
            new.filter.encode(),
            msgspec.json.encode(stats["stats"]),
            self._node_loop.now_ms(),
            properties=Properties(content_type=CONTENT_TYPE),
        )
        options = connection.session.index.match(arrival.topic).delivery(connection.session)
        if options is not None:
            connection.router.send(arrival, connection.session, options)

    def beat(self, now: float) -> None:
        interval_s = self._gateway.settings.sys_interval_s
        if not interval_s or now < self._published + interval_s:
            return
        self._published = now
        for connection in list(self._gateway.connections):
            if connection.is_established:
                for each in list(connection.session.subscriptions.values()):
                    if is_admin(each.filter):
                        self.send_to(connection, each)


def _address(name: str) -> Address:
    address = parse(name if is_queue(name) else QUEUE + name)
    if address.verb:
        raise BadRequest(f"{name!r} is not a valid queue name")
    return address


def _group(subscription: EngineSubscription) -> dict[str, Any]:
    counts = {name: getattr(subscription, name) for name in _COUNTS}
    return {"name": subscription.name, "consumers": len(subscription.consumers), **counts}


def _maker(connection: "MqttConnection") -> SetBy:
    """Whose rights count for what a client makes that names other objects."""
    return maker_of(connection.login, connection.grants)
