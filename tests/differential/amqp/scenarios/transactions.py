"""``tx``: what commit and rollback do to publishes and acknowledgements."""

from tests.differential.amqp.client import Client, Observation
from tests.differential.amqp.scenarios import scenario
from tests.differential.amqp.scenarios.getting import filled, held


@scenario
def select_twice(c: Client) -> Observation:
    ch = c.channel()
    return [ch("tx.select"), ch("tx.select")]


@scenario
def commit_without_select(c: Client) -> Observation:
    return c.channel()("tx.commit")


@scenario
def rollback_without_select(c: Client) -> Observation:
    return c.channel()("tx.rollback")


@scenario
def select_after_confirm(c: Client) -> Observation:
    ch = c.channel()
    ch.ok("confirm.select")
    return ch("tx.select")


@scenario
def confirm_after_select(c: Client) -> Observation:
    ch = c.channel()
    ch.ok("tx.select")
    return ch("confirm.select")


@scenario
def empty_commit_and_rollback(c: Client) -> Observation:
    ch = c.channel()
    ch.ok("tx.select")
    return [ch("tx.commit"), ch("tx.rollback"), ch("tx.commit")]


@scenario
def publishes_appear_at_commit(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.ok("tx.select")
    for body in "ab":
        ch.pub("", q, body)
    ch.sync()
    other = ch.connection.channel()
    before = other.depth(q)
    return [before, ch("tx.commit"), other.drain(q)]


@scenario
def publishes_vanish_at_rollback(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.ok("tx.select")
    ch.pub("", q, "a")
    rolled = ch("tx.rollback")
    ch.pub("", q, "b")
    return [rolled, ch("tx.commit"), ch.drain(q)]


@scenario
def acks_count_at_commit(c: Client) -> Observation:
    ch, q = filled(c, "ab")
    ch.ok("tx.select")
    for _ in "ab":
        ch.get(q, no_ack=False)
    ch.send("basic.ack", tag=1)
    ch.ok("tx.commit")
    ch.send("basic.ack", tag=2)
    ch("channel.close", code=200)
    other = ch.connection.channel()
    other.depth_is(q, 1)
    return [other.get(q), other.get(q)]


@scenario
def acks_are_undone_by_rollback(c: Client) -> Observation:
    """The messages stay unacknowledged; they are not requeued, and may be acked again."""
    ch, q = filled(c, "ab")
    ch.ok("tx.select")
    for _ in "ab":
        ch.get(q, no_ack=False)
    ch.send("basic.ack", tag=2, multiple=True)
    rolled = ch("tx.rollback")
    depth = ch.depth(q)
    ch.send("basic.ack", tag=1)
    return [rolled, depth, ch("tx.commit"), ch("basic.recover", requeue=True), ch.drain(q)]


@scenario
def nack_requeues_at_commit(c: Client) -> Observation:
    ch, q = filled(c, "a")
    ch.ok("tx.select")
    ch.get(q, no_ack=False)
    ch.send("basic.nack", tag=1, requeue=True)
    before = ch.depth(q)
    ch.ok("tx.commit")
    return [before, ch.depth_is(q, 1)]


@scenario
def unknown_tag_closes_at_once(c: Client) -> Observation:
    ch, _ = held(c, "")
    ch.ok("tx.select")
    ch.send("basic.ack", tag=5)
    return ch.take()


@scenario
def missing_exchange_closes_at_once(c: Client) -> Observation:
    ch = c.channel()
    ch.ok("tx.select")
    ch.pub(c.name("missing"), "k", "a")
    return ch.take()


@scenario
def mandatory_returns_at_commit(c: Client) -> Observation:
    ch = c.channel()
    ch.ok("tx.select")
    ch.pub("", c.name("none"), "a", mandatory=True)
    before = ch.rest()
    ch.send("tx.commit")
    return [before, ch.take(2)]


@scenario
def close_rolls_back(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.ok("tx.select")
    ch.pub("", q, "a")
    ch("channel.close", code=200)
    return ch.connection.channel().depth(q)


@scenario
def exchange_deleted_before_commit(c: Client) -> Observation:
    ch, q = filled(c, "")
    x = ch.exchange(c.name("x"), "fanout")
    ch.bind(q, x)
    ch.ok("tx.select")
    ch.pub(x, "", "a", mandatory=True)
    ch("exchange.delete", exchange=x)
    ch.send("tx.commit")
    return [ch.take(), ch.rest(), c.channel().depth(q)]


@scenario
def reject_publish_in_a_transaction(c: Client) -> Observation:
    ch = c.channel()
    small = {"x-max-length": 1, "x-overflow": "reject-publish"}
    q = ch.queue(c.name("q"), arguments=small)
    ch.ok("tx.select")
    for body in "ab":
        ch.pub("", q, body)
    return [ch("tx.commit"), ch.rest(), ch.connection.channel().drain(q)]


@scenario
def order_of_commit(c: Client) -> Observation:
    ch, q = filled(c, "")
    ch.ok("tx.select")
    for number in range(20):
        ch.pub("", q, str(number))
    ch.ok("tx.commit")
    return ch.drain(q)
