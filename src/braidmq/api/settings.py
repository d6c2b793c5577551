"""What an operator may set about HTTP: the table ``http`` of the configuration."""

from typing import Annotated

import msgspec
from msgspec import Meta

from braidmq.model.lists import listed


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which names this node goes by, which web pages may use it, and how long requests wait."""

    allowed_hosts: Annotated[
        str,
        Meta(
            description="Names in the Host header that are this node's, with commas between them:"
            " broker.example.com, *.example.com, or * for any. localhost, the machine's name, the"
            " `host` of any listener of HTTP and the address a connection came to always are. A"
            " reverse proxy that passes on the Host it was asked for needs its names here."
        ),
    ] = ""
    allowed_origins: Annotated[
        str,
        Meta(
            description="Web pages that may use the API, with commas between them:"
            " https://app.example.com, *.example.com, or * for any. Pages of this machine and of"
            " the host that is asked always may, and so may clients that are no browsers."
        ),
    ] = ""

    poll_wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=3_600_000,
            description="How long a receive or poll waits for a message unless it says, and at"
            " most: one that wants to wait longer is refused. Proxies between a client and this"
            " node often give up after a minute.",
        ),
    ] = 30_000

    @property
    def hosts(self) -> tuple[str, ...]:
        return listed(self.allowed_hosts)

    @property
    def origins(self) -> tuple[str, ...]:
        return listed(self.allowed_origins)
