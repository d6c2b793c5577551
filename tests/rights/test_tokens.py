"""Tokens at a live node, as real clients have them: ours and JWT, in every protocol."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aio_pika
import httpx
import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from raw_client import RawClient
from raw_mqtt import RawMqtt
from rights_users import PASSWORD, Rights
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as websocket

import braidmq
from braidmq.testing.issuer import AUDIENCE, ISSUER, Issuer, served
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.amqp import methods as m
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import Auth, ConnAck, Disconnect
from braidmq.wire.mqtt.properties import Properties

ALL = "configure:*/* write:*/* read:*/*"
NAMES = count()
WAIT_S = 60.0

CONFIG = """
[jwt]
jwks = "{url}"
issuer = "{issuer}"
audience = "{audience}"
leeway_s = 0
"""


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with served(Issuer()) as made:
        yield made


@pytest.fixture(scope="module")
def node(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    directory = tmp_path_factory.mktemp("node")
    file = directory / "braid.toml"
    file.write_text(CONFIG.format(url=issuer.url, issuer=ISSUER, audience=AUDIENCE))
    with live_node(directory / "data", config=file) as running:
        yield running


@pytest.fixture
def user() -> str:
    return f"machine-{next(NAMES)}"


@pytest.fixture(params=["jwt", "token"])
def secret(request: pytest.FixtureRequest, issuer: Issuer, rights: Rights, user: str) -> str:
    """Of ``user``, who may do everything but to names that begin with "other"."""
    if request.param == "token":
        rights.user_named(user, ".*", ".*", ".*")
        scopes = ["configure:%2F/mine*", "write:%2F/mine*", "read:%2F/mine*"]
        return str(issue(rights, user, scopes=[*scopes, "write:%2F/amq.default"])["token"])
    scope = "configure:%2F/mine* write:%2F/mine* read:%2F/mine* write:%2F/amq.default openid"
    return issuer.token(user, scope)


def issue(rights: Rights, user: str, **more: Any) -> Any:
    return rights.ok("POST", "/v1/tokens", {"user": user, **more})


def bearer(rights: Rights, text: str, method: str, path: str, body: Any = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {text}"}
    return httpx.request(
        method, rights.node.http_url + path, json=body, headers=headers, timeout=WAIT_S
    )


def pika_connection(node: LiveNode, user: str, password: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1", node.ports["amqp_port"], "/", pika.PlainCredentials(user, password)
        )
    )


# --- logging in ---


def test_http(rights: Rights, secret: str) -> None:
    queue = f"mine-{next(NAMES)}"
    assert bearer(rights, secret, "PUT", f"/v1/topics/{queue}", {}).status_code == 201
    assert bearer(rights, secret, "PUT", "/v1/topics/other", {}).status_code == 403
    assert bearer(rights, secret, "GET", "/v1/users").status_code == 403
    basic = httpx.get(rights.node.http_url + "/v1/topics", auth=("", secret))
    assert queue in {each["name"] for each in basic.json()}
    assert bearer(rights, secret + "x", "GET", "/v1/topics").status_code == 401


def test_pika(node: LiveNode, user: str, secret: str) -> None:
    queue = f"mine-{next(NAMES)}"
    for name in (user, ""):
        with pika_connection(node, name, secret) as connection:
            channel = connection.channel()
            channel.queue_declare(queue)
            channel.basic_publish("", queue, b"hello")
            assert channel.basic_get(queue, auto_ack=True)[2] == b"hello"
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
                channel.queue_declare("other")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika_connection(node, "guest", secret)


async def test_aio_pika(node: LiveNode, user: str, secret: str) -> None:
    url = f"amqp://{user}:{quote(secret, safe='')}@127.0.0.1:{node.ports['amqp_port']}/"
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(f"mine-{next(NAMES)}")
        message = aio_pika.Message(b"hello", user_id=user)
        await channel.default_exchange.publish(message, queue.name)
        found = await queue.get()
        assert found.body == b"hello"
        await connection.update_secret(secret, reason="again")


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_paho(node: LiveNode, user: str, secret: str, version: Any) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=version)
    client.username_pw_set(user, secret)
    assert _paho_reason(client, node) == "Success"


def test_paho_with_the_method(node: LiveNode, secret: str) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    properties = PahoProperties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.AuthenticationMethod = "token"
    properties.AuthenticationData = secret.encode()
    assert _paho_reason(client, node, properties=properties) == "Success"


def _paho_reason(client: paho.Client, node: LiveNode, **more: Any) -> str:
    said: list[str] = []
    client.on_connect = lambda client, data, flags, reason, properties: said.append(str(reason))
    client.connect("127.0.0.1", node.ports["mqtt_port"], **more)
    client.loop_start()
    until_s = time.monotonic() + WAIT_S
    while not said:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    client.disconnect()
    client.loop_stop()
    return said[0]


async def test_our_client(node: LiveNode, secret: str) -> None:
    url = f"amqp://127.0.0.1:{node.ports['amqp_port']}/"
    queue = f"mine-{next(NAMES)}"
    asked = count()

    def give() -> str:
        next(asked)
        return secret

    http = node.http_url
    for given in ({"token": secret}, {"token": give}):
        async with braidmq.connect(url, http_url=http, **given) as broker:  # type: ignore[arg-type]
            await broker.declare_queue(queue)
            await broker.publish(queue, b"hello")
            assert await broker.admin.list_topics(prefix=queue)
    async with braidmq.connect(f"{url}?token={quote(secret, safe='')}", http_url=http) as broker:
        await broker.publish(queue, b"hello")
    assert next(asked) >= 1


def test_the_user_of_the_token_and_no_other(node: LiveNode, rights: Rights, secret: str) -> None:
    with RawMqtt(node) as client:
        refused = client.connect(user_name="guest", password=secret.encode())
        assert refused.reason == Reason.BAD_USER_NAME_OR_PASSWORD
    with RawMqtt(node, Version.V3_1_1) as client:
        refused = client.connect("c", user_name="guest", password=secret.encode())
        assert refused.reason == Reason.BAD_USER_NAME_OR_PASSWORD


def test_methods_that_are_refused(node: LiveNode, secret: str) -> None:
    for properties, wanted in (
        (Properties(authentication_method="SCRAM"), Reason.BAD_AUTHENTICATION_METHOD),
        (Properties(authentication_method="token"), Reason.BAD_USER_NAME_OR_PASSWORD),
        (
            Properties(authentication_method="token", authentication_data=b"\xff"),
            Reason.BAD_USER_NAME_OR_PASSWORD,
        ),
    ):
        with RawMqtt(node) as client:
            assert client.connect(properties=properties).reason == wanted
    with RawMqtt(node) as client:
        client.connect(user_name="guest", password=b"guest")
        client.send(Auth(Reason.REAUTHENTICATE, Properties(authentication_method="token")))
        assert client.expect(Disconnect).reason == Reason.PROTOCOL_ERROR


# --- keys that rotate ---


def test_keys_rotate_while_the_node_runs(node: LiveNode, rights: Rights, issuer: Issuer) -> None:
    before = issuer.token("early", ALL)
    assert bearer(rights, before, "GET", "/v1/topics").is_success
    fetches = issuer.fetches
    issuer.rotate(f"key-{next(NAMES)}", "ES256")
    after = issuer.token("late", ALL)
    until_s = time.monotonic() + WAIT_S
    while not bearer(rights, after, "GET", "/v1/topics").is_success:
        assert time.monotonic() < until_s
        time.sleep(0.2)
    assert issuer.fetches == fetches + 1
    assert not bearer(rights, before, "GET", "/v1/topics").is_success
    stranger = Issuer("nobody's").token("eve", ALL)
    for _ in range(50):
        assert bearer(rights, stranger, "GET", "/v1/topics").status_code == 401
    assert issuer.fetches <= fetches + 2
    assert rights.metric('braid_tokens_refused_total{reason="unknown-key"}') >= 50


# --- ends ---


def test_a_short_token_ends_everything_it_opened(
    node: LiveNode, rights: Rights, issuer: Issuer, user: str
) -> None:
    topic = f"topic-{next(NAMES)}"
    rights.ok("PUT", f"/v1/topics/{topic}", {})
    rights.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    text = issuer.token(user, ALL, lasts_s=4)
    amqp, five, three = RawClient(node), RawMqtt(node), RawMqtt(node, Version.V3_1_1)
    with amqp, five, three:
        amqp.login = f"\0\0{text}".encode()
        amqp.open(1)
        assert five.connect(password=text.encode(), user_name="").reason == 0
        assert three.connect("three", user_name=user, password=text.encode()).reason == 0
        path = f"/v1/topics/{topic}/subscriptions/s/receive"
        answer = bearer(rights, text, "POST", path, {"wait_ms": 30_000})
        assert answer.status_code == 401
        closed = amqp.expect(m.ConnectionClose)
        assert closed.reply_code == 320
        assert "the token has expired" in closed.reply_text
        assert five.expect(Disconnect).reason == Reason.NOT_AUTHORIZED
        assert three.sock.recv(10) == b""
    assert bearer(rights, text, "GET", "/v1/topics").status_code == 401
    node.wait_for_log("connection closed", "the token has expired")
    assert rights.metric('braid_token_logins_ended_total{reason="expired"}') >= 3


def test_revocation_ends_what_was_opened(node: LiveNode, rights: Rights, user: str) -> None:
    rights.user_named(user, ".*", ".*", ".*")
    topic = f"topic-{next(NAMES)}"
    rights.ok("PUT", f"/v1/topics/{topic}", {})
    gone, stays = issue(rights, user), issue(rights, user)
    amqp, mqtt, other = RawClient(node), RawMqtt(node), RawMqtt(node)
    with amqp, mqtt, other:
        amqp.login = f"\0{user}\0{gone['token']}".encode()
        amqp.open(1)
        mqtt.connect("a", user_name=user, password=gone["token"].encode())
        other.connect("b", user_name=user, password=stays["token"].encode())
        rights.ok("DELETE", f"/v1/tokens/{gone['info']['id']}")
        assert amqp.expect(m.ConnectionClose).reply_code == 320
        assert mqtt.expect(Disconnect).reason == Reason.NOT_AUTHORIZED
        # Another password ends no log-in with a token.
        rights.ok("PUT", f"/v1/users/{user}/password", {"password": PASSWORD + "2"})
        assert other.ping() == []
        listed = rights.ok("GET", f"/v1/tokens?user={user}")
        assert [each["id"] for each in listed] == [stays["info"]["id"]]
        assert listed[0]["last_used_ms"] is not None
        rights.ok("DELETE", f"/v1/users/{user}")
        assert other.expect(Disconnect).reason == Reason.ADMINISTRATIVE_ACTION


@pytest.mark.parametrize("how", ["expired", "revoked"])
def test_the_stream_of_figures_ends(rights: Rights, issuer: Issuer, how: str) -> None:
    revoked = rights.ok("POST", "/v1/tokens", {"scopes": ["tag:monitoring", "tag:administrator"]})
    text = issuer.token("watcher", "tag:monitoring", lasts_s=4)
    if how == "revoked":
        text = revoked["token"]
    url = rights.node.http_url.replace("http", "ws") + "/v1/stream/metrics?interval_ms=60000"
    headers = {"authorization": f"Bearer {text}"}
    with websocket(url, additional_headers=headers) as stream:
        assert stream.recv(WAIT_S)
        if how == "revoked":
            rights.ok("DELETE", f"/v1/tokens/{revoked['info']['id']}")
        with pytest.raises(ConnectionClosed):
            stream.recv(WAIT_S / 2)


def test_a_long_poll_ends_with_a_revoked_token(rights: Rights, user: str) -> None:
    topic = f"topic-{next(NAMES)}"
    rights.ok("PUT", f"/v1/topics/{topic}", {})
    rights.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    rights.user_named(user, ".*", ".*", ".*")
    issued = issue(rights, user)
    path = f"/v1/topics/{topic}/subscriptions/s/receive"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bearer, rights, issued["token"], "POST", path, {"wait_ms": 30_000})
        until_s = time.monotonic() + WAIT_S
        while not rights.ok("GET", f"/v1/tokens?user={user}")[0]["last_used_ms"]:
            assert time.monotonic() < until_s
        rights.ok("DELETE", f"/v1/tokens/{issued['info']['id']}")
        assert waiting.result(WAIT_S / 2).status_code == 401


# --- renewal ---


def test_update_secret_changes_rights_at_once(
    node: LiveNode, rights: Rights, issuer: Issuer, user: str
) -> None:
    queue = f"queue-{next(NAMES)}"
    with RawClient(node) as client, RawClient(node) as witness:
        client.login = witness.login = f"\0\0{issuer.token(user, ALL, lasts_s=5)}".encode()
        client.open(1)
        witness.open(1)
        client.declare(queue)
        client.method(1, m.BasicConsume(queue, "tag"))
        client.expect(m.BasicConsumeOk)
        narrow = issuer.token(user, "read:*/elsewhere", lasts_s=600)
        client.method(0, m.ConnectionUpdateSecret(narrow.encode(), "narrower"))
        assert client.expect(m.BasicCancel).consumer_tag == "tag"
        client.expect(m.ConnectionUpdateSecretOk)
        node.wait_for_log("secret updated", user, "narrower")
        client.method(1, m.QueueDeclare(queue))
        assert client.expect(m.ChannelClose).reply_code == 403
        witness.expect(m.ConnectionClose)
        # The first token is over; the connection is not.
        client.method(2, m.ChannelOpen())
        client.expect(m.ChannelOpenOk)


def test_secrets_that_are_refused(
    node: LiveNode, rights: Rights, issuer: Issuer, user: str
) -> None:
    first = issuer.token(user, ALL)
    for secret in (
        issuer.token("somebody-else", ALL),
        issuer.token(user, ALL, lasts_s=-5),
        issuer.token(user, "read:elsewhere/*"),
        Issuer(issuer.kid).token(user, ALL),
        "nonsense",
        "",
    ):
        with RawClient(node) as client:
            client.login = f"\0\0{first}".encode()
            client.open(1)
            client.method(0, m.ConnectionUpdateSecret(secret.encode(), ""))
            assert client.expect(m.ConnectionClose).reply_code == 530, secret


def test_reauthentication(node: LiveNode, issuer: Issuer, user: str) -> None:
    def said(token: str) -> Properties:
        return Properties(authentication_method="token", authentication_data=token.encode())

    with RawMqtt(node) as client, RawMqtt(node) as witness:
        short = said(issuer.token(user, ALL, lasts_s=5))
        witness.connect(properties=short)
        answer = client.connect(properties=short)
        assert (answer.reason, answer.properties.authentication_method) == (0, "token")
        assert client.subscribe("a/#", qos=1) == (1,)
        more = issuer.token(user, "read:*/a* write:*/b", lasts_s=600)
        client.send(Auth(Reason.REAUTHENTICATE, said(more)))
        assert client.expect(Auth).reason == 0
        client.publish("c", qos=1)
        assert client.packet().reason == Reason.NOT_AUTHORIZED  # type: ignore[attr-defined]
        witness.expect(Disconnect)
        # The first token is over; the connection is not.
        assert client.ping() == []
        less = issuer.token(user, "write:*/b", lasts_s=600)
        client.send(Auth(Reason.REAUTHENTICATE, said(less)))
        assert client.expect(Disconnect).reason == Reason.NOT_AUTHORIZED  # of its subscription
    with RawMqtt(node) as client:
        client.connect(properties=said(issuer.token(user, ALL)))
        client.send(Auth(Reason.REAUTHENTICATE, said(issuer.token("another", ALL))))
        assert client.expect(Disconnect).reason == Reason.NOT_AUTHORIZED
    with RawMqtt(node) as client:
        client.connect(properties=said(issuer.token(user, ALL)))
        client.send(Auth(Reason.CONTINUE_AUTHENTICATION, said(issuer.token(user, ALL))))
        assert client.expect(Disconnect).reason == Reason.PROTOCOL_ERROR


async def test_our_client_renews_before_the_end(node: LiveNode, issuer: Issuer, user: str) -> None:
    given: list[str] = []

    def give() -> str:
        given.append(issuer.token(user, ALL, lasts_s=4))
        return given[-1]

    url = f"amqp://127.0.0.1:{node.ports['amqp_port']}/"
    async with braidmq.connect(url, reconnect=False, token=give) as broker:
        queue = f"queue-{next(NAMES)}"
        await broker.declare_queue(queue)
        while len(given) < 4:
            await broker.publish(queue, b"x")
            await asyncio.sleep(0.1)
        assert broker.connected


# --- what only an account has, and what a token may not lead to ---


def test_a_narrower_token_resumes_a_session(
    node: LiveNode, rights: Rights, issuer: Issuer, user: str
) -> None:
    kept = Properties(session_expiry_interval=600)
    with RawMqtt(node) as client:
        client.connect(
            "kept", user_name="", password=issuer.token(user, ALL).encode(), properties=kept
        )
        client.subscribe("a", "b", qos=1)
    narrow = issuer.token(user, "read:*/b")
    with RawMqtt(node) as client:
        answer = client.connect(
            "kept", user_name="", password=narrow.encode(), properties=kept, clean_start=False
        )
        assert isinstance(answer, ConnAck)
        assert answer.session_present
        found = rights.ok("GET", "/v1/mqtt/sessions/kept/filters")
        assert [each["filter"] for each in found] == ["b"]


def test_no_schedule_without_an_account(rights: Rights, issuer: Issuer, user: str) -> None:
    topic = f"topic-{next(NAMES)}"
    rights.ok("PUT", f"/v1/topics/{topic}", {})
    path, body = f"/v1/topics/{topic}/schedules/tick", {"value": "x", "every_ms": 60_000}
    refused = bearer(rights, issuer.token(user, ALL), "PUT", path, body)
    assert refused.status_code == 403
    assert "account" in refused.text
    rights.user_named(user, ".*", ".*", ".*")
    text = issue(rights, user, scopes=["write:*/*"])["token"]
    assert bearer(rights, text, "PUT", path, body).is_success


def test_what_a_token_names_needs_its_own_right(rights: Rights, issuer: Issuer, user: str) -> None:
    """An account may write anywhere; its token, and a JWT, not to the target of dead letters."""
    rights.user_named(user, ".*", ".*", ".*")
    scopes = ["configure:*/mine*", "read:*/mine*", "write:*/mine*"]
    own = issue(rights, user, scopes=scopes)["token"]
    for text in (own, issuer.token(f"{user}-jwt", " ".join(scopes))):
        for target, status in (("elsewhere", 403), (f"mine-{next(NAMES)}", 201)):
            body = {"settings": {"dead_letter": {"topic": target}}}
            path = f"/v1/topics/mine-{next(NAMES)}"
            assert bearer(rights, text, "PUT", path, body).status_code == status, target
        rights.ok("PUT", "/v1/exchanges/mine-source", {"kind": "topic"})
        rights.ok("PUT", "/v1/exchanges/elsewhere", {"kind": "topic"})
        bind = {"source": "mine-source", "destination": "elsewhere", "destination_kind": "exchange"}
        assert bearer(rights, text, "POST", "/v1/bindings", bind).status_code == 403
        alternate = {"kind": "topic", "alternate_exchange": "elsewhere"}
        path = f"/v1/exchanges/mine-{next(NAMES)}"
        assert bearer(rights, text, "PUT", path, alternate).status_code == 403


def test_a_token_leads_to_no_more_rights(rights: Rights, issuer: Issuer, user: str) -> None:
    rights.user_named(user, ".*", ".*", ".*")
    whole, narrow = issue(rights, user), issue(rights, user, scopes=["read:*/a"])
    short = issue(rights, user, expires_in_ms=60_000)
    for each in (narrow, short):
        assert bearer(rights, each["token"], "POST", "/v1/tokens", {}).status_code == 403
        path = f"/v1/tokens/{whole['info']['id']}"
        assert bearer(rights, each["token"], "DELETE", path).status_code == 403
    assert bearer(rights, whole["token"], "POST", "/v1/tokens", {}).status_code == 201
    assert (
        bearer(rights, issuer.token(f"{user}-jwt", ALL), "POST", "/v1/tokens", {}).status_code
        == 403
    )
    # Not even an administrator's token is one, unless it says so.
    admins = rights.ok("POST", "/v1/tokens", {"scopes": ["read:*/*"]})["token"]
    assert bearer(rights, admins, "GET", "/v1/users").status_code == 403
    admins = rights.ok("POST", "/v1/tokens", {"scopes": ["tag:administrator"]})["token"]
    assert bearer(rights, admins, "GET", "/v1/users").is_success
    assert bearer(rights, issuer.token("root", "tag:administrator"), "GET", "/v1/users").is_success


def test_nothing_secret_is_on_disk_or_in_the_log(
    rights: Rights, node: LiveNode, issuer: Issuer, tmp_path: Path
) -> None:
    text = issue(rights, "guest", name=f"x-{next(NAMES)}")["token"]
    jwt = issuer.token("nobody", ALL)
    for each in (text, jwt):
        assert bearer(rights, each, "GET", "/v1/topics").is_success
        assert bearer(rights, each[:-5] + "00000", "GET", "/v1/topics").status_code == 401
    secret = text.rpartition("_")[2]
    assert not any(secret in line or jwt[-40:] in line for line in node.lines)


def test_scopes_of_a_session_outlive_the_node(issuer: Issuer, tmp_path: Path) -> None:
    """It is away when the node starts again, and gets what its token said that it may read."""
    file = tmp_path / "braid.toml"
    file.write_text(CONFIG.format(url=issuer.url, issuer=ISSUER, audience=AUDIENCE))
    kept = Properties(session_expiry_interval=600)
    given = {"user_name": "", "password": issuer.token("away", "read:*/# read:*/a").encode()}
    with live_node(tmp_path / "data", config=file) as node:
        with RawMqtt(node) as client:
            client.connect("kept", properties=kept, **given)
            assert client.subscribe("#", qos=1) == (1,)
        assert node.stop() == 0
    with live_node(tmp_path / "data", config=file) as node:
        with RawMqtt(node) as other:
            other.connect()
            for topic in ("b", "a", "c"):
                other.answer(other.publish(topic, topic.encode(), 1))
        with RawMqtt(node) as client:
            answer = client.connect("kept", properties=kept, clean_start=False, **given)
            assert answer.session_present
            assert client.message().topic == "a"
            assert client.ping() == []
