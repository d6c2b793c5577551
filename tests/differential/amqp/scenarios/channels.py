"""Opening, closing and reusing channels; flow; methods that are not what they seem."""

from tests.differential.amqp import wire
from tests.differential.amqp.client import Client, Observation
from tests.differential.amqp.scenarios import scenario


@scenario
def open_and_close(c: Client) -> Observation:
    connection = c.connect()
    ch = connection.channel()
    return [ch("channel.close", code=200, text="done"), ch("channel.open"), ch("basic.qos")]


@scenario
def highest_number(c: Client) -> Observation:
    return c.connect().channel(2047)("basic.qos")


@scenario
def tags_restart_after_reopening(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a")
    first = ch.get(q, no_ack=False)
    ch("channel.close", code=200)
    ch("channel.open")
    return [first, ch.got(q)]


@scenario
def reuse_after_an_error(c: Client) -> Observation:
    ch = c.channel()
    error = ch("queue.declare", queue=c.name("missing"), passive=True)
    return [error, ch("channel.open"), ch("queue.declare", queue="", exclusive=True)]


@scenario
def methods_behind_an_error_are_ignored(c: Client) -> Observation:
    connection = c.connect()
    ch = connection.channel(1)
    q = c.name("q")
    missing = {"queue": c.name("missing"), "passive": True}
    connection.raw(
        wire.frame(1, 1, wire.method_payload("queue.declare", missing))
        + wire.frame(1, 1, wire.method_payload("queue.declare", {"queue": q}))
    )
    error = ch.reply()
    other = connection.channel(2)
    return [error, ch.rest(), other("queue.declare", queue=q, passive=True)]


@scenario
def error_on_one_channel_leaves_others(c: Client) -> Observation:
    connection = c.connect()
    one, two = connection.channel(), connection.channel()
    return [one.get(c.name("missing")), two("basic.qos"), connection.rest()]


@scenario
def flow_on(c: Client) -> Observation:
    return c.channel()("channel.flow", active=True)


@scenario
def flow_off(c: Client) -> Observation:
    ch = c.channel()
    return [ch("channel.flow", active=False), ch.connection.rest()]


@scenario
def flow_ok_unasked(c: Client) -> Observation:
    ch = c.channel()
    ch.send("channel.flow-ok", active=True)
    return [ch.rest(), ch.connection.rest()]


@scenario
def close_ok_unasked(c: Client) -> Observation:
    ch = c.channel()
    ch.send("channel.close-ok")
    return [ch.rest(), ch.connection.rest()]


@scenario
def access_request(c: Client) -> Observation:
    ch = c.channel()
    return [ch("access.request", realm="/data", active=True), ch.connection.rest()]


@scenario
def many_channels(c: Client) -> Observation:
    connection = c.connect()
    channels = [connection.channel() for _ in range(100)]
    return [ch("basic.qos")["m"] for ch in channels].count("basic.qos-ok")


@scenario
def order_of_replies(c: Client) -> Observation:
    """Without a consumer: cancel or close right behind a consume upsets RabbitMQ 3.10."""
    ch = c.channel()
    q = c.name("q")
    ch.send("queue.declare", queue=q)
    ch.send("basic.qos", count=1)
    ch.send("queue.bind", queue=q, exchange="amq.direct", routing_key=q)
    ch.send("basic.get", queue=q)
    ch.send("queue.delete", queue=q)
    ch.send("channel.close", code=200)
    return [ch.reply() for _ in range(6)]


@scenario
def nowait_everything(c: Client) -> Observation:
    ch = c.channel()
    q, x, y = c.name("q"), c.name("x"), c.name("y")
    ch.send("exchange.declare", exchange=x, type="fanout", nowait=True)
    ch.send("exchange.declare", exchange=y, type="fanout", nowait=True)
    ch.send("queue.declare", queue=q, nowait=True)
    ch.send("exchange.bind", destination=y, source=x, nowait=True)
    ch.send("queue.bind", queue=q, exchange=y, nowait=True)
    ch.send("confirm.select", nowait=True)
    ch.send("basic.consume", queue=q, consumer_tag="t", nowait=True)
    ch.pub(x, "k", "a")
    seen = sorted(event["m"] for event in ch.take(2))
    ch.send("basic.cancel", consumer_tag="t", nowait=True)
    ch.send("exchange.unbind", destination=y, source=x, nowait=True)
    ch.send("queue.purge", queue=q, nowait=True)
    ch.send("queue.delete", queue=q, nowait=True)
    ch.send("exchange.delete", exchange=x, nowait=True)
    ch.send("exchange.delete", exchange=y, nowait=True)
    rest = ch.rest()
    return [seen, rest, ch("queue.declare", queue=q, passive=True)]


@scenario
def errors_of_nowait_methods_still_close(c: Client) -> Observation:
    ch = c.channel()
    ch.send("queue.declare", queue=c.name("missing"), passive=True, nowait=True)
    return ch.reply()


@scenario
def long_error_text_is_cut(c: Client) -> Observation:
    ch = c.channel()
    return ch("queue.declare", queue=c.name("m" * 240), passive=True)


@scenario
def names_of_255_bytes(c: Client) -> Observation:
    ch = c.channel()
    q, x = c.name("q" * 245), c.name("x" * 245)
    declared = [ch("queue.declare", queue=q), ch("exchange.declare", exchange=x, type="direct")]
    ch.bind(q, x, "k" * 255)
    ch.pub(x, "k" * 255, "a")
    return [declared, ch.got(q)]
