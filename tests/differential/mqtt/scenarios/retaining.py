"""Retained messages: kept, replaced, removed, and sent to whom and when."""

from tests.differential.mqtt.client import V5, Observation, Stage
from tests.differential.mqtt.scenarios import only_v5, scenario

ONLY_IF_NEW, NEVER = 1 << 4, 2 << 4


@scenario
def sent_to_a_new_subscriber(s: Stage) -> Observation:
    s.on("p").pub("~/a", "kept", qos=1, retain=True)
    c = s.on()
    return [c.subscribe("~/a", qos=1), c.message(), c.rest()]


@scenario
def qos_is_the_lower_one(s: Stage) -> Observation:
    p = s.on("p")
    for qos in range(3):
        p.pub(f"~/{qos}", str(qos), qos=qos, retain=True)
    p.rest()
    found = []
    for qos in range(3):
        c = s.on(f"c{qos}").sub("~/#", qos=qos)
        found.append(sorted((each["topic"], each["qos"]) for each in c.messages(3)))
    return found


@scenario
def replaced(s: Stage) -> Observation:
    p = s.on("p")
    for payload in ("old", "new"):
        p.pub("~/a", payload, qos=1, retain=True)
    return [each["payload"] for each in s.on().sub("~/a").rest()]


@scenario
def removed_by_an_empty_payload(s: Stage) -> Observation:
    p = s.on("p")
    p.pub("~/a", "kept", qos=1, retain=True)
    watcher = s.on("w").sub("~/a")
    before = watcher.rest()
    p.pub("~/a", "", qos=1, retain=True)
    return [before, watcher.rest(), s.on().sub("~/a").rest()]


@scenario
def not_removed_by_an_empty_payload_without_the_flag(s: Stage) -> Observation:
    p = s.on("p")
    p.pub("~/a", "kept", qos=1, retain=True)
    p.pub("~/a", "", qos=1)
    return [each["payload"] for each in s.on().sub("~/a").rest()]


@scenario
def not_replaced_without_the_flag(s: Stage) -> Observation:
    p = s.on("p")
    p.pub("~/a", "kept", qos=1, retain=True)
    p.pub("~/a", "passing", qos=1)
    return [each["payload"] for each in s.on().sub("~/a").rest()]


@scenario
def flag_is_not_set_for_those_already_there(s: Stage) -> Observation:
    c = s.on().sub("~/a", qos=1)
    s.on("p").pub("~/a", qos=1, retain=True)
    return c.message()


@scenario
def flag_is_not_set_in_queues(s: Stage) -> Observation:
    c = s.on(keep=True).sub("~/a", qos=1)
    c.disconnect()
    s.on("p").pub("~/a", qos=1, retain=True)
    c.on(keep=True)
    return [c.message(), c.rest()]


@scenario
def found_by_wildcards(s: Stage) -> Observation:
    p = s.on("p")
    for topic in ("~", "~/a", "~/a/b", "~/b", "~/$x"):
        p.pub(topic, topic, qos=1, retain=True)
    found = []
    for number, pattern in enumerate(("~/#", "~/+", "~/a/#", "~/+/b")):
        c = s.on(f"c{number}").sub(pattern)
        found.append(sorted(each["topic"] for each in c.rest()))
    return found


@scenario
def hidden_from_leading_wildcards(s: Stage) -> Observation:
    s.on("p").pub("$~/veiled", "kept", qos=1, retain=True)
    return [s.on().sub("+/veiled").rest(), s.on("d").sub("$~/#").rest()]


@scenario
def sent_again_when_subscribed_again(s: Stage) -> Observation:
    s.on("p").pub("~/a", "kept", qos=1, retain=True)
    c = s.on().sub("~/a")
    first = c.rest()
    return [first, c.sub("~/a").rest()]


@scenario
def sent_for_each_overlapping_subscription(s: Stage) -> Observation:
    s.on("p").pub("~/a", "kept", qos=1, retain=True)
    return len(s.on().sub("~/a", "~/+").rest())


@scenario
def not_sent_to_a_session_that_comes_back(s: Stage) -> Observation:
    c = s.on(keep=True).sub("~/a", qos=1)
    c.disconnect()
    s.on("p").pub("~/other", "kept", qos=1, retain=True)
    return [c.connect(keep=True), c.rest()]


@scenario
def outlives_its_publisher(s: Stage) -> Observation:
    p = s.on("p")
    p.pub("~/a", "kept", qos=1, retain=True)
    p.disconnect()
    return s.on().sub("~/a").take()


@scenario
def of_qos_0_is_kept(s: Stage) -> Observation:
    p = s.on("p")
    p.publish("~/a", "kept", retain=True)
    p.rest()
    return s.on().sub("~/a").take()


@scenario
def of_a_will(s: Stage) -> Observation:
    watcher = s.on("w").sub("~/w")
    c = s.on(will={"topic": s.name("~/w"), "retain": True})
    c.drop()
    return [watcher.take(), s.on("d").sub("~/w").take()]


@only_v5
def handling_1_is_only_for_new_ones(s: Stage) -> Observation:
    s.on("p").pub("~/a", "kept", qos=1, retain=True)
    c = s.on().sub(("~/a", ONLY_IF_NEW))
    first = c.rest()
    again = c.sub(("~/a", ONLY_IF_NEW)).rest()
    c.unsubscribe("~/a")
    return [first, again, c.sub(("~/a", ONLY_IF_NEW)).rest()]


@only_v5
def handling_1_and_a_session_that_comes_back(s: Stage) -> Observation:
    s.on("p").pub("~/a", "kept", qos=1, retain=True)
    c = s.on(keep=True).sub(("~/a", ONLY_IF_NEW))
    first = c.rest()
    c.on(keep=True)
    return [first, c.sub(("~/a", ONLY_IF_NEW)).rest()]


@only_v5
def handling_2_is_never(s: Stage) -> Observation:
    s.on("p").pub("~/a", "kept", qos=1, retain=True)
    return s.on().sub(("~/a", NEVER)).rest()


@only_v5
def properties_are_kept(s: Stage) -> Observation:
    props = {"content_type": "text", "user": [("a", "1"), ("b", "2")], "correlation": b"x"}
    s.on("p").pub("~/a", "kept", qos=1, retain=True, props=props)
    message = s.on().sub("~/a").take()
    return {**message, "props": dict(sorted(message["props"].items()))}


@only_v5
def with_an_identifier(s: Stage) -> Observation:
    s.on("p").pub("~/a", "kept", qos=1, retain=True)
    c = s.on()
    c.sub("~/a", props={"subscription_id": 5})
    return c.take()


@only_v5
def no_local_and_ones_own(s: Stage) -> Observation:
    c = s.on()
    c.pub("~/a", "kept", qos=1, retain=True)
    return c.sub(("~/a", 4)).rest()


@only_v5
def expires(s: Stage) -> Observation:
    p = s.on("p")
    p.pub("~/a", "short", qos=1, retain=True, props={"message_expiry": 1})
    p.pub("~/b", "long", qos=1, retain=True, props={"message_expiry": 1000})
    s.wait(2.1)
    found = s.on().sub("~/+").rest()
    return [
        (each["payload"], each["props"]["message_expiry"] in range(990, 1000)) for each in found
    ]


@scenario
def seen_by_the_other_version(s: Stage) -> Observation:
    other = 4 if s.version == V5 else V5
    s.on("p").pub("~/a", "kept", qos=1, retain=True)
    return s.on("c", other).sub("~/a", qos=1).take()
