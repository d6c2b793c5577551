"""Sends alerts about dead letters to webhooks, in the node's loop, without delaying anything else.

The engine's reports are only written into the book. Each webhook with alerts to send has a task: it
waits for a window, so that messages that die together make one alert, and posts one at a time. A
failed post is repeated after a while; dead letters that arrive meanwhile are added to the next
alert. The number of waiting alerts is limited, and those above the limit are counted. A crash loses
alerts that were not sent; the dead letters themselves are stored.
"""

import asyncio
import logging
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

import msgspec

from braidmq.alerts.book import Alert, AlertBook
from braidmq.alerts.settings import AlertSettings
from braidmq.alerts.webhook import origin_of, post
from braidmq.engine.effects import DeadLettered, Effect

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 6
RETRY_S = 1.0
"""After the first failure, then twice as long each time: half a minute in all, in which most
services have restarted."""

CONNECTIONS_MAX = 16


@dataclass
class AlertCounts:
    sent: int = 0
    failed: int = 0
    """Given up after all attempts."""
    dropped: int = 0
    """Never tried: too much waited, or the node stopped."""


class Alerts:
    def __init__(self, settings: AlertSettings) -> None:
        self.counts = AlertCounts()
        self._settings = settings
        self._book = AlertBook()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._stopping = asyncio.Event()
        self._is_full = False

    def replace(self, settings: AlertSettings) -> None:
        """For windows and posts that begin from now on."""
        self._settings = settings

    def hear(self, effect: Effect) -> None:
        if not isinstance(effect, DeadLettered):
            return
        if not self._book.add(effect):
            self._drop()
            return
        self._is_full = False
        if effect.webhook not in self._tasks:
            # Whoever rejected a message has no part in what follows.
            task = asyncio.create_task(self._serve(effect.webhook), context=Context())
            self._tasks[effect.webhook] = task
            task.add_done_callback(lambda _: self._tasks.pop(effect.webhook))

    def _drop(self) -> None:
        self.counts.dropped += 1
        if not self._is_full:
            self._is_full = True
            logger.warning(
                "alerts dropped: too many are waiting", extra={"waiting": len(self._book)}
            )

    async def _serve(self, webhook: str) -> None:
        while self._book.waiting(webhook):
            await self._pause(self._settings.window_s)
            for _ in range(self._book.waiting(webhook)):
                await self._tell(webhook, self._book.take(webhook))

    async def _tell(self, webhook: str, alert: Alert) -> None:
        facts = _facts(webhook, alert)
        failure = await self._try(webhook, alert, facts)
        if failure is None:
            self.counts.sent += 1
            logger.debug("alert sent", extra=facts)
        else:
            self.counts.failed += 1
            logger.warning("alert abandoned", extra=facts | {"failure": failure})

    async def _try(self, webhook: str, alert: Alert, facts: dict[str, object]) -> str | None:
        """Why it was not taken in the end; None: it was."""
        if not self._may_reach(webhook):
            return "its host is not in alerts.hosts"
        body = msgspec.json.encode(alert)
        wait_s = RETRY_S
        for left in reversed(range(ATTEMPTS_MAX)):
            async with self._slots:
                failure = await post(webhook, body, self._settings.timeout_s)
            if failure is None or not left or self._stopping.is_set():
                return failure
            logger.info(
                "alert not delivered", extra=facts | {"failure": failure, "again_s": wait_s}
            )
            await self._pause(wait_s)
            wait_s *= 2
        raise AssertionError("the last attempt returns")

    def _may_reach(self, webhook: str) -> bool:
        host = urlsplit(webhook).hostname or ""
        return any(fnmatchcase(host, each) for each in self._settings.allowed_hosts)

    async def _pause(self, seconds: float) -> None:
        """Until it is over, or the node stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def stop(self, deadline_s: float) -> None:
        """Tell what waits without more ado; what can't be told in time is lost."""
        self._stopping.set()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=deadline_s)
        late = [task for task in tasks if not task.done()]
        for task in late:
            task.cancel()
        if lost := len(late) + len(self._book):
            self.counts.dropped += lost
            logger.warning("alerts dropped: the node is shutting down", extra={"alerts": lost})


def _facts(webhook: str, alert: Alert) -> dict[str, object]:
    return {
        "webhook": origin_of(webhook),
        "namespace": alert.namespace,
        "topic": alert.topic,
        "reason": alert.reason,
        "dead_letters": alert.count,
    }
