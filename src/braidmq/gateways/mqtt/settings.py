"""What an operator may set about MQTT: the table ``mqtt`` of the configuration."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from braidmq.engine.routing.filters import FILTER_LEVELS_MAX
from braidmq.model.limits import KIB, MIB
from braidmq.model.lists import listed

EXPIRES_NEVER = 0xFFFFFFFF
"""A session expiry interval that does not end (3.1.2.11.2)."""

ShareStrategy = Literal["round-robin", "sticky", "random", "least-in-flight"]


class MqttSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of MQTT's clients and sessions."""

    receive_maximum: Annotated[
        int,
        Meta(
            ge=1,
            le=65_535,
            description="Publishes above QoS 0 that a client of version 5 may have unanswered.",
        ),
    ] = 1024
    packet_bytes_max: Annotated[
        int, Meta(ge=1024, le=128 * MIB, description="The largest packet a client may send.")
    ] = 16 * MIB
    connect_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=512 * KIB,
            description="The largest CONNECT: client id, user name, password and will. Nobody is"
            " known yet who sends one, so it is small.",
        ),
    ] = 16 * KIB
    topic_alias_maximum: Annotated[
        int, Meta(ge=0, le=65_535, description="Topic aliases that a client may set.")
    ] = 256
    topic_levels_max: Annotated[
        int,
        Meta(
            ge=1,
            le=FILTER_LEVELS_MAX,
            description="Levels of a topic or filter. Above it a publish is refused with 0x90, a"
            " filter with 0x8F (0x80 in 3.1.1); who can't be told is disconnected.",
        ),
    ] = 256
    maximum_qos: Annotated[
        int,
        Meta(
            ge=0,
            le=2,
            description="Subscriptions are granted at most this. Version 5 hears of it, and is"
            " refused what it publishes above; 3.1.1 can't, and what it publishes is handed on at"
            " most at this.",
        ),
    ] = 2
    keep_alive_s_max: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description="Clients of version 5 that want longer, or none, get this as server keep"
            " alive; 0: as they want.",
        ),
    ] = 0
    session_expiry_s_max: Annotated[
        int,
        Meta(
            ge=0,
            le=EXPIRES_NEVER,
            description="How long a session may be kept without a connection; 4294967295: for"
            " ever.",
        ),
    ] = EXPIRES_NEVER
    foreign_client_ids: Annotated[
        bool,
        Meta(
            description="Whether a client may use the client id of another user's session: that"
            " session ends, with all that waits for it. Otherwise it is refused, with 0x87."
        ),
    ] = False
    session_messages_max: Annotated[
        int,
        Meta(ge=1, description="Messages that wait for one session; above it the oldest go."),
    ] = 100_000
    delayed_messages_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Messages to plain topics of one namespace that wait for their time; one"
            " more is refused with 0x97.",
        ),
    ] = 100_000
    queue_batch: Annotated[
        int,
        Meta(
            ge=1,
            le=8192,
            description="Messages of a durable queue that one consumer may have unanswered, unless"
            " the queue says otherwise; its receive maximum may be less.",
        ),
    ] = 500
    subscriptions_max: Annotated[int, Meta(ge=1, description="Subscriptions of one session.")] = (
        10_000
    )
    retained_messages_max: Annotated[
        int, Meta(ge=0, description="Retained messages of the node; one more is refused.")
    ] = 100_000
    retained_bytes_max: Annotated[
        int, Meta(ge=0, description="The same in bytes; they are held in memory.")
    ] = 64 * MIB
    output_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            description="A subscriber with this much unsent gets no more of QoS 0 until it reads.",
        ),
    ] = 8 * MIB
    share_strategy: Annotated[
        ShareStrategy, Meta(description="Who of a shared subscription gets a message.")
    ] = "round-robin"
    redirect: Annotated[
        str,
        Meta(
            description="Another server, such as mqtt.example.com:1883, that clients are sent to"
            " instead of being let in: version 5 hears it as server reference, 3.1.1 that the"
            " server is unavailable."
        ),
    ] = ""
    sys_interval_s: Annotated[
        int,
        Meta(ge=0, le=86_400, description="Between two publications of $SYS; 0: never."),
    ] = 10
    origins: Annotated[
        str,
        Meta(
            description="Web pages that may connect by WebSocket, with commas between them:"
            " https://app.example.com, *.example.com, or * for any. Pages of this machine always"
            " may, and so may clients that are no browsers."
        ),
    ] = ""

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        return listed(self.origins)
