import inspect
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tables import only, pika_tables, tables

from braidmq.wire.amqp import methods
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, ReplyCode
from braidmq.wire.amqp.errors import (
    AmqpError,
    ChannelError,
    ConnectionError_,
    FrameError,
    TableError,
    UnknownMethod,
)
from braidmq.wire.amqp.methods import (
    EXTENSIONS,
    HEARTBEAT_FRAME,
    METHODS,
    BasicAck,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicPublish,
    ConnectionOpen,
    ConnectionTune,
    MethodSpec,
    QueueDeclare,
    decode,
    encode,
    frame,
    method_frame,
)

try:  # a second opinion, where it is installed
    from pika import spec as pika_spec
except ImportError:
    pika_spec = None
with_pika = pytest.mark.skipif(pika_spec is None, reason="pika is not installed")

short_strings = st.text(max_size=255).filter(lambda text: len(text.encode()) <= 255)
OF_TYPE = {
    "octet": st.integers(0, 0xFF),
    "short": st.integers(0, 0xFFFF),
    "long": st.integers(0, 0xFFFFFFFF),
    "longlong": st.integers(0, 0xFFFFFFFFFFFFFFFF),
    "bit": st.booleans(),
    "shortstr": short_strings,
    "longstr": st.binary(max_size=300),
    "table": tables,
}
EVERY = METHODS + EXTENSIONS
ids = [spec.name for spec in METHODS]


def instances(spec: MethodSpec, **of_type) -> st.SearchStrategy[methods.Method]:
    pairs = [field.split(":") for field in spec.fields.split()]
    fields = {name: (OF_TYPE | of_type)[kind] for name, kind in pairs if name != "_"}
    return st.fixed_dictionaries(fields).map(lambda values: spec.method(**values))


any_method = st.one_of([instances(spec) for spec in EVERY])


@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: spec.name)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_round_trip(spec, data):
    method = data.draw(instances(spec))
    payload = encode(method)
    assert payload[:4] == struct.pack(">HH", spec.class_id, spec.method_id)
    assert decode(payload) == method
    assert decode(memoryview(payload)) == method


@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: spec.name)
def test_defaults_round_trip(spec):
    method = spec.method()
    assert decode(encode(method)) == method
    assert spec.name == method.NAME


def test_every_struct_is_in_the_table():
    defined = {
        member
        for _, member in inspect.getmembers(methods, inspect.isclass)
        if issubclass(member, methods.Method) and member is not methods.Method
    }
    assert defined == {spec.method for spec in EVERY}


def test_class_attributes():
    assert set(BasicGet.REPLIES) == {BasicGetOk, BasicGetEmpty}
    assert not BasicPublish.REPLIES
    for spec in METHODS:
        for reply in spec.replies:
            assert reply.NAME.startswith(spec.name) or spec.name == "basic.get"


# --- known bytes ---


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        (QueueDeclare("q", durable=True, nowait=True),
         b"\x00\x32\x00\x0a\x00\x00\x01q\x12\x00\x00\x00\x00"),
        (BasicAck(258, multiple=True), b"\x00\x3c\x00\x50" + bytes(6) + b"\x01\x02\x01"),
        (BasicDeliver("c", 1, True, "e", "r"),
         b"\x00\x3c\x00\x3c\x01c" + bytes(7) + b"\x01\x01\x01e\x01r"),
        (ConnectionTune(2047, 131072, 60), b"\x00\x0a\x00\x1e\x07\xff\x00\x02\x00\x00\x00\x3c"),
        (ConnectionOpen("/"), b"\x00\x0a\x00\x28\x01/\x00\x00"),
    ],
)  # fmt: skip
def test_known_bytes(method, payload):
    assert encode(method) == payload
    assert decode(payload) == method


def test_reserved_fields_and_spare_bits_are_ignored():
    assert decode(b"\x00\x0a\x00\x28\x01v\x03abc\xff") == ConnectionOpen("v")
    assert decode(b"\x00\x3c\x00\x28\x12\x34\x00\x01k\xfd") == BasicPublish("", "k", True)


def test_frames():
    assert HEARTBEAT_FRAME == b"\x08\x00\x00\x00\x00\x00\x00\xce"
    assert frame(3, 258, b"body") == b"\x03\x01\x02\x00\x00\x00\x04body\xce"
    assert frame(3, 1, memoryview(b"body")) == frame(3, 1, b"body")
    ack = BasicAck(1)
    assert method_frame(7, ack) == frame(1, 7, encode(ack))
    assert PROTOCOL_HEADER == b"AMQP\x00\x00\x09\x01"


# --- what the peer got wrong ---


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_random_bytes_raise_only_typed_errors(raw):
    with only(ConnectionError_, (501, 502, 540)):
        decode(raw)


@settings(deadline=None)
@given(any_method, st.data())
def test_damaged_methods_raise_only_typed_errors(method, data):
    raw = bytearray(encode(method))
    for position in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[position] = data.draw(st.integers(0, 255))
    raw += data.draw(st.binary(max_size=4))
    with only(ConnectionError_, (501, 502, 540)):
        decode(bytes(raw[: data.draw(st.integers(0, len(raw)))]))


@settings(deadline=None)
@given(any_method, st.data())
def test_every_cut_and_every_surplus_is_a_frame_error(method, data):
    payload = encode(method)
    for wrong in (payload[: data.draw(st.integers(0, len(payload) - 1))], payload + b"\x00"):
        with pytest.raises(FrameError) as caught:
            decode(wrong)
        if len(wrong) >= 4:
            got = (caught.value.class_id, caught.value.method_id)
            assert got == struct.unpack(">HH", payload[:4])


@pytest.mark.parametrize("ids", [(0, 0), (10, 12), (40, 41), (60, 121), (70, 10), (65535, 65535)])
def test_unknown_methods(ids):
    with pytest.raises(UnknownMethod) as caught:
        decode(struct.pack(">HH", *ids))
    assert caught.value.reply_code == 540
    assert (caught.value.class_id, caught.value.method_id) == ids


def test_bad_utf8_in_a_short_string_is_a_frame_error():
    with pytest.raises(FrameError) as caught:
        decode(b"\x00\x32\x00\x0a\x00\x00\x01\xff\x00\x00\x00\x00\x00")
    assert caught.value.reply_code == 501
    assert (caught.value.class_id, caught.value.method_id) == (50, 10)


def test_a_bad_table_is_a_syntax_error_of_its_method():
    with pytest.raises(TableError) as caught:
        decode(b"\x00\x32\x00\x0a\x00\x00\x01q\x00\x00\x00\x00\x03\x01kZ")
    assert caught.value.reply_code == 502
    assert (caught.value.class_id, caught.value.method_id) == (50, 10)


# --- what we got wrong ---


@pytest.mark.parametrize(
    "method", [QueueDeclare("q" * 256), BasicAck(-1), BasicAck(1 << 64), ConnectionTune(65536)]
)
def test_values_that_do_not_fit(method):
    with pytest.raises(ValueError, match=r"."):
        encode(method)


# --- errors ---


@settings(deadline=None)
@given(st.text(max_size=400))
def test_a_reply_text_always_fits(text):
    error = ChannelError(ReplyCode.NOT_FOUND, text, class_id=50, method_id=10)
    close = methods.ChannelClose(error.reply_code, error.reply_text, error.class_id)
    assert decode(encode(close)) == close
    assert error.reply_text.startswith("NOT_FOUND - ")
    assert isinstance(error, AmqpError)


# --- pika as a second opinion ---


@with_pika
def test_pika_knows_the_same_methods():
    ours = {spec.class_id << 16 | spec.method_id for spec in METHODS}
    assert set(pika_spec.methods) == ours


@with_pika
@pytest.mark.parametrize("spec", METHODS, ids=ids)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_pika_writes_the_same_bytes(spec, data):
    theirs = pika_spec.methods[spec.class_id << 16 | spec.method_id]
    method = data.draw(instances(spec, table=pika_tables))
    peer = theirs(**{name: getattr(method, name) for name in method.__struct_fields__})
    payload = struct.pack(">I", theirs.INDEX) + b"".join(peer.encode())
    assert encode(method) == payload
    assert decode(payload) == method
    assert peer.synchronous == bool(method.REPLIES)
