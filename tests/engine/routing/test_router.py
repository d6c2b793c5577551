"""The router's rules, one by one. Their interplay is in test_router_model.py."""

import pytest

from braidmq.engine.routing.bindings import Binding, exchange, topic
from braidmq.engine.routing.effects import (
    BindingAdded,
    BindingRemoved,
    ExchangeDeclared,
    ExchangeDeleted,
    ExchangeInfo,
)
from braidmq.engine.routing.errors import (
    ExchangeInUse,
    ExchangeMismatch,
    ExchangeNotFound,
    InternalExchange,
    InvalidArgument,
    ReservedName,
    UnknownKind,
)
from braidmq.engine.routing.exchanges import KINDS, Exchange
from braidmq.engine.routing.router import Route, Router
from braidmq.model.errors import Kind


@pytest.fixture
def router() -> Router:
    return Router()


def test_the_default_exchange_routes_by_name(router):
    assert router.resolve("", b"orders") == Route(("orders",), False)
    assert router.resolve("", b"\xff") == Route((), False)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda router: router.declare("", "direct"),
        lambda router: router.delete(""),
        lambda router: router.bind("", topic("q")),
        lambda router: router.bind("amq.direct", exchange("")),
        lambda router: router.unbind("", topic("q")),
        lambda router: router.declare("amq.mine", "direct"),
        lambda router: router.delete("amq.direct"),
        lambda router: router.delete("amq.never-was"),
    ],
)
def test_reserved_names_are_refused(router, attempt):
    with pytest.raises(ReservedName) as caught:
        attempt(router)
    assert caught.value.kind is Kind.REFUSED


def test_predeclared_exchanges(router):
    kinds = {info.name: info.kind for info in router.exchanges()}
    assert kinds == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.topic": "topic",
    }
    assert router.declare("amq.topic", "topic") == []
    assert router.bind("amq.topic", topic("q"), b"#")
    assert router.resolve("amq.topic", b"a.b").topics == ("q",)


def test_declaring_twice_is_declaring_once(router):
    (effect,) = router.declare("x", "fanout", arguments={"a": 1})
    assert effect == ExchangeDeclared(ExchangeInfo("x", "fanout", arguments={"a": 1}))
    assert router.declare("x", "fanout", arguments={"a": 1}) == []
    assert router.exchange("x").kind == "fanout"


@pytest.mark.parametrize(
    ("change", "differing", "current", "received"),
    [
        ({"kind": "topic"}, "kind", "fanout", "topic"),
        ({"durable": False}, "durable", True, False),
        ({"auto_delete": True}, "auto_delete", False, True),
        ({"internal": True}, "internal", False, True),
        ({"alternate_exchange": "b"}, "alternate_exchange", "a", "b"),
        ({"alternate_exchange": None}, "alternate_exchange", "a", None),
        ({"arguments": {"n": 1}}, "argument n", None, 1),
    ],
)
def test_a_mismatch_says_what_differs(router, change, differing, current, received):
    declared = {"kind": "fanout", "alternate_exchange": "a"}
    router.declare("x", **declared)
    with pytest.raises(ExchangeMismatch) as caught:
        router.declare("x", **{**declared, **change})
    error = caught.value
    assert (error.differing, error.current, error.received) == (differing, current, received)
    assert error.kind is Kind.CONFLICT
    assert f"received {received!r} but current is {current!r}" in str(error)


def test_unknown_exchanges_are_not_found(router):
    for attempt in (
        lambda: router.resolve("x", b""),
        lambda: router.delete("x"),
        lambda: router.bind("x", topic("q")),
        lambda: router.bind("amq.direct", exchange("x")),
        lambda: router.unbind("x", topic("q")),
        lambda: router.exchange("x"),
        lambda: router.bindings(source="x"),
    ):
        with pytest.raises(ExchangeNotFound) as caught:
            attempt()
        assert caught.value.kind is Kind.NOT_FOUND


def test_unknown_kinds_and_bad_arguments_change_nothing(router):
    before = router.exchanges()
    with pytest.raises(UnknownKind, match="'sideways'; known are consistent-hash, direct"):
        router.declare("x", "sideways")
    with pytest.raises(InvalidArgument):
        router.declare("x", "consistent-hash", arguments={"hash-header": 1})
    with pytest.raises(InvalidArgument):
        router.declare("x", "direct", arguments={"odd": {1}})
    with pytest.raises(InvalidArgument):
        router.bind("amq.headers", topic("q"), b"", {"x-match": "some"})
    assert router.exchanges() == before
    assert router.bindings() == []


def test_a_binding_is_one_however_often_it_is_made(router):
    binding = Binding("amq.direct", topic("q"), b"k", {"a": 1})
    assert router.bind("amq.direct", topic("q"), b"k", {"a": 1}) == [BindingAdded(binding)]
    assert router.bind("amq.direct", topic("q"), b"k", {"a": 1}) == []
    assert router.unbind("amq.direct", topic("q"), b"k", {"a": 1}) == [BindingRemoved(binding)]
    assert router.unbind("amq.direct", topic("q"), b"k", {"a": 1}) == []
    assert router.resolve("amq.direct", b"k").topics == ()


def test_unbind_removes_exactly_one(router):
    router.bind("amq.direct", topic("q"), b"k")
    router.bind("amq.direct", topic("q"), b"k", {"a": 1})
    router.bind("amq.direct", topic("q"), b"other")
    router.unbind("amq.direct", topic("q"), b"k", {"a": 1})
    assert [(b.key, dict(b.arguments)) for b in router.bindings()] == [(b"k", {}), (b"other", {})]
    assert router.resolve("amq.direct", b"k").topics == ("q",)


def test_listing_bindings(router):
    router.declare("x", "fanout")
    router.bind("amq.fanout", topic("b"))
    router.bind("amq.fanout", topic("a"))
    router.bind("amq.fanout", exchange("x"))
    router.bind("x", topic("a"))

    def ends(**wanted):
        return [(b.source, b.destination.name) for b in router.bindings(**wanted)]

    every = [("amq.fanout", "a"), ("amq.fanout", "b"), ("amq.fanout", "x"), ("x", "a")]
    assert sorted(ends()) == every
    assert ends(source="x") == [("x", "a")]
    assert sorted(ends(destination=topic("a"))) == [("amq.fanout", "a"), ("x", "a")]
    assert ends(source="x", destination=topic("a")) == [("x", "a")]
    assert ends(destination=exchange("a")) == []


def test_internal_exchanges_take_messages_from_exchanges_only(router):
    router.declare("in", "fanout", internal=True)
    router.bind("in", topic("q"))
    router.bind("amq.fanout", exchange("in"))
    assert router.resolve("in", b"").topics == ("q",)
    with pytest.raises(InternalExchange):
        router.resolve("in", b"", from_client=True)
    assert router.resolve("amq.fanout", b"", from_client=True).topics == ("q",)


def test_cycles_end(router):
    for name in "abc":
        router.declare(name, "fanout")
        router.bind(name, topic(f"q{name}"))
    for source, destination in ("ab", "bc", "ca", "aa"):
        router.bind(source, exchange(destination))
    assert router.resolve("b", b"").topics == ("qa", "qb", "qc")
    assert BindingRemoved(Binding("a", exchange("a"), b"")) in router.delete("a")
    assert router.resolve("b", b"").topics == ("qb", "qc")


def test_alternates_are_a_chain(router):
    router.declare("a", "direct", alternate_exchange="b")
    router.declare("b", "direct", alternate_exchange="c")
    router.bind("a", topic("qa"), b"a")
    router.bind("b", topic("qb"), b"b")
    assert router.resolve("a", b"a") == Route(("qa",), False)
    assert router.resolve("a", b"b") == Route(("qb",), True)
    assert router.resolve("a", b"c") == Route((), True)
    router.declare("c", "fanout", alternate_exchange="a")
    assert router.resolve("a", b"c") == Route((), True)
    router.bind("c", topic("qc"))
    assert router.resolve("a", b"c") == Route(("qc",), True)


def test_an_alternate_that_is_not_there_is_not_followed(router):
    router.declare("a", "direct", alternate_exchange="later")
    assert router.resolve("a", b"k") == Route((), False)
    router.declare("later", "fanout")
    assert router.resolve("a", b"k") == Route((), True)
    router.delete("later")
    assert router.resolve("a", b"k") == Route((), False)


def test_a_bound_exchange_counts_as_a_destination(router):
    """As in RabbitMQ: the alternate is for no matching binding, wherever that binding leads."""
    router.declare("dead-end", "fanout")
    router.declare("a", "fanout", alternate_exchange="amq.fanout")
    router.bind("amq.fanout", topic("q"))
    router.bind("a", exchange("dead-end"))
    assert router.resolve("a", b"") == Route((), False)


def test_the_default_exchange_can_be_the_alternate(router):
    router.declare("a", "direct", alternate_exchange="")
    assert router.resolve("a", b"orders") == Route(("orders",), True)


def test_delete_tells_what_went(router):
    router.declare("x", "fanout")
    router.bind("x", topic("q"))
    router.bind("amq.fanout", exchange("x"))
    with pytest.raises(ExchangeInUse) as caught:
        router.delete("x", if_unused=True)
    assert caught.value.bindings == 1
    assert router.delete("x") == [
        BindingRemoved(Binding("x", topic("q"), b"")),
        BindingRemoved(Binding("amq.fanout", exchange("x"), b"")),
        ExchangeDeleted("x", automatic=False),
    ]
    assert router.bindings() == []


def test_being_bound_to_is_not_being_used(router):
    router.declare("x", "fanout")
    router.bind("amq.fanout", exchange("x"))
    assert router.delete("x", if_unused=True)[-1] == ExchangeDeleted("x", automatic=False)


def test_auto_delete_waits_for_a_first_binding_and_goes_with_the_last(router):
    router.declare("x", "fanout", auto_delete=True)
    assert router.unbind("x", topic("q")) == []
    assert router.forget_topic("q") == []
    router.bind("x", topic("q"))
    router.bind("x", topic("r"))
    assert len(router.unbind("x", topic("q"))) == 1
    assert router.unbind("x", topic("r"))[-1] == ExchangeDeleted("x", automatic=True)
    with pytest.raises(ExchangeNotFound):
        router.exchange("x")


def test_auto_delete_runs_up_the_chain(router):
    for name in "abc":
        router.declare(name, "fanout", auto_delete=True)
    router.bind("a", exchange("b"))
    router.bind("b", exchange("c"))
    router.bind("c", topic("q"))
    effects = router.forget_topic("q")
    assert [effect.name for effect in effects if isinstance(effect, ExchangeDeleted)] == [*"cba"]
    assert sum(isinstance(effect, BindingRemoved) for effect in effects) == 3


def test_forgetting_a_topic_leaves_an_exchange_of_that_name(router):
    router.declare("same", "fanout")
    router.bind("amq.fanout", exchange("same"))
    router.bind("amq.fanout", topic("same"))
    router.bind("amq.topic", topic("same"), b"#")
    assert len(router.forget_topic("same")) == 2
    assert [b.destination for b in router.bindings()] == [exchange("same")]


def test_headers_are_left_alone_unless_an_exchange_needs_them(router):
    router.bind("amq.direct", topic("q"), b"k")
    router.bind("amq.direct", exchange("amq.headers"), b"h")
    router.bind("amq.headers", topic("r"), b"", {"a": 1})
    router.bind("amq.headers", exchange("amq.match"), b"")
    calls = []

    def headers():
        calls.append(1)
        return {"a": 1}

    assert router.resolve("amq.direct", b"k", headers).topics == ("q",)
    assert calls == []
    assert router.resolve("amq.direct", b"h", headers).topics == ("r",)
    assert calls == [1]
    assert router.resolve("amq.direct", b"h").topics == ()


def test_a_kind_of_ones_own():
    class Silent(Exchange):
        def add(self, binding):
            pass

        def remove(self, binding):
            pass

        def match(self, message):
            return ()

    router = Router({**KINDS, "silent": Silent})
    router.declare("x", "silent", alternate_exchange="amq.fanout")
    router.bind("x", topic("never"))
    router.bind("amq.fanout", topic("q"))
    assert router.resolve("x", b"") == Route(("q",), True)


# --- the cache ---


def test_answers_are_kept_and_shared(router):
    router.bind("amq.topic", topic("q"), b"#")
    assert router.resolve("amq.topic", b"k") is router.resolve("amq.topic", b"k")


def test_changes_elsewhere_keep_the_answers(router):
    router.bind("amq.topic", topic("q"), b"#")
    kept = router.resolve("amq.topic", b"k")
    router.bind("amq.direct", topic("q"), b"k")
    router.declare("x", "fanout")
    router.delete("x")
    assert router.resolve("amq.topic", b"k") is kept
    router.bind("amq.topic", topic("r"), b"k")
    assert router.resolve("amq.topic", b"k").topics == ("q", "r")


def test_what_depends_on_headers_is_not_kept(router):
    router.declare("h", "consistent-hash", arguments={"hash-header": "h"})
    router.declare("k", "consistent-hash")
    for name in ("h", "k", "amq.headers"):
        router.bind(name, topic("q"), b"1")
        router.resolve(name, b"1")
    assert len(router._cache) == 1


def test_the_cache_is_bounded():
    router = Router(cache_bytes_max=10_000)
    router.bind("amq.fanout", topic("q"))
    for n in range(1000):
        assert router.resolve("amq.fanout", b"%d" % n).topics == ("q",)
    assert 0 < len(router._cache) < 70
    router.resolve("amq.fanout", b"k" * 5000)
    assert router._cache.get(("amq.fanout", b"k" * 5000)) is None
