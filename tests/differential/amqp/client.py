"""A blocking AMQP client that hides nothing: what the broker sends is what a scenario sees.

Every arriving frame becomes an event, a plain dict whose ``"m"`` names it: a method
(``"queue.declare-ok"``), or ``"heartbeat"``, ``"eof"``, ``"protocol-header"``, ``"nothing"`` (the
wait was in vain). A method with content carries ``props`` and ``body``. The client answers the
broker's close methods, as the protocol wants, and does nothing else of its own accord.
"""

import itertools
import re
import secrets
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.differential.amqp import wire
from tests.differential.amqp.operators import Operator

Event = dict[str, Any]
Observation = Any  # plain data: what JSON can hold

WAIT_S = 6.0
"""For what should come. RabbitMQ takes 3 s to drop a peer it does not trust."""

QUIET_S = 0.15
"""For what should not come."""

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}

WITH_CONTENT = {"basic.return", "basic.deliver", "basic.get-ok"}
UNASKED = {"basic.deliver", "basic.return", "basic.ack", "basic.nack", "basic.cancel"}
"""Methods that come on their own, so a call does not take them for its reply."""


def plain(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


class Connection:
    """One socket. ``events`` holds what arrived and no one has taken, channel 0 under 0."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.events: dict[int, deque[Event]] = {}
        self.partial: dict[int, Event] = {}
        self.sizes: dict[int, list[int]] = {}
        self.buffer = b""
        self.ended: Event | None = None  # the broker's close, or its hanging up without one
        self.hung_up = False
        self.frame_max = 131_072
        self.on_send: Callable[[str, dict[str, Any]], None] = lambda name, values: None
        self._numbers = itertools.count(1)

    # Sending

    def raw(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:  # the broker has hung up; reading says so
            return

    def send(self, channel: int, name: str, **values: Any) -> None:
        self.on_send(name, values)
        self.raw(wire.frame(wire.METHOD, channel, wire.method_payload(name, values)))

    # Receiving

    def _fill(self, deadline: float) -> bool:
        """More bytes, or the end, before ``deadline``."""
        self.socket.settimeout(max(deadline - time.monotonic(), 0.0001))
        try:
            data = self.socket.recv(262_144)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError:
            data = b""
        if data:
            self.buffer += data
            self._split()
        else:
            self.hung_up = True
            self._arrived(0, {"m": "eof"})
        return True

    def _split(self) -> None:
        while len(self.buffer) >= 8:
            if self.buffer.startswith(b"AMQP"):
                self._arrived(0, {"m": "protocol-header", "bytes": self.buffer[:8].hex()})
                self.buffer = self.buffer[8:]
                continue
            kind, channel, size = struct.unpack_from(">BHI", self.buffer)
            if len(self.buffer) < size + 8:
                return
            payload, end = self.buffer[7 : 7 + size], self.buffer[7 + size]
            assert end == wire.FRAME_END, "the broker's frame has no end"
            self.buffer = self.buffer[8 + size :]
            self._frame(kind, channel, payload)

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == wire.HEARTBEAT:
            self._arrived(channel, {"m": "heartbeat"})
        elif kind == wire.METHOD:
            event = wire.read_method(payload)
            if event["m"] in WITH_CONTENT:
                self.partial[channel] = event
            else:
                self._arrived(channel, event)
        elif kind == wire.HEADER:
            event = self.partial[channel]
            event["size"], event["props"] = wire.read_header(payload)
            event["raw"] = b""
            self._content(channel)
        else:
            self.sizes.setdefault(channel, []).append(len(payload))
            self.partial[channel]["raw"] += payload
            self._content(channel)

    def _content(self, channel: int) -> None:
        event = self.partial[channel]
        if len(event["raw"]) < event["size"]:
            return
        body = event.pop("raw").decode("utf-8", "backslashreplace")
        del event["size"], self.partial[channel]
        event["body"] = body if len(body) <= 100 else f"{body[:8]}... {len(body)} in all"
        self._arrived(channel, event)

    def _arrived(self, channel: int, event: Event) -> None:
        if event["m"] == "channel.close":
            self.send(channel, "channel.close-ok")
        elif event["m"] == "connection.close":
            self.send(0, "connection.close-ok")
        if event["m"] in ("connection.close", "eof"):
            self.ended = self.ended or event
        self.events.setdefault(channel, deque()).append(event)

    def wait(self, ready: Callable[[], Any], wait_s: float = WAIT_S) -> Any:
        """The first true answer of ``ready``; false if the time or the connection ends first."""
        deadline = time.monotonic() + wait_s
        while not (answer := ready()):
            if self.hung_up or not self._fill(deadline):
                return ready()
        return answer

    def next(self, channel: int = 0, wait_s: float = WAIT_S) -> Event:
        """The next event of a channel, whatever it is."""
        events = self.events.setdefault(channel, deque())
        if self.wait(lambda: bool(events), wait_s):
            return events.popleft()
        return {"m": "nothing"}

    def rest(self, channel: int = 0, quiet_s: float = QUIET_S) -> list[Event]:
        """What else comes on a channel until it is quiet; an end of the connection is one event."""
        found = []
        while (event := self.next(channel, quiet_s))["m"] != "nothing":
            found.append(event)
            if event["m"] == "eof":
                break
        return found

    def ending(self, wait_s: float = WAIT_S) -> list[Event]:
        """Everything on channel 0 up to the broker's hanging up."""
        found = []
        while (event := self.next(0, wait_s))["m"] not in ("eof", "nothing"):
            found.append(event)
        return [*found, event]

    # The usual

    def handshake(
        self,
        *,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        capabilities: dict[str, Any] | None = None,
        **tune: int,
    ) -> Event:
        """Up to ``open-ok``, or what came in its place."""
        self.raw(wire.PROTOCOL_HEADER)
        if (start := self.next())["m"] != "connection.start":
            return start
        self.start_ok(plain(user, password), capabilities=capabilities)
        if (offer := self.next())["m"] != "connection.tune":
            return offer
        agreed = {name: tune.get(name, offer[name]) for name in ("channel_max", "frame_max")}
        self.frame_max = agreed["frame_max"] or 131_072
        self.send(0, "connection.tune-ok", **agreed, heartbeat=tune.get("heartbeat", 0))
        self.send(0, "connection.open", virtual_host=vhost)
        return self.next()

    def start_ok(
        self,
        response: bytes,
        mechanism: str = "PLAIN",
        capabilities: dict[str, Any] | None = None,
        locale: str = "en_US",
    ) -> None:
        held = CAPABILITIES if capabilities is None else capabilities
        self.send(
            0,
            "connection.start-ok",
            client_properties={"product": "differential", "capabilities": held},
            mechanism=mechanism,
            response=response,
            locale=locale,
        )

    def channel(self, number: int | None = None) -> "Channel":
        """An open channel."""
        opened = Channel(self, number or next(self._numbers))
        reply = opened("channel.open")
        assert reply["m"] == "channel.open-ok", reply
        return opened

    def close(self) -> None:
        self.socket.close()


class Channel:
    def __init__(self, connection: Connection, number: int) -> None:
        self.connection, self.number = connection, number

    def send(self, name: str, **values: Any) -> None:
        self.connection.send(self.number, name, **values)

    def __call__(self, name: str, **values: Any) -> Event:
        """Send a method; the reply, or the close that came in its place."""
        self.send(name, **values)
        return self.reply()

    def reply(self, wait_s: float = WAIT_S) -> Event:
        return self._first(lambda event: event["m"] not in UNASKED, wait_s)

    def take(self, count: int = 1, wait_s: float = WAIT_S) -> list[Event]:
        """The next ``count`` events that come on their own, in order; fewer if they don't come."""
        found = []
        for _ in range(count):
            event = self._first(lambda event: True, wait_s)
            found.append(event)
            if event["m"] in ("nothing", "eof", "channel.close", "connection.close"):
                break
        return found

    def rest(self, quiet_s: float = QUIET_S) -> list[Event]:
        """What else comes, until it is quiet."""
        return self.connection.rest(self.number, quiet_s)

    def settled(self, count: int) -> list[Any]:
        """How tags 1..count were confirmed, in the order of tags: how acks are grouped is chance.

        Returns of messages may come in between; anything else ends the list.
        """
        outcome: dict[int, str] = {}
        others: list[Event] = []
        while len(outcome) < count:
            (event,) = self.take()
            if event["m"] not in ("basic.ack", "basic.nack"):
                others.append(event)
                if event["m"] != "basic.return":
                    break
                continue
            first = event["tag"]
            if event["multiple"]:
                first = min(set(range(1, event["tag"] + 1)) - set(outcome))
            for tag in range(first, event["tag"] + 1):
                outcome.setdefault(tag, event["m"])
        return [*(outcome[tag] for tag in sorted(outcome)), *others]

    def _first(self, wanted: Callable[[Event], bool], wait_s: float) -> Event:
        connection = self.connection
        events = connection.events.setdefault(self.number, deque())

        def found() -> Event | None:
            for place, event in enumerate(events):
                if wanted(event):
                    del events[place]
                    return event
            return connection.ended

        return connection.wait(found, wait_s) or {"m": "nothing"}

    def message(
        self,
        exchange: str,
        routing_key: str,
        body: str | bytes = "",
        mandatory: bool = False,
        immediate: bool = False,
        **props: Any,
    ) -> bytes:
        """The frames of a publish."""
        raw = wire.text(body)
        method = {
            "exchange": exchange,
            "routing_key": routing_key,
            "mandatory": mandatory,
            "immediate": immediate,
        }
        data = [
            wire.frame(wire.METHOD, self.number, wire.method_payload("basic.publish", method)),
            wire.frame(wire.HEADER, self.number, wire.header_payload(len(raw), props)),
        ]
        step = self.connection.frame_max - 8
        data += (
            wire.frame(wire.BODY, self.number, raw[at : at + step])
            for at in range(0, len(raw), step)
        )
        return b"".join(data)

    def pub(self, exchange: str, routing_key: str, body: str | bytes = "", **values: Any) -> None:
        self.connection.raw(self.message(exchange, routing_key, body, **values))

    def sync(self) -> None:
        """Return when the broker has handled what was sent on this channel."""
        self.ok("exchange.declare", exchange="amq.direct", passive=True)

    # Short cuts that expect success

    def queue(self, queue: str, **values: Any) -> str:
        reply = self("queue.declare", queue=queue, **values)
        assert reply["m"] == "queue.declare-ok", reply
        return str(reply["queue"])

    def exchange(self, exchange: str, kind: str = "direct", **values: Any) -> str:
        self.ok("exchange.declare", exchange=exchange, type=kind, **values)
        return exchange

    def bind(self, queue: str, exchange: str, routing_key: str = "", **arguments: Any) -> None:
        names = {"queue": queue, "exchange": exchange, "routing_key": routing_key}
        self.ok("queue.bind", **names, arguments=arguments)

    def consume(self, queue: str, tag: str = "t", **values: Any) -> None:
        self.ok("basic.consume", queue=queue, consumer_tag=tag, **values)

    def ok(self, name: str, **values: Any) -> None:
        reply = self(name, **values)
        assert reply["m"] == f"{name}-ok", reply

    def get(self, queue: str, no_ack: bool = True) -> Event:
        return self("basic.get", queue=queue, no_ack=no_ack)

    def got(self, queue: str, wait_s: float = WAIT_S) -> Event:
        """``get`` of a message that is on its way, from another process of the broker."""
        deadline = time.monotonic() + wait_s
        while (reply := self.get(queue))["m"] == "basic.get-empty":
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return reply

    def depth(self, queue: str) -> int | str:
        """Ready messages, after the broker has had the time to move them."""
        reply = self("queue.declare", queue=queue, passive=True)
        return reply.get("messages", reply["m"])

    def depth_is(self, queue: str, wanted: int | str, wait_s: float = WAIT_S) -> int | str:
        """Wait for that many ready messages; what there is in the end."""
        deadline = time.monotonic() + wait_s
        while (depth := self.depth(queue)) != wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        return depth

    def drain(self, queue: str) -> list[str]:
        """Bodies of all ready messages."""
        bodies = []
        while (reply := self.get(queue))["m"] == "basic.get-ok":
            bodies.append(reply["body"])
        return bodies


class Client:
    """What a scenario is given: connections to one broker, and names no one else uses."""

    def __init__(self, host: str, port: int, operator: Operator | None = None) -> None:
        self.address = (host, port)
        self._operator = operator
        self._policies: dict[str, None] = {}
        self._users: list[str] = []
        self.prefix = f"d{secrets.token_hex(4)}-"
        self._connections: list[Connection] = []
        self._declared: dict[tuple[str, str], None] = {}

    def name(self, label: str) -> str:
        return self.prefix + label

    def socket(self) -> Connection:
        """A connection on which nothing was said."""
        connection = Connection(self.address)
        connection.on_send = self._note
        self._connections.append(connection)
        return connection

    def started(self, mechanism: str = "PLAIN", response: bytes | None = None) -> Connection:
        """A connection that was offered ``tune``."""
        connection = self.socket()
        connection.raw(wire.PROTOCOL_HEADER)
        assert connection.next()["m"] == "connection.start"
        connection.start_ok(plain("guest", "guest") if response is None else response, mechanism)
        assert connection.next()["m"] == "connection.tune"
        return connection

    def connect(self, **options: Any) -> Connection:
        connection = self.socket()
        reply = connection.handshake(**options)
        assert reply["m"] == "connection.open-ok", reply
        return connection

    def channel(self) -> Channel:
        """A channel on a connection of its own."""
        return self.connect().channel()

    @property
    def operator(self) -> Operator:
        assert self._operator is not None, "nobody to administer the broker"
        return self._operator

    def policy(
        self,
        label: str,
        definition: dict[str, Any],
        priority: int = 0,
        apply_to: str = "all",
        pattern: str = "",
    ) -> bool:
        """Set a policy for our names that begin with ``pattern``; whether it was taken."""
        name = self.name(label)
        matching = f"^{self.prefix}{pattern}"
        taken = self.operator.set_policy(name, matching, definition, priority, apply_to)
        if taken:
            self._policies[name] = None
        return taken

    def delete_policy(self, label: str) -> None:
        name = self.name(label)
        self.operator.delete_policy(name)
        del self._policies[name]

    def user(self, label: str, configure: str, write: str, read: str) -> dict[str, str]:
        """A user for ``connect``; ``~`` in the patterns stands for the prefix of our names."""
        name = self.name(label)
        patterns = (each.replace("~", self.prefix) for each in (configure, write, read))
        self._users.append(name)
        self.operator.add_user(name, "secret", *patterns)
        return {"user": name, "password": "secret"}

    def _note(self, name: str, values: dict[str, Any]) -> None:
        if name in ("queue.declare", "exchange.declare") and not values.get("passive"):
            kind = name.partition(".")[0]
            declared = values.get(kind, "")
            if isinstance(declared, str) and declared.startswith(self.prefix):
                self._declared[kind, declared] = None

    def clean_up(self) -> None:
        """Close everything and delete what was declared under our names."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        for name in self._policies:
            self.operator.delete_policy(name)
        for name in self._users:
            self.operator.delete_user(name)
        if not self._declared:
            return
        declared, self._declared = self._declared, {}
        connection = self.connect()
        try:
            channel = connection.channel()
            for kind, name in declared:
                reply = channel(f"{kind}.delete", **{kind: name})
                if reply["m"] == "channel.close":
                    channel = connection.channel()
                elif reply["m"] in ("connection.close", "nothing", "eof"):
                    break
        finally:
            connection.close()
            self._connections.clear()


GENERATED = re.compile(
    r"amq\.gen-[\w-]{22}|amq\.ctag-[\w-]{22}|amq\.rabbitmq\.reply-to\.[\w.\-+/=]+|"
    r"<\d+\.\d+\.\d+>|T:\d+"
)


class Normal:
    """Replaces what differs from run to run: names, process ids, times."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.seen: dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            return GENERATED.sub(self._renamed, value.replace(self.prefix, "~"))
        if isinstance(value, dict):
            return {self(name): self(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self(item) for item in value]
        return value

    def _renamed(self, found: re.Match[str]) -> str:
        name = found[0]
        if name.startswith("T:"):
            return "T:*"
        if name.startswith("<"):
            return "<pid>"
        kind = name.partition("-")[0] if name.startswith(("amq.gen", "amq.ctag")) else name[:21]
        alike = sum(value.startswith(kind) for value in self.seen.values())
        return self.seen.setdefault(name, f"{kind}-#{alike + 1}")
