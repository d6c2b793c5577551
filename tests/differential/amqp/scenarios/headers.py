"""The headers exchange: which messages each binding lets through."""

from typing import Any

from tests.differential.amqp.client import Client, Observation
from tests.differential.amqp.scenarios import scenario
from tests.differential.amqp.wire import Typed

MESSAGES: dict[str, dict[str, Any] | None] = {
    "none": None,
    "empty": {},
    "a1": {"a": 1},
    "a1b2": {"a": 1, "b": 2},
    "a1b3": {"a": 1, "b": 3},
    "b2": {"b": 2},
    "a1b2c3": {"a": 1, "b": 2, "c": 3},
    "a-text": {"a": "1"},
    "a-long": {"a": Typed("l", 1)},
    "a-true": {"a": True},
    "a-float": {"a": 1.0},
    "x-only": {"x-a": 1},
    "a1x1": {"a": 1, "x-a": 1},
    "a-void": {"a": None},
    "a-table": {"a": {"k": 1}},
}


def passed(c: Client, **bindings: dict[str, Any]) -> Observation:
    """Which of ``MESSAGES`` reach a queue bound with each of ``bindings``."""
    ch = c.channel()
    x = ch.exchange(c.name("x"), "headers")
    queues = {label: ch.queue("", exclusive=True) for label in bindings}
    for label, arguments in bindings.items():
        ch.ok("queue.bind", queue=queues[label], exchange=x, arguments=arguments)
    for name, headers in MESSAGES.items():
        props = {} if headers is None else {"headers": headers}
        ch.pub(x, "ignored", name, **props)
    ch.sync()
    return {label: ch.drain(q) for label, q in queues.items()}


@scenario
def match_all(c: Client) -> Observation:
    return passed(
        c,
        one={"x-match": "all", "a": 1},
        two={"x-match": "all", "a": 1, "b": 2},
        nothing={"x-match": "all"},
        with_x_ignored={"x-match": "all", "a": 1, "x-a": 9},
    )


@scenario
def match_any(c: Client) -> Observation:
    return passed(
        c,
        one={"x-match": "any", "a": 1},
        two={"x-match": "any", "a": 1, "b": 2},
        nothing={"x-match": "any"},
        only_x={"x-match": "any", "x-a": 1},
    )


@scenario
def match_with_x(c: Client) -> Observation:
    return passed(
        c,
        all_with_x={"x-match": "all-with-x", "a": 1, "x-a": 1},
        all_with_x_only={"x-match": "all-with-x", "x-a": 1},
        any_with_x={"x-match": "any-with-x", "b": 2, "x-a": 1},
        any_with_x_none={"x-match": "any-with-x", "x-a": 2},
    )


@scenario
def match_is_all_when_not_said(c: Client) -> Observation:
    return passed(c, two={"a": 1, "b": 2}, none={})


@scenario
def match_types(c: Client) -> Observation:
    return passed(
        c,
        text={"a": "1"},
        long={"a": Typed("l", 1)},
        octet={"a": Typed("b", 1)},
        float_one={"a": 1.0},
        true={"a": True},
        table={"a": {"k": 1}},
        void={"a": None},
        any_void={"x-match": "any", "a": None, "b": None},
    )


@scenario
def match_unknown(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    return ch("queue.bind", queue=q, exchange="amq.headers", arguments={"x-match": "some"})


@scenario
def match_of_wrong_type(c: Client) -> Observation:
    ch = c.channel()
    q = ch.queue(c.name("q"))
    return ch("queue.bind", queue=q, exchange="amq.headers", arguments={"x-match": 1})


@scenario
def bindings_differ_by_arguments(c: Client) -> Observation:
    ch = c.channel()
    x, q = ch.exchange(c.name("x"), "headers"), ch.queue(c.name("q"))
    ch.ok("queue.bind", queue=q, exchange=x, arguments={"a": 1})
    ch.ok("queue.bind", queue=q, exchange=x, arguments={"a": 2})
    ch.ok("queue.unbind", queue=q, exchange=x, arguments={"a": 1})
    for value in (1, 2):
        ch.pub(x, "", str(value), headers={"a": value})
    ch.sync()
    return ch.drain(q)
