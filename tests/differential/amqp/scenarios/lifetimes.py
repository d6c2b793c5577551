"""TTL, dead letters and ``x-death``, overflow, priorities."""

from typing import Any

from tests.differential.amqp.client import Channel, Client, Observation
from tests.differential.amqp.scenarios import scenario


def dead_to(queue: str, **arguments: Any) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, **named}


def with_dead(c: Client, **arguments: Any) -> tuple[Channel, str, str]:
    """A channel, a queue with ``arguments``, and the queue its dead letters go to."""
    ch = c.channel()
    dead = ch.queue(c.name("dead"))
    return ch, ch.queue(c.name("q"), arguments=dead_to(dead, **arguments)), dead


def outcome(ch: Channel) -> list[Any]:
    """The confirm of the last message. RabbitMQ sends a nack of one as ``multiple`` too."""
    return [(event["m"], event.get("tag")) for event in ch.take()]


@scenario
def ttl_of_queue(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_message_ttl=100)
    ch.pub("", q, "a", message_id="m", headers={"h": 1})
    return [ch.got(dead), ch.get(q)]


@scenario
def ttl_of_message(c: Client) -> Observation:
    """The expiration is taken off the dead letter and kept in ``x-death``."""
    ch, q, dead = with_dead(c)
    ch.pub("", q, "a", expiration="100", message_id="m")
    return [ch.got(dead), ch.get(q)]


@scenario
def ttl_smaller_wins(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_message_ttl=60_000)
    ch.pub("", q, "a", expiration="50")
    return ch.got(dead)


@scenario
def ttl_zero_of_queue(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_message_ttl=0)
    ch.pub("", q, "a")
    return [ch.got(dead), ch.get(q)]


@scenario
def ttl_zero_of_queue_reaches_a_waiting_consumer(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_message_ttl=0)
    ch.consume(q)
    ch.pub("", q, "a")
    return [ch.take(), ch.get(dead)]


@scenario
def ttl_zero_of_message(c: Client) -> Observation:
    ch, q, dead = with_dead(c)
    ch.pub("", q, "a", expiration="0")
    return [ch.got(dead), ch.get(q)]


@scenario
def ttl_of_message_waits_for_the_head(c: Client) -> Observation:
    ch, q, dead = with_dead(c)
    ch.pub("", q, "long", expiration="400")
    ch.pub("", q, "short", expiration="20")
    first = ch.got(dead)
    return [first["body"], ch.got(dead)["body"]]


@scenario
def ttl_does_not_touch_unacked(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_message_ttl=300)
    ch.pub("", q, "a")
    ch.get(q, no_ack=False)
    quiet = ch.rest(0.6)
    early = ch.get(dead)
    ch.send("basic.nack", tag=1, requeue=True)
    return [quiet, early["m"], ch.got(dead)]


@scenario
def ttl_without_dead_letters(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-message-ttl": 50})
    ch.pub("", q, "a")
    return ch.depth_is(q, 0)


@scenario
def expiration_is_kept_when_delivered(c: Client) -> Observation:
    ch, q, _ = with_dead(c)
    ch.pub("", q, "a", expiration="60000")
    return ch.got(q)


@scenario
def rejected(c: Client) -> Observation:
    ch, q, dead = with_dead(c)
    ch.pub("", q, "a", message_id="m", delivery_mode=2)
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1)
    return ch.got(dead)


@scenario
def rejected_requeue_is_no_death(c: Client) -> Observation:
    ch, q, dead = with_dead(c)
    ch.pub("", q, "a")
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1, requeue=True)
    return [ch.got(q), ch.get(dead)]


@scenario
def nacked_multiple(c: Client) -> Observation:
    ch, q, dead = with_dead(c)
    for body in "abc":
        ch.pub("", q, body)
    for _ in "abc":
        ch.get(q, no_ack=False)
    ch.send("basic.nack", tag=2, multiple=True)
    ch.depth_is(dead, 2)
    return [ch.drain(dead), ch.depth(q)]


@scenario
def key_and_exchange_of_the_dead(c: Client) -> Observation:
    """Without a routing key of its own the message keeps the one it had."""
    ch = c.channel()
    dead, x = ch.queue(c.name("dead")), ch.exchange(c.name("dlx"), "topic")
    ch.bind(dead, x, "#")
    source = ch.exchange(c.name("x"), "fanout")
    q = ch.queue(c.name("q"), arguments={"x-dead-letter-exchange": x})
    ch.bind(q, source)
    ch.pub(source, "the.key", "a")
    ch.sync()
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1)
    return ch.got(dead)


@scenario
def cc_and_bcc_of_the_dead(c: Client) -> Observation:
    ch = c.channel()
    dead, x = ch.queue(c.name("dead")), ch.exchange(c.name("dlx"), "fanout")
    ch.bind(dead, x)
    q = ch.queue(c.name("q"), arguments={"x-dead-letter-exchange": x})
    ch.pub("", q, "a", headers={"CC": ["cc1", "cc2"], "BCC": ["bcc1"]})
    ch.sync()
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1)
    return ch.got(dead)


@scenario
def cc_is_used_for_dead_routing(c: Client) -> Observation:
    """With no key of its own, the dead letter goes to the CC keys as well."""
    ch = c.channel()
    x = ch.exchange(c.name("dlx"))
    first, second = ch.queue(c.name("d1")), ch.queue(c.name("d2"))
    q = ch.queue(c.name("q"), arguments={"x-dead-letter-exchange": x})
    ch.bind(first, x, q)
    ch.bind(second, x, "cc")
    ch.pub("", q, "a", headers={"CC": ["cc"]})
    ch.sync()
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1)
    return [ch.got(first), ch.got(second)]


@scenario
def cc_is_dropped_with_a_dead_key(c: Client) -> Observation:
    ch, q, dead = with_dead(c)
    ch.pub("", q, "a", headers={"CC": ["cc"], "h": 1})
    ch.sync()
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1)
    return ch.got(dead)


@scenario
def chain_of_two(c: Client) -> Observation:
    ch = c.channel()
    last = ch.queue(c.name("last"))
    middle = ch.queue(c.name("middle"), arguments=dead_to(last, x_message_ttl=50))
    first = ch.queue(c.name("first"), arguments=dead_to(middle))
    ch.pub("", first, "a", expiration="30")
    return ch.got(last)


@scenario
def retry_counts(c: Client) -> Observation:
    """The wait-and-retry loop everybody builds: rejected, expired, and so on."""
    ch = c.channel()
    work, wait = c.name("work"), c.name("wait")
    ch.queue(work, arguments=dead_to(wait))
    ch.queue(wait, arguments=dead_to(work, x_message_ttl=30))
    ch.pub("", work, "a", headers={"h": 1})
    ch.consume(work)
    seen = []
    for _ in range(3):
        (event,) = ch.take()
        seen.append(event)
        ch.send("basic.reject", tag=event["tag"])
    return [*seen, *ch.take()]


@scenario
def rejected_after_other_queue(c: Client) -> Observation:
    """The newest death is first; an older entry moves to the front when it happens again."""
    ch = c.channel()
    one, two = c.name("one"), c.name("two")
    ch.queue(one, arguments=dead_to(two))
    ch.queue(two, arguments=dead_to(one))
    ch.pub("", one, "a")
    tag = 0
    for q in (one, two, one):
        ch.depth_is(q, 1)
        tag = ch.get(q, no_ack=False)["tag"]
        ch.send("basic.reject", tag=tag)
    return ch.got(two)


@scenario
def cycle_of_expiry_is_broken(c: Client) -> Observation:
    """A message that comes back by expiry alone is dropped."""
    ch = c.channel()
    one, two = c.name("one"), c.name("two")
    ch.queue(one, arguments=dead_to(two, x_message_ttl=20))
    ch.queue(two, arguments=dead_to(one, x_message_ttl=20))
    ch.pub("", one, "a")
    ch.depth_is(one, 0)
    quiet = ch.rest(0.4)
    return [quiet, ch.depth(one), ch.depth(two)]


@scenario
def cycle_to_itself_is_broken(c: Client) -> Observation:
    ch = c.channel()
    q = c.name("q")
    ch.queue(q, arguments=dead_to(q, x_message_ttl=20))
    ch.pub("", q, "a")
    return ch.depth_is(q, 0)


@scenario
def cycle_by_reject_is_allowed(c: Client) -> Observation:
    ch = c.channel()
    q = c.name("q")
    ch.queue(q, arguments=dead_to(q))
    ch.pub("", q, "a")
    ch.consume(q)
    seen = []
    for _ in range(3):
        (event,) = ch.take()
        seen.append(event)
        ch.send("basic.reject", tag=event["tag"])
    return seen


@scenario
def dead_letter_exchange_missing(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-dead-letter-exchange": c.name("none")})
    ch.pub("", q, "a")
    ch.sync()
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1)
    return [ch.rest(), ch.depth(q)]


@scenario
def delete_and_purge_are_no_deaths(c: Client) -> Observation:
    ch, q, dead = with_dead(c)
    for body in "ab":
        ch.pub("", q, body)
    ch("queue.purge", queue=q)
    ch.pub("", q, "c")
    ch("queue.delete", queue=q)
    ch.rest()
    return ch.depth(dead)


@scenario
def x_death_of_the_publisher(c: Client) -> Observation:
    """A client may send ``x-death`` itself."""
    ch, q, dead = with_dead(c)
    death = {"queue": q, "reason": "rejected", "count": 7, "exchange": "", "routing-keys": ["k"]}
    ch.pub("", q, "a", headers={"x-death": [death]})
    ch.sync()
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1)
    return ch.got(dead)


@scenario
def max_length_drops_the_head(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_max_length=2)
    for body in "abcd":
        ch.pub("", q, body)
    ch.depth_is(dead, 2)
    return [ch.get(dead), ch.drain(dead), ch.drain(q)]


@scenario
def max_length_bytes_drops_the_head(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_max_length_bytes=10)
    for body in ("aaaa", "bbbb", "cc", "dddddd"):
        ch.pub("", q, body)
    ch.depth_is(dead, 2)
    return [ch.drain(dead), ch.drain(q)]


@scenario
def max_length_bytes_of_one_too_large(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_max_length_bytes=10)
    ch.pub("", q, "x" * 20)
    return [ch.got(dead)["body"], ch.depth(q)]


@scenario
def max_length_counts_ready_only(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_max_length=2)
    ch.pub("", q, "a")
    ch.pub("", q, "b")
    ch.get(q, no_ack=False)
    ch.get(q, no_ack=False)
    ch.pub("", q, "c")
    ch.pub("", q, "d")
    return [ch.depth_is(q, 2), ch.depth(dead)]


@scenario
def max_length_after_requeue(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_max_length=2)
    for body in "ab":
        ch.pub("", q, body)
    for _ in "ab":
        ch.get(q, no_ack=False)
    for body in "cd":
        ch.pub("", q, body)
    ch.send("basic.nack", tag=0, multiple=True, requeue=True)
    ch.depth_is(dead, 2)
    return [ch.drain(q), ch.drain(dead)]


@scenario
def max_length_zero(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_max_length=0)
    ch.pub("", q, "a")
    return [ch.got(dead)["body"], ch.depth(q)]


@scenario
def max_length_zero_with_a_consumer(c: Client) -> Observation:
    ch, q, _ = with_dead(c, x_max_length=0)
    ch.consume(q)
    ch.pub("", q, "a")
    return ch.take()


@scenario
def max_length_and_a_consumer_that_keeps_up(c: Client) -> Observation:
    """What a consumer waits for is never in the queue: many at once are no overflow."""
    ch, q, dead = with_dead(c, x_max_length=2)
    ch.consume(q, no_ack=True)
    for number in range(20):
        ch.pub("", q, str(number))
    return [[event["body"] for event in ch.take(20)], ch.depth(dead)]


@scenario
def max_length_and_a_consumer_with_little_room(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_max_length=2)
    ch.ok("basic.qos", count=3)
    ch.consume(q)
    ch.connection.raw(b"".join(ch.message("", q, str(number)) for number in range(8)))
    ch.depth_is(dead, 3)
    seen = [[event["body"] for event in ch.take(3)], ch.drain(dead)]
    ch.ok("basic.cancel", consumer_tag="t")
    return [*seen, ch.drain(q)]


@scenario
def reject_publish_and_a_consumer_that_keeps_up(c: Client) -> Observation:
    ch, q, _ = with_dead(c, x_max_length=2, x_overflow="reject-publish")
    other = c.channel()
    other.consume(q, no_ack=True)
    ch.ok("confirm.select")
    for number in range(20):
        ch.pub("", q, str(number))
    return [ch.settled(20), [event["body"] for event in other.take(20)]]


@scenario
def reject_publish_of_length_zero_and_a_consumer(c: Client) -> Observation:
    ch, q, _ = with_dead(c, x_max_length=0, x_overflow="reject-publish")
    other = c.channel()
    other.consume(q, no_ack=True)
    ch.ok("confirm.select")
    ch.pub("", q, "a")
    return [ch.settled(1), other.rest()]


@scenario
def reject_publish_nacks(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_max_length=2, x_overflow="reject-publish")
    ch.ok("confirm.select")
    seen = []
    for body in "abcd":
        ch.pub("", q, body)
        seen += outcome(ch)
    return [seen, ch.drain(q), ch.drain(dead)]


@scenario
def reject_publish_without_confirms(c: Client) -> Observation:
    ch, q, _ = with_dead(c, x_max_length=1, x_overflow="reject-publish")
    for body in "ab":
        ch.pub("", q, body)
    return [ch.rest(), ch.drain(q)]


@scenario
def reject_publish_of_one_of_two_queues(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"), "fanout")
    small = {"x-max-length": 1, "x-overflow": "reject-publish"}
    full, open_one = ch.queue(c.name("full"), arguments=small), ch.queue(c.name("open"))
    for q in (full, open_one):
        ch.bind(q, x)
    ch.ok("confirm.select")
    seen = []
    for body in "ab":
        ch.pub(x, "", body)
        seen += outcome(ch)
    return [seen, ch.drain(full), ch.drain(open_one)]


@scenario
def reject_publish_bytes(c: Client) -> Observation:
    ch, q, _ = with_dead(c, x_max_length_bytes=10, x_overflow="reject-publish")
    ch.ok("confirm.select")
    seen = []
    for body in ("x" * 8, "y" * 8, "z"):
        ch.pub("", q, body)
        seen += outcome(ch)
    return [seen, ch.drain(q)]


@scenario
def reject_publish_dead_letters(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_max_length=1, x_overflow="reject-publish-dlx")
    ch.ok("confirm.select")
    seen = []
    for body in "ab":
        ch.pub("", q, body)
        seen += outcome(ch)
    return [seen, ch.drain(q), ch.got(dead)]


@scenario
def reject_publish_goes_on_when_there_is_room(c: Client) -> Observation:
    ch, q, _ = with_dead(c, x_max_length=1, x_overflow="reject-publish")
    ch.ok("confirm.select")
    seen = []
    for body in "abc":
        ch.pub("", q, body)
        seen += outcome(ch)
        if body == "b":
            ch.get(q)
    return [seen, ch.drain(q)]


@scenario
def dead_letter_refused_by_a_full_queue(c: Client) -> Observation:
    ch = c.channel()
    small = {"x-max-length": 1, "x-overflow": "reject-publish"}
    dead = ch.queue(c.name("dead"), arguments=small)
    q = ch.queue(c.name("q"), arguments=dead_to(dead))
    for body in "ab":
        ch.pub("", q, body)
    for tag in (1, 2):
        ch.get(q, no_ack=False)
        ch.send("basic.reject", tag=tag)
        ch.depth_is(dead, 1)
    ch.rest()
    return [ch.drain(dead), ch.depth(q)]


@scenario
def both_lengths(c: Client) -> Observation:
    ch, q, dead = with_dead(c, x_max_length=3, x_max_length_bytes=10)
    for body in ("aaaaaa", "bb", "c", "d", "eeeeeeeee"):
        ch.pub("", q, body)
    ch.depth_is(dead, 3)
    return [ch.drain(dead), ch.drain(q)]


@scenario
def ttl_and_priorities(c: Client) -> Observation:
    """Only the head of the whole queue expires: a high priority shields the low ones."""
    ch, q, dead = with_dead(c, x_max_priority=3)
    ch.pub("", q, "high", priority=3)
    ch.pub("", q, "low", priority=1, expiration="50")
    quiet = ch.rest(0.3)
    return [quiet, ch.depth(q), ch.depth(dead), ch.drain(q), ch.got(dead)["body"]]


@scenario
def dead_through_a_headers_exchange(c: Client) -> Observation:
    ch = c.channel()
    x, dead = ch.exchange(c.name("x"), "headers"), ch.queue(c.name("dead"))
    ch.ok("queue.bind", queue=dead, exchange=x, arguments={"x-match": "any", "h": 1})
    arguments = {"x-dead-letter-exchange": x, "x-message-ttl": 30}
    q = ch.queue(c.name("q"), arguments=arguments)
    ch.pub("", q, "a", headers={"h": 1})
    return ch.got(dead)["body"]


@scenario
def dead_letters_overflow_too(c: Client) -> Observation:
    ch = c.channel()
    last = ch.queue(c.name("last"))
    dead = ch.queue(c.name("dead"), arguments=dead_to(last, x_max_length=1))
    q = ch.queue(c.name("q"), arguments=dead_to(dead, x_max_length=1))
    for body in "abc":
        ch.pub("", q, body)
    return [ch.got(last), ch.drain(dead), ch.drain(q)]


@scenario
def priorities(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-max-priority": 5})
    for body, priority in (("a0", 0), ("b3", 3), ("c5", 5), ("d9", 9), ("e3", 3), ("f1", 1)):
        ch.pub("", q, body, priority=priority)
    ch.pub("", q, "g-none")
    ch.sync()
    return ch.drain(q)


@scenario
def priority_ignored_without_the_argument(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    for body, priority in (("a", 0), ("b", 9)):
        ch.pub("", q, body, priority=priority)
    ch.sync()
    return ch.drain(q)


@scenario
def priority_is_kept_after_requeue(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-max-priority": 5})
    for body, priority in (("low", 1), ("high", 4)):
        ch.pub("", q, body, priority=priority)
    ch.sync()
    ch.get(q, no_ack=False)
    ch.pub("", q, "high2", priority=4)
    ch.send("basic.reject", tag=1, requeue=True)
    ch.sync()
    return [(seen["body"], seen["redelivered"]) for seen in (ch.get(q) for _ in range(3))]


@scenario
def priority_and_max_length_drop_the_head(c: Client) -> Observation:
    """And the head is the message with the highest priority."""
    ch, q, dead = with_dead(c, x_max_length=2, x_max_priority=5)
    for body, priority in (("p1", 1), ("p5", 5), ("p3", 3)):
        ch.pub("", q, body, priority=priority)
    ch.depth_is(dead, 1)
    return [ch.drain(q), ch.drain(dead)]


@scenario
def priority_consumer_gets_the_highest(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-max-priority": 5})
    for number in range(6):
        ch.pub("", q, str(number), priority=number)
    ch.sync()
    ch.ok("basic.qos", count=2)
    ch.consume(q)
    first = [event["body"] for event in ch.take(2)]
    ch.send("basic.ack", tag=0, multiple=True)
    return [first, [event["body"] for event in ch.take(2)]]


@scenario
def priority_queue_counts(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-max-priority": 5})
    for number in range(4):
        ch.pub("", q, str(number), priority=number)
    ch.sync()
    return [ch.get(q)["messages"], ch("queue.declare", queue=q, passive=True),
            ch("queue.purge", queue=q)]  # fmt: skip
