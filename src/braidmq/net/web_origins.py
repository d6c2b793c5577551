"""Which web pages may speak to a node: the one rule for HTTP and for WebSockets.

A browser sends what any page asks it to, from inside the network it is in. Two headers, which no
page can forge, tell such requests from others:

Host     the name the page used for us. A name that is not ours is an attacker's that was made to
         point here (DNS rebinding): the browser takes us for the page's own server.
Origin   where the page is from. One of another host writes to us in its visitor's name (CSRF).

Clients that are no browsers send a Host they can choose, and no Origin.
"""

import ipaddress
import re
import socket
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from braidmq.model.errors import AccessRefused
from braidmq.security.accounts import is_loopback

LOCALHOST = "localhost"


class HostNotAllowed(AccessRefused):
    code = "host-not-allowed"


class OriginNotAllowed(AccessRefused):
    code = "origin-not-allowed"


class WebCallers:
    def __init__(
        self,
        listener_hosts: Collection[str],
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
    ) -> None:
        """``listener_hosts``: what listeners of HTTP bind; of 0.0.0.0 the address that a connection
        came to counts."""
        machine = socket.gethostname().lower()
        self._own = {LOCALHOST, machine, machine.partition(".")[0]}
        self._own.update(host.lower() for host in listener_hosts)
        self.replace(allowed_hosts, allowed_origins)

    def replace(self, allowed_hosts: Sequence[str], allowed_origins: Sequence[str]) -> None:
        """For requests that come from now on."""
        self._hosts = [each.lower() for each in allowed_hosts]
        self._origins = allowed_origins

    def check(self, connection: HTTPConnection) -> None:
        """Raises HostNotAllowed or OriginNotAllowed."""
        hosts = connection.headers.getlist("host")
        local = connection.scope.get("server")
        if len(hosts) > 1 or (
            hosts and not self.host_allowed(host_of(hosts[0]), local[0] if local else "")
        ):
            raise HostNotAllowed(
                f"this node is not known as {', '.join(hosts)[:255]!r}",
                remedy="Use one of its own names or addresses, or add that one to"
                " `http.allowed_hosts`",
            )
        origin = connection.headers.get("origin")
        if origin is None:
            return
        same = bool(hosts) and urlsplit(origin.lower()).hostname == host_of(hosts[0])
        if not (same or origin_allowed(origin, self._origins)):
            raise OriginNotAllowed(
                f"pages from {origin[:255]!r} may not use this node",
                remedy="Add it to `http.allowed_origins`, if they should be allowed to",
            )

    def host_allowed(self, host: str, local_address: str) -> bool:
        """``local_address``: ours, of the connection."""
        if host in self._own or is_loopback(host):
            return True
        if any(host_matches(rule, host) for rule in self._hosts):
            return True
        return _address(host) is not None and _address(host) == _address(local_address)


def host_of(header: str) -> str:
    """The name in a Host header, without its port; empty for what is none."""
    try:
        return (urlsplit(f"//{header.strip().lower()}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    # A dual-stack socket has IPv4 addresses as ::ffff:10.0.0.1.
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def origin_allowed(origin: str, allowed: Sequence[str]) -> bool:
    """``https://app.example.com`` allows just that, ``*.example.com`` every host below it, with
    any scheme and port, and ``*`` everybody. Pages of this machine always may."""
    origin = origin.lower()
    try:
        host = urlsplit(origin).hostname or ""
    except ValueError:
        return False
    if host == LOCALHOST or is_loopback(host):
        return True
    return any(rule.lower() == origin or host_matches(rule.lower(), host) for rule in allowed)


def host_matches(rule: str, host: str) -> bool:
    """``*.example.com`` is every host below it, ``*`` any, all else itself."""
    if rule.startswith("*."):
        return re.fullmatch(r"[a-z0-9.-]+" + re.escape(rule[1:]), host) is not None
    return rule in ("*", host)
