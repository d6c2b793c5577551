"""Properties between protocols, and deaths as RabbitMQ writes them."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.engine.envelope import (
    AMQP,
    MQTT,
    NATIVE,
    Death,
    annotate,
    encode_headers,
    headers_of,
    routing_keys,
)
from braidmq.gateways.deaths import amqp_headers, annotate_amqp
from braidmq.gateways.translation import (
    amqp_from_native,
    amqp_parts,
    amqp_routing_keys,
    mqtt_record,
    native_headers,
    pattern_of_filter,
    topic_of_key,
)
from braidmq.record.batch import Record
from braidmq.wire.amqp.properties import Properties, decode_properties, encode_properties
from braidmq.wire.envelopes import (
    NAMED,
    amqp_envelope,
    key_of_topic,
    native_from_amqp,
    split_amqp,
    split_mqtt,
)
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import Properties as MqttProperties
from braidmq.wire.mqtt.properties import decode_properties as decode_mqtt
from braidmq.wire.mqtt.properties import encode_properties as encode_mqtt
from braidmq.wire.mqtt.text import write_string

AT_MS = 1_700_000_000_999
AT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
FULL = Properties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"a": "text", "n": 5},
    delivery_mode=2,
    priority=3,
    correlation_id="c",
    reply_to="r",
    expiration="1000",
    message_id="m",
    timestamp=1,
    type="t",
    user_id="u",
    app_id="app",
    cluster_id="cl",
)


def record(envelope: bytes, envelope_format: int = AMQP, **fields) -> Record:
    return Record(0, AT_MS, fields.pop("key", None), b"v", envelope, envelope_format, **fields)


# --- envelopes ---

short = st.text(max_size=40)
route = short.map(str.encode)
named_values = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMED, short))
table_names = short.filter(lambda name: name.replace("-", "_") not in NAMED and name != "x-key")


@given(route, route, named_values)
@settings(deadline=None, max_examples=100)
def test_an_envelope_comes_apart_as_it_was_put_together(exchange, key, values):
    properties = Properties(**values)
    envelope = amqp_envelope(exchange, key, properties)
    assert split_amqp(envelope) == (exchange, key, encode_properties(properties))
    assert amqp_parts(envelope) == split_amqp(envelope)
    assert amqp_routing_keys(record(envelope)) == routing_keys(record(envelope)) == [key]
    assert headers_of(record(envelope)) == {}


def test_the_longest_names():
    envelope = amqp_envelope(b"e" * 255, b"k" * 255, Properties())
    assert split_amqp(envelope) == (b"e" * 255, b"k" * 255, b"\0\0")


def test_parts_are_not_decoded_without_need():
    assert amqp_parts(b"\x01x\x01kno properties at all") == (b"x", b"k", b"no properties at all")


def test_parts_with_a_delivery_count():
    envelope = amqp_envelope(b"x", b"k", FULL)
    exchange, key, raw = amqp_parts(envelope, told={"x-delivery-count": 4})
    assert (exchange, key) == (b"x", b"k")
    found = decode_properties(raw)
    assert found.headers == {"a": "text", "n": 5, "x-delivery-count": 4}
    assert found.content_type == "text/plain"
    assert decode_properties(
        amqp_parts(amqp_envelope(b"", b"q", Properties()), told={"x-delivery-count": 0})[2]
    ) == Properties(headers={"x-delivery-count": 0})


# --- native ↔ AMQP ---

texts = st.text(max_size=30).map(str.encode)
native_named = st.dictionaries(
    st.sampled_from([name.replace("_", "-") for name in NAMED]), texts, max_size=4
)
native_others = st.dictionaries(
    table_names, st.one_of(texts, st.binary(max_size=20), st.just(b"\xff\xfe")), max_size=4
)


@given(native_named, native_others)
@settings(deadline=None, max_examples=80)
def test_native_headers_come_back(named, others):
    headers = [*named.items(), *others.items()]
    raw = amqp_parts(encode_headers(headers), NATIVE, topic="t")[2]
    back = native_from_amqp(amqp_envelope(b"", b"t", decode_properties(raw)))
    assert dict(back) == dict(headers)
    assert len(back) == len(headers)


@given(named_values, st.dictionaries(table_names, short, max_size=4))
@settings(deadline=None, max_examples=80)
def test_amqp_properties_come_back(values, table):
    properties = Properties(**values, headers=table or None)
    headers = native_from_amqp(amqp_envelope(b"x", b"k", properties))
    back = amqp_from_native(headers, None)
    assert back == Properties(**values, headers=table or None, delivery_mode=2)


def test_a_native_message_over_amqp():
    headers = [("content-type", b"text/plain"), ("trace", b"1"), ("raw", b"\xff")]
    native = record(encode_headers(headers), NATIVE, key=b"customer", priority=4)
    exchange, key, raw = amqp_parts(native.envelope, NATIVE, native, topic="orders")
    assert (exchange, key) == (b"", b"orders")
    assert decode_properties(raw) == Properties(
        content_type="text/plain",
        headers={"trace": "1", "raw": b"\xff", "x-key": "customer"},
        delivery_mode=2,
        priority=4,
        timestamp=native.timestamp_ms // 1000,
    )


def test_the_time_to_live_of_a_native_message_begins_when_it_is_visible():
    seen_ms = record(b"", NATIVE).timestamp_ms
    for due_ms in (0, seen_ms + 500):
        expires_ms = max(due_ms, seen_ms) + 2000
        native = record(b"", NATIVE, due_at_ms=due_ms, expires_at_ms=expires_ms)
        raw = amqp_parts(b"", NATIVE, native, topic="t")[2]
        assert decode_properties(raw).expiration == "2000"


def test_a_native_message_that_says_nothing():
    native = record(b"", NATIVE)
    exchange, key, raw = amqp_parts(b"", NATIVE, native, topic="t")
    nothing = Properties(delivery_mode=2, timestamp=native.timestamp_ms // 1000)
    assert (exchange, key, decode_properties(raw)) == (b"", b"t", nothing)
    counted = amqp_parts(b"", NATIVE, record(b"", NATIVE), topic="t", told={"x-delivery-count": 2})[
        2
    ]
    assert decode_properties(counted).headers == {"x-delivery-count": 2}


def test_named_properties_that_are_no_text():
    assert amqp_from_native([("message-id", b"\xff")], None).message_id == "\ufffd"


def test_an_amqp_message_as_native_headers():
    table = {
        "text": "é",
        "bytes": b"\xff",
        "number": 5,
        "yes": True,
        "nothing": None,
        "list": [1, "two"],
        "table": {"a": 1},
        "date": AT,
        "decimal": Decimal("1.50"),
    }
    envelope = amqp_envelope(b"x", b"k", Properties(message_id="m", headers=table))
    found = native_headers(record(envelope))
    assert found[0] == ("message-id", b"m")
    values = dict(found[1:])
    assert list(values) == list(table)
    assert (values["text"], values["bytes"]) == ("é".encode(), b"\xff")
    plain = {name: json.loads(values[name]) for name in values if name not in ("text", "bytes")}
    assert plain == {
        "number": 5,
        "yes": True,
        "nothing": None,
        "list": [1, "two"],
        "table": {"a": 1},
        "date": "2023-11-14T22:13:20Z",
        "decimal": "1.50",
    }


def test_what_amqp_alone_has_is_left_out():
    names = {name for name, _ in native_from_amqp(amqp_envelope(b"", b"", FULL))}
    assert names == {name.replace("_", "-") for name in NAMED} | {"a", "n"}


def test_headers_of_each_format():
    headers = [("a", b"1"), ("a", b"2")]
    assert native_headers(record(encode_headers(headers), NATIVE)) == headers
    assert native_headers(record(b"\0\0\x01t", MQTT)) == []


# --- MQTT ---

mqtt_text = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)
topics = mqtt_text.filter(lambda text: text and not set(text) & set("+#"))
mqtt_properties = st.builds(
    MqttProperties,
    content_type=st.none() | mqtt_text,
    correlation_data=st.none() | st.binary(max_size=300),
    response_topic=st.none() | topics,
    message_expiry_interval=st.none() | st.integers(0, 0xFFFFFFFF),
    user_properties=st.lists(st.tuples(mqtt_text, mqtt_text), max_size=3).map(tuple),
)


def mqtt_envelope(topic: str, properties: MqttProperties, flags: int = 1) -> bytes:
    return bytes([flags]) + write_string(topic) + encode_mqtt(properties, Kind.PUBLISH)


@given(topics)
def test_topics_and_keys_are_the_same_names(topic):
    assert topic_of_key(key_of_topic(topic.encode())) == topic.encode()


def test_what_is_no_topic():
    assert [topic_of_key(key) for key in (b"", b"a.+", b"#", b"a\0", b"\xff")] == [None] * 5
    assert pattern_of_filter(b"a/+/b.c/#") == b"a.*.b/c.#"


@given(topics, mqtt_properties)
@settings(deadline=None, max_examples=100)
def test_mqtt_over_amqp_and_back(topic, properties):
    sent = record(mqtt_envelope(topic, properties), MQTT)
    exchange, key, raw = amqp_parts(sent.envelope, MQTT, sent)
    assert exchange == b"amq.topic"
    there = decode_properties(raw)
    assert there.delivery_mode == 2
    back = record(amqp_envelope(exchange, key, there))
    name, again = mqtt_record(back, "fallback")
    assert name == topic.encode()
    assert split_mqtt(again.envelope)[:2] == (1, name)
    got = decode_mqtt(split_mqtt(again.envelope)[2], Kind.PUBLISH)
    if not properties.user_properties:
        for field in ("content_type", "response_topic"):
            value = getattr(properties, field)
            assert getattr(got, field) == value
        assert got.correlation_data == properties.correlation_data
    form, envelope, deaths = annotate(sent, death())
    assert (form, deaths) == (AMQP, [("q", "rejected")])
    assert "x-death" in amqp_headers(record(envelope))
    assert routing_keys(sent) == [key_of_topic(topic.encode())]


@given(st.binary(max_size=40), st.dictionaries(st.text(max_size=9), st.text(max_size=9)))
@settings(deadline=None, max_examples=100)
def test_whatever_amqp_carries_can_go_out_over_mqtt(key, headers):
    envelope = amqp_envelope(b"amq.topic", key, Properties(headers=headers, reply_to="a\0"))
    name, sent = mqtt_record(record(envelope), "fallback")
    assert name == (topic_of_key(key) or b"fallback")
    decode_mqtt(split_mqtt(sent.envelope)[2], Kind.PUBLISH)


# --- deaths ---


def death(topic: str = "q", reason: str = "rejected", **fields) -> Death:
    return Death(
        reason,
        "/",
        topic,
        0,
        attempts=1,
        subscription="queue",
        at_ms=fields.pop("at_ms", AT_MS),
        **fields,
    )


def died(envelope: bytes, *deaths: Death) -> tuple[Properties, list[tuple[str, str]]]:
    """Its properties after these deaths, and where the engine thinks it died."""
    found: list[tuple[str, str]] = []
    for each in deaths:
        envelope_format, envelope, found = annotate(record(envelope), each)
        assert envelope_format == AMQP
    return decode_properties(split_amqp(envelope)[2]), found


def test_the_first_death():
    properties, deaths = died(amqp_envelope(b"x", b"k", Properties(message_id="m")), death())
    assert properties.message_id == "m"
    assert properties.headers == {
        "x-death": [
            {
                "count": 1,
                "reason": "rejected",
                "queue": "q",
                "time": AT,
                "exchange": "x",
                "routing-keys": ["k"],
            }
        ],
        "x-first-death-exchange": "x",
        "x-first-death-queue": "q",
        "x-first-death-reason": "rejected",
        "x-death-reason": "rejected",
        "x-death-topic": "q",
        "x-death-partition": 0,
        "x-death-offset": 0,
        "x-death-attempts": 1,
        "x-death-subscription": "queue",
        "x-death-time": AT_MS,
        "x-death-error": "",
    }
    assert deaths == [("q", "rejected")]


def test_the_same_death_again_is_counted():
    envelope = amqp_envelope(b"x", b"k", Properties())
    later = death(at_ms=AT_MS + 60_000)
    properties, deaths = died(envelope, death(), later, later)
    assert properties.headers is not None
    (entry,) = properties.headers["x-death"]
    assert (entry["count"], entry["time"]) == (3, AT)
    assert deaths == [("q", "rejected")]


def test_the_newest_death_stands_first():
    envelope = amqp_envelope(b"x", b"k", Properties())
    properties, deaths = died(
        envelope, death("a"), death("b", "expired"), death("a", "maxlen"), death("a")
    )
    assert deaths == [("a", "rejected"), ("a", "maxlen"), ("b", "expired")]
    assert properties.headers is not None
    entries = properties.headers["x-death"]
    assert [(each["queue"], each["reason"]) for each in entries] == deaths
    assert [each["count"] for each in entries] == [2, 1, 1]
    assert properties.headers["x-first-death-queue"] == "a"
    assert properties.headers["x-first-death-reason"] == "rejected"


queue_deaths = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["rejected", "expired", "maxlen"])),
    min_size=1,
    max_size=12,
)


@given(queue_deaths)
@settings(deadline=None, max_examples=80)
def test_any_series_of_deaths(series):
    properties, deaths = died(
        amqp_envelope(b"x", b"k", Properties(headers={"mine": 1})),
        *(death(topic, reason) for topic, reason in series),
    )
    newest_first = list(dict.fromkeys(reversed(series)))
    assert deaths == newest_first
    assert properties.headers is not None
    entries = properties.headers["x-death"]
    counted = [(each["queue"], each["reason"], each["count"]) for each in entries]
    assert counted == [(*each, series.count(each)) for each in newest_first]
    assert properties.headers["mine"] == 1
    first = (properties.headers["x-first-death-queue"], properties.headers["x-first-death-reason"])
    assert first == series[0]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("max-attempts", "delivery_limit"),
        ("max-age", "delivery_limit"),
        ("expired", "expired"),
        ("maxlen", "maxlen"),
    ],
)
def test_reasons(reason, told):
    properties, deaths = died(amqp_envelope(b"", b"q", Properties()), death(reason=reason))
    assert properties.headers is not None
    assert properties.headers["x-death"][0]["reason"] == told
    assert deaths == [("q", told)]


def test_the_expiration_is_taken_off_and_kept():
    envelope = amqp_envelope(b"x", b"k", Properties(expiration="100", priority=2))
    properties, _ = died(envelope, death(reason="expired"))
    assert (properties.expiration, properties.priority) == (None, 2)
    assert properties.headers is not None
    assert properties.headers["x-death"][0]["original-expiration"] == "100"
    properties, _ = died(envelope, death(reason="expired"), death("other"))
    assert properties.headers is not None
    newest, oldest = properties.headers["x-death"]
    assert "original-expiration" not in newest
    assert oldest["original-expiration"] == "100"


def test_where_it_goes_now():
    envelope = amqp_envelope(b"x", b"k", Properties())
    _, changed, _ = annotate_amqp(record(envelope), death(to_exchange="dlx", to_key=b"dead"))
    assert split_amqp(changed)[:2] == (b"dlx", b"dead")
    _, changed, _ = annotate_amqp(record(envelope), death(to_exchange="", to_key=b"dlq"))
    assert split_amqp(changed)[:2] == (b"", b"dlq")
    _, changed, _ = annotate_amqp(record(envelope), death())
    assert split_amqp(changed)[:2] == (b"x", b"k")


def test_the_second_death_tells_the_exchange_it_came_through():
    first = death("a", to_exchange="dlx", to_key=b"dead")
    properties, _ = died(amqp_envelope(b"x", b"k", Properties()), first, death("b"))
    assert properties.headers is not None
    newest, oldest = properties.headers["x-death"]
    assert (newest["exchange"], newest["routing-keys"]) == ("dlx", ["dead"])
    assert (oldest["exchange"], oldest["routing-keys"]) == ("x", ["k"])
    assert properties.headers["x-first-death-exchange"] == "x"


def test_copies_are_among_the_keys():
    envelope = amqp_envelope(b"x", b"k", Properties(headers={"CC": ["c1", "c2"]}))
    properties, _ = died(envelope, death())
    assert properties.headers is not None
    assert properties.headers["x-death"][0]["routing-keys"] == ["k", "c1", "c2"]


def test_copies_are_routing_keys_too_until_the_key_is_another():
    envelope = amqp_envelope(b"x", b"k", Properties(headers={"CC": ["c1", "c2"], "h": 1}))
    assert routing_keys(record(envelope)) == [b"k", b"c1", b"c2"]
    assert headers_of(record(envelope)) == {"CC": ["c1", "c2"], "h": 1}
    _, kept, _ = annotate(record(envelope), death(to_exchange="dlx", to_key=b"k"))
    assert routing_keys(record(kept)) == [b"k", b"c1", b"c2"]
    _, gone, _ = annotate(record(envelope), death(to_exchange="dlx", to_key=b"d", new_key=True))
    assert routing_keys(record(gone)) == [b"d"]


def test_copies_that_are_no_text():
    envelope = amqp_envelope(b"x", b"k", Properties(headers={"CC": [b"\xff"]}))
    assert routing_keys(record(envelope)) == [b"k", b"\xff"]


def test_counts_are_written_with_64_bits():
    """As RabbitMQ writes them; clients in typed languages look for a long."""
    envelope = amqp_envelope(b"x", b"k", Properties())
    for each in (death("a"), death("b"), death("a")):
        envelope = annotate(record(envelope), each)[1]
    assert envelope.count(b"\x05countl") == 2
    counted = amqp_parts(amqp_envelope(b"x", b"k", Properties()), told={"x-delivery-count": 1})[2]
    assert b"\x10x-delivery-countl" in counted


@pytest.mark.parametrize("value", ["text", [], ["text", 5, None]])
def test_an_x_death_that_is_none_is_replaced(value):
    envelope = amqp_envelope(b"x", b"k", Properties(headers={"x-death": value}))
    properties, deaths = died(envelope, death())
    assert deaths == [("q", "rejected")]
    assert properties.headers is not None
    assert len(properties.headers["x-death"]) == 1


def test_an_x_death_from_the_client():
    client = {"queue": "q", "reason": "rejected", "count": 7, "more": "kept"}
    envelope = amqp_envelope(b"x", b"k", Properties(headers={"x-death": [client]}))
    properties, _ = died(envelope, death())
    assert properties.headers is not None
    assert properties.headers["x-death"] == [{**client, "count": 8}]


# --- what a publisher can send and nobody should stumble over ---

HEADERS = b"\x20\x00"


def table(body: bytes) -> bytes:
    return HEADERS + len(body).to_bytes(4) + body


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(encode_properties(Properties(headers={"x-death": 5})), id="number"),
        pytest.param(encode_properties(Properties(headers={"x-death": None})), id="void"),
        pytest.param(encode_properties(Properties(headers={"x-death": [{}]})), id="empty entry"),
        pytest.param(
            encode_properties(
                Properties(
                    headers={"x-death": [{"queue": "q", "reason": "rejected", "count": "n"}]}
                )
            ),
            id="count is text",
        ),
        pytest.param(table(b"\x01tT" + b"\xff" * 8), id="date of 64 bits"),
        pytest.param(b"\x80\x00\x01\xff", id="content type is no text"),
        pytest.param(table(b"\x01t?"), id="table of unknown types"),
    ],
)
def test_dead_letters_of_any_properties_the_scanner_lets_through(raw):
    annotate_amqp(record(b"\x01x\x01k" + raw), death())


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([("correlation-id", b"c" * 256)], id="long property"),
        pytest.param([("correlation-id", b"\xff" * 100)], id="property grows by replacement"),
        pytest.param([("h" * 256, b"v")], id="long name"),
    ],
)
def test_native_headers_that_are_too_long_for_amqp(headers):
    amqp_parts(encode_headers(headers), NATIVE, topic="t")


def test_a_dead_letter_key_that_is_too_long():
    envelope = amqp_envelope(b"x", b"k", Properties())
    annotate_amqp(record(envelope), death(to_exchange="dlx", to_key=b"k" * 256))
