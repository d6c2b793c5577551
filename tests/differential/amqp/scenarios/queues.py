"""Declaring, redeclaring, deleting and purging queues; who may, and how long they live."""

import time
from typing import Any

from tests.differential.amqp.client import Client, Observation
from tests.differential.amqp.scenarios import scenario
from tests.differential.amqp.wire import Typed

TABLE: dict[str, Any] = {}


@scenario
def declare_and_again(c: Client) -> Observation:
    ch = c.channel()
    q = c.name("q")
    return [ch("queue.declare", queue=q, durable=durable) for durable in (True, True)]


@scenario
def declare_counts(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    for body in "abc":
        ch.pub("", q, body)
    ch.depth_is(q, 3)  # RabbitMQ's declare may overtake what was published before it
    counts = [ch("queue.declare", queue=q)]
    ch.get(q, no_ack=False)
    counts.append(ch("queue.declare", queue=q))
    ch.ok("basic.qos", count=1)
    ch.consume(q)
    ch.take()
    return [*counts, ch("queue.declare", queue=q, passive=True)]


@scenario
def server_named(c: Client) -> Observation:
    ch = c.channel()
    one, two = (ch("queue.declare", queue="", exclusive=True) for _ in range(2))
    return [one, two, one["queue"] != two["queue"], len(one["queue"])]


@scenario
def last_declared_is_meant_by_no_name(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue("", exclusive=True)
    ch.pub("", q, "a")
    ch.pub("", q, "b")
    ch.sync()
    seen = [ch("basic.get", queue=""), ch("queue.purge", queue="")]
    seen.append(ch("basic.consume", queue="", consumer_tag="t"))
    return [*seen, ch("queue.delete", queue="")]


@scenario
def no_name_and_none_declared(c: Client) -> Observation:
    connection = c.connect()
    return [
        connection.channel()(name, queue="")
        for name in ("basic.get", "basic.consume", "queue.purge", "queue.delete")
    ]


@scenario
def no_name_declares_anew(c: Client) -> Observation:
    ch = c.channel()
    ch.queue(c.name("q"))
    return ch("queue.declare", queue="", exclusive=True)


@scenario
def passive_without_name_uses_the_last(c: Client) -> Observation:
    ch = c.channel()
    ch.queue(c.name("q"))
    return ch("queue.declare", queue="", passive=True)


@scenario
def passive_missing(c: Client) -> Observation:
    return c.channel()("queue.declare", queue=c.name("q"), passive=True)


@scenario
def passive_ignores_properties(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    arguments = {"x-message-ttl": 5}
    return ch("queue.declare", queue=q, passive=True, durable=True, arguments=arguments)


@scenario
def reserved_name(c: Client) -> Observation:
    return c.channel()("queue.declare", queue="amq.mine")


@scenario
def reserved_name_passive(c: Client) -> Observation:
    return c.channel()("queue.declare", queue="amq.mine", passive=True)


@scenario
def name_with_line_breaks(c: Client) -> Observation:
    ch = c.channel()
    reply = ch("queue.declare", queue=c.name("a\r\nb"), exclusive=True)
    return [reply, ch("queue.declare", queue=c.name("ab"), passive=True)]


FIRST: dict[str, Any] = {
    "x-message-ttl": 60_000,
    "x-expires": 60_000,
    "x-max-length": 10,
    "x-max-length-bytes": 1000,
    "x-overflow": "drop-head",
    "x-dead-letter-exchange": "amq.direct",
    "x-dead-letter-routing-key": "k",
    "x-max-priority": 5,
    "x-queue-mode": "default",
    "x-single-active-consumer": True,
    "x-queue-type": "classic",
    "x-unknown": "one",
    "x-queue-version": 1,
    "x-queue-master-locator": "min-masters",
}
SECOND: dict[str, Any] = {
    "x-message-ttl": 60_001,
    "x-expires": 60_001,
    "x-max-length": 11,
    "x-max-length-bytes": 1001,
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "amq.fanout",
    "x-dead-letter-routing-key": "l",
    "x-max-priority": 6,
    "x-queue-mode": "lazy",
    "x-single-active-consumer": False,
    "x-queue-type": "quorum",
    "x-unknown": "two",
    "x-queue-version": 2,
    "x-queue-master-locator": "client-local",
}
NEEDS = {"x-dead-letter-routing-key": {"x-dead-letter-exchange": "amq.direct"}}


def redeclared(c: Client, first: dict[str, Any], second: dict[str, Any]) -> Observation:
    connection = c.connect()
    q = c.name("q")
    seen = [connection.channel()("queue.declare", queue=q, **first)]
    seen.append(connection.channel()("queue.declare", queue=q, **second))
    return seen


def _argument(name: str) -> None:
    label = name.removeprefix("x-").replace("-", "_")
    base = NEEDS.get(name, {})
    one = {"durable": True, "arguments": {**base, name: FIRST[name]}}
    two = {"durable": True, "arguments": {**base, name: SECOND[name]}}
    none = {"durable": True, "arguments": base}
    TABLE[f"redeclare_with_other_{label}"] = lambda c: redeclared(c, one, two)
    TABLE[f"redeclare_without_{label}"] = lambda c: redeclared(c, one, none)
    TABLE[f"redeclare_adding_{label}"] = lambda c: redeclared(c, none, one)


for _name in FIRST:
    _argument(_name)


def _property(name: str) -> None:
    one: dict[str, Any] = {name: True}
    TABLE[f"redeclare_dropping_{name}"] = lambda c: redeclared(c, one, {})
    TABLE[f"redeclare_adding_{name}"] = lambda c: redeclared(c, {}, one)


for _name in ("durable", "auto_delete", "exclusive"):
    _property(_name)


@scenario
def redeclare_with_another_integer_type(c: Client) -> Observation:
    ch = c.channel()
    q = c.name("q")
    values = (Typed("I", 100), Typed("l", 100), Typed("b", 100), Typed("s", 100))
    return [
        ch("queue.declare", queue=q, arguments={"x-max-length": value, "x-message-ttl": value})
        for value in values
    ]


@scenario
def redeclare_arguments_in_another_order(c: Client) -> Observation:
    ch = c.channel()
    q = c.name("q")
    pairs = [("x-max-length", 5), ("x-message-ttl", 60_000)]
    return [ch("queue.declare", queue=q, arguments=dict(p)) for p in (pairs, pairs[::-1])]


INVALID: dict[str, dict[str, Any]] = {
    "ttl_negative": {"x-message-ttl": -1},
    "ttl_text": {"x-message-ttl": "10"},
    "ttl_float": {"x-message-ttl": 1.5},
    "ttl_boolean": {"x-message-ttl": True},
    "ttl_huge": {"x-message-ttl": 2**40},
    "expires_zero": {"x-expires": 0},
    "expires_negative": {"x-expires": -5},
    "expires_text": {"x-expires": "soon"},
    "expires_huge": {"x-expires": 2**40},
    "max_length_negative": {"x-max-length": -1},
    "max_length_text": {"x-max-length": "many"},
    "max_length_bytes_negative": {"x-max-length-bytes": -1},
    "overflow_unknown": {"x-overflow": "explode"},
    "overflow_number": {"x-overflow": 1},
    "dead_letter_exchange_number": {"x-dead-letter-exchange": 5},
    "dead_letter_key_number": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 5},
    "dead_letter_key_alone": {"x-dead-letter-routing-key": "k"},
    "dead_letter_exchange_missing": {"x-dead-letter-exchange": "no-such-exchange"},
    "max_priority_negative": {"x-max-priority": -1},
    "max_priority_256": {"x-max-priority": 256},
    "max_priority_zero": {"x-max-priority": 0},
    "max_priority_text": {"x-max-priority": "high"},
    "queue_mode_unknown": {"x-queue-mode": "busy"},
    "queue_mode_number": {"x-queue-mode": 1},
    "single_active_consumer_text": {"x-single-active-consumer": "yes"},
    "queue_type_unknown": {"x-queue-type": "heap"},
    "queue_type_number": {"x-queue-type": 1},
    "queue_version_3": {"x-queue-version": 3},
    "max_age_on_classic": {"x-max-age": "1D"},
    "delivery_limit_on_classic": {"x-delivery-limit": 3},
    "overflow_dlx_on_classic": {"x-overflow": "reject-publish-dlx"},
    "unknown_argument": {"x-what-is-this": "fine"},
}


def declared(c: Client, arguments: dict[str, Any], **properties: Any) -> Observation:
    ch = c.channel()
    return ch("queue.declare", queue=c.name("q"), arguments=arguments, **properties)


def _invalid(label: str, arguments: dict[str, Any]) -> None:
    TABLE[f"argument_{label}"] = lambda c: declared(c, arguments)


for _label, _arguments in INVALID.items():
    _invalid(_label, _arguments)


@scenario
def exclusive_refused_to_another_connection(c: Client) -> Observation:
    owner = c.channel()
    q = owner.queue(c.name("q"), exclusive=True)
    other = c.connect()
    tries: dict[str, dict[str, Any]] = {
        "queue.declare": {"exclusive": True},
        "basic.get": {},
        "basic.consume": {},
        "queue.purge": {},
        "queue.delete": {},
    }
    seen = {name: other.channel()(name, queue=q, **extra) for name, extra in tries.items()}
    seen["passive"] = other.channel()("queue.declare", queue=q, passive=True)
    seen["own channel"] = owner.connection.channel()("queue.declare", queue=q, exclusive=True)
    return seen


@scenario
def exclusive_takes_messages_of_others(c: Client) -> Observation:
    owner = c.channel()
    q = owner.queue(c.name("q"), exclusive=True)
    other = c.channel()
    other.pub("", q, "a")
    return owner.got(q)


@scenario
def exclusive_goes_with_its_connection(c: Client) -> Observation:
    owner = c.channel()
    q = owner.queue(c.name("q"), exclusive=True, durable=True)
    kept = owner.queue(c.name("kept"))
    owner.connection.send(0, "connection.close", code=200)
    closed = owner.connection.next()
    connection = c.connect()
    return [
        closed,
        connection.channel()("queue.declare", queue=q, passive=True),
        connection.channel()("queue.declare", queue=kept, passive=True),
    ]


@scenario
def exclusive_outlives_its_channel(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), exclusive=True)
    ch("channel.close", code=200)
    return ch.connection.channel()("queue.declare", queue=q, passive=True)


@scenario
def auto_delete_after_last_cancel(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), auto_delete=True)
    seen = []
    ch.consume(q, "one")
    ch.consume(q, "two")
    for tag in ("one", "two"):
        seen.append(ch("basic.cancel", consumer_tag=tag))
        seen.append(ch("queue.declare", queue=q, passive=True))
    return [seen, ch.rest()]


@scenario
def auto_delete_after_channel_close(c: Client) -> Observation:
    connection = c.connect()
    ch = connection.channel()
    q = ch.queue(c.name("q"), auto_delete=True)
    ch.consume(q)
    ch("channel.close", code=200)
    return connection.channel()("queue.declare", queue=q, passive=True)


@scenario
def auto_delete_stays_until_consumed(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), auto_delete=True)
    ch.pub("", q, "a")
    got = ch.got(q)["body"]
    ch.connection.close()
    return [got, c.channel()("queue.declare", queue=q, passive=True)]


@scenario
def delete_and_again(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a")
    ch.pub("", q, "b")
    return [ch("queue.delete", queue=q), ch("queue.delete", queue=q)]


@scenario
def delete_counts_ready_only(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    for body in "abc":
        ch.pub("", q, body)
    ch.get(q, no_ack=False)
    return ch("queue.delete", queue=q)


@scenario
def delete_if_empty(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a")
    full = ch("queue.delete", queue=q, if_empty=True)
    ch("channel.open")
    ch.get(q)
    return [full, ch("queue.delete", queue=q, if_empty=True)]


@scenario
def delete_if_empty_with_unacked(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a")
    ch.get(q, no_ack=False)
    return ch("queue.delete", queue=q, if_empty=True)


@scenario
def delete_if_unused(c: Client) -> Observation:
    connection = c.connect()
    ch, other = connection.channel(), connection.channel()
    q = ch.queue(c.name("q"))
    ch.consume(q)
    used = other("queue.delete", queue=q, if_unused=True)
    ch("basic.cancel", consumer_tag="t")
    return [used, ch("queue.delete", queue=q, if_unused=True)]


@scenario
def delete_if_unused_and_if_empty(c: Client) -> Observation:
    connection = c.connect()
    ch, other = connection.channel(), connection.channel()
    q = ch.queue(c.name("q"))
    ch.ok("basic.qos", count=1)
    ch.consume(q)
    for body in "ab":
        ch.pub("", q, body)
    ch.take()
    return other("queue.delete", queue=q, if_unused=True, if_empty=True)


@scenario
def purge_counts(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    for body in "abc":
        ch.pub("", q, body)
    ch.get(q, no_ack=False)
    purged = [ch("queue.purge", queue=q) for _ in range(2)]
    return [purged, ch("basic.recover", requeue=True), ch.depth_is(q, 1)]


@scenario
def purge_missing(c: Client) -> Observation:
    return c.channel()("queue.purge", queue=c.name("q"))


@scenario
def expires_unused(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-expires": 150})
    time.sleep(0.6)
    return ch("queue.declare", queue=q, passive=True)


@scenario
def expires_not_while_consumed(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-expires": 150})
    ch.consume(q)
    time.sleep(0.6)
    ch.pub("", q, "a")
    seen = ch.take()
    ch.ok("basic.cancel", consumer_tag="t")
    time.sleep(0.6)
    return [seen, ch("queue.declare", queue=q, passive=True)]


@scenario
def expires_put_off_by_get_and_declare(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-expires": 1000})
    seen = []
    for step in range(4):
        time.sleep(0.35)
        reply = ch.get(q) if step % 2 else ch("queue.declare", queue=q, passive=True)
        seen.append(reply["m"])
    return seen


@scenario
def expires_drops_messages_without_dead_lettering(c: Client) -> Observation:
    ch = c.channel()
    dead = ch.queue(c.name("dead"))
    arguments = {"x-expires": 150, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    q = ch.queue(c.name("q"), arguments=arguments)
    ch.pub("", q, "a")
    time.sleep(0.6)
    return ch.get(dead)
