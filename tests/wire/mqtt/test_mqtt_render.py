"""Deliveries against the oracle's bytes, and back: what was published is what is read."""

import itertools
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqtt_oracle import publish, split_envelope, split_packets

from braidmq.record.batch import RecordBatch
from braidmq.wire.mqtt.constants import Kind, Version
from braidmq.wire.mqtt.packets import Publish, decode, encode
from braidmq.wire.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
    decode_properties,
    encode_properties,
)
from braidmq.wire.mqtt.publish import ENVELOPE_MQTT
from braidmq.wire.mqtt.render import (
    delivery_runs,
    render_acks,
    render_publishes,
    sequential_ids,
)
from braidmq.wire.mqtt.scan import CLIENT, EVENT_PUBLISH, SERVER, Scanner

NOW_MS = 1_700_000_000_000

topics = st.sampled_from(["t", "sport/tennis", "été/😀", "n" * 600])
message_properties = st.just(NO_PROPERTIES) | st.builds(
    Properties,
    payload_format_indicator=st.sampled_from([None, 1]),
    message_expiry_interval=st.sampled_from([None, 0, 1, 60, 0xFFFFFFFF]),
    content_type=st.sampled_from([None, "", "text/plain"]),
    response_topic=st.sampled_from([None, "reply/to"]),
    correlation_data=st.sampled_from([None, b"\x02\0\0\0\x05"]),
    user_properties=st.sampled_from([(), (("a", "b"), ("", "c" * 200))]),
)
payloads = st.one_of(
    st.binary(max_size=20),
    # Around the edges of the remaining length's bytes.
    st.sampled_from([100, 120, 121, 122, 123, 124, 125, 126, 127, 128, 16_370, 16_383, 16_384]).map(
        lambda size: (bytes(range(256)) * 65)[:size]
    ),
)
messages = st.tuples(topics, payloads, message_properties, st.integers(0, 2), st.booleans())


def batch_of(messages, keyed: bool = False) -> RecordBatch:
    batch = RecordBatch()
    for topic, payload, properties, qos, retain in messages:
        name = topic.encode()
        raw = encode_properties(properties, Kind.PUBLISH)
        expiry_s = properties.message_expiry_interval
        batch.append(
            payload,
            key=b"some key" if keyed else None,  # moves what comes after it
            envelope=bytes((qos | retain << 2,)) + len(name).to_bytes(2) + name + raw,
            envelope_format=ENVELOPE_MQTT,
            timestamp_ms=NOW_MS,
            expires_at_ms=0 if expiry_s is None else NOW_MS + max(1, expiry_s * 1000),
        )
    return batch


@given(
    st.lists(messages, max_size=6),
    st.data(),
    st.sampled_from([4, 5, 5]),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), (1,), (1, 128, 16_384)]),
    st.sampled_from([0, 0, 1, 0xFFFF]),
    st.booleans(),
    st.sampled_from([0, 1, 999, 1000, 1001, 59_999, 10**9]),
    st.sampled_from([1 << 28, 1 << 28, 130]),
)
@settings(deadline=None, max_examples=300)
def test_publishes(
    messages, data, version, qos, retain, dup, subscriptions, alias, is_set, later_ms, size_max
):
    batch = batch_of(messages, keyed=data.draw(st.booleans()))
    first = data.draw(st.integers(0, batch.count))
    stop = data.draw(st.integers(first, batch.count))
    ids = sequential_ids(65_534, stop - first)
    own = Properties(subscription_identifiers=subscriptions)
    extra = encode_properties(own, Kind.PUBLISH)
    rendered, reached = render_publishes(
        batch,
        first,
        stop,
        version=version,
        qos=qos,
        retain=retain,
        dup=dup,
        packet_ids=ids if qos else None,
        properties=extra,
        topic_alias=alias,
        alias_is_set=is_set,
        now_ms=NOW_MS + later_ms,
        packet_bytes_max=size_max,
    )
    packets = [
        publish(
            record,
            version,
            qos,
            retain,
            dup,
            packet_id,
            extra,
            alias,
            alias == 0 or (index == 0 and not is_set),
            NOW_MS + later_ms,
        )
        for index, (record, packet_id) in enumerate(
            zip(batch.records()[first:stop], ids, strict=True)
        )
    ]
    fitting = next((i for i, each in enumerate(packets) if len(each) > size_max), len(packets))
    assert reached == first + fitting
    assert rendered == b"".join(packets[:fitting])


@given(st.lists(messages, min_size=1, max_size=5), st.sampled_from([4, 5]), st.integers(0, 2))
@settings(deadline=None, max_examples=100)
def test_there_and_back(messages, version, qos):
    """Published by a client, scanned by the server, rendered, scanned by the client."""
    sent = [
        Publish(topic, payload, qos, False, False, i if qos else 0, properties)
        for i, (topic, payload, properties, *_) in enumerate(messages, 1)
    ]
    data = b"".join(encode(each, version) for each in sent)
    events, used = Scanner(SERVER, version).scan(data, len(data))
    assert used == len(data)
    out, next_id = b"", 1
    for kind, run in events:
        assert kind == EVENT_PUBLISH
        batch = run.batch(data, NOW_MS)
        ids = sequential_ids(next_id, run.count)
        next_id += run.count
        rendered, reached = render_publishes(
            batch, 0, run.count, version=version, qos=qos, packet_ids=ids, now_ms=NOW_MS
        )
        assert reached == run.count
        # What comes is what goes, where nothing has to be changed.
        assert rendered == data[run.start : run.stop]
        out += rendered
    events, used = Scanner(CLIENT, version).scan(out, len(out))
    assert used == len(out)
    received = [decode(version, Kind.PUBLISH, p[0] & 15, body_of(p)) for p in split_packets(out)]
    if version == Version.V3_1_1:
        sent = [Publish(p.topic, p.payload, p.qos, packet_id=p.packet_id) for p in sent]
    assert received == sent


def body_of(packet: bytes) -> bytes:
    at = 1
    while packet[at] & 0x80:
        at += 1
    return packet[at + 1 :]


FACT_NAMES = ("partition", "offset", "delivery-count", "timestamp-ms")
user_properties = st.lists(
    st.tuples(st.one_of(st.sampled_from(FACT_NAMES), st.just("a")), st.sampled_from(["", "9"])),
    max_size=5,
)


@given(st.lists(user_properties, min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 12))
@settings(deadline=None)
def test_facts_are_user_properties_whatever_publishers_call_so(given, attempts, partition):
    said = [
        Properties(content_type="t", message_expiry_interval=60, user_properties=tuple(each))
        for each in given
    ]
    batch = batch_of([("a/b", b"v", each, 1, False) for each in said])
    batch.place(95)
    rendered, _ = render_publishes(
        batch,
        0,
        batch.count,
        version=Version.V5,
        now_ms=NOW_MS + 10_000,
        partition=partition,
        attempts=attempts,
    )
    for number, packet in enumerate(split_packets(rendered)):
        found = decode(Version.V5, Kind.PUBLISH, packet[0] & 15, body_of(packet))
        facts = (partition, 95 + number, attempts, NOW_MS)
        wanted = list(zip(FACT_NAMES, map(str, facts), strict=True))
        wanted += [each for each in given[number] if each[0] not in FACT_NAMES]
        assert list(found.properties.user_properties) == wanted
        assert found.properties.message_expiry_interval == 50
        assert (found.properties.content_type, found.payload) == ("t", b"v")


def test_the_expiry_interval_counts_down():
    batch = batch_of([("t", b"", Properties(message_expiry_interval=60), 0, False)])
    for waited_ms, left_s in (
        (0, 60),
        (999, 60),
        (1000, 59),
        (59_001, 1),
        (60_000, 0),
        (70_000, 0),
    ):
        ((packet, _),) = [render_publishes(batch, 0, 1, version=5, now_ms=NOW_MS + waited_ms)]
        found = decode(5, Kind.PUBLISH, 0, body_of(packet))
        assert isinstance(found, Publish)
        assert found.properties.message_expiry_interval == left_s


def test_a_batch_read_back_from_memory_of_others():
    batch = batch_of([("t", b"%d" % i, NO_PROPERTIES, 1, False) for i in range(5)])
    again = RecordBatch.scan(bytes(batch), base_offset=70)
    for each in (again, batch.at_offset(1000)):
        assert render_publishes(each, 1, 4, version=5) == render_publishes(batch, 1, 4, version=5)


# --- runs of a batch ---


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), topics, st.integers(0, 7)), max_size=12))
@settings(deadline=None, max_examples=150)
def test_delivery_runs(rows):
    batch = RecordBatch()
    for envelope_format, topic, flags in rows:
        name = topic.encode()
        envelope = bytes((flags,)) + len(name).to_bytes(2) + name
        batch.append(b"v", envelope=envelope, envelope_format=envelope_format)
    for first in range(batch.count + 1):
        for stop in range(first, batch.count + 1):
            told, at = [], first
            for end, *what in delivery_runs(batch, first, stop):
                assert end > at
                told += [tuple(what)] * (end - at)
                at = end
            assert at == stop
            assert told == [described(row) for row in rows[first:stop]]
            runs = delivery_runs(batch, first, stop)
            assert all(a[1:] != b[1:] for a, b in itertools.pairwise(runs))


def described(row) -> tuple[int, int, bytes]:
    envelope_format, topic, flags = row
    if envelope_format != ENVELOPE_MQTT:
        return envelope_format, 0, b""
    return envelope_format, flags, topic.encode()


def test_the_envelope_is_taken_apart_as_documented():
    data = encode(
        Publish("a/é", b"v", 2, True, False, 5, Properties(topic_alias=1, content_type="x"))
    )
    ((_, run),), _ = Scanner(SERVER, 5, topic_alias_max=1).scan(data, len(data))
    flags, topic, raw = split_envelope(run.batch(data, NOW_MS).record(0).envelope)
    assert (flags, topic) == (2 | 4, "a/é".encode())
    assert decode_properties(raw, Kind.PUBLISH) == Properties(content_type="x")


# --- acknowledgements and ids ---


@pytest.mark.parametrize("kind", [Kind.PUBACK, Kind.PUBREC, Kind.PUBREL, Kind.PUBCOMP])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("reason", [0, 0x92])
def test_acks(kind, version, reason):
    ids = array("H", [1, 255, 256, 0xFFFF])
    told = reason if version == Version.V5 else 0
    found = [
        decode(version, p[0] >> 4, p[0] & 15, body_of(p))
        for p in split_packets(render_acks(kind, ids, version, reason if kind >= 6 else 0))
    ]
    assert [(p.KIND, p.packet_id, p.reason) for p in found] == [
        (kind, each, told if kind >= 6 else 0) for each in ids
    ]
    assert render_acks(kind, ids, version) == b"".join(
        bytes((kind << 4 | (2 if kind == Kind.PUBREL else 0), 2)) + each.to_bytes(2) for each in ids
    )
    assert render_acks(kind, array("H"), version) == b""


def test_sequential_ids():
    assert list(sequential_ids(65_534, 4)) == [65_534, 65_535, 1, 2]
    assert list(sequential_ids(1, 0)) == []
    for wrong in (0, 65_536):
        with pytest.raises(ValueError, match="packet id"):
            sequential_ids(wrong, 1)


def test_our_own_mistakes():
    batch = batch_of([("t", b"", NO_PROPERTIES, 0, False)])
    with pytest.raises(ValueError, match="packet id"):
        render_publishes(batch, 0, 1, version=5, qos=1)
    with pytest.raises(ValueError, match="packet id"):
        render_publishes(batch, 0, 1, version=5, qos=1, packet_ids=array("H"))
    for first, stop in ((0, 2), (-1, 1), (1, 0)):
        with pytest.raises(IndexError):
            render_publishes(batch, first, stop, version=5)
        with pytest.raises(IndexError):
            delivery_runs(batch, first, stop)
    other = RecordBatch()
    other.append(b"v", envelope_format=1, envelope=b"\0\0\0\0")
    with pytest.raises(ValueError, match="MQTT"):
        render_publishes(other, 0, 1, version=5)
