"""What an operator may set about the upkeep of topics."""

from typing import Annotated

import msgspec
from msgspec import Meta


class RetentionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When limits of age, size and count are looked at, and how often topics may be compacted."""

    check_messages: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="What a partition keeps is looked at once this many messages came since the"
            " last look, if that may have led beyond its limits.",
        ),
    ] = 100
    check_interval_s: Annotated[
        float,
        Meta(gt=0, le=86_400, description="And all of them in the background, this often."),
    ] = 300.0
    compaction_interval_min_s: Annotated[
        float,
        Meta(
            ge=1,
            le=86_400,
            description="A topic is compacted at its own `compaction.interval_ms`, but not more"
            " often than this: all of it is read for that.",
        ),
    ] = 1.0
    first_compaction_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400,
            description="The first time after the node started or the topic was made, this is"
            " waited at most: a node that starts often is to compact at all.",
        ),
    ] = 300.0

    @property
    def check_interval_ms(self) -> int:
        return max(int(self.check_interval_s * 1000), 1)

    def compaction_period_ms(self, interval_ms: int) -> int:
        return max(interval_ms, int(self.compaction_interval_min_s * 1000))

    def first_compaction_ms(self, interval_ms: int) -> int:
        wait_ms = max(int(self.first_compaction_s * 1000), 1)
        return min(self.compaction_period_ms(interval_ms), wait_ms)
