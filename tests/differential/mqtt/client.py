"""A blocking MQTT client that hides nothing: what the broker sends is what a scenario sees.

Every packet becomes an event, a plain dict whose ``"m"`` names it; ``"eof"`` is the end of the
connection and ``"nothing"`` a wait in vain. Nothing is answered unless the scenario says so.

A packet id that the broker chose reads ``"#1"``, in order of appearance: which it chooses is its
own business. Reason strings are prose and are left out, and so are properties without a value.
"""

import itertools
import secrets
import socket
import struct
import time
from collections import deque
from typing import Any

from tests.differential.expectations import Observation
from tests.differential.mqtt import wire
from tests.differential.mqtt.wire import V3, V5

__all__ = ["V3", "V5", "Client", "Event", "Observation", "Stage"]

Event = dict[str, Any]

WAIT_S = 10.0
"""For what should come."""
QUIET_S = 0.12
"""For what should not come."""
KEPT_S = 600


class Client:
    """One client id, with one connection at a time."""

    def __init__(self, stage: "Stage", label: str, version: int) -> None:
        self.stage = stage
        self.version = version
        self.client_id = stage.prefix + label if label else ""
        self._next_id = itertools.count(1)
        self._broker_ids: dict[int, str] = {}
        self._socket: socket.socket | None = None
        self._input = b""
        self._events: deque[Event] = deque()
        self._ended = False

    # --- connecting ---

    def open(self) -> "Client":
        """A new connection, on which nothing was said."""
        self.close()
        self._socket = socket.create_connection(self.stage.address, WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input, self._ended = b"", False
        self._events.clear()
        return self

    def connect(self, *, keep: bool = False, **fields: Any) -> Event:
        """Opens and connects; returns the answer. ``keep``: the session outlives it."""
        self.open()
        if keep:
            fields.setdefault("clean", False)
            if self.version == V5:
                fields["props"] = {"session_expiry": KEPT_S, **(fields.get("props") or {})}
        self.raw(wire.connect(self.version, fields.pop("client_id", self.client_id), **fields))
        return self.take()

    def on(self, **fields: Any) -> "Client":
        """The same, and it is taken for granted."""
        answer = self.connect(**fields)
        assert (answer["m"], answer.get("code")) == ("connack", 0), answer
        return self

    def drop(self) -> None:
        """As when the network fails."""
        assert self._socket is not None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def disconnect(self, reason: int | None = None, props: wire.Properties = None) -> Event:
        """Says goodbye; what the broker says to that."""
        self.raw(wire.ending(self.version, "disconnect", reason, props))
        return self.take()

    # --- sending ---

    def raw(self, data: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.sendall(data)
        except OSError:  # the broker has hung up; reading says so
            return

    def publish(self, topic: str, payload: str = "x", **fields: Any) -> int:
        """Only sent. Returns the packet id, 0 at QoS 0."""
        if fields.get("qos"):
            fields.setdefault("packet_id", next(self._next_id))
        name = self.stage.name(topic)
        self.raw(wire.publish(self.version, name, payload.encode("latin-1"), **fields))
        return int(fields.get("packet_id", 0))

    def pub(self, topic: str, payload: str = "x", **fields: Any) -> Event | None:
        """Sent and answered to the end. Returns the first answer."""
        number = self.publish(topic, payload, **fields)
        if not number:
            return None
        answer = self.take()
        if answer["m"] == "pubrec" and answer.get("code", 0) < 0x80:
            self.answer("pubrel", number)
            assert self.take()["m"] == "pubcomp"
        return answer

    def answer(self, kind: str, number: int | Event, reason: int = 0) -> None:
        """PUBACK and its kin, for a packet id or the PUBLISH or PUBREL that had it."""
        if isinstance(number, dict):
            number = self.real_id(number)
        self.raw(wire.answer(self.version, kind, number, reason))

    def subscribe(
        self, *filters: str | tuple[str, int], qos: int = 0, props: wire.Properties = None
    ) -> Event:
        """Filters, with their options where they have any but QoS; returns the answer."""
        number = next(self._next_id)
        pairs = [each if isinstance(each, tuple) else (each, qos) for each in filters]
        wanted: list[tuple[str | bytes, int]] = [
            (self.stage.name(each), options) for each, options in pairs
        ]
        self.raw(wire.subscribe(self.version, number, wanted, props))
        return self.take()

    def sub(self, *filters: str | tuple[str, int], **fields: Any) -> "Client":
        """The same, and it is taken for granted."""
        answer = self.subscribe(*filters, **fields)
        assert answer["m"] == "suback", answer
        assert max(answer["codes"]) < 0x80, answer
        return self

    def unsubscribe(self, *filters: str, props: wire.Properties = None) -> Event:
        names: list[str | bytes] = [self.stage.name(each) for each in filters]
        self.raw(wire.unsubscribe(self.version, next(self._next_id), names, props))
        return self.take()

    # --- receiving ---

    def take(self) -> Event:
        """The next event."""
        deadline = time.monotonic() + WAIT_S
        while not self._events:
            if self._ended:
                return {"m": "eof"}
            if not self._fill(deadline):
                return {"m": "nothing"}
        return self._events.popleft()

    def several(self, count: int) -> list[Event]:
        return [self.take() for _ in range(count)]

    def message(self) -> Event:
        """The next event; a PUBLISH is answered to the end of its exchange."""
        event = self.take()
        if event["m"] == "publish" and event["qos"] == 1:
            self.answer("puback", event)
        elif event["m"] == "publish" and event["qos"] == 2:
            self.answer("pubrec", event)
            between = []
            while (released := self.take())["m"] == "publish":
                between.append(released)
            assert (released["m"], released.get("id")) == ("pubrel", event["id"]), released
            self.answer("pubcomp", event)
            self._events.extendleft(reversed(between))
        return event

    def messages(self, count: int) -> list[Event]:
        return [self.message() for _ in range(count)]

    def rest(self) -> list[Event]:
        """What still comes: before the answer to a ping, and until it is quiet behind it."""
        found = []
        if not self._ended:
            self.raw(wire.packet("pingreq"))
            while (event := self.take())["m"] not in ("pingresp", "eof", "nothing"):
                found.append(event)
            if event["m"] != "pingresp":
                return [*found, event]
        deadline = time.monotonic() + QUIET_S
        while not self._ended and self._fill(deadline):
            deadline = time.monotonic() + QUIET_S
        found += self._events
        self._events.clear()
        return [*found, {"m": "eof"}] if self._ended else found

    def real_id(self, event: Event) -> int:
        return next(real for real, shown in self._broker_ids.items() if shown == event["id"])

    def _fill(self, deadline: float) -> bool:
        """More bytes, or the end, before ``deadline``."""
        assert self._socket is not None
        self._socket.settimeout(max(deadline - time.monotonic(), 0.0001))
        try:
            data = self._socket.recv(1 << 18)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError:
            data = b""
        if data:
            self._input += data
            self._split()
        else:
            self._ended = True
        return True

    def _split(self) -> None:
        while len(self._input) >= 2:
            reader = wire.Reader(self._input[1:6])
            try:
                size = reader.variable()
            except wire.Unreadable:
                return
            start = 1 + reader.at
            if len(self._input) < start + size:
                return
            body, first = self._input[start : start + size], self._input[0]
            self._input = self._input[start + size :]
            self._events.append(self._shown(wire.read(self.version, first, body)))

    def _shown(self, event: Event) -> Event:
        if "props" in event:
            event["props"].pop("reason_string", None)
            if not event["props"]:
                del event["props"]
        if event["m"] in ("publish", "pubrel") and "id" in event:
            known = self._broker_ids
            event["id"] = known.setdefault(event["id"], f"#{len(known) + 1}")
        return event


class Stage:
    """What a scenario is given: a broker, a version, and names that nobody else has."""

    def __init__(self, host: str, port: int, version: int) -> None:
        self.address = (host, port)
        self.version = version
        self.prefix = f"d{secrets.token_hex(5)}"
        self._clients: list[Client] = []

    def client(self, label: str = "c", version: int | None = None) -> Client:
        client = Client(self, label, version or self.version)
        self._clients.append(client)
        return client

    def on(self, label: str = "c", version: int | None = None, **fields: Any) -> Client:
        """A client that is connected."""
        return self.client(label, version).on(**fields)

    def name(self, given: str) -> str:
        """A topic, filter or client id of this scenario alone: ``~/a`` has its prefix."""
        return given.replace("~", self.prefix) if "~" in given else given

    @staticmethod
    def wait(seconds: float) -> None:
        """For a time that the protocol counts."""
        time.sleep(seconds)

    def clean_up(self) -> None:
        for client in self._clients:
            client.close()


class Normal:
    """Replaces what differs from run to run."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(self._prefix, "~")
        if isinstance(value, dict):
            shown = {name: self(item) for name, item in value.items()}
            if "assigned_id" in shown:
                shown["assigned_id"] = "*"
            return shown
        if isinstance(value, list | tuple):
            return [self(item) for item in value]
        return value
