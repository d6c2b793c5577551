"""Queue arguments as topic settings, and what a redeclaration must repeat."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.engine.engine import Engine
from braidmq.engine.policy import QUEUE_SETTINGS, layered, make_policy
from braidmq.engine.topics import Mode, Topic
from braidmq.gateways.amqp.queues import (
    EQUIVALENT,
    check_properties,
    mode_of,
    queue_type,
    require_equivalent,
    server_name,
    settings_of,
    stream_start,
)
from braidmq.record.batch import RecordBatch
from braidmq.storage.disk import MemoryDisk
from braidmq.wire.amqp.constants import ReplyCode
from braidmq.wire.amqp.errors import ChannelError

TOO_MUCH = 1 << 40
TEN_YEARS_MS = 315_360_000_000
"""The most that RabbitMQ takes."""
NOW_MS = 1_700_000_000_000
QUORUM = {"x-queue-type": "quorum"}
STREAM = {"x-queue-type": "stream"}


def refused(arguments) -> str:
    with pytest.raises(ChannelError) as caught:
        settings_of(arguments, "q", "/")
    assert caught.value.reply_code == ReplyCode.PRECONDITION_FAILED
    return caught.value.text


# --- settings ---


@pytest.mark.parametrize(
    ("arguments", "own"),
    [
        ({}, {}),
        ({"x-message-ttl": 5000}, {"ttl_ms": 5000}),
        ({"x-message-ttl": 0}, {"ttl_ms": 1}),
        ({"x-message-ttl": TEN_YEARS_MS}, {"ttl_ms": TEN_YEARS_MS}),
        ({"x-expires": 1}, {"idle_expires_ms": 1}),
        ({"x-max-length": 0}, {"max_messages": 0}),
        ({"x-max-length": 10}, {"max_messages": 10}),
        ({"x-max-length-bytes": TOO_MUCH}, {"max_bytes": TOO_MUCH}),
        ({"x-overflow": "drop-head"}, {"overflow": "drop-head"}),
        ({"x-overflow": "reject-publish"}, {"overflow": "reject"}),
        ({"x-overflow": "reject-publish-dlx"}, {"overflow": "dead-letter"}),
        ({"x-max-priority": 0}, {"priority": "strict", "priority_levels": 1}),
        ({"x-max-priority": 10}, {"priority": "strict", "priority_levels": 11}),
        ({"x-max-priority": 255}, {"priority": "strict", "priority_levels": 256}),
        ({"x-dead-letter-exchange": "dlx"}, {"dead_letter": {"exchange": "dlx"}}),
        ({"x-dead-letter-exchange": ""}, {"dead_letter": {"exchange": ""}}),
        (
            {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
            {"dead_letter": {"exchange": "", "routing_key": "dead"}},
        ),
        ({**QUORUM, "x-delivery-limit": 0}, {"retry": {"attempts": 1}}),
        ({**QUORUM, "x-delivery-limit": 4}, {"retry": {"attempts": 5}}),
        ({"x-keep-acknowledged-ms": 5000}, {"retention": {"keep_acked_ms": 5000}}),
        ({**QUORUM, "x-keep-acknowledged-bytes": 9}, {"retention": {"keep_acked_bytes": 9}}),
        ({"x-queue-version": 2}, {}),
        ({"x-queue-type": "classic"}, {}),
        ({"x-queue-type": "quorum"}, {}),
        ({"x-queue-type": "stream"}, {}),
        ({**STREAM, "x-max-age": "1h"}, {"retention": {"time_ms": 3_600_000}}),
        ({**STREAM, "x-max-length-bytes": 9}, {"max_bytes": 9}),
        ({**STREAM, "x-stream-max-segment-size-bytes": 9, "x-initial-cluster-size": 1}, {}),
        ({**QUORUM, "x-queue-leader-locator": "balanced", "x-quorum-initial-group-size": 3}, {}),
        ({**QUORUM, "x-dead-letter-strategy": "at-most-once", "x-max-in-memory-length": 0}, {}),
        ({"x-queue-mode": "lazy"}, {}),
        ({"x-single-active-consumer": True}, {}),
        ({"x-message-ttl": None, "x-max-length": None, "x-overflow": None}, {}),
        ({"x-something-of-mine": [1, 2]}, {}),
    ],
)
def test_settings(arguments, own):
    found = settings_of(arguments, "q", "/")
    assert found == own
    make_policy(layered(queue_type(arguments), {}, found))


def test_an_empty_queue_is_requeued_at_once_and_forever():
    policy = make_policy(layered("classic", {}, settings_of({}, "q", "/")))
    assert (policy.partitions, policy.retry.attempts, policy.retry.base_ms) == (1, 0, 0)
    assert policy.retention.until_acked
    assert policy.dead_letter.topic is None
    assert policy.dead_letter.exchange is None


def test_settings_are_not_shared():
    settings_of({**QUORUM, "x-dead-letter-exchange": "dlx", "x-delivery-limit": 1}, "q", "/")
    assert "exchange" not in QUEUE_SETTINGS["dead_letter"]
    assert QUEUE_SETTINGS["retry"]["attempts"] == 0


values = st.one_of(
    st.integers(-2, 300),
    st.sampled_from([1 << 31, 1 << 32, 1 << 62, -(1 << 63)]),
    st.sampled_from(
        ["", "classic", "quorum", "stream", "drop-head", "lazy", "default", "nonsense"]
    ),
    st.sampled_from([None, True, False, 1.5, b"\xff", b"quorum", [], {}]),
)


@given(st.dictionaries(st.sampled_from([*EQUIVALENT, "x-other"]), values, max_size=6))
@settings(deadline=None, max_examples=300)
def test_any_arguments_make_a_policy_or_are_refused(arguments):
    try:
        found = settings_of(arguments, "q", "/")
    except ChannelError as error:
        (name,) = re.findall(r"^invalid (?:arg|type .+ for arg) '([^']+)' ", error.text)
        assert name in arguments
    else:
        make_policy(layered(queue_type(arguments), {}, found))


NUMBERS = ["x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority"]
TEXTS = ["x-overflow", "x-queue-type", "x-queue-mode"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, -1) for name in NUMBERS),
        *((name, value) for name in NUMBERS for value in ("5", True, 1.0, [], b"5")),
        *((name, value) for name in TEXTS for value in (5, False, {}, [])),
        ("x-expires", 0),
        ("x-expires", TOO_MUCH),
        ("x-message-ttl", TEN_YEARS_MS + 1),
        ("x-max-priority", 256),
        ("x-overflow", "drop-tail"),
        ("x-queue-type", "fast"),
        ("x-queue-mode", ""),
        ("x-single-active-consumer", "true"),
        ("x-single-active-consumer", 1),
        ("x-dead-letter-routing-key", "without an exchange"),
        ("x-queue-version", 3),
    ],
)
def test_wrong_arguments(name, value):
    assert refused({name: value}).startswith(f"invalid arg '{name}' for queue 'q' in vhost '/': ")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", TOO_MUCH, "{value_too_large,1099511627776}"),
        ("x-message-ttl", TEN_YEARS_MS + 1, "{value_too_large,315360000001}"),
        ("x-message-ttl", 1.0, '"expected integer, got double"'),
        ("x-expires", -5, "{value_negative,-5}"),
        ("x-expires", 0, "{value_zero,0}"),
        ("x-max-length", -1, "{value_negative,-1}"),
        ("x-max-length", "5", '"expected integer, got longstr"'),
        ("x-max-priority", 256, "{max_value_exceeded,256}"),
        ("x-overflow", "drop-tail", "invalid_overflow"),
        ("x-overflow", 5, "{unacceptable_type,signedint}"),
        ("x-queue-mode", "busy", "\"unsupported queue mode 'busy'\""),
        ("x-queue-type", "heap", "\"unsupported queue type 'heap'\""),
        ("x-queue-version", 3, "\"unsupported queue version '3'\""),
        ("x-single-active-consumer", "true", "{unacceptable_type,longstr}"),
        ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
    ],
)
def test_reasons_as_rabbitmq_gives_them(name, value, reason):
    """Recorded from RabbitMQ: tests/differential/amqp/expected.json."""
    assert refused({name: value}) == f"invalid arg '{name}' for queue 'q' in vhost '/': {reason}"


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("x-delivery-limit", 3, "classic"),
        ("x-delivery-limit", 3, "stream"),
        ("x-max-age", "1h", "classic"),
        ("x-max-age", "1h", "quorum"),
        ("x-max-priority", 5, "quorum"),
        ("x-queue-mode", "lazy", "quorum"),
        ("x-message-ttl", 5, "stream"),
        ("x-expires", 5, "stream"),
        ("x-max-length", 5, "stream"),
        ("x-overflow", "drop-head", "stream"),
        ("x-dead-letter-exchange", "", "stream"),
        ("x-single-active-consumer", True, "stream"),
        ("x-queue-version", 2, "quorum"),
        ("x-stream-max-segment-size-bytes", 5, "quorum"),
        ("x-keep-acknowledged-ms", 5, "stream"),
        ("x-keep-acknowledged-bytes", 5, "stream"),
    ],
)
def test_arguments_of_other_types_of_queue(name, value, kind):
    assert refused({name: value, "x-queue-type": kind}) == (
        f"invalid arg '{name}' for queue 'q' in vhost '/' of queue type rabbit_{kind}_queue"
    )


@pytest.mark.parametrize(
    ("value", "kind"), [(5, "signedint"), (False, "bool"), ({}, "table"), ([], "array")]
)
def test_a_dead_letter_exchange_is_text(value, kind):
    assert refused({"x-dead-letter-exchange": value}) == (
        f"invalid type '{kind}' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"
    )


SOUND = {"durable": True, "exclusive": False, "auto_delete": False}


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"durable": False}, "non-durable"),
        ({"exclusive": True}, "exclusive-owner"),
        ({"auto_delete": True}, "auto-delete"),
    ],
)
@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_replicated_queues_are_durable_and_nobodys_own(changed, name, kind):
    check_properties({}, "q", "/", **{**SOUND, **changed})
    check_properties({"x-queue-type": kind}, "q", "/", **SOUND)
    with pytest.raises(ChannelError) as caught:
        check_properties({"x-queue-type": kind}, "q", "/", **{**SOUND, **changed})
    assert caught.value.text == f"invalid property '{name}' for queue 'q' in vhost '/'"


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        ({}, Mode.SHARED),
        ({"x-single-active-consumer": False}, Mode.SHARED),
        ({"x-single-active-consumer": None}, Mode.SHARED),
        ({"x-single-active-consumer": True}, Mode.SINGLE_ACTIVE),
    ],
)
def test_mode(arguments, mode):
    assert mode_of(arguments) is mode


def test_names_by_the_server():
    found = {server_name() for _ in range(100)}
    assert len(found) == 100
    assert all(re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", name) for name in found)


# --- redeclaration ---

SAMPLES = {
    "x-expires": (60_000, 60_001),
    "x-message-ttl": (60_000, 60_001),
    "x-dead-letter-exchange": ("amq.direct", "amq.fanout"),
    "x-dead-letter-routing-key": ("k", "l"),
    "x-max-length": (10, 11),
    "x-max-length-bytes": (1000, 1001),
    "x-max-priority": (5, 6),
    "x-overflow": ("drop-head", "reject-publish"),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-type": ("quorum", "stream"),
    "x-single-active-consumer": (True, False),
    "x-delivery-limit": (3, 4),
    "x-queue-version": (1, 2),
    "x-queue-master-locator": ("min-masters", "client-local"),
    "x-keep-acknowledged-ms": (60_000, 60_001),
    "x-keep-acknowledged-bytes": (1000, 1001),
}


def queue(*, durable: bool = True, auto_delete: bool = False, **arguments) -> Topic:
    amqp = {"durable": durable, "auto_delete": auto_delete, "arguments": arguments}
    return Topic(
        1, "/", "q", {}, make_policy(), durable=durable, now_ms=0, attributes={"amqp": amqp}
    )


def inequivalent(topic: Topic, *, durable=True, auto_delete=False, **arguments) -> str:
    with pytest.raises(ChannelError) as caught:
        require_equivalent(topic, durable=durable, auto_delete=auto_delete, arguments=arguments)
    assert caught.value.reply_code == ReplyCode.PRECONDITION_FAILED
    return caught.value.text


def test_every_argument_has_a_sample():
    assert set(SAMPLES) == set(EQUIVALENT)


@pytest.mark.parametrize("name", EQUIVALENT)
def test_the_same_again(name):
    for value in (*SAMPLES[name], None):
        require_equivalent(
            queue(**{name: value}), durable=True, auto_delete=False, arguments={name: value}
        )


@pytest.mark.parametrize("name", EQUIVALENT)
@pytest.mark.parametrize(("old", "new"), [(0, 1), (1, 0), (None, 0), (0, None)])
def test_another_value(name, old, new):
    was = {} if old is None else {name: SAMPLES[name][old]}
    now = {} if new is None else {name: SAMPLES[name][new]}
    text = inequivalent(queue(**was), **now)
    assert text.startswith(f"inequivalent arg '{name}' for queue 'q' in vhost '/': received ")


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        (
            {"x-expires": 60000},
            {},
            "received none but current is the value '60000' of type 'signedint'",
        ),
        (
            {},
            {"x-expires": 60000},
            "received the value '60000' of type 'signedint' but current is none",
        ),
        (
            {"x-single-active-consumer": True},
            {},
            "received none but current is the value 'true' of type 'bool'",
        ),
        (
            {},
            {"x-dead-letter-exchange": "d"},
            "received the value 'd' of type 'longstr' but current is none",
        ),
        ({"x-expires": 60_000}, {"x-expires": 60_001}, "received '60001' but current is '60000'"),
        (
            {"x-single-active-consumer": True},
            {"x-single-active-consumer": False},
            "received 'false' but current is 'true'",
        ),
        (
            {"x-queue-mode": "default"},
            {"x-queue-mode": "lazy"},
            "received 'lazy' but current is 'default'",
        ),
    ],
)
def test_differences_as_rabbitmq_tells_them(was, now, told):
    """Recorded from RabbitMQ: tests/differential/amqp/expected.json."""
    assert inequivalent(queue(**was), **now).endswith(f" in vhost '/': {told}")


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("name", ["durable", "auto_delete"])
def test_properties_of_the_queue(name, old):
    words = {True: "'true'", False: "'false'"}
    assert inequivalent(queue(**{name: old}), **{name: not old}) == (
        f"inequivalent arg '{name}' for queue 'q' in vhost '/': "
        f"received {words[not old]} but current is {words[old]}"
    )


def test_classic_is_what_a_queue_is_if_nothing_is_said():
    said = {"x-queue-type": "classic"}
    require_equivalent(queue(), durable=True, auto_delete=False, arguments=said)
    require_equivalent(queue(**said), durable=True, auto_delete=False, arguments={})
    inequivalent(queue(), **{"x-queue-type": "quorum"})


def test_other_arguments_may_differ():
    require_equivalent(
        queue(**{"x-mine": 1}), durable=True, auto_delete=False, arguments={"x-mine": 2}
    )


def test_a_topic_that_was_not_made_over_amqp():
    topic = Topic(1, "/", "t", {}, make_policy(), durable=False, now_ms=0)
    require_equivalent(topic, durable=False, auto_delete=False, arguments={})
    assert "'durable'" in inequivalent(topic, durable=True)


@pytest.mark.parametrize(
    ("wanted", "start"),
    [
        ("first", "earliest"),
        ("next", "latest"),
        ("last", 4),
        (0, 0),
        (3, 3),
        (-1, None),
        ("1h", f"@{NOW_MS - 3_600_000}"),
        (datetime.fromtimestamp(5, UTC), "@5000"),
        ("yesterday", None),
        (True, None),
        (1.5, None),
    ],
)
def test_where_a_consumer_of_a_stream_begins(wanted, start):
    engine = Engine.open(MemoryDisk(), NOW_MS)
    topic = engine.topics.create("/", "s", now_ms=NOW_MS, kind="stream")
    batch = RecordBatch()
    for _ in range(5):
        batch.append(b"m", timestamp_ms=NOW_MS)
    engine.publishing.publish(topic, batch, now_ms=NOW_MS)
    assert stream_start(topic, wanted, NOW_MS) == start
    engine.close()
