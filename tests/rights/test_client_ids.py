"""Patterns with %c and %u, as paho's clients meet them on a live node."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from rights_users import PASSWORD, Rights

from braidmq.wire.amqp import methods as m

WAIT_S = 60


class Device:
    """A client of paho that says what became of each thing it asked for."""

    def __init__(self, rights: Rights, client_id: str, user: str) -> None:
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
        self.client.username_pw_set(user, PASSWORD)
        self._answer = threading.Event()
        self.reasons: list[str] = []
        self.topics: list[str] = []
        self.gone = threading.Event()
        self.client.on_connect = lambda *given: self._told(given[3])
        self.client.on_subscribe = lambda *given: self._told(given[3][0])
        self.client.on_publish = lambda *given: self._told(given[3])
        self.client.on_disconnect = lambda *_: self.gone.set()
        self.client.on_message = lambda _c, _u, message: self.topics.append(message.topic)
        self.client.connect("127.0.0.1", rights.node.ports["mqtt_port"])
        self.client.loop_start()
        self._wait()

    def _told(self, reason: Any) -> None:
        self.reasons.append(str(reason))
        self._answer.set()

    def _wait(self) -> str:
        assert self._answer.wait(WAIT_S)
        self._answer.clear()
        return self.reasons.pop()

    def may_subscribe(self, pattern: str) -> bool:
        self.client.subscribe(pattern, qos=1)
        return "Granted" in self._wait()

    def may_publish(self, topic: str) -> bool:
        self.client.publish(topic, b"x", qos=1)
        reason = self._wait()
        assert reason in ("Success", "No matching subscribers", "Not authorized"), reason
        return reason != "Not authorized"


@contextmanager
def device(rights: Rights, client_id: str, user: str) -> Iterator[Device]:
    made = Device(rights, client_id, user)
    try:
        yield made
    finally:
        made.client.disconnect()
        made.client.loop_stop()


def test_each_client_has_its_own(rights: Rights, name: str) -> None:
    user = rights.user("", f"^{name}/%c/", f"^{name}/%c/|^{name}/all$")
    with device(rights, f"{name}-1", user) as one, device(rights, f"{name}-2", user) as two:
        for each, other in ((one, f"{name}-2"), (two, f"{name}-1")):
            own = f"{name}-1" if other.endswith("2") else f"{name}-2"
            assert each.may_publish(f"{name}/{own}/heat")
            assert not each.may_publish(f"{name}/{other}/heat")
            assert each.may_subscribe(f"{name}/{own}/#")
            assert each.may_subscribe(f"{name}/all")
            assert not each.may_subscribe(f"{name}/{other}/#")
            assert not each.may_subscribe(f"{name}/+/heat")
            assert not each.may_subscribe(f"{name}/#")


@pytest.mark.parametrize(
    "client_id", ["+", "#", "+/#", ".*", "*", "a|b", ".", "[a-z]+", "$SYS", "a/b", "\\w+", "^"]
)
def test_no_id_widens_its_rule(rights: Rights, name: str, client_id: str) -> None:
    user = rights.user("", f"^{name}/%c/|^%c/", f"^{name}/%c/|^%c/")
    with device(rights, client_id, user) as hostile:
        for topic in (f"{name}/other/heat", f"{name}/a/heat", f"{name}/b/heat", "other/heat"):
            assert not hostile.may_publish(topic)
            assert not hostile.may_subscribe(topic)
        for pattern in (f"{name}/+/heat", f"{name}/#", "+/#", "#", "$SYS/#"):
            assert not hostile.may_subscribe(pattern)


def test_what_a_star_means_to_amqp_it_does_not_mean_here(rights: Rights, name: str) -> None:
    """As a filter it is a level of that name; as a key of a topic exchange it would be any."""
    user = rights.user("", "", f"^{name}/%c/|^{name}/end$")
    with device(rights, "*", user) as hostile:
        hostile.may_subscribe(f"{name}/*/heat")
        assert hostile.may_subscribe(f"{name}/end")
        where = pika.ConnectionParameters("127.0.0.1", rights.node.ports["amqp_port"])
        with pika.BlockingConnection(where) as connection:
            channel = connection.channel()
            channel.basic_publish("amq.topic", f"{name}.other.heat", b"not yours")
            channel.basic_publish("amq.topic", f"{name}.end", b"x")
        while not hostile.topics:
            assert not hostile.gone.wait(0.01)
        assert hostile.topics == [f"{name}/end"]


def test_the_user_name_stands_in_every_protocol(rights: Rights, name: str) -> None:
    user = rights.user("^%u$", "^%u$", "^%u$")
    with device(rights, name, user) as client:
        assert client.may_publish(user)
        assert not client.may_publish(f"{user}/x")
    assert rights.as_user(user, "PUT", f"/v1/topics/{user}", {}).status_code == 201
    assert rights.as_user(user, "PUT", f"/v1/topics/{user}-2", {}).status_code == 403
    with rights.amqp(user) as amqp:
        amqp.method(1, m.QueueDeclare(user, durable=True, arguments={}))
        amqp.expect(m.QueueDeclareOk)
        amqp.method(1, m.QueueDeclare(f"x{user}", durable=True, arguments={}))
        assert amqp.expect(m.ChannelClose).reply_code == 403


def test_without_a_client_id_there_is_nothing(rights: Rights, name: str) -> None:
    user = rights.user("", "", f"^{name}/%c/|^{name}$")
    rights.ok("PUT", f"/v1/topics/{name}", {})
    rights.ok("PUT", f"/v1/topics/{name}%2Fa%2Fb", {})
    assert rights.as_user(user, "GET", f"/v1/topics/{name}").status_code == 200
    assert rights.as_user(user, "GET", f"/v1/topics/{name}%2Fa%2Fb").status_code == 403


def test_a_rule_that_comes_later_counts_for_who_is_there(rights: Rights, name: str) -> None:
    user = rights.user("", f"^{name}/", f"^{name}/")
    with device(rights, name, user) as client:
        assert client.may_publish(f"{name}/other/x")
        rights.grant(user, "", f"^{name}/%c/", f"^{name}/%c/")
        assert client.may_publish(f"{name}/{name}/x")
        assert not client.may_publish(f"{name}/other/x")
        assert client.may_subscribe(f"{name}/{name}/#")
        rights.grant(user, "", f"^{name}/", f"^{name}/[a-z]+/")
        assert client.gone.wait(WAIT_S)  # what it had subscribed to it may not read any more


def test_a_will_is_published_with_the_right_of_its_client(rights: Rights, name: str) -> None:
    user = rights.user("", f"^{name}/%c/", "")
    for topic, allowed in ((f"{name}/{name}/will", True), (f"{name}/other/will", False)):
        client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        client.username_pw_set(user, PASSWORD)
        client.will_set(topic, b"x")
        reasons: list[Any] = []
        client.on_connect = lambda *given, to=reasons: to.append(given[3])
        client.connect("127.0.0.1", rights.node.ports["mqtt_port"])
        while not reasons:
            client.loop()
        client.disconnect()
        assert reasons[0].is_failure != allowed


@pytest.mark.parametrize("pattern", ["^a/%c", "%c/", "^a/%c*/", "(?i)^a/%c/"])
def test_a_pattern_that_an_id_could_widen_is_refused(rights: Rights, pattern: str) -> None:
    user = rights.user()
    body = {"configure": "", "write": pattern, "read": ""}
    answer = rights.http.put(f"/v1/permissions/%2F/{user}", json=body)
    assert answer.status_code == 400, answer.text
    assert "%c" in answer.json()["detail"] or "placeholder" in answer.json()["detail"]
