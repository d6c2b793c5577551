"""Where clients connect: the listeners of a node, as its configuration has them.

A node has a list of listeners. The keys that only have a port are a short way to say the usual
ones: ``amqp_port = 5672`` is a listener called ``amqp`` that speaks AMQP on ``host``, and
``amqps_port`` one that does the same over TLS.
"""

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from braidmq.model.errors import BadSetting
from braidmq.net.tls_settings import ListenerTls

PROTOCOLS = ("amqp", "mqtt", "ws", "http")

SHORT = {name: name for name in PROTOCOLS} | {f"{name}s": name for name in PROTOCOLS}
"""The listeners that have a key of their own, and what they speak; also the schemes of URLs."""

TLS_PORTS = {"amqps": 5671, "mqtts": 8883, "wss": 8084, "https": 8443}
"""With a certificate for all of them."""


class BadListener(BadSetting):
    code = "bad-listener"

    def __init__(self, message: str, at: tuple[str | int, ...], *, remedy: str) -> None:
        """``at``: the way to what is wrong, inside of ``[listeners]``."""
        super().__init__(message, remedy=remedy)
        self.at = at


class UnknownProtocol(BadListener):
    code = "unknown-protocol"


class DuplicateListenerName(BadListener):
    code = "duplicate-listener-name"


class DuplicateListenerAddress(BadListener):
    code = "duplicate-listener-address"


class ListenerSetTwice(BadListener):
    code = "listener-set-twice"


class ListenerSpec(NamedTuple):
    """A listener with everything said."""

    name: str
    protocol: str
    host: str
    port: int
    at: tuple[str | int, ...]
    """What set it, inside of ``[listeners]``."""
    tls: ListenerTls | None = None
    """If it speaks TLS: what it does differently from ``[tls]``."""

    @property
    def url(self) -> str:
        scheme = self.protocol if self.tls is None else f"{self.protocol}s"
        return f"{scheme}://{at_host(self.host)}:{self.port}"


def at_host(host: str) -> str:
    """A host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


class ListenerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One listener of the list."""

    name: Annotated[
        str,
        Meta(
            pattern="^[a-z0-9][a-z0-9_.-]{0,63}$",
            description="What logs, metrics and `GET /v1/listeners` call it: small letters,"
            " digits, `-`, `_` and `.`, at most 64.",
        ),
    ]
    protocol: Annotated[
        str, Meta(description="amqp, mqtt, ws (MQTT over WebSocket) or http. Several may share it.")
    ]
    port: Annotated[
        int,
        Meta(ge=1, le=65_535, description="To have no such listener, leave the entry out."),
    ]
    host: Annotated[
        str, Meta(description="Address it binds; `listeners.host` if it is empty or left out.")
    ] = ""
    tls: Annotated[
        ListenerTls | None,
        Meta(
            description="Speak TLS: a table with what is different from `[tls]`, `{}` if nothing"
            " is. Without it the listener is plain."
        ),
    ] = None


def _port(what: str) -> Meta:
    return Meta(ge=0, le=65_535, description=f"{what}; 0 turns it off.")


def _tls_port(name: str, what: str) -> Meta:
    port = TLS_PORTS[name]
    return Meta(
        ge=0,
        le=65_535,
        description=f"{what} over TLS; {port} once `tls.cert` is set, and 0 turns it off.",
    )


class ListenerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where clients connect."""

    # Loopback by default: a broker open to the network is a choice.
    host: Annotated[
        str,
        Meta(
            min_length=1,
            description="Address every listener binds that has none of its own. The default is"
            " this machine only; 0.0.0.0 opens the node to the network.",
        ),
    ] = "127.0.0.1"
    amqp_port: Annotated[int, _port("AMQP 0-9-1 over TCP")] = 5672
    mqtt_port: Annotated[int, _port("MQTT 3.1.1 and 5.0 over TCP")] = 1883
    ws_port: Annotated[int, _port("MQTT over WebSocket")] = 8083
    http_port: Annotated[int, _port("HTTP: /health, /ready, /metrics and the API under /v1")] = 8080
    amqps_port: Annotated[int, _tls_port("amqps", "AMQP 0-9-1")] = 0
    mqtts_port: Annotated[int, _tls_port("mqtts", "MQTT 3.1.1 and 5.0")] = 0
    wss_port: Annotated[int, _tls_port("wss", "MQTT over WebSocket")] = 0
    https_port: Annotated[int, _tls_port("https", "HTTP")] = 0
    entries: Annotated[
        tuple[ListenerEntry, ...],
        Meta(
            description="Listeners with names of their own, several of a protocol if need be. With"
            " any of them the ports above default to 0: a node has the listeners that are set, and"
            " no others."
        ),
    ] = ()

    def specs(self) -> list[ListenerSpec]:
        """All listeners, in the order they are started."""
        return [*self._of_ports(), *self._of_entries()]

    def _of_ports(self) -> Iterator[ListenerSpec]:
        for name, protocol in SHORT.items():
            port: int = getattr(self, port_key(name))
            if port:
                tls = ListenerTls() if name in TLS_PORTS else None
                yield ListenerSpec(name, protocol, self.host, port, (port_key(name),), tls)

    def _of_entries(self) -> Iterator[ListenerSpec]:
        for index, each in enumerate(self.entries):
            host = each.host or self.host
            at = ("entries", index)
            yield ListenerSpec(each.name, each.protocol, host, each.port, at, each.tls)


def port_key(name: str) -> str:
    return f"{name}_port"


def with_default_ports(values: dict[str, Any], has_certificate: bool) -> dict[str, Any]:
    """What is set, and the ports that are not: 0 where there is a list. Who lists listeners has
    those and no others; a port that nobody asked for would be open to whoever finds it."""
    if values.get("entries"):
        return {port_key(name): 0 for name in SHORT} | values
    if has_certificate:
        return {port_key(name): port for name, port in TLS_PORTS.items()} | values
    return values


def mistakes_in(settings: ListenerSettings, given: set[str]) -> Iterator[BadListener]:
    """``given``: the keys that somebody set, and that are not there by default."""
    ports = {name for name in SHORT if port_key(name) in given}
    by_name: dict[str, ListenerSpec] = {}
    earlier: list[ListenerSpec] = []
    for spec in settings.specs():
        is_entry = spec.at[0] == "entries"
        if spec.protocol not in PROTOCOLS:
            yield UnknownProtocol(
                f"listener {spec.name!r}: unknown protocol {spec.protocol!r}",
                (*spec.at, "protocol"),
                remedy=f"Choose one of {', '.join(PROTOCOLS)}",
            )
        if is_entry and spec.name in ports:
            key = f"listeners.{port_key(spec.name)}"
            yield ListenerSetTwice(
                f"listener {spec.name!r} is set here and by {key}",
                (*spec.at, "name"),
                remedy=f"Keep one of them: leave out {key}, or give this entry another name",
            )
        elif spec.name in by_name:
            yield DuplicateListenerName(
                f"two listeners are called {spec.name!r}: {by_name[spec.name].url} and {spec.url}",
                (*spec.at, "name"),
                remedy="Give each a name of its own",
            )
        else:
            by_name[spec.name] = spec
            taken = next((each for each in earlier if _overlap(each, spec)), None)
            if taken is not None:
                yield DuplicateListenerAddress(
                    f"listener {spec.name!r} would bind {at_host(spec.host)}:{spec.port}, which"
                    f" {taken.name!r} has as {at_host(taken.host)}:{taken.port}",
                    _port_of(spec if spec.at[0] in given else taken),
                    remedy="Give one of them another port or host",
                )
        earlier.append(spec)


def _port_of(spec: ListenerSpec) -> tuple[str | int, ...]:
    return (*spec.at, "port") if spec.at[0] == "entries" else spec.at


def _overlap(one: ListenerSpec, other: ListenerSpec) -> bool:
    """Whether only one of them can be bound. Names of hosts are not looked up here: where those
    meet, binding fails."""
    if one.port != other.port:
        return False
    a, b = _address(one.host), _address(other.host)
    if a == b:
        return True
    # The wildcard of IPv6 takes IPv4 connections, too; that of IPv4 no others.
    return "::" in (a, b) or ("0.0.0.0" in (a, b) and ":" not in a + b)


def _address(host: str) -> str:
    """As one address is always written."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()
