"""Attacks by what the protocols allow: answers that are not read, commands in masses, and requests
each of which is small to send and long to do. For the table of ``bench.hostile``.
"""

import itertools
import os
import selectors
import socket
import time
from base64 import b64encode
from collections.abc import Callable

from bench.hostile_wire import (
    SWITCH,
    Attack,
    Ports,
    amqp,
    frame_head,
    hear,
    http_head,
    message_frames,
    mqtt,
    request,
    tcp,
    websocket,
)
from braidmq.model.limits import KIB, MIB
from braidmq.wire.amqp import methods as m
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import (
    Connect,
    PingReq,
    Publish,
    PubRec,
    PubRel,
    Request,
    Subscribe,
    Unsubscribe,
    Will,
    encode,
)
from braidmq.wire.mqtt.properties import Properties

V4, V5 = Version.V3_1_1, Version.V5
CROWD = 20
LONG_NAME = "n" * 247


def flood(
    sockets: list[socket.socket], data: Callable[[int], bytes], seconds: float, *, reads: bool
) -> None:
    """Each sends one piece after the other, as fast as it is taken, and hears the answers or does
    not."""
    deadline = time.monotonic() + seconds
    wanted = selectors.EVENT_WRITE | (selectors.EVENT_READ if reads else 0)
    rest: dict[socket.socket, memoryview] = {}
    turn = itertools.count()
    with selectors.DefaultSelector() as selector:
        for sock in sockets:
            sock.setblocking(False)
            selector.register(sock, wanted)
            rest[sock] = memoryview(b"")
        while selector.get_map() and time.monotonic() < deadline:
            for key, events in selector.select(0.1):
                sock = key.fileobj  # type: ignore[assignment]
                try:
                    if events & selectors.EVENT_READ and not sock.recv(1 << 18):
                        raise ConnectionResetError
                    if events & selectors.EVENT_WRITE:
                        left = rest[sock] or memoryview(data(next(turn)))
                        rest[sock] = left[sock.send(left) :]
                except BlockingIOError:
                    continue
                except OSError:
                    selector.unregister(sock)
    for sock in sockets:
        sock.close()


def say(sock: socket.socket, *methods: m.Method) -> None:
    """Send them one by one, and wait for the answer to each."""
    for method in methods:
        sock.sendall(m.method_frame(1, method))
        sock.recv(1 << 16)


def frames(*methods: m.Method, channel: int = 1) -> bytes:
    return b"".join(m.method_frame(channel, each) for each in methods)


# --- AMQP ---


def amqp_unread_gets(ports: Ports, seconds: float) -> None:
    """One message of a megabyte, got and given back again and again; nobody reads it."""
    sock = amqp(ports)
    say(sock, m.QueueDeclare("hostile"))
    sock.sendall(message_frames(MIB, MIB))
    sockets = [amqp(ports) for _ in range(CROWD)]
    data = frames(m.BasicGet("hostile"), m.BasicRecover(requeue=True)) * 100
    flood(sockets, lambda _: data, seconds, reads=False)


def amqp_unread_declares(ports: Ports, seconds: float) -> None:
    sockets = [amqp(ports) for _ in range(CROWD)]
    say(sockets[0], m.QueueDeclare(LONG_NAME))
    data = frames(m.QueueDeclare(LONG_NAME, passive=True)) * 200
    flood(sockets, lambda _: data, seconds, reads=False)


def amqp_unread_returns(ports: Ports, seconds: float) -> None:
    """Mandatory messages that nobody takes come back."""
    sockets = [amqp(ports) for _ in range(CROWD)]
    data = m.method_frame(1, m.BasicPublish("amq.direct", "nobody", mandatory=True))
    data += message_frames(64 * KIB, 64 * KIB)[len(frames(m.BasicPublish("", "hostile"))) :]
    flood(sockets, lambda _: data, seconds, reads=False)


def amqp_unread_deliveries(ports: Ports, seconds: float) -> None:
    """Two hundred who consume, and do not read."""
    sock = amqp(ports)
    say(sock, m.QueueDeclare("hostile"))
    sockets = [amqp(ports) for _ in range(200)]
    for each in sockets:
        each.sendall(frames(m.BasicConsume("hostile", no_ack=True)))
    data = message_frames(64 * KIB, 64 * KIB)
    flood([sock], lambda _: data, seconds, reads=False)
    for each in sockets:
        each.close()


def amqp_commands(ports: Ports, seconds: float) -> None:
    """Queues are declared and deleted without end, many in one segment."""
    sockets = [amqp(ports) for _ in range(CROWD)]
    data = [
        b"".join(
            frames(m.QueueDeclare(f"{LONG_NAME}{turn % 50}-{number}"[-250:], exclusive=False))
            for number in range(200)
        )
        for turn in range(50)
    ]
    flood(sockets, lambda turn: data[turn % 50], seconds, reads=True)


def amqp_gets(ports: Ports, seconds: float) -> None:
    """basic.get of an empty queue, a megabyte at a time."""
    sockets = [amqp(ports) for _ in range(CROWD)]
    say(sockets[0], m.QueueDeclare("hostile"))
    data = frames(m.BasicGet("hostile")) * 40_000
    flood(sockets, lambda _: data, seconds, reads=True)


def amqp_bindings(ports: Ports, seconds: float) -> None:
    """One queue, bound in tens of thousands of ways, and as often unbound."""
    sockets = [amqp(ports) for _ in range(4)]
    say(sockets[0], m.QueueDeclare("hostile"))
    pattern = ".".join(["#", "*"] * 40)
    data = [
        b"".join(
            frames(m.QueueBind("hostile", "amq.topic", f"{turn}.{number}.{pattern}"))
            for number in range(100)
        )
        for turn in range(100)
    ]
    flood(sockets, lambda turn: data[turn % len(data)], seconds, reads=True)


def amqp_patterns(ports: Ports, seconds: float) -> None:
    """Patterns full of wildcards, and keys that fit them in every way."""
    sock = amqp(ports)
    say(sock, m.QueueDeclare("hostile", exclusive=True, arguments={"x-max-length": 1}))
    for number in range(200):
        words = ["#"] * 100 + ["a"] * (number % 20) + ["#", str(number)]
        say(sock, m.QueueBind("hostile", "amq.topic", ".".join(words)))
    numbers = itertools.count()

    def piece(_: int) -> bytes:
        return b"".join(
            keyed("amq.topic", ".".join(["a"] * 115 + [str(next(numbers))])) for _ in range(200)
        )

    flood([sock], piece, seconds, reads=True)


def keyed(exchange: str, key: str, headers: dict[str, object] | None = None) -> bytes:
    return message_frames(1, 1, exchange, key=key, headers=headers)


def amqp_headers(ports: Ports, seconds: float) -> None:
    """Match tables of thousands of values, and messages with as many."""
    sock = amqp(ports)
    say(sock, m.QueueDeclare("hostile", exclusive=True, arguments={"x-max-length": 1}))
    large: dict[str, object] = {f"header-{number}": number for number in range(3000)}
    for number in range(100):
        wanted = {**large, "last": number, "x-match": "all"}
        say(sock, m.QueueBind("hostile", "amq.headers", "", arguments=wanted))  # type: ignore[arg-type]
    data = keyed("amq.headers", "", large)
    flood([sock], lambda _: data, seconds, reads=True)


def amqp_nested(ports: Ports, seconds: float) -> None:
    """Tables in tables, as deep and as many as are taken."""
    value: object = []
    for _ in range(29):
        value = [value]
    sock = amqp(ports)
    headers: dict[str, object] = {f"{number:03}": value for number in range(500)}
    data = keyed("amq.headers", "", headers)
    flood([sock] + [amqp(ports) for _ in range(CROWD)], lambda _: data, seconds, reads=True)


def amqp_channels_open(ports: Ports, seconds: float) -> None:
    """Every channel there may be, on twenty connections, opened and closed."""
    sockets = [amqp(ports) for _ in range(CROWD)]
    opened = b"".join(m.method_frame(each, m.ChannelOpen()) for each in range(2, 2047))
    closed = b"".join(
        m.method_frame(each, m.ChannelClose(200, "", 0, 0)) for each in range(2, 2047)
    )
    flood(sockets, lambda _: opened + closed, seconds, reads=True)


def amqp_consumers(ports: Ports, seconds: float) -> None:
    """A hundred thousand consumers on one channel, with tags of 255 bytes."""
    sock = amqp(ports)
    say(sock, m.QueueDeclare("hostile"))
    numbers = itertools.count()

    def piece(_: int) -> bytes:
        if (number := next(numbers)) >= 500:
            return keyed("", "hostile") * 100
        return b"".join(
            frames(m.BasicConsume("hostile", f"{number:06}{each:06}{LONG_NAME}"[:255], no_ack=True))
            for each in range(200)
        )

    flood([sock], piece, seconds, reads=True)


def amqp_reversed(ports: Ports, seconds: float) -> None:
    """Hundreds of thousands unacknowledged, and answered for one by one from the last."""
    many = 300_000
    sock = amqp(ports)
    say(sock, m.QueueDeclare("hostile", exclusive=True))
    for _ in range(many // 1000):
        sock.sendall(keyed("", "hostile") * 1000)
    say(sock, m.BasicQos(0, 0), m.BasicConsume("hostile"))
    heard, deadline = 0, time.monotonic() + seconds
    while heard < many * 50 and time.monotonic() < deadline:
        heard += len(sock.recv(1 << 20))
    numbers = iter(range(many, 0, -1))

    def piece(_: int) -> bytes:
        tags = list(itertools.islice(numbers, 2000))
        return frames(*(m.BasicNack(tag, requeue=True) for tag in tags)) or b"\x08\0\0\0\0\0\0\xce"

    flood([sock], piece, max(deadline - time.monotonic(), 2), reads=True)


def amqp_recovers(ports: Ports, seconds: float) -> None:
    """A hundred thousand are taken back and delivered again, without end."""
    sock = amqp(ports)
    say(sock, m.QueueDeclare("hostile", exclusive=True))
    for _ in range(100):
        sock.sendall(keyed("", "hostile") * 1000)
    say(sock, m.BasicConsume("hostile"))
    data = frames(m.BasicRecover(requeue=True)) * 50
    flood([sock], lambda _: data, seconds, reads=True)


def amqp_commits(ports: Ports, seconds: float) -> None:
    """Transactions of a hundred thousand messages to two queues in turn."""
    sock = amqp(ports)
    for name in ("hostile", "hostile2"):
        say(sock, m.QueueDeclare(name, exclusive=True, arguments={"x-max-length": 1000}))
    say(sock, m.TxSelect())
    data = (keyed("", "hostile") + keyed("", "hostile2")) * 1000
    flood(
        [sock],
        lambda turn: frames(m.TxCommit()) if turn % 51 == 50 else data,
        seconds,
        reads=True,
    )


def amqp_rollbacks(ports: Ports, seconds: float) -> None:
    sock = amqp(ports)
    for name in ("hostile", "hostile2"):
        say(sock, m.QueueDeclare(name, exclusive=True, arguments={"x-max-length": 1000}))
    say(sock, m.TxSelect())
    data = (keyed("", "hostile") + keyed("", "hostile2")) * 1000
    flood(
        [sock],
        lambda turn: frames(m.TxRollback()) if turn % 51 == 50 else data,
        seconds,
        reads=True,
    )


def amqp_fan_out(ports: Ports, seconds: float) -> None:
    """One exchange, three thousand queues."""
    sock = amqp(ports)
    for number in range(3000):
        arguments = {"x-max-length": 1}
        sock.sendall(
            frames(
                m.QueueDeclare(f"fan-{number}", exclusive=True, nowait=True, arguments=arguments),
                m.QueueBind(f"fan-{number}", "amq.fanout", nowait=True),
            )
        )
    say(sock, m.QueueDeclare("hostile", exclusive=True))
    data = keyed("amq.fanout", "") * 10
    flood([sock], lambda _: data, seconds, reads=True)


def amqp_diamonds(ports: Ports, seconds: float) -> None:
    """Exchanges that are all bound to each other, by headers, so that no answer is kept."""
    sock = amqp(ports)
    names = [f"cycle-{number}" for number in range(60)]
    for name in names:
        say(sock, m.ExchangeDeclare(name, "headers"))
    for one, other in itertools.permutations(names, 2):
        sock.sendall(frames(m.ExchangeBind(other, one, "", nowait=True, arguments={"a": 1})))
    say(sock, m.QueueDeclare("hostile", exclusive=True, arguments={"x-max-length": 1}))
    say(sock, m.QueueBind("hostile", names[-1], "", arguments={"a": 1}))
    data = keyed(names[0], "", {"a": 1}) * 50
    flood([sock], lambda _: data, seconds, reads=True)


# --- MQTT ---


def mqtt_filters(ports: Ports, seconds: float) -> None:
    """SUBSCRIBE with as many filters as a packet has room for."""
    requests = tuple(Request(f"f/{number}/+") for number in range(500_000))
    data = encode(Subscribe(1, requests), V4)
    flood([mqtt(ports, "h0"), mqtt(ports, "h1")], lambda _: data, seconds, reads=True)


def mqtt_resubscribed(ports: Ports, seconds: float) -> None:
    """Ten thousand filters, subscribed to and given up again and again."""
    filters = tuple(f"f/{number}/+" for number in range(9_000))
    on = encode(Subscribe(1, tuple(map(Request, filters))), V4)
    off = encode(Unsubscribe(1, filters), V4)
    sockets = [mqtt(ports, f"h{number}") for number in range(4)]
    flood(sockets, lambda turn: off if turn // 4 % 2 else on, seconds, reads=True)


def mqtt_unsubscribed(ports: Ports, seconds: float) -> None:
    """UNSUBSCRIBE of what was never subscribed to."""
    data = encode(Unsubscribe(1, tuple(f"f/{number}" for number in range(1_000_000))), V4)
    flood([mqtt(ports, "h0")], lambda _: data, seconds, reads=True)


def mqtt_deep(ports: Ports, seconds: float) -> None:
    """Topics of thousands of levels, against filters full of wildcards."""
    sock = mqtt(ports, "h0")
    for number in range(100):
        words = ["+"] * (20 + number) + ["#"]
        sock.sendall(encode(Subscribe(1, (Request("/".join(words)),)), V4))
        hear(sock)
    numbers = itertools.count()
    tail = "/a" * 30_000

    def piece(_: int) -> bytes:
        return encode(Publish(f"{next(numbers)}{tail}", b"x"), V4) * 4

    flood([sock], piece, seconds, reads=True)


def mqtt_shared(ports: Ports, seconds: float) -> None:
    """Two thousand take turns, on the same topic, and one publishes."""
    members = [mqtt(ports, f"h{number}") for number in range(2000)]
    for each in members:
        each.sendall(encode(Subscribe(1, (Request("$share/g/t"),)), V4))
    data = encode(Publish("t", b"x"), V4) * 2000
    flood([mqtt(ports, "p")], lambda _: data, seconds, reads=True)
    for each in members:
        each.close()


def mqtt_wills(ports: Ports, seconds: float) -> None:
    """A thousand clients with retained wills of 15 KiB, that are all cut off at once."""
    deadline = time.monotonic() + seconds
    turn = itertools.count()
    while time.monotonic() < deadline:
        sockets = []
        for number in range(500):
            sock = tcp(ports["mqtt_port"])
            will = Will(f"w/{next(turn)}", bytes(15 * KIB), 0, True)
            sock.sendall(encode(Connect(V4, f"h{number}", will=will), V4))
            sockets.append(sock)
        for sock in sockets:
            sock.recv(4)
        for sock in sockets:
            sock.close()


def mqtt_retained(ports: Ports, seconds: float) -> None:
    """Retained messages, as many as are taken, and then the same topics anew."""
    numbers = itertools.count()

    def piece(_: int) -> bytes:
        return b"".join(
            encode(Publish(f"r/{next(numbers) % 200_000}", b"x", retain=True), V4)
            for _ in range(500)
        )

    flood([mqtt(ports, f"h{number}") for number in range(4)], piece, seconds, reads=True)


def mqtt_unknown_ids(ports: Ports, seconds: float) -> None:
    """PUBREL and PUBREC for messages that never were; the answers are not read."""
    data = b"".join(encode(PubRel(each), V5) for each in range(1, 20_000))
    data += b"".join(encode(PubRec(each), V5) for each in range(1, 20_000, 2))
    sockets = [mqtt(ports, f"h{number}", V5) for number in range(CROWD)]
    flood(sockets, lambda _: data, seconds, reads=False)


def mqtt_pings(ports: Ports, seconds: float) -> None:
    """PINGREQ without end, and nobody reads."""
    data = encode(PingReq(), V4) * 30_000
    sockets = [mqtt(ports, f"h{number}") for number in range(CROWD)]
    flood(sockets, lambda _: data, seconds, reads=False)


def mqtt_aliases(ports: Ports, seconds: float) -> None:
    """Every alias there is, for the longest topics there are, on two hundred connections."""
    data = b"".join(
        encode(
            Publish(f"{alias}".ljust(60_000, "t"), b"", properties=Properties(topic_alias=alias)),
            V5,
        )
        for alias in range(1, 257)
    )
    sockets = [mqtt(ports, f"h{number}", V5) for number in range(200)]
    left = dict.fromkeys(range(200))
    flood(sockets, lambda turn: data if turn in left else b"\xc0\0", seconds, reads=True)


def mqtt_properties(ports: Ports, seconds: float) -> None:
    """User properties by the hundred thousand."""
    properties = Properties(user_properties=tuple(("a", "b") for _ in range(100_000)))
    data = encode(Publish("t", b"x", properties=properties), V5)
    sock = mqtt(ports, "h0", V5)
    sock.sendall(encode(Subscribe(1, (Request("t"),)), V5))
    flood(
        [sock] + [mqtt(ports, f"p{each}", V5) for each in range(4)],
        lambda _: data,
        seconds,
        reads=True,
    )


def mqtt_loris(ports: Ports, seconds: float) -> None:
    """Two hundred clients that send a packet a byte at a time."""
    sockets = [mqtt(ports, f"h{number}") for number in range(200)]
    for sock in sockets:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    packet = encode(Publish("t", bytes(10_000)), V4)
    flood(sockets, lambda turn: packet[turn // 200 % len(packet) :][:1], seconds, reads=True)


# --- WebSocket ---


def opened(ports: Ports, number: int) -> socket.socket:
    sock = websocket(ports)
    connect = encode(Connect(V4, f"h{number}"), V4)
    sock.sendall(frame_head(len(connect)) + connect)
    sock.recv(64)
    return sock


def websocket_fragments(ports: Ports, seconds: float) -> None:
    """A packet in frames of one byte."""
    packet = encode(Publish("t", bytes(1000)), V4)
    data = b"".join(frame_head(1) + packet[each : each + 1] for each in range(len(packet))) * 20
    flood([opened(ports, each) for each in range(CROWD)], lambda _: data, seconds, reads=True)


def websocket_continued(ports: Ports, seconds: float) -> None:
    """A message that goes on for ever, in empty frames."""
    sockets = [opened(ports, each) for each in range(CROWD)]
    for sock in sockets:
        sock.sendall(b"\x02\x80" + bytes(4))
    data = (b"\x00\x80" + bytes(4)) * 10_000
    flood(sockets, lambda _: data, seconds, reads=True)


def websocket_pings(ports: Ports, seconds: float) -> None:
    """Pings with all the payload there is, and nobody reads what comes back."""
    data = (b"\x89\xfd" + bytes(4 + 125)) * 2000
    flood([opened(ports, each) for each in range(CROWD)], lambda _: data, seconds, reads=False)


def websocket_deflate(ports: Ports, seconds: float) -> None:
    """Offers of compression that nobody could read to the end."""
    offer = b"Sec-WebSocket-Extensions: " + b"permessage-deflate; a=b, " * 250 + b"x\r\n\r\n"
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with tcp(ports["ws_port"]) as sock:
            sock.sendall(SWITCH[:-2] + offer)
            sock.recv(4096)


# --- HTTP ---


def http_listings(ports: Ports, seconds: float) -> None:
    """Ten thousand queues, listed without a limit to speak of, by many at once."""
    sock = amqp(ports)
    for number in range(10_000):
        sock.sendall(frames(m.QueueDeclare(f"list-{number}", exclusive=False, nowait=True)))
    say(sock, m.QueueDeclare("hostile"))
    sockets = [tcp(ports["http_port"]) for _ in range(CROWD)]
    data = b"".join(
        http_head("GET", f"/v1/{path}?limit={limit}")
        for path, limit in itertools.product(
            ("topics", "exchanges", "bindings", "connections", "subscriptions"),
            (10**9, 1000),
        )
    )
    flood(sockets, lambda _: data, seconds, reads=True)


def http_unread(ports: Ports, seconds: float) -> None:
    """Requests in a row on one connection, whose answers are not read."""
    data = http_head("GET", "/openapi.json") * 50
    flood([tcp(ports["http_port"]) for _ in range(CROWD)], lambda _: data, seconds, reads=False)


def http_nested(ports: Ports, seconds: float) -> None:
    """JSON a hundred thousand deep."""
    for body in (b"[" * 100_000, b'{"a":' * 100_000, b'{"key":"' + b"\\u0000" * 1_000_000):
        data = http_head("PUT", "/v1/policies/%2F/p", body) * 3
        sockets = [tcp(ports["http_port"]) for _ in range(8)]
        flood(sockets, lambda _, data=data: data, seconds / 3, reads=True)  # type: ignore[misc]


def http_heads(ports: Ports, seconds: float) -> None:
    """Heads of megabytes: headers without end, and a hundred thousand parameters."""
    sockets = [tcp(ports["http_port"]) for _ in range(CROWD)]
    query = "&".join(f"p{number}=1" for number in range(100_000))
    pieces = (
        b"GET /v1/topics HTTP/1.1\r\n" + b"X-Header: y\r\n" * 200_000,
        f"GET /v1/topics?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
        b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 10 * MIB,
        http_head("GET", f"/v1/topics?{query[:50_000]}"),
    )
    for piece in pieces:
        sockets = [tcp(ports["http_port"]) for _ in range(CROWD)]
        flood(sockets, lambda _, piece=piece: piece, seconds / len(pieces), reads=True)  # type: ignore[misc]


def http_batches(ports: Ports, seconds: float) -> None:
    """A million messages of nothing, in one request."""
    request(ports, "PUT", "/v1/topics/hostile", {})
    body = b'{"messages":[' + b",".join([b'{"value":""}'] * 1_000_000) + b"]}"
    data = http_head("POST", "/v1/topics/hostile/messages/batch", body)
    flood([tcp(ports["http_port"]) for _ in range(2)], lambda _: data, seconds, reads=True)


def http_polls(ports: Ports, seconds: float) -> None:
    """Two thousand who wait for a message, and messages that come one by one."""
    sock = amqp(ports)
    say(sock, m.QueueDeclare("hostile", durable=True))
    head = http_head(
        "POST", "/v1/topics/hostile/subscriptions/queue/receive", b'{"wait_ms": 30000}'
    )
    sockets = [tcp(ports["http_port"]) for _ in range(2000)]
    data = keyed("", "hostile")
    for each in sockets:
        each.setblocking(False)
        each.send(head)
    flood([sock], lambda _: data, seconds, reads=True)
    for each in sockets:
        each.close()


def http_streams(ports: Ports, seconds: float) -> None:
    """The stream of figures, asked for by a hundred who do not read."""
    head = (
        "GET /v1/stream/metrics?interval_ms=100 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Authorization: Basic {b64encode(b'guest:guest').decode()}\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    sockets = [tcp(ports["http_port"]) for _ in range(100)]
    for each in sockets:
        each.sendall(head)
    flood(sockets, lambda _: b"\x89\x80" + os.urandom(4), seconds, reads=False)


PROTOCOL_ATTACKS: dict[str, Attack] = {
    "gets not read": amqp_unread_gets,
    "declares not read": amqp_unread_declares,
    "returns not read": amqp_unread_returns,
    "deliveries not read": amqp_unread_deliveries,
    "declares in masses": amqp_commands,
    "gets in masses": amqp_gets,
    "bindings in masses": amqp_bindings,
    "patterns of wildcards": amqp_patterns,
    "tables of headers": amqp_headers,
    "nested tables": amqp_nested,
    "channels in masses": amqp_channels_open,
    "consumers in masses": amqp_consumers,
    "nacks from the last": amqp_reversed,
    "recovers without end": amqp_recovers,
    "large commits": amqp_commits,
    "large rollbacks": amqp_rollbacks,
    "fan-out to 3000": amqp_fan_out,
    "exchanges in circles": amqp_diamonds,
    "filters in masses": mqtt_filters,
    "subscribed anew": mqtt_resubscribed,
    "unsubscribed in masses": mqtt_unsubscribed,
    "topics of many levels": mqtt_deep,
    "shares of thousands": mqtt_shared,
    "wills in masses": mqtt_wills,
    "retained in masses": mqtt_retained,
    "unknown packet ids": mqtt_unknown_ids,
    "MQTT pings not read": mqtt_pings,
    "topic aliases": mqtt_aliases,
    "user properties": mqtt_properties,
    "a byte at a time": mqtt_loris,
    "WebSocket fragments": websocket_fragments,
    "frames without end": websocket_continued,
    "WebSocket pings not read": websocket_pings,
    "offers of compression": websocket_deflate,
    "listings without limit": http_listings,
    "HTTP answers not read": http_unread,
    "JSON without end": http_nested,
    "heads of megabytes": http_heads,
    "batches of a million": http_batches,
    "polls in thousands": http_polls,
    "figures not read": http_streams,
}
