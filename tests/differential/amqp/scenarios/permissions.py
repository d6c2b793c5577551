"""What each method needs: a user who may do just one thing, or none, tries everything."""

from typing import Any

from tests.differential.amqp.client import Channel, Client, Event, Observation
from tests.differential.amqp.scenarios import scenario

NOTHING, OURS = "^$", "^~"
TABLE: dict[str, Any] = {}


def methods(c: Client) -> dict[str, tuple[str, dict[str, Any]]]:
    """One call of each method that asks for permission; ``q`` and ``x`` exist."""
    q, x, new = c.name("q"), c.name("x"), c.name("new")
    to_exchange = {"destination": x, "source": "amq.fanout"}
    return {
        "queue.declare": ("queue.declare", {"queue": new}),
        "queue.declare with dead letters": (
            "queue.declare",
            {"queue": c.name("dying"), "arguments": {"x-dead-letter-exchange": x}},
        ),
        "queue.declare again": ("queue.declare", {"queue": q}),
        "queue.declare passive": ("queue.declare", {"queue": q, "passive": True}),
        "queue.declare named by the broker": ("queue.declare", {"queue": ""}),
        "queue.bind": ("queue.bind", {"queue": q, "exchange": x}),
        "queue.unbind": ("queue.unbind", {"queue": q, "exchange": x}),
        "queue.purge": ("queue.purge", {"queue": q}),
        "exchange.declare": ("exchange.declare", {"exchange": c.name("newx"), "type": "direct"}),
        "exchange.declare with alternate": (
            "exchange.declare",
            {
                "exchange": c.name("alt"),
                "type": "direct",
                "arguments": {"alternate-exchange": x},
            },
        ),
        "exchange.declare again": ("exchange.declare", {"exchange": x, "type": "direct"}),
        "exchange.declare passive": ("exchange.declare", {"exchange": x, "passive": True}),
        "exchange.bind": ("exchange.bind", to_exchange),
        "exchange.unbind": ("exchange.unbind", to_exchange),
        "basic.get": ("basic.get", {"queue": q, "no_ack": True}),
        "basic.consume": ("basic.consume", {"queue": q, "consumer_tag": "t"}),
        "exchange.delete": ("exchange.delete", {"exchange": x}),
        "queue.delete": ("queue.delete", {"queue": q}),
        "queue.delete of what is not there": ("queue.delete", {"queue": c.name("none")}),
    }


def published(ch: Channel, exchange: str, key: str) -> Event:
    ch.pub(exchange, key, "a")
    return ch("exchange.declare", exchange="amq.direct", passive=True)


def tried(c: Client, configure: str, write: str, read: str) -> Observation:
    owner = c.channel()
    owner.queue(c.name("q"))
    owner.exchange(c.name("x"))
    connection = c.connect(**c.user("u", configure, write, read))
    seen: dict[str, Any] = {
        "publish": published(connection.channel(), c.name("x"), ""),
        "publish to the default exchange": published(connection.channel(), "", c.name("q")),
    }
    for label, (name, values) in methods(c).items():
        seen[label] = connection.channel()(name, **values)
    return seen


def _table(label: str, configure: str, write: str, read: str) -> None:
    TABLE[f"user_who_may_{label}"] = lambda c: tried(c, configure, write, read)


_table("nothing", NOTHING, NOTHING, NOTHING)
_table("configure", OURS, NOTHING, NOTHING)
_table("write", NOTHING, OURS, NOTHING)
_table("read", NOTHING, NOTHING, OURS)
_table("configure_and_write", OURS, OURS, NOTHING)
_table("configure_and_read", OURS, NOTHING, OURS)
_table("write_and_read", NOTHING, OURS, OURS)
_table("read_amq_too", NOTHING, OURS, r"^(~|amq\.)")
_table("everything_of_ours", OURS, OURS, OURS)
_table("everything", ".*", ".*", ".*")


@scenario
def tx_does_not_lift_permissions(c: Client) -> Observation:
    owner = c.channel()
    x = owner.exchange(c.name("x"))
    ch = c.connect(**c.user("u", NOTHING, NOTHING, NOTHING)).channel()
    ch.ok("tx.select")
    ch.pub(x, "", "a")
    return ch("tx.commit")


@scenario
def pattern_is_searched_for(c: Client) -> Observation:
    """Without anchors it may match anywhere."""
    ch = c.connect(**c.user("u", "some", NOTHING, NOTHING)).channel()
    return [
        ch("queue.declare", queue=c.name("awesome")),
        ch("queue.declare", queue=c.name("other")),
    ]


@scenario
def wrong_password(c: Client) -> Observation:
    user = c.user("u", ".*", ".*", ".*") | {"password": "wrong"}
    return c.socket().handshake(**user)


@scenario
def user_without_permissions_here(c: Client) -> Observation:
    """Three empty patterns still let it in; nothing matches them but the empty name."""
    user = c.user("u", "", "", "")
    ch = c.connect(**user).channel()
    return ch("queue.declare", queue=c.name("q"))
