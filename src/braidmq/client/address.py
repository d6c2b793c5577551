"""Where a broker is: one URL for AMQP and HTTP."""

from dataclasses import dataclass
from urllib.parse import parse_qs, quote, unquote, urlsplit

from braidmq.client.tls import TlsOptions, options_in
from braidmq.client.tokens import Token
from braidmq.model.errors import SetupError

AMQP_PORT, AMQPS_PORT = 5672, 5671
HTTP_PORT, HTTPS_PORT = 8080, 8443


class BadAddress(SetupError):
    """What ``connect`` was given is not the address of a broker."""

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
    tls: TlsOptions | None = None
    token: Token | None = None
    """Instead of the password."""

    def __str__(self) -> str:
        """Without the password: it ends up in messages and logs."""
        scheme = "amqp" if self.tls is None else "amqps"
        return f"{scheme}://{self.user}@{self.host}:{self.port}/{quote(self.vhost, safe='')}"


def parse_address(url: str, http_url: str | None = None, token: Token | None = None) -> Address:
    """``amqp://user:password@host:port/vhost``; ``braid://`` is the same.

    HTTP is at the same host, port 8080, unless ``http_url`` or ``?http=`` with a port or a URL
    says otherwise. ``amqps://`` is TLS for both, on the ports 5671 and 8443; ``?ca=`` names the
    authorities to trust, ``?cert=`` and ``?key=`` a certificate of the client, which says who it is
    if the URL names no user. ``?token=`` is a token instead of a password; a user that is named
    has to be the token's.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise BadAddress(f"{parts.netloc.rpartition('@')[2]} has no valid port") from None
    if parts.scheme not in ("amqp", "amqps", "braid") or not parts.hostname:
        raise BadAddress(f"{parts.scheme}://{parts.hostname or ''} is not the URL of a broker")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    query = parse_qs(parts.query)
    is_tls = parts.scheme == "amqps"
    tls = options_in(query) if is_tls else None
    named = http_url or query.get("http", [str(HTTPS_PORT if is_tls else HTTP_PORT)])[-1]
    if named.isdecimal():
        named = f"{'https' if is_tls else 'http'}://{host}:{named}"
    if not named.startswith(("http://", "https://")):
        raise BadAddress(f"{named} is not an HTTP URL", remedy="Use a URL such as http://host:8080")
    if token is None and "token" in query:
        token = query["token"][-1]
    if token is not None and parts.password is not None:
        raise BadAddress(
            "a token is given and a password, too", remedy="A token is a login of its own"
        )
    has_login = token is not None or (tls is not None and bool(tls.cert))
    anybody = "" if has_login else "guest"
    return Address(
        host=parts.hostname,
        port=port or (AMQPS_PORT if is_tls else AMQP_PORT),
        user=unquote(parts.username) if parts.username is not None else anybody,
        password=unquote(parts.password) if parts.password is not None else anybody,
        vhost=unquote(parts.path[1:]) or "/",
        http_url=named.rstrip("/"),
        tls=tls,
        token=token,
    )
