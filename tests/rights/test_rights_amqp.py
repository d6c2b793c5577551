"""Every row of AMQP's table of rights, as users with none, one or all of the rights it needs."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from raw_client import RawClient, content_frames
from rights_users import Rights

from braidmq.gateways.amqp.commands import HANDLERS
from braidmq.gateways.amqp.rights import TABLE, Row
from braidmq.security.rights import Right, Verb
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.properties import Properties, encode_properties

Setup = Callable[[RawClient, str], None]
"""As an administrator, with the name that the row is about."""
Ask = Callable[[RawClient, str], Any]

ROWS = {f"{row.method.NAME} {row.variant}".rstrip(): row for row in TABLE}
OTHER = "other"
"""The second name of a row, as the source of a binding, begins so."""


def nothing(client: RawClient, name: str) -> None: ...


def queue(client: RawClient, name: str) -> None:
    client.declare(name, durable=True)


def exchange(client: RawClient, name: str) -> None:
    client.ask(1, m.ExchangeDeclare(name, "fanout", durable=True), m.ExchangeDeclareOk)


def both(client: RawClient, name: str) -> None:
    queue(client, name)
    exchange(client, f"{OTHER}-{name}")


def exchanges(client: RawClient, name: str) -> None:
    exchange(client, name)
    exchange(client, f"{OTHER}-{name}")


def ask(method: Callable[[str, str], m.Method]) -> Ask:
    def perform(client: RawClient, name: str) -> None:
        client.method(1, method(name, f"{OTHER}-{name}"))

    return perform


def publish(headers: dict[str, Any] | None = None) -> Ask:
    def perform(client: RawClient, name: str) -> None:
        properties = encode_properties(Properties(headers=headers))
        client.send(content_frames(1, m.BasicPublish(name, "k"), b"x", properties))

    return perform


def commit(client: RawClient, name: str) -> None:
    client.ask(1, m.TxSelect(), m.TxSelectOk)
    publish()(client, name)
    client.method(1, m.TxCommit())


def in_transaction(method: m.Method) -> Ask:
    def perform(client: RawClient, name: str) -> None:
        client.ask(1, m.TxSelect(), m.TxSelectOk)
        client.method(1, method)

    return perform


REQUESTS: dict[str, tuple[Setup, Ask]] = {
    "exchange.declare": (nothing, ask(lambda n, o: m.ExchangeDeclare(n, "fanout"))),
    "exchange.declare passive": (
        exchange,
        ask(lambda n, o: m.ExchangeDeclare(n, "fanout", passive=True)),
    ),
    "exchange.declare with alternate-exchange": (
        nothing,
        ask(lambda n, o: m.ExchangeDeclare(n, "fanout", arguments={"alternate-exchange": o})),
    ),
    "exchange.delete": (exchange, ask(lambda n, o: m.ExchangeDelete(n))),
    "exchange.bind": (exchanges, ask(lambda n, o: m.ExchangeBind(n, o, "k"))),
    "exchange.unbind": (exchanges, ask(lambda n, o: m.ExchangeUnbind(n, o, "k"))),
    "queue.declare": (nothing, ask(lambda n, o: m.QueueDeclare(n))),
    "queue.declare passive": (queue, ask(lambda n, o: m.QueueDeclare(n, passive=True))),
    "queue.declare with x-dead-letter-exchange": (
        nothing,
        ask(lambda n, o: m.QueueDeclare(n, arguments={"x-dead-letter-exchange": o})),
    ),
    "queue.bind": (both, ask(lambda n, o: m.QueueBind(n, o, "k"))),
    "queue.unbind": (both, ask(lambda n, o: m.QueueUnbind(n, o, "k"))),
    "queue.purge": (queue, ask(lambda n, o: m.QueuePurge(n))),
    "queue.delete": (queue, ask(lambda n, o: m.QueueDelete(n))),
    "basic.publish": (exchange, publish()),
    "basic.publish with CC or BCC": (exchange, publish({"CC": ["a"], "BCC": ["b"]})),
    "basic.consume": (queue, ask(lambda n, o: m.BasicConsume(n, "tag"))),
    "basic.consume with x-group or x-stream-offset": (
        queue,
        ask(lambda n, o: m.BasicConsume(n, "tag", arguments={"x-group": "g"})),
    ),
    "basic.consume of amq.rabbitmq.reply-to or amq.braidmq.group-notices": (
        nothing,
        ask(lambda n, o: m.BasicConsume("amq.rabbitmq.reply-to", "tag", no_ack=True)),
    ),
    "basic.get": (queue, ask(lambda n, o: m.BasicGet(n))),
    "tx.commit": (exchange, commit),
    "tx.rollback": (nothing, in_transaction(m.TxRollback())),
    "basic.qos": (nothing, ask(lambda n, o: m.BasicQos(0, 5, False))),
    "basic.cancel": (nothing, ask(lambda n, o: m.BasicCancel("tag"))),
    "basic.recover": (nothing, ask(lambda n, o: m.BasicRecover(True))),
    "basic.recover-async": (nothing, ask(lambda n, o: m.BasicRecoverAsync(True))),
    "confirm.select": (nothing, ask(lambda n, o: m.ConfirmSelect())),
    "confirm.places": (nothing, ask(lambda n, o: m.ConfirmPlaces())),
    "tx.select": (nothing, ask(lambda n, o: m.TxSelect())),
    "channel.flow": (nothing, ask(lambda n, o: m.ChannelFlow(True))),
    "tx.begin": (nothing, ask(lambda n, o: m.TxBegin(n))),
    "tx.producer": (nothing, ask(lambda n, o: m.TxProducer(n))),
}
ABOUT_DELIVERIES = {
    "basic.extend",
    *("basic.ack", "basic.nack", "basic.reject", "basic.retry", "basic.fail"),
    *("tx.ack", "tx.return", "tx.end", "tx.heartbeat", "access.request"),
}
"""They name nothing but what the channel itself was sent, or has begun; or are AMQP 0-8's."""


def test_every_method_has_a_row_and_every_row_a_test() -> None:
    assert {row.method for row in TABLE} == {*HANDLERS, m.BasicPublish}
    assert REQUESTS.keys() | ABOUT_DELIVERIES == ROWS.keys()
    assert all(not ROWS[each].right.needs for each in ABOUT_DELIVERIES)


def wanted(row: Row) -> list[tuple[Verb, bool]]:
    """Verbs, and whether they are for the second name."""
    second = {"source", "alternate-exchange", "x-dead-letter-exchange"}
    binding = row.method in (m.QueueBind, m.QueueUnbind)
    return [
        (need.verb, need.of in second or (binding and need.of == "exchange"))
        for need in row.right.needs
    ]


GRANTED = [frozenset(), *(frozenset({pair}) for pair in product(Verb, (False, True)))]
GRANTED.append(frozenset(product(Verb, (False, True))))


def patterns(granted: frozenset[tuple[Verb, bool]], name: str) -> list[str]:
    names = {False: f"^{name}$", True: f"^{OTHER}-{name}$"}
    return ["|".join(names[each] for v, each in sorted(granted) if v is verb) for verb in Verb]


@pytest.mark.parametrize("kind", ["user", "holder"])
@pytest.mark.parametrize("label", REQUESTS)
def test_a_row(rights: Rights, name: str, label: str, kind: str) -> None:
    """As a user with a password, and as the holder of a token with scopes."""
    row, (setup, perform) = ROWS[label], REQUESTS[label]
    needs = set(wanted(row))
    just_enough = frozenset(needs)
    without_one = [just_enough - {each} for each in needs]
    for number, granted in enumerate(dict.fromkeys([*GRANTED, just_enough, *without_one])):
        each = f"{name}-{number}"
        with rights.amqp() as administrator:
            setup(administrator, each)
        user = getattr(rights, kind)(*patterns(granted, each))
        with rights.amqp(user) as client:
            perform(client, each)
            assert refused(client) == (not needs <= granted), (label, granted)


def refused(client: RawClient) -> bool:
    """Whether the channel was closed with 403. What is asked next is answered behind it."""
    client.method(2, m.ChannelOpen())
    while True:
        frame = client.frame()
        if frame.kind != 1:
            continue
        method = m.decode(frame.payload)
        if isinstance(method, m.ChannelClose):
            assert method.reply_code == 403, method
            return True
        if isinstance(method, m.ChannelOpenOk) and frame.channel == 2:
            # Answers that wait for the disk come later: they are no refusals.
            return False


def test_the_table_has_rabbitmqs_rows() -> None:
    """https://www.rabbitmq.com/docs/access-control#authorisation"""
    expected = {
        "exchange.declare": "configure on `exchange`",
        "exchange.delete": "configure on `exchange`",
        "queue.declare": "configure on `queue`",
        "queue.delete": "configure on `queue`",
        "exchange.bind": "write on `destination` and read on `source`",
        "queue.bind": "write on `queue` and read on `exchange`",
        "basic.publish": "write on `exchange`",
        "basic.get": "read on `queue`",
        "basic.consume": "read on `queue`",
        "queue.purge": "read on `queue`",
    }
    for label, text in expected.items():
        assert str(ROWS[label].right) == text
    assert ROWS["basic.ack"].right == Right(namespace="")
