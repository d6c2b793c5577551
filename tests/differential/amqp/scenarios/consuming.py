"""Consumers: tags, exclusivity, cancelling, priorities, prefetch, one active at a time."""

from typing import Any

from tests.differential.amqp import wire
from tests.differential.amqp.client import Channel, Client, Event, Observation
from tests.differential.amqp.scenarios import scenario
from tests.differential.amqp.scenarios.getting import filled


def bodies(events: list[Event]) -> list[str]:
    return [event.get("body", event["m"]) for event in events]


def qos(ch: Channel, count: int, whole_channel: bool = False) -> None:
    ch.ok("basic.qos", count=count, **{"global": whole_channel})


@scenario
def deliveries(c: Client) -> Observation:
    ch, q = filled(c, "abc")
    return [ch("basic.consume", queue=q, consumer_tag="t"), ch.take(3), ch.rest()]


@scenario
def server_named_tag(c: Client) -> Observation:
    ch, q = filled(c, "a")
    return [ch("basic.consume", queue=q), ch.take()]


@scenario
def no_ack(c: Client) -> Observation:
    ch, q = filled(c, "ab")
    ch.consume(q, no_ack=True)
    seen = ch.take(2)
    ch.send("basic.ack", tag=1)
    return [seen, ch.take()]


@scenario
def missing_queue(c: Client) -> Observation:
    return c.channel()("basic.consume", queue=c.name("q"), consumer_tag="t")


@scenario
def tag_twice_on_a_channel(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q, "same")
    return [ch("basic.consume", queue=q, consumer_tag="same"), ch.connection.rest()]


@scenario
def tag_on_two_channels(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q, "same")
    return ch.connection.channel()("basic.consume", queue=q, consumer_tag="same")


@scenario
def tag_reused_after_cancel(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q, "same")
    cancelled = ch("basic.cancel", consumer_tag="same")
    return [cancelled, ch("basic.consume", queue=q, consumer_tag="same")]


@scenario
def cancel_unknown_tag(c: Client) -> Observation:
    return c.channel()("basic.cancel", consumer_tag="nobody")


@scenario
def exclusive_refuses_a_second(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q, exclusive=True)
    other = ch.connection.channel()
    return other("basic.consume", queue=q, consumer_tag="second")


@scenario
def exclusive_refused_as_second(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q)
    other = ch.connection.channel()
    return other("basic.consume", queue=q, consumer_tag="second", exclusive=True)


@scenario
def exclusive_allows_get(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q, exclusive=True)
    return ch.connection.channel().get(q)


@scenario
def exclusive_again_after_cancel(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q, exclusive=True)
    ch.ok("basic.cancel", consumer_tag="t")
    return ch.connection.channel()("basic.consume", queue=q, consumer_tag="u", exclusive=True)


@scenario
def no_local_is_ignored(c: Client) -> Observation:
    ch, q = filled(c, "a")
    ch.consume(q, no_local=True)
    return bodies(ch.take())


@scenario
def round_robin(c: Client) -> Observation:
    ch, q = filled(c, "")
    others = [ch.connection.channel() for _ in range(3)]
    for number, other in enumerate(others):
        other.consume(q, f"t{number}")
    for body in "abcdef":
        ch.pub("", q, body)
    return [bodies(other.take(2)) for other in others]


@scenario
def two_consumers_of_one_channel(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q, "one")
    ch.consume(q, "two")
    for body in "abcd":
        ch.pub("", q, body)
    return [(event["consumer_tag"], event["tag"], event["body"]) for event in ch.take(4)]


@scenario
def cancel_keeps_unacked(c: Client) -> Observation:
    ch, q = filled(c, "ab")
    qos(ch, 1)
    ch.consume(q)
    ch.take()
    ch.ok("basic.cancel", consumer_tag="t")
    before = ch.depth(q)
    ch.send("basic.ack", tag=1)
    return [before, ch.rest(), ch.get(q)]


@scenario
def cancel_then_nack(c: Client) -> Observation:
    ch, q = filled(c, "a")
    ch.consume(q)
    ch.take()
    ch.ok("basic.cancel", consumer_tag="t")
    ch.send("basic.nack", tag=1, requeue=True)
    return ch.got(q)


@scenario
def cancelled_by_queue_delete(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q, "one")
    ch.consume(q, "two")
    deleted = ch.connection.channel()("queue.delete", queue=q)
    events = ch.take(2)
    return [deleted, sorted(events, key=lambda event: event["consumer_tag"]), ch.rest()]


@scenario
def cancelled_by_own_queue_delete(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q)
    ch.send("queue.delete", queue=q)
    return sorted(event["m"] for event in ch.take(2))


@scenario
def cancelled_by_queue_delete_without_the_capability(c: Client) -> Observation:
    ch = c.connect(capabilities={}).channel()
    q = ch.queue(c.name("q"))
    ch.consume(q)
    other = c.channel()
    return [other("queue.delete", queue=q), ch.rest(), ch("basic.cancel", consumer_tag="t")]


@scenario
def cancelled_tag_may_be_cancelled_again(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q)
    c.channel()("queue.delete", queue=q)
    return [ch.take(), ch("basic.cancel", consumer_tag="t")]


@scenario
def cancelled_by_expiry_of_the_owner(c: Client) -> Observation:
    """An exclusive queue's own consumers hear nothing; there is no one left to hear."""
    owner = c.channel()
    q = owner.queue(c.name("q"), exclusive=True)
    owner.consume(q)
    owner.send("queue.delete", queue=q)
    return sorted(event["m"] for event in owner.take(2))


@scenario
def basic_cancel_ok_from_the_client(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q)
    c.channel()("queue.delete", queue=q)
    ch.take()
    ch.send("basic.cancel-ok", consumer_tag="t")
    return [ch.rest(), ch.connection.rest()]


@scenario
def priority_first(c: Client) -> Observation:
    ch, q = filled(c, "")
    low, high = ch.connection.channel(), ch.connection.channel()
    for other, priority in ((low, 0), (high, 10)):
        qos(other, 2)
        other.consume(q, arguments={"x-priority": priority})
    for body in "abcd":
        ch.pub("", q, body)
    return [bodies(high.take(2)), bodies(low.take(2)), bodies(high.rest() + low.rest())]


@scenario
def priority_negative_is_below_none(c: Client) -> Observation:
    ch, q = filled(c, "")
    low, usual = ch.connection.channel(), ch.connection.channel()
    low.consume(q, arguments={"x-priority": -5})
    usual.consume(q)
    for body in "abc":
        ch.pub("", q, body)
    return [bodies(usual.take(3)), bodies(low.rest())]


@scenario
def priority_of_wrong_type(c: Client) -> Observation:
    ch, q = filled(c, "")
    return ch("basic.consume", queue=q, consumer_tag="t", arguments={"x-priority": "high"})


@scenario
def unknown_argument(c: Client) -> Observation:
    ch, q = filled(c, "")
    return ch("basic.consume", queue=q, consumer_tag="t", arguments={"x-what": 1})


@scenario
def prefetch_per_consumer(c: Client) -> Observation:
    ch, q = filled(c, "abcdef")
    qos(ch, 2)
    ch.consume(q, "one")
    first = bodies(ch.take(2)) + bodies(ch.rest())
    ch.consume(q, "two")
    second = bodies(ch.take(2)) + bodies(ch.rest())
    ch.send("basic.ack", tag=1)
    return [first, second, ch.take(), ch.rest()]


@scenario
def prefetch_is_fixed_at_consume(c: Client) -> Observation:
    ch, q = filled(c, "abcdef")
    qos(ch, 1)
    ch.consume(q, "one")
    first = bodies(ch.take(1))
    qos(ch, 3)
    more = bodies(ch.rest())
    ch.consume(q, "two")
    return [first, more, bodies(ch.take(3)), bodies(ch.rest())]


@scenario
def prefetch_global(c: Client) -> Observation:
    ch, q = filled(c, "abcdef")
    qos(ch, 3, whole_channel=True)
    ch.consume(q, "one")
    ch.consume(q, "two")
    first = bodies(ch.take(3)) + bodies(ch.rest())
    ch.send("basic.ack", tag=2, multiple=True)
    return [first, bodies(ch.take(2)), bodies(ch.rest())]


@scenario
def prefetch_per_consumer_then_global(c: Client) -> Observation:
    """Both hold: two each, three in all."""
    ch, q = filled(c, "abcdefgh")
    qos(ch, 2)
    qos(ch, 3, whole_channel=True)
    ch.consume(q, "one")
    first = bodies(ch.take(2)) + bodies(ch.rest())
    ch.consume(q, "two")
    return [first, bodies(ch.take(1)), bodies(ch.rest())]


@scenario
def prefetch_global_then_per_consumer(c: Client) -> Observation:
    """The second qos lifts the limit of the channel."""
    ch, q = filled(c, "abcdefgh")
    qos(ch, 3, whole_channel=True)
    qos(ch, 2)
    ch.consume(q, "one")
    first = bodies(ch.take(2)) + bodies(ch.rest())
    ch.consume(q, "two")
    return [first, bodies(ch.take(2)), bodies(ch.rest())]


@scenario
def prefetch_global_raised(c: Client) -> Observation:
    ch, q = filled(c, "abcdef")
    qos(ch, 1, whole_channel=True)
    ch.consume(q)
    first = bodies(ch.take(1)) + bodies(ch.rest())
    qos(ch, 3, whole_channel=True)
    return [first, bodies(ch.take(2)), bodies(ch.rest())]


@scenario
def prefetch_global_lifted(c: Client) -> Observation:
    ch, q = filled(c, "abcd")
    qos(ch, 1, whole_channel=True)
    ch.consume(q)
    first = bodies(ch.take(1)) + bodies(ch.rest())
    qos(ch, 0, whole_channel=True)
    return [first, bodies(ch.take(3))]


@scenario
def prefetch_global_lifted_by_per_consumer(c: Client) -> Observation:
    """Of a consumer that is there: it gets the rest at once."""
    ch, q = filled(c, "abcd")
    qos(ch, 1, whole_channel=True)
    ch.consume(q)
    first = bodies(ch.take(1)) + bodies(ch.rest())
    qos(ch, 1)
    return [first, bodies(ch.take(3))]


@scenario
def prefetch_global_lowered(c: Client) -> Observation:
    """It has more than it may: it gets nothing until that is less."""
    ch, q = filled(c, "abcdef")
    qos(ch, 3, whole_channel=True)
    ch.consume(q)
    first = bodies(ch.take(3)) + bodies(ch.rest())
    qos(ch, 1, whole_channel=True)
    ch.send("basic.ack", tag=2, multiple=True)
    second = bodies(ch.rest())
    ch.send("basic.ack", tag=3)
    return [first, second, bodies(ch.take(1)), bodies(ch.rest())]


@scenario
def prefetch_zero_is_no_limit(c: Client) -> Observation:
    ch, q = filled(c, "abcdefghij")
    qos(ch, 0)
    ch.consume(q)
    return bodies(ch.take(10))


@scenario
def prefetch_does_not_bind_no_ack(c: Client) -> Observation:
    ch, q = filled(c, "abcd")
    qos(ch, 1)
    ch.consume(q, no_ack=True)
    return bodies(ch.take(4))


@scenario
def prefetch_does_not_bind_get(c: Client) -> Observation:
    ch, q = filled(c, "abc")
    qos(ch, 1, whole_channel=True)
    return bodies([ch.get(q, no_ack=False) for _ in range(3)])


@scenario
def prefetch_freed_by_nack(c: Client) -> Observation:
    ch, q = filled(c, "ab")
    qos(ch, 1)
    ch.consume(q)
    first = ch.take()
    ch.send("basic.nack", tag=1, requeue=False)
    return [first, ch.take()]


@scenario
def requeue_comes_back_to_the_only_consumer(c: Client) -> Observation:
    ch, q = filled(c, "ab")
    qos(ch, 1)
    ch.consume(q)
    first = ch.take()
    ch.send("basic.reject", tag=1, requeue=True)
    return [first, ch.take()]


@scenario
def prefetch_size_is_refused(c: Client) -> Observation:
    ch = c.channel()
    return [ch("basic.qos", size=100), ch.connection.rest()]


@scenario
def single_active_consumer(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-single-active-consumer": True})
    one, two = ch.connection.channel(), ch.connection.channel()
    one.consume(q, "one")
    two.consume(q, "two")
    for body in "ab":
        ch.pub("", q, body)
    first = bodies(one.take(2)), bodies(two.rest())
    one.ok("basic.cancel", consumer_tag="one")
    ch.pub("", q, "c")
    return [first, bodies(two.take(1)), bodies(one.rest())]


@scenario
def single_active_consumer_gone_with_unacked(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-single-active-consumer": True})
    one, two = ch.connection.channel(), ch.connection.channel()
    one.consume(q, "one")
    two.consume(q, "two")
    for body in "ab":
        ch.pub("", q, body)
    one.take(2)
    one("channel.close", code=200)
    return two.take(2)


@scenario
def single_active_consumer_refuses_exclusive(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-single-active-consumer": True})
    return ch("basic.consume", queue=q, consumer_tag="t", exclusive=True)


@scenario
def single_active_consumer_ignores_priority(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-single-active-consumer": True})
    one, two = ch.connection.channel(), ch.connection.channel()
    one.consume(q, "one")
    two.consume(q, "two", arguments={"x-priority": 10})
    ch.pub("", q, "a")
    return [bodies(one.take()), bodies(two.rest())]


@scenario
def large_bodies_in_order(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.consume(q)
    for letter in "abc":
        ch.pub("", q, letter * 300_000)
    return bodies(ch.take(3))


@scenario
def consumer_of_another_connection(c: Client) -> Observation:
    ch, q = filled(c, "")
    other = c.channel()
    other.consume(q)
    ch.pub("", q, "a", message_id="m")
    return other.take()


@scenario
def redelivered_to_the_next_consumer(c: Client) -> Observation:
    ch, q = filled(c, "ab")
    ch.consume(q)
    ch.take(2)
    ch.connection.close()
    other = c.channel()
    other.depth_is(q, 2)
    other.consume(q)
    return other.take(2)


def _argument_of_consume(value: Any) -> Any:
    def tried(c: Client) -> Observation:
        ch, q = filled(c, "")
        return ch("basic.consume", queue=q, consumer_tag="t", arguments={"x-stream-offset": value})

    return tried


TABLE: dict[str, Any] = {
    "stream_offset_on_classic": _argument_of_consume("first"),
}


def answered_at_once(c: Client, *answers: tuple[str, int]) -> Observation:
    """Six messages are delivered, then answers for all up to a tag come in one piece."""
    ch = c.channel()
    q = ch.queue(c.name("q"))
    for body in "abcdef":
        ch.pub("", q, body)
    ch.consume(q)
    ch.take(6)
    payloads = [wire.method_payload(name, {"tag": tag, "multiple": True}) for name, tag in answers]
    number = ch.number
    ch.connection.raw(b"".join(wire.frame(wire.METHOD, number, each) for each in payloads))
    seen = ch.rest()
    if not seen:
        ch("channel.close", code=200)
    other = ch.connection.channel()
    other.depth_is(q, 6 - max(tag for _, tag in answers) if not seen else 4)
    return [seen, [(event["body"], event["redelivered"]) for event in left(other, q)]]


def left(ch: Channel, q: str) -> list[Any]:
    found = []
    while (event := ch.get(q))["m"] == "basic.get-ok":
        found.append(event)
    return found


@scenario
def acks_of_one_piece(c: Client) -> Observation:
    return answered_at_once(c, ("basic.ack", 1), ("basic.ack", 3), ("basic.ack", 4))


@scenario
def acks_of_one_piece_with_one_twice(c: Client) -> Observation:
    return answered_at_once(c, ("basic.ack", 2), ("basic.ack", 2), ("basic.ack", 4))


@scenario
def acks_of_one_piece_backwards(c: Client) -> Observation:
    return answered_at_once(c, ("basic.ack", 2), ("basic.ack", 1))


@scenario
def acks_of_one_piece_beyond_the_last(c: Client) -> Observation:
    return answered_at_once(c, ("basic.ack", 2), ("basic.ack", 9))


@scenario
def acks_of_one_piece_behind_a_nack(c: Client) -> Observation:
    return answered_at_once(c, ("basic.nack", 2), ("basic.ack", 1), ("basic.ack", 4))
