"""Clients that are too fast, on nodes that limit their own machine, too: each is made to wait or is
told no in the words of its protocol, and others are not concerned."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from raw_mqtt import Gone, RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import Disconnect, PubAck, Publish

GUEST = ("guest", "guest")
WAIT_S = 20

SETTINGS = """
[rates]
limit_loopback = true
over_limit = "{over}"
connections_per_min = 0
messages_per_s = {rate}
messages_burst = 5
subscriptions_per_s = 1
subscriptions_burst = 3
failed_logins = 3
"""


def started(where: Path, over: str, rate: int, more: str = "") -> Iterator[LiveNode]:
    where.mkdir(exist_ok=True)
    (where / "braid.toml").write_text(SETTINGS.format(over=over, rate=rate) + more)
    with live_node(where / "data", config=where / "braid.toml") as node:
        yield node
        assert node.stop() == 0
        assert not node.complaints


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    yield from started(tmp_path_factory.mktemp("strict"), "refuse", 1)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    yield from started(tmp_path_factory.mktemp("slow"), "slow", 200)


def amqp(node: LiveNode) -> pika.BlockingConnection:
    at = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"], socket_timeout=WAIT_S)
    return pika.BlockingConnection(at)


def publish_all(channel: BlockingChannel, queue: str, count: int) -> None:
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)


def consume_all(channel: BlockingChannel, queue: str, count: int) -> None:
    for _ in range(count):
        channel.basic_consume(queue, lambda *_: None)


def read_acks(client: RawMqtt, count: int) -> None:
    for _ in range(count):
        client.expect(PubAck)


def counted(node: LiveNode, limit: str, outcome: str) -> float:
    text = httpx.get(f"{node.http_url}/metrics").text
    start = f'braid_rate_limited_total{{limit="{limit}",outcome="{outcome}"}} '
    found = [line for line in text.splitlines() if line.startswith(start)]
    return float(found[0].removeprefix(start)) if found else 0.0


# --- refused ---


def test_amqp_closes_the_channel_that_publishes_too_fast(strict: LiveNode, name: str) -> None:
    before = counted(strict, "messages", "refused")
    with amqp(strict) as connection:
        channel = connection.channel()
        channel.queue_declare(name)
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="rate-limited") as closed:
            publish_all(channel, name, 50)
        assert closed.value.reply_code == 406
        assert connection.channel().queue_declare(name, passive=True).method.message_count >= 5
    assert counted(strict, "messages", "refused") > before


def test_amqp_refuses_consumers_that_come_too_fast(strict: LiveNode, name: str) -> None:
    with amqp(strict) as connection:
        channel = connection.channel()
        channel.queue_declare(name)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="rate-limited"):
            consume_all(channel, name, 10)


def test_mqtt_5_says_quota_exceeded_to_a_publish(strict: LiveNode) -> None:
    with RawMqtt(strict) as client:
        client.connect()
        client.send(*(Publish("t", b"x", 1, packet_id=each) for each in range(1, 21)))
        reasons = [client.expect(PubAck).reason for _ in range(20)]
        assert set(reasons[:5]) == {Reason.NO_MATCHING_SUBSCRIBERS}
        assert Reason.QUOTA_EXCEEDED in reasons[5:]
        client.ping()


def test_mqtt_5_is_disconnected_for_too_much_of_qos_0(strict: LiveNode) -> None:
    with RawMqtt(strict) as client:
        client.connect()
        client.send(*(Publish("t", b"x") for _ in range(50)))
        assert client.expect(Disconnect).reason == Reason.MESSAGE_RATE_TOO_HIGH


def test_mqtt_3_1_1_is_closed(strict: LiveNode) -> None:
    with RawMqtt(strict, Version.V3_1_1) as client:
        client.connect("old")
        client.send(*(Publish("t", b"x", 1, packet_id=each) for each in range(1, 51)))
        with pytest.raises(Gone):
            read_acks(client, 50)


def test_mqtt_subscriptions_beyond_the_rate_are_refused_one_by_one(strict: LiveNode) -> None:
    with RawMqtt(strict) as client:
        client.connect()
        reasons = client.subscribe(*(f"f/{each}" for each in range(6)))
        assert reasons[:3] == (0, 0, 0)
        assert Reason.QUOTA_EXCEEDED in reasons[3:]


def test_http_answers_429_and_says_when_to_come_back(strict: LiveNode, name: str) -> None:
    with httpx.Client(base_url=strict.http_url, auth=GUEST) as client:
        client.put(f"/v1/topics/{name}", json={}).raise_for_status()
        batch = {"messages": [{"value": "x"}] * 50}
        client.post(f"/v1/topics/{name}/messages/batch", json=batch).raise_for_status()
        refused = client.post(f"/v1/topics/{name}/messages", json={"value": "x"})
        assert (refused.status_code, refused.json()["code"]) == (429, "rate-limited")
        assert 40 <= int(refused.headers["retry-after"]) <= 50, "what it owes, at 1 a second"


# --- made to wait ---


def test_amqp_is_slowed_and_loses_nothing(slow: LiveNode, name: str) -> None:
    before = counted(slow, "messages", "slowed")
    with amqp(slow) as connection:
        channel = connection.channel()
        channel.queue_declare(name)
        publish_all(channel, name, 100)
        # Asked behind them: it is answered once they were let in.
        assert channel.queue_declare(name, passive=True).method.message_count == 100
    assert counted(slow, "messages", "slowed") > before


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
def test_mqtt_is_slowed_and_loses_nothing(slow: LiveNode, version: int) -> None:
    before = counted(slow, "messages", "slowed")
    with RawMqtt(slow, version) as client:
        client.connect("slowed")
        for each in range(1, 101):
            client.send(Publish("t", b"x", 1, packet_id=each))
        assert [client.expect(PubAck).packet_id for _ in range(100)] == list(range(1, 101))
    assert counted(slow, "messages", "slowed") > before


def test_another_client_goes_on_meanwhile(slow: LiveNode) -> None:
    with RawMqtt(slow) as fast, RawMqtt(slow) as other:
        fast.connect()
        other.connect()
        fast.send(*(Publish("t", b"x") for _ in range(2000)))  # ten seconds of its rate
        other.subscribe("mine")
        other.publish("mine", b"here")
        assert other.message().payload == b"here"


# --- log-ins and connections ---


def test_who_guesses_waits_and_others_do_not(strict: LiveNode) -> None:
    before = counted(strict, "logins", "refused")
    answers = [
        httpx.get(f"{strict.http_url}/v1/topics", auth=("nobody", f"guess {each}")).status_code
        for each in range(6)
    ]
    assert answers[:3] == [401, 401, 401]
    assert 429 in answers[3:]
    assert counted(strict, "logins", "refused") > before
    assert httpx.get(f"{strict.http_url}/v1/topics", auth=GUEST).status_code == 200


def test_connections_from_one_address(tmp_path: Path) -> None:
    config = "[rates]\nlimit_loopback = true\nconnections_per_min = 1\nconnections_burst = 2\n"
    config += 'over_limit = "refuse"\nsubscriptions_per_s = 0\n'
    (tmp_path / "braid.toml").write_text(config)
    with live_node(tmp_path / "data", config=tmp_path / "braid.toml") as node:
        with RawMqtt(node) as first, RawMqtt(node) as second:
            assert first.connect().reason == 0
            assert second.connect().reason == 0
        with RawMqtt(node) as third:
            assert third.connect().reason == Reason.CONNECTION_RATE_EXCEEDED
        with RawMqtt(node, Version.V3_1_1) as old, pytest.raises(Gone):
            old.connect("old")
        with pytest.raises(pika.exceptions.AMQPConnectionError) as refused:
            amqp(node)
        assert "connections from one address" in repr(refused.value)
        answer = httpx.get(f"{node.http_url}/v1/topics", auth=GUEST)
        assert (answer.status_code, answer.json()["code"]) == (429, "rate-limited")
        assert answer.headers["connection"] == "close"


def test_a_reload_changes_it_for_who_is_connected(tmp_path: Path) -> None:
    for node in started(tmp_path, "refuse", 1):
        with RawMqtt(node) as client, httpx.Client(base_url=node.http_url, auth=GUEST) as admin:
            client.connect()
            text = SETTINGS.format(over="refuse", rate=0)
            (tmp_path / "braid.toml").write_text(text)
            admin.post("/v1/config/reload").raise_for_status()
            client.send(*(Publish("t", b"x", 1, packet_id=each) for each in range(1, 51)))
            reasons = {client.expect(PubAck).reason for _ in range(50)}
            assert reasons == {Reason.NO_MATCHING_SUBSCRIBERS}
