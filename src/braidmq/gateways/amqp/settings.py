"""What an operator may set about AMQP."""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from braidmq.model.limits import KIB, MIB, RECORD_BYTES_MAX
from braidmq.wire.amqp.constants import FRAME_BYTES_MIN


@dataclass(frozen=True, slots=True)
class UnconfirmedLimit:
    """How far a publisher may be ahead of its confirms: beyond it, nothing more is read from it
    until half of that is confirmed."""

    messages: int = 65_536
    bytes: int = 64 * MIB


Product = Literal["RabbitMQ", "BraidMQ"]


class AmqpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is offered to AMQP clients, and how long they may take. The defaults are RabbitMQ's."""

    product: Annotated[
        Product,
        Meta(
            description="What it calls itself in connection.start. Some clients do as RabbitMQ"
            " needs it only if they are told so: kombu, and with it Celery, raises the prefetch of"
            " a worker that holds tasks with an ETA. As RabbitMQ it says version 3.13; what it is"
            " stands in `platform` and `information`."
        ),
    ] = "RabbitMQ"
    frame_bytes_max: Annotated[
        int,
        Meta(
            ge=FRAME_BYTES_MIN,
            # A third of the buffer that all connections read into.
            le=256 * KIB,
            description="Largest frame, offered in connection.tune.",
        ),
    ] = 128 * KIB
    channel_max: Annotated[
        int,
        Meta(ge=1, le=65_535, description="Channels a connection may have, offered in tune."),
    ] = 2047
    heartbeat_s: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description="Heartbeat offered in connection.tune; the client decides. 0 offers none.",
        ),
    ] = 60
    handshake_timeout_s: Annotated[
        float,
        Meta(gt=0, le=600, description="How long a peer may take to log in, and to say goodbye."),
    ] = 10.0
    consumer_timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=10 * 365 * 86_400,
            description="A channel that leaves a delivery unanswered for longer is closed, and its"
            " messages go to others. 0: never.",
        ),
    ] = 1800.0
    message_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=RECORD_BYTES_MAX // 2,
            description="Largest message body. A topic may have a lower limit of its own.",
        ),
    ] = RECORD_BYTES_MAX // 4
