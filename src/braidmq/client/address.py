"""Where a broker is: one URL for AMQP and HTTP."""

from dataclasses import dataclass
from urllib.parse import parse_qs, quote, unquote, urlsplit

from braidmq.model.errors import SetupError

AMQP_PORT = 5672
HTTP_PORT = 8080


class BadAddress(SetupError):
    code = "bad-address"
    remedy = "As amqp://user:password@host:5672/vhost"


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    user: str
    password: str
    vhost: str
    http_url: str

    def __str__(self) -> str:
        """Without the password: it ends up in messages and logs."""
        return f"amqp://{self.user}@{self.host}:{self.port}/{quote(self.vhost, safe='')}"


def parse_address(url: str, http_url: str | None = None) -> Address:
    """``amqp://user:password@host:port/vhost``; ``braid://`` is the same.

    HTTP is at the same host, port 8080, unless ``http_url`` or ``?http=`` with a port or a URL
    says otherwise.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise BadAddress(f"{parts.netloc.rpartition('@')[2]} has no valid port") from None
    if parts.scheme not in ("amqp", "braid") or not parts.hostname:
        raise BadAddress(f"{parts.scheme}://{parts.hostname or ''} is not the URL of a broker")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    named = http_url or parse_qs(parts.query).get("http", [str(HTTP_PORT)])[-1]
    if named.isdecimal():
        named = f"http://{host}:{named}"
    if not named.startswith("http://"):
        raise BadAddress(f"{named} is not an HTTP URL", remedy="Use a URL such as http://host:8080")
    return Address(
        host=parts.hostname,
        port=port or AMQP_PORT,
        user=unquote(parts.username) if parts.username is not None else "guest",
        password=unquote(parts.password) if parts.password is not None else "guest",
        vhost=unquote(parts.path[1:]) or "/",
        http_url=named.rstrip("/"),
    )
