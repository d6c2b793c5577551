"""``basic.get``, and settling what was got: ack, nack, reject, recover."""

from tests.differential.amqp.client import Channel, Client, Observation
from tests.differential.amqp.scenarios import scenario


def filled(c: Client, bodies: str = "abc") -> tuple[Channel, str]:
    """A channel, and a queue with a message for each letter."""
    ch = c.channel()
    q = ch.queue(c.name("q"))
    for body in bodies:
        ch.pub("", q, body)
    ch.depth_is(q, len(bodies))
    return ch, q


def held(c: Client, bodies: str = "abc") -> tuple[Channel, str]:
    """The same, all got and not yet settled."""
    ch, q = filled(c, bodies)
    for _ in bodies:
        assert ch.get(q, no_ack=False)["m"] == "basic.get-ok"
    return ch, q


@scenario
def empty(c: Client) -> Observation:
    ch = c.channel()
    return ch.get(ch.queue(c.name("q")))


@scenario
def missing(c: Client) -> Observation:
    return c.channel().get(c.name("q"))


@scenario
def counts_go_down(c: Client) -> Observation:
    ch, q = filled(c)
    return [ch.get(q) for _ in range(4)]


@scenario
def tags_count_no_ack_gets_too(c: Client) -> Observation:
    ch, q = filled(c)
    return [ch.get(q, no_ack=flag)["tag"] for flag in (True, False, True)]


@scenario
def ack_of_no_ack_get(c: Client) -> Observation:
    ch, q = filled(c)
    ch.get(q, no_ack=True)
    ch.send("basic.ack", tag=1)
    return ch.take()


@scenario
def ack_unknown_tag(c: Client) -> Observation:
    ch = c.channel()
    ch.send("basic.ack", tag=7)
    return [ch.take(), ch.connection.rest()]


@scenario
def ack_twice(c: Client) -> Observation:
    ch, _ = held(c, "a")
    ch.send("basic.ack", tag=1)
    ch.send("basic.ack", tag=1)
    return ch.take()


@scenario
def ack_on_another_channel(c: Client) -> Observation:
    ch, _ = held(c, "a")
    other = ch.connection.channel()
    other.send("basic.ack", tag=1)
    return other.take()


@scenario
def ack_multiple(c: Client) -> Observation:
    ch, q = held(c, "abcd")
    ch.send("basic.ack", tag=3, multiple=True)
    ch.ok("basic.recover", requeue=True)
    return ch.drain(q)


@scenario
def ack_multiple_zero_is_all(c: Client) -> Observation:
    ch, q = held(c, "abc")
    ch.send("basic.ack", tag=0, multiple=True)
    ch.ok("basic.recover", requeue=True)
    return ch.drain(q)


@scenario
def ack_multiple_zero_of_nothing(c: Client) -> Observation:
    ch = c.channel()
    ch.send("basic.ack", tag=0, multiple=True)
    return [ch.rest(), ch("basic.qos")]


@scenario
def ack_zero(c: Client) -> Observation:
    ch, _ = held(c, "a")
    ch.send("basic.ack", tag=0)
    return ch.take()


@scenario
def ack_multiple_unknown_tag(c: Client) -> Observation:
    ch, _ = held(c, "a")
    ch.send("basic.ack", tag=9, multiple=True)
    return ch.take()


@scenario
def ack_multiple_with_a_hole(c: Client) -> Observation:
    ch, q = held(c, "abcd")
    ch.send("basic.ack", tag=2)
    ch.send("basic.ack", tag=3, multiple=True)
    ch.ok("basic.recover", requeue=True)
    return ch.drain(q)


@scenario
def ack_multiple_up_to_a_settled_tag(c: Client) -> Observation:
    ch, q = held(c, "abc")
    ch.send("basic.ack", tag=2)
    ch.send("basic.ack", tag=2, multiple=True)
    return [ch.rest(), ch("queue.declare", queue=q, passive=True)]


@scenario
def nack_requeues_with_the_flag(c: Client) -> Observation:
    ch, q = held(c, "a")
    ch.send("basic.nack", tag=1, requeue=True)
    return ch.got(q)


@scenario
def nack_drops(c: Client) -> Observation:
    ch, q = held(c, "a")
    ch.send("basic.nack", tag=1)
    ch.ok("basic.recover", requeue=True)
    return ch.get(q)


@scenario
def nack_multiple_requeues_in_order(c: Client) -> Observation:
    ch, q = held(c, "abcd")
    ch.send("basic.nack", tag=3, multiple=True, requeue=True)
    ch.sync()
    return [ch.get(q) for _ in range(4)]


@scenario
def nack_multiple_zero_is_all(c: Client) -> Observation:
    ch, q = held(c, "abc")
    ch.send("basic.nack", tag=0, multiple=True, requeue=True)
    ch.sync()
    return ch.drain(q)


@scenario
def nack_unknown_tag(c: Client) -> Observation:
    ch = c.channel()
    ch.send("basic.nack", tag=4, requeue=True)
    return ch.take()


@scenario
def nack_multiple_unknown_tag(c: Client) -> Observation:
    ch = c.channel()
    ch.send("basic.nack", tag=4, multiple=True)
    return ch.take()


@scenario
def reject_requeues_in_its_place(c: Client) -> Observation:
    ch, q = held(c, "abc")
    ch.send("basic.reject", tag=3, requeue=True)
    ch.send("basic.reject", tag=1, requeue=True)
    ch.sync()
    return [ch.get(q)["body"] for _ in range(2)]


@scenario
def reject_drops(c: Client) -> Observation:
    ch, q = held(c, "a")
    ch.send("basic.reject", tag=1)
    return [ch.rest(), ch.get(q)]


@scenario
def reject_unknown_tag(c: Client) -> Observation:
    ch = c.channel()
    ch.send("basic.reject", tag=4)
    return ch.take()


@scenario
def reject_tag_zero(c: Client) -> Observation:
    ch, _ = held(c, "a")
    ch.send("basic.reject", tag=0, requeue=True)
    return ch.take()


@scenario
def requeued_goes_before_what_waits(c: Client) -> Observation:
    ch, q = filled(c, "abcde")
    for _ in range(3):
        ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=2, requeue=True)
    ch.send("basic.reject", tag=1, requeue=True)
    ch.sync()
    return [(seen["body"], seen["redelivered"]) for seen in (ch.get(q) for _ in range(4))]


@scenario
def recover_requeue(c: Client) -> Observation:
    ch, q = held(c, "abc")
    recovered = ch("basic.recover", requeue=True)
    return [recovered, [ch.get(q) for _ in range(3)]]


@scenario
def recover_without_requeue(c: Client) -> Observation:
    ch, _ = held(c, "a")
    return [ch("basic.recover", requeue=False), ch.connection.rest()]


@scenario
def recover_async(c: Client) -> Observation:
    ch, q = held(c, "ab")
    ch.send("basic.recover-async", requeue=True)
    return [ch.rest(), ch.drain(q)]


@scenario
def recover_async_without_requeue(c: Client) -> Observation:
    ch, _ = held(c, "a")
    ch.send("basic.recover-async", requeue=False)
    return ch.connection.ending()


@scenario
def recover_nothing(c: Client) -> Observation:
    return c.channel()("basic.recover", requeue=True)


@scenario
def recover_to_a_consumer(c: Client) -> Observation:
    ch, q = filled(c, "abc")
    ch.consume(q)
    first = ch.take(3)
    ch.send("basic.recover", requeue=True)
    events = ch.take(4)
    return [first, sorted(event["m"] for event in events),
            [event for event in events if event["m"] == "basic.deliver"]]  # fmt: skip


@scenario
def channel_close_requeues(c: Client) -> Observation:
    ch, q = held(c, "abc")
    ch("channel.close", code=200)
    other = ch.connection.channel()
    other.depth_is(q, 3)
    return [other.get(q) for _ in range(3)]


@scenario
def channel_error_requeues(c: Client) -> Observation:
    ch, q = held(c, "abc")
    ch.send("basic.ack", tag=99)
    error = ch.take()
    other = ch.connection.channel()
    other.depth_is(q, 3)
    return [error, [other.get(q)["redelivered"] for _ in range(3)]]


@scenario
def connection_loss_requeues(c: Client) -> Observation:
    ch, q = held(c, "abc")
    ch.connection.close()
    other = c.channel()
    other.depth_is(q, 3)
    return [other.get(q) for _ in range(3)]


@scenario
def requeue_on_close_is_in_publish_order(c: Client) -> Observation:
    ch, q = filled(c, "abcdef")
    other = ch.connection.channel()
    for number in range(6):
        (ch if number % 2 else other).get(q, no_ack=False)
    ch("channel.close", code=200)
    other.depth_is(q, 3)
    other.send("basic.recover", requeue=True)
    other.reply()
    return other.drain(q)


@scenario
def settle_after_queue_delete(c: Client) -> Observation:
    ch, q = held(c, "a")
    ch("queue.delete", queue=q)
    ch.send("basic.ack", tag=1)
    return [ch.rest(), ch("basic.qos")]


@scenario
def nack_after_queue_delete(c: Client) -> Observation:
    ch, q = held(c, "a")
    ch("queue.delete", queue=q)
    ch.send("basic.nack", tag=1, requeue=True)
    return [ch.rest(), ch("basic.qos")]
