"""The audit log as a topic: ``$audit`` in the namespace ``$system``.

Nobody may write there, or declare or delete anything (``security/accounts.py``); reading takes the
permission, as everywhere. It is a copy to read along with: it holds as much as the files of two
kinds, is not written while publishers are held back, and what is not published stands in the files.
"""

from collections.abc import Callable
from typing import Final

from braidmq.audit.events import AuditEvent, encode
from braidmq.audit.settings import AuditSettings
from braidmq.audit.trail import AuditTrail
from braidmq.engine.topics import Topic
from braidmq.model.errors import BraidError
from braidmq.record.batch import RecordBatch
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.accounts import Accounts
from braidmq.security.records import SYSTEM_NAMESPACE

TOPIC: Final = "$audit"
GATHERED_MAX: Final = 10_000
SEGMENTS_MIN_BYTES: Final = 1 << 20


class AuditTopic:
    def __init__(
        self, node_loop: NodeLoop, accounts: Accounts, settings: AuditSettings, trail: AuditTrail
    ) -> None:
        accounts.open_system_namespace()
        self._node_loop = node_loop
        self._trail = trail
        trail.listeners.append(self.hear)
        self._bytes_max = max(2 * settings.file_bytes_max * settings.files_max, SEGMENTS_MIN_BYTES)
        self._gathered: list[AuditEvent] = []
        self._call_soon: Callable[[Callable[[], None]], object] = node_loop.loop.call_soon

    def hear(self, event: AuditEvent) -> None:
        """Not at once: this may be in the middle of a change."""
        if len(self._gathered) >= GATHERED_MAX:
            self._trail.unpublished += 1
            return
        self._gathered.append(event)
        if len(self._gathered) == 1:
            self._call_soon(self.publish)

    def publish(self) -> None:
        """Those that were gathered."""
        events, self._gathered = self._gathered, []
        if not events:
            return
        if self._node_loop.is_blocked():
            self._trail.unpublished += len(events)
            return
        batch = RecordBatch()
        now_ms = self._node_loop.now_ms()
        for each in events:
            batch.append(encode(each), key=each.user.encode() or None, timestamp_ms=now_ms)
        try:
            engine = self._node_loop.engine()
            engine.publishing.publish(self._topic(), batch, now_ms=now_ms)
        except BraidError:
            # A failed disk; the node says so itself, and the files tell of what was lost.
            self._trail.unpublished += len(events)

    def _topic(self) -> Topic:
        engine = self._node_loop.engine()
        found = engine.state.topics.get((SYSTEM_NAMESPACE, TOPIC))
        if found is not None:
            return found
        settings = {"partitions": 1, "retention": {"bytes": self._bytes_max}}
        return engine.topics.create(
            SYSTEM_NAMESPACE, TOPIC, settings, now_ms=self._node_loop.now_ms()
        )
