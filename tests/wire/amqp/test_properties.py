import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tables import only, pika_tables, tables

from braidmq.wire.amqp.errors import ConnectionError_, FrameError, TableError, UnexpectedFrame
from braidmq.wire.amqp.properties import (
    EMPTY_PROPERTIES,
    Properties,
    content_header_payload,
    decode_properties,
    encode_properties,
    split_content_header,
)

try:  # a second opinion, where it is installed
    from pika import spec as pika_spec
except ImportError:
    pika_spec = None
with_pika = pytest.mark.skipif(pika_spec is None, reason="pika is not installed")

short_strings = st.text(max_size=255).filter(lambda text: len(text.encode()) <= 255)
octets = st.integers(0, 255)
OTHERS = {
    "delivery_mode": octets,
    "priority": octets,
    "timestamp": st.integers(0, (1 << 64) - 1),
}
NAMES = Properties.__struct_fields__


def properties_with(headers: st.SearchStrategy) -> st.SearchStrategy[Properties]:
    kinds = OTHERS | {"headers": headers}
    return st.fixed_dictionaries(
        {name: st.none() | kinds.get(name, short_strings) for name in NAMES}
    ).map(lambda values: Properties(**values))


properties = properties_with(tables)


@settings(deadline=None)
@given(properties)
def test_round_trip(props):
    raw = encode_properties(props)
    assert decode_properties(raw) == props
    assert decode_properties(memoryview(raw)) == props


def test_known_bytes():
    raw = b"\x90\x00\x0atext/plain\x02"
    assert encode_properties(Properties(content_type="text/plain", delivery_mode=2)) == raw
    assert encode_properties(Properties()) == EMPTY_PROPERTIES
    assert encode_properties(Properties(cluster_id="")) == b"\x00\x04\x00"


def test_absent_is_not_empty():
    assert decode_properties(b"\x80\x00\x00").content_type == ""
    assert decode_properties(b"\x00\x00").content_type is None
    assert decode_properties(b"\x20\x00\x00\x00\x00\x00").headers == {}


def test_more_words_of_flags_may_follow_if_empty():
    assert decode_properties(b"\x10\x01\x00\x01\x00\x00\x02") == Properties(delivery_mode=2)
    for raw in (b"\x10\x01\x80\x00\x02", b"\x10\x02\x02", b"\x10\x01", b"\x10\x01\x00"):
        with pytest.raises(FrameError):
            decode_properties(raw)


def test_words_of_flags_without_end():
    with pytest.raises(FrameError, match="flags"):
        decode_properties(b"\x00\x01" * 60_000)


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x00", b"\x80\x00", b"\x80\x00\x05ab", b"\x10\x00", b"\x00\x40" + bytes(7),
     b"\x80\x00\x01\xff", b"\x00\x00x", b"\x20\x00\x00\x00"],
)  # fmt: skip
def test_malformed(raw):
    with pytest.raises(FrameError) as caught:
        decode_properties(raw)
    assert caught.value.reply_code == 501


def test_bad_headers_are_a_table_error():
    with pytest.raises(TableError):
        decode_properties(b"\x20\x00\x00\x00\x00\x03\x01kZ")


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_random_bytes_raise_only_typed_errors(raw):
    for decoder in (decode_properties, split_content_header):
        with only(ConnectionError_, (501, 502, 505)):
            decoder(raw)


@settings(deadline=None)
@given(properties, st.data())
def test_damaged_properties_raise_only_typed_errors(props, data):
    raw = bytearray(encode_properties(props))
    for position in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[position] = data.draw(octets)
    with only(ConnectionError_, (501, 502)):
        decode_properties(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@pytest.mark.parametrize(
    "props",
    [Properties(priority=256), Properties(timestamp=-1), Properties(user_id="u" * 256)],
)
def test_values_that_do_not_fit(props):
    with pytest.raises(ValueError, match=r"."):
        encode_properties(props)


@settings(deadline=None)
@given(st.integers(0, (1 << 64) - 1), properties)
def test_content_header(body_size, props):
    raw = encode_properties(props)
    payload = content_header_payload(body_size, raw)
    assert payload[:4] == b"\x00\x3c\x00\x00"
    assert split_content_header(payload) == (body_size, raw)
    assert split_content_header(memoryview(payload)) == (body_size, raw)


def test_content_header_of_another_class():
    for start in (b"\x00\x32\x00\x00", b"\x00\x3c\x00\x01"):
        with pytest.raises(UnexpectedFrame) as caught:
            split_content_header(start + bytes(10))
        assert caught.value.reply_code == 505
    with pytest.raises(FrameError):
        split_content_header(b"\x00\x3c\x00\x00" + bytes(9))


@with_pika
@settings(deadline=None)
@given(properties_with(pika_tables))
def test_pika_writes_and_reads_the_same_bytes(props):
    peer = pika_spec.BasicProperties(**{name: getattr(props, name) for name in NAMES})
    raw = b"".join(peer.encode())
    assert encode_properties(props) == raw
    decoded = pika_spec.BasicProperties().decode(raw)
    assert all(getattr(decoded, name) == getattr(props, name) for name in NAMES)
