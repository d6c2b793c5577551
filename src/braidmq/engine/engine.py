"""The engine: topics, subscriptions and deliveries, for every protocol.

It is synchronous and has one caller. The time is an argument of every call that needs it; what has
to be done outside comes back as deliveries (``dispatching.dispatch``) and effects
(``take_effects``). All it keeps durably goes through the store's journal.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from braidmq.engine.administration import TopicAdministration
from braidmq.engine.appending import Appending, Published
from braidmq.engine.consumers import Consumers
from braidmq.engine.dead_letter_queue import DeadLetterQueue
from braidmq.engine.dead_lettering import DeadLettering
from braidmq.engine.dead_letters import DeadLetterTargets
from braidmq.engine.deduplication import Deduplication
from braidmq.engine.delayed import Delayed, DelayedMessages
from braidmq.engine.dispatching import RUN_BYTES_MAX, Dispatching
from braidmq.engine.effects import Effect
from braidmq.engine.exchanges import Exchanges
from braidmq.engine.group_coordinator import GroupCoordinator
from braidmq.engine.hooks import Hooks
from braidmq.engine.leases import Leases
from braidmq.engine.message_times import MessageTimes
from braidmq.engine.namespaces import Namespaces
from braidmq.engine.offsets import Offsets
from braidmq.engine.policy import Template, TemplateKind, TopicKind
from braidmq.engine.pressure import Pressure, Watermarks
from braidmq.engine.publishing import Publishing
from braidmq.engine.quarantine import Quarantine
from braidmq.engine.reading import Position, Reading
from braidmq.engine.rebuilding import Rebuilding
from braidmq.engine.receipts import Receipts
from braidmq.engine.recovery import DeliveryNotes, Recovery
from braidmq.engine.references import References
from braidmq.engine.removal import Removal
from braidmq.engine.retention import Retention
from braidmq.engine.settlement import Settlement
from braidmq.engine.settling import Settling
from braidmq.engine.state import EngineState
from braidmq.engine.subscriptions import Subscriptions
from braidmq.engine.templates import Templates
from braidmq.engine.timers import Timers
from braidmq.engine.topics import (
    Consumer,
    Credit,
    Delivery,
    Mode,
    PartitionView,
    Receiver,
    Subscription,
    Topic,
)
from braidmq.engine.transactions.coordinator import Coordinator
from braidmq.engine.transactions.ledger import Ledger
from braidmq.engine.transactions.publishing import Origin, StampedPublishing
from braidmq.engine.transactions.stability import Stability
from braidmq.record.batch import RecordBatch
from braidmq.storage.disk import Disk
from braidmq.storage.journal import Progress
from braidmq.storage.partition_log import Run
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store


class Engine:
    """Use ``Engine.open``.

    The one door: its parts, by name. Each is built from those above it; who has to know of
    something further down registers for it, in ``hooks`` or ``timers``.
    """

    def __init__(
        self,
        store: Store,
        notes: DeliveryNotes,
        ledger: Ledger,
        now_ms: int,
        marks: Watermarks | None = None,
    ) -> None:
        self.store = store
        self.pressure = Pressure(marks)
        self.state = state = EngineState(store, now_ms)
        hooks = Hooks()
        self.timers = timers = Timers(state)
        # Names and what they refer to.
        self.exchanges = Exchanges(state, hooks)
        self.references = References(state, self.exchanges)
        # Logs, read and written.
        self.reading = Reading(state)
        settlement = Settlement(state)
        stability = Stability(state, hooks, self.reading, ledger)
        appending = Appending(state, hooks, settlement, self.reading, stability)
        # What there is.
        rebuilding = Rebuilding(state, notes.kept)
        self.subscriptions = Subscriptions(state, settlement, rebuilding)
        self._topics = TopicAdministration(
            state, timers, hooks, self.references, settlement, rebuilding, self.subscriptions
        )
        self._templates = Templates(state, self.exchanges, self.references, self._topics)
        self.namespaces = Namespaces(state, hooks, self._topics)
        # What becomes of messages.
        targets = DeadLetterTargets(state, self.exchanges, self._topics)
        self._dead_lettering = DeadLettering(state, hooks, settlement, appending, targets)
        removal = Removal(state, hooks, settlement, self._dead_lettering)
        self.settling = Settling(state, timers, settlement, self._dead_lettering, removal)
        self.message_times = MessageTimes(state, timers, removal)
        self._delayed = DelayedMessages(state, settlement)
        self.dead_letter_queue = DeadLetterQueue(state, appending, removal)
        self.offsets = Offsets(state, hooks, settlement, rebuilding, self.subscriptions)
        self.retention = Retention(
            state, timers, hooks, settlement, self.reading, appending, self.offsets, now_ms
        )
        self.leases = Leases(state, timers, self.retention)
        # Who publishes and who consumes.
        self.transactions = Coordinator(
            state,
            timers,
            hooks,
            settlement,
            appending,
            stability,
            self.settling,
            self.offsets,
            ledger,
        )
        self.publishing = Publishing(
            state,
            appending,
            self._dead_lettering,
            Deduplication(hooks, self.reading),
            StampedPublishing(state, appending, self.transactions),
        )
        self.dispatching = Dispatching(state, settlement, removal)
        self.consumers = Consumers(state, self.subscriptions, self.settling, self.dispatching)
        self.receipts = Receipts(state)
        self.groups = GroupCoordinator(
            state,
            timers,
            hooks,
            self.subscriptions,
            self.consumers,
            self.settling,
            self.offsets,
        )
        self.quarantine = Quarantine(state, settlement, stability, rebuilding, self.offsets)
        self._recovery = Recovery(
            state, notes, rebuilding, self.subscriptions, self._topics, self.transactions
        )

    @classmethod
    def open(
        cls,
        disk: Disk,
        now_ms: int,
        settings: StorageSettings | None = None,
        marks: Watermarks | None = None,
        progress: Progress = lambda what, done, total: None,
        *,
        rebuild: bool = False,
    ) -> "Engine":
        """Recover a data directory and go on where it stopped; with ``rebuild``, where no snapshot
        can be read, with what segments and journal say of themselves."""
        notes, ledger = DeliveryNotes(), Ledger()
        store = Store.open(disk, settings, [notes, ledger], progress, rebuild=rebuild)
        try:
            engine = cls(store, notes, ledger, now_ms, marks)
            engine._restore(now_ms, progress, rebuild=rebuild)
        except BaseException:
            store.close()
            raise
        return engine

    def _restore(self, now_ms: int, progress: Progress, *, rebuild: bool) -> None:
        self.state.restore_ids()
        self.exchanges.restore()
        self._recovery.run(now_ms, progress)
        self.exchanges.set_alternates()
        self.groups.restore()
        self.leases.restore(now_ms)
        self.transactions.resume(now_ms)
        self.namespaces.finish_deletions()
        if rebuild:
            self._topics.adopt_orphans(now_ms)
        self._topics.drop_orphans()
        for topic in self.state.topics.values():
            # When it was last used is not kept: its time begins anew.
            topic.last_used_ms = now_ms
            self._topics.arm_idle(topic, now_ms)
            self._topics.arm_compaction(topic, now_ms)

    def close(self) -> None:
        self.store.close()

    # --- time, pressure, effects ---

    def advance(self, now_ms: int) -> None:
        """Do what is due."""
        self.timers.advance(now_ms)
        self.retention.run_due(now_ms)
        if self._dead_lettering.has_pending:
            self._dead_lettering.move_some()

    def next_due_ms(self) -> int | None:
        """When ``advance`` next has something to do; a time that has passed means now."""
        if self.retention.has_due() or self._dead_lettering.has_pending:
            return self.state.wheel.now_ms
        return self.state.wheel.next_due_ms()

    @property
    def has_more(self) -> bool:
        """Whether ``advance`` or ``dispatch`` may have more to do already."""
        return bool(self.state.dirty) or self._dead_lettering.has_pending

    def check_pressure(self, disk_free_bytes: int) -> None:
        held_bytes = self.store.memory.resident + self.pressure.input_bytes()
        held_bytes += self.pressure.unsent_bytes()
        changed = self.pressure.update(held_bytes, disk_free_bytes)
        if changed is not None:
            self.state.effects.append(changed)

    def reclaim(self) -> None:
        """Free what can be freed at once while the disk is short of room."""
        if self.pressure.disk_is_low:
            self.store.reclaim()

    def take_effects(self) -> list[Effect]:
        effects, self.state.effects = self.state.effects, []
        return effects

    # --- passed on ---

    @property
    def retainer(self) -> Retention:
        return self.retention

    def create_topic(
        self,
        namespace: str,
        name: str,
        settings: dict[str, Any] | None = None,
        *,
        now_ms: int,
        durable: bool = True,
        kind: TopicKind = "topic",
        attributes: dict[str, Any] | None = None,
        set_by: str = "",
    ) -> Topic:
        return self._topics.create(
            namespace,
            name,
            settings,
            now_ms=now_ms,
            durable=durable,
            kind=kind,
            attributes=attributes,
            set_by=set_by,
        )

    def topic(self, namespace: str, name: str) -> Topic:
        return self.state.topic(namespace, name)

    def topics(self, namespace: str | None = None) -> list[Topic]:
        return self.state.topics_of(namespace)

    def alter_topic(
        self,
        topic: Topic,
        settings: dict[str, Any],
        *,
        now_ms: int,
        set_by: str | None = None,
    ) -> None:
        self._topics.alter(topic, settings, now_ms=now_ms, set_by=set_by)

    def delete_topic(self, topic: Topic) -> None:
        self._topics.delete(topic)

    def purge(self, topic: Topic) -> int:
        return self.retention.purge(topic)

    def set_template(
        self,
        namespace: str,
        name: str,
        pattern: str,
        settings: dict[str, Any],
        *,
        now_ms: int,
        priority: int = 0,
        kinds: Sequence[TemplateKind] = ("topic",),
        alternate_exchange: str | None = None,
        attributes: dict[str, Any] | None = None,
        set_by: str = "",
    ) -> Template:
        return self._templates.put(
            namespace,
            name,
            pattern,
            settings,
            now_ms=now_ms,
            priority=priority,
            kinds=kinds,
            alternate_exchange=alternate_exchange,
            attributes=attributes,
            set_by=set_by,
        )

    def setting_template(
        self, namespace: str, template: Template, *, now_ms: int
    ) -> Iterator[None]:
        return self._templates.putting(namespace, template, now_ms=now_ms)

    def delete_template(self, namespace: str, name: str, *, now_ms: int) -> None:
        self._templates.delete(namespace, name, now_ms=now_ms)

    def deleting_template(self, namespace: str, name: str, *, now_ms: int) -> Iterator[None]:
        return self._templates.deleting(namespace, name, now_ms=now_ms)

    def templates(self, namespace: str | None = None) -> list[tuple[str, Template]]:
        return self._templates.of(namespace)

    def delete_namespace(self, namespace: str, *, now_ms: int) -> None:
        self.namespaces.delete(namespace, now_ms=now_ms)

    def deleting_namespace(self, namespace: str, *, now_ms: int) -> Iterator[None]:
        return self.namespaces.deleting(namespace, now_ms=now_ms)

    def publish(
        self,
        topic: Topic,
        batch: RecordBatch,
        *,
        now_ms: int,
        partition: int | None = None,
        durable: bool = True,
        origin: Origin | None = None,
    ) -> Published:
        return self.publishing.publish(
            topic, batch, now_ms=now_ms, partition=partition, durable=durable, origin=origin
        )

    def fan_out(
        self,
        topics: Sequence[Topic],
        batch: RecordBatch,
        *,
        now_ms: int,
        durable: bool = True,
        origin: Origin | None = None,
    ) -> Published:
        return self.publishing.fan_out(topics, batch, now_ms=now_ms, durable=durable, origin=origin)

    def subscribe(
        self,
        topic: Topic,
        name: str,
        *,
        now_ms: int,
        mode: Mode = Mode.SHARED,
        start: Position = "earliest",
        durable: bool = True,
        uncommitted: bool = False,
    ) -> Subscription:
        return self.subscriptions.subscribe(
            topic,
            name,
            now_ms=now_ms,
            mode=mode,
            start=start,
            durable=durable,
            uncommitted=uncommitted,
        )

    def subscription(self, topic: Topic, name: str) -> Subscription:
        return self.state.subscription(topic, name)

    def delete_subscription(self, subscription: Subscription) -> None:
        self.subscriptions.delete(subscription)

    def attach(
        self,
        subscription: Subscription,
        *,
        now_ms: int,
        credits: Sequence[Credit] | None = None,
        priority: int = 0,
        auto_ack: bool = False,
        exclusive: bool = False,
        visibility_ms: int | None = None,
        passive: bool = False,
        receiver: Receiver | None = None,
    ) -> Consumer:
        return self.consumers.attach(
            subscription,
            now_ms=now_ms,
            credits=credits,
            priority=priority,
            auto_ack=auto_ack,
            exclusive=exclusive,
            visibility_ms=visibility_ms,
            passive=passive,
            receiver=receiver,
        )

    def detach(self, consumer: Consumer, *, now_ms: int, requeue: bool = True) -> None:
        self.consumers.detach(consumer, now_ms=now_ms, requeue=requeue)

    def resume(self, consumer: Consumer) -> None:
        self.consumers.resume(consumer)

    def release(self, credit: Credit, count: int) -> None:
        self.consumers.release(credit, count)

    def assign(self, subscription: Subscription, assignment: dict[int, Consumer]) -> None:
        self.consumers.assign(subscription, assignment)

    def dispatch(self, now_ms: int) -> list[Delivery]:
        return self.dispatching.dispatch(now_ms)

    def pull(
        self, consumer: Consumer, limit: int, *, now_ms: int, bytes_max: int = RUN_BYTES_MAX
    ) -> list[Delivery]:
        return self.dispatching.pull(consumer, limit, now_ms=now_ms, bytes_max=bytes_max)

    def watch(self, subscription: Subscription) -> None:
        self.dispatching.watch(subscription)

    def ack(self, consumer: Consumer, view: PartitionView, start: int, stop: int) -> int:
        return self.settling.ack(consumer, view, start, stop)

    def nack(
        self,
        consumer: Consumer,
        view: PartitionView,
        start: int,
        stop: int,
        *,
        now_ms: int,
        error: str = "",
        delay_ms: int | None = None,
    ) -> int:
        return self.settling.nack(
            consumer, view, start, stop, now_ms=now_ms, error=error, delay_ms=delay_ms
        )

    def requeue(
        self, consumer: Consumer, view: PartitionView, start: int, stop: int, *, now_ms: int
    ) -> int:
        return self.settling.requeue(consumer, view, start, stop, now_ms=now_ms)

    def reject(
        self,
        consumer: Consumer,
        view: PartitionView,
        start: int,
        stop: int,
        *,
        now_ms: int,
        error: str = "",
    ) -> int:
        return self.settling.reject(consumer, view, start, stop, now_ms=now_ms, error=error)

    def extend(
        self, consumer: Consumer, view: PartitionView, start: int, stop: int, *, until_ms: int
    ) -> int:
        return self.settling.extend(consumer, view, start, stop, until_ms=until_ms)

    def commit_offset(self, view: PartitionView, offset: int, *, now_ms: int) -> None:
        self.offsets.commit(view, offset)

    def redeem(self, text: str, namespace: str) -> tuple[Consumer, PartitionView, int]:
        return self.receipts.redeem(text, namespace)

    def read(
        self,
        topic: Topic,
        partition: int,
        offset: int,
        bytes_max: int = RUN_BYTES_MAX,
        *,
        uncommitted: bool = False,
    ) -> list[Run]:
        return self.reading.read(topic, partition, offset, bytes_max, uncommitted=uncommitted)

    def find_offset(self, topic: Topic, partition: int, wanted: Position) -> int:
        return self.reading.find_offset(topic, partition, wanted)

    def rewind(self, subscription: Subscription, to: Position, *, now_ms: int) -> None:
        self.offsets.rewind(subscription, to, now_ms=now_ms)

    def delayed(
        self, topic: Topic, *, now_ms: int, limit: int = 100, after: tuple[int, int] = (0, -1)
    ) -> list[Delayed]:
        return self._delayed.find(topic, now_ms=now_ms, limit=limit, after=after)

    def count_delayed(self, topic: Topic) -> int:
        return self._delayed.count(topic)

    def cancel_delayed(self, topic: Topic, partition: int, offset: int) -> None:
        self._delayed.cancel(topic, partition, offset)

    def clock_set(self, lead_ms: int, *, now_ms: int) -> None:
        self.message_times.clock_set(lead_ms, now_ms=now_ms)
