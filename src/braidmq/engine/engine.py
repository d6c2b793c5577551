"""The engine: topics, subscriptions and deliveries, for every protocol.

It is synchronous and has one caller. The time is an argument of every call that needs it; what has
to be done outside comes back as deliveries (``dispatching.dispatch``) and effects
(``take_effects``). All it keeps durably goes through the store's journal.
"""

from secrets import token_bytes

from braidmq.engine.administration import TopicAdministration
from braidmq.engine.appending import Appending
from braidmq.engine.compacting import Compacting
from braidmq.engine.consumers import Consumers
from braidmq.engine.dead_letter_places import DeadLetterPlaces
from braidmq.engine.dead_letter_queue import DeadLetterQueue
from braidmq.engine.dead_lettering import DeadLettering
from braidmq.engine.dead_letters import DeadLetterTargets
from braidmq.engine.deduplication import Deduplication
from braidmq.engine.delay_ends import DelayEnds
from braidmq.engine.delayed import DelayedMessages
from braidmq.engine.dispatching import Dispatching
from braidmq.engine.effects import Effect, MemberNotice
from braidmq.engine.exchanges import Exchanges
from braidmq.engine.group_coordinator import GroupCoordinator
from braidmq.engine.hooks import Hooks
from braidmq.engine.keeping import Keeping
from braidmq.engine.leases import Leases
from braidmq.engine.message_times import MessageTimes
from braidmq.engine.namespaces import Namespaces
from braidmq.engine.offsets import Offsets
from braidmq.engine.pressure import Pressure, Watermarks
from braidmq.engine.publishing import Publishing
from braidmq.engine.quarantine import Quarantine
from braidmq.engine.reading import Reading
from braidmq.engine.rebuilding import Rebuilding
from braidmq.engine.receipts import Receipts
from braidmq.engine.recovery import DeliveryNotes, Recovery
from braidmq.engine.references import References
from braidmq.engine.removal import Removal
from braidmq.engine.resizing import Resizing
from braidmq.engine.retention import Retention
from braidmq.engine.schedules import Schedules
from braidmq.engine.settings import RetentionSettings
from braidmq.engine.settlement import Settlement
from braidmq.engine.settling import Settling
from braidmq.engine.state import EngineState
from braidmq.engine.subscriptions import Subscriptions
from braidmq.engine.templates import Templates
from braidmq.engine.timers import Timers
from braidmq.engine.transactions.coordinator import Coordinator
from braidmq.engine.transactions.ledger import Ledger
from braidmq.engine.transactions.publishing import StampedPublishing
from braidmq.engine.transactions.stability import Stability
from braidmq.engine.transactions.staging import Staging
from braidmq.storage.disk import Disk
from braidmq.storage.journal import Progress
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store

RECEIPT_KEY_BYTES = 32


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
        upkeep: RetentionSettings | None = None,
    ) -> None:
        self.store = store
        self.pressure = Pressure(marks)
        self.state = state = EngineState(store, now_ms, upkeep)
        hooks = Hooks()
        self.timers = timers = Timers(state)
        # Names and what they refer to.
        self.exchanges = Exchanges(state, hooks)
        self.references = References(state, self.exchanges)
        # Logs, read and written.
        self.reading = Reading(state)
        self.keeping = Keeping(state, timers)
        settlement = Settlement(state, self.keeping)
        stability = Stability(state, hooks, self.reading, ledger)
        appending = Appending(state, hooks, settlement, self.reading, stability)
        # What there is.
        rebuilding = Rebuilding(state, notes.kept)
        self.subscriptions = Subscriptions(state, settlement, rebuilding)
        self._resizing = Resizing(state, timers, hooks, self.subscriptions, ledger)
        self.topics = TopicAdministration(
            state,
            timers,
            hooks,
            self.references,
            settlement,
            rebuilding,
            self.subscriptions,
            self._resizing,
        )
        self.templates = Templates(state, self.exchanges, self.references, self.topics)
        self.namespaces = Namespaces(state, hooks, self.topics)
        # What becomes of messages.
        targets = DeadLetterTargets(state, self.exchanges, self.topics)
        self._dead_lettering = DeadLettering(state, hooks, settlement, appending, targets)
        removal = Removal(state, hooks, settlement, self._dead_lettering)
        self.settling = Settling(state, timers, settlement, self._dead_lettering, removal)
        self.delay_ends = DelayEnds(state, hooks)
        self.message_times = MessageTimes(
            state, timers, removal, self.subscriptions, self.delay_ends
        )
        self.delayed = DelayedMessages(state, settlement, self.delay_ends)
        self.dead_letter_places = DeadLetterPlaces(state, self.exchanges)
        self.dead_letter_queue = DeadLetterQueue(state, appending, removal, self._dead_lettering)
        self.offsets = Offsets(state, hooks, settlement, rebuilding, self.subscriptions)
        self.retention = Retention(
            state, timers, settlement, self.keeping, appending, self.offsets, now_ms
        )
        self.compacting = Compacting(state, timers, hooks, settlement, self.reading)
        self.leases = Leases(state, timers, hooks, self.retention)
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
        stamped = StampedPublishing(state, appending, self.transactions, ledger)
        self.staging = Staging(
            state, self.pressure, self.topics, stamped, self.transactions, ledger
        )
        self.publishing = Publishing(
            state,
            appending,
            self._dead_lettering,
            Deduplication(hooks, self.reading),
            stamped,
            self.staging,
        )
        self.schedules = Schedules(state, timers, hooks, self.pressure, self.publishing)
        self.dispatching = Dispatching(state, settlement, removal)
        self.consumers = Consumers(state, self.subscriptions, self.settling, self.dispatching)
        self.receipts = Receipts(state, token_bytes(RECEIPT_KEY_BYTES))
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
            state, notes, rebuilding, self.subscriptions, self.topics, self.transactions
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
        upkeep: RetentionSettings | None = None,
        rebuild: bool = False,
    ) -> "Engine":
        """Recover a data directory and go on where it stopped; with ``rebuild``, where no snapshot
        can be read, with what segments and journal say of themselves."""
        notes, ledger = DeliveryNotes(), Ledger()
        store = Store.open(disk, settings, [notes, ledger], progress, rebuild=rebuild)
        try:
            engine = cls(store, notes, ledger, now_ms, marks, upkeep)
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
        self.groups.restore(now_ms)
        self.leases.restore(now_ms)
        self.staging.restore()
        self.transactions.resume(now_ms)
        self.staging.resume()
        self.namespaces.finish_deletions()
        if rebuild:
            self.topics.adopt_orphans(now_ms)
        self.topics.drop_orphans()
        for topic in self.state.topics.values():
            # When it was last used is not kept: its time begins anew.
            topic.last_used_ms = now_ms
            self.topics.arm_idle(topic, now_ms)
            self.topics.arm_compaction(topic, now_ms)
            self._resizing.watch(topic, now_ms)
        self.schedules.restore(now_ms)

    def close(self) -> None:
        self.store.close()

    # --- time, pressure, effects ---

    def advance(self, now_ms: int) -> None:
        """Do what is due."""
        self.timers.advance(now_ms)
        self.retention.run_due(now_ms)
        if self._dead_lettering.has_pending:
            self._dead_lettering.move_some()
        if self.compacting.has_pending:
            self.compacting.compact_some()
        if self.staging.has_pending:
            self.staging.go_on(now_ms)
        if self.state.quiet:
            self.groups.hand_over_quiet(now_ms)

    def next_due_ms(self) -> int | None:
        """When ``advance`` next has something to do; a time that has passed means now."""
        if self.retention.has_due() or self._has_work:
            return self.state.wheel.now_ms
        return self.state.wheel.next_due_ms()

    @property
    def has_more(self) -> bool:
        """Whether ``advance`` or ``dispatch`` may have more to do already."""
        return bool(self.state.dirty) or self._has_work

    @property
    def _has_work(self) -> bool:
        """Whether there is more of what ``advance`` does a slice at a time."""
        pending = self._dead_lettering.has_pending or self.compacting.has_pending
        return pending or self.staging.has_pending or bool(self.state.quiet)

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

    def take_notices(self) -> list[MemberNotice]:
        """For members of groups; who is told of them first gets no message of a partition that it
        does not know to have."""
        notices, self.state.notices = self.state.notices, []
        return notices

    def take_effects(self) -> list[Effect]:
        effects, self.state.effects = self.state.effects, []
        return effects
