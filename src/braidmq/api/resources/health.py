"""Is the node alive, and may traffic be sent to it.

Both answers come from callables, so this knows neither the node nor its store.
"""

from collections.abc import Callable

import msgspec
from msgspec import UNSET, UnsetType

from braidmq import __version__
from braidmq.api.endpoints import Answer, Call, operation
from braidmq.model.errors import BraidError
from braidmq.security.rights import ANYONE


class Failure(msgspec.Struct, frozen=True):
    code: str
    message: str


class Degraded(msgspec.Struct, frozen=True):
    quarantined_partitions: int


class HealthInfo(msgspec.Struct, frozen=True):
    status: str
    version: str | UnsetType = UNSET
    error: Failure | UnsetType = UNSET
    degraded: Degraded | UnsetType = UNSET


class ReadyInfo(msgspec.Struct, frozen=True):
    status: str
    reason: str | UnsetType = UNSET


class Health:
    """``failure`` is what broke, if anything did; ``unready`` is why not to send traffic yet;
    ``quarantined`` is how many partitions can't be served while all others are."""

    def __init__(
        self,
        failure: Callable[[], BraidError | None],
        unready: Callable[[], str | None],
        quarantined: Callable[[], int] = lambda: 0,
    ) -> None:
        self._failure = failure
        self._unready = unready
        self._quarantined = quarantined

    @operation("GET", "/health", right=ANYONE, tag="health", statuses=(200, 503))
    async def health(self, call: Call) -> HealthInfo | Answer:
        """Say whether storage still works.

        `degraded`, with 200, while some partitions are quarantined and all others are served: where
        no other node has them, sending traffic elsewhere helps nobody.
        """
        error = self._failure()
        if error is None:
            count = self._quarantined()
            if count:
                return HealthInfo("degraded", __version__, degraded=Degraded(count))
            return HealthInfo("ok", __version__)
        return Answer(HealthInfo("failing", error=Failure(error.code, str(error))), 503)

    @operation("GET", "/ready", right=ANYONE, tag="health", statuses=(200, 503))
    async def ready(self, call: Call) -> ReadyInfo | Answer:
        """Say whether traffic may be sent here."""
        reason = self._unready()
        if reason is None:
            return ReadyInfo("ready")
        return Answer(ReadyInfo("not-ready", reason), 503)
