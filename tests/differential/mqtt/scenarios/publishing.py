"""PUBLISH, its answers, and what goes wrong between them."""

from typing import Any

from tests.differential.mqtt import wire
from tests.differential.mqtt.client import V5, Observation, Stage
from tests.differential.mqtt.scenarios import only_v5, scenario


def each_qos(published: int, subscribed: int) -> Any:
    def act(s: Stage) -> Observation:
        c = s.on("s").sub("~/t", qos=subscribed)
        answer = s.on("p").pub("~/t", "payload", qos=published)
        return [answer, c.message(), c.rest()]

    return act


@scenario
def nobody_subscribed(s: Stage) -> Observation:
    c = s.on()
    return [c.pub("~/t", qos=1), c.pub("~/t", qos=2)]


@scenario
def empty_payload(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=1)
    return [s.on("p").pub("~/t", "", qos=1), c.message()]


@scenario
def large_payload(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=1)
    s.on("p").pub("~/t", "x" * 90_000, qos=1)
    return len(c.message()["payload"])


@scenario
def order_is_kept(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=2)
    p = s.on("p")
    for number in range(15):
        p.publish("~/t", str(number), qos=1)
    answers = p.several(15)
    return [[each["id"] for each in answers], [each["payload"] for each in c.messages(15)]]


@scenario
def own_messages_come_back(s: Stage) -> Observation:
    c = s.on().sub("~/t")
    c.publish("~/t", "mine")
    return c.take()


@scenario
def other_version_receives(s: Stage) -> Observation:
    other = 4 if s.version == V5 else V5
    c = s.on("s", other).sub("~/t", qos=2)
    s.on("p").pub("~/t", "payload", qos=2)
    return c.message()


# --- QoS 1 and 2 with packets that come twice or not at all ---


@scenario
def qos_1_sent_twice_is_two_messages(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=1)
    p = s.on("p")
    p.pub("~/t", qos=1, packet_id=7)
    p.pub("~/t", qos=1, packet_id=7, dup=True)
    return [[each["payload"] for each in c.messages(2)], c.rest()]


@scenario
def dup_is_not_handed_on(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=1)
    s.on("p").pub("~/t", qos=1, dup=True)
    return c.message()


@scenario
def qos_2_sent_twice_is_one_message(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=1)
    p = s.on("p")
    p.publish("~/t", qos=2, packet_id=7)
    first = p.take()
    p.publish("~/t", qos=2, packet_id=7, dup=True)
    again = p.take()
    p.answer("pubrel", 7)
    return [first, again, p.take(), c.message(), c.rest()]


@scenario
def qos_2_resent_after_reconnect_is_one_message(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=1)
    p = s.on("p", keep=True)
    p.publish("~/t", qos=2, packet_id=7)
    seen: list[Any] = [p.take()]
    p.drop()
    seen.append(p.connect(keep=True))
    p.publish("~/t", qos=2, packet_id=7, dup=True)
    seen.append(p.take())
    p.answer("pubrel", 7)
    return [*seen, p.take(), c.message(), c.rest()]


@scenario
def qos_2_id_is_free_after_pubcomp(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=1)
    p = s.on("p")
    for payload in ("a", "b"):
        p.pub("~/t", payload, qos=2, packet_id=7)
    return [each["payload"] for each in c.messages(2)]


@scenario
def qos_2_pubrel_twice(s: Stage) -> Observation:
    p = s.on()
    p.pub("~/t", qos=2, packet_id=7)
    p.answer("pubrel", 7)
    return p.take()


@scenario
def qos_2_session_that_is_not_kept_forgets_its_ids(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=1)
    p = s.on("p")
    p.publish("~/t", "a", qos=2, packet_id=7)
    p.take()
    p.on()
    p.pub("~/t", "b", qos=2, packet_id=7)
    return sorted(each["payload"] for each in [c.message(), *c.rest()])


@scenario
def pubrel_of_an_unknown_id(s: Stage) -> Observation:
    c = s.on()
    c.answer("pubrel", 99)
    return c.take()


@scenario
def puback_of_an_unknown_id(s: Stage) -> Observation:
    c = s.on()
    c.answer("puback", 99)
    return c.rest()


@scenario
def pubrec_of_an_unknown_id(s: Stage) -> Observation:
    c = s.on()
    c.answer("pubrec", 99)
    return c.rest()


@scenario
def pubcomp_of_an_unknown_id(s: Stage) -> Observation:
    c = s.on()
    c.answer("pubcomp", 99)
    return c.rest()


# --- the packet ---

WRONG: dict[str, dict[str, Any]] = {
    "topic_with_plus": {"topic": "a/+"},
    "topic_with_hash": {"topic": "a/#"},
    "topic_is_empty": {"topic": ""},
    "topic_is_not_utf8": {"topic": b"a\xff\xfe"},
    "topic_with_a_null": {"topic": "a\0b"},
    "topic_with_a_surrogate": {"topic": b"a\xed\xa0\x80"},
    "topic_with_overlong_utf8": {"topic": b"a\xc0\xaf"},
    "qos_3": {"qos": 3, "packet_id": 1},
    "packet_id_0": {"qos": 1, "packet_id": 0},
    "dup_at_qos_0": {"dup": True},
}
WRONG_V5: dict[str, dict[str, Any]] = {
    "payload_format_2": {"props": {"payload_format": 2}},
    "payload_format_twice": {"props": {"payload_format": [0, 0]}},
    "message_expiry_twice": {"props": {"message_expiry": [1, 1]}},
    "content_type_twice": {"props": {"content_type": ["a", "a"]}},
    "response_topic_with_wildcards": {"props": {"response_topic": "a/#"}},
    "response_topic_that_is_not_utf8": {"props": {"response_topic": b"\xff"}},
    "content_type_that_is_not_utf8": {"props": {"content_type": b"\xff"}},
    "subscription_id": {"props": {"subscription_id": 5}},
    "alias_0": {"props": {"topic_alias": 0}},
    "alias_above_the_maximum": {"props": {"topic_alias": 11}},
    "alias_that_was_not_set": {"topic": "", "props": {"topic_alias": 3}},
    "property_of_connect": {"props": {"receive_maximum": 3}},
    "reason_string": {"props": {"reason_string": "why"}},
    "user_property_that_is_not_utf8": {"props": {"user": ("a", b"\xff")}},
}


def wrong(fields: dict[str, Any]) -> Any:
    def act(s: Stage) -> Observation:
        c = s.on()
        c.raw(wire.publish(s.version, **{"topic": s.name("~/t"), **fields}))
        return c.rest()

    return act


@scenario
def larger_than_allowed(s: Stage) -> Observation:
    c = s.on()
    c.publish("~/t", "x" * 100_001, qos=1)
    return c.several(2)


# --- names ---


def named(topic: str) -> Any:
    def act(s: Stage) -> Observation:
        c = s.on().sub("~/#")
        c.publish("~/" + topic)
        return c.take()

    return act


TOPICS = {
    "with_spaces": "a b",
    "with_empty_levels": "a//b/",
    "with_bom": "\ufeffa",
    "beyond_ascii": "größe/😀",
    "with_control_character": "a\x01b",
    "with_non_character": "a\uffffb",
    "that_is_long": "x" * 2000,
    "with_dollar_inside": "$a/b",
}


@scenario
def topics_that_begin_with_dollar(s: Stage) -> Observation:
    c = s.on().sub("$~/hidden", "+/hidden", "+/hidden/#")
    c.publish("$~/hidden")
    return c.rest()


@scenario
def topics_are_case_sensitive_and_not_normalised(s: Stage) -> Observation:
    c = s.on().sub("~/é", "~/A")
    for topic in ("~/e\u0301", "~/a", "~/é"):
        c.publish(topic)
    return [each["topic"] for each in c.rest()]


@scenario
def to_sys(s: Stage) -> Observation:
    c = s.on()
    c.publish("$SYS/broker/uptime", "1", qos=1)
    return c.rest()


# --- properties ---


@only_v5
def properties_travel(s: Stage) -> Observation:
    c = s.on("s").sub("~/t", qos=1)
    p = s.on("p")
    props = {
        "payload_format": 1,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation": b"\0\xff",
        "user": [("b", "1"), ("a", "2"), ("b", "1")],
    }
    seen = []
    for qos in (0, 1):
        p.pub("~/t", qos=qos, props=props)
        message = c.message()
        seen.append({**message, "props": dict(sorted(message["props"].items()))})
    return seen


@scenario
def properties_are_not_for_3_1_1(s: Stage) -> Observation:
    c = s.on("s", 4).sub("~/t", qos=1)
    s.on("p", V5).pub("~/t", qos=1, props={"content_type": "text", "user": ("a", "b")})
    return c.message()


# --- topic aliases ---


@only_v5
def alias_is_set_used_and_changed(s: Stage) -> Observation:
    c = s.on("s").sub("~/#")
    p = s.on("p")
    for topic, payload in (("~/a", "1"), ("", "2"), ("~/b", "3"), ("", "4")):
        p.publish(topic, payload, props={"topic_alias": 2})
    return [(each["topic"], each["payload"]) for each in c.messages(4)]


@only_v5
def alias_of_the_maximum(s: Stage) -> Observation:
    c = s.on().sub("~/#")
    c.publish("~/a", props={"topic_alias": 10})
    return c.take()


@only_v5
def aliases_are_of_one_connection(s: Stage) -> Observation:
    c = s.on(keep=True)
    c.publish("~/a", props={"topic_alias": 1})
    c.rest()
    c.on(keep=True)
    c.publish("", props={"topic_alias": 1})
    return c.several(2)


@only_v5
def alias_with_qos(s: Stage) -> Observation:
    c = s.on("s").sub("~/#", qos=2)
    p = s.on("p")
    p.pub("~/a", "1", qos=1, props={"topic_alias": 1})
    p.pub("", "2", qos=2, props={"topic_alias": 1})
    return [(each["topic"], each["qos"]) for each in c.messages(2)]


@only_v5
def alias_of_a_retained_message(s: Stage) -> Observation:
    p = s.on("p")
    p.publish("~/a", "0", props={"topic_alias": 1})
    p.pub("", "1", qos=1, retain=True, props={"topic_alias": 1})
    c = s.on("s").sub("~/a")
    return c.take()


@only_v5
def aliases_of_the_broker(s: Stage) -> Observation:
    c = s.on("s", props={"topic_alias_maximum": 2}).sub("~/#")
    p = s.on("p")
    for topic in ("~/a", "~/a", "~/b"):
        p.publish(topic)
    return c.several(3)


# --- flow ---


@only_v5
def receive_maximum_of_the_client(s: Stage) -> Observation:
    c = s.on("s", props={"receive_maximum": 2}).sub("~/t", qos=2)
    p = s.on("p")
    for payload in "abcd":
        p.pub("~/t", payload, qos=2)
    first = c.several(2)
    held = c.rest()
    c.answer("pubrec", first[0])
    released = c.take()
    waits = c.rest()
    c.answer("pubcomp", first[0])
    return [first, held, released, waits, c.take(), c.rest()]


@only_v5
def qos_2_that_expires_is_completed(s: Stage) -> Observation:
    p = s.on()
    number = p.publish("~/t", qos=2, props={"message_expiry": 1})
    received = p.take()
    s.wait(1.5)
    p.answer("pubrel", number)
    return [received, p.take()]


@only_v5
def receive_maximum_and_a_refusing_pubrec(s: Stage) -> Observation:
    c = s.on("s", props={"receive_maximum": 1}).sub("~/t", qos=2)
    p = s.on("p")
    for payload in "ab":
        p.pub("~/t", payload, qos=2)
    c.answer("pubrec", c.take(), 0x80)
    return c.rest()


@only_v5
def receive_maximum_is_not_for_qos_0(s: Stage) -> Observation:
    c = s.on("s", props={"receive_maximum": 1}).sub("~/t", qos=1)
    p = s.on("p")
    p.pub("~/t", "a", qos=1)
    p.pub("~/t", "b", qos=1)
    p.publish("~/t", "c")
    return [each["payload"] for each in [*c.several(2), *c.rest()]]


@only_v5
def receive_maximum_of_the_broker(s: Stage) -> Observation:
    c = s.on()
    for number in range(1, 22):
        c.publish("~/t", qos=2, packet_id=number)
    return [each for each in c.rest() if each["m"] != "pubrec"]


@only_v5
def puback_with_an_error_is_an_answer(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/t", qos=1)
    s.on("p").pub("~/t", qos=1)
    c.answer("puback", c.take(), 0x80)
    c.rest()
    return [c.connect(keep=True), c.rest()]


@only_v5
def puback_with_an_unknown_reason(s: Stage) -> Observation:
    c = s.on().sub("~/t", qos=1)
    s.on("p").pub("~/t", qos=1)
    c.answer("puback", c.take(), 0x03)
    return c.rest()


@only_v5
def maximum_packet_size_of_the_client(s: Stage) -> Observation:
    c = s.on("s", props={"maximum_packet_size": 100}).sub("~/t", qos=1)
    p = s.on("p")
    for payload in ("a", "x" * 100, "b"):
        p.pub("~/t", payload, qos=1)
    return [[each["payload"] for each in c.messages(2)], c.rest()]


TABLE = {
    **{
        f"qos_{published}_to_subscription_of_{subscribed}": scenario(
            each_qos(published, subscribed)
        )
        for published in range(3)
        for subscribed in range(3)
    },
    **{name: scenario(wrong(fields)) for name, fields in WRONG.items()},
    **{name: only_v5(wrong(fields)) for name, fields in WRONG_V5.items()},
    **{f"topic_{name}": scenario(named(topic)) for name, topic in TOPICS.items()},
}
