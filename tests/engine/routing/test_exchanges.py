"""Kinds of exchange, each on its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_oracles import headers_match

from braidmq.engine.routing.bindings import Binding, frozen, topic
from braidmq.engine.routing.errors import InvalidArgument
from braidmq.engine.routing.exchanges import (
    KINDS,
    WEIGHT_MAX,
    ConsistentHash,
    Direct,
    Exchange,
    Fanout,
    Headers,
    Message,
    Topic,
)


def bound(to: str, key: bytes = b"", arguments=None) -> Binding:
    return Binding("x", topic(to), key, arguments or {})


def names(exchange: Exchange, key: bytes = b"", headers=None, properties=None) -> list[str]:
    message = Message(key, lambda: headers or {}, lambda: properties or {})
    return sorted(name for _, name in exchange.match(message))


def filled(exchange: Exchange, *bindings: Binding) -> Exchange:
    for binding in bindings:
        exchange.check(binding)
        exchange.add(binding)
    return exchange


@pytest.mark.parametrize("kind", [Direct, Fanout, Topic])
def test_two_bindings_to_one_destination_are_two(kind):
    first, second = bound("q", b"k"), bound("q", b"k", {"n": 1})
    exchange = filled(kind({}), first, second)
    assert names(exchange, b"k") == ["q"]
    exchange.remove(first)
    assert names(exchange, b"k") == ["q"]
    exchange.remove(second)
    assert names(exchange, b"k") == []


def test_each_kind_reads_the_key_its_own_way():
    bindings = bound("a", b"k.*"), bound("b", b"k.1"), bound("c", b"other")
    assert names(filled(Direct({}), *bindings), b"k.1") == ["b"]
    assert names(filled(Fanout({}), *bindings), b"k.1") == ["a", "b", "c"]
    assert names(filled(Topic({}), *bindings), b"k.1") == ["a", "b"]


# --- headers ---


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({}, {}, True),
        ({}, {"a": 1}, True),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "any"}, {}, False),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": 1, "b": "2"}, {"a": 1, "b": "2", "c": 3}, True),
        ({"a": 1, "b": "2"}, {"a": 1}, False),
        ({"a": 1, "b": "2"}, {"a": 1, "b": "3"}, False),
        ({"x-match": "any", "a": 1, "b": "2"}, {"a": 1, "b": "3"}, True),
        ({"x-match": "any", "a": 1, "b": "2"}, {"a": 2}, False),
        # None asks for presence, whatever the value
        ({"a": None}, {"a": 5}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {}, False),
        ({"x-match": "any", "a": None, "b": 1}, {"a": 5}, True),
        ({"a": 5}, {"a": None}, False),
        # x- names count only for the -with-x forms
        ({"x-a": 1}, {}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"x-a": 1, "b": 2}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": None}, {"x-a": 0}, True),
        ({"x-match": "any-with-x"}, {"x-match": "any-with-x"}, False),
        ({"x-match": "all-with-x"}, {}, True),
        # types count
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, True),  # as in RabbitMQ, numbers are numbers
        ({"a": 1}, {"a": "1"}, False),
        ({"a": "t"}, {"a": b"t"}, False),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, True),
        ({"a": [1]}, {"a": [True]}, False),
        ({"a": 1.5}, {"a": 1.5}, True),
    ],
)
def test_headers_table(arguments, headers, expected):
    exchange = filled(Headers({}), bound("q", b"ignored", arguments))
    assert names(exchange, b"k", headers) == (["q"] if expected else [])


header_names = st.sampled_from(["a", "b", "x-a", "x-b"])
header_values = st.sampled_from([1, 2, True, 1.0, "1", b"1", ""])


@given(
    st.dictionaries(header_names, st.one_of(st.none(), header_values)),
    st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"]),
    st.dictionaries(header_names, header_values),
)
def test_headers_against_the_oracle(arguments, form, headers):
    if form is not None:
        arguments = {**arguments, "x-match": form}
    exchange = filled(Headers({}), bound("q", b"", arguments))
    assert names(exchange, b"", headers) == (["q"] if headers_match(arguments, headers) else [])


@pytest.mark.parametrize("form", ["most", "", 1, None, b"all", ["all"]])
def test_other_forms_of_x_match_are_refused(form):
    with pytest.raises(InvalidArgument, match="Invalid x-match field"):
        Headers({}).check(bound("q", b"", {"x-match": form}))


def test_headers_are_decoded_once_and_only_when_asked_for():
    calls = []
    message = Message(b"k", lambda: calls.append(1) or {})
    filled(Direct({}), bound("q", b"k")).match(message)
    assert calls == []
    for _ in range(2):
        filled(Headers({}), bound("q", b"k", {"a": 1})).match(message)
    assert calls == [1]


def test_no_headers_are_empty_headers():
    assert filled(Headers({}), bound("q")).match(Message(b"")) == {topic("q")}


# --- consistent hash ---


def hashing(arguments=None, queues: int = 5) -> Exchange:
    bindings = [bound(f"q{n}", b"1") for n in range(queues)]
    return filled(ConsistentHash(arguments or {}), *bindings)


def test_each_message_goes_to_one_destination_by_weight():
    exchange = filled(ConsistentHash({}), bound("light", b"1"), bound("heavy", b"3"))
    found = [names(exchange, b"%d" % n) for n in range(20_000)]
    assert found.count(["heavy"]) == pytest.approx(15_000, rel=0.03)
    assert found.count(["light"]) == pytest.approx(5_000, rel=0.05)


def test_bindings_of_one_destination_add_up():
    twice = filled(ConsistentHash({}), bound("a", b"1"), bound("a", b"2"), bound("b", b"1"))
    once = filled(ConsistentHash({}), bound("a", b"3"), bound("b", b"1"))
    keys = [b"%d" % n for n in range(500)]
    assert [names(twice, key) for key in keys] == [names(once, key) for key in keys]
    twice.remove(bound("a", b"2"))
    even = filled(ConsistentHash({}), bound("b", b"1"), bound("a", b"1"))
    assert [names(twice, key) for key in keys] == [names(even, key) for key in keys]
    twice.remove(bound("a", b"1"))
    assert {*map(tuple, (names(twice, key) for key in keys))} == {("b",)}
    twice.remove(bound("b", b"1"))
    assert names(twice, b"1") == []


def test_hash_over_a_header_or_property_ignores_the_key():
    by_key = hashing()
    by_header = hashing({"hash-header": "user"})
    by_property = hashing({"hash-property": "message_id"})
    assert (by_key.by_key_only, by_header.by_key_only, by_property.by_key_only) == (1, 0, 0)
    for value in ("ann", "bob", "zoë", 7, b"raw"):
        wanted = names(by_key, value if isinstance(value, bytes) else str(value).encode())
        assert names(by_header, b"any", {"user": value}) == wanted
        assert names(by_property, b"any", None, {"message_id": value}) == wanted
    assert names(by_header, b"any") == names(by_key, b"")


@pytest.mark.parametrize(
    "arguments",
    [{"hash-header": "a", "hash-property": "b"}, {"hash-header": 1}, {"hash-property": ""}],
)
def test_exchange_arguments_are_checked(arguments):
    with pytest.raises(InvalidArgument):
        ConsistentHash(arguments)


@pytest.mark.parametrize("key", [b"", b"0", b"-1", b"1.5", b"many", b" 1", b"9" * 5000])
def test_a_weight_is_a_positive_number(key):
    with pytest.raises(InvalidArgument, match=f"weight from 1 to {WEIGHT_MAX}"):
        ConsistentHash({}).check(bound("q", key))


# --- what a binding is ---


def test_the_same_binding_is_equal_however_its_arguments_are_ordered():
    assert bound("q", b"k", {"a": 1, "b": [2]}) == bound("q", b"k", {"b": [2], "a": 1})
    assert hash(bound("q", b"k", {"a": 1, "b": [2]})) == hash(bound("q", b"k", {"b": [2], "a": 1}))


@pytest.mark.parametrize("other", [True, 1.0, "1", b"1", [1], None])
def test_another_type_is_another_argument(other):
    assert bound("q", b"k", {"a": 1}) != bound("q", b"k", {"a": other})


def test_odd_values_freeze_or_are_refused():
    assert frozen(float("nan")) == frozen(float("nan"))
    assert frozen(bytearray(b"x")) == frozen(b"x")
    with pytest.raises(InvalidArgument, match="can't be a set"):
        frozen({1})


def test_a_binding_keeps_its_own_arguments():
    arguments = {"a": 1}
    binding = bound("q", b"", arguments)
    arguments["a"] = 2
    assert binding.arguments == {"a": 1}


def test_all_kinds_are_there():
    assert {"direct", "fanout", "topic", "headers", "consistent-hash"} <= KINDS.keys()
