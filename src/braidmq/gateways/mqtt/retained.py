"""Retained messages: one for each topic, in the catalogue, found by filter.

mqtt-retained   namespace\\0topic → [envelope, payload, timestamp in ms, expires at in ms or 0]
"""

from collections.abc import Iterator

import msgspec

from braidmq.engine.envelope import MQTT
from braidmq.engine.routing.filters import FILTER_LEVELS_MAX
from braidmq.gateways.mqtt.settings import MqttSettings
from braidmq.model.ids import Lsn
from braidmq.storage.record import Record
from braidmq.storage.store import Store
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.errors import MqttError

TABLE = "mqtt-retained"


class RetainedRecord(msgspec.Struct, array_like=True):
    envelope: bytes
    payload: bytes
    timestamp_ms: int
    expires_at_ms: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RetainedRecord).decode


class _Level:
    """Topics by their levels. ``topic`` is set where one ends."""

    __slots__ = ("below", "topic")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.topic: str | None = None


class Retained:
    """Those of all namespaces. They live in the catalogue; this is the way to them by filter."""

    def __init__(self, store: Store, settings: MqttSettings) -> None:
        self._store = store
        self._settings = settings
        self._roots: dict[str, _Level] = {}
        self.count = 0
        self.bytes = 0
        for key, value in store.catalogue.items(TABLE):
            namespace, _, topic = key.partition("\0")
            self._enter(namespace, topic)
            self.bytes += len(value)

    def keep(self, namespace: str, topic: str, record: Record) -> Lsn:
        """Raises QUOTA_EXCEEDED when there is no room for it."""
        if topic.count("/") >= FILTER_LEVELS_MAX:
            # Each level is a node in memory, and no filter but '#' could ask for it.
            raise MqttError(Reason.TOPIC_NAME_INVALID, "too many levels for a retained message")
        key = _key(namespace, topic)
        value = _encode(
            RetainedRecord(
                record.envelope, record.value or b"", record.timestamp_ms, record.expires_at_ms
            )
        )
        old = self._store.catalogue.get(TABLE, key)
        growth = len(value) - len(old or b"")
        limits = self._settings
        if (old is None and self.count >= limits.retained_messages_max) or (
            growth > 0 and self.bytes + growth > limits.retained_bytes_max
        ):
            raise MqttError(Reason.QUOTA_EXCEEDED, "there are too many retained messages")
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

    def find(self, namespace: str, pattern: str, now_ms: int) -> list[tuple[str, Record]]:
        """Topics that a filter matches, with their messages; what is expired goes."""
        root = self._roots.get(namespace)
        found = []
        for topic in sorted(_match(root, pattern.split("/"), 0)) if root is not None else ():
            value = self._store.catalogue.get(TABLE, _key(namespace, topic))
            assert value is not None, "what is in the tree is in the catalogue"
            kept = _decode(value)
            if 0 < kept.expires_at_ms <= now_ms:
                self.forget(namespace, topic)
                continue
            record = Record(0, kept.timestamp_ms, None, kept.payload, kept.envelope, MQTT)._replace(
                expires_at_ms=kept.expires_at_ms
            )
            found.append((topic, record))
        return found

    def _enter(self, namespace: str, topic: str) -> None:
        level = self._roots.setdefault(namespace, _Level())
        for word in topic.split("/"):
            level = level.below.setdefault(word, _Level())
        level.topic = topic
        self.count += 1

    def _leave(self, namespace: str, topic: str) -> None:
        words = topic.split("/")
        path = [self._roots[namespace]]
        for word in words:
            path.append(path[-1].below[word])
        path[-1].topic = None
        for word, level, above in zip(reversed(words), path[:0:-1], path[-2::-1], strict=True):
            if level.below or level.topic is not None:
                break
            del above.below[word]
        self.count -= 1


def _match(level: _Level, words: list[str], depth: int) -> Iterator[str]:
    if depth == len(words):
        if level.topic is not None:
            yield level.topic
        return
    word = words[depth]
    if word == "#":
        yield from _everything(level, depth)
    elif word == "+":
        for name, below in level.below.items():
            if depth or not name.startswith("$"):  # MQTT-4.7.2-1
                yield from _match(below, words, depth + 1)
    elif word in level.below:
        yield from _match(level.below[word], words, depth + 1)


def _everything(level: _Level, depth: int) -> Iterator[str]:
    waiting = [level]
    while waiting:
        one = waiting.pop()
        if one.topic is not None:
            yield one.topic
        hidden = one is level and depth == 0
        waiting += [
            below for name, below in one.below.items() if not (hidden and name.startswith("$"))
        ]


def _key(namespace: str, topic: str) -> str:
    return f"{namespace}\0{topic}"
