"""What was begun with a right ends with it, in every protocol."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from raw_client import CAPABILITIES, Gone
from raw_mqtt import RawMqtt
from rights_users import PASSWORD, Rights
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from braidmq.wire.amqp import methods as m
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import Publish
from braidmq.wire.mqtt.properties import Properties

Change = Callable[[Rights, str], None]


def narrow(rights: Rights, user: str) -> None:
    rights.grant(user, ".*", ".*", "^nothing")


def withdraw(rights: Rights, user: str) -> None:
    rights.ok("DELETE", f"/v1/permissions/%2F/{user}")


def new_password(rights: Rights, user: str) -> None:
    rights.ok("PUT", f"/v1/users/{user}/password", {"password": "another"})


def delete(rights: Rights, user: str) -> None:
    rights.ok("DELETE", f"/v1/users/{user}")


EVERY_END = pytest.mark.parametrize("end", [withdraw, new_password, delete])


# --- AMQP ---


def test_a_consumer_is_cancelled_and_the_others_go_on(rights: Rights, name: str) -> None:
    user = rights.user(".*", ".*", ".*")
    with rights.amqp(user) as client:
        for queue in (name, f"{name}-kept"):
            client.declare(queue)
            client.ask(1, m.BasicConsume(queue, queue), m.BasicConsumeOk)
        client.publish(1, name, b"before")
        client.expect(m.BasicDeliver)
        client.content()
        rights.grant(user, ".*", ".*", f"^{name}-kept$")
        assert client.expect(m.BasicCancel).consumer_tag == name
        client.publish(1, name, b"after")
        client.publish(1, f"{name}-kept", b"kept")
        assert client.expect(m.BasicDeliver).consumer_tag == f"{name}-kept"
        client.content()
        # What it had when it was allowed to it may still answer for.
        client.method(1, m.BasicAck(1))
        assert client.ask(1, m.BasicGet(name), m.ChannelClose).reply_code == 403
    described = rights.ok("GET", f"/v1/topics/{name}/subscriptions/queue")
    assert (described["consumers"], described["acked"], described["ready"]) == (0, 1, 1)


def test_a_client_that_cannot_be_told_loses_its_channel(rights: Rights, name: str) -> None:
    user = rights.user(".*", ".*", ".*")
    quiet = {**CAPABILITIES, "consumer_cancel_notify": False}
    with rights.amqp(user, capabilities=quiet) as client:
        client.declare(name)
        client.ask(1, m.BasicConsume(name, "c"), m.BasicConsumeOk)
        narrow(rights, user)
        assert client.expect(m.ChannelClose).reply_code == 403


@EVERY_END
def test_amqp_connections_end(rights: Rights, end: Change) -> None:
    user = rights.user(".*", ".*", ".*")
    with rights.amqp(user) as client, rights.amqp() as other:
        end(rights, user)
        assert client.expect(m.ConnectionClose).reply_code == 320
        other.declare("")


def test_a_connection_between_login_and_open_ends_with_the_password(rights: Rights) -> None:
    user = rights.user(".*", ".*", ".*")
    from raw_client import RawClient

    with RawClient(rights.node) as client:
        client.login = f"\0{user}\0{PASSWORD}".encode()
        client.start()
        new_password(rights, user)
        with pytest.raises(Gone):
            client.ask(0, m.ConnectionOpen("/"), m.ConnectionOpenOk)


# --- MQTT ---


@pytest.mark.parametrize("version", [Version.V5, Version.V3_1_1])
def test_a_subscription_ends_and_the_client_hears_of_it(
    rights: Rights, name: str, version: int
) -> None:
    user = rights.user(".*", ".*", ".*")
    with RawMqtt(rights.node, version) as client:
        keeping: dict[str, Any] = {"user_name": user, "password": PASSWORD.encode()}
        keeping["clean_start"] = False
        if version == Version.V5:
            keeping["properties"] = Properties(session_expiry_interval=600)
        client.connect(name, **keeping)
        client.subscribe(f"{name}/a", f"{name}/b", f"$share/g/{name}/c", f"$queue/{name}-q", qos=1)
        rights.grant(user, ".*", ".*", f"^{name}/b")
        if version == Version.V5:
            assert client.closing() == Reason.NOT_AUTHORIZED
        else:
            client.expect_end()
    with RawMqtt(rights.node) as sender:
        sender.connect()
        for topic in (f"{name}/a", f"{name}/b", f"{name}/c", f"$queue/{name}-q"):
            sender.answer(sender.publish(topic, topic.encode(), 1))
    with RawMqtt(rights.node, version) as client:
        assert client.connect(name, **keeping).session_present
        assert client.message().payload == f"{name}/b".encode()
        assert client.ping() == []


def test_a_session_that_is_away_loses_it_too(rights: Rights, name: str) -> None:
    user = rights.user(".*", ".*", ".*")
    kept: dict[str, Any] = {"user_name": user, "password": PASSWORD.encode(), "clean_start": False}
    with RawMqtt(rights.node, Version.V3_1_1) as client:
        client.connect(name, **kept)
        client.subscribe(f"{name}/a", qos=1)
    narrow(rights, user)
    rights.grant(user, ".*", ".*", ".*")
    with RawMqtt(rights.node) as sender:
        sender.connect()
        assert sender.answer(sender.publish(f"{name}/a", b"", 1)) == Reason.NO_MATCHING_SUBSCRIBERS
    with RawMqtt(rights.node, Version.V3_1_1) as client:
        assert client.connect(name, **kept).session_present
        assert client.ping() == []


@EVERY_END
def test_mqtt_connections_end(rights: Rights, name: str, end: Change) -> None:
    user = rights.user(".*", ".*", ".*")
    with RawMqtt(rights.node) as client, RawMqtt(rights.node) as other:
        client.connect(user_name=user, password=PASSWORD.encode())
        client.subscribe(name)
        other.connect()
        end(rights, user)
        assert client.closing() in (Reason.ADMINISTRATIVE_ACTION, Reason.NOT_AUTHORIZED)
        assert other.ping() == []


def test_what_may_still_be_read_goes_on(rights: Rights, name: str) -> None:
    user = rights.user("", "", f"^{name}")
    with RawMqtt(rights.node) as client, RawMqtt(rights.node) as sender:
        client.connect(user_name=user, password=PASSWORD.encode())
        client.subscribe(f"{name}/a")
        rights.grant(user, "^other", "^other", f"^{name}/")
        sender.connect()
        sender.publish(f"{name}/a", b"x")
        assert client.expect(Publish).payload == b"x"


# --- HTTP ---


class Polling:
    """A request that waits, in a thread; it is waiting once the node says so."""

    def __init__(self, rights: Rights, user: str, path: str, body: Any) -> None:
        self.answer: httpx.Response
        self._thread = threading.Thread(target=self._run, args=(rights, user, path, body))
        self._thread.start()

    def _run(self, rights: Rights, user: str, path: str, body: Any) -> None:
        with httpx.Client(base_url=rights.node.http_url, timeout=60) as client:
            self.answer = client.post(path, json=body, auth=(user, PASSWORD))

    def end(self) -> httpx.Response:
        self._thread.join(20)
        assert not self._thread.is_alive(), "it still waits"
        return self.answer


def until_waiting(rights: Rights, topic: str, subscription: str) -> None:
    path = f"/v1/topics/{topic}/subscriptions/{subscription}"
    while not rights.ok("GET", path)["waiting"]:
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("end", "status"), [(narrow, 403), (withdraw, 403), (new_password, 401), (delete, 401)]
)
def test_a_long_poll_is_answered(rights: Rights, name: str, end: Change, status: int) -> None:
    user = rights.user("", "", f"^{name}$")
    rights.ok("PUT", f"/v1/topics/{name}", {})
    rights.ok("PUT", f"/v1/topics/{name}/subscriptions/s", {})
    path = f"/v1/topics/{name}/subscriptions/s/receive"
    poll = Polling(rights, user, path, {"wait_ms": 30_000})
    until_waiting(rights, name, "s")
    end(rights, user)
    assert poll.end().status_code == status
    assert rights.ok("GET", f"/v1/topics/{name}/subscriptions/s")["waiting"] == 0


def test_a_poll_by_token_outlives_the_password_and_not_the_token(rights: Rights, name: str) -> None:
    user = rights.user("", "", f"^{name}$")
    rights.ok("PUT", f"/v1/topics/{name}", {})
    rights.ok("PUT", f"/v1/topics/{name}/subscriptions/s", {})
    token = rights.ok("POST", "/v1/tokens", {"user": user})
    answers: list[httpx.Response] = []

    def poll() -> None:
        headers = {"authorization": f"Bearer {token['token']}"}
        url = f"{rights.node.http_url}/v1/topics/{name}/subscriptions/s/receive"
        answers.append(httpx.post(url, json={"wait_ms": 30_000}, headers=headers, timeout=60))

    thread = threading.Thread(target=poll)
    thread.start()
    until_waiting(rights, name, "s")
    new_password(rights, user)
    rights.ok("POST", f"/v1/topics/{name}/messages", {"value": "x"})
    thread.join(20)
    assert [each["value"] for each in answers[0].json()["messages"]] == ["x"]
    thread = threading.Thread(target=poll)
    thread.start()
    until_waiting(rights, name, "s")
    rights.ok("DELETE", f"/v1/tokens/{token['info']['id']}")
    thread.join(20)
    assert answers[1].status_code == 401


@pytest.mark.parametrize("end", [narrow, withdraw, delete])
def test_members_leave_and_leases_end(rights: Rights, name: str, end: Change) -> None:
    user = rights.user("", "", f"^{name}$")
    rights.ok("PUT", f"/v1/topics/{name}", {"settings": {"partitions": 2}})
    body = {"topics": [name], "member_id": "mia"}
    joined = rights.as_user(user, "POST", f"/v1/groups/{name}/members", body)
    assert joined.status_code == 201
    other = rights.ok("POST", f"/v1/groups/{name}/members", {"topics": [name], "member_id": "bob"})
    lease = {"positions": [{"topic": name, "partition": 0, "offset": 0}]}
    assert rights.as_user(user, "PUT", f"/v1/leases/{name}", lease).is_success
    end(rights, user)
    members = rights.ok("GET", f"/v1/groups/{name}")["members"]
    assert [each["member_id"] for each in members] == ["bob"]
    path = f"/v1/groups/{name}/members/bob/sync"
    synced = rights.ok("POST", path, {"generation": other["generation"]})
    assert synced["assigned"] == {name: [0, 1]}
    assert rights.http.get(f"/v1/leases/{name}").status_code == 404


def test_live_figures_end_with_the_tag(rights: Rights) -> None:
    user = rights.user()
    rights.ok("PUT", f"/v1/users/{user}/tags", {"tags": ["monitoring"]})
    url = rights.node.http_url.replace("http", "ws") + "/v1/stream/metrics?interval_ms=100"
    token = rights.ok("POST", "/v1/tokens", {"user": user})["token"]
    with connect(url, additional_headers={"Authorization": f"Bearer {token}"}) as socket:
        socket.recv(20)
        rights.ok("PUT", f"/v1/users/{user}/tags", {"tags": []})
        with suppress(ConnectionClosed):
            for _ in range(100):
                socket.recv(20)
            raise AssertionError("ten seconds later they still come")
