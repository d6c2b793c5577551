"""Every row of MQTT's table of rights, as users with none, one or all of the rights on the name."""

from collections.abc import Callable

import pytest
from raw_mqtt import RawMqtt
from rights_users import Rights, secret_of

from braidmq.gateways.mqtt.rights import TABLE
from braidmq.security.rights import Verb
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.packets import Publish, UnsubAck, Unsubscribe, Will

ROWS = {row.packet: row.right for row in TABLE}
Try = Callable[[RawMqtt, str, str], bool]
"""With a client that is not connected yet, its user and the name; whether it was let do it."""


def connected(client: RawMqtt, user: str) -> None:
    assert client.connect(user_name=user, password=secret_of(user).encode()).reason == 0


def connect(client: RawMqtt, user: str, name: str) -> bool:
    connected(client, user)
    return True


def connect_with_will(client: RawMqtt, user: str, name: str) -> bool:
    will = Will(name)
    answer = client.connect(user_name=user, password=secret_of(user).encode(), will=will)
    return answer.reason != Reason.NOT_AUTHORIZED


def publish(topic: str, *, retain: bool = False) -> Try:
    def perform(client: RawMqtt, user: str, name: str) -> bool:
        connected(client, user)
        sent = client.publish(topic.format(name=name), b"x", 1, retain=retain)
        return client.answer(sent) != Reason.NOT_AUTHORIZED

    return perform


def administer(topic: str, payload: str = "") -> Try:
    """The answer comes to the topic of the request: it is read by a right of its own."""

    def perform(client: RawMqtt, user: str, name: str) -> bool:
        connected(client, user)
        client.subscribe("$admin/#")
        client.publish(topic.format(name=name), payload.replace("NAME", name).encode())
        answer = client.expect(Publish).payload
        return b"access-refused" not in answer

    return perform


def subscribe(pattern: str) -> Try:
    def perform(client: RawMqtt, user: str, name: str) -> bool:
        connected(client, user)
        (reason,) = client.subscribe(pattern.format(name=name))
        return reason != Reason.NOT_AUTHORIZED

    return perform


def answer(verb: str) -> Try:
    def perform(client: RawMqtt, user: str, name: str) -> bool:
        connected(client, user)
        sent = client.publish(f"$queue/{name}/{verb}", b"", 1)
        return client.answer(sent) != Reason.NOT_AUTHORIZED

    return perform


def unsubscribe(client: RawMqtt, user: str, name: str) -> bool:
    connected(client, user)
    client.send(Unsubscribe(1, (name,)))
    return isinstance(client.packet(), UnsubAck)


STATS = "$admin/queue/{name}/stats"
REQUESTS: dict[str, Try] = {
    "CONNECT": connect,
    "CONNECT with a will": connect_with_will,
    "PUBLISH `{topic}`": publish("{name}"),
    "PUBLISH `{topic}` retained": publish("{name}", retain=True),
    "PUBLISH `$queue/{name}`": publish("$queue/{name}"),
    "PUBLISH `$queue/{name}/$ack`, `$nack`, `$reject`": answer("$ack"),
    "PUBLISH `$admin/queue/create`": administer("$admin/queue/create", '{"name": "NAME-new"}'),
    "PUBLISH `$admin/queue/{name}/config`": administer(
        "$admin/queue/{name}/config", '{"limits": {"max_queue_depth": 5}}'
    ),
    "PUBLISH `$admin/queue/{name}/config` without a payload": administer(
        "$admin/queue/{name}/config"
    ),
    "PUBLISH `$admin/queue/{name}/stats`": administer(STATS),
    "SUBSCRIBE `{filter}`": subscribe("{name}"),
    "SUBSCRIBE `$share/{group}/{filter}`": subscribe("$share/group/{name}"),
    "SUBSCRIBE `$queue/{name}`": subscribe("$queue/{name}"),
    "SUBSCRIBE `$share/{group}/$queue/{name}`": subscribe("$share/group/$queue/{name}"),
    "SUBSCRIBE `$queue/dlq/{name}`": subscribe("$queue/dlq/{name}"),
    "SUBSCRIBE `$admin/queue/{name}/stats`": subscribe(STATS),
    "UNSUBSCRIBE": unsubscribe,
}
ELSEWHERE = {
    "PUBLISH `$queue/{name}/$reply`",
    "PUBLISH `$SYS/broker/connection/{client id}/state`",
}
"""The first needs a question before: below. The second only a bridge has: ``test_mqtt_rights``."""


def test_every_row_has_a_test() -> None:
    assert REQUESTS.keys() | ELSEWHERE == ROWS.keys()


@pytest.mark.parametrize("kind", ["user", "holder"])
@pytest.mark.parametrize("label", REQUESTS)
def test_a_row(rights: Rights, name: str, label: str, kind: str) -> None:
    """As a user with a password, and as the holder of a token with scopes."""
    right = ROWS[label]
    for number, granted in enumerate([(), *((verb,) for verb in Verb), tuple(Verb)]):
        each = f"{name}-{number}"
        for topic in (each, f"{each}.dlq"):
            rights.ok("PUT", f"/v1/topics/{topic}", {"settings": {"partitions": 1}})
        patterns = [f"{each}" if verb in granted else "" for verb in Verb]
        if "PUBLISH `$admin" in label:
            patterns[2] = "|".join(filter(None, (patterns[2], "^.admin/")))
        user = getattr(rights, kind)(*patterns)
        met = [need.verb in granted for need in right.needs]
        allowed = any(met) if right.any_of else all(met)
        with RawMqtt(rights.node) as client:
            assert REQUESTS[label](client, user, each) == allowed, (label, granted)


def test_a_reply_goes_where_one_may_publish(rights: Rights, name: str) -> None:
    from braidmq.wire.mqtt.properties import Properties

    user = rights.user(f"^{name}", f"^{name}$", f"^{name}$")
    with RawMqtt(rights.node) as worker, RawMqtt(rights.node) as asking:
        connected(worker, user)
        worker.subscribe(f"$queue/{name}", qos=1)
        asking.connect()
        asking.publish(
            f"$queue/{name}", b"?", 1, properties=Properties(response_topic="not/for/the/worker")
        )
        question = worker.message()
        message_id = dict(question.properties.user_properties)["message-id"]
        worker.publish(
            f"$queue/{name}/$reply",
            b"!",
            1,
            properties=Properties(user_properties=(("message-id", message_id),)),
        )
        assert worker.closing() == Reason.NOT_AUTHORIZED


def test_a_queue_that_is_not_there_takes_configure(rights: Rights, name: str) -> None:
    user = rights.user("", f"^{name}", f"^{name}")
    with RawMqtt(rights.node) as client:
        connected(client, user)
        assert client.answer(client.publish(f"$queue/{name}", b"", 1)) == Reason.NOT_AUTHORIZED
        assert client.subscribe(f"$queue/{name}") == (Reason.NOT_AUTHORIZED,)
    assert rights.http.get(f"/v1/topics/{name}").status_code == 404
