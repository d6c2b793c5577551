"""Binding and unbinding; exchanges bound to exchanges; alternates; CC and BCC."""

from tests.differential.amqp.client import Client, Observation
from tests.differential.amqp.scenarios import scenario


@scenario
def bind_missing_queue(c: Client) -> Observation:
    return c.channel()("queue.bind", queue=c.name("q"), exchange="amq.direct", routing_key="k")


@scenario
def bind_missing_exchange(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    return ch("queue.bind", queue=q, exchange=c.name("x"), routing_key="k")


@scenario
def bind_both_missing(c: Client) -> Observation:
    return c.channel()("queue.bind", queue=c.name("q"), exchange=c.name("x"), routing_key="k")


@scenario
def bind_twice_delivers_once(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x")), ch.queue(c.name("q"))
    replies = [
        ch("queue.bind", queue=q, exchange=x, routing_key="k", arguments=arguments)
        for arguments in ({}, {}, {"other": 1})
    ]
    ch.pub(x, "k", "once")
    ch.sync()
    return [replies, ch.drain(q)]


@scenario
def unbind_one_of_two_equal_keys(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x")), ch.queue(c.name("q"))
    for arguments in ({}, {"other": 1}):
        ch.ok("queue.bind", queue=q, exchange=x, routing_key="k", arguments=arguments)
    ch.ok("queue.unbind", queue=q, exchange=x, routing_key="k")
    ch.pub(x, "k", "still")
    ch.sync()
    return ch.drain(q)


@scenario
def unbind_what_is_not_bound(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    return ch("queue.unbind", queue=q, exchange="amq.direct", routing_key="none")


@scenario
def unbind_missing_queue(c: Client) -> Observation:
    return c.channel()("queue.unbind", queue=c.name("q"), exchange="amq.direct", routing_key="k")


@scenario
def unbind_missing_exchange(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    return ch("queue.unbind", queue=q, exchange=c.name("x"), routing_key="k")


@scenario
def bind_exclusive_queue_of_another(c: Client) -> Observation:
    q = c.channel().queue(c.name("q"), exclusive=True)
    return c.channel()("queue.bind", queue=q, exchange="amq.direct", routing_key="k")


@scenario
def bind_last_declared_with_empty_names(c: Client) -> Observation:
    """No queue and no key means the last queue declared, and its name as the key."""
    ch = c.channel()
    x, q = ch.exchange(c.name("x")), ch.queue("", exclusive=True)
    bound = ch("queue.bind", queue="", exchange=x, routing_key="")
    ch.pub(x, q, "by name")
    ch.pub(x, "", "by nothing")
    ch.sync()
    return [bound, ch.drain(q)]


@scenario
def bind_last_declared_with_a_key(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x")), ch.queue("", exclusive=True)
    ch.ok("queue.bind", queue="", exchange=x, routing_key="k")
    ch.pub(x, "k", "a")
    ch.sync()
    return ch.drain(q)


@scenario
def bind_without_a_declared_queue(c: Client) -> Observation:
    return c.channel()("queue.bind", queue="", exchange="amq.direct", routing_key="k")


@scenario
def exchange_to_exchange(c: Client) -> Observation:
    ch = c.channel()
    x, y = ch.exchange(c.name("x"), "topic"), ch.exchange(c.name("y"), "direct")
    q = ch.queue(c.name("q"))
    bound = ch("exchange.bind", destination=y, source=x, routing_key="a.*")
    ch.bind(q, y, "a.b")
    for key in ("a.b", "a.c", "b"):
        ch.pub(x, key, key)
    seen = ch.got(q)
    unbound = ch("exchange.unbind", destination=y, source=x, routing_key="a.*")
    ch.pub(x, "a.b", "late")
    ch.sync()
    return [bound, seen, unbound, ch.drain(q)]


@scenario
def exchange_bind_missing_source(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"))
    return ch("exchange.bind", destination=x, source=c.name("none"), routing_key="k")


@scenario
def exchange_bind_missing_destination(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"))
    return ch("exchange.bind", destination=c.name("none"), source=x, routing_key="k")


@scenario
def exchange_bind_both_missing(c: Client) -> Observation:
    ch = c.channel()
    return ch("exchange.bind", destination=c.name("n1"), source=c.name("n2"), routing_key="k")


@scenario
def exchange_unbind_what_is_not_bound(c: Client) -> Observation:
    ch = c.channel()
    x, y = ch.exchange(c.name("x")), ch.exchange(c.name("y"))
    return ch("exchange.unbind", destination=y, source=x, routing_key="k")


@scenario
def exchange_unbind_missing(c: Client) -> Observation:
    ch = c.channel()
    return ch("exchange.unbind", destination=c.name("y"), source=c.name("x"), routing_key="k")


@scenario
def cycle_of_three(c: Client) -> Observation:
    ch = c.channel()
    names = [ch.exchange(c.name(n), "fanout") for n in "xyz"]
    q = ch.queue(c.name("q"))
    for source, destination in zip(names, [*names[1:], names[0]], strict=True):
        ch.ok("exchange.bind", destination=destination, source=source)
    ch.bind(q, names[2])
    for x in names:
        ch.pub(x, "", f"from {x}")
    ch.sync()
    return ch.drain(q)


@scenario
def bound_to_itself(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x"), "fanout"), ch.queue(c.name("q"))
    bound = ch("exchange.bind", destination=x, source=x)
    ch.bind(q, x)
    ch.pub(x, "", "once")
    ch.sync()
    return [bound, ch.drain(q)]


@scenario
def diamond_delivers_once(c: Client) -> Observation:
    ch = c.channel()
    top, left, right = (ch.exchange(c.name(n), "fanout") for n in ("t", "l", "r"))
    q = ch.queue(c.name("q"))
    for side in (left, right):
        ch.ok("exchange.bind", destination=side, source=top)
        ch.bind(q, side)
    ch.pub(top, "", "once")
    return [ch.got(q), ch.drain(q)]


@scenario
def alternate_takes_the_unroutable(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    other = ch.exchange(c.name("other"), "fanout")
    x = ch.exchange(c.name("x"), arguments={"alternate-exchange": other})
    ch.bind(q, other)
    ch.ok("confirm.select")
    ch.pub(x, "k", "a", mandatory=True)
    return [ch.take(), ch.got(q)]


@scenario
def alternate_not_used_when_routed(c: Client) -> Observation:
    ch = c.channel()
    q, spare = ch.queue(c.name("q")), ch.queue(c.name("spare"))
    other = ch.exchange(c.name("other"), "fanout")
    x = ch.exchange(c.name("x"), arguments={"alternate-exchange": other})
    ch.bind(spare, other)
    ch.bind(q, x, "k")
    ch.pub(x, "k", "a")
    ch.sync()
    return [ch.drain(q), ch.drain(spare)]


@scenario
def alternate_missing(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"), arguments={"alternate-exchange": c.name("none")})
    ch.ok("confirm.select")
    ch.pub(x, "k", "a", mandatory=True)
    return ch.take(2)


@scenario
def alternate_cycle(c: Client) -> Observation:
    ch = c.channel()
    x, y = c.name("x"), c.name("y")
    ch.exchange(x, arguments={"alternate-exchange": y})
    ch.exchange(y, arguments={"alternate-exchange": x})
    ch.ok("confirm.select")
    ch.pub(x, "k", "a", mandatory=True)
    return ch.take(2)


@scenario
def alternate_of_bound_exchange(c: Client) -> Observation:
    """The alternate of a destination counts too."""
    ch = c.channel()
    q = ch.queue(c.name("q"))
    other = ch.exchange(c.name("other"), "fanout")
    y = ch.exchange(c.name("y"), arguments={"alternate-exchange": other})
    x = ch.exchange(c.name("x"), "fanout")
    ch.ok("exchange.bind", destination=y, source=x)
    ch.bind(q, other)
    ch.pub(x, "k", "a")
    ch.sync()
    return ch.drain(q)


@scenario
def cc_and_bcc(c: Client) -> Observation:
    ch = c.channel()
    x = ch.exchange(c.name("x"))
    queues = {key: ch.queue(c.name(key)) for key in ("main", "cc", "bcc")}
    for key, q in queues.items():
        ch.bind(q, x, key)
    ch.pub(x, "main", "a", headers={"CC": ["cc", "none"], "BCC": ["bcc"], "h": 1})
    return {key: ch.got(q) for key, q in queues.items()}


@scenario
def cc_alone_makes_it_routable(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.ok("confirm.select")
    ch.pub("", c.name("none"), "a", mandatory=True, headers={"CC": [q]})
    return [ch.take(), ch.got(q)]


@scenario
def cc_that_is_no_array(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a", headers={"CC": q})
    return ch.take()


@scenario
def bcc_that_is_no_array(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "a", headers={"BCC": 5})
    return ch.take()


@scenario
def cc_with_numbers_in_it(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", c.name("none"), "a", headers={"CC": [5, q]})
    ch.sync()
    return ch.get(q)


@scenario
def bcc_is_shown_to_the_returned(c: Client) -> Observation:
    ch = c.channel()
    ch.pub("", c.name("none"), "a", mandatory=True, headers={"CC": ["x"], "BCC": ["y"]})
    return ch.take()
