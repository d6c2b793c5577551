"""``x-queue-type: quorum`` as its clients see it; ``x-queue-type: stream`` where it refuses."""

from typing import Any

from tests.differential.amqp.client import Channel, Client, Observation
from tests.differential.amqp.scenarios import scenario

TABLE: dict[str, Any] = {}


def quorum(c: Client, **arguments: Any) -> tuple[Channel, str]:
    ch = c.channel()
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    everything = {"x-queue-type": "quorum", **named}
    return ch, ch.queue(c.name("q"), durable=True, arguments=everything)


@scenario
def publish_and_get(c: Client) -> Observation:
    ch, q = quorum(c)
    ch.ok("confirm.select")
    ch.pub("", q, "a", message_id="m")
    return [ch.take(), ch.get(q, no_ack=False), ch.get(q)]


@scenario
def delivery_count(c: Client) -> Observation:
    ch, q = quorum(c)
    ch.pub("", q, "a", headers={"h": 1})
    ch.consume(q)
    seen = []
    for _ in range(3):
        (event,) = ch.take()
        seen.append(event)
        ch.send("basic.nack", tag=event["tag"], requeue=True)
    return seen


@scenario
def delivery_limit(c: Client) -> Observation:
    ch = c.channel()
    dead = ch.queue(c.name("dead"))
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 2,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    q = ch.queue(c.name("q"), durable=True, arguments=arguments)
    ch.pub("", q, "a")
    ch.consume(q)
    seen = []
    for _ in range(3):
        (event,) = ch.take()
        seen.append((event["tag"], event["redelivered"], event["props"]))
        ch.send("basic.reject", tag=event["tag"], requeue=True)
    return [seen, ch.got(dead), ch.rest()]


@scenario
def delivery_limit_without_dead_letters(c: Client) -> Observation:
    ch, q = quorum(c, x_delivery_limit=1)
    ch.pub("", q, "a")
    ch.consume(q)
    tags = []
    for _ in range(2):
        (event,) = ch.take()
        tags.append(event["tag"])
        ch.send("basic.reject", tag=event["tag"], requeue=True)
    return [tags, ch.rest(0.3), ch.depth(q)]


@scenario
def count_after_channel_close(c: Client) -> Observation:
    ch, q = quorum(c)
    ch.pub("", q, "a")
    ch.consume(q)
    ch.take()
    ch("channel.close", code=200)
    other = ch.connection.channel()
    other.consume(q)
    return other.take()


@scenario
def rejected(c: Client) -> Observation:
    ch = c.channel()
    dead = ch.queue(c.name("dead"))
    arguments = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    q = ch.queue(c.name("q"), durable=True, arguments=arguments)
    ch.pub("", q, "a")
    ch.consume(q)
    ch.take()
    ch.send("basic.reject", tag=1)
    return ch.got(dead)


@scenario
def prefetch(c: Client) -> Observation:
    ch, q = quorum(c)
    for body in "abcd":
        ch.pub("", q, body)
    ch.ok("basic.qos", count=2)
    ch.consume(q)
    first = [event["body"] for event in ch.take(2)]
    quiet = ch.rest()
    ch.send("basic.ack", tag=2, multiple=True)
    return [first, quiet, [event["body"] for event in ch.take(2)]]


@scenario
def global_prefetch_is_refused(c: Client) -> Observation:
    ch, q = quorum(c)
    ch.ok("basic.qos", count=2, **{"global": True})
    return [ch("basic.consume", queue=q, consumer_tag="t"), ch.connection.rest()]


@scenario
def max_length(c: Client) -> Observation:
    ch, q = quorum(c, x_max_length=2)
    ch.ok("confirm.select")
    for body in "abcd":
        ch.pub("", q, body)
    return [ch.settled(4), ch.depth_is(q, 2), ch.drain(q)]


@scenario
def purge_and_delete(c: Client) -> Observation:
    ch, q = quorum(c)
    ch.ok("confirm.select")
    for body in "abc":
        ch.pub("", q, body)
    ch.settled(3)
    purged = ch("queue.purge", queue=q)
    ch.pub("", q, "d")
    ch.take()
    return [purged, ch("queue.delete", queue=q)["m"]]


@scenario
def cancelled_by_delete(c: Client) -> Observation:
    ch, q = quorum(c)
    ch.consume(q)
    return [c.channel()("queue.delete", queue=q), ch.take()]


@scenario
def exclusive_consumer(c: Client) -> Observation:
    ch, q = quorum(c)
    ch.consume(q, exclusive=True)
    return ch.connection.channel()("basic.consume", queue=q, consumer_tag="u")


@scenario
def single_active_consumer(c: Client) -> Observation:
    ch, q = quorum(c, x_single_active_consumer=True)
    one, two = ch.connection.channel(), ch.connection.channel()
    one.consume(q, "one")
    two.consume(q, "two")
    ch.pub("", q, "a")
    seen = [event["body"] for event in one.take()]
    one.send("basic.ack", tag=1)
    one.ok("basic.cancel", consumer_tag="one")
    ch.pub("", q, "b")
    return [seen, [event["body"] for event in two.take()]]


@scenario
def message_ttl(c: Client) -> Observation:
    ch, q = quorum(c, x_message_ttl=50)
    ch.pub("", q, "a")
    return [ch.rest(0.3), ch.get(q)]


@scenario
def message_ttl_dead_letters(c: Client) -> Observation:
    ch = c.channel()
    dead = ch.queue(c.name("dead"))
    arguments = {
        "x-queue-type": "quorum",
        "x-message-ttl": 50,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    q = ch.queue(c.name("q"), durable=True, arguments=arguments)
    ch.pub("", q, "a")
    return ch.got(dead)


@scenario
def requeued_goes_behind_what_waits(c: Client) -> Observation:
    """Unlike in a classic queue."""
    return requeued(*quorum(c))


@scenario
def requeued_with_a_delivery_limit(c: Client) -> Observation:
    return requeued(*quorum(c, x_delivery_limit=5))


def requeued(ch: Channel, q: str) -> Observation:
    """Two of four are requeued together; then what comes, and what comes after that."""
    ch.ok("confirm.select")
    for body in "abcd":
        ch.pub("", q, body)
    ch.settled(4)
    ch.ok("basic.qos", count=2)
    ch.consume(q)
    first = [event["body"] for event in ch.take(2)]
    ch.send("basic.nack", tag=2, multiple=True, requeue=True)
    second = [(event["body"], event["redelivered"]) for event in ch.take(2)]
    ch.send("basic.ack", tag=4, multiple=True)
    return [first, second, [(event["body"], event["redelivered"]) for event in ch.take(2)]]


@scenario
def got_again(c: Client) -> Observation:
    ch, q = quorum(c)
    ch.ok("confirm.select")
    ch.pub("", q, "a")
    ch.take()
    first = ch.get(q, no_ack=False)
    ch.send("basic.nack", tag=1, requeue=True)
    return [first, ch.got(q)]


@scenario
def reject_publish_nacks(c: Client) -> Observation:
    """How many it takes before the first nack is RabbitMQ's secret; that it comes is not."""
    ch, q = quorum(c, x_max_length=1, x_overflow="reject-publish")
    ch.ok("confirm.select")
    for number in range(20):
        ch.pub("", q, str(number))
        (event,) = ch.take()
        if event["m"] != "basic.ack":
            return event["m"]
    return "never"


@scenario
def delete_if_unused(c: Client) -> Observation:
    ch, q = quorum(c)
    return [ch("queue.delete", queue=q, if_unused=True), ch.connection.rest()]


@scenario
def delete_if_empty(c: Client) -> Observation:
    ch, q = quorum(c)
    return [ch("queue.delete", queue=q, if_empty=True), ch.connection.rest()]


@scenario
def ack_multiple(c: Client) -> Observation:
    ch, q = quorum(c)
    for body in "abc":
        ch.pub("", q, body)
    ch.consume(q)
    ch.take(3)
    ch.send("basic.ack", tag=2, multiple=True)
    ch.ok("basic.cancel", consumer_tag="t")
    ch.send("basic.nack", tag=3, requeue=True)
    return ch.got(q)


@scenario
def redeclare_as_classic(c: Client) -> Observation:
    ch, q = quorum(c)
    return ch("queue.declare", queue=q, durable=True)


@scenario
def redeclare_with_another_delivery_limit(c: Client) -> Observation:
    ch, q = quorum(c, x_delivery_limit=3)
    other = {"x-queue-type": "quorum", "x-delivery-limit": 4}
    return ch("queue.declare", queue=q, durable=True, arguments=other)


def declared(c: Client, arguments: dict[str, Any], **properties: Any) -> Observation:
    ch = c.channel()
    reply = ch("queue.declare", queue=c.name("q"), arguments=arguments, **properties)
    return [reply, ch.connection.rest(quiet_s=0.05)]


def _refused(label: str, kind: str, extra: dict[str, Any], **properties: Any) -> None:
    everything = {"x-queue-type": kind, **extra}
    TABLE[label] = lambda c: declared(c, everything, **properties)


_refused("transient_is_refused", "quorum", {})
_refused("exclusive_is_refused", "quorum", {}, durable=True, exclusive=True)
_refused("auto_delete_is_refused", "quorum", {}, durable=True, auto_delete=True)
_refused("priorities_are_refused", "quorum", {"x-max-priority": 5}, durable=True)
_refused("lazy_is_refused", "quorum", {"x-queue-mode": "lazy"}, durable=True)
_refused("delivery_limit_negative", "quorum", {"x-delivery-limit": -1}, durable=True)
_refused("delivery_limit_text", "quorum", {"x-delivery-limit": "3"}, durable=True)
_refused("reject_publish_dlx", "quorum", {"x-overflow": "reject-publish-dlx"}, durable=True)
_refused("stream_transient_is_refused", "stream", {})
_refused("stream_exclusive_is_refused", "stream", {}, durable=True, exclusive=True)
_refused("stream_ttl_is_refused", "stream", {"x-message-ttl": 5}, durable=True)
_refused("stream_max_age", "stream", {"x-max-age": "12h"}, durable=True)
_refused("stream_max_age_without_a_unit", "stream", {"x-max-age": "12"}, durable=True)
_refused("stream_max_age_as_a_number", "stream", {"x-max-age": 12}, durable=True)
_refused("stream_max_length_bytes", "stream", {"x-max-length-bytes": 5000}, durable=True)
_refused("stream_max_length_is_refused", "stream", {"x-max-length": 5}, durable=True)
_refused("stream_expires_is_refused", "stream", {"x-expires": 5}, durable=True)
_refused("stream_overflow_is_refused", "stream", {"x-overflow": "drop-head"}, durable=True)
_refused("stream_dead_letters_are_refused", "stream", {"x-dead-letter-exchange": ""}, durable=True)
_refused(
    "stream_single_active_is_refused", "stream", {"x-single-active-consumer": True}, durable=True
)
_refused("stream_segment_size", "stream", {"x-stream-max-segment-size-bytes": 1000}, durable=True)
_refused(
    "stream_segment_size_negative", "stream", {"x-stream-max-segment-size-bytes": -1}, durable=True
)
_refused(
    "stream_segment_size_as_text", "stream", {"x-stream-max-segment-size-bytes": "k"}, durable=True
)
_refused("stream_cluster_size_zero", "stream", {"x-initial-cluster-size": 0}, durable=True)
_refused("stream_leader_locator", "stream", {"x-queue-leader-locator": "nonsense"}, durable=True)
_refused("segment_size_of_a_classic_queue", "classic", {"x-stream-max-segment-size-bytes": 1})
_refused("cluster_size_of_a_classic_queue", "classic", {"x-initial-cluster-size": 1})
_refused("leader_locator_of_a_classic_queue", "classic", {"x-queue-leader-locator": "balanced"})
_refused("strategy_of_a_classic_queue", "classic", {"x-dead-letter-strategy": "at-most-once"})
_refused("leader_locator", "quorum", {"x-queue-leader-locator": "balanced"}, durable=True)
_refused("master_locator", "quorum", {"x-queue-master-locator": "random"}, durable=True)
_refused("queue_version", "quorum", {"x-queue-version": 2}, durable=True)
_refused("dead_letter_strategy", "quorum", {"x-dead-letter-strategy": "often"}, durable=True)
_refused("group_size_zero", "quorum", {"x-quorum-initial-group-size": 0}, durable=True)
_refused("in_memory_length_negative", "quorum", {"x-max-in-memory-length": -1}, durable=True)
_refused("in_memory_length_of_a_classic_queue", "classic", {"x-max-in-memory-length": 1})
_refused("priority_of_a_stream", "stream", {"x-max-priority": 1}, durable=True)
_refused("delivery_limit_of_a_stream", "stream", {"x-delivery-limit": 1}, durable=True)


@scenario
def stream_get_is_refused(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), durable=True, arguments={"x-queue-type": "stream"})
    return [ch("basic.get", queue=q), ch.connection.rest(quiet_s=0.05)]


@scenario
def stream_consumer_without_prefetch_is_refused(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), durable=True, arguments={"x-queue-type": "stream"})
    return [ch("basic.consume", queue=q, consumer_tag="t"), ch.connection.rest(quiet_s=0.05)]


@scenario
def stream_is_read_from_its_first_message(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), durable=True, arguments={"x-queue-type": "stream"})
    ch.ok("confirm.select")
    for body in "abc":
        ch.pub("", q, body)
    ch.settled(3)
    ch.ok("basic.qos", count=10)
    ch("basic.consume", queue=q, consumer_tag="t", arguments={"x-stream-offset": "first"})
    return ch.take(3)


@scenario
def stream_purge_is_refused(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), durable=True, arguments={"x-queue-type": "stream"})
    return [ch("queue.purge", queue=q), ch.connection.rest(quiet_s=0.05)]
