"""A run of messages to one topic, on its way to subscribers."""

from braidmq.engine.envelope import MQTT
from braidmq.gateways.translation import Due
from braidmq.record.batch import Record, RecordBatch
from braidmq.record.buffer import Buffer
from braidmq.record.copies import single
from braidmq.wire.mqtt.constants import REMAINING_LENGTH_MAX, Kind
from braidmq.wire.mqtt.properties import Properties, encode_properties
from braidmq.wire.mqtt.publish import (
    FLAG_ALIAS,
    FLAG_EXPIRY,
    FLAG_QOS,
    FLAG_RETAIN,
    FLAG_USER_PROPERTIES,
    PublishRun,
)
from braidmq.wire.mqtt.render import render_publishes
from braidmq.wire.mqtt.text import write_string

PACKET_BYTES_ANY = REMAINING_LENGTH_MAX + 5
"""No smaller maximum was asked for."""

NOW = Due()

FLAG_COPY = 8
"""In an envelope: a copy of a retained message, made for a new subscription."""
FLAG_OWN = 16
"""The same: published by the session itself, and only for subscriptions that want that."""

Rendering = tuple[int, bool, bytes, int, int, bool]
"""Version, retain flag, properties of the subscription, packet size, topic alias and whether it is
set: equal bytes for equal ones."""


class Arrival:
    """Messages with one topic and one set of flags. Records are made of them only when somebody
    needs records: QoS 0 between two clients of one version goes out as it came in."""

    __slots__ = (
        "_as_it_came",
        "_batch",
        "_data",
        "_rendered",
        "_run",
        "count",
        "due",
        "flags",
        "now_ms",
        "topic",
    )
    _batch: RecordBatch | None
    _run: PublishRun | None
    _data: Buffer | None

    def __init__(self, topic: bytes, flags: int, count: int, now_ms: int) -> None:
        self.topic = topic
        self.flags = flags
        self.count = count
        self.now_ms = now_ms
        self.due = NOW
        """When subscribers get it, as ``delayed.timed`` has read it."""
        self._batch = self._run = self._data = None
        self._rendered: dict[Rendering, bytes] = {}
        self._as_it_came: Rendering | None = None
        """Who gets the packets just as they were received."""

    @classmethod
    def of_run(cls, run: PublishRun, data: Buffer, version: int, now_ms: int) -> "Arrival":
        """``data`` is only looked at in the same turn, before the buffer has something else."""
        arrival = cls(run.topic, run.flags, run.count, now_ms)
        arrival._run, arrival._data = run, data
        if not run.flags & (FLAG_QOS | FLAG_ALIAS | FLAG_EXPIRY):
            arrival._as_it_came = (version, arrival.retain, b"", PACKET_BYTES_ANY, 0, False)
        return arrival

    @classmethod
    def of_batch(cls, topic: bytes, flags: int, batch: RecordBatch, now_ms: int) -> "Arrival":
        arrival = cls(topic, flags, batch.count, now_ms)
        arrival._batch = batch
        return arrival

    @property
    def qos(self) -> int:
        return self.flags & FLAG_QOS

    @property
    def retain(self) -> bool:
        return bool(self.flags & FLAG_RETAIN)

    @property
    def value_bytes(self) -> int:
        if self._run is not None:
            return self._run.payload_bytes
        return self.batch.value_bytes

    @property
    def batch(self) -> RecordBatch:
        if self._batch is None:
            assert self._run is not None
            assert self._data is not None
            self._batch = self._run.batch(self._data, self.now_ms)
        return self._batch

    def rendered(
        self,
        version: int,
        retain: bool,
        properties: bytes,
        bytes_max: int,
        alias: int = 0,
        alias_is_set: bool = False,
    ) -> bytes:
        """As PUBLISH of QoS 0; the same bytes for everybody who wants it so."""
        key = (version, retain, properties, bytes_max, alias, alias_is_set)
        found = self._rendered.get(key)
        if found is None:
            if key == self._as_it_came:
                assert self._run is not None
                assert self._data is not None
                found = bytes(memoryview(self._data)[self._run.start : self._run.stop])
            else:
                found = render_all(self.batch, *key[:4], self.now_ms, alias, alias_is_set)
            self._rendered[key] = found
        return found

    def mentions(self, *words: bytes) -> bool:
        """Whether any of them is in its packets: false for most, and then surely not said."""
        if self._run is not None and self._data is not None:
            data = bytes(memoryview(self._data)[self._run.start : self._run.stop])
        else:
            data = bytes(memoryview(self.batch))
        return any(each in data for each in words)

    def kept(self) -> "Arrival":
        """To be looked at later, when the buffer has something else."""
        return Arrival.of_batch(self.topic, self.flags, self.batch, self.now_ms)

    def part(self, index: int) -> "Arrival":
        """One of the messages by itself."""
        if self.count == 1:
            return self
        one = single(self.batch, index)
        return Arrival.of_batch(self.topic, self.flags, one, self.now_ms)


def render_all(
    batch: RecordBatch,
    version: int,
    retain: bool,
    properties: bytes,
    bytes_max: int,
    now_ms: int,
    alias: int = 0,
    alias_is_set: bool = False,
) -> bytes:
    """PUBLISH of QoS 0 for all records but those that are larger than the client takes. With an
    alias all records have one topic."""
    parts, first = [], 0
    while first < batch.count:
        data, stopped = render_publishes(
            batch,
            first,
            batch.count,
            version=version,
            retain=retain,
            properties=properties,
            topic_alias=alias,
            alias_is_set=alias_is_set,
            now_ms=now_ms,
            packet_bytes_max=bytes_max,
        )
        parts.append(data)
        alias_is_set = alias_is_set or bool(data)
        first = stopped + 1
    return b"".join(parts)


def marked(batch: RecordBatch, flag: int) -> RecordBatch:
    """For another append, with a flag set in the envelopes."""
    changed = RecordBatch()
    for index in range(batch.count):
        record = batch.record(index)
        changed.append(
            record.value,
            envelope=bytes((record.envelope[0] | flag,)) + record.envelope[1:],
            envelope_format=MQTT,
            timestamp_ms=record.timestamp_ms,
            expires_at_ms=record.expires_at_ms,
        )
    return changed


def envelope_of(topic: bytes, flags: int, properties: Properties) -> bytes:
    """As ``wire/mqtt/publish`` has it."""
    head = bytes((flags & (FLAG_QOS | FLAG_RETAIN | FLAG_COPY),)) + write_string(topic.decode())
    return head + encode_properties(properties, Kind.PUBLISH)


def make_arrival(
    topic: bytes,
    payload: bytes,
    now_ms: int,
    *,
    qos: int = 0,
    retain: bool = False,
    properties: Properties = Properties(),  # noqa: B008 (frozen)
) -> Arrival:
    """A message that did not come in a PUBLISH: a will, $SYS."""
    flags = qos | (FLAG_RETAIN if retain else 0)
    flags |= FLAG_USER_PROPERTIES if properties.user_properties else 0
    expiry_s = properties.message_expiry_interval
    batch = RecordBatch()
    batch.append(
        payload,
        envelope=envelope_of(topic, flags, properties),
        envelope_format=MQTT,
        timestamp_ms=now_ms,
        expires_at_ms=0 if expiry_s is None else now_ms + max(expiry_s * 1000, 1),
    )
    return Arrival.of_batch(topic, flags, batch, now_ms)


def batch_of(*records: Record) -> RecordBatch:
    """Records of MQTT as a batch of their own."""
    batch = RecordBatch()
    for record in records:
        batch.append(
            record.value,
            key=record.key,
            envelope=record.envelope,
            envelope_format=MQTT,
            priority=record.priority,
            timestamp_ms=record.timestamp_ms,
            expires_at_ms=record.expires_at_ms,
            due_at_ms=record.due_at_ms,
            dated=record.dated,
        )
    return batch
