"""Listeners that others than this machine reach, and what is careless about them."""

from collections.abc import Iterator, Sequence

from braidmq.net.settings import ListenerSpec
from braidmq.net.web_origins import LOCALHOST
from braidmq.security.accounts import is_loopback

ANY = "*"

PLAIN = "passwords and messages can be read on the way: set tls.cert, or bind 127.0.0.1"


def is_exposed(spec: ListenerSpec) -> bool:
    """Whether it binds more than this machine's own addresses."""
    return spec.host.lower() != LOCALHOST and not is_loopback(spec.host)


def warnings_of(
    spec: ListenerSpec, ws_origins: Sequence[str], http_origins: Sequence[str], hosts: Sequence[str]
) -> Iterator[str]:
    if not is_exposed(spec):
        return
    if spec.tls is None:
        yield f"no TLS: {PLAIN}"
    if spec.protocol == "ws" and ANY in ws_origins:
        yield "any web page may connect: name them in mqtt.origins"
    if spec.protocol == "http" and ANY in http_origins:
        yield "any web page may use the API: name them in http.allowed_origins"
    if spec.protocol == "http" and ANY in hosts:
        yield "any name is taken for this node's: name its own in http.allowed_hosts"
