"""The engine: topics, subscriptions and deliveries, for every protocol.

It is synchronous and has one caller. The time is an argument of every call that needs it; what has
to be done outside comes back as deliveries (``dispatch``) and effects (``take_effects``). All it
keeps durably goes through the store's journal.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from braidmq.engine import receipts
from braidmq.engine.administration import Administration, Position
from braidmq.engine.dead_letter_queue import DeadLetterQueue
from braidmq.engine.dead_letters import DEAD_TOPIC_SETTINGS, DeadLetterTargets
from braidmq.engine.dispatching import RUN_BYTES_MAX, Dispatching
from braidmq.engine.effects import Effect
from braidmq.engine.errors import BadPosition, UnknownSubscription
from braidmq.engine.exchanges import Exchanges
from braidmq.engine.group_coordinator import GroupCoordinator
from braidmq.engine.leases import Leases
from braidmq.engine.policy import Template, TemplateKind, TopicKind
from braidmq.engine.pressure import Pressure, Watermarks
from braidmq.engine.publishing import Published, Publishing
from braidmq.engine.quarantine import Quarantine
from braidmq.engine.recovery import DeliveryNotes, Recovery
from braidmq.engine.references import References
from braidmq.engine.retention import Retainer
from braidmq.engine.routing.errors import ExchangeNotFound
from braidmq.engine.settling import Settling
from braidmq.engine.state import DOOMED, TEMPLATES, EngineState
from braidmq.engine.timers import Delayed, Timers
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
from braidmq.model.ids import SubscriptionId
from braidmq.record.batch import RecordBatch
from braidmq.storage.disk import Disk
from braidmq.storage.journal import Progress
from braidmq.storage.partition_log import Run
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store


class Engine:
    """Use ``Engine.open``."""

    def __init__(
        self,
        store: Store,
        notes: DeliveryNotes,
        ledger: Ledger,
        now_ms: int,
        marks: Watermarks | None = None,
    ) -> None:
        self.store = store
        self.state = EngineState(store, now_ms)
        self.exchanges = Exchanges(store)
        self.pressure = Pressure(marks)
        self._settling = Settling(self.state)
        self._publishing = Publishing(self.state, self._settling)
        self._stamped = StampedPublishing(self.state, self._publishing)
        self._stability = Stability(self.state, self._settling, self._publishing)
        self._dispatching = Dispatching(self.state, self._settling)
        self._recovery = Recovery(self.state, notes)
        self._administration = Administration(
            self.state, self._settling, self._dispatching, self._recovery.rebuild
        )
        self.references = References(self.state, self.exchanges)
        self._administration.references = self.references
        self._recovery.administration = self._administration
        self.exchanges.alternate_of = self._administration.alternate_exchange
        self._settling.publishing = self._publishing
        self._settling.targets = DeadLetterTargets(
            self._find_dead_letter_topics, self._dead_letters_go_by_key
        )
        self.dead_letter_queue = DeadLetterQueue(self.state, self._settling, self._publishing)
        self._timers = Timers(self.state, self._settling, self._administration)
        self.retainer = Retainer(self.state, self._settling, self._publishing, now_ms)
        self.leases = Leases(self.state)
        self.leases.on_unpinned = self.retainer.unpinned
        self._timers.on_lease = self.leases.expire
        self.retainer.visible_runs = self._stability.visible_runs
        self._publishing.deduplication.visible_runs = self._stability.visible_runs
        self._timers.on_sweep = self._sweep
        self._timers.on_compaction = self.retainer.compaction_due
        self.transactions = Coordinator(
            self.state,
            self._settling,
            self._publishing,
            self._stability,
            ledger,
            self.retainer.settle_up_to,
        )
        self._timers.on_transaction = self.transactions.expire
        self._recovery.before_subscriptions = self.transactions.restore_claims
        self.groups = GroupCoordinator(self.state, self._administration, self._settling)
        self.groups.settle_up_to = self.retainer.settle_up_to
        self._timers.on_group = self.groups.expire
        self._administration.on_policy = self._stability.policy_changed
        self._administration.on_resized = self.groups.resized
        self._administration.on_deleted = self._deleted
        self.quarantine = Quarantine(
            self.state,
            self._settling,
            self.retainer,
            self._recovery,
            self._stability.count_undecided,
        )
        notes.state = self.state

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
        self._finish_deletions()
        if rebuild:
            self._administration.adopt_orphans(now_ms)
        self._administration.drop_orphans()
        for topic in self.state.topics.values():
            # When it was last used is not kept: its time begins anew.
            topic.last_used_ms = now_ms
            self._administration.arm_idle(topic, now_ms)
            self._administration.arm_compaction(topic, now_ms)

    def _sweep(self, now_ms: int) -> None:
        self.retainer.sweep(now_ms)
        self.transactions.sweep(now_ms)

    def close(self) -> None:
        self.store.close()

    # --- topics and templates ---

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
        """``set_by``: whose rights count for what the settings name; raises AccessRefused."""
        return self._administration.create_topic(
            namespace,
            name,
            settings or {},
            now_ms,
            durable=durable,
            kind=kind,
            attributes=attributes,
            set_by=set_by,
        )

    def topic(self, namespace: str, name: str) -> Topic:
        """Raises UnknownTopic."""
        return self.state.topic(namespace, name)

    def topics(self, namespace: str | None = None) -> list[Topic]:
        every = self.state.topics.values()
        return [topic for topic in every if namespace in (None, topic.namespace)]

    def alter_topic(
        self,
        topic: Topic,
        settings: dict[str, Any],
        *,
        now_ms: int,
        set_by: str | None = None,
    ) -> None:
        """``set_by``: who named where dead letters go, if that is what changes."""
        self._administration.alter_topic(topic, settings, now_ms, set_by)
        self._publishing.deduplication.forget(topic)

    def delete_topic(self, topic: Topic) -> None:
        self._administration.delete_topic(topic)

    def _deleted(self, topic: Topic) -> None:
        if (topic.namespace, topic.name) not in self.state.topics:
            # Else there is another one of that name already, which has bindings and groups.
            self.exchanges.forget_topic(topic.namespace, topic.name)
            self.groups.deleted(topic)
        self.retainer.forget(topic)
        self.transactions.forget_topic(topic)
        self._publishing.deduplication.forget(topic)

    def purge(self, topic: Topic) -> int:
        self._administration.require(topic)
        if topic.quarantined:
            raise self.quarantine.error(topic)
        return self.retainer.purge(topic)

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
        template = Template(
            name,
            pattern,
            settings,
            priority,
            tuple(kinds),
            alternate_exchange,
            attributes or {},
            set_by,
        )
        all_of(self.setting_template(namespace, template, now_ms=now_ms))
        return template

    def setting_template(
        self, namespace: str, template: Template, *, now_ms: int
    ) -> Iterator[None]:
        """``set_template`` in steps, for who has others to serve between them."""
        yield from self._administration.set_template(namespace, template, now_ms)
        self._templates_changed(namespace)

    def delete_template(self, namespace: str, name: str, *, now_ms: int) -> None:
        all_of(self.deleting_template(namespace, name, now_ms=now_ms))

    def deleting_template(self, namespace: str, name: str, *, now_ms: int) -> Iterator[None]:
        yield from self._administration.delete_template(namespace, name, now_ms)
        self._templates_changed(namespace)

    def _templates_changed(self, namespace: str) -> None:
        self._publishing.deduplication.forget()
        self.exchanges.set_alternates(namespace)

    def templates(self, namespace: str | None = None) -> list[tuple[str, Template]]:
        """Namespaces and templates, in order."""
        every = sorted(self.state.templates.items(), key=lambda each: each[0])
        return [(key[0], each) for key, each in every if namespace in (None, key[0])]

    def delete_namespace(self, namespace: str, *, now_ms: int) -> None:
        """With all that is in it."""
        all_of(self.deleting_namespace(namespace, now_ms=now_ms))

    def deleting_namespace(self, namespace: str, *, now_ms: int) -> Iterator[None]:
        """The same in steps of a topic each. Nobody finds any of them from the first step on, and
        what a crash leaves of them is removed at the next start."""
        topics, templates = self.topics(namespace), self.templates(namespace)
        doomed = f"{namespace}\0{self.store.journal.next_lsn}"
        numbers = msgspec.msgpack.encode([topic.id for topic in topics if topic.durable])
        gone = [(TEMPLATES, f"{namespace}\0{each.name}", None) for _, each in templates]
        self.store.change([(DOOMED, doomed, numbers), *gone])
        for _, template in templates:
            del self.state.templates[namespace, template.name]
        for topic in topics:
            self._administration.hide(topic)
        self.exchanges.forget_namespace(namespace)
        self.transactions.forget_namespace(namespace, now_ms=now_ms)
        self._publishing.deduplication.forget()
        for topic in topics:
            self._administration.remove(topic)
            yield
        self.store.change([(DOOMED, doomed, None)])

    def _finish_deletions(self) -> None:
        """Topics of namespaces that were being deleted when the node went down."""
        for key, value in list(self.store.catalogue.items(DOOMED)):
            for number in msgspec.msgpack.decode(value, type=list[int]):
                topic = self.state.topics_by_id.get(number)
                if topic is not None:
                    self.delete_topic(topic)
            self.store.change([(DOOMED, key, None)])
            # Another one may have had the name by then.
            for topic in self.state.topics_by_id.values():
                self.state.topics.setdefault((topic.namespace, topic.name), topic)

    # --- publishing ---

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
        """A batch for one topic. It is confirmed once ``Published.lsn`` is durable.

        With an ``origin`` it is written once, however often it is sent, or visible only when its
        transaction commits.
        """
        if topic.deleted:
            self._administration.require(topic)
        if origin is not None:
            self.transactions.require_writable(origin.author, now_ms)
            return self._stamped.publish(
                topic, batch, now_ms, origin, partition=partition, durable=durable
            )
        return self._publishing.publish(topic, batch, now_ms, partition=partition, durable=durable)

    def fan_out(
        self,
        topics: Sequence[Topic],
        batch: RecordBatch,
        *,
        now_ms: int,
        durable: bool = True,
        origin: Origin | None = None,
    ) -> Published:
        """A batch for many topics; its bytes are written once."""
        for topic in topics:
            self._administration.require(topic)
        if origin is not None:
            self.transactions.require_writable(origin.author, now_ms)
            return self._stamped.fan_out(topics, batch, now_ms, origin, durable=durable)
        if len(topics) == 1:
            return self._publishing.publish(topics[0], batch, now_ms, durable=durable)
        return self._publishing.fan_out(topics, batch, now_ms, durable=durable)

    # --- subscribing ---

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
        """``uncommitted``: it gets records whose transaction is still open, or was aborted."""
        return self._administration.subscribe(
            topic,
            name,
            now_ms,
            mode=mode,
            start=start,
            durable=durable,
            uncommitted=uncommitted,
        )

    def subscription(self, topic: Topic, name: str) -> Subscription:
        """Raises UnknownSubscription."""
        return self.state.subscription(topic, name)

    def delete_subscription(self, subscription: Subscription) -> None:
        self._administration.delete_subscription(subscription)

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
        """``passive``: it pulls, and nothing is pushed to it."""
        return self._administration.attach(
            subscription,
            now_ms,
            credits=credits,
            priority=priority,
            auto_ack=auto_ack,
            exclusive=exclusive,
            visibility_ms=visibility_ms,
            passive=passive,
            receiver=receiver,
        )

    def detach(self, consumer: Consumer, *, now_ms: int, requeue: bool = True) -> None:
        self._administration.detach(consumer, now_ms, requeue=requeue)

    def resume(self, consumer: Consumer) -> None:
        """A consumer has room again: its credit or its socket."""
        consumer.paused = False
        self.state.mark_dirty(consumer.subscription)

    def release(self, credit: Credit, count: int) -> None:
        """Room in a credit that its owner had held back."""
        credit.used -= count
        awaited, credit.awaited = credit.awaited, {}
        for subscription in awaited:
            self.state.mark_dirty(subscription)

    # --- delivering ---

    def dispatch(self, now_ms: int) -> list[Delivery]:
        return self._dispatching.dispatch(now_ms)

    @property
    def has_more(self) -> bool:
        """Whether ``advance`` or ``dispatch`` may have more to do already."""
        return bool(self.state.dirty) or self._settling.has_burials

    def pull(
        self, consumer: Consumer, limit: int, *, now_ms: int, bytes_max: int = RUN_BYTES_MAX
    ) -> list[Delivery]:
        """Raises PartitionQuarantined where nothing can be had any more."""
        found = self._dispatching.pull(consumer, limit, now_ms, bytes_max)
        if not found and consumer.subscription.topic.quarantined:
            self.quarantine.require(consumer.subscription.topic)
        return found

    def watch(self, subscription: Subscription) -> None:
        """Say once (``SubscriptionReady``) when a pull may find something."""
        subscription.watched = True

    def ack(self, consumer: Consumer, view: PartitionView, start: int, stop: int) -> int:
        return self._settling.ack(consumer, view, start, stop)

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
        return self._settling.nack(
            consumer, view, start, stop, now_ms, error=error, delay_ms=delay_ms
        )

    def requeue(
        self, consumer: Consumer, view: PartitionView, start: int, stop: int, *, now_ms: int
    ) -> int:
        return self._settling.requeue(consumer, view, start, stop, now_ms)

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
        return self._settling.reject(consumer, view, start, stop, now_ms, error)

    def extend(
        self, consumer: Consumer, view: PartitionView, start: int, stop: int, *, until_ms: int
    ) -> int:
        return self._settling.extend(consumer, view, start, stop, until_ms)

    def commit_offset(self, view: PartitionView, offset: int, *, now_ms: int) -> None:
        """Settle everything below an offset: an offset commit is an acknowledgement up to it."""
        if not 0 <= offset <= view.state.end:
            raise BadPosition(
                f"{view.log.label}: offset {offset} is not between 0 and {view.state.end}"
            )
        self.retainer.settle_up_to(view, offset)

    def redeem(self, text: str, namespace: str) -> tuple[Consumer, PartitionView, int]:
        """Who has what a receipt names. Raises BadReceipt, StaleReceipt or NotFound."""
        receipt = receipts.parse(text)
        topic = self.topic(namespace, receipt.topic)
        self.state.partition(topic, receipt.partition)
        subscription = self.state.subscriptions.get(SubscriptionId(receipt.subscription))
        if subscription is None or subscription.topic is not topic:
            raise UnknownSubscription(f"the subscription of receipt {text!r} is gone")
        view = subscription.views[receipt.partition]
        return receipts.holder(receipt, view, self.state.consumers), view, receipt.offset

    # --- reading without a subscription ---

    def read(
        self,
        topic: Topic,
        partition: int,
        offset: int,
        bytes_max: int = RUN_BYTES_MAX,
        *,
        uncommitted: bool = False,
    ) -> list[Run]:
        """Records by offset: replay, for anybody, without touching a subscription. Nothing behind
        the stable offset, nor what was aborted or cancelled."""
        found = self.state.partition(topic, partition)
        return self._stability.read(found, offset, bytes_max, uncommitted=uncommitted)

    def find_offset(self, topic: Topic, partition: int, wanted: Position) -> int:
        return self._administration.position(self.state.partition(topic, partition).log, wanted)

    def rewind(self, subscription: Subscription, to: Position, *, now_ms: int) -> None:
        """Begin again from a position; other subscriptions do not notice."""
        self._administration.require_subscription(subscription)
        targets = [self._administration.position(view.log, to) for view in subscription.views]
        for view, offset in zip(subscription.views, targets, strict=True):
            self.retainer.rewind(view, offset)
            self._administration.settle_cancelled(subscription, view.partition, view.state.settled)
            self._recovery.rebuild(view, now_ms)
            if not view.partition.head_timer:
                self._administration.arm_head(view.partition, now_ms)
        self.state.mark_dirty(subscription)

    # --- delayed messages ---

    def delayed(
        self, topic: Topic, *, now_ms: int, limit: int = 100, after: tuple[int, int] = (0, -1)
    ) -> list[Delayed]:
        return self._timers.delayed(topic, now_ms, limit, after)

    def count_delayed(self, topic: Topic) -> int:
        return self._timers.count_delayed(topic, self.state.wheel.now_ms)

    def cancel_delayed(self, topic: Topic, partition: int, offset: int) -> None:
        self._timers.cancel(topic, partition, offset)

    # --- time, pressure, effects ---

    def advance(self, now_ms: int) -> None:
        """Do what is due."""
        self._timers.advance(now_ms)
        self.retainer.run_due(now_ms)
        if self._settling.has_burials:
            self._settling.bury_some()

    def clock_set(self, lead_ms: int, *, now_ms: int) -> None:
        """The wall clock was set, and is so far ahead of the engine's time from now on."""
        self._timers.clock_set(lead_ms, now_ms)

    def next_due_ms(self) -> int | None:
        """When ``advance`` next has something to do; a time that has passed means now."""
        if self.retainer.has_due() or self._settling.has_burials:
            return self.state.wheel.now_ms
        return self.state.wheel.next_due_ms()

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

    # --- dead letters ---

    def _dead_letters_go_by_key(self, topic: Topic) -> bool:
        exchange = topic.dead_letter.exchange
        router = self.exchanges.router(topic.namespace)
        return exchange is None or router.routes_by_key_only(exchange)

    def _find_dead_letter_topics(
        self,
        topic: Topic,
        keys: list[bytes],
        headers: Callable[[], Mapping[str, object]],
        now_ms: int,
    ) -> list[Topic]:
        rule = topic.dead_letter
        if rule.exchange is not None:
            router = self.exchanges.router(topic.namespace)
            names: dict[str, None] = {}
            for key in keys:
                try:
                    route = router.resolve(rule.exchange, key, headers)
                except ExchangeNotFound:
                    return []
                names |= dict.fromkeys(route.topics)
            found = [self.state.topics.get((topic.namespace, name)) for name in names]
            return [t for t in found if t is not None and not self._publishing.is_full(t)]
        if rule.topic is None:
            return []
        name = rule.topic.replace("{topic}", topic.name)
        existing = self.state.topics.get((topic.namespace, name))
        if existing is None:
            existing = self.create_topic(
                topic.namespace, name, DEAD_TOPIC_SETTINGS, now_ms=now_ms, durable=topic.durable
            )
        return [existing]


def all_of(steps: Iterator[None]) -> None:
    """Work that is done in steps, without a pause between them."""
    for _ in steps:
        pass
