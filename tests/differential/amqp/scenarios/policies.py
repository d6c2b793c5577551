"""Policies: which one applies, what it means beside arguments, and that it can change at any time.

RabbitMQ tells its queues of a change in the background, so what follows from one is waited for.
"""

from typing import Any

from tests.differential.amqp.client import Channel, Client, Observation
from tests.differential.amqp.scenarios import scenario

QUORUM = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
TABLE: dict[str, Any] = {}


def filled(c: Client, *bodies: str, **values: Any) -> tuple[Channel, str]:
    ch = c.channel()
    q = ch.queue(c.name("q"), **values)
    for body in bodies:
        ch.pub("", q, body)
    ch.depth_is(q, len(bodies))
    return ch, q


@scenario
def max_length_of_an_existing_queue(c: Client) -> Observation:
    ch, q = filled(c, *"abcde")
    c.policy("p", {"max-length": 2}, apply_to="queues")
    ch.depth_is(q, 2)
    ch.pub("", q, "f")
    ch.sync()
    ch.depth_is(q, 2)
    return ch.drain(q)


@scenario
def max_length_of_a_queue_to_come(c: Client) -> Observation:
    c.policy("p", {"max-length": 1}, apply_to="queues")
    ch = c.channel()
    q = ch.queue(c.name("q"))
    for body in "abc":
        ch.pub("", q, body)
    ch.depth_is(q, 1)
    return ch.drain(q)


@scenario
def max_length_of_a_quorum_queue(c: Client) -> Observation:
    ch, q = filled(c, *"abcde", **QUORUM)
    c.policy("p", {"max-length": 2}, apply_to="queues")
    ch.depth_is(q, 2)
    return ch.drain(q)


@scenario
def max_length_bytes(c: Client) -> Observation:
    ch, q = filled(c, "aaaa", "bbbb", "cccc")
    c.policy("p", {"max-length-bytes": 8})
    ch.depth_is(q, 2)
    return ch.drain(q)


@scenario
def smaller_of_policy_and_argument(c: Client) -> Observation:
    """For limits."""
    seen = []
    for number, (argument, policy) in enumerate(((2, 4), (4, 2))):
        ch = c.channel()
        q = ch.queue(c.name(f"q{number}"), arguments={"x-max-length": argument})
        c.policy("p", {"max-length": policy}, pattern=f"q{number}")
        for body in "abcde":
            ch.pub("", q, body)
        ch.depth_is(q, 2)
        seen.append(ch.drain(q))
    return seen


@scenario
def argument_wins_over_policy(c: Client) -> Observation:
    """For what is no limit: overflow, dead letters."""
    ch = c.channel()
    mine, other = ch.queue(c.name("mine")), ch.queue(c.name("other"))
    c.policy(
        "p",
        {
            "overflow": "drop-head",
            "dead-letter-exchange": "",
            "dead-letter-routing-key": other,
            "max-length": 1,
        },
        pattern="q",
    )
    q = ch.queue(
        c.name("q"),
        arguments={
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": mine,
        },
    )
    ch.ok("confirm.select")
    ch.pub("", q, "a")
    first = ch.settled(1)
    ch.depth_is(q, 1)
    ch.pub("", q, "b")
    nacked = [event["m"] for event in ch.take()]
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1)
    return [first, nacked, ch.got(mine)["body"], ch.depth(other)]


@scenario
def overflow_by_policy_can_change(c: Client) -> Observation:
    ch, q = filled(c, "a")
    ch.ok("confirm.select")
    c.policy("p", {"max-length": 1, "overflow": "reject-publish"})
    seen: list[Any] = []
    ch.pub("", q, "b")
    seen.append([event["m"] for event in ch.take()])
    c.policy("p", {"max-length": 1, "overflow": "drop-head"})
    ch.pub("", q, "c")
    seen.append([event["m"] for event in ch.take()])
    ch.depth_is(q, 1)
    return [*seen, ch.drain(q)]


@scenario
def reject_publish_for_a_queue_that_has_more(c: Client) -> Observation:
    ch, q = filled(c, *"abcd")
    c.policy("p", {"max-length": 2, "overflow": "reject-publish"})
    ch.rest()
    return ch.drain(q)


@scenario
def dead_letters_by_policy(c: Client) -> Observation:
    ch, q = filled(c, "a", "b")
    dead = ch.queue(c.name("dead"))
    c.policy("p", {"dead-letter-exchange": "", "dead-letter-routing-key": dead}, pattern="q")
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1)
    seen = [ch.got(dead)]
    c.delete_policy("p")
    ch.send("basic.reject", tag=ch.get(q, no_ack=False)["tag"])
    ch.sync()
    return [*seen, ch.depth(dead), ch.depth(q)]


@scenario
def routing_key_of_a_policy_for_the_exchange_of_an_argument(c: Client) -> Observation:
    ch = c.channel()
    dead = ch.queue(c.name("dead"))
    c.policy("p", {"dead-letter-routing-key": dead}, pattern="q")
    q = ch.queue(c.name("q"), arguments={"x-dead-letter-exchange": ""})
    ch.pub("", q, "a")
    ch.depth_is(q, 1)
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1)
    return ch.got(dead)


@scenario
def routing_key_of_a_policy_alone_means_nothing(c: Client) -> Observation:
    ch, q = filled(c, "a")
    dead = ch.queue(c.name("dead"))
    c.policy("p", {"dead-letter-routing-key": dead}, pattern="q")
    ch.get(q, no_ack=False)
    ch.send("basic.reject", tag=1)
    ch.sync()
    return [ch.depth(dead), ch.depth(q)]


@scenario
def message_ttl_for_what_comes(c: Client) -> Observation:
    ch = c.channel()
    q, dead = ch.queue(c.name("q")), ch.queue(c.name("dead"))
    c.policy(
        "p",
        {"message-ttl": 50, "dead-letter-exchange": "", "dead-letter-routing-key": dead},
        pattern="q",
    )
    ch.pub("", q, "a")
    return ch.got(dead)


@scenario
def message_ttl_and_what_is_there(c: Client) -> Observation:
    ch, q = filled(c, "a")
    c.policy("p", {"message-ttl": 20})
    ch.rest(0.5)
    return [ch.depth(q)]


@scenario
def message_ttl_taken_away(c: Client) -> Observation:
    c.policy("p", {"message-ttl": 20}, pattern="q")
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a")
    seen = [ch.depth_is(q, 0)]
    c.delete_policy("p")
    ch.pub("", q, "b")
    ch.rest(0.3)
    return [*seen, ch.depth(q)]


@scenario
def expires_by_policy(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    c.policy("p", {"expires": 100})
    ch.rest(0.5)
    return ch("queue.declare", queue=q, passive=True)


@scenario
def expires_smaller_of_policy_and_argument(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"), arguments={"x-expires": 60_000})
    c.policy("p", {"expires": 100})
    ch.rest(0.5)
    return ch("queue.declare", queue=q, passive=True)


@scenario
def highest_priority_applies_alone(c: Client) -> Observation:
    """Not even what it does not say comes from another."""
    ch, q = filled(c, *"abcde")
    c.policy("high", {"max-length": 4}, priority=2)
    ch.depth_is(q, 4)
    c.policy("low", {"max-length": 2, "dead-letter-exchange": ""}, priority=1)
    ch.pub("", q, "f")
    ch.sync()
    seen = [ch.depth_is(q, 4), ch.get(q)["body"]]
    c.delete_policy("high")
    ch.depth_is(q, 2)
    return [*seen, ch.drain(q)]


@scenario
def priority_may_be_negative(c: Client) -> Observation:
    ch, q = filled(c, *"abcde")
    c.policy("one", {"max-length": 2}, priority=-1)
    ch.depth_is(q, 2)
    c.policy("two", {"max-length": 1}, priority=0)
    ch.depth_is(q, 1)
    return ch.drain(q)


@scenario
def pattern_is_searched_for(c: Client) -> Observation:
    ch = c.channel()
    names = [c.name("apples"), c.name("pears")]
    c.policy("p", {"max-length": 1}, pattern=".*ppl")
    for q in names:
        ch.queue(q)
        for body in "ab":
            ch.pub("", q, body)
    ch.depth_is(names[0], 1)
    ch.depth_is(names[1], 2)
    return [ch.drain(q) for q in names]


@scenario
def apply_to_exchanges_leaves_queues_alone(c: Client) -> Observation:
    ch, q = filled(c, *"abc")
    c.policy("p", {"max-length": 1}, apply_to="exchanges")
    ch.rest()
    return ch.depth(q)


@scenario
def classic_queue_and_delivery_limit(c: Client) -> Observation:
    """It has no delivery limit, so the whole policy does not apply to it, and another may."""
    ch, q = filled(c, *"abc")
    c.policy("p", {"max-length": 1, "delivery-limit": 2}, priority=5, apply_to="queues")
    ch.rest()
    seen = [ch.depth(q)]
    c.policy("other", {"max-length": 2}, apply_to="queues")
    ch.depth_is(q, 2)
    return [*seen, ch.drain(q)]


@scenario
def quorum_queue_and_mirroring(c: Client) -> Observation:
    ch, q = filled(c, *"abc", **QUORUM)
    taken = c.policy("p", {"max-length": 1, "ha-mode": "all"}, apply_to="queues")
    ch.rest()
    return [taken, ch.depth(q)]


@scenario
def delivery_limit_of_a_quorum_queue(c: Client) -> Observation:
    ch, q = filled(c, "a", **QUORUM)
    dead = ch.queue(c.name("dead"))
    c.policy(
        "p",
        {"delivery-limit": 1, "dead-letter-exchange": "", "dead-letter-routing-key": dead},
        apply_to="queues",
        pattern="q",
    )
    for tag in (1, 2):
        ch.depth_is(q, 1)
        ch.get(q, no_ack=False)
        ch.send("basic.nack", tag=tag, requeue=True)
    return [ch.got(dead)["body"], ch.depth(q)]


@scenario
def delivery_limit_smaller_of_policy_and_argument(c: Client) -> Observation:
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 5, "x-dead-letter-exchange": ""}
    ch = c.channel()
    dead = ch.queue(c.name("dead"))
    arguments["x-dead-letter-routing-key"] = dead
    q = ch.queue(c.name("q"), durable=True, arguments=arguments)
    c.policy("p", {"delivery-limit": 0}, apply_to="queues", pattern="q")
    ch.pub("", q, "a")
    ch.depth_is(q, 1)
    ch.get(q, no_ack=False)
    ch.send("basic.nack", tag=1, requeue=True)
    return ch.got(dead)["body"]


@scenario
def alternate_exchange_by_policy(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x")), ch.queue(c.name("q"))
    ch.exchange(c.name("spare"), "fanout")
    ch.bind(q, c.name("spare"))
    ch.pub(x, "nowhere", "a", mandatory=True)
    seen: list[Any] = [[event["m"] for event in ch.take()]]
    c.policy("p", {"alternate-exchange": c.name("spare")}, apply_to="exchanges", pattern="x")
    ch.pub(x, "nowhere", "b", mandatory=True)
    seen.append(ch.got(q)["body"])
    c.delete_policy("p")
    ch.pub(x, "nowhere", "c", mandatory=True)
    seen.append([event["m"] for event in ch.take()])
    return [*seen, ch.depth(q)]


@scenario
def alternate_exchange_of_the_argument_wins(c: Client) -> Observation:
    ch = c.channel()
    for name in ("mine", "other"):
        ch.exchange(c.name(name), "fanout")
        ch.bind(ch.queue(c.name(f"q-{name}")), c.name(name))
    c.policy("p", {"alternate-exchange": c.name("other")}, apply_to="exchanges", pattern="x")
    x = ch.exchange(c.name("x"), arguments={"alternate-exchange": c.name("mine")})
    ch.pub(x, "nowhere", "a")
    return [ch.got(c.name("q-mine"))["body"], ch.depth(c.name("q-other"))]


@scenario
def declaring_again_asks_for_arguments_only(c: Client) -> Observation:
    ch = c.channel()
    q, x = ch.queue(c.name("q")), ch.exchange(c.name("x"))
    c.policy("p", {"max-length": 5, "alternate-exchange": "amq.fanout"})
    replies = [ch("queue.declare", queue=q), ch("exchange.declare", exchange=x, type="direct")]
    replies.append(ch("queue.declare", queue=q, arguments={"x-max-length": 5}))
    return replies


@scenario
def exclusive_queue(c: Client) -> Observation:
    ch, q = filled(c, *"abc", exclusive=True)
    c.policy("p", {"max-length": 1})
    ch.depth_is(q, 1)
    return ch.drain(q)


@scenario
def max_length_with_messages_at_a_consumer(c: Client) -> Observation:
    """Only ready messages are dropped."""
    ch, q = filled(c, *"abcd")
    ch.get(q, no_ack=False)
    ch.get(q, no_ack=False)
    c.policy("p", {"max-length": 1})
    ch.depth_is(q, 1)
    ch.send("basic.nack", tag=2, multiple=True, requeue=True)
    ch.sync()
    ch.depth_is(q, 1)
    return ch.drain(q)


# What a definition may say

DEFINITIONS: dict[str, dict[str, Any]] = {
    "empty": {},
    "unknown_key": {"max-lenght": 1},
    "known_and_unknown_key": {"max-length": 1, "nonsense": 2},
    "negative_ttl": {"message-ttl": -1},
    "zero_ttl": {"message-ttl": 0},
    "text_ttl": {"message-ttl": "1"},
    "huge_ttl": {"message-ttl": 1 << 32},
    "zero_expires": {"expires": 0},
    "negative_length": {"max-length": -1},
    "negative_length_bytes": {"max-length-bytes": -1},
    "fractional_length": {"max-length": 1.5},
    "wrong_overflow": {"overflow": "drop-tail"},
    "reject_publish_dlx": {"overflow": "reject-publish-dlx"},
    "dead_letter_number": {"dead-letter-exchange": 1},
    "negative_delivery_limit": {"delivery-limit": -1},
    "alternate_number": {"alternate-exchange": 1},
    "argument_name": {"x-max-length": 1},
    "max_priority": {"max-priority": 3},
    "queue_mode": {"queue-mode": "lazy"},
    "wrong_queue_mode": {"queue-mode": "slow"},
    "ha_all": {"ha-mode": "all"},
    "ha_all_with_params": {"ha-mode": "all", "ha-params": 2},
    "ha_exactly": {"ha-mode": "exactly", "ha-params": 2},
    "ha_exactly_without_params": {"ha-mode": "exactly"},
    "ha_nodes": {"ha-mode": "nodes", "ha-params": ["a@b"]},
    "ha_unknown": {"ha-mode": "some"},
    "ha_sync_without_mode": {"ha-sync-mode": "automatic"},
    "ha_wrong_sync": {"ha-mode": "all", "ha-sync-mode": "sometimes"},
}


def _definitions(c: Client) -> Observation:
    """Whether each is taken, for queues that nobody has."""
    return {
        label: c.policy(label, definition, pattern="nobody")
        for label, definition in DEFINITIONS.items()
    }


TABLE["definitions"] = _definitions


@scenario
def wrong_pattern_or_kind(c: Client) -> Observation:
    return [
        c.policy("open", {"max-length": 1}, pattern="("),
        c.policy("kind", {"max-length": 1}, apply_to="messages"),
    ]
