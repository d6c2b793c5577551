"""Frames that are wrong, or in the wrong place: the connection ends, with a code."""

import struct

from tests.differential.amqp import wire
from tests.differential.amqp.client import Client, Observation
from tests.differential.amqp.scenarios import scenario

PUBLISH = wire.method_payload("basic.publish", {"routing_key": "nowhere"})


def ends(c: Client, *frames: bytes, open_channel: bool = True) -> Observation:
    """What the broker says to these frames, sent at once, on a connection with channel 1."""
    connection = c.connect()
    if open_channel:
        connection.channel(1)
    connection.raw(b"".join(frames))
    return connection.ending()


def method(name: str, channel: int = 1, **values: object) -> bytes:
    return wire.frame(wire.METHOD, channel, wire.method_payload(name, dict(values)))


@scenario
def frame_too_large(c: Client) -> Observation:
    connection = c.connect(frame_max=4096)
    connection.channel(1)
    connection.raw(wire.frame(wire.BODY, 1, b"x" * 4097))
    return connection.ending()


@scenario
def frame_larger_by_less_than_a_header(c: Client) -> Observation:
    """RabbitMQ lets the payload alone be as large as the frame was to be."""
    connection = c.connect(frame_max=4096)
    ch = connection.channel()
    q = ch.queue(c.name("q"))
    connection.frame_max = 4096 + 8
    ch.pub("", q, "x" * 4096)
    return ch.got(q)


@scenario
def largest_frame(c: Client) -> Observation:
    connection = c.connect(frame_max=4096)
    ch = connection.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "x" * (4096 - 8))
    return ch.got(q)


@scenario
def frame_end_missing(c: Client) -> Observation:
    return ends(c, wire.frame(wire.METHOD, 1, wire.method_payload("basic.qos", {}), end=0))


@scenario
def unknown_frame_type(c: Client) -> Observation:
    return ends(c, wire.frame(4, 1, b"what"))


@scenario
def unknown_frame_type_on_channel_0(c: Client) -> Observation:
    return ends(c, wire.frame(9, 0, b"what"))


@scenario
def method_on_unopened_channel(c: Client) -> Observation:
    return ends(c, method("basic.qos", 7))


@scenario
def method_on_closed_channel(c: Client) -> Observation:
    connection = c.connect()
    ch = connection.channel()
    reply = ch("channel.close", code=200)
    ch.send("basic.qos")
    return [reply, connection.ending()]


@scenario
def channel_open_twice(c: Client) -> Observation:
    return ends(c, method("channel.open"))


@scenario
def channel_open_on_channel_0(c: Client) -> Observation:
    return ends(c, method("channel.open", 0))


@scenario
def basic_method_on_channel_0(c: Client) -> Observation:
    return ends(c, method("basic.qos", 0))


@scenario
def connection_method_on_channel_1(c: Client) -> Observation:
    return ends(c, method("connection.close", 1, code=200))


@scenario
def server_method_from_the_client(c: Client) -> Observation:
    return ends(c, method("queue.declare-ok", queue="q"))


@scenario
def heartbeat_on_channel_1(c: Client) -> Observation:
    connection = c.connect()
    connection.channel(1)
    connection.raw(wire.frame(wire.HEARTBEAT, 1, b""))
    return connection.rest(quiet_s=0.4)


@scenario
def heartbeat_with_a_payload(c: Client) -> Observation:
    connection = c.connect()
    connection.channel(1)
    connection.raw(wire.frame(wire.HEARTBEAT, 0, b"beat"))
    return connection.rest(quiet_s=0.4)


@scenario
def unknown_class(c: Client) -> Observation:
    return ends(c, wire.frame(wire.METHOD, 1, struct.pack(">HH", 99, 10)))


@scenario
def unknown_method_of_a_known_class(c: Client) -> Observation:
    return ends(c, wire.frame(wire.METHOD, 1, struct.pack(">HH", 60, 99)))


@scenario
def unknown_method_on_channel_0(c: Client) -> Observation:
    return ends(c, wire.frame(wire.METHOD, 0, struct.pack(">HH", 10, 99)))


@scenario
def method_cut_short(c: Client) -> Observation:
    return ends(c, wire.frame(wire.METHOD, 1, struct.pack(">HHHB", 50, 10, 0, 200) + b"short"))


@scenario
def method_frame_empty(c: Client) -> Observation:
    return ends(c, wire.frame(wire.METHOD, 1, b""))


@scenario
def table_with_unknown_type(c: Client) -> Observation:
    return ends(c, method("queue.declare", queue=c.name("q"), arguments=b"\x01aZ123"))


@scenario
def table_longer_than_its_frame(c: Client) -> Observation:
    payload = wire.method_payload("queue.declare", {"queue": "q"})[:-4]
    return ends(c, wire.frame(wire.METHOD, 1, payload + struct.pack(">I", 1000)))


@scenario
def header_without_method(c: Client) -> Observation:
    return ends(c, wire.frame(wire.HEADER, 1, wire.header_payload(0, {})))


@scenario
def body_without_method(c: Client) -> Observation:
    return ends(c, wire.frame(wire.BODY, 1, b"body"))


@scenario
def method_in_place_of_header(c: Client) -> Observation:
    return ends(c, wire.frame(wire.METHOD, 1, PUBLISH), method("basic.qos"))


@scenario
def body_in_place_of_header(c: Client) -> Observation:
    return ends(c, wire.frame(wire.METHOD, 1, PUBLISH), wire.frame(wire.BODY, 1, b"body"))


@scenario
def method_in_place_of_body(c: Client) -> Observation:
    header = wire.frame(wire.HEADER, 1, wire.header_payload(10, {}))
    return ends(c, wire.frame(wire.METHOD, 1, PUBLISH), header, method("basic.qos"))


@scenario
def header_in_place_of_body(c: Client) -> Observation:
    header = wire.frame(wire.HEADER, 1, wire.header_payload(10, {}))
    return ends(c, wire.frame(wire.METHOD, 1, PUBLISH), header, header)


@scenario
def header_of_another_class(c: Client) -> Observation:
    header = wire.frame(wire.HEADER, 1, wire.header_payload(0, {}, class_id=50))
    return ends(c, wire.frame(wire.METHOD, 1, PUBLISH), header)


@scenario
def header_with_a_weight(c: Client) -> Observation:
    header = wire.frame(wire.HEADER, 1, wire.header_payload(0, {}, weight=1))
    return ends(c, wire.frame(wire.METHOD, 1, PUBLISH), header)


@scenario
def header_cut_short(c: Client) -> Observation:
    header = wire.frame(wire.HEADER, 1, wire.header_payload(0, {})[:9])
    return ends(c, wire.frame(wire.METHOD, 1, PUBLISH), header)


@scenario
def header_with_malformed_properties(c: Client) -> Observation:
    payload = struct.pack(">HHQH", 60, 0, 0, 0x8000) + b"\x50abc"
    return ends(c, wire.frame(wire.METHOD, 1, PUBLISH), wire.frame(wire.HEADER, 1, payload))


@scenario
def body_longer_than_announced(c: Client) -> Observation:
    header = wire.frame(wire.HEADER, 1, wire.header_payload(3, {}))
    body = wire.frame(wire.BODY, 1, b"more than three")
    return ends(c, wire.frame(wire.METHOD, 1, PUBLISH), header, body, method("basic.qos"))


@scenario
def empty_body_frames(c: Client) -> Observation:
    connection = c.connect()
    ch = connection.channel(1)
    q = ch.queue(c.name("q"))
    connection.raw(
        method("basic.publish", routing_key=q)
        + wire.frame(wire.HEADER, 1, wire.header_payload(4, {}))
        + wire.frame(wire.BODY, 1, b"ab")
        + wire.frame(wire.BODY, 1, b"")
        + wire.frame(wire.BODY, 1, b"cd")
    )
    return ch.got(q)


@scenario
def content_interleaved_over_channels(c: Client) -> Observation:
    connection = c.connect()
    one, two = connection.channel(1), connection.channel(2)
    q = one.queue(c.name("q"))
    frames = [
        [
            method("basic.publish", number, routing_key=q),
            wire.frame(wire.HEADER, number, wire.header_payload(2, {})),
            wire.frame(wire.BODY, number, str(number).encode() * 2),
        ]
        for number in (1, 2)
    ]
    connection.raw(b"".join(a + b for a, b in zip(*frames, strict=True)))
    two.sync()
    return sorted([one.got(q)["body"], one.got(q)["body"]])


@scenario
def frames_cut_anywhere(c: Client) -> Observation:
    connection = c.connect()
    ch = connection.channel(1)
    q = ch.queue(c.name("q"))
    data = (
        method("basic.publish", routing_key=q)
        + wire.frame(wire.HEADER, 1, wire.header_payload(4, {"message_id": "m"}))
        + wire.frame(wire.BODY, 1, b"abcd")
    )
    for at in range(0, len(data), 3):
        connection.raw(data[at : at + 3])
    return ch.got(q)


@scenario
def garbage_after_open(c: Client) -> Observation:
    return ends(c, b"\xff" * 64)


@scenario
def error_on_one_connection_leaves_others(c: Client) -> Observation:
    other = c.channel()
    return [ends(c, wire.frame(4, 1, b"what")), other("basic.qos")]


@scenario
def names_that_are_not_utf8(c: Client) -> Observation:
    ch = c.channel()
    return ch("queue.declare", queue=c.prefix.encode() + b"\xff\xfe", exclusive=True)
