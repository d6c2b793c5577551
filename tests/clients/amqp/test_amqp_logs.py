"""What a node logs of its AMQP clients, and the trace of one of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from braidmq.testing.live import LiveNode, live_node

GUEST = ("guest", "guest")
SECRET = "s3cret-of-guest"


@pytest.fixture
def talker(tmp_path: Path) -> Iterator[LiveNode]:
    """A node that logs everything, as JSON."""
    config = tmp_path / "braid.toml"
    config.write_text('[log]\nformat = "json"\nlevel = "debug"\n')
    with live_node(tmp_path / "data", config=config) as node:
        yield node


def connect(node: LiveNode, password: str = "guest") -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            port=node.ports["amqp_port"], credentials=pika.PlainCredentials("guest", password)
        )
    )


def next_line(node: LiveNode, message: str, *words: str) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(node.wait_for_log(f'"message":"{message}"', *words))
    return line


def test_a_connection_from_its_login_to_its_end(talker: LiveNode, name: str) -> None:
    connection = connect(talker)
    opened = next_line(talker, "connection opened")
    assert (opened["user"], opened["namespace"], opened["level"]) == ("guest", "/", "debug")
    assert opened["peer"].startswith("127.0.0.1:")
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    created = next_line(talker, "topic created")
    assert (created["topic"], created["connection"]) == (name, opened["connection"])
    with pytest.raises(ChannelClosedByBroker):
        channel.queue_declare("nowhere", passive=True)
    error = next_line(talker, "channel error")
    assert error["channel"] == 1
    assert error["reason"].startswith("404 NOT_FOUND")
    connection.channel().queue_delete(name)
    assert next_line(talker, "topic deleted")["topic"] == name
    connection.close()
    closed = next_line(talker, "connection closed")
    assert (closed["reason"], closed["user"]) == ("the client closed it", "guest")


def test_a_refused_login_is_logged_without_its_password(talker: LiveNode) -> None:
    with pytest.raises(AMQPConnectionError):
        connect(talker, SECRET)
    refused = next_line(talker, "login refused")
    assert (refused["user"], refused["level"]) == ("guest", "warning")
    assert talker.stop() == 0
    assert not any(SECRET in line for line in talker.lines)


def test_dead_letters_are_logged_with_the_message(talker: LiveNode, name: str) -> None:
    with connect(talker) as connection:
        channel = connection.channel()
        channel.queue_declare(name)
        channel.basic_publish("", name, b"x")
        channel.basic_reject(channel.basic_get(name)[0].delivery_tag, requeue=False)
        died = next_line(talker, "messages given up")
    assert (died["topic"], died["first_offset"], died["reason"]) == (name, 0, "rejected")


def test_the_level_is_changed_over_http(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, httpx.Client(base_url=node.http_url) as client:
        assert client.get("/v1/log-level").status_code == 401
        assert client.get("/v1/log-level", auth=GUEST).json() == {"level": "info"}
        wrong = client.put("/v1/log-level", auth=GUEST, json={"level": "loud"})
        assert wrong.status_code == 400
        answer = client.put("/v1/log-level", auth=GUEST, json={"level": "error"})
        assert answer.json() == {"level": "error"}
        with pytest.raises(AMQPConnectionError):
            connect(node, SECRET)
        assert client.put("/v1/log-level", auth=GUEST, json={"level": "info"}).status_code == 200
        assert node.stop() == 0
    assert not [line for line in node.lines if "login refused" in line]
    assert [line for line in node.lines if "stopping" in line]


def test_a_trace_has_every_frame_of_one_connection_and_no_other(
    talker: LiveNode, name: str
) -> None:
    with connect(talker) as connection, connect(talker) as other:
        traced = next_line(talker, "connection opened")["connection"]
        url = f"{talker.http_url}/v1/connections/{traced}/trace"
        assert httpx.get(url, auth=GUEST).json() == {"connection": traced, "trace": False}
        assert httpx.put(url, auth=GUEST).json() == {"connection": traced, "trace": True}
        other.channel().queue_declare(f"{name}.other")
        channel = connection.channel()
        channel.queue_declare(name)
        body = b"b" * 300_000
        properties = pika.BasicProperties(message_id="m-1", headers={"h": 1})
        channel.basic_publish("", name, body, properties)
        assert channel.basic_get(name, auto_ack=True)[2] == body
        assert httpx.delete(url, auth=GUEST).json() == {"connection": traced, "trace": False}
        connection.channel().close()
    assert talker.stop() == 0
    lines = [json.loads(line) for line in talker.lines if '"logger":"braidmq.trace"' in line]
    assert {line["connection"] for line in lines} == {traced}
    assert [line["message"] for line in lines] == [
        "received channel.open",
        "sent channel.open-ok",
        "received queue.declare",
        "sent queue.declare-ok",
        "received basic.publish",
        "received content header",
        *["received content body"] * 3,
        "received basic.get",
        "sent basic.get-ok",
        "sent content header",
        *["sent content body"] * 3,
    ]
    assert lines[2]["arguments"]["queue"] == name
    assert lines[5]["properties"] == {"message_id": "m-1", "headers": {"h": 1}}
    assert lines[5]["body_bytes"] == sum(line["bytes"] for line in lines[6:9]) == len(body)


def test_a_connection_that_is_not_there_has_no_trace(talker: LiveNode) -> None:
    url = f"{talker.http_url}/v1/connections/amqp-999/trace"
    assert httpx.put(url, auth=GUEST).status_code == 404
    assert httpx.put(url).status_code == 401
