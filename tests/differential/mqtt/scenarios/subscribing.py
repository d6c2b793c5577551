"""SUBSCRIBE with each of its options, overlapping and shared subscriptions, UNSUBSCRIBE."""

from typing import Any

from tests.differential.mqtt import wire
from tests.differential.mqtt.client import Client, Event, Observation, Stage
from tests.differential.mqtt.scenarios import only_v3, only_v5, scenario

NO_LOCAL, AS_PUBLISHED = 4, 8


def payloads(events: list[Event]) -> list[str]:
    return [each["payload"] for each in events]


@scenario
def each_qos_is_granted(s: Stage) -> Observation:
    return s.on().subscribe(("~/a", 0), ("~/b", 1), ("~/c", 2))


@scenario
def one_filter_twice_in_a_packet(s: Stage) -> Observation:
    c = s.on()
    answer = c.subscribe(("~/a", 0), ("~/a", 2))
    s.on("p").pub("~/a", qos=2)
    return [answer, c.message(), c.rest()]


@scenario
def again_with_another_qos(s: Stage) -> Observation:
    c = s.on().sub("~/a", qos=2)
    answer = c.subscribe("~/a", qos=0)
    s.on("p").pub("~/a", qos=2)
    return [answer, c.message(), c.rest()]


MATCHES = {
    "~/a": ["~/a", "~/a/", "~/a/b", "~/A"],
    "~/+": ["~/a", "~", "~/", "~/a/b"],
    "~/#": ["~", "~/a", "~/a/b", "~/", "~//"],
    "~/+/b": ["~/a/b", "~//b", "~/b", "~/a/c"],
    "~/+/+": ["~/a/b", "~/a", "~//", "~/a/b/c"],
    "~/a/#": ["~/a", "~/a/b/c", "~/ab"],
    "~/+/#": ["~", "~/a", "~/a/b"],
    "~//a": ["~//a", "~/a"],
    "+~/x": ["~/x"],
}


def matching(pattern: str) -> Any:
    def act(s: Stage) -> Observation:
        c = s.on()
        answer = c.subscribe(pattern)
        if answer["m"] != "suback":
            return [answer, c.rest()]
        for topic in MATCHES[pattern]:
            c.publish(topic)
        return sorted(each["topic"] for each in c.rest())

    return act


FILTERS = {
    "hash_behind_text": "~/a#",
    "hash_before_the_end": "~/#/a",
    "plus_behind_text": "~/a+",
    "plus_before_text": "~/+a/b",
    "empty": "",
    "with_a_null": "~/a\0b",
    "share_without_filter": "$share/g",
    "share_with_empty_filter": "$share/g/",
    "share_without_group": "$share//~/a",
    "share_group_with_plus": "$share/+/~/a",
    "share_group_with_hash": "$share/#/~/a",
    "share_with_wrong_filter": "$share/g/~/#/a",
    "only_share": "$share",
}


def filtered(pattern: str) -> Any:
    def act(s: Stage) -> Observation:
        c = s.on()
        return [c.subscribe(pattern), c.rest()]

    return act


@scenario
def filter_that_is_not_utf8(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.subscribe(s.version, 1, [(b"a/\xff", 0)]))
    return c.rest()


def options(value: int, pattern: str = "~/a") -> Any:
    def act(s: Stage) -> Observation:
        c = s.on()
        return [c.subscribe((pattern, value)), c.rest()]

    return act


@scenario
def without_filters(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.subscribe(s.version, 1, []))
    return c.rest()


@scenario
def without_options(s: Stage) -> Observation:
    c = s.on()
    body = b"\0\1" + wire.properties(s.version, None) + wire.text(s.name("~/a"))
    c.raw(wire.packet("subscribe", body, 2))
    return c.rest()


@scenario
def packet_id_0(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.subscribe(s.version, 0, [(s.name("~/a"), 0)]))
    return c.rest()


@scenario
def wrong_flags(s: Stage) -> Observation:
    c = s.on()
    whole = wire.subscribe(s.version, 1, [(s.name("~/a"), 0)])
    c.raw(bytes((0x80,)) + whole[1:])
    return c.rest()


# --- options ---


@only_v5
def no_local(s: Stage) -> Observation:
    c = s.on().sub(("~/a", NO_LOCAL))
    c.publish("~/a", "mine")
    s.on("p").publish("~/a", "theirs")
    return payloads([c.take(), *c.rest()])


@only_v3
def a_bridge_gets_nothing_back(s: Stage) -> Observation:
    c = s.on(level=0x84).sub("~/a", qos=1)
    c.pub("~/a", "mine", qos=1)
    p = s.on("p")
    p.publish("~/a", "theirs", qos=1, retain=True)
    return c.rest()


@only_v3
def a_bridge_gets_nothing_back_from_its_session(s: Stage) -> Observation:
    c = s.on(level=0x84, keep=True).sub("~/a", qos=1)
    p = s.on("p")
    c.disconnect()
    p.pub("~/a", "theirs", qos=1, retain=True)
    c.on(level=0x84, keep=True)
    c.pub("~/a", "mine", qos=1)
    return c.rest()


@only_v5
def no_local_follows_the_client_id(s: Stage) -> Observation:
    c = s.on(keep=True).sub(("~/a", NO_LOCAL | 1))
    c.pub("~/a", "mine", qos=1)
    c.on(keep=True)
    c.pub("~/a", "mine again", qos=1)
    return c.rest()


@only_v5
def no_local_and_an_overlapping_subscription(s: Stage) -> Observation:
    c = s.on().sub(("~/a", NO_LOCAL | 2)).sub(("~/+", 1))
    c.publish("~/a", "mine", qos=2)
    return [each for each in c.rest() if each["m"] == "publish"]


@only_v5
def retain_as_published(s: Stage) -> Observation:
    c = s.on("s").sub(("~/a", AS_PUBLISHED), ("~/b", 0))
    p = s.on("p")
    for topic in ("~/a", "~/b"):
        p.publish(topic, retain=True)
        p.publish(topic, retain=False)
    return [each.get("retain", False) for each in c.several(4)]


@only_v5
def retain_as_published_of_queued_messages(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub(("~/a", AS_PUBLISHED | 1))
    c.disconnect()
    p = s.on("p")
    p.pub("~/a", "1", qos=1, retain=True)
    p.pub("~/a", "2", qos=1)
    c.on(keep=True)
    return c.messages(2)


@only_v5
def options_are_replaced(s: Stage) -> Observation:
    c = s.on().sub(("~/a", NO_LOCAL)).sub(("~/a", 0))
    c.publish("~/a", "mine")
    return payloads(c.rest())


# --- identifiers ---


def with_id(c: Client, pattern: str, number: int, qos: int = 0) -> Event:
    return c.subscribe(pattern, qos=qos, props={"subscription_id": number})


@only_v5
def identifier(s: Stage) -> Observation:
    c = s.on()
    with_id(c, "~/a", 7)
    c.publish("~/a")
    return c.take()


@only_v5
def identifier_of_the_largest_number(s: Stage) -> Observation:
    c = s.on()
    with_id(c, "~/a", 268_435_455)
    c.publish("~/a")
    return c.take()


@only_v5
def identifier_is_replaced(s: Stage) -> Observation:
    c = s.on()
    with_id(c, "~/a", 7)
    with_id(c, "~/a", 8)
    c.publish("~/a", "1")
    first = c.rest()
    c.sub("~/a")
    c.publish("~/a", "2")
    return [first, c.rest()]


@only_v5
def identifier_0(s: Stage) -> Observation:
    c = s.on()
    return [with_id(c, "~/a", 0), c.rest()]


@only_v5
def identifier_twice(s: Stage) -> Observation:
    c = s.on()
    return [c.subscribe("~/a", props={"subscription_id": [1, 2]}), c.rest()]


@only_v5
def identifiers_survive_with_the_session(s: Stage) -> Observation:
    c = s.on("s", keep=True)
    with_id(c, "~/a", 7, qos=1)
    c.disconnect()
    s.on("p").pub("~/a", qos=1)
    c.on(keep=True)
    return c.message()


# --- overlapping ---


@scenario
def overlapping_is_one_message_at_the_highest_qos(s: Stage) -> Observation:
    c = s.on().sub(("~/a", 0), ("~/+", 2), ("~/#", 1))
    s.on("p").pub("~/a", qos=2)
    found = [c.message(), *c.rest()]
    return max(each["qos"] for each in found if each["m"] == "publish")


@scenario
def overlapping_count(s: Stage) -> Observation:
    c = s.on().sub(("~/a", 1), ("~/+", 1))
    s.on("p").pub("~/a", qos=1)
    return [c.message(), *c.rest()]


@only_v5
def overlapping_identifiers(s: Stage) -> Observation:
    c = s.on()
    with_id(c, "~/a", 1)
    with_id(c, "~/+", 2)
    c.sub("~/#")
    s.on("p").publish("~/a")
    return c.rest()


@scenario
def overlapping_and_queued(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub(("~/a", 1), ("~/+", 1))
    c.disconnect()
    s.on("p").pub("~/a", qos=1)
    c.on(keep=True)
    return [c.message(), *c.rest()]


# --- unsubscribing ---


@scenario
def unsubscribe(s: Stage) -> Observation:
    c = s.on().sub("~/a", "~/b")
    answer = c.unsubscribe("~/a")
    c.publish("~/a", "a")
    c.publish("~/b", "b")
    return [answer, payloads([c.take(), *c.rest()])]


@scenario
def unsubscribe_from_several_and_unknown(s: Stage) -> Observation:
    c = s.on().sub("~/a", "~/b")
    return c.unsubscribe("~/a", "~/never", "~/b")


@scenario
def unsubscribe_compares_text(s: Stage) -> Observation:
    c = s.on().sub("~/+")
    answer = c.unsubscribe("~/a")
    c.publish("~/a")
    return [answer, payloads([c.take()])]


@scenario
def unsubscribe_without_filters(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.unsubscribe(s.version, 1, []))
    return c.rest()


@scenario
def unsubscribe_from_wrong_filter(s: Stage) -> Observation:
    c = s.on()
    return [c.unsubscribe("~/#/a"), c.rest()]


@scenario
def unsubscribe_from_what_is_not_utf8(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.unsubscribe(s.version, 1, [b"\xff"]))
    return c.rest()


@scenario
def unsubscribe_with_packet_id_0(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.unsubscribe(s.version, 0, ["a"]))
    return c.rest()


@scenario
def unsubscribe_with_wrong_flags(s: Stage) -> Observation:
    c = s.on()
    c.raw(bytes((0xA0,)) + wire.unsubscribe(s.version, 1, ["a"])[1:])
    return c.rest()


@scenario
def unsubscribe_completes_what_was_sent(s: Stage) -> Observation:
    c = s.on("s").sub("~/a", qos=2)
    s.on("p").pub("~/a", qos=2)
    message = c.take()
    answer = c.unsubscribe("~/a")
    c.answer("pubrec", message)
    released = c.take()
    c.answer("pubcomp", message)
    return [message, answer, released, c.rest()]


@scenario
def unsubscribe_survives_with_the_session(s: Stage) -> Observation:
    c = s.on("s", keep=True).sub("~/a", qos=1)
    c.unsubscribe("~/a")
    c.disconnect()
    s.on("p").pub("~/a", qos=1)
    return [c.connect(keep=True), c.rest()]


# --- shared ---


def members(s: Stage, qos: int = 0) -> list[Client]:
    return [s.on(label).sub("$share/g/~/a", qos=qos) for label in ("one", "two")]


@scenario
def shared_by_turns(s: Stage) -> Observation:
    group = members(s, 1)
    p = s.on("p")
    for number in range(6):
        p.pub("~/a", str(number), qos=1)
    found = [each["payload"] for c in group for each in c.rest()]
    return sorted(found)


@scenario
def shared_and_plain(s: Stage) -> Observation:
    c = s.on("one").sub("$share/g/~/a", "~/a")
    s.on("p").pub("~/a", qos=1)
    return payloads(c.rest())


@scenario
def two_groups(s: Stage) -> Observation:
    c = s.on("one").sub("$share/g/~/a", "$share/h/~/a")
    s.on("p").pub("~/a", qos=1)
    return payloads(c.rest())


@scenario
def shared_with_wildcards(s: Stage) -> Observation:
    c = s.on("one").sub("$share/g/~/+/#")
    s.on("p").publish("~/a/b")
    return [c.take(), c.rest()]


@scenario
def shared_after_a_member_left(s: Stage) -> Observation:
    one, two = members(s)
    one.disconnect()
    p = s.on("p")
    for payload in "ab":
        p.publish("~/a", payload)
    return payloads(two.several(2))


@scenario
def shared_after_a_member_unsubscribed(s: Stage) -> Observation:
    one, two = members(s)
    answer = one.unsubscribe("$share/g/~/a")
    p = s.on("p")
    for payload in "ab":
        p.publish("~/a", payload)
    return [answer, payloads(two.several(2)), one.rest()]


@scenario
def shared_gets_no_retained_messages(s: Stage) -> Observation:
    s.on("p").pub("~/a", "kept", qos=1, retain=True)
    c = s.on()
    return [c.subscribe("$share/g/~/a"), c.rest()]


@scenario
def shared_and_gone_for_a_while(s: Stage) -> Observation:
    c = s.on("one", keep=True).sub("$share/g/~/a", qos=1)
    c.disconnect()
    s.on("p").pub("~/a", qos=1)
    c.on(keep=True)
    return [c.message(), c.rest()]


@only_v5
def shared_with_no_local(s: Stage) -> Observation:
    c = s.on()
    return [c.subscribe(("$share/g/~/a", NO_LOCAL)), c.rest()]


@only_v5
def shared_with_identifier(s: Stage) -> Observation:
    c = s.on()
    with_id(c, "$share/g/~/a", 9)
    s.on("p").publish("~/a")
    return c.take()


@scenario
def shared_at_different_qos(s: Stage) -> Observation:
    one = s.on("one").sub("$share/g/~/a", qos=0)
    two = s.on("two").sub("$share/g/~/a", qos=1)
    p = s.on("p")
    for payload in "abcd":
        p.pub("~/a", payload, qos=1)
    return sorted(
        {(name, each["qos"]) for name, c in (("1", one), ("2", two)) for each in c.rest()}
    )


TABLE = {
    **{f"match_{number}": scenario(matching(each)) for number, each in enumerate(MATCHES)},
    **{f"filter_{name}": scenario(filtered(pattern)) for name, pattern in FILTERS.items()},
    "qos_3": scenario(options(3)),
    "reserved_bit_6": scenario(options(0x40)),
    "reserved_bit_7": scenario(options(0x80)),
    "bit_2": scenario(options(NO_LOCAL)),
    "retain_handling_3": only_v5(options(0x30)),
}
