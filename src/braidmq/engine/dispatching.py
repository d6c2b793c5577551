"""Handing out messages: to whom, how many, and from where.

Python runs once per run of messages: a consumer alone with a backlog gets it in as few runs as its
credit allows. Several consumers take turns; the more there is to hand out, the longer a turn.
"""

from collections.abc import Iterator
from typing import Final, TypeVar

from braidmq.engine.barriers import lift_barriers
from braidmq.engine.effects import ActiveConsumerChanged
from braidmq.engine.key_queues import KeyQueues
from braidmq.engine.key_reading import KEY_WINDOW, Allowance, KeyLook, note_waiting, ready_runs
from braidmq.engine.key_slots import KeySlots
from braidmq.engine.lanes import LaneScheduler
from braidmq.engine.partitioner import NO_SLOT
from braidmq.engine.removal import Removal
from braidmq.engine.settlement import Settlement
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.states import State
from braidmq.engine.topics import Consumer, Delivery, Mode, PartitionView, Subscription
from braidmq.model.errors import PartitionQuarantined
from braidmq.record.batch import FLAG_TIMED
from braidmq.storage.partition_log import Run

RUN_BYTES_MAX: Final = 1 << 20
"""One delivery carries about this much: a consumer's socket gets it in one write."""

RUN_MESSAGES_MAX: Final = 4096

LOOKS_MAX: Final = 20_000
"""Consumers that are asked for their room in one go, round after round: many that have little take
several."""

DELIVERIES_MAX: Final = 1000
"""Runs that are handed out in one go. Each is one to make, and to write for its consumer, however
few its messages are: of a crowd of consumers, or of queues, not all are served in one turn."""

TURNS = 8
"""A backlog is handed to several consumers in about this many turns each."""

ATTEMPTS_MAX: Final = 0xFFFF
"""Where counting deliveries ends: the kernel and the journal keep 16 bits of it."""

KEYS_READ_MAX = 16_384
"""Messages whose keys are read in one go, where key order and priorities are both kept: after a
restart that is the whole backlog."""

# Looking a member up in its enum costs more than the kernel takes for a whole run.
IN_FLIGHT: Final = int(State.IN_FLIGHT)
VISIBILITY: Final = int(TimerKind.VISIBILITY)
SINGLE_ACTIVE: Final = Mode.SINGLE_ACTIVE
EXCLUSIVE: Final = Mode.EXCLUSIVE
ASSIGNED: Final = Mode.ASSIGNED
KEY_ORDERED: Final = Mode.KEY_ORDERED
TIMED: Final = FLAG_TIMED
T = TypeVar("T")


class Dispatching:
    def __init__(self, state: EngineState, settlement: Settlement, removal: Removal) -> None:
        self._state = state
        self._settlement = settlement
        self._removal = removal
        self._again: list[Subscription] = []
        self._served = 0
        """Counts who was served, to know who waits longest."""

    def dispatch(self, now_ms: int) -> list[Delivery]:
        """What can be pushed now; a large backlog takes several calls (``Engine.has_more``)."""
        deliveries: list[Delivery] = []
        state = self._state
        while state.dirty and len(deliveries) < DELIVERIES_MAX:
            while state.dirty and len(deliveries) < DELIVERIES_MAX:
                subscription = next(iter(state.dirty))
                del state.dirty[subscription]
                self._serve(subscription, now_ms, deliveries)
            if state.crowded:
                # What is dropped may be a dead letter that another consumer waits for.
                self._drop_rest(now_ms)
        for subscription in self._again:
            state.mark_dirty(subscription)
        self._again.clear()
        return deliveries

    def _drop_rest(self, now_ms: int) -> None:
        """Hold what consumers left against the limits; who is not done serving has time."""
        crowded, self._state.crowded = self._state.crowded, {}
        for subscription in crowded:
            gate = subscription.gate
            is_behind = subscription in self._state.dirty or subscription in self._again
            if is_behind or (gate is not None and gate.is_syncing):
                self._state.crowded[subscription] = None
            else:
                self._removal.drop_beyond_limits(subscription, now_ms)

    def pull(
        self, consumer: Consumer, limit: int, now_ms: int, bytes_max: int = RUN_BYTES_MAX
    ) -> list[Delivery]:
        """What one consumer asked for, at most ``limit`` messages and about ``bytes_max``. Raises
        PartitionQuarantined where nothing can be had any more."""
        out: list[Delivery] = []
        self._pull(consumer, limit, now_ms, bytes_max, out)
        if out:
            self._served += 1
            consumer.served = self._served
        topic = consumer.subscription.topic
        if not out and topic.is_quarantined:
            raise topic.quarantine_error()
        return out

    def watch(self, subscription: Subscription) -> None:
        """Say once (``SubscriptionReady``) when a pull may find something."""
        subscription.watched = True

    def with_ready(self, subscription: Subscription) -> list[Consumer]:
        """Where partitions are assigned: who has some with messages that are ready."""
        if subscription.barriers is not None:
            lift_barriers(subscription)
        owned = subscription.assignment.items()
        ready = (each for number, each in owned if subscription.views[number].state.ready)
        return list(dict.fromkeys(ready))

    def _pull(
        self, consumer: Consumer, limit: int, now_ms: int, bytes_max: int, out: list[Delivery]
    ) -> None:
        subscription = consumer.subscription
        if subscription.barriers is not None:
            lift_barriers(subscription)
        if not self._may_serve(subscription, consumer):
            return
        mode = subscription.mode
        if mode is KEY_ORDERED:
            if self._serve_by_key(subscription, now_ms, out, only=consumer, limit=limit):
                self._state.mark_dirty(subscription)
            return
        strict = mode is SINGLE_ACTIVE and subscription.topic.policy.ordering == "strict"
        if strict and consumer.passive and subscription.in_flight:
            # Who pulls may be anybody, each time: the next comes after the answers for the last.
            return
        for view in self._views_for(subscription, consumer):
            while limit > 0 and bytes_max > 0 and (consumer.room > 0 or consumer.auto_ack):
                before = len(out)
                limit -= self._hand_out(view, consumer, limit, now_ms, out, bytes_max)
                if len(out) == before:
                    break
                bytes_max -= sum(_size(delivery) for delivery in out[before:])
        if out:
            subscription.rotor += 1

    # --- who is next ---

    def _serve(self, subscription: Subscription, now_ms: int, out: list[Delivery]) -> None:
        seen = len(out)
        self._serve_all(subscription, now_ms, out)
        if len(out) > seen:
            self._served += 1
            subscription.served = self._served

    def _serve_all(self, subscription: Subscription, now_ms: int, out: list[Delivery]) -> None:
        if subscription.barriers is not None:
            lift_barriers(subscription)
        if subscription.mode is KEY_ORDERED:
            before, seen = -1, len(out)
            # One look reaches no further than the window; expired messages fill it too.
            while before != subscription.ready:
                before = subscription.ready
                more = self._serve_by_key(subscription, now_ms, out)
                if len(out) - seen >= KEY_WINDOW or more:
                    self._again.append(subscription)
                    return
            return
        total, size, seen, looks = 0, 0, len(out), 0
        begun = seen
        while subscription.ready:
            progress = 0
            for consumer, turn in self._turns(subscription):
                given = self._serve_one(subscription, consumer, turn, now_ms, out)
                if given:
                    # Only then: single messages would all go to whoever is first otherwise.
                    subscription.rotor += 1
                progress += given
            if not progress:
                return
            total += progress
            while seen < len(out):
                size += _size(out[seen])
                seen += 1
            looks += len(subscription.consumers)
            if (
                total >= RUN_MESSAGES_MAX
                or size >= RUN_BYTES_MAX
                or looks >= LOOKS_MAX
                or seen - begun >= DELIVERIES_MAX
            ):
                # Others have their turn first, and sockets a chance to say that they are full.
                self._again.append(subscription)
                return

    def _turns(self, subscription: Subscription) -> list[tuple[Consumer, int]]:
        """The consumers that may be served, each with the length of its turn.

        Of several, those of the highest priority that have room; the rotor moves on, so that the
        first of one round is the last of the next.
        """
        able = [
            each
            for each in subscription.consumers
            if self._may_serve(subscription, each) and self._has_room(each)
        ]
        if len(able) <= 1 or subscription.mode is ASSIGNED:
            # Of assigned partitions nobody else may have what is theirs: there is no precedence.
            return [(each, RUN_MESSAGES_MAX) for each in able]
        highest = max(each.priority for each in able)
        able = [each for each in able if each.priority == highest]
        if len(able) == 1:
            return [(able[0], RUN_MESSAGES_MAX)]
        ready = subscription.ready
        turn = max(1, min(ready // (TURNS * len(able)), RUN_MESSAGES_MAX))
        start = subscription.rotor % len(able)
        # Each gets one at least: of a crowd there is nothing left for the others.
        served = min(ready, DELIVERIES_MAX)
        return [(each, turn) for each in (able[start:] + able[:start])[:served]]

    def _has_room(self, consumer: Consumer) -> bool:
        if consumer.room > 0:
            return True
        # The credit may be shared with consumers of other subscriptions: whose answer makes room
        # is not known.
        for credit in consumer.credits:
            if credit.room <= 0:
                credit.awaited[consumer.subscription] = None
        return False

    def _may_serve(self, subscription: Subscription, consumer: Consumer) -> bool:
        mode = subscription.mode
        if mode is SINGLE_ACTIVE or mode is EXCLUSIVE:
            return subscription.active is consumer or consumer.passive
        return True

    def _views_for(self, subscription: Subscription, consumer: Consumer) -> list[PartitionView]:
        views = subscription.views
        if subscription.mode is ASSIGNED:
            owners = subscription.assignment
            mine = [view for view in views if owners.get(view.partition.number) is consumer]
            return _beginning_at(mine, consumer.next_partition) if len(mine) > 1 else mine
        if len(views) == 1:
            return views
        # Partitions take turns too, or the last would wait for the first to be empty.
        return _rotated(views, subscription.rotor)

    def _serve_one(
        self,
        subscription: Subscription,
        consumer: Consumer,
        turn: int,
        now_ms: int,
        out: list[Delivery],
    ) -> int:
        given = 0
        for view in self._views_for(subscription, consumer):
            if given >= turn:
                break
            given += self._hand_out(view, consumer, turn - given, now_ms, out)
        return given

    # --- handing out ---

    def _hand_out(
        self,
        view: PartitionView,
        consumer: Consumer,
        limit: int,
        now_ms: int,
        out: list[Delivery],
        bytes_max: int = RUN_BYTES_MAX,
    ) -> int:
        """One run of ready messages of a view; returns how many were handed out."""
        state = view.state
        if view.log.damage is not None:
            return 0
        while state.ready:
            limit = min(min(limit, consumer.room), RUN_MESSAGES_MAX)
            lane = 0
            if limit <= 0:
                return 0
            if view.lanes is not None:
                picked = view.lanes.pick(state, limit, now_ms)
                if picked is None:
                    return 0
                lane, limit = picked
            found = state.next_run(lane, limit)
            if found is None or self._held_back(view, found[0]):
                return 0
            gate = view.subscription.gate
            if gate is not None:
                ceiling = gate.ceiling(view, found[0], found[1])
                if ceiling <= found[0]:
                    return 0
                found = (found[0], min(found[1], ceiling), found[2])
            try:
                given = self._hand_out_run(view, consumer, found, now_ms, out, bytes_max)
            except PartitionQuarantined:
                return 0  # what other partitions have is handed out all the same
            if given and view.lanes is not None:
                view.lanes.served_from(lane, given, now_ms)
            if given:
                consumer.next_partition = view.partition.number + 1
                return given
            # All of them were expired or had no record any more: there may be others.
        return 0

    def _held_back(self, view: PartitionView, offset: int) -> bool:
        """Where order is promised, nothing overtakes a message that waits for its retry."""
        state = view.state
        if not state.waiting or view.partition.topic.policy.ordering == "none":
            return False
        return state.waits_below(offset)

    def _hand_out_run(
        self,
        view: PartitionView,
        consumer: Consumer,
        found: tuple[int, int, int],
        now_ms: int,
        out: list[Delivery],
        bytes_max: int,
    ) -> int:
        start, stop, attempts = found
        given = 0
        before = start
        for run in view.log.read(start, bytes_max, stop):
            end = min(run.stop, run.batch.find(stop))
            first_offset = run.batch.offset_at(run.first)
            if first_offset > start:
                self._settlement.skip(view, start, min(first_offset, stop))
            start = first_offset
            if end <= run.first:
                break
            run.stop = end
            if self._is_plain(view, run):
                given += self._give(view, consumer, run, attempts, now_ms, out)
            else:
                kept = attempts > 0 and view.subscription.keeps_sent
                parts = self._unbroken(view, run) if kept else self._living(view, run, now_ms)
                for live in parts:
                    given += self._give(view, consumer, live, attempts, now_ms, out)
            start = run.batch.offset_at(end - 1) + 1
            if start >= stop:
                break
        if start == before:
            self._settlement.skip(view, start, stop)
        return given

    def _is_plain(self, view: PartitionView, run: Run) -> bool:
        """Whether no record of a run can have expired and it has no gaps."""
        if run.batch.summary & TIMED or view.partition.topic.policy.ttl_ms:
            return False
        return run.batch.dense or _is_unbroken(run)

    def _living(self, view: PartitionView, run: Run, now_ms: int) -> Iterator[Run]:
        """The parts of a run that are not expired and have no gaps; the expired ones leave."""
        ttl_ms = view.partition.topic.policy.ttl_ms
        out = self._removal.expiring(view)
        try:
            for part in self._unbroken(view, run):
                if not ttl_ms and not part.batch.summary & TIMED:
                    yield part
                    continue
                for clock, stamped in view.partition.by_clock(part):
                    at = stamped.first
                    while at < stamped.stop:
                        count = clock.live_prefix(part.batch, at, stamped.stop, now_ms, ttl_ms)
                        piece = Run(part.batch, at, at + abs(count))
                        if count > 0:
                            yield piece
                        else:
                            self._removal.expire_into(out, piece)
                        at = piece.stop
        finally:
            # One step for all of them: they may be every other message.
            self._removal.expired(out, now_ms)

    def _unbroken(self, view: PartitionView, run: Run) -> Iterator[Run]:
        if _is_unbroken(run):
            yield run
            return
        batch, first = run.batch, run.first
        for index in range(first + 1, run.stop):
            gap_start, gap_stop = batch.offset_at(index - 1) + 1, batch.offset_at(index)
            if gap_start < gap_stop:
                yield Run(batch, first, index)
                self._settlement.skip(view, gap_start, gap_stop)
                first = index
        yield Run(batch, first, run.stop)

    def _give(
        self,
        view: PartitionView,
        consumer: Consumer,
        run: Run,
        attempts: int,
        now_ms: int,
        out: list[Delivery],
    ) -> int:
        batch, first, stop = run.batch, run.first, run.stop
        attempts = min(attempts, ATTEMPTS_MAX - 1)
        count = stop - first
        start = batch.offset_at(first)
        end = start + count  # it has no gaps
        subscription = view.subscription
        subscription.delivered += count
        if attempts:
            subscription.redelivered += count
        else:
            clock = view.partition.clock_at(start)
            self._state.ages.observe(batch, first, stop, now_ms, clock)
        if consumer.auto_ack:
            view.state.consume(batch, first, stop)
            subscription.acked += count
            out.append(Delivery(consumer, view, batch, first, stop, attempts + 1, start, end))
            self._settlement.settle(view, [(start, end)])
            return count
        deadline = now_ms + consumer.visibility_ms if consumer.visibility_ms else 0
        size = view.state.deliver(batch, first, stop, consumer.id, deadline, now_ms)
        consumer.took(count, size)
        if deadline:
            self._state.wheel.schedule(deadline, VISIBILITY, view.id, start, end)
        kept = deadline if consumer.outlives else 0
        self._settlement.note(view, start, end, attempts + 1, IN_FLIGHT, kept)
        out.append(Delivery(consumer, view, batch, first, stop, attempts + 1, start, end))
        return count

    # --- key order ---

    def _serve_by_key(
        self,
        subscription: Subscription,
        now_ms: int,
        out: list[Delivery],
        only: Consumer | None = None,
        limit: int = KEY_WINDOW,
    ) -> bool:
        """Returns whether there is more to do although nothing was handed out: the look read as
        much as it may."""
        keys = subscription.keys
        if keys is None:
            keys = subscription.keys = KeySlots()
            for view in subscription.views:
                if view.state.waiting:
                    keys.unnoted[view.partition.number] = view.state.in_state(State.WAITING)
        if keys.unnoted and not self._note_waiting(subscription, keys):
            return True
        candidates = [only] if only is not None else list(subscription.consumers)
        able = [each for each in candidates if self._has_room(each)]
        if not able:
            return False
        allowance = Allowance()
        for view in _beginning_at(subscription.views, subscription.next_partition):
            if view.log.damage is not None:
                continue
            seen = len(out)
            limit = self._serve_look(KeyLook(view, keys, only, allowance), now_ms, out, limit)
            if len(out) > seen:
                subscription.next_partition = view.partition.number + 1
        return allowance.exceeded or any(
            view.state.key_queues is not None
            and view.state.key_queues.unread.size > 0
            and view.log.damage is None
            for view in subscription.views
        )

    def _serve_look(self, look: KeyLook, now_ms: int, out: list[Delivery], limit: int) -> int:
        """Returns what is left of ``limit``."""
        try:
            if look.view.lanes is not None:
                return self._serve_lanes_by_key(look, look.view.lanes, now_ms, out, limit)
            self._materialise(look.view, look.allowance)
            return self._serve_view_by_key(look, now_ms, out, limit)
        except PartitionQuarantined:
            return limit

    def _note_waiting(self, subscription: Subscription, keys: KeySlots) -> bool:
        allowance = Allowance()
        for view in subscription.views:
            try:
                if view.log.damage is None and not note_waiting(view, keys, allowance):
                    return False
            except PartitionQuarantined:
                continue
        return True

    def _materialise(self, view: PartitionView, allowance: Allowance) -> None:
        """What is fresh gets entries of its own, as far as the window goes. That is an allowance
        for itself: what is read here has still to be looked at."""
        own = Allowance()
        while view.state.fresh and view.state.ready - view.state.fresh < KEY_WINDOW:
            if not own.grants():
                allowance.exceeded = True
                return
            found = view.state.next_run(0, KEY_WINDOW)
            if found is None or found[0] < view.state.cursor:
                # Explicit ones come first: go behind them to what is fresh.
                found = (view.state.cursor, min(view.state.end, view.state.ceiling), 0)
            runs = view.log.read(found[0], own.left, found[1])
            if not runs:
                self._settlement.skip(view, view.state.cursor, found[1])
                return
            run = runs[0]
            first_offset = run.batch.offset_at(run.first)
            if first_offset > view.state.cursor:
                self._settlement.skip(view, view.state.cursor, min(first_offset, found[1]))
            end = min(run.stop, run.batch.find(found[1]), run.first + KEY_WINDOW)
            if end > run.first:
                run = Run(run.batch, run.first, end)
                own.take(run)
                for part in self._unbroken(view, run):
                    view.state.materialise(part.batch, part.first, part.stop)

    def _serve_view_by_key(
        self, look: KeyLook, now_ms: int, out: list[Delivery], limit: int
    ) -> int:
        """Returns what is left of ``limit``."""
        view, keys = look.view, look.keys
        look.blocked = self._waiting_slots(view, keys)
        # Lanes that a topic had once may have left something.
        lanes = [lane for lane in view.state.lanes if lane is not None]
        passed = 0
        for start, stop in ready_runs(lanes, view.state.ceiling):
            for offset, slot in look.reader.slots(start, stop):
                if limit <= 0:
                    return 0
                if passed >= KEY_WINDOW:
                    return limit
                passed += 1
                if slot in look.blocked:
                    continue
                consumer = self._owner(view.subscription, keys, slot, look.only)
                if consumer is None:
                    look.blocked.add(slot)  # what follows in this slot must not overtake it
                    continue
                run = look.reader.record_at(offset)
                if run is None:
                    if look.allowance.exceeded:
                        return limit
                    continue
                given = self._give_keyed(view, keys, consumer, slot, run, now_ms, out)
                limit -= given
                passed -= 1
            if look.allowance.exceeded:
                return limit
        return limit

    def _waiting_slots(self, view: PartitionView, keys: KeySlots) -> set[int]:
        """What waits for its retry holds back what follows it."""
        if not view.state.waiting:
            return set()
        number = view.partition.number
        if view.state.waiting < len(keys.slot_of):
            return {
                keys.slot_of[number, offset]
                for start, stop in view.state.in_state(State.WAITING)
                for offset in range(start, stop)
                if (number, offset) in keys.slot_of
            }
        return {
            slot
            for (partition, offset), slot in keys.slot_of.items()
            if partition == number and self._waits(view, offset)
        }

    def _waits(self, view: PartitionView, offset: int) -> bool:
        found = view.state.look(offset)
        return found is not None and found[0] == State.WAITING

    def _owner(
        self, subscription: Subscription, keys: KeySlots, slot: int, only: Consumer | None
    ) -> Consumer | None:
        owner = keys.owner.get(slot)
        if owner is not None and owner not in subscription.consumers:
            # Cancelled, but it may still answer for what it has: until then nobody follows it.
            if self._still_has(subscription, keys, slot, owner):
                return None
            owner = None
        if owner is None:
            candidates = [only] if only is not None else list(subscription.consumers)
            turns = _rotated(candidates, subscription.rotor)
            owner = max(turns, key=lambda each: each.room, default=None)
            subscription.rotor += 1
        if owner is None or (only is not None and owner is not only):
            return None
        return owner if self._has_room(owner) else None

    def _still_has(
        self, subscription: Subscription, keys: KeySlots, slot: int, consumer: Consumer
    ) -> bool:
        for number, offset in keys.pending.get(slot, ()):
            found = subscription.views[number].state.look(offset)
            if found is not None and (found[0], found[2]) == (State.IN_FLIGHT, consumer.id):
                return True
        return False

    def _give_keyed(
        self,
        view: PartitionView,
        keys: KeySlots,
        consumer: Consumer,
        slot: int,
        run: Run,
        now_ms: int,
        out: list[Delivery],
    ) -> int:
        """``run``: of one message."""
        offset = run.batch.offset_at(run.first)
        found = view.state.look(offset)
        assert found is not None
        given = 0
        for live in self._living(view, run, now_ms):
            if slot != NO_SLOT:  # without a key there is no order to keep
                keys.delivered(view.partition.number, offset, slot, consumer)
            given += self._give(view, consumer, live, found[1], now_ms, out)
        return given

    # --- key order with priorities ---

    def _serve_lanes_by_key(
        self,
        look: KeyLook,
        lanes: LaneScheduler,
        now_ms: int,
        out: list[Delivery],
        limit: int,
    ) -> int:
        """Lanes by their weights; of each the first messages of their keys, by offset. Returns
        what is left of ``limit``."""
        view = look.view
        self._read_keys(view, look.queues, look.allowance)
        look.blocked = self._waiting_slots(view, look.keys)
        # Of a lane that is passed over because nobody has room the turn would be lost.
        while limit > 0 and self._can_take(look):
            picked = lanes.pick(view.state, limit, now_ms, look.exhausted)
            if picked is None:
                break
            lane, turn = picked
            given = self._serve_lane_by_key(look, lane, turn, now_ms, out)
            if given:
                lanes.served_from(lane, given, now_ms)
                limit -= given
            else:
                look.exhausted.add(lane)
        return limit

    def _can_take(self, look: KeyLook) -> bool:
        if look.only is not None:
            return self._has_room(look.only)
        return any(self._has_room(each) for each in look.view.subscription.consumers)

    def _read_keys(self, view: PartitionView, queues: KeyQueues, look_allowance: Allowance) -> None:
        """Each message's once; an allowance for itself, as for ``_materialise``."""
        left, allowance = KEYS_READ_MAX, Allowance()
        while left > 0:
            found = queues.unread.run(0, left)
            if found is None:
                return
            if not allowance.grants():
                look_allowance.exceeded = True
                return
            start, stop = found
            at = start
            for run in view.log.read(start, allowance.left, stop):
                end = min(run.stop, run.batch.find(stop))
                if end <= run.first:
                    break
                read = Run(run.batch, run.first, end)
                allowance.take(read)
                view.state.read_keys(run.batch, run.first, end)
                at = run.batch.offset_at(end - 1) + 1
                if allowance.left <= 0:
                    break
            if at == start:
                at = stop  # no record stands there
            for low, high in queues.unread.ranges(start, at):
                self._settlement.skip(view, low, high)
            left -= at - start

    def _serve_lane_by_key(
        self, look: KeyLook, lane: int, turn: int, now_ms: int, out: list[Delivery]
    ) -> int:
        """At most ``turn`` messages of a lane, from where the look at it has come to."""
        view, keys, given = look.view, look.keys, 0
        while given < turn and look.left_of(lane) > 0:
            found = look.queues.run(lane, look.places.get(lane, 0), turn - given)
            if found is None or found[0] >= view.state.ceiling:
                break
            at = found[0]
            for offset, slot in look.reader.slots(at, min(found[1], view.state.ceiling)):
                look.places[lane] = at = offset + 1
                if slot in look.blocked:
                    look.passed(lane)
                    continue
                consumer = self._owner(view.subscription, keys, slot, look.only)
                if consumer is None:
                    if not self._can_take(look):
                        return given
                    look.blocked.add(slot)
                    look.passed(lane)
                    continue
                run = look.reader.record_at(offset)
                if run is None:
                    if look.allowance.exceeded:
                        return given
                    continue
                given += self._give_keyed(view, keys, consumer, slot, run, now_ms, out)
                look.reached_next()
            if look.allowance.exceeded or at == found[0]:
                break
        return given

    # --- coming and going ---

    def choose_active(self, subscription: Subscription) -> None:
        """Where one consumer is served: the first of the highest priority that is there."""
        if subscription.mode not in (Mode.SINGLE_ACTIVE, Mode.EXCLUSIVE):
            return
        if subscription.active in subscription.consumers:
            return
        subscription.active = max(
            subscription.consumers, key=lambda each: each.priority, default=None
        )
        if subscription.active is not None:
            self._state.effects.append(ActiveConsumerChanged(subscription.active))
            self._state.mark_dirty(subscription)


def _beginning_at(views: list[PartitionView], number: int) -> list[PartitionView]:
    """From the first on whose partition has that number or a higher one, and then the others: who
    was served last is last."""
    for index, view in enumerate(views):
        if view.partition.number >= number:
            return views[index:] + views[:index] if index else views
    return views


def _rotated(items: list[T], turn: int) -> list[T]:
    start = turn % len(items) if items else 0
    return items[start:] + items[:start]


def _is_unbroken(run: Run) -> bool:
    """Whether the offsets of its records have no gaps."""
    batch, first, last = run.batch, run.first, run.stop - 1
    return batch.offset_at(last) - batch.offset_at(first) == last - first


def _size(delivery: Delivery) -> int:
    return delivery.batch.value_bytes_between(delivery.first_index, delivery.stop_index)
