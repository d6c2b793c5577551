"""One message, published over one protocol and received over another: every field arrives.

The table is ``crossing.py``: a protocol is a column that publishes and receives ``Message`` and
says what it has no words for. All ordered pairs of columns are run, so a new protocol is one more
class in ``COLUMNS`` and a new field one more row in ``FIELDS``.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pika
import pytest
from tests.gateways.crossing import (
    COLUMNS,
    FACTS,
    NAMED,
    Amqp,
    Client,
    Column,
    Http,
    Message,
    Mqtt5,
    Place,
    Queue,
    Refused,
)

from braidmq.testing.live import LiveNode, live_node

DELAY_MS = 300
HOUR_MS = 3_600_000
CLOCK_MS = 1000
"""How far the node's clock, which does not jump, may be from ours."""


def said(name: str, value: Any) -> Message:
    return replace(Message(), **{name: value})


FIELDS: dict[str, Message] = {
    "text": Message("grüße".encode()),
    "binary value": Message(bytes(range(256))),
    "empty value": Message(b""),
    "headers": Message(headers={"colour": "blue", "Größe": "XL", "empty": ""}),
    "priority": Message(priority=7),
    "key": Message(key="customer-5"),
    "key that is no text": Message(key=b"\xff\x00customer"),
    "ttl": Message(ttl_ms=HOUR_MS),
    **{name: said(name, "some-text") for name in NAMED if name != "user_id"},
    "user_id": Message(user_id="guest"),
    "all at once": Message(
        headers={"a": "b"},
        priority=3,
        key="k",
        ttl_ms=HOUR_MS,
        content_type="text/plain",
        content_encoding="utf-8",
        correlation_id="é",
        reply_to="r",
        message_id="m",
        type="t",
        app_id="a",
        user_id="guest",
    ),
}
"""Rows B1 and B6: what a publisher may say."""

NOTHING: dict[str, Any] = {
    each.name: each.default for each in fields(Message) if each.name != "headers"
}
NOTHING["headers"] = {}


def without(message: Message, unsaid: frozenset[str]) -> Message:
    """What is left of a message where some fields can't be said."""
    return replace(message, **{name: NOTHING[name] for name in unsaid})


def told(message: Message) -> dict[str, Any]:
    """What the delivery says, not the message."""
    return {name: getattr(message, name) for name in ("redelivered", *sorted(FACTS))}


Columns = dict[str, Column]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with live_node(tmp_path_factory.mktemp("data"), ws_port=0) as node:
        yield node


@pytest.fixture(scope="module")
def columns(node: LiveNode) -> Iterator[Columns]:
    made = {column.name: column(node) for column in COLUMNS}
    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        arguments = {"x-max-priority": 10}
        channel.queue_declare("crossing", durable=True, arguments=arguments)
        channel.queue_bind("crossing", "amq.topic", "crossing")
        http = made["http"]
        assert isinstance(http, Http)
        http.put("/v1/topics/spread", {"settings": {"partitions": 3}})
        channel.queue_declare("spread", durable=True)
        for topic in ("dying", "dying.dlq"):
            http.put(f"/v1/topics/{topic}", {"settings": {"partitions": 1}})
            channel.queue_declare(topic, durable=True)
        letters = {"dead_letter": {"topic": "dying.dlq", "expired": True}}
        http.put("/v1/topics/failing", {"settings": letters | TRIED_ONCE | {"partitions": 1}})
        http.put("/v1/topics/expiring", {"settings": letters | {"ttl_ms": 1, "partitions": 1}})
        for topic in ("dying", "failing", "expiring"):
            channel.queue_declare(topic, durable=True)
            channel.queue_bind(topic, "amq.topic", topic)
    yield made
    for column in made.values():
        column.close()


@pytest.fixture
def amqp(columns: Columns) -> Amqp:
    found = columns["amqp"]
    assert isinstance(found, Amqp)
    return found


@pytest.fixture
def http(columns: Columns) -> Http:
    found = columns["http"]
    assert isinstance(found, Http)
    return found


class Pair:
    """A writer and a reader, and where they meet."""

    def __init__(self, writer: Column, reader: Column) -> None:
        self.writer, self.reader = writer, reader
        in_tree = writer.in_tree and reader.name in ("mqtt3", "mqtt5")
        self.place = Place("in/the/tree", True) if in_tree else Place("crossing")
        self.unsaid = writer.cant_write | reader.cant_read

    def publish(self, message: Message) -> tuple[int, int]:
        """What the writer can say of it; between which times the broker saw it."""
        began_ms = time.time_ns() // 1_000_000
        self.writer.publish(self.place, without(message, self.writer.cant_write))
        return began_ms, time.time_ns() // 1_000_000

    def receive(self, *, give_back: bool = False) -> Message:
        return self.reader.receive(self.place, give_back=give_back)


PAIRS = [(writer.name, reader.name) for writer in COLUMNS for reader in COLUMNS]


@pytest.fixture(params=PAIRS, ids="{0[0]}-{0[1]}".format)
def silent_pair(request: pytest.FixtureRequest, columns: Columns) -> Pair:
    """Its reader does not listen yet."""
    writer, reader = request.param
    return Pair(columns[writer], columns[reader])


@pytest.fixture
def pair(silent_pair: Pair) -> Iterator[Pair]:
    with silent_pair.reader.listening(silent_pair.place):
        yield silent_pair


@pytest.mark.parametrize("what", FIELDS)
def test_every_field_arrives(pair: Pair, what: str) -> None:
    """What can't be said arrives as nothing, and the rest as it was."""
    pair.publish(FIELDS[what])
    received = without(pair.receive(), FACTS)
    assert received == without(FIELDS[what], pair.unsaid)


def test_every_delivery_says_what_the_broker_knows(pair: Pair, http: Http) -> None:
    """Row B6, and that nobody else says otherwise: what a publisher calls so is not a fact."""
    names = ("delivery-count", "offset", "timestamp-ms", "first-seen-ms")
    lies = {prefix + name: "9" for name in names for prefix in ("", "x-")}
    pair.publish(Message(b"at offset 0, if none was before"))
    pair.receive()
    began_ms, ended_ms = pair.publish(Message(headers=lies))
    first = pair.receive(give_back=True)
    stored = http.newest(pair.place.queue_of(pair.reader.name))
    again = pair.receive(give_back=True)
    last = pair.receive()
    assert began_ms - CLOCK_MS <= stored["timestamp_ms"] <= ended_ms + CLOCK_MS
    facts = Message(
        first_seen_ms=stored["timestamp_ms"],
        partition=stored["partition"],
        offset=stored["offset"],
    )
    unheard = pair.reader.cant_read
    assert [told(each) for each in (first, again, last)] == [
        told(without(replace(facts, redelivered=count > 1, delivery_count=count), unheard))
        for count in (1, 2, 3)
    ]


@pytest.mark.parametrize("writer", [column.name for column in COLUMNS])
def test_the_command_line_shows_all_of_it(
    columns: Columns, http: Http, node: LiveNode, writer: str
) -> None:
    """As the HTTP API names it."""
    sent = without(FIELDS["all at once"], columns[writer].cant_write)
    columns[writer].publish(Place("crossing"), sent)
    stored = http.newest("crossing")
    command = [sys.executable, "-m", "braidmq.cli", "consume", "crossing", "--group", "queue"]
    command += ["--json", "--count", "1", "--url", node.http_url]
    command += ["--amqp-port", str(node.ports["amqp_port"])]
    environment = {**os.environ, "BRAID_PASSWORD": "guest"}
    ran = subprocess.run(command, check=True, capture_output=True, env=environment)
    shown = json.loads(ran.stdout)
    for name in ("partition", "offset", "timestamp_ms"):
        assert shown[name] == stored[name]
    assert (shown["delivery_count"], shown["redelivered"]) == (1, False)
    wanted = {name: getattr(sent, name) for name in ("key", "priority", "headers", *NAMED)}
    assert {name: shown.get(name) or NOTHING[name] for name in wanted} == wanted


DYING, LETTERS = Place("dying"), Place("dying.dlq")
FATAL = Message(b"fatal", headers={"a": "b"}, content_type="text/plain")
TRIED_ONCE = {"retry": {"attempts": 1}}
KILLERS = ("http", "amqp", "client", "$queue", "mqtt5")
"""Who can reject."""
ERRORS = {"amqp": "", "mqtt5": "refused with 0x99"}
"""What those said who have no words of their own."""


def killed(pair: Pair, columns: Columns, http: Http, how: str) -> dict[str, str]:
    """What is said of a message that was published and given up."""
    if how == "time":
        pair.writer.publish(Place("expiring"), without(FATAL, pair.writer.cant_write))
        return {"topic": "expiring", "reason": "expired", "attempts": "0", "error": ""}
    if how == "attempts":
        pair.writer.publish(Place("failing"), without(FATAL, pair.writer.cant_write))
        http.give_up(Place("failing"), "not today")
        said = {"reason": "max-attempts", "attempts": "1", "error": "not today"}
        return {"topic": "failing", **said}
    killing = columns[how]
    assert isinstance(killing, Http | Amqp | Client | Queue | Mqtt5)
    pair.writer.publish(DYING, without(FATAL, pair.writer.cant_write))
    killing.kill(DYING, "no good")
    said = {"reason": "rejected", "attempts": "1", "error": ERRORS.get(how, "no good")}
    return {"topic": "dying", **said}


@pytest.mark.parametrize("how", [*KILLERS, "time", "attempts"])
def test_a_dead_letter_keeps_its_cause(
    silent_pair: Pair, columns: Columns, http: Http, how: str
) -> None:
    """Row D6: whichever protocol published it, whichever killed it, whichever reads it."""
    pair, began_ms = silent_pair, time.time_ns() // 1_000_000
    with pair.reader.listening(LETTERS):
        said = killed(pair, columns, http, how)
        received = without(pair.reader.receive(LETTERS), FACTS)
    stored = http.newest(said["topic"])
    place = {"partition": "0", "offset": str(stored["offset"]), "subscription": "queue"}
    if received.death is not None:
        died_ms = int(received.death.pop("time"))
        assert began_ms - CLOCK_MS <= died_ms <= time.time_ns() // 1_000_000 + CLOCK_MS
    assert received == without(replace(FATAL, death=said | place), pair.unsaid)


SPREAD = Place("spread")
"""A topic of three partitions."""


@pytest.mark.parametrize("partition", range(3))
def test_a_partition_that_is_named_is_where_the_message_is(
    silent_pair: Pair, partition: int
) -> None:
    """Row B1: whatever its key. Plain MQTT topics have no partitions."""
    pair = silent_pair
    if "partition" in pair.writer.cant_write:
        pytest.skip(f"{pair.writer.name} can't name a partition")
    wanted = Message(b"placed", partition=partition, key="k")
    with pair.reader.listening(SPREAD):
        pair.writer.publish(SPREAD, wanted)
        received = without(pair.reader.receive(SPREAD), FACTS - {"partition"})
    assert received == without(wanted, pair.reader.cant_read)


@pytest.mark.parametrize("name", ["http", "amqp", "client", "$queue"])
def test_a_partition_that_is_not_there_is_refused(columns: Columns, http: Http, name: str) -> None:
    with pytest.raises(Refused, match="partition 3"):
        columns[name].publish(SPREAD, Message(partition=3))
    columns[name].publish(SPREAD, Message(b"next"))
    assert http.receive(SPREAD).value == b"next"


@pytest.mark.parametrize("how", ["delay_ms", "deliver_at_ms"])
def test_a_delayed_message_arrives_in_its_time(pair: Pair, how: str) -> None:
    """Row E1."""
    began_ms = time.time_ns() // 1_000_000
    due_ms = began_ms + DELAY_MS
    message = Message(b"delayed", delay_ms=DELAY_MS)
    if how == "deliver_at_ms":
        message = Message(b"delayed", deliver_at_ms=due_ms)
    pair.publish(message)
    assert pair.receive().value == b"delayed"
    assert time.time_ns() // 1_000_000 >= due_ms


def test_a_message_that_outlived_its_time_is_not_delivered(silent_pair: Pair, http: Http) -> None:
    pair = silent_pair
    if pair.place.in_tree or "ttl_ms" in pair.writer.cant_write:
        pytest.skip("the pair has no queue to wait in, or no words for it")
    path = "/v1/topics/crossing/subscriptions/queue"
    expired = http.get(path)["expired"]
    pair.publish(Message(b"late", ttl_ms=1))
    while http.get(path)["expired"] == expired:
        pass
    pair.publish(Message(b"next"))
    with pair.reader.listening(pair.place):
        assert pair.receive().value == b"next"


def test_a_topic_made_over_http_is_a_queue_once_it_is_declared(http: Http, amqp: Amqp) -> None:
    place = Place("made-over-http")
    http.put("/v1/topics/made-over-http", {})
    http.publish(place, Message(b"before"))
    for _ in range(2):
        amqp.declare("made-over-http")
    http.publish(place, Message(b"after"))
    assert {amqp.receive(place).value for _ in range(2)} == {b"before", b"after"}


def test_one_message_reaches_consumers_of_all_protocols(
    columns: Columns, http: Http, amqp: Amqp
) -> None:
    """Each with a subscription of its own; the queue is one topic."""
    queue, place = columns["$queue"], Place("for-all")
    assert isinstance(queue, Queue)
    queue.publish(place, Message(b"first", key="k"))
    amqp.declare("for-all")
    http.put("/v1/topics/for-all/subscriptions/http-readers", {})
    queue.join("for-all", "mqtt-readers")
    writers = [columns[name] for name in ("http", "amqp", "client", "$queue")]
    for column in writers:
        column.publish(place, Message(column.name.encode(), headers={"by": column.name}))
    wanted = {b"first", *(column.name.encode() for column in writers)}
    assert {amqp.receive(place).value for _ in wanted} == wanted
    assert {http.receive(place, "http-readers").value for _ in wanted} == wanted
    assert {queue.next("for-all").value for _ in wanted} == wanted
