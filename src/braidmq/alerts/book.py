"""What has to be told: dead letters of one topic and one reason become one document.

The document is JSON, an object with the fields of ``Alert`` in this order.
"""

from uuid import uuid4

import msgspec

from braidmq.engine.effects import DeadLettered

ALERTS_MAX = 1000
"""Topics and reasons that wait to be told of: some hundred KiB. More are not told."""

SAMPLES_MAX = 10


class Sample(msgspec.Struct, frozen=True):
    """Messages that died together."""

    partition: int
    """-1, and so the offset: they were refused because the topic is full, and never were in it."""
    first_offset: int
    count: int
    attempts: int
    subscription: str


class Alert(msgspec.Struct, kw_only=True):
    event: str = "dead-letters"
    id: str
    """The same when the alert is posted again: whoever has seen it has seen it."""
    namespace: str
    topic: str
    dead_letter_topics: list[str] = []
    reason: str
    first_at_ms: int
    last_at_ms: int
    count: int = 0
    last_error: str = ""
    """What a consumer said last; empty when none said anything."""
    samples: list[Sample] = []
    """The first of them."""

    def add(self, died: DeadLettered) -> None:
        death = died.death
        self.count += died.count
        self.last_at_ms = death.at_ms
        self.last_error = death.error or self.last_error
        self.dead_letter_topics += [
            name for name in died.targets if name not in self.dead_letter_topics
        ]
        if len(self.samples) < SAMPLES_MAX:
            offset = died.first_offset if death.partition >= 0 else -1
            self.samples.append(
                Sample(death.partition, offset, died.count, death.attempts, death.subscription)
            )


Key = tuple[str, str, str]
"""Namespace, topic, reason."""


class AlertBook:
    def __init__(self, alerts_max: int = ALERTS_MAX) -> None:
        self._alerts_max = alerts_max
        self._waiting: dict[str, dict[Key, Alert]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, died: DeadLettered) -> bool:
        """False when too much waits already."""
        death = died.death
        key = death.namespace, death.topic, death.reason
        alerts = self._waiting.get(died.webhook, {})
        alert = alerts.get(key)
        if alert is None:
            if self._count >= self._alerts_max:
                return False
            alert = Alert(
                id=uuid4().hex,
                namespace=death.namespace,
                topic=death.topic,
                reason=death.reason,
                first_at_ms=death.at_ms,
                last_at_ms=death.at_ms,
            )
            alerts[key] = alert
            self._waiting[died.webhook] = alerts
            self._count += 1
        alert.add(died)
        return True

    def waiting(self, webhook: str) -> int:
        return len(self._waiting.get(webhook, ()))

    def take(self, webhook: str) -> Alert:
        """What has waited longest of what a webhook is to be told."""
        alerts = self._waiting[webhook]
        alert = alerts.pop(next(iter(alerts)))
        if not alerts:
            del self._waiting[webhook]
        self._count -= 1
        return alert
