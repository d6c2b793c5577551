"""Wills: when they are published, as what, and when not."""

from typing import Any

from tests.differential.mqtt import wire
from tests.differential.mqtt.client import Client, Observation, Stage
from tests.differential.mqtt.scenarios import only_v5, scenario


def watched(s: Stage, qos: int = 1) -> Client:
    return s.on("w").sub("~/w", qos=qos)


def will(s: Stage, **fields: Any) -> dict[str, Any]:
    return {"topic": s.name("~/w"), "payload": b"gone", **fields}


@scenario
def published_when_the_connection_is_lost(s: Stage) -> Observation:
    watcher = watched(s)
    s.on(will=will(s)).drop()
    return [watcher.message(), watcher.rest()]


@scenario
def published_when_the_socket_is_closed(s: Stage) -> Observation:
    watcher = watched(s)
    s.on(will=will(s)).close()
    return watcher.message()


@scenario
def of_each_qos(s: Stage) -> Observation:
    watcher = watched(s, 2)
    found = []
    for qos in range(3):
        s.on(f"c{qos}", will=will(s, qos=qos)).drop()
        found.append(watcher.message())
    return found


@scenario
def not_retained_without_the_flag(s: Stage) -> Observation:
    watcher = watched(s)
    s.on(will=will(s)).drop()
    return [watcher.message(), s.on("d").sub("~/w").rest()]


@scenario
def not_published_after_a_disconnect(s: Stage) -> Observation:
    watcher = watched(s)
    s.on(will=will(s)).disconnect()
    return watcher.rest()


@scenario
def of_a_kept_session(s: Stage) -> Observation:
    watcher = watched(s)
    s.on(keep=True, will=will(s)).drop()
    return watcher.message()


@scenario
def published_on_takeover(s: Stage) -> Observation:
    watcher = watched(s)
    old = s.on(will=will(s))
    new = s.client()
    return [new.connect(), old.several(2), watcher.message()]


@scenario
def published_on_takeover_of_a_kept_session(s: Stage) -> Observation:
    watcher = watched(s)
    old = s.on(keep=True, will=will(s))
    new = s.client()
    return [new.connect(keep=True), old.several(2), watcher.rest()]


@scenario
def published_after_a_protocol_error(s: Stage) -> Observation:
    watcher = watched(s)
    c = s.on(will=will(s))
    c.raw(wire.publish(s.version, "a/#", b"x"))
    return watcher.message()


@scenario
def published_after_silence(s: Stage) -> Observation:
    watcher = watched(s)
    c = s.on(keep_alive=1, will=will(s))
    return [c.several(2), watcher.message()]


@scenario
def gone_with_the_next_connection(s: Stage) -> Observation:
    watcher = watched(s)
    c = s.on(keep=True, will=will(s))
    c.disconnect()
    c.on(keep=True).drop()
    return watcher.rest()


@scenario
def published_once(s: Stage) -> Observation:
    watcher = watched(s)
    c = s.on(keep=True, will=will(s))
    c.drop()
    first = watcher.message()
    c.on(keep=True).drop()
    return [first, watcher.rest()]


@scenario
def queued_for_who_is_away(s: Stage) -> Observation:
    watcher = s.on("w", keep=True).sub("~/w", qos=1)
    watcher.disconnect()
    s.on(will=will(s, qos=1)).drop()
    s.on("marker").sub("~/marker")
    s.wait(0.3)
    watcher.on(keep=True)
    return watcher.message()


@only_v5
def disconnect_with_will(s: Stage) -> Observation:
    watcher = watched(s)
    s.on(will=will(s)).disconnect(4)
    return watcher.message()


@only_v5
def disconnect_with_an_error(s: Stage) -> Observation:
    watcher = watched(s)
    s.on(will=will(s)).disconnect(0x80)
    return watcher.rest()


@only_v5
def properties_travel(s: Stage) -> Observation:
    watcher = watched(s)
    props = {"content_type": "text", "payload_format": 1, "user": [("b", "1"), ("a", "2")]}
    s.on(will=will(s, props=props)).drop()
    message = watcher.message()
    return {**message, "props": dict(sorted(message["props"].items()))}


@only_v5
def expiry_of_the_will(s: Stage) -> Observation:
    watcher = watched(s)
    s.on(will=will(s, props={"message_expiry": 1000})).drop()
    return watcher.message()["props"]["message_expiry"] in range(995, 1001)


@only_v5
def delayed(s: Stage) -> Observation:
    watcher = watched(s)
    s.on(keep=True, will=will(s, props={"will_delay": 1})).drop()
    return [watcher.rest(), watcher.message()]


@only_v5
def delayed_and_back_in_time(s: Stage) -> Observation:
    watcher = watched(s)
    c = s.on(keep=True, will=will(s, props={"will_delay": 1}))
    c.drop()
    c.on(keep=True)
    s.wait(2.2)
    return watcher.rest()


@only_v5
def delayed_beyond_the_session(s: Stage) -> Observation:
    watcher = watched(s)
    s.on(will=will(s, props={"will_delay": 600})).drop()
    s.wait(0.5)
    return watcher.rest()


@only_v5
def delayed_and_the_session_is_ended(s: Stage) -> Observation:
    watcher = watched(s)
    c = s.on(keep=True, will=will(s, props={"will_delay": 600}))
    c.drop()
    c.on(clean=True)
    return watcher.rest()


@only_v5
def delayed_and_taken_over(s: Stage) -> Observation:
    watcher = watched(s)
    s.on(keep=True, will=will(s, props={"will_delay": 600}))
    s.on(keep=True)
    return watcher.rest()
