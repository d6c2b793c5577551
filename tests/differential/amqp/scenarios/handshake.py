"""From the first byte to ``open-ok``, and how a connection ends."""

from typing import Any

from tests.differential.amqp import wire
from tests.differential.amqp.client import Client, Connection, Observation, plain
from tests.differential.amqp.scenarios import scenario

AMQPLAIN = wire.table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]


def greeted(c: Client) -> Connection:
    """A connection that was offered ``start``."""
    connection = c.socket()
    connection.raw(wire.PROTOCOL_HEADER)
    assert connection.next()["m"] == "connection.start"
    return connection


def refused(c: Client, **options: Any) -> Observation:
    connection = c.socket()
    reply = connection.handshake(**options)
    return [reply] if reply["m"] == "eof" else [reply, *connection.ending()]


def with_header(c: Client, header: bytes) -> Observation:
    connection = c.socket()
    connection.raw(header)
    return connection.ending()


@scenario
def start_offers(c: Client) -> Observation:
    connection = c.socket()
    connection.raw(wire.PROTOCOL_HEADER)
    start = connection.next()
    properties = start["server_properties"]
    return {
        "version": [start["version_major"], start["version_minor"]],
        "mechanisms": sorted(start["mechanisms"].split()),
        "locales": start["locales"],
        "capabilities": properties["capabilities"],
    }


@scenario
def header_of_another_protocol(c: Client) -> Observation:
    return with_header(c, b"GET / HTTP/1.1\r\n\r\n")


@scenario
def header_of_amqp_1_0(c: Client) -> Observation:
    return with_header(c, b"AMQP\x00\x01\x00\x00")


@scenario
def header_of_amqp_0_10(c: Client) -> Observation:
    return with_header(c, b"AMQP\x01\x01\x00\x0a")


@scenario
def header_of_unknown_revision(c: Client) -> Observation:
    return with_header(c, b"AMQP\x00\x00\x09\x02")


@scenario
def header_of_amqp_0_9(c: Client) -> Observation:
    connection = c.socket()
    connection.raw(b"AMQP\x01\x01\x00\x09")
    start = connection.next()
    return [start["m"], start.get("version_major"), start.get("version_minor")]


@scenario
def header_byte_by_byte(c: Client) -> Observation:
    connection = c.socket()
    for byte in wire.PROTOCOL_HEADER:
        connection.raw(bytes([byte]))
    return connection.next()["m"]


@scenario
def tune_offers(c: Client) -> Observation:
    connection = greeted(c)
    connection.start_ok(plain("guest", "guest"))
    return connection.next()


@scenario
def amqplain(c: Client) -> Observation:
    connection = c.started("AMQPLAIN", AMQPLAIN)
    connection.send(0, "connection.tune-ok", frame_max=131072, channel_max=10)
    connection.send(0, "connection.open", virtual_host="/")
    return connection.next()


@scenario
def amqplain_without_password(c: Client) -> Observation:
    connection = greeted(c)
    connection.start_ok(wire.table({"LOGIN": "guest"})[4:], "AMQPLAIN")
    return connection.ending()


@scenario
def amqplain_wrong_password(c: Client) -> Observation:
    connection = greeted(c)
    connection.start_ok(wire.table({"LOGIN": "guest", "PASSWORD": "no"})[4:], "AMQPLAIN")
    return connection.ending()


@scenario
def unknown_mechanism(c: Client) -> Observation:
    connection = greeted(c)
    connection.start_ok(b"", "CRAM-MD5")
    return connection.ending()


@scenario
def malformed_plain_response(c: Client) -> Observation:
    connection = greeted(c)
    connection.start_ok(b"guest:guest")
    return connection.ending()


@scenario
def plain_with_authorization_identity(c: Client) -> Observation:
    connection = greeted(c)
    connection.start_ok(b"someone\0guest\0guest")
    return connection.next()["m"]


@scenario
def wrong_password(c: Client) -> Observation:
    return refused(c, password="wrong")


@scenario
def unknown_user(c: Client) -> Observation:
    return refused(c, user="nobody-at-all")


@scenario
def wrong_password_without_the_capability(c: Client) -> Observation:
    connection = c.socket()
    return connection.handshake(password="wrong", capabilities={})


@scenario
def unknown_vhost(c: Client) -> Observation:
    return refused(c, vhost="no-such-vhost")


@scenario
def empty_vhost(c: Client) -> Observation:
    return refused(c, vhost="")


@scenario
def other_locale(c: Client) -> Observation:
    connection = greeted(c)
    connection.start_ok(plain("guest", "guest"), locale="xx_XX")
    return connection.next()["m"]


@scenario
def frame_max_too_small(c: Client) -> Observation:
    return refused(c, frame_max=4095)


@scenario
def frame_max_above_the_offer(c: Client) -> Observation:
    return refused(c, frame_max=131073)


@scenario
def frame_max_zero(c: Client) -> Observation:
    return refused(c, frame_max=0)


@scenario
def channel_max_above_the_offer(c: Client) -> Observation:
    return refused(c, channel_max=4000)


@scenario
def channel_max_zero(c: Client) -> Observation:
    return refused(c, channel_max=0)


@scenario
def channel_above_the_agreed_maximum(c: Client) -> Observation:
    """RabbitMQ counts channels; their numbers may be higher."""
    connection = c.connect(channel_max=5)
    connection.send(6, "channel.open")
    return connection.next(6)


@scenario
def more_channels_than_agreed(c: Client) -> Observation:
    connection = c.connect(channel_max=3)
    for _ in range(3):
        connection.channel()
    connection.send(4, "channel.open")
    return connection.ending()


@scenario
def smallest_frame_max_splits_bodies(c: Client) -> Observation:
    connection = c.connect(frame_max=4096)
    ch = connection.channel()
    q = ch.queue(c.name("q"))
    ch.pub("", q, "x" * 10_000)
    return [ch.got(q), connection.sizes[ch.number]]


@scenario
def open_before_tune_ok(c: Client) -> Observation:
    connection = c.started()
    connection.send(0, "connection.open", virtual_host="/")
    return connection.ending()


@scenario
def tune_ok_before_start_ok(c: Client) -> Observation:
    connection = greeted(c)
    connection.send(0, "connection.tune-ok", frame_max=131072)
    return connection.ending()


@scenario
def channel_open_before_connection_open(c: Client) -> Observation:
    connection = c.started()
    connection.send(0, "connection.tune-ok", frame_max=131072)
    connection.send(1, "channel.open")
    return connection.ending()


@scenario
def second_start_ok(c: Client) -> Observation:
    connection = c.connect()
    connection.start_ok(plain("guest", "guest"))
    return connection.ending()


@scenario
def second_open(c: Client) -> Observation:
    connection = c.connect()
    connection.send(0, "connection.open", virtual_host="/")
    return connection.ending()


@scenario
def close_by_the_client(c: Client) -> Observation:
    connection = c.connect()
    connection.send(0, "connection.close", code=200, text="bye")
    return connection.next()  # who hangs up after that is not said


@scenario
def close_during_the_handshake(c: Client) -> Observation:
    connection = c.started()
    connection.send(0, "connection.close", code=200, text="bye")
    return connection.ending()


@scenario
def methods_after_close_are_ignored(c: Client) -> Observation:
    connection = c.connect()
    ch = connection.channel()
    q = c.name("q")
    connection.raw(
        wire.frame(1, 0, wire.method_payload("connection.close", {"code": 200}))
        + wire.frame(1, ch.number, wire.method_payload("queue.declare", {"queue": q}))
    )
    seen = [connection.next(), connection.rest(ch.number)]
    return [seen, c.channel()("queue.declare", queue=q, passive=True)]


@scenario
def close_with_open_channels(c: Client) -> Observation:
    connection = c.connect()
    channels = [connection.channel() for _ in range(3)]
    connection.send(0, "connection.close", code=200)
    return [connection.next(), [ch.rest() for ch in channels]]


@scenario
def update_secret(c: Client) -> Observation:
    connection = c.connect()
    connection.send(0, "connection.update-secret", secret="guest", reason="renewed")
    return [connection.next(), connection.rest()]


@scenario
def secure_ok_unasked(c: Client) -> Observation:
    connection = c.connect()
    connection.send(0, "connection.secure-ok", response="x")
    return connection.ending()


@scenario
def server_heartbeats(c: Client) -> Observation:
    connection = c.connect(heartbeat=1)
    return [connection.next(), connection.next()]


@scenario
def silent_client_is_dropped(c: Client) -> Observation:
    connection = c.connect(heartbeat=1)
    return [event["m"] for event in connection.ending() if event["m"] != "heartbeat"]


@scenario
def client_heartbeats_keep_it_open(c: Client) -> Observation:
    connection = c.connect(heartbeat=1)
    for _ in range(6):
        connection.raw(wire.frame(wire.HEARTBEAT, 0, b""))
        connection.wait(lambda: False, 0.5)
    return connection.channel()("basic.qos")


@scenario
def any_traffic_counts_as_heartbeat(c: Client) -> Observation:
    connection = c.connect(heartbeat=1)
    ch = connection.channel()
    for _ in range(6):
        ch.sync()
        connection.wait(lambda: False, 0.5)
    return ch("basic.qos")


@scenario
def no_heartbeats_when_zero(c: Client) -> Observation:
    connection = c.connect(heartbeat=0)
    return connection.rest(quiet_s=1.2)
