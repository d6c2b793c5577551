"""Direct reply-to: answers without a queue."""

from tests.differential.amqp.client import Client, Observation
from tests.differential.amqp.scenarios import scenario

REPLY_TO = "amq.rabbitmq.reply-to"


@scenario
def round_trip(c: Client) -> Observation:
    server, client = c.channel(), c.channel()
    q = server.queue(c.name("q"))
    consumed = client("basic.consume", queue=REPLY_TO, consumer_tag="t", no_ack=True)
    client.pub("", q, "question", reply_to=REPLY_TO, correlation_id="7")
    asked = server.got(q)
    server.pub("", asked["props"]["reply_to"], "answer", correlation_id="7", mandatory=True)
    (answer,) = client.take()
    ordinary = answer["routing_key"] == asked["props"]["reply_to"]
    return [consumed, asked, answer, ordinary, server.rest()]


@scenario
def needs_no_ack(c: Client) -> Observation:
    return c.channel()("basic.consume", queue=REPLY_TO, consumer_tag="t", no_ack=False)


@scenario
def only_once_a_channel(c: Client) -> Observation:
    ch = c.channel()
    ch.consume(REPLY_TO, "one", no_ack=True)
    return ch("basic.consume", queue=REPLY_TO, consumer_tag="two", no_ack=True)


@scenario
def publish_before_consuming(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "question", reply_to=REPLY_TO)
    return ch.take()


@scenario
def declare_passive(c: Client) -> Observation:
    ch = c.channel()
    return ch("queue.declare", queue=REPLY_TO, passive=True)


@scenario
def declare_finds_who_waits(c: Client) -> Observation:
    ch, other = c.channel(), c.channel()
    q = ch.queue(c.name("q"))
    ch.consume(REPLY_TO, no_ack=True)
    ch.pub("", q, "question", reply_to=REPLY_TO)
    address = ch.got(q)["props"]["reply_to"]
    there = other("queue.declare", queue=address, passive=True)
    ch.connection.send(0, "connection.close", code=200)
    ch.connection.next()
    gone = other("queue.declare", queue=address, passive=True)
    return [there, gone["m"], gone.get("code"), gone.get("class"), gone.get("method")]


@scenario
def answer_to_no_one(c: Client) -> Observation:
    server, client = c.channel(), c.channel()
    q = server.queue(c.name("q"))
    client.consume(REPLY_TO, no_ack=True)
    client.pub("", q, "question", reply_to=REPLY_TO)
    address = server.got(q)["props"]["reply_to"]
    client("channel.close", code=200)
    server.ok("confirm.select")
    server.pub("", address, "answer", mandatory=True)
    return server.take(2)


@scenario
def cancel_and_again(c: Client) -> Observation:
    ch = c.channel()
    ch.consume(REPLY_TO, no_ack=True)
    cancelled = ch("basic.cancel", consumer_tag="t")
    return [cancelled, ch("basic.consume", queue=REPLY_TO, consumer_tag="t", no_ack=True)]


@scenario
def get_from_it(c: Client) -> Observation:
    return c.channel().get(REPLY_TO)


@scenario
def confirmed_answer(c: Client) -> Observation:
    server, client = c.channel(), c.channel()
    q = server.queue(c.name("q"))
    client.consume(REPLY_TO, no_ack=True)
    client.pub("", q, "question", reply_to=REPLY_TO)
    address = server.got(q)["props"]["reply_to"]
    server.ok("confirm.select")
    server.pub("", address, "answer", mandatory=True)
    return [server.take(2), client.take()[0]["body"]]


@scenario
def other_reply_to_is_left_alone(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "question", reply_to="my-queue")
    return ch.got(q)["props"]
