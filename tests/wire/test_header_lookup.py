"""One header of an envelope, against what Python reads of it."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.amqp.properties import Properties, encode_properties
from braidmq.wire.envelopes import AMQP, MQTT, NAMED, NATIVE, encode_headers, native_headers
from braidmq.wire.header_lookup import find_header
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import Properties as MqttProperties
from braidmq.wire.mqtt.properties import encode_properties as encode_mqtt

NAMES = ["id", "i", "identity", "", "content-type", "message-id", "reply-to", "correlation-id"]
names = st.sampled_from([*NAMES, "x-key", "äö"])
text = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=8)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    text,
    st.binary(max_size=8),
    st.none(),
    st.just(Decimal("1.5")),
    st.just(datetime(2020, 1, 2, tzinfo=UTC)),
)
fields = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
amqp = st.fixed_dictionaries(
    {
        **dict.fromkeys(NAMED, st.none() | text),
        "headers": st.none() | st.dictionaries(names, fields, max_size=4),
        "delivery_mode": st.none() | st.integers(0, 255),
        "priority": st.none() | st.integers(0, 255),
        "expiration": st.none() | st.just("100"),
        "timestamp": st.none() | st.integers(0, 1 << 40),
        "cluster_id": st.none() | text,
    }
).map(lambda each: Properties(**each))
mqtt = st.fixed_dictionaries(
    {
        "content_type": st.none() | text,
        "correlation_data": st.none() | st.binary(max_size=5),
        "response_topic": st.none() | st.just("a/b.c"),
        "payload_format_indicator": st.none() | st.integers(0, 1),
        "message_expiry_interval": st.none() | st.integers(0, 1 << 30),
        "user_properties": st.lists(st.tuples(names, text), max_size=4).map(tuple),
    }
).map(lambda each: MqttProperties(**each))
native = st.lists(st.tuples(names, st.binary(max_size=6)), max_size=5)


def envelopes() -> st.SearchStrategy[tuple[int, bytes]]:
    return st.one_of(
        native.map(lambda each: (NATIVE, encode_headers(each))),
        st.tuples(st.binary(max_size=5), st.binary(max_size=5), amqp).map(
            lambda each: (
                AMQP,
                bytes((len(each[0]),))
                + each[0]
                + bytes((len(each[1]),))
                + each[1]
                + encode_properties(each[2]),
            )
        ),
        mqtt.map(lambda each: (MQTT, b"\x01\0\x03a/b" + encode_mqtt(each, Kind.PUBLISH))),
    )


@given(envelopes(), names)
def test_it_is_what_the_headers_say(envelope: tuple[int, bytes], name: str) -> None:
    assert find_header(*envelope, name.encode()) == dict(native_headers(*envelope)).get(name)


@given(envelopes(), names, st.data())
def test_what_is_cut_off_does_no_harm(
    envelope: tuple[int, bytes], name: str, data: st.DataObject
) -> None:
    cut = envelope[1][: data.draw(st.integers(0, len(envelope[1])))]
    found = find_header(envelope[0], cut, name.encode())
    assert found is None or found == dict(native_headers(*envelope)).get(name) or found in cut


@given(st.integers(0, 3), st.binary(max_size=60))
def test_any_bytes_do(envelope_format: int, envelope: bytes) -> None:
    find_header(envelope_format, envelope, b"id")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(42, b"42"), (-1, b"-1"), (True, b"true"), ("42", b"42"), (None, b"null"), (1.5, b"1.5")],
)
def test_a_number_is_the_key_that_its_text_is(value: object, expected: bytes) -> None:
    raw = encode_properties(Properties(headers={"id": value}))  # type: ignore[dict-item]
    assert find_header(AMQP, b"\0\0" + raw, b"id") == expected
