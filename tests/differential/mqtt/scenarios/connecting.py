"""CONNECT and its answer: flags, client ids, credentials, limits, what may stand around it."""

from typing import Any

from tests.differential.mqtt import wire
from tests.differential.mqtt.client import V3, V5, Observation, Stage
from tests.differential.mqtt.scenarios import only_v3, only_v5, scenario

WILL = {"topic": "w", "payload": b"gone"}


@scenario
def clean_start(s: Stage) -> Observation:
    return s.client().connect()


@scenario
def kept_session_is_not_present_at_first(s: Stage) -> Observation:
    return s.client().connect(keep=True)


@scenario
def session_is_present_after_a_disconnect(s: Stage) -> Observation:
    c = s.on(keep=True)
    return [c.disconnect(), c.connect(keep=True)]


@scenario
def session_is_present_after_a_lost_connection(s: Stage) -> Observation:
    c = s.on(keep=True)
    c.drop()
    return c.connect(keep=True)


@scenario
def clean_start_ends_an_old_session(s: Stage) -> Observation:
    c = s.on(keep=True).sub("~/t", qos=1)
    c.disconnect()
    seen = [c.connect(clean=True), c.disconnect(), c.connect(keep=True)]
    s.on("p").pub("~/t", qos=1)
    return [*seen, c.rest()]


@scenario
def clean_session_leaves_nothing(s: Stage) -> Observation:
    c = s.on(clean=True).sub("~/t", qos=1)
    c.disconnect()
    return c.connect(keep=True)


@only_v5
def not_clean_and_no_expiry_is_not_kept(s: Stage) -> Observation:
    c = s.on(clean=False).sub("~/t", qos=1)
    c.disconnect()
    return c.connect(clean=False)


@only_v5
def clean_start_and_expiry_is_kept(s: Stage) -> Observation:
    c = s.on(clean=True, props={"session_expiry": 600})
    c.disconnect()
    return c.connect(clean=False)


@only_v5
def expiry_may_be_taken_back_in_disconnect(s: Stage) -> Observation:
    c = s.on(keep=True)
    c.disconnect(0, {"session_expiry": 0})
    return c.connect(keep=True)


@only_v5
def expiry_may_be_set_in_disconnect(s: Stage) -> Observation:
    c = s.on(props={"session_expiry": 1})
    c.disconnect(0, {"session_expiry": 600})
    return c.connect(keep=True)


@only_v5
def expiry_can_not_be_raised_from_zero_in_disconnect(s: Stage) -> Observation:
    return s.on().disconnect(0, {"session_expiry": 600})


@only_v5
def expiry_of_reconnect_counts(s: Stage) -> Observation:
    c = s.on(keep=True)
    c.disconnect()
    seen = [c.connect(clean=False)]
    c.disconnect()
    return [*seen, c.connect(keep=True)]


@only_v5
def expiry_of_the_largest_number(s: Stage) -> Observation:
    c = s.client()
    first = c.connect(clean=False, props={"session_expiry": 0xFFFFFFFF})
    c.disconnect()
    return [first, c.connect(clean=False)]


@scenario
def session_may_change_the_version(s: Stage) -> Observation:
    other = V3 if s.version == V5 else V5
    s.on(keep=True).sub("~/t", qos=1).disconnect()
    s.on("p").pub("~/t", qos=1)
    c = s.client(version=other)
    return [c.connect(keep=True), c.message()]


# --- client ids ---


@scenario
def no_client_id(s: Stage) -> Observation:
    c = s.client("")
    return [c.connect(), c.sub("~/t").pub("~/t"), c.take()]


@scenario
def no_client_id_and_not_clean(s: Stage) -> Observation:
    c = s.client("")
    return [c.connect(clean=False), c.rest()]


@only_v5
def no_client_id_and_expiry(s: Stage) -> Observation:
    return s.client("").connect(clean=False, props={"session_expiry": 60})


CLIENT_IDS = {
    "of_23_characters": "0123456789abcdefghijklm",
    "of_one_character": "a",
    "of_many_characters": "x" * 2000,
    "with_slashes_and_wildcards": "a/+/#",
    "beyond_ascii": "größe-😀",
    "with_spaces": "a b",
}


def client_id(name: str) -> Any:
    def act(s: Stage) -> Observation:
        return s.client().connect(client_id=s.prefix[-2:] + CLIENT_IDS[name])

    return act


@scenario
def client_id_that_is_not_utf8(s: Stage) -> Observation:
    return s.client().connect(client_id=b"\xff\xfe")


@scenario
def client_id_with_a_null(s: Stage) -> Observation:
    return s.client().connect(client_id="a\0b")


# --- who ---


@scenario
def right_password(s: Stage) -> Observation:
    return s.client().connect(user="guest", password=b"guest")


@scenario
def wrong_password(s: Stage) -> Observation:
    c = s.client()
    return [c.connect(user="guest", password=b"wrong"), c.take()]


@scenario
def unknown_user(s: Stage) -> Observation:
    c = s.client()
    return [c.connect(user="nobody", password=b"guest"), c.take()]


@scenario
def user_without_password(s: Stage) -> Observation:
    c = s.client()
    return [c.connect(user="guest"), c.take()]


@scenario
def password_without_user(s: Stage) -> Observation:
    c = s.client()
    return c.connect(password=b"guest")


@scenario
def user_that_is_not_utf8(s: Stage) -> Observation:
    return s.client().connect(user=b"\xc3\x28", password=b"guest")


@only_v5
def unknown_authentication_method(s: Stage) -> Observation:
    c = s.client()
    return [c.connect(props={"auth_method": "SCRAM-SHA-1", "auth_data": b"x"}), c.take()]


@only_v5
def authentication_data_without_method(s: Stage) -> Observation:
    c = s.client()
    return [c.connect(props={"auth_data": b"x"}), c.rest()]


@only_v5
def auth_that_nobody_asked_for(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.ending(V5, "auth", 0x18, {"auth_method": "x"}))
    return c.several(2)


@scenario
def what_follows_a_refused_connect_is_not_processed(s: Stage) -> Observation:
    watcher = s.on("w").sub("~/t")
    c = s.client().open()
    c.raw(
        wire.connect(s.version, c.client_id, user="guest", password=b"wrong")
        + wire.publish(s.version, s.name("~/t"), b"smuggled")
    )
    return [c.several(2), watcher.rest()]


# --- the packet ---


CONNECTS: dict[str, dict[str, Any]] = {
    "reserved_flag": {"flags": 1},
    "will_flag_and_no_will": {"flags": 4},
    "will_topic_that_is_not_utf8": {"will": {**WILL, "topic": b"\xff"}},
    "will_qos_without_will": {"flags": 1 << 3},
    "will_retain_without_will": {"flags": 1 << 5},
    "will_of_qos_3": {"will": {**WILL, "qos": 3}},
    "will_to_wildcards": {"will": {**WILL, "topic": "a/#"}},
    "will_without_topic": {"will": {**WILL, "topic": ""}},
    "will_with_empty_payload": {"will": {**WILL, "payload": b""}},
    "will_topic_with_a_null": {"will": {**WILL, "topic": "a\0b"}},
    "user_flag_and_no_user": {"flags": 128},
    "password_flag_and_no_password": {"user": "guest", "flags": 64},
    "bytes_behind_the_end": {"tail": b"\0\1x"},
    "another_protocol_name": {"protocol": "MQTX"},
    "lower_case_protocol_name": {"protocol": "mqtt"},
    "empty_protocol_name": {"protocol": ""},
    "level_6": {"level": 6},
    "level_0": {"level": 0},
    "level_of_a_bridge": {"level": 0x84},
    "mqtt_3_1": {"protocol": "MQIsdp", "level": 3},
    "level_of_5_and_a_bridge": {"level": 0x85},
    "empty_user": {"user": ""},
    "empty_user_and_password": {"user": "", "password": b""},
    "keep_alive_of_zero": {"keep_alive": 0},
    "keep_alive_of_65535": {"keep_alive": 65535},
}
OLD: dict[str, Any] = {"protocol": "MQIsdp", "level": 3}
CONNECTS_V3: dict[str, dict[str, Any]] = {
    "mqtt_3_1_keeps_a_session": {**OLD, "clean": False},
    "mqtt_3_1_without_client_id": {**OLD, "client_id": ""},
    "mqtt_3_1_with_a_long_client_id": {**OLD, "client_id": "longer-than-the-23-bytes-of-it"},
    "mqtt_3_1_with_the_reserved_flag": {**OLD, "flags": 1},
    "mqtt_3_1_and_user_flags_without_user": {**OLD, "flags": 128 + 64},
    "mqtt_3_1_and_password_without_user": {**OLD, "password": b"x"},
    "mqtt_3_1_with_a_user": {**OLD, "user": "guest", "password": b"guest"},
    "bridge_of_3_1": {**OLD, "level": 0x83},
    "name_of_3_1_and_level_4": {**OLD, "level": 4},
    "name_of_3_1_1_and_level_3": {"level": 3},
}
CONNECTS_V5: dict[str, dict[str, Any]] = {
    "receive_maximum_of_zero": {"props": {"receive_maximum": 0}},
    "maximum_packet_size_of_zero": {"props": {"maximum_packet_size": 0}},
    "request_problem_of_two": {"props": {"request_problem": 2}},
    "request_response_of_two": {"props": {"request_response": 2}},
    "session_expiry_twice": {"props": {"session_expiry": [1, 2]}},
    "receive_maximum_twice": {"props": {"receive_maximum": [1, 1]}},
    "property_of_publish": {"props": {"content_type": "text"}},
    "property_of_connack": {"props": {"server_keep_alive": 5}},
    "user_properties": {"props": {"user": [("a", "1"), ("a", "2")]}},
    "user_property_that_is_not_utf8": {"props": {"user": (b"\xff", "x")}},
    "topic_alias_maximum": {"props": {"topic_alias_maximum": 5}},
    "request_response": {"props": {"request_response": 1}},
    "will_delay_outside_the_will": {"props": {"will_delay": 1}},
    "will_with_property_of_connect": {"will": {**WILL, "props": {"receive_maximum": 1}}},
    "will_with_payload_format_2": {"will": {**WILL, "props": {"payload_format": 2}}},
    "will_delay_twice": {"will": {**WILL, "props": {"will_delay": [1, 1]}}},
    "will_with_wildcards_in_response_topic": {"will": {**WILL, "props": {"response_topic": "a/+"}}},
}


def connecting(fields: dict[str, Any]) -> Any:
    def act(s: Stage) -> Observation:
        c = s.client()
        answer = c.connect(**fields)
        return [answer] if answer["m"] != "connack" or answer["code"] == 0 else [answer, c.take()]

    return act


@only_v5
def properties_longer_than_the_packet(s: Stage) -> Observation:
    c = s.client().open()
    body = wire.text("MQTT") + bytes((5, 2, 0, 60)) + b"\x7f\x11\0\0"
    c.raw(wire.packet("connect", body))
    return c.take()


@scenario
def packet_that_ends_early(s: Stage) -> Observation:
    c = s.client().open()
    c.raw(wire.packet("connect", wire.text("MQTT") + bytes((s.version, 2))))
    return c.take()


@scenario
def flags_in_the_fixed_header(s: Stage) -> Observation:
    c = s.client().open()
    whole = wire.connect(s.version, c.client_id)
    c.raw(bytes((whole[0] | 1,)) + whole[1:])
    return c.take()


@scenario
def second_connect(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.connect(s.version, c.client_id))
    return c.several(2)


FIRST = {
    "publish": wire.publish(V3, "t", b"x"),
    "subscribe": wire.subscribe(V3, 1, [("t", 0)]),
    "pingreq": wire.packet("pingreq"),
    "disconnect": wire.packet("disconnect"),
    "auth": wire.packet("auth"),
    "puback": wire.answer(V3, "puback", 1),
}


def first(name: str) -> Any:
    def act(s: Stage) -> Observation:
        c = s.client().open()
        c.raw(FIRST[name])
        return c.take()

    return act


@scenario
def connack_from_a_client(s: Stage) -> Observation:
    c = s.on()
    c.raw(b"\x20\2\0\0" if s.version == V3 else b"\x20\3\0\0\0")
    return c.several(2)


@scenario
def packets_behind_connect_need_not_wait(s: Stage) -> Observation:
    c = s.client().open()
    topic = s.name("~/t")
    c.raw(
        wire.connect(s.version, c.client_id)
        + wire.subscribe(s.version, 1, [(topic, 0)])
        + wire.publish(s.version, topic, b"early")
        + wire.ending(s.version, "disconnect")
    )
    return c.several(4)


@scenario
def packets_byte_by_byte(s: Stage) -> Observation:
    c = s.client().open()
    topic = s.name("~/t")
    for byte in wire.connect(s.version, c.client_id) + wire.subscribe(s.version, 1, [(topic, 0)]):
        c.raw(bytes((byte,)))
    return c.several(2)


@scenario
def ping(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.packet("pingreq") * 3)
    return c.several(3)


@scenario
def disconnect_ends_it(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.ending(s.version, "disconnect") + wire.packet("pingreq"))
    return c.take()


@only_v5
def disconnect_with_unknown_reason(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.ending(V5, "disconnect", 0x03))
    return c.several(2)


@only_v5
def disconnect_with_wrong_property(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.ending(V5, "disconnect", 0, {"receive_maximum": 1}))
    return c.several(2)


@only_v5
def disconnect_with_properties(s: Stage) -> Observation:
    return s.on().disconnect(0, {"reason_string": "bye", "user": ("a", "b")})


# --- takeover ---


@scenario
def takeover(s: Stage) -> Observation:
    old = s.on(keep=True)
    new = s.client()
    return [new.connect(keep=True), old.several(2), new.rest()]


@scenario
def takeover_with_clean_start(s: Stage) -> Observation:
    old = s.on(keep=True).sub("~/t")
    new = s.client()
    seen = [new.connect(clean=True), old.several(2)]
    s.on("p").pub("~/t")
    return [*seen, new.rest()]


@scenario
def takeover_of_a_clean_session(s: Stage) -> Observation:
    old = s.on(clean=True).sub("~/t")
    new = s.client()
    return [new.connect(keep=True), old.several(2)]


@scenario
def takeover_redelivers(s: Stage) -> Observation:
    old = s.on(keep=True).sub("~/t", qos=1)
    s.on("p").pub("~/t", qos=1)
    new = s.client()
    return [old.take(), new.connect(keep=True), new.message(), new.rest()]


TABLE = {
    **{f"client_id_{name}": scenario(client_id(name)) for name in CLIENT_IDS},
    **{name: scenario(connecting(fields)) for name, fields in CONNECTS.items()},
    **{name: only_v3(connecting(fields)) for name, fields in CONNECTS_V3.items()},
    **{name: only_v5(connecting(fields)) for name, fields in CONNECTS_V5.items()},
    **{f"first_packet_is_{name}": scenario(first(name)) for name in FIRST},
}


@only_v3
def mqtt_3_1_says_nothing_of_a_session_that_is_there(s: Stage) -> Observation:
    c = s.on(clean=False, **OLD)
    c.disconnect()
    return c.connect(clean=False, **OLD)


@only_v3
def mqtt_3_1_may_send_flags_that_mean_nothing(s: Stage) -> Observation:
    c = s.on(**OLD)
    seen = []
    for flags in (0, 2, 10):
        body = b"\0\1" + wire.text(s.name("~/t")) + b"\1"
        c.raw(wire.packet("subscribe", body, flags))
        seen.append(c.take())
    c.raw(wire.packet("pubrel", b"\0\5", 10) + wire.packet("pingreq", b"", 8))
    seen += c.several(2)
    return seen


@only_v3
def unknown_kind_auth(s: Stage) -> Observation:
    c = s.on()
    c.raw(wire.packet("auth"))
    return c.take()
