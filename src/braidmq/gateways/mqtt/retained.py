"""Retained messages: one for each topic, in the catalogue, found by filter.

mqtt-retained   namespace\\0topic → [envelope, payload, timestamp in ms, expires at in ms or 0,
                client id of who published it]
"""

from collections import Counter

import msgspec

from braidmq.engine.envelope import MQTT
from braidmq.engine.quotas import Quotas
from braidmq.gateways.mqtt.settings import MqttSettings
from braidmq.gateways.mqtt.topic_tree import TopicTree, Walk
from braidmq.model.ids import Lsn
from braidmq.record.batch import Record
from braidmq.storage.store import Store
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.errors import MqttError

TABLE = "mqtt-retained"


class RetainedRecord(msgspec.Struct, array_like=True):
    envelope: bytes
    payload: bytes
    timestamp_ms: int
    expires_at_ms: int = 0
    client_id: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RetainedRecord).decode


class Retained:
    """Those of all namespaces. They live in the catalogue; this is the way to them by filter."""

    def __init__(self, store: Store, settings: MqttSettings, quotas: Quotas | None = None) -> None:
        self._store = store
        self._settings = settings
        self.count = 0
        self.bytes = 0
        topics: dict[str, list[str]] = {}
        for key, value in store.catalogue.items(TABLE):
            namespace, _, topic = key.partition("\0")
            topics.setdefault(namespace, []).append(topic)
            self.count += 1
            self.bytes += len(value)
        self._trees = {namespace: TopicTree(names) for namespace, names in topics.items()}
        self._counts = Counter({namespace: len(names) for namespace, names in topics.items()})
        self._quotas = quotas or Quotas()
        self._quotas.count_by("max_retained_messages", self._counts.__getitem__)

    def replace(self, settings: MqttSettings) -> None:
        """What is there stays, also above a new limit."""
        self._settings = settings

    def keep(self, namespace: str, topic: str, record: Record, client_id: str = "") -> Lsn:
        """Raises QUOTA_EXCEEDED when there is no room for it, or LimitReached."""
        key = _key(namespace, topic)
        value = _encode(
            RetainedRecord(
                record.envelope,
                record.value or b"",
                record.timestamp_ms,
                record.expires_at_ms,
                client_id,
            )
        )
        old = self._store.catalogue.get(TABLE, key)
        growth = len(value) - len(old or b"")
        limits = self._settings
        if (old is None and self.count >= limits.retained_messages_max) or (
            growth > 0 and self.bytes + growth > limits.retained_bytes_max
        ):
            raise MqttError(Reason.QUOTA_EXCEEDED, "there are too many retained messages")
        if old is None:
            self._quotas.require(namespace, "max_retained_messages")
        lsn = self._store.change([(TABLE, key, value)])
        self.bytes += growth
        if old is None:
            self._enter(namespace, topic)
        return lsn

    def forget(self, namespace: str, topic: str) -> Lsn | None:
        key = _key(namespace, topic)
        old = self._store.catalogue.get(TABLE, key)
        if old is None:
            return None
        lsn = self._store.change([(TABLE, key, None)])
        self.bytes -= len(old)
        self._leave(namespace, topic)
        return lsn

    def forget_namespace(self, namespace: str) -> None:
        for key in [each for each, _ in self._store.catalogue.items(TABLE)]:
            owner, _, topic = key.partition("\0")
            if owner == namespace:
                self.forget(namespace, topic)

    def may_match(self, namespace: str, pattern: str) -> bool:
        """False: none of its topics matches a filter, for certain."""
        if namespace not in self._trees:
            return False
        if "+" in pattern or "#" in pattern:
            return True
        return self._store.catalogue.get(TABLE, _key(namespace, pattern)) is not None

    def walk(self, namespace: str, pattern: str, after: str = "") -> Walk:
        """Through the topics that a filter matches, or those behind one of them."""
        return self._trees.setdefault(namespace, TopicTree()).walk(pattern, after)

    def get(
        self, namespace: str, topic: str, now_ms: int, *, not_of: str | None = None
    ) -> Record | None:
        """The message of a topic; None when it is gone, as it is now if it has expired, or if the
        client ``not_of`` published it."""
        value = self._store.catalogue.get(TABLE, _key(namespace, topic))
        if value is None:
            return None
        kept = _decode(value)
        if 0 < kept.expires_at_ms <= now_ms:
            self.forget(namespace, topic)
            return None
        if not_of is not None and kept.client_id == not_of:
            return None
        return Record(0, kept.timestamp_ms, None, kept.payload, kept.envelope, MQTT)._replace(
            expires_at_ms=kept.expires_at_ms
        )

    def _enter(self, namespace: str, topic: str) -> None:
        self._trees.setdefault(namespace, TopicTree()).add(topic)
        self._counts[namespace] += 1
        self.count += 1

    def _leave(self, namespace: str, topic: str) -> None:
        self._trees[namespace].remove(topic)
        self._counts[namespace] -= 1
        self.count -= 1


def _key(namespace: str, topic: str) -> str:
    return f"{namespace}\0{topic}"
