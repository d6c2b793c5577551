"""Publishing: properties, bodies, returns, confirms."""

from typing import Any

from tests.differential.amqp.client import Client, Observation
from tests.differential.amqp.scenarios import scenario
from tests.differential.amqp.wire import Typed

EVERYTHING: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"h": "v"},
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "c-1",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "greeting",
    "user_id": "guest",
    "app_id": "differential",
    "cluster_id": "cluster",
}


def through(c: Client, body: str | bytes, **props: Any) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, body, **props)
    return ch.got(q)


@scenario
def all_properties(c: Client) -> Observation:
    return through(c, "a", **EVERYTHING)


@scenario
def no_properties(c: Client) -> Observation:
    return through(c, "a")


@scenario
def empty_values_are_kept(c: Client) -> Observation:
    return through(c, "a", content_type="", headers={}, priority=0, message_id="", timestamp=0)


@scenario
def delivery_modes(c: Client) -> Observation:
    return [through(c, "a", delivery_mode=mode) for mode in (1, 2)]


@scenario
def delivery_mode_zero(c: Client) -> Observation:
    return through(c, "a", delivery_mode=0)


@scenario
def delivery_mode_unknown(c: Client) -> Observation:
    return through(c, "a", delivery_mode=9)


@scenario
def priority_of_255(c: Client) -> Observation:
    return through(c, "a", priority=255)


@scenario
def header_types(c: Client) -> Observation:
    headers = {
        "text": "é", "true": True, "false": False, "octet": Typed("b", -5),
        "short": Typed("s", -500), "int": Typed("I", -70_000), "long": Typed("l", -(2**40)),
        "float": Typed("f", 0.5),
        "double": Typed("d", 0.25), "time": Typed("T", 1_700_000_000), "void": None,
        "bytes": b"\x00\xff", "decimal": Typed("D", (2, 314)), "table": {"a": {"b": 1}},
        "array": [1, "two", [3], {"four": 4}], "uoctet": Typed("B", 200),
        "ushort": Typed("u", 60_000), "uint": Typed("i", 4_000_000_000),
    }  # fmt: skip
    seen = through(c, "a", headers=headers)
    seen["props"]["headers"]["time"] = seen["props"]["headers"]["time"].replace("T:", "time ")
    return seen


@scenario
def header_keys_twice(c: Client) -> Observation:
    raw = b"\x01aI\x00\x00\x00\x01\x01aI\x00\x00\x00\x02"
    return through(c, "a", headers=raw)


@scenario
def large_headers(c: Client) -> Observation:
    headers = {f"key-{i:04}": "v" * 50 for i in range(1000)}
    seen = through(c, "a", headers=headers)
    found = seen["props"]["headers"]
    return [len(found), sorted(found) == sorted(headers), set(found.values()) == {"v" * 50}]


@scenario
def body_empty(c: Client) -> Observation:
    return through(c, "", content_type="x")


@scenario
def body_binary(c: Client) -> Observation:
    return through(c, b"\x00\x01\xce\xff")


@scenario
def body_of_many_frames(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "y" * 1_000_000)
    return [ch.got(q), ch.connection.sizes[ch.number]]


@scenario
def body_over_the_limit(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, b"z" * (134_217_728 + 1))
    return [ch.take(), ch.connection.rest()]


@scenario
def expiration_invalid(c: Client) -> Observation:
    connection = c.connect()
    seen = {}
    for value in ("soon", "-1", "1.5", "", " 5", "10 ", "99999999999"):
        ch = connection.channel()
        q = ch.queue(c.name("q"))
        ch.pub("", q, "a", expiration=value)
        seen[value] = ch("queue.declare", queue=q)["m"], ch.rest()
        if connection.ended:
            break
    return seen


@scenario
def expiration_invalid_reply(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a", expiration="soon")
    return ch.take()


@scenario
def expiration_negative_reply(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a", expiration="-1")
    return ch.take()


@scenario
def user_id_of_another(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a", user_id="somebody")
    return ch.take()


@scenario
def user_id_empty(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a", user_id="")
    return ch.take()


@scenario
def immediate(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a", immediate=True)
    return [ch.take(), ch.connection.rest()]


@scenario
def mandatory_unroutable(c: Client) -> Observation:
    ch = c.channel()
    ch.pub("", c.name("none"), "body", mandatory=True, **EVERYTHING)
    return [ch.take(), ch.rest()]


@scenario
def mandatory_routable(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a", mandatory=True)
    return [ch.got(q)["body"], ch.rest()]


@scenario
def mandatory_empty_body(c: Client) -> Observation:
    ch = c.channel()
    ch.pub("amq.topic", c.name("none"), mandatory=True)
    return ch.take()


@scenario
def unroutable_is_dropped(c: Client) -> Observation:
    ch = c.channel()
    ch.pub("", c.name("none"), "a")
    return ch.rest()


@scenario
def confirm_select_twice(c: Client) -> Observation:
    ch = c.channel()
    return [ch("confirm.select"), ch("confirm.select")]


@scenario
def confirm_one(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.ok("confirm.select")
    ch.pub("", q, "a")
    return [ch.take(), ch.depth(q)]


@scenario
def confirm_persistent_in_durable(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), durable=True)
    ch.ok("confirm.select")
    ch.pub("", q, "a", delivery_mode=2)
    return [ch.take(), ch.depth(q)]


@scenario
def confirm_unroutable(c: Client) -> Observation:
    ch = c.channel()
    ch.ok("confirm.select")
    ch.pub("", c.name("none"), "a")
    return ch.take()


@scenario
def confirm_many(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), durable=True)
    ch.ok("confirm.select")
    for number in range(50):
        ch.pub("", q, str(number), delivery_mode=1 + number % 2)
    outcome = ch.settled(50)
    return [len(outcome), sorted(set(outcome)), ch.depth(q)]


@scenario
def confirm_after_return(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.ok("confirm.select")
    seen = []
    for key in (c.name("none"), q, c.name("none")):
        ch.pub("", key, "a", mandatory=True)
        seen.append(ch.take(1 if key == q else 2))
    return seen


@scenario
def confirm_several_returns(c: Client) -> Observation:
    """Every return comes before the confirm of its message."""
    ch = c.channel()
    ch.ok("confirm.select")
    for number in range(5):
        ch.pub("", c.name("none"), str(number), mandatory=True)
    returned: list[str] = []
    early = []
    acked = 0
    while acked < 5:
        (event,) = ch.take()
        if event["m"] == "basic.return":
            returned.append(event["body"])
        elif event["m"] == "basic.ack":
            acked = event["tag"]
            early.append(len(returned) >= acked)
        else:
            return event
    return [returned, all(early)]


@scenario
def confirm_counts_from_select(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "before")
    ch.ok("confirm.select")
    ch.pub("", q, "after")
    return ch.take()


@scenario
def confirm_of_fanout(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"), "fanout")
    queues = [ch.queue(c.name(f"q{i}"), durable=bool(i % 2)) for i in range(4)]
    for q in queues:
        ch.bind(q, x)
    ch.ok("confirm.select")
    ch.pub(x, "", "a", delivery_mode=2)
    return [ch.take(), [ch.depth(q) for q in queues]]


@scenario
def confirm_restarts_with_the_channel(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.ok("confirm.select")
    ch.pub("", q, "a")
    seen = ch.take()
    ch("channel.close", code=200)
    ch("channel.open")
    ch.pub("", q, "b")
    quiet = ch.rest()
    ch.ok("confirm.select")
    ch.pub("", q, "c")
    return [seen, quiet, ch.take()]


@scenario
def confirm_unknown_exchange_closes(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.ok("confirm.select")
    ch.pub("", q, "a")
    first = ch.take()
    ch.pub(c.name("missing"), "k", "b")
    return [first, ch.take()]


@scenario
def order_is_kept(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    for number in range(200):
        ch.pub("", q, str(number))
    ch.sync()
    return ch.drain(q) == [str(number) for number in range(200)]
