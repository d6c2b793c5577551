"""The engine in an event loop: what every gateway shares.

Gateways call engine verbs as their sockets are read. Everything that follows from them happens once
per turn of the loop, in ``_turn``: timers, deliveries, effects, one write for each connection that
has something to say, and the journal's commit. Who reads when nothing else goes on may have the
turn at once (``hurry``).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from time import monotonic
from typing import Protocol

from braidmq.engine.effects import Effect, Level, PressureChanged
from braidmq.engine.engine import Engine
from braidmq.engine.pressure import Watermarks
from braidmq.engine.settings import RetentionSettings
from braidmq.engine.topics import Topic
from braidmq.model.clock import Clock
from braidmq.model.errors import StorageFailed
from braidmq.model.ids import Lsn
from braidmq.net.admission import Admission
from braidmq.net.input_budget import InputBudget
from braidmq.net.lingering import Lingering
from braidmq.net.tcp import Poller
from braidmq.net.unsent_output import Unsent
from braidmq.record.batch import RecordBatch
from braidmq.runtime.engine_view import EngineView
from braidmq.runtime.login_ends import LoginEnds
from braidmq.runtime.memory_trim import MemoryTrim
from braidmq.runtime.pauses import Pauses
from braidmq.runtime.pipeline_runs import Pipelines
from braidmq.runtime.publish_batcher import PendingBatch, PublishBatcher, Publisher
from braidmq.runtime.rate_limits import RateLimits
from braidmq.runtime.sessions import Sessions
from braidmq.runtime.sliced_work import SlicedWork, Steps
from braidmq.runtime.turns import Turns
from braidmq.runtime.usage import Usage, UsageSettings
from braidmq.runtime.wheel_waits import WheelWaits
from braidmq.storage.journal import Waiter
from braidmq.storage.store import Store
from braidmq.storage.workers import Workers

logger = logging.getLogger(__name__)

LAZY_COMMIT_S = 0.05
"""Acknowledgements and delivery notes that nobody waits for go to disk at the latest after twice
this: a commit that others wait for takes them along, and then nothing is done for them."""

DEFERRED_S = 0.005
"""Deferred work runs within this time even if no turn comes."""

PRESSURE_EVERY_S = 0.5

CLOCK_SET_MS = 200
"""Less is two clocks read one after the other. They run at one speed: NTP slews both."""

QUICK_WRITES_MAX = 8
"""So many writes take no longer than waking the committer does, and go before it. More are better
done while it works."""


ALONE_S = 0.00005
"""When no turn was for so long, whoever is read now is not one of many who are read together."""


class Flushable(Protocol):
    def flush(self) -> None: ...


class DiskWorkers(Protocol):
    """Who commits the journal and carries out checkpoints."""

    def wake(self) -> None: ...
    def stop(self) -> None: ...


class Deferring(Protocol):
    def run_deferred(self) -> None:
        """Do now what could wait."""


EffectListener = Callable[[Effect], None]


class NodeLoop:
    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        workers: Callable[[Store, asyncio.AbstractEventLoop], DiskWorkers] = Workers,
        usage: UsageSettings | None = None,
    ) -> None:
        self._engine = engine
        self.view = EngineView(engine)
        """The engine, for who only looks."""
        self.clock = clock
        self.loop = loop
        self.listeners: list[EffectListener] = []
        self.sessions = Sessions()
        self.admission = Admission()
        self.input_budget = InputBudget(loop.call_soon, engine.pressure.marks.memory_block_bytes)
        """Input that is not complete, of all connections."""
        engine.pressure.input_bytes = self._input_bytes
        engine.pressure.unsent_bytes = self._unsent_bytes
        self.lingering = Lingering(loop)
        self.poller = Poller(loop)
        self.unsent = Unsent(engine.pressure.marks.memory_block_bytes)
        """Output that peers do not take, of all connections."""
        self.poller.unsent = self.unsent
        self._trimming = MemoryTrim()
        self.pipelines = Pipelines(engine.store)
        self.usage = Usage(engine.store, clock.wall_ms(), usage)
        # A turn is nobody's doing, whoever happened to ask for it.
        self._context = Context()
        self._workers = workers(engine.store, loop)
        self._batcher = PublishBatcher(engine)
        self._work = SlicedWork()
        self.turns = Turns()
        self._turn_due = False
        """As ``turns`` has it, where it is asked for often."""
        self._now_ms = 0
        self._turn_ms = 0
        """When the turn that is due began."""
        self.turn_s = loop.time()
        """When the last turn became due, by the loop's clock: for who need not know better."""
        self._flushable: dict[Flushable, None] = {}
        self._deferring: list[Deferring] = []
        self._deferred_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._lazy: asyncio.TimerHandle | None = None
        self._lazy_lsn = 0
        self._disk_free_bytes = engine.store.disk.free_bytes("")
        self.login_ends = LoginEnds(self, engine, clock)
        self._pauses = Pauses(loop, self.schedule_turn)
        self._pressure_timer = loop.call_later(PRESSURE_EVERY_S, self._check_pressure)
        self.on_pressure(_log_pressure)
        waits = WheelWaits(engine, loop, self.now_ms, self.schedule_turn)
        self.rates = RateLimits(self.now_ms, waits.after)
        self.rates.on_change.append(self.turns.changed)
        self.schedule_turn()

    def replace_marks(self, marks: Watermarks) -> None:
        """Hold publishers back at these from now on."""
        self._engine.pressure.marks = marks
        self.input_budget.resize(marks.memory_block_bytes)
        self.unsent.resize(marks.memory_block_bytes)

    def replace_upkeep(self, upkeep: RetentionSettings) -> None:
        self.engine().retention.replace(upkeep, self.now_ms())

    def now_ms(self) -> int:
        """When that was read which is handled now: once for all that one read brought."""
        return self._now_ms if self._turn_due else self.clock.now_ms()

    def read_clock(self) -> int:
        """Somebody was read. Delays and TTLs of what it sent count from now, however long ago the
        turn began: one that counted from there would be over too early by as much."""
        self._now_ms = self.clock.now_ms()
        return self._now_ms

    def wall_ms(self) -> int:
        """What people call the time: for what is shown, and for dates. Never for a duration."""
        return self.clock.wall_ms()

    def schedule_turn(self) -> None:
        """Something is done with the engine: a turn is due."""
        if not self._turn_due:
            self.begin()
            self.end()

    def begin(self) -> bool:
        """Somebody was read. Whether it is the first who has something to do since the last turn:
        then it must call ``hurry`` or ``end`` when it is done."""
        now_ms = self.read_clock()
        if self._turn_due:
            return False
        self._set_due(True)
        self._turn_ms = now_ms
        self.turn_s = self.loop.time()
        return True

    def _set_due(self, due: bool) -> None:
        self._turn_due = self.turns.is_due = due

    def engine(self) -> Engine:
        """The engine, for who does something with it, now: what was gathered is appended first, and
        a turn follows. There is no other way to it, so that neither can be forgotten."""
        if self._batcher.is_open:
            self.flush_batch()
        if not self._turn_due:
            self.schedule_turn()
        return self._engine

    def publish_batched(
        self, topic: Topic, durable: bool, batch: RecordBatch, publisher: Publisher | None
    ) -> None:
        """Publish, together with what else goes to this topic just now."""
        self._await(self._batcher.add(topic, durable, batch, publisher, self.now_ms()))
        self.schedule_turn()

    def flush_batch(self) -> None:
        """Append what was gathered, for who has to see it; ``engine`` does so by itself."""
        self._await(self._batcher.flush(self.now_ms()))

    def _await(self, appended: tuple[PendingBatch, Lsn | None] | None) -> None:
        if appended is not None and appended[0].tickets:
            self.when_durable(appended[1], appended[0].confirmed)

    def flush_later(self, connection: Flushable) -> None:
        """A connection has output: it is written at the end of this turn, in one piece."""
        self._flushable[connection] = None
        self.schedule_turn()

    def defer(self, who: Deferring) -> None:
        """It has something to do that the next turn is soon enough for."""
        self._deferring.append(who)
        if self._deferred_timer is None:
            self._deferred_timer = self.loop.call_later(DEFERRED_S, self._deferred_due)

    def _deferred_due(self) -> None:
        self._deferred_timer = None
        if self._deferring:
            self.schedule_turn()

    def _run_deferred(self) -> None:
        deferring, self._deferring = self._deferring, []
        for who in deferring:
            who.run_deferred()

    def when_durable(self, lsn: Lsn | None, waiter: Waiter) -> None:
        """Call back once an entry is on disk, or can't be; at once for what needs no disk, or is
        there. Who has to keep an order among its answers has ``Answers`` for it."""
        if lsn is None or lsn <= self._engine.store.journal.confirmed_lsn:
            waiter(None)
        else:
            self._engine.store.wait(lsn, waiter)
            self.schedule_turn()

    def pending_lsn(self) -> Lsn | None:
        """When this is durable all that was done so far is; None when it is already."""
        self.flush_batch()
        journal = self._engine.store.journal
        if journal.failure is not None or journal.last_lsn > journal.confirmed_lsn:
            return journal.last_lsn
        return None

    def let_go(self, release: Callable[[], None]) -> None:
        """Give back what a peer had that is gone. A journal that has failed takes no note of it;
        then the peer is gone all the same, and the restart that the node needs gives it back."""
        self.flush_batch()
        try:
            release()
        except StorageFailed:
            if self._engine.store.failure() is None:
                raise

    def letting_go(self, steps: Steps) -> Iterator[object]:
        """The same in steps."""
        try:
            yield from steps
        except StorageFailed:
            if self._engine.store.failure() is None:
                raise

    def _promise(self) -> tuple[asyncio.Future[None], Callable[[Exception | None], None]]:
        """A future, and how to say that it is done or has failed; nobody may wait for it then."""
        future: asyncio.Future[None] = self.loop.create_future()

        def done(failure: Exception | None) -> None:
            if future.done():
                return
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        return future, done

    async def durable(self, lsn: Lsn | None) -> None:
        """Wait until an entry is on disk."""
        future, done = self._promise()
        self.when_durable(lsn, done)
        await future

    async def work(self, steps: Steps) -> None:
        """Have work done that may take long, a slice in each turn; raises what it raises."""
        future, done = self._promise()
        self._work.add(steps, done)
        self.schedule_turn()
        await future

    def work_in_background(self, steps: Steps, what: str) -> None:
        """The same where nobody waits for it."""

        def done(failure: Exception | None) -> None:
            if failure is not None:
                logger.error("%s failed", what, exc_info=failure)

        self._work.add(steps, done)
        self.schedule_turn()

    def hurry(self) -> None:
        """Instead of ``end``: have the turn now, unless it is one of many."""
        if monotonic() - self.turns.served_s > ALONE_S:
            self._turn()
        else:
            self.end()

    def end(self) -> None:
        """The turn comes once everybody is read who can be."""
        self.loop.call_soon(self._turn, context=self._context)

    def _turn(self) -> None:
        engine = self._engine
        # What is due is so by when the turn began, which is before all that was read since: a
        # message that lives for a millisecond is not expired by how long the turn takes.
        now_ms = self._turn_ms if self._turn_due else self.clock.now_ms()
        try:
            self.flush_batch()
            if self._deferring:
                self._run_deferred()
            pressure = engine.pressure
            held_bytes = engine.store.memory.resident + self.input_budget.held_bytes
            held_bytes += self.unsent.held_bytes
            if pressure.level or held_bytes >= pressure.marks.memory_slow_bytes:
                engine.check_pressure(self._disk_free_bytes)
            if not self._pauses.is_catching_up(self.turn_s):
                engine.advance(now_ms)
            if engine.state.effects:
                # Whose time is over hears of it before it says anything.
                self._tell(engine.take_effects())
            if len(self._work):
                self._work.run()
            self._dispatch(now_ms)
            if len(self._flushable) > QUICK_WRITES_MAX:
                self._commit()
                self._set_due(False)  # whoever now waits for the disk needs another one
                self._flush()
            else:
                self._flush()
                self._commit()
        finally:
            self._turn_due = False
            self.turns.end()
        waiting = self._flushable or self._batcher.is_open or len(self._work)
        if waiting or engine.has_more or engine.state.effects or engine.state.notices:
            self.schedule_turn()
        self._arm(now_ms)

    def _dispatch(self, now_ms: int) -> None:
        engine = self._engine
        if engine.state.notices:
            self._tell(engine.take_notices())
        for delivery in engine.dispatching.dispatch(now_ms):
            receiver = delivery.consumer.receiver
            assert receiver is not None  # who pulls is paused or passive
            receiver.deliver(delivery)
        self._tell(engine.take_effects())

    def _tell(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            for listener in self.listeners:
                listener(effect)

    def _flush(self) -> None:
        flushable, self._flushable = self._flushable, {}
        for connection in flushable:
            connection.flush()

    def _commit(self) -> None:
        """Wake the committer when somebody waits; what nobody waits for may gather a while."""
        journal = self._engine.store.journal
        if journal.is_awaited or self._engine.store.wants_checkpoint():
            self._workers.wake()
        is_behind = journal.last_lsn > journal.durable_lsn and journal.failure is None
        if is_behind and self._lazy is None:
            self._lazy_lsn = journal.last_lsn
            self._lazy = self.loop.call_later(LAZY_COMMIT_S, self._commit_lazily)

    def _commit_lazily(self) -> None:
        self._lazy = None
        if self._engine.store.journal.durable_lsn < self._lazy_lsn:
            self._workers.wake()
        self._commit()

    def _arm(self, now_ms: int) -> None:
        """One loop timer for the whole wheel, set to its next tick."""
        if self._pauses.is_catching_up(self.turn_s):
            return  # a turn comes when that is over
        due = self._engine.next_due_ms()
        if due is None or (self._timer is not None and self._timer_due_ms <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_ms = due
        self._timer = self.loop.call_later(max(due - now_ms, 0) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.schedule_turn()

    def _check_clock(self) -> None:
        """Tell the engine when the wall clock was set: dates are by that one."""
        lead_ms = self.clock.wall_ms() - self.clock.now_ms()
        by_ms = lead_ms - self._engine.state.clock.lead_ms
        if abs(by_ms) >= CLOCK_SET_MS:
            logger.warning("the wall clock was set", extra={"by_ms": by_ms})
            self._engine.message_times.clock_set(lead_ms, now_ms=self.now_ms())
            self.schedule_turn()

    def is_catching_up(self) -> bool:
        """Whether nobody's silence counts yet: the node could not run, and input waits."""
        return self._pauses.is_catching_up(self.loop.time())

    def _check_pressure(self) -> None:
        self.is_catching_up()  # it looks at the time
        self._check_clock()
        self._disk_free_bytes = self._engine.store.disk.free_bytes("")
        self._trimming.look(self._engine.store.memory.resident + self.input_budget.held_bytes)
        self._engine.check_pressure(self._disk_free_bytes)
        self._engine.state.quotas.look()
        self._engine.reclaim()
        is_rolled = self._roll_usage()
        if self._engine.store.wants_checkpoint():
            self._workers.wake()
        self._pressure_timer = self.loop.call_later(PRESSURE_EVERY_S, self._check_pressure)
        if is_rolled or self._engine.state.effects:
            self.schedule_turn()

    def _roll_usage(self, *, at_once: bool = False) -> bool:
        if self._engine.store.failure() is not None:
            return False
        return self.usage.roll(self.clock.wall_ms(), at_once=at_once)

    def _input_bytes(self) -> int:
        return self.input_budget.held_bytes

    def _unsent_bytes(self) -> int:
        return self.unsent.held_bytes

    def is_blocked(self) -> bool:
        """Whether nothing more may be published, by how things are now."""
        self._engine.check_pressure(self._disk_free_bytes)
        return self._engine.pressure.level is Level.BLOCKED

    def on_pressure(self, listener: Callable[[PressureChanged], None]) -> None:
        def only_pressure(effect: Effect) -> None:
            if isinstance(effect, PressureChanged):
                listener(effect)

        self.listeners.append(only_pressure)

    def stop(self) -> None:
        """After the gateways have let go: no more turns, and the threads end."""
        self._roll_usage(at_once=True)
        for timer in (self._timer, self._lazy, self._deferred_timer, self._pressure_timer):
            if timer is not None:
                timer.cancel()
        self._pauses.stop()
        self.lingering.stop()
        self.poller.close()
        self._workers.stop()


def _log_pressure(changed: PressureChanged) -> None:
    level = logging.INFO if changed.level is Level.NORMAL else logging.WARNING
    logger.log(
        level,
        "pressure changed",
        extra={"pressure": changed.level.name.lower(), "reason": changed.reason},
    )
