"""A message published over one protocol and given up over another: row D6, and D10.

Whichever they are, its dead letter is listed with where it stood, why it died, after how many
attempts, who gave it up, when, and what that one said; and it goes back as it was. What readers of
each protocol are told is in ``test_crossing.py``.
"""

import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from tests.gateways.crossing import COLUMNS, Column, Http, Message, Place
from tests.gateways.test_crossing import ERRORS, KILLERS

from braidmq.testing.live import LiveNode, live_node

DYING, DEAD = Place("dying"), Place("dying-dead")
ERROR = "no such order: \N{SNOWMAN}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    """Its queue ``dying`` sends the dead through an exchange to ``dying-dead``."""
    with live_node(tmp_path_factory.mktemp("data"), ws_port=0) as node:
        where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
        with pika.BlockingConnection(where) as connection:
            channel = connection.channel()
            channel.exchange_declare("dlx", "fanout", durable=True)
            channel.queue_declare(DEAD.name, durable=True)
            channel.queue_bind(DEAD.name, "dlx")
            arguments = {"x-dead-letter-exchange": "dlx"}
            channel.queue_declare(DYING.name, durable=True, arguments=arguments)
            channel.queue_bind(DYING.name, "amq.topic", DYING.name)
        yield node


@pytest.fixture(scope="module")
def columns(node: LiveNode) -> Iterator[dict[str, Any]]:
    made = {column.name: column(node) for column in COLUMNS}
    yield made
    for column in made.values():
        column.close()


@pytest.fixture
def http(columns: dict[str, Any]) -> Http:
    found = columns["http"]
    assert isinstance(found, Http)
    return found


def next_offset(http: Http, topic: str) -> int:
    offset: int = http.get(f"/v1/topics/{topic}")["partitions"][0]["next_offset"]
    return offset


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("killer", KILLERS)
@pytest.mark.parametrize("writer", [column.name for column in COLUMNS])
def test_a_dead_letter_is_listed_with_its_cause(
    columns: dict[str, Any], http: Http, writer: str, killer: str
) -> None:
    """Also behind an exchange, and no longer once somebody took it."""
    offset, began_ms = next_offset(http, DYING.name), now_ms()
    columns[writer].publish(DYING, Message(b"order 5"))
    columns[killer].kill(DYING, ERROR)
    (listed,) = http.get(f"/v1/topics/{DYING.name}/dead-letters")["letters"]
    assert began_ms - 1 <= listed["at_ms"] <= now_ms() + 1
    facts = {
        "topic": DYING.name,
        "partition": 0,
        "original_offset": offset,
        "reason": "rejected",
        "attempts": 1,
        "subscription": "queue",
        "queue": DEAD.name,
        "offset": next_offset(http, DEAD.name) - 1,
    }
    if said := ERRORS.get(killer, ERROR):
        facts["error"] = said
    assert facts.items() <= listed.items()
    path = f"/v1/topics/{DYING.name}/dead-letters/{listed['offset']}"
    assert http.get(path) == listed
    assert http.get(f"/v1/dead-letters?topic={DYING.name}")["letters"] == [listed]
    assert columns["amqp"].receive(DEAD).value == b"order 5"
    assert http.get(f"/v1/topics/{DYING.name}/dead-letters")["letters"] == []


@pytest.mark.parametrize("writer", [column.name for column in COLUMNS])
def test_a_returned_letter_is_as_it_was_and_says_nothing_of_its_death(
    columns: dict[str, Any], http: Http, writer: str
) -> None:
    column: Column = columns[writer]
    says = Message(b"order 6") if writer == "mqtt3" else Message(b"order 6", headers={"a": "b"})
    column.publish(DYING, says)
    columns["client"].kill(DYING, ERROR)
    done = http.post("/v1/dead-letters/return", {"topic": DYING.name})
    assert (done["count"], done["stayed_count"]) == (1, 0)
    got = columns["amqp"].receive(DYING)
    assert (got.value, got.headers) == (says.value, says.headers)
    assert (got.redelivered, got.delivery_count) == (False, 1)
