"""Declaring, redeclaring and deleting exchanges; what each type routes."""

from typing import Any

from tests.differential.amqp.client import Channel, Client, Observation
from tests.differential.amqp.scenarios import scenario

TABLE: dict[str, Any] = {}
BUILT_IN = ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"]


@scenario
def declare_each_type(c: Client) -> Observation:
    ch = c.channel()
    kinds = ("direct", "fanout", "topic", "headers")
    return [ch("exchange.declare", exchange=c.name(kind), type=kind) for kind in kinds]


@scenario
def redeclare_equal(c: Client) -> Observation:
    ch = c.channel()
    same = {"exchange": c.name("x"), "type": "topic", "durable": True}
    return [ch("exchange.declare", **same), ch("exchange.declare", **same)]


@scenario
def declare_unknown_type(c: Client) -> Observation:
    ch = c.channel()
    return [ch("exchange.declare", exchange=c.name("x"), type="x-none"), ch.connection.rest()]


@scenario
def declare_empty_type(c: Client) -> Observation:
    ch = c.channel()
    return ch("exchange.declare", exchange=c.name("x"), type="")


@scenario
def declare_reserved_name(c: Client) -> Observation:
    return c.channel()("exchange.declare", exchange="amq.mine", type="direct")


@scenario
def declare_default(c: Client) -> Observation:
    return c.channel()("exchange.declare", exchange="", type="direct", durable=True)


@scenario
def declare_built_in_as_it_is(c: Client) -> Observation:
    ch = c.channel()
    return ch("exchange.declare", exchange="amq.direct", type="direct", durable=True)


@scenario
def declare_built_in_otherwise(c: Client) -> Observation:
    return c.channel()("exchange.declare", exchange="amq.direct", type="fanout", durable=True)


@scenario
def passive_built_ins(c: Client) -> Observation:
    ch = c.channel()
    return [ch("exchange.declare", exchange=name, passive=True) for name in BUILT_IN]


@scenario
def passive_ignores_properties(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"), "fanout")
    return ch("exchange.declare", exchange=x, type="topic", passive=True, durable=True)


@scenario
def passive_default(c: Client) -> Observation:
    return c.channel()("exchange.declare", exchange="", type="direct", passive=True)


@scenario
def passive_missing(c: Client) -> Observation:
    return c.channel()("exchange.declare", exchange=c.name("x"), passive=True)


@scenario
def name_with_line_breaks(c: Client) -> Observation:
    ch = c.channel()
    declared = ch("exchange.declare", exchange=c.name("a\r\nb"), type="fanout")
    ch.exchange(c.name("ab"), "fanout")
    return [declared, ch("exchange.declare", exchange=c.name("a\nb"), passive=True)]


BASE = {"type": "direct", "durable": False, "auto_delete": False, "internal": False}
OTHERWISE: dict[str, dict[str, Any]] = {
    "type": {"type": "fanout"},
    "durable": {"durable": True},
    "auto_delete": {"auto_delete": True},
    "internal": {"internal": True},
    "alternate": {"arguments": {"alternate-exchange": "amq.fanout"}},
    "alternate_type": {"arguments": {"alternate-exchange": 5}},
    "unknown_argument": {"arguments": {"x-unknown": 5}},
}


def redeclared(c: Client, first: dict[str, Any], second: dict[str, Any]) -> Observation:
    ch = c.channel()
    x = c.name("x")
    return [
        ch("exchange.declare", exchange=x, **{**BASE, **first}),
        ch("exchange.declare", exchange=x, **{**BASE, **second}),
    ]


def _register(label: str, other: dict[str, Any]) -> None:
    TABLE[f"redeclare_adding_{label}"] = lambda c: redeclared(c, {}, other)
    TABLE[f"redeclare_dropping_{label}"] = lambda c: redeclared(c, other, {})


for _label, _other in OTHERWISE.items():
    _register(_label, _other)


@scenario
def redeclare_with_another_alternate(c: Client) -> Observation:
    one, two = ({"arguments": {"alternate-exchange": name}} for name in ("one", "two"))
    return redeclared(c, one, two)


@scenario
def delete_and_again(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"))
    deleted = [ch("exchange.delete", exchange=x) for _ in range(2)]
    return [deleted, ch("exchange.declare", exchange=x, passive=True)]


@scenario
def delete_built_in(c: Client) -> Observation:
    return c.channel()("exchange.delete", exchange="amq.topic")


@scenario
def delete_default(c: Client) -> Observation:
    return c.channel()("exchange.delete", exchange="")


@scenario
def delete_reserved_name_missing(c: Client) -> Observation:
    return c.channel()("exchange.delete", exchange="amq.none")


@scenario
def delete_if_unused(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x")), ch.queue(c.name("q"))
    ch.bind(q, x, "k")
    used = ch("exchange.delete", exchange=x, if_unused=True)
    ch("channel.open")
    ch.ok("queue.unbind", queue=q, exchange=x, routing_key="k")
    return [used, ch("exchange.delete", exchange=x, if_unused=True)]


@scenario
def delete_if_unused_as_destination(c: Client) -> Observation:
    ch = c.channel()
    x, y = ch.exchange(c.name("x"), "fanout"), ch.exchange(c.name("y"), "fanout")
    ch.ok("exchange.bind", destination=y, source=x)
    return [ch("exchange.delete", exchange=name, if_unused=True) for name in (y, x)]


@scenario
def delete_drops_bindings(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x"), "fanout"), ch.queue(c.name("q"))
    ch.bind(q, x)
    ch("exchange.delete", exchange=x)
    ch.exchange(x, "fanout")
    ch.ok("confirm.select")
    ch.pub(x, "", "a", mandatory=True)
    return ch.take(2)


@scenario
def auto_delete_after_last_unbind(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x"), "fanout", auto_delete=True), ch.queue(c.name("q"))
    ch.bind(q, x, "a")
    ch.bind(q, x, "b")
    seen = []
    for key in "ab":
        seen.append(ch("queue.unbind", queue=q, exchange=x, routing_key=key))
        seen.append(ch("exchange.declare", exchange=x, passive=True))
    return seen


@scenario
def auto_delete_when_queue_goes(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x"), "fanout", auto_delete=True), ch.queue(c.name("q"))
    ch.bind(q, x)
    ch("queue.delete", queue=q)
    return ch("exchange.declare", exchange=x, passive=True)


@scenario
def auto_delete_stays_until_bound(c: Client) -> Observation:
    connection = c.connect()
    x = connection.channel().exchange(c.name("x"), "fanout", auto_delete=True)
    connection.close()
    return c.channel()("exchange.declare", exchange=x, passive=True)


@scenario
def auto_delete_chain(c: Client) -> Observation:
    ch = c.channel()
    x, y = (ch.exchange(c.name(n), "fanout", auto_delete=True) for n in "xy")
    q = ch.queue(c.name("q"))
    ch.ok("exchange.bind", destination=y, source=x)
    ch.bind(q, y)
    ch("queue.delete", queue=q)
    gone = ch("exchange.declare", exchange=y, passive=True)
    ch("channel.open")
    return [gone, ch("exchange.declare", exchange=x, passive=True)]


@scenario
def auto_delete_destination_of_unbound_exchange(c: Client) -> Observation:
    """Being a destination is no use of an auto-delete exchange."""
    ch = c.channel()
    x, y = ch.exchange(c.name("x"), "fanout"), ch.exchange(c.name("y"), "fanout", auto_delete=True)
    ch.ok("exchange.bind", destination=y, source=x)
    ch.ok("exchange.unbind", destination=y, source=x)
    return ch("exchange.declare", exchange=y, passive=True)


@scenario
def internal_refuses_publish(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"), "fanout", internal=True)
    ch.pub(x, "k", "a")
    return [ch.take(), ch.connection.rest()]


@scenario
def internal_routes_from_another(c: Client) -> Observation:
    ch = c.channel()
    x, y = ch.exchange(c.name("x"), "fanout"), ch.exchange(c.name("y"), "fanout", internal=True)
    q = ch.queue(c.name("q"))
    ch.ok("exchange.bind", destination=y, source=x)
    ch.bind(q, y)
    ch.pub(x, "k", "a")
    return ch.got(q)


@scenario
def publish_to_missing(c: Client) -> Observation:
    ch = c.channel()
    ch.pub(c.name("missing"), "k", "a")
    return [ch.take(), ch.connection.rest()]


@scenario
def publish_to_deleted(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"))
    ch.ok("confirm.select")
    ch("exchange.delete", exchange=x)
    ch.pub(x, "k", "a")
    return ch.take(2)


@scenario
def direct_routing(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"), "direct")
    queues = [ch.queue(c.name(f"q{i}")) for i in range(3)]
    for q, key in zip([*queues, queues[0]], ["a", "a", "b", "b"], strict=True):
        ch.bind(q, x, key)
    for key in ("a", "b", "c", "", "A"):
        ch.pub(x, key, key)
    ch.sync()
    return [ch.drain(q) for q in queues]


@scenario
def fanout_routing(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"), "fanout")
    queues = [ch.queue(c.name(f"q{i}")) for i in range(3)]
    for q in queues:
        ch.bind(q, x, "ignored")
    ch.bind(queues[0], x, "twice")
    ch.pub(x, "other", "a")
    ch.sync()
    return [ch.drain(q) for q in queues]


TOPICS = ["#", "*", "a", "a.*", "a.#", "*.b", "#.b", "a.*.c", "a.#.c", "#.#", "*.*", "#.*", "*.#",
          "a.b.c", "a..b", "", ".", "a.", "*.", "#.a.#", "a.b#", "a*", "*.#.*"]  # fmt: skip
KEYS = ["", "a", "b", "a.b", "a.c", "a.b.c", "a.b.b.c", "a..b", ".", "a.", ".a", "b.a.b", "a.b#",
        "#", "*", "a*", "..", "x.y.z.w"]  # fmt: skip


def matches(c: Client, ch: Channel, exchange: str, patterns: list[str]) -> dict[str, list[str]]:
    """Which keys each pattern lets through."""
    queues = {pattern: ch.queue("", exclusive=True) for pattern in patterns}
    for pattern, q in queues.items():
        ch.bind(q, exchange, pattern)
    for key in KEYS:
        ch.pub(exchange, key, f"<{key}>")
    ch.sync()
    return {pattern: ch.drain(q) for pattern, q in queues.items()}


@scenario
def topic_table(c: Client) -> Observation:
    ch = c.channel()
    return matches(c, ch, ch.exchange(c.name("x"), "topic"), TOPICS)


@scenario
def topic_after_unbinding(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x"), "topic"), ch.queue(c.name("q"))
    for key in ("a.#", "a.*", "a.b"):
        ch.bind(q, x, key)
    for key in ("a.#", "a.b"):
        ch.ok("queue.unbind", queue=q, exchange=x, routing_key=key)
    for key in ("a.b", "a.b.c", "a"):
        ch.pub(x, key, key)
    ch.sync()
    return ch.drain(q)


@scenario
def topic_several_matches_one_copy(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x"), "topic"), ch.queue(c.name("q"))
    for key in ("#", "a.*", "*.b", "a.b"):
        ch.bind(q, x, key)
    ch.pub(x, "a.b", "once")
    ch.sync()
    return ch.drain(q)


@scenario
def default_exchange_routes_by_queue_name(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a")
    return ch.got(q)


@scenario
def default_exchange_bind(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    return ch("queue.bind", queue=q, exchange="", routing_key="k")


@scenario
def default_exchange_unbind(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    return ch("queue.unbind", queue=q, exchange="", routing_key=q)


@scenario
def default_exchange_as_source_and_destination(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"))
    source = ch("exchange.bind", destination=x, source="", routing_key="k")
    ch("channel.open")
    return [source, ch("exchange.bind", destination="", source=x, routing_key="k")]
