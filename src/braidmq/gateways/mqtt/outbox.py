"""Messages above QoS 0 on their way to one session: a queue of the engine.

A packet id is the message's offset in the queue, modulo 32767, plus 1: after a reconnect or a crash
the same message has the same id again, which is what QoS 2 needs of a sender. Three things follow,
and ``ceiling`` sees to them. No two offsets in flight may be 32767 apart. A message of QoS 2 does
not go out before it is on disk: after a crash another may stand in its place, and a client that has
the id would take it for the same. And an id that went out at QoS 2 is its message's until PUBCOMP,
on whatever connection, though the message itself may be gone: a limit took it, or somebody purged
or deleted the queue. Then the client gets PUBREL without it. The upper half of the ids is for
durable queues.
"""

from array import array
from functools import partial
from typing import TYPE_CHECKING, Protocol

from braidmq.engine.delivery import DeliveryState
from braidmq.engine.envelope import MQTT
from braidmq.engine.policy import QUEUE_SETTINGS, merge
from braidmq.engine.states import State
from braidmq.engine.topics import Consumer, Credit, Delivery, PartitionView, Topic
from braidmq.engine.topics import Subscription as EngineSubscription
from braidmq.gateways.mqtt.aliases import Aliases
from braidmq.gateways.mqtt.counters import Counters
from braidmq.gateways.mqtt.message import FLAG_COPY, FLAG_OWN, batch_of
from braidmq.gateways.mqtt.packet_ids import IdRun, IdRuns
from braidmq.gateways.mqtt.session_records import PacketIds
from braidmq.gateways.mqtt.subscription_index import DeliveryOptions
from braidmq.gateways.translation import mqtt_record
from braidmq.model.errors import StorageFailed
from braidmq.record.batch import RecordBatch
from braidmq.runtime.connection_rates import ConnectionRates
from braidmq.runtime.node_loop import NodeLoop
from braidmq.runtime.sessions import ClientInfo, client_of
from braidmq.storage.partition_log import PartitionLog
from braidmq.wire.mqtt.constants import Kind
from braidmq.wire.mqtt.publish import FLAG_QOS, FLAG_RETAIN
from braidmq.wire.mqtt.render import (
    delivery_runs,
    id_runs,
    render_acks,
    render_publishes,
    sequential_ids,
)

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection
    from braidmq.gateways.mqtt.session import Session

PREFIX = "$mqtt/session/"
SUBSCRIPTION = "session"

ID_MAX = 0x7FFF

EXACTLY_ONCE = 2
LOOK_BYTES = 1 << 18
"""How far it is looked for messages of QoS 2 at a time: more than goes out in one run."""
NOWHERE = 1 << 62
"""Behind every offset."""

IN_FLIGHT_MAX = 8192
"""Unanswered publishes to a client that sets no receive maximum, or a higher one."""


class Port(Protocol):
    """The connection a session has at the moment."""

    version: int
    packet_bytes_max: int
    aliases: Aliases | None
    wants_facts: bool
    rates: ConnectionRates

    def send(self, data: bytes) -> None: ...
    def release_gone(self) -> None:
        """PUBREL for ``Outbox.take_gone``, once that is on disk."""


class Outbox:
    def __init__(
        self, node_loop: NodeLoop, session: "Session", messages_max: int, counters: Counters
    ) -> None:
        self._node_loop = node_loop
        self._counters = counters
        self._meter = session.meter
        self._session = session
        self._messages_max = messages_max
        self._topic: Topic | None = None
        self.state: DeliveryState | None = None
        """Of what waits in it; None while there was nothing."""
        self._consumer: Consumer | None = None
        self._port: Port | None = None
        self._credit = Credit(0)
        self._crowded = False
        """Whether messages wait for packet ids."""
        self.is_syncing = False
        self._safe_end = 0
        """Offsets below are known to be on disk …"""
        self._awaited_end = 0
        """… and below this as soon as the disk answers."""
        self._safe_floor = 0
        """Below it all is settled, on disk: after a crash nobody will need those ids again."""
        self._awaited_floor = 0
        self._unsafe_at = NOWHERE
        """The first message of QoS 2 above, where one was found."""
        self._clear_end = 0
        """Below this none was found that is above, while nobody's subscriptions changed."""
        self._clear_moves = -1
        self.released = IdRuns()
        """Packet ids of QoS 2 that the client has confirmed with PUBREC, and not yet PUBCOMP."""
        self.unreceived = IdRuns()
        """Those that went out, on this connection or before, and were not confirmed at all."""
        self.uncertain = IdRuns()
        """Those of messages that may have gone out before a crash, and have not since."""
        self._releases = False
        """Whether the connection is about to release ids of messages that are gone."""

    @property
    def name(self) -> str:
        return PREFIX + self._session.client_id

    @property
    def in_flight(self) -> int:
        """Of all that the client has not answered for, however it came there."""
        return self._credit.used if self._port is not None else 0

    @property
    def waiting(self) -> int:
        """Messages that it may be sent and was not."""
        return self.state.ready if self.state is not None else 0

    # --- the queue ---

    def topic(self) -> Topic:
        """Made when the first message could come; again, if somebody deleted it as a queue. A
        client that has messages of the old one gets none of the new: its answers could be for
        either."""
        if self._is_missing:
            is_first = self._topic is None
            self._topic = self._open()
            self.state = self._view.state
            self._consumer = None
            self._safe_end = self._awaited_end = self._clear_end = 0
            self._safe_floor = self._awaited_floor = self.state.settled.floor
            self._unsafe_at = NOWHERE
            if self._port is not None and is_first:
                self._attach()
        assert self._topic is not None
        return self._topic

    @property
    def _is_missing(self) -> bool:
        topic = self._topic
        return topic is None or topic.deleted or SUBSCRIPTION not in topic.subscriptions

    def _open(self) -> Topic:
        session, now_ms = self._session, self._node_loop.now_ms()
        topic = self._node_loop.view.state.topics.get((session.namespace, self.name))
        if topic is None:
            limits = {"max_messages": self._messages_max, "limits_count": "ready"}
            topic = self._node_loop.engine().topics.create(
                session.namespace,
                self.name,
                merge(QUEUE_SETTINGS, limits),
                now_ms=now_ms,
                durable=session.durable,
            )
        if SUBSCRIPTION not in topic.subscriptions:
            self._node_loop.engine().subscriptions.subscribe(
                topic, SUBSCRIPTION, now_ms=now_ms, durable=session.durable
            )
        # MQTT-4.3.3-7: the client may hold its packet id, and waits for the rest.
        topic.subscriptions[SUBSCRIPTION].keeps_sent = True
        topic.subscriptions[SUBSCRIPTION].gate = self
        return topic

    @property
    def next_offset(self) -> int:
        """Where its next message will be."""
        return self._topic_log.next_offset if self._log_id else 0

    def reopen(self) -> None:
        """After a restart: what waited is still there."""
        if (self._session.namespace, self.name) in self._node_loop.view.state.topics:
            self._safe_end = self.topic().partitions[0].log.next_offset

    def delete(self) -> None:
        self.detach()
        if self._topic is not None and not self._topic.deleted:
            self._node_loop.engine().topics.delete(self._topic)
        self._topic = self.state = None
        for each in (self.released, self.unreceived, self.uncertain):
            each.clear()

    @property
    def connection(self) -> "MqttConnection | None":
        return self._session.connection

    def cancelled(self) -> None:
        """The queue was deleted under a session that is connected."""
        self._consumer = None
        if self.connection is not None:
            self.connection.end("the queue of its session was deleted")

    def attach(self, port: Port, credit: Credit) -> None:
        """``credit`` is what the client's receive maximum leaves for all that it receives."""
        self._port = port
        self._credit = credit
        if self._topic is not None:
            self.topic()
            self._attach()

    # --- packet ids that the client may hold ---

    def restore_ids(self, ids: PacketIds) -> None:
        """After a restart."""
        self.unreceived = IdRuns(ids.unreceived)
        self.uncertain = IdRuns(ids.uncertain)
        self.released = IdRuns([run for run in ids.released if run[2]])
        for first, stop, number, _ in ids.released:
            if not number:
                self._find_place(first, stop)

    def _find_place(self, first: int, stop: int) -> None:
        """Of released ids without one."""
        self.released.put(first, stop)
        if not self._log_id:
            return
        for start, end in _offsets_of(self._view, first, stop):
            # One that was never sent is another, which will have the same id.
            sent = min(end, self._view.state.cursor) - start
            if sent > 0:
                self.released.put(first, first + sent, (self._log_id, start))
            first += end - start

    def suspect(self) -> None:
        """The client was connected when the node crashed: of all that it has not answered for
        nobody knows whether it went out."""
        if not self._log_id:
            return
        settled, log = self._view.state.settled, self._topic_log
        start = settled.floor
        end = min(log.next_offset, start + ID_MAX)
        while start < end:
            following = settled.first(start)
            stop = end if following < 0 else min(following, end)
            for low, high in id_runs(sequential_ids(id_of(start), stop - start, ID_MAX)):
                self.uncertain.put(low, high, (log.id, start))
                start += high - low
            start = min(settled.first_missing(start), end)
        for held in (self.released, self.unreceived):
            for first, behind, _, _ in held.runs():
                self.uncertain.discard(first, behind)

    @property
    def has_ids(self) -> bool:
        return bool(len(self.released) or len(self.unreceived) or len(self.uncertain))

    def take_gone(self, *, again: bool = False) -> "array[int]":
        """Ids that the client may hold for messages that are gone: they are released now, those
        that were before ``again``. Nothing that is delivered would remind us of them."""
        gone = self._gone(self.released) if again else []
        for held in (self.unreceived, self.uncertain):
            for run in self._gone(held):
                gone.append(run)
                held.discard(run[0], run[1])
                self.released.put(run[0], run[1])
        return array("H", [number for run in gone for number in range(run[0], run[1])])

    def _gone(self, held: IdRuns) -> list[IdRun]:
        """Runs of ids whose messages are not there any more."""
        found: list[IdRun] = []
        for first, stop, number, offset in held.runs():
            if not number or number != self._log_id:
                found.append((first, stop, 0, 0))
                continue
            settled, end = self._view.state.settled, offset + stop - first
            low = offset
            while low < end:
                high = min(settled.first_missing(low), end)
                if low < high:
                    found.append((first + low - offset, first + high - offset, 0, 0))
                following = settled.first(high)
                low = end if following < 0 else following
        return found

    def confirm(self, first: int, stop: int) -> None:
        """PUBREC."""
        for low, high, number, offset in self.unreceived.cut(first, stop):
            self.released.put(low, high, (number, offset))

    @property
    def _log_id(self) -> int:
        """Of what the queue is now; 0 while there is none."""
        return 0 if self._is_missing else self._topic_log.id

    @property
    def _topic_log(self) -> PartitionLog:
        assert self._topic is not None
        return self._topic.partitions[0].log

    def _attach(self) -> None:
        assert self._topic is not None
        self._crowded = False
        self._consumer = self._node_loop.engine().consumers.attach(
            self._subscription,
            now_ms=self._node_loop.now_ms(),
            credits=[self._credit],
            visibility_ms=0,
            receiver=self,
        )

    def detach(self) -> None:
        """What was not answered goes back to its place and is delivered again later."""
        consumer, self._consumer, self._port = self._consumer, None, None
        self.is_syncing = False
        if consumer is not None and not consumer.subscription.topic.deleted:
            self._node_loop.engine().consumers.detach(consumer, now_ms=self._node_loop.now_ms())

    def client_info(self) -> ClientInfo:
        connection = self._session.connection
        if connection is None:
            return ClientInfo("mqtt", self._session.user, client=self._session.client_id)
        return client_of(connection)

    def pause(self, paused: bool) -> None:
        """The connection's socket is full, or has room again."""
        if self._consumer is None:
            return
        if paused:
            self._consumer.paused = True
        else:
            self._node_loop.engine().consumers.resume(self._consumer)

    @property
    def _subscription(self) -> EngineSubscription:
        assert self._topic is not None
        return self._topic.subscriptions[SUBSCRIPTION]

    # --- delivering ---

    def deliver(self, delivery: Delivery) -> None:
        if self._port is None or delivery.consumer is not self._consumer:
            return
        assert delivery.end_offset <= delivery.view.state.settled.floor + ID_MAX
        batch, first = delivery.batch, delivery.first_index
        for stop, form, flags, topic in delivery_runs(batch, first, delivery.stop_index):
            if form != MQTT:
                self._deliver_translated(delivery, first, stop)
            elif self._are_held(batch.offset_at(first), stop - first):
                for index in range(first, stop):
                    self._deliver_again(delivery, index, flags, topic)
            else:
                self._deliver_run(delivery, batch, first, stop, flags, topic)
            first = stop

    def _are_held(self, start: int, count: int) -> bool:
        """Whether the client may have any of these from before."""
        if not self.has_ids:
            return False
        return any(
            held.overlaps(*run)
            for run in id_runs(sequential_ids(id_of(start), count, ID_MAX))
            for held in (self.released, self.unreceived, self.uncertain)
        )

    def _deliver_again(self, delivery: Delivery, index: int, flags: int, topic: bytes) -> None:
        number = id_of(delivery.batch.offset_at(index))
        if number in self.released:
            assert self._port is not None
            self._port.send(render_acks(Kind.PUBREL, array("H", [number]), self._port.version))
            return
        # What went out at QoS 2 goes on at that, whatever the client has subscribed to since: it
        # may hold the id, and lets go of it for nothing but PUBREL.
        held = number in self.unreceived
        self._deliver_run(delivery, delivery.batch, index, index + 1, flags, topic, held=held)

    def _deliver_translated(self, delivery: Delivery, first: int, stop: int) -> None:
        """Messages that came into this queue over another protocol."""
        for index in range(first, stop):
            record = delivery.batch.record(index)
            topic, changed = mqtt_record(record, self.name)
            batch = batch_of(changed)
            batch.place(record.offset)
            self._deliver_run(delivery, batch, 0, 1, changed.envelope[0], topic)

    def _deliver_run(
        self,
        delivery: Delivery,
        batch: RecordBatch,
        first: int,
        stop: int,
        flags: int,
        topic: bytes,
        *,
        held: bool = False,
    ) -> None:
        port = self._port
        assert port is not None
        if not self._session.index.match(topic).may_read(self._session):
            # At least not any more.
            self._counters.dropped += stop - first
            self._withhold(delivery, batch, first, stop)
            return
        qos, retain, properties = flags & FLAG_QOS, bool(flags & FLAG_COPY), b""
        options = self._wants(flags, topic)
        if options is not None:
            qos = EXACTLY_ONCE if held else min(qos, options.qos)
            retain = bool(flags & FLAG_RETAIN) and options.retain_as_published
            properties = options.properties
        alias, is_set = (0, False) if port.aliases is None else port.aliases.look(topic)
        while first < stop:
            start = batch.offset_at(first)
            ids = sequential_ids(id_of(start), stop - first, ID_MAX) if qos else None
            data, end = render_publishes(
                batch,
                first,
                stop,
                version=port.version,
                qos=qos,
                retain=retain,
                dup=delivery.attempts > 1 and qos > 0,
                packet_ids=ids,
                properties=properties,
                topic_alias=alias,
                alias_is_set=is_set,
                now_ms=self._node_loop.now_ms(),
                packet_bytes_max=port.packet_bytes_max,
                partition=0 if port.wants_facts else -1,
                attempts=delivery.attempts,
            )
            if data:
                self._counters.sent += end - first
                size = batch.value_bytes_between(first, end)
                self._meter.gave(end - first, size)
                port.rates.gave(end - first, size)
                port.send(data)
                if alias and not is_set and port.aliases is not None:
                    port.aliases.sent(topic, alias)
                    is_set = True
            if len(self.uncertain):
                for low, high in id_runs(sequential_ids(id_of(start), end - first, ID_MAX)):
                    self.uncertain.discard(low, high)
            if qos == EXACTLY_ONCE and ids is not None:
                offset = start
                for low, high in id_runs(ids[: end - first]):
                    self.unreceived.put(low, high, (delivery.view.partition_id, offset))
                    offset += high - low
            if not qos and end > first:
                self._node_loop.engine().settling.ack(
                    delivery.consumer, delivery.view, start, start + end - first
                )
            if end < stop:
                # Larger than the client takes: as if it had been delivered (MQTT-3.1.2-25).
                self._withhold(delivery, batch, end, end + 1)
            first = end + 1

    def _withhold(self, delivery: Delivery, batch: RecordBatch, first: int, stop: int) -> None:
        """Messages that the client does not get."""
        start = batch.offset_at(first)
        self._node_loop.engine().settling.ack(
            delivery.consumer, delivery.view, start, start + stop - first
        )
        if self._are_held(start, stop - first):
            # It may have had them before: their exchanges go on to the end without them.
            self._release_soon()

    def _release_soon(self) -> None:
        """Not now: the engine is in the middle of something."""
        if not self._releases and self._port is not None:
            self._releases = True
            self._node_loop.loop.call_soon(self._release, self._port)

    def _release(self, port: Port) -> None:
        self._releases = False
        if port is self._port:
            port.release_gone()

    def _wants(self, flags: int, topic: bytes) -> DeliveryOptions | None:
        """How the session wants a message; None: as it came."""
        if flags & FLAG_COPY:
            return None
        options = self._session.index.match(topic).delivery(self._session)
        return options.local if options is not None and flags & FLAG_OWN else options

    # --- what has to wait ---

    def ceiling(self, view: PartitionView, start: int, stop: int) -> int:
        """Up to where messages may go out now, as the engine asks before it hands out any."""
        self.is_syncing = False
        end = self._floor(view, stop) + ID_MAX
        if self.has_ids:
            end = min(end, self._first_reserved(view, start, end))
        self._crowded = end < stop
        if self._session.durable and min(stop, end) > self._safe_end:
            end = self._first_unsafe(view, start, min(stop, end))
        return end

    def _floor(self, view: PartitionView, stop: int) -> int:
        """Ids of what is settled below it are free. That has to be on disk: after a crash the
        client would be asked to end an exchange, and take it for that of the next message."""
        floor = view.state.settled.floor
        if not self._session.durable or stop <= self._safe_floor + ID_MAX:
            return floor
        journal = self._node_loop.view.store.journal
        if journal.last_lsn <= journal.confirmed_lsn:
            self._safe_floor = floor
        elif self._safe_floor < floor:
            self.is_syncing = True
            self._await_disk(view)
        return self._safe_floor

    def _first_reserved(self, view: PartitionView, start: int, end: int) -> int:
        """The first offset whose id the client may hold for a message that is gone: PUBCOMP, which
        frees it, is on its way."""
        number = view.partition_id
        for held in (self.released, self.unreceived, self.uncertain):
            for first, stop, partition, offset in held.runs():
                at = first
                for low, high in _offsets_of(view, first, stop):
                    is_own = partition == number and offset + at - first == low
                    if not is_own and high > start and max(low, start) < end:
                        end = max(low, start)
                        if held is not self.released:
                            self._release_soon()
                    at += high - low
        return end

    def _first_unsafe(self, view: PartitionView, start: int, stop: int) -> int:
        """The first message that goes out at QoS 2 and is not on disk; ``stop`` for none, or less
        when that is a long way to look."""
        journal, log = self._node_loop.view.store.journal, view.partition.log
        if journal.last_lsn <= journal.confirmed_lsn:
            self._safe_end = log.next_offset
            return stop
        if start != self._unsafe_at:  # where it was found the last time it still is
            if self._clear_moves != self._session.index.moves:
                self._clear_end = 0  # somebody may want them in another way
                self._clear_moves = self._session.index.moves
            look_from = max(start, self._safe_end, self._clear_end)
            self._unsafe_at = NOWHERE
            if look_from < stop:
                self._clear_end = self._look_for_unsafe(view, look_from, stop)
            if self._unsafe_at >= stop:
                return min(self._clear_end, stop)
            start = self._unsafe_at
        self.is_syncing = True
        self._await_disk(view)
        return start

    def _look_for_unsafe(self, view: PartitionView, start: int, stop: int) -> int:
        """Sets ``_unsafe_at`` if there is one; returns up to where there is none."""
        runs = view.partition.log.read(start, LOOK_BYTES, stop)
        for run in runs:
            first = run.first
            for end, form, flags, topic in delivery_runs(run.batch, first, run.stop):
                if form == MQTT and flags & FLAG_QOS == EXACTLY_ONCE:
                    options = self._wants(flags, topic)
                    if options is None or options.qos == EXACTLY_ONCE:
                        self._unsafe_at = run.batch.offset_at(first)
                        return self._unsafe_at
                first = end
        looked_at = runs[-1].batch.offset_at(runs[-1].stop - 1) + 1 if runs else stop
        return min(looked_at, stop)

    def _await_disk(self, view: PartitionView) -> None:
        """Once for all that came since the last time."""
        end, floor = view.partition.log.next_offset, view.state.settled.floor
        if end > self._awaited_end or floor > self._awaited_floor:
            self._awaited_end, self._awaited_floor = end, floor
            lsn = self._node_loop.view.store.journal.last_lsn
            self._node_loop.when_durable(lsn, partial(self._synced, self._topic, end, floor))

    def _synced(
        self, topic: Topic | None, end: int, floor: int, failure: StorageFailed | None
    ) -> None:
        if failure is None and topic is not None and topic is self._topic and not topic.deleted:
            self._safe_end = max(self._safe_end, end)
            self._safe_floor = max(self._safe_floor, floor)
            self._unsafe_at = NOWHERE
            self._node_loop.engine().state.mark_dirty(self._subscription)

    # --- answers ---

    def acknowledge(self, packet_ids: "array[int]") -> None:
        """PUBACK, PUBCOMP, or a PUBREC that refuses."""
        if self._consumer is None or self._consumer.subscription.topic.deleted:
            return
        view = self._view
        for first, stop in id_runs(packet_ids):
            if first > ID_MAX:
                continue  # of a queue that this client has nothing of any more
            for start, end in _offsets_of(view, first, min(stop, ID_MAX + 1)):
                self._node_loop.engine().settling.ack(self._consumer, view, start, end)

    def complete(self, packet_ids: "array[int]") -> None:
        """PUBCOMP: first the message goes, then its id."""
        self.acknowledge(packet_ids)
        for first, stop in id_runs(packet_ids):
            done = IdRuns(self.released.cut(first, stop))
            for low, high, number, offset in done.runs():
                self.released.put(low, high, (number, offset))
            # The others were not delivered on this connection: they will be, as PUBREL.
            for low, high, _, _ in self._gone(done):
                self.released.discard(low, high)
        if self._consumer is not None and not self._consumer.subscription.topic.deleted:
            # Of a message that is gone the id alone may have been waited for.
            self._node_loop.engine().state.mark_dirty(self._subscription)

    @property
    def is_easy(self) -> bool:
        """Whether nothing but room follows from PUBACK, and nobody waits for that."""
        if self._crowded or self._credit.awaited or self._consumer is None:
            return False
        return not len(self.released) and not len(self.unreceived)

    def is_in_flight(self, packet_id: int) -> bool:
        """Whether it is one that the client has to answer."""
        if packet_id > ID_MAX or self._consumer is None:
            return False
        if self._consumer.subscription.topic.deleted:
            return False
        found = self._view.state.look(_offset_of(self._view, packet_id))
        return found is not None and found[0] == State.IN_FLIGHT

    @property
    def _view(self) -> PartitionView:
        return self._subscription.views[0]


def id_of(offset: int) -> int:
    return offset % ID_MAX + 1


def _offset_of(view: PartitionView, packet_id: int) -> int:
    """The one offset with this id among those that can be in flight."""
    floor = view.state.settled.floor
    return floor + (packet_id - 1 - floor) % ID_MAX


def _offsets_of(view: PartitionView, first: int, stop: int) -> list[tuple[int, int]]:
    """The offsets with these ids among those that can be in flight."""
    floor = view.state.settled.floor
    start = _offset_of(view, first)
    end, last = start + stop - first, floor + ID_MAX
    return [(start, end)] if end <= last else [(start, last), (floor, floor + end - last)]
