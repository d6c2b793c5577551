"""What dead letters say of their end: in every protocol the same, whatever a publisher wrote."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.engine.envelope import DEATH, NATIVE, PATH, Death, annotate, encode_headers
from braidmq.gateways.deaths import Dead, death_of, without_deaths
from braidmq.gateways.translation import amqp_parts, mqtt_properties, native_headers
from braidmq.record.batch import Record
from braidmq.wire.amqp.properties import Properties, decode_properties
from braidmq.wire.envelopes import AMQP, MQTT, amqp_envelope, split_amqp
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.properties import Properties as MqttProperties
from braidmq.wire.mqtt.properties import encode_properties as encode_mqtt
from braidmq.wire.mqtt.text import write_string

AT_MS = 1_700_000_000_999
AT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
DIED = Death("max-attempts", "/", "t", 3, 5, "billing", AT_MS, "no luck")
SAYS = Dead("t", "max-attempts", AT_MS, 3, 17, 5, "billing", "no luck")


def mqtt_envelope(topic: str) -> bytes:
    properties = MqttProperties(user_properties=(("mine", "1"),))
    return b"\1" + write_string(topic) + encode_mqtt(properties, Kind.PUBLISH)


ENVELOPES = {
    "http": (NATIVE, encode_headers({"mine": b"1"})),
    "amqp": (AMQP, amqp_envelope(b"x", b"k", Properties(headers={"mine": "1"}))),
    "mqtt": (MQTT, mqtt_envelope("a/b")),
    "queue": (MQTT, mqtt_envelope("$queue/t")),
}


def letter(came: str, *deaths: Death) -> Record:
    form, envelope = ENVELOPES[came]
    record = Record(17, 5000, b"key", b"v", envelope, form)
    for each in deaths:
        form, envelope, _ = annotate(record, each)
        record = record._replace(envelope=envelope, envelope_format=form)
    return record


def over_amqp(record: Record) -> dict[str, Any]:
    raw = amqp_parts(record.envelope, record.envelope_format, record, topic="t.dlq")[2]
    return decode_properties(raw).headers or {}


@pytest.mark.parametrize("came", ENVELOPES)
def test_everything_is_told_whatever_it_came_over(came: str) -> None:
    record = letter(came, DIED)
    assert death_of(record) == SAYS
    facts = {
        "topic": "t",
        "reason": "max-attempts",
        "partition": "3",
        "offset": "17",
        "attempts": "5",
        "subscription": "billing",
        "time": str(AT_MS),
        "error": "no luck",
    }
    texts = {DEATH + name: value for name, value in facts.items()}
    assert texts.items() <= dict(mqtt_properties(record).user_properties).items()
    assert texts.items() <= {k: v.decode() for k, v in native_headers(record)}.items()
    told = over_amqp(record)
    assert {name: str(told[name]) for name in texts} == texts
    numbers = [told[DEATH + name] for name in ("partition", "offset", "attempts", "time")]
    assert numbers == [3, 17, 5, AT_MS]
    (entry,) = told["x-death"]
    assert (entry["queue"], entry["reason"], entry["count"]) == ("t", "delivery_limit", 1)
    assert entry["time"] == AT
    assert {"exchange", "routing-keys"} < entry.keys()
    assert told["x-first-death-queue"] == "t"
    assert told["x-first-death-reason"] == "delivery_limit"
    assert told["mine"] == "1"
    assert PATH not in told


@pytest.mark.parametrize("came", ENVELOPES)
def test_a_second_death_is_told_and_the_first_one_kept(came: str) -> None:
    later = DIED._replace(topic="u", reason="rejected", at_ms=AT_MS + 9000, error="")
    record = letter(came, DIED, later, DIED._replace(at_ms=AT_MS + 20_000))
    found = death_of(record)
    assert found is not None
    assert (found.topic, found.at_ms) == ("t", AT_MS + 20_000)
    told = over_amqp(record)
    said = [(e["queue"], e["reason"], e["count"], e["time"]) for e in told["x-death"]]
    second = datetime(2023, 11, 14, 22, 13, 29, tzinfo=UTC)
    assert said == [("t", "delivery_limit", 2, AT), ("u", "rejected", 1, second)]
    assert (told["x-first-death-queue"], told["x-first-death-reason"]) == ("t", "delivery_limit")


@pytest.mark.parametrize("came", ENVELOPES)
def test_what_a_full_topic_refused_stood_nowhere(came: str) -> None:
    record = letter(came, DIED._replace(partition=-1, subscription="", reason="maxlen"))
    found = death_of(record)
    assert found is not None
    assert (found.partition, found.offset, found.reason) == (None, None, "maxlen")


@pytest.mark.parametrize("came", ENVELOPES)
def test_a_letter_that_goes_back_is_as_it_was(came: str) -> None:
    through = DIED._replace(to_exchange="dlx", to_key=b"dead", new_key=True)
    record = letter(came, through)
    form, envelope = without_deaths(record)
    back = record._replace(envelope=envelope, envelope_format=form)
    assert death_of(back) is None
    before = amqp_parts(*reversed(ENVELOPES[came]), record, topic="t")
    after = amqp_parts(envelope, form, back, topic="t")
    if came != "queue":  # its name is the topic it is in
        assert after[:2] == before[:2]
    then, now = decode_properties(before[2]), decode_properties(after[2])
    assert now.headers == then.headers
    assert now.content_type == then.content_type


def test_copies_go_back_with_it() -> None:
    sent = Properties(headers={"CC": ["c1", "c2"]})
    record = Record(0, 0, None, b"v", amqp_envelope(b"x", b"k", sent), AMQP)
    through = DIED._replace(to_exchange="dlx", to_key=b"dead", new_key=True)
    dead = record._replace(envelope=annotate(record, through)[1])
    assert split_amqp(dead.envelope)[:2] == (b"dlx", b"dead")
    assert without_deaths(dead) == (AMQP, record.envelope)


def test_letters_of_earlier_versions() -> None:
    """AMQP's had RabbitMQ's words only; the paths of native ones had no times."""
    entry = {"queue": "q", "reason": "delivery_limit", "count": 2, "time": AT}
    old = Properties(headers={"x-death": [entry], "x-first-death-queue": "q"})
    record = Record(0, 0, None, b"v", amqp_envelope(b"x", b"k", old), AMQP)
    assert death_of(record) == Dead("q", "max-attempts", AT_MS // 1000 * 1000)
    said = {f"{DEATH}{name}": value for name, value in NATIVE_BEFORE.items()}
    native = Record(0, 0, None, b"v", encode_headers(said), NATIVE)
    assert death_of(native) == Dead("t", "expired", 5, 0, 1, 2, "s", "")
    entries = over_amqp(native)["x-death"]
    assert [(e["queue"], e["reason"]) for e in entries] == [("t", "expired"), ("u", "rejected")]


NATIVE_BEFORE = {
    "first-topic": b"u",
    "first-reason": b"rejected",
    "reason": b"expired",
    "topic": b"t",
    "partition": b"0",
    "offset": b"1",
    "attempts": b"2",
    "subscription": b"s",
    "time": b"5",
    "error": b"",
    "path": encode_headers([("t", b"expired"), ("u", b"rejected")]),
}

names = st.sampled_from([*[DEATH + name for name in NATIVE_BEFORE], "x-death", "x-death-"])
said = st.one_of(
    st.binary(max_size=12), st.sampled_from([b"t", b"rejected", b"7", b"-1", b"9" * 40])
)


@given(st.dictionaries(names, said))
@settings(deadline=None, max_examples=300)
def test_whatever_a_publisher_says_of_deaths(headers: dict[str, bytes]) -> None:
    """It is read or left alone, it can be told to everybody, and it can die and come back."""
    texts = {name: value.decode("utf-8", "replace") for name, value in headers.items()}
    for form, envelope in (
        (NATIVE, encode_headers(headers)),
        (AMQP, amqp_envelope(b"x", b"k", Properties(headers=texts))),
    ):
        record = Record(17, 5000, None, b"v", envelope, form)
        death_of(record)
        over_amqp(record)
        mqtt_properties(record)
        if PATH in headers and form == NATIVE:
            continue  # a path that is none can't be gone on with: see below
        form, envelope, _ = annotate(record, DIED)
        dead = record._replace(envelope=envelope, envelope_format=form)
        assert death_of(dead) == SAYS
        form, envelope = without_deaths(dead)
        assert death_of(dead._replace(envelope=envelope, envelope_format=form)) is None


def test_a_path_that_is_none_is_begun_anew() -> None:
    headers = encode_headers({PATH: b"\xff\xff"})
    record = Record(17, 5000, None, b"v", headers, NATIVE)
    form, envelope, deaths = annotate(record, DIED)
    assert deaths == [("t", "max-attempts")]
    assert death_of(record._replace(envelope=envelope, envelope_format=form)) == SAYS
