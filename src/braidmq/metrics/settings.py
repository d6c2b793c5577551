"""What an operator may set about metrics."""

from typing import Annotated

import msgspec
from msgspec import Meta


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`GET /metrics`, for Prometheus."""

    public: Annotated[
        bool,
        Meta(
            description="Whether anyone who reaches the node may read /metrics. If not, it takes a"
            " user with the tag `monitoring` or `administrator`, or a token of one."
        ),
    ] = False
    local: Annotated[
        bool,
        Meta(
            description="Whether anyone on the node's own machine may read /metrics without a"
            " log-in."
        ),
    ] = True
    topics_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Topics and subscriptions have series of their own while there are no more"
            " topics than this; beyond it only the sums of each namespace are given.",
        ),
    ] = 1000
    lanes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Lanes of partitions, where topics have priorities, have series of their"
            " own while there are no more of them than this; beyond it none are given. 0: never.",
        ),
    ] = 5000
