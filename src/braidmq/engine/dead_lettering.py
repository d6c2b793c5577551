"""Dead-lettering: messages that were given up move to where their topic wants them."""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

from braidmq.engine.appending import OFFSET_MAX, Appending
from braidmq.engine.dead_letters import DeadLetterTargets
from braidmq.engine.effects import DeadLettered
from braidmq.engine.envelope import Death
from braidmq.engine.hooks import Hooks
from braidmq.engine.settlement import Settlement, forget_keys
from braidmq.engine.state import EngineState
from braidmq.engine.topics import PartitionView, Topic
from braidmq.record.batch import RecordBatch
from braidmq.storage.entries import Settled
from braidmq.storage.partition_log import Run

logger = logging.getLogger(__name__)

MOVED_AT_ONCE = 250
"""Dead letters are written one by one, each with its history. More of them would hold up others
too long: they take turns with those."""


class DeadRun:
    """Messages of a view that died in one way, after so many deliveries."""

    __slots__ = ("attempts", "error", "now_ms", "reason", "start", "stop", "view")

    def __init__(
        self,
        view: PartitionView,
        start: int,
        stop: int,
        reason: str,
        attempts: int,
        error: str,
        now_ms: int,
    ) -> None:
        self.view = view
        self.start = start
        self.stop = stop
        self.reason = reason
        self.attempts = attempts
        self.error = error
        self.now_ms = now_ms

    def cut(self, stop: int) -> "DeadRun":
        """Those below an offset."""
        return DeadRun(
            self.view, self.start, stop, self.reason, self.attempts, self.error, self.now_ms
        )


class DeadLettering:
    def __init__(
        self,
        state: EngineState,
        hooks: Hooks,
        settlement: Settlement,
        appending: Appending,
        targets: DeadLetterTargets,
    ) -> None:
        self._state = state
        self._settlement = settlement
        self._appending = appending
        self._targets = targets
        self._pending: dict[int, deque[DeadRun]] = {}
        """By view, dead messages that are still to be moved."""
        hooks.recounting.append(self.finish)

    def move(self, dead: DeadRun) -> None:
        """Move messages to where their topic wants them, in one step with settling them; many
        of them in slices, and those of a view in the order in which they died.

        Until then they are in no state, but not settled either: a crash brings them back.
        """
        view, count = dead.view, dead.stop - dead.start
        if not view.partition.topic.policy.dead_letter.has_place:
            # Nobody reads what goes nowhere.
            self._discard(dead, count)
        elif count > MOVED_AT_ONCE or view.id in self._pending:
            self._pending.setdefault(view.id, deque()).append(dead)
        else:
            self._move_now(dead)

    def is_moving(self, view: PartitionView, offset: int) -> bool:
        """Whether a message of a view has died there and waits to be moved."""
        return any(each.start <= offset < each.stop for each in self._pending.get(view.id, ()))

    @property
    def has_pending(self) -> bool:
        """Whether messages wait to be moved: ``move_some`` does."""
        return bool(self._pending)

    def move_some(self) -> None:
        """A slice of what waits; each view has its turn."""
        left = MOVED_AT_ONCE
        while self._pending and left > 0:
            number = next(iter(self._pending))
            waiting = self._pending.pop(number)
            dead = waiting[0]
            # A view may have gone with its subscription, and with it whoever wanted them.
            if self._state.views.get(number) is not dead.view:
                continue
            stop = min(dead.stop, dead.start + left)
            left -= stop - dead.start
            self._move_now(dead.cut(stop))
            dead.start = stop
            if dead.start == dead.stop:
                waiting.popleft()
            if waiting:
                self._pending[number] = waiting

    def finish(self, view: PartitionView) -> None:
        """Before the messages of a view are counted again."""
        for dead in self._pending.pop(view.id, ()):
            self._move_now(dead)

    def _move_now(self, dead: DeadRun) -> None:
        view, start, stop = dead.view, dead.start, dead.stop
        topic, reason = view.partition.topic, dead.reason
        death = Death(
            reason=reason,
            namespace=topic.namespace,
            topic=topic.name,
            partition=view.partition.number,
            attempts=dead.attempts,
            subscription=view.subscription.name,
            at_ms=self._state.wall_ms(dead.now_ms),
            error=dead.error,
        )
        settled = (view.subscription.id, view.partition_id, start, stop)
        runs = list(view.partition.runs(start, stop))
        count = sum([run.stop - run.first for run in runs])
        if not self._append_dead(topic, runs, death, dead.now_ms, [settled], view):
            self._discard(dead, count)
            return
        if logger.isEnabledFor(logging.DEBUG):
            _log_deaths(view, start, stop, reason, moved=True)
        view.subscription.dead_lettered += count
        self._state.totals.of(topic.namespace).dead_lettered[reason] += count
        if not view.subscription.journaled:
            view.state.settled.add(start, stop)
        self._settlement.release(view.partition)
        if view.subscription.keys is not None:
            forget_keys(view, [(start, stop)])

    def _discard(self, dead: DeadRun, count: int) -> None:
        """There is nowhere to put them."""
        view = dead.view
        if logger.isEnabledFor(logging.DEBUG):
            _log_deaths(view, dead.start, dead.stop, dead.reason, moved=False)
        self._state.totals.of(view.partition.topic.namespace).dropped[dead.reason] += count
        self._settlement.settle(view, [(dead.start, dead.stop)])

    def _append_dead(
        self,
        topic: Topic,
        runs: Sequence[Run],
        death: Death,
        now_ms: int,
        settled: Sequence[Settled],
        view: PartitionView | None,
    ) -> bool:
        """Publish dead copies; False when there is nowhere to put them."""
        journaled = view is None or view.subscription.journaled
        groups = self._targets.group(topic, runs, death, now_ms)
        if not groups:
            return False
        # Each settles its own share: a crash between two of them repeats neither.
        cuts = [group.first_offset for group in groups[1:]]
        for group, share in zip(groups, _shares(settled, cuts), strict=True):
            self._appending.append(
                group.targets, group.batch, now_ms, settled=share if journaled else ()
            )
        webhook = topic.policy.dead_letter.alert_webhook
        if webhook is not None:
            for group in groups:
                names = tuple([target.topic.name for target in group.targets])
                self._state.effects.append(
                    DeadLettered(webhook, death, names, group.first_offset, group.batch.count)
                )
        return True

    def move_unpublished(self, topic: Topic, batch: RecordBatch, first: int, now_ms: int) -> None:
        """Records that the topic refuses because it is full."""
        death = Death(
            reason="maxlen",
            namespace=topic.namespace,
            topic=topic.name,
            partition=-1,
            attempts=0,
            subscription="",
            at_ms=self._state.wall_ms(now_ms),
        )
        if self._append_dead(topic, [Run(batch, first, batch.count)], death, now_ms, [], None):
            moved = self._state.totals.of(topic.namespace).dead_lettered
            moved[death.reason] += batch.count - first


def _log_deaths(view: PartitionView, start: int, stop: int, reason: str, moved: bool) -> None:
    topic = view.partition.topic
    facts = {
        "namespace": topic.namespace,
        "topic": topic.name,
        "partition": view.partition.number,
        "first_offset": start,
        "last_offset": stop - 1,
        "subscription": view.subscription.name,
        "reason": reason,
    }
    logger.debug("messages dead-lettered" if moved else "messages given up", extra=facts)


def _shares(settled: Sequence[Settled], cuts: Sequence[int]) -> Iterator[Sequence[Settled]]:
    """Settled ranges, cut in pieces at some offsets."""
    for low, high in pairwise([0, *cuts, OFFSET_MAX]):
        yield [
            (subscription, partition, max(start, low), min(stop, high))
            for subscription, partition, start, stop in settled
            if start < high and low < stop
        ]
