"""Answers to methods that were sent without waiting, and closes that cross: what amqp091-go and
amqplib rely on. The queues are durable: the broker has something to write before it answers."""

from typing import Any

from tests.differential.amqp import wire
from tests.differential.amqp.client import Channel, Client, Event, Observation
from tests.differential.amqp.scenarios import scenario

Asked = tuple[str, dict[str, Any]]


def asked_at_once(ch: Channel, *methods: Asked) -> None:
    for name, values in methods:
        ch.send(name, **values)


def events(ch: Channel, count: int) -> list[Event]:
    """The next events of a channel, whatever they are."""
    return [ch.connection.next(ch.number) for _ in range(count)]


def declare(queue: str) -> Asked:
    return "queue.declare", {"queue": queue, "durable": True}


def missing(c: Client) -> Asked:
    return "queue.declare", {"queue": c.name("missing"), "passive": True}


CLOSE: Asked = "channel.close", {"code": 200, "text": "done"}
CLOSE_CONNECTION = wire.frame(
    wire.METHOD, 0, wire.method_payload("connection.close", {"code": 200, "text": "done"})
)


@scenario
def get_behind_declare(c: Client) -> Observation:
    ch, q = c.channel(), c.name("q")
    asked_at_once(ch, declare(q), ("basic.get", {"queue": q}))
    return events(ch, 2)


@scenario
def everything_behind_declare(c: Client) -> Observation:
    ch, q = c.channel(), c.name("q")
    asked_at_once(
        ch,
        declare(q),
        ("queue.bind", {"queue": q, "exchange": "amq.direct", "routing_key": q}),
        ("basic.qos", {"count": 3}),
        ("confirm.select", {}),
        ("queue.purge", {"queue": q}),
        ("channel.flow", {"active": True}),
        ("queue.unbind", {"queue": q, "exchange": "amq.direct", "routing_key": q}),
        ("queue.delete", {"queue": q}),
    )
    return events(ch, 8)


@scenario
def delivery_behind_consume_ok_behind_declare(c: Client) -> Observation:
    ch, q = c.channel(), c.name("q")
    asked_at_once(ch, declare(q), ("basic.consume", {"queue": q, "consumer_tag": "t"}))
    ch.pub("", q, "a", delivery_mode=2)
    return events(ch, 3)


@scenario
def close_behind_declare(c: Client) -> Observation:
    ch, q = c.channel(), c.name("q")
    asked_at_once(ch, declare(q), CLOSE)
    return [events(ch, 2), ch("channel.open"), ch("basic.qos"), ch.rest()]


@scenario
def error_behind_declare(c: Client) -> Observation:
    ch, q = c.channel(), c.name("q")
    asked_at_once(ch, declare(q), missing(c))
    return [events(ch, 2), ch("channel.open"), ch("basic.qos"), ch.rest()]


@scenario
def tx_commit_behind_declare(c: Client) -> Observation:
    ch, q = c.channel(), c.name("q")
    asked_at_once(ch, ("tx.select", {}), declare(q))
    ch.pub("", q, "a", delivery_mode=2)
    asked_at_once(ch, ("tx.commit", {}))
    return [events(ch, 3), ch.got(q)]


@scenario
def deleted_with_a_consumer_on_the_same_channel(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), durable=True)
    ch.consume(q)
    ch.send("queue.delete", queue=q)
    return events(ch, 2)


@scenario
def deleted_with_several_consumers_and_asked_on(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), durable=True)
    for tag in "ab":
        ch.consume(q, tag)
    deleted = ch("queue.delete", queue=q)
    cancelled = sorted(event["consumer_tag"] for event in events(ch, 2))
    return [deleted, cancelled, ch("basic.qos"), ch.rest()]


@scenario
def both_close_a_channel(c: Client) -> Observation:
    ch = c.channel()
    asked_at_once(ch, missing(c), CLOSE)
    return [events(ch, 2), ch("channel.open"), ch("basic.qos"), ch.rest(), ch.connection.rest()]


@scenario
def both_close_a_channel_behind_declare(c: Client) -> Observation:
    ch, q = c.channel(), c.name("q")
    asked_at_once(ch, declare(q), missing(c), CLOSE)
    return [events(ch, 3), ch("channel.open"), ch("basic.qos"), ch.rest(), ch.connection.rest()]


@scenario
def both_close_a_channel_while_more_is_sent(c: Client) -> Observation:
    ch, q = c.channel(), c.name("q")
    asked_at_once(ch, missing(c))
    ch.pub("", q, "a")
    asked_at_once(ch, ("basic.get", {"queue": q}), CLOSE, ("basic.get", {"queue": q}))
    ch.pub("", q, "b")
    return [events(ch, 2), ch("channel.open"), ch("basic.qos"), ch.rest(), ch.connection.rest()]


@scenario
def both_close_many_times(c: Client) -> Observation:
    """It takes a while to open a channel again, and every number must be of use all the time."""
    connection = c.connect()
    seen = []
    for _ in range(20):
        ch = connection.channel(1)
        asked_at_once(ch, missing(c), CLOSE)
        seen.append([event["m"] for event in events(ch, 2)])
    return [seen, connection.rest()]


@scenario
def a_connection_closed_several_times(c: Client) -> Observation:
    """As by threads that share it. Each is answered, and who asked first closes the socket."""
    connection = c.connect()
    connection.raw(3 * CLOSE_CONNECTION)
    answers = [connection.next() for _ in range(3)]
    connection.raw(CLOSE_CONNECTION)
    return [answers, connection.next(), connection.rest()]


@scenario
def a_connection_closed_in_pieces_and_again(c: Client) -> Observation:
    """What comes behind a close is read frame by frame, wherever a piece of it ends."""
    ch = c.channel()
    data = CLOSE_CONNECTION + ch.message("", c.name("q"), "a") + CLOSE_CONNECTION
    for byte in data:
        ch.connection.raw(bytes([byte]))
    return [ch.connection.next(), ch.connection.next(), ch.connection.rest()]


@scenario
def both_close_a_connection(c: Client) -> Observation:
    connection = c.connect()
    opened = wire.frame(wire.METHOD, 0, wire.method_payload("connection.open", {}))
    connection.raw(opened + CLOSE_CONNECTION)
    return connection.ending()


@scenario
def a_close_ok_nobody_asked_for_behind_a_close(c: Client) -> Observation:
    connection = c.connect()
    close_ok = wire.frame(wire.METHOD, 0, wire.method_payload("connection.close-ok", {}))
    connection.raw(CLOSE_CONNECTION + close_ok)
    return connection.ending()


@scenario
def a_close_and_its_answer_on_a_channel_behind_a_close(c: Client) -> Observation:
    """Only those of the connection itself count."""
    ch = c.channel()
    connection = ch.connection
    close, close_ok = (
        wire.frame(wire.METHOD, ch.number, wire.method_payload(name, values))
        for name, values in (("connection.close", {"code": 200}), ("connection.close-ok", {}))
    )
    connection.raw(CLOSE_CONNECTION + close + close_ok)
    return [connection.next(), connection.rest()]
