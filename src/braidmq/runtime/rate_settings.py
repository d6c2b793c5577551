"""What an operator may set about rates: the table ``rates`` of the configuration."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from braidmq.model.limits import MIB

RATE_MAX: Final = 1 << 40


class RateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast clients may go. A rate of 0 is no limit."""

    limit_loopback: Annotated[
        bool, Meta(description="Whether this holds for clients of the node's own machine, too.")
    ] = False
    over_limit: Annotated[
        Literal["slow", "refuse"],
        Meta(
            description="What becomes of a client that is faster: it is not read until there is"
            " room, or told no in the words of its protocol."
        ),
    ] = "slow"
    connections_per_min: Annotated[
        int, Meta(ge=0, le=RATE_MAX, description="Connections from one address in a minute.")
    ] = 100
    connections_burst: Annotated[
        int, Meta(ge=1, le=RATE_MAX, description="So many of them at once.")
    ] = 20
    messages_per_s: Annotated[
        int, Meta(ge=0, le=RATE_MAX, description="Messages one client may publish in a second.")
    ] = 1000
    messages_burst: Annotated[
        int, Meta(ge=1, le=RATE_MAX, description="So many of them at once.")
    ] = 100
    bytes_per_s: Annotated[
        int,
        Meta(ge=0, le=RATE_MAX, description="Bytes of message bodies one client may publish."),
    ] = 0
    bytes_burst: Annotated[int, Meta(ge=1, le=RATE_MAX, description="So many of them at once.")] = (
        1 * MIB
    )
    subscriptions_per_s: Annotated[
        int,
        Meta(
            ge=0,
            le=RATE_MAX,
            description="Subscriptions and consumers one client may begin in a second.",
        ),
    ] = 100
    subscriptions_burst: Annotated[
        int, Meta(ge=1, le=RATE_MAX, description="So many of them at once.")
    ] = 10
    user_messages_per_s: Annotated[
        int,
        Meta(ge=0, le=RATE_MAX, description="The same of messages of all clients of one user."),
    ] = 0
    user_bytes_per_s: Annotated[
        int, Meta(ge=0, le=RATE_MAX, description="The same of their bytes.")
    ] = 0
    node_messages_per_s: Annotated[
        int, Meta(ge=0, le=RATE_MAX, description="The same of messages of all clients.")
    ] = 0
    node_bytes_per_s: Annotated[
        int, Meta(ge=0, le=RATE_MAX, description="The same of their bytes.")
    ] = 0
    failed_logins: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Log-ins of one user from one address that may fail before the next has to"
            " wait, a second at first and then twice as long each time; of one address ten times as"
            " many. 0: nobody waits.",
        ),
    ] = 5
    failed_login_wait_max_s: Annotated[
        int, Meta(ge=1, le=86_400, description="How long that becomes at most.")
    ] = 300


OFF: Final = RateSettings(
    connections_per_min=0, messages_per_s=0, subscriptions_per_s=0, failed_logins=0
)
