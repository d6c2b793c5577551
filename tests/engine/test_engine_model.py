"""Random histories of an engine against the plain model of it: counters, order, attempts, dead
letters, receipts, crashes."""

import sys
from typing import Any

import pytest
from engine_model_world import (
    CHANGES,
    HERE,
    KEPT_PROFILES,
    MODES,
    PLAIN,
    PROFILES,
    EngineWorld,
    batches,
    crashes,
    picks,
    rarely,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from braidmq.engine.errors import NotDelayed
from braidmq.engine.policy import merge
from braidmq.engine.states import State
from braidmq.engine.topics import Consumer, Credit, Mode
from model import FOREVER, Cell, Sub, Topic, View

EVERY_PROFILE = [*PROFILES, *KEPT_PROFILES]


class EngineMachine(RuleBasedStateMachine):
    """Every crash comes after a commit: the model knows exactly what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.world = self.make_world()

    def make_world(self) -> EngineWorld:
        return EngineWorld()

    @initialize(
        profiles=st.lists(st.sampled_from(EVERY_PROFILE), min_size=2, max_size=3),
        modes=st.lists(st.sampled_from(MODES), min_size=1, max_size=2),
    )
    def begin(self, profiles: list[dict[str, Any]], modes: list[Mode]) -> None:
        for index, profile in enumerate(profiles):
            self.world.create(f"t{index}", profile, modes[: 1 + index % 2] if index < 2 else [])
        self.world.attach_all()

    # --- choosing ---

    def topic_at(self, pick: int) -> Topic:
        return list(self.world.model.topics.values())[pick % len(self.world.model.topics)]

    def sub_at(self, pick: int) -> Sub:
        subs = [sub for t in self.world.model.topics.values() for sub in t.subs.values()]
        return subs[pick % len(subs)]

    def held_at(self, pick: int) -> tuple[Consumer, View, Cell] | None:
        world = self.world
        found = [
            (consumer, world.ours(view), cell)
            for consumer in world.consumers
            for view in consumer.subscription.views
            for cell in world.model.held(world.ours(view), consumer.id)
        ]
        return found[pick % len(found)] if found else None

    def in_flight(self) -> bool:
        return any(consumer.in_flight for consumer in self.world.consumers)

    # --- publishing ---

    @rule(pick=picks, wanted=batches, durable=st.sampled_from([True, True, True, False]))
    def publish(self, pick: int, wanted: list[dict[str, Any]], durable: bool) -> None:
        self.world.publish([self.topic_at(pick).name], wanted, durable=durable)

    @rule(pick=picks, count=st.integers(5, 40))
    def publish_many(self, pick: int, count: int) -> None:
        self.world.publish([self.topic_at(pick).name], [PLAIN] * count, durable=True)

    @rule(wanted=batches, durable=st.booleans())
    def fan_out(self, wanted: list[dict[str, Any]], durable: bool) -> None:
        self.world.publish(list(self.world.model.topics), wanted, durable=durable)

    # --- consumers ---

    @rule(
        pick=picks,
        priority=st.integers(0, 1),
        limit=st.sampled_from([1, 2, 5, 100]),
        shared=st.booleans(),
        auto_ack=st.sampled_from([False, False, False, True]),
        visibility_ms=st.sampled_from([None, 0, 300]),
    )
    def attach(
        self,
        pick: int,
        priority: int,
        limit: int,
        shared: bool,
        auto_ack: bool,
        visibility_ms: int | None,
    ) -> None:
        world, sub = self.world, self.sub_at(pick)
        if sub.depth > 300 or len(world.consumers) > 8 or sub.mode is Mode.ASSIGNED:
            return
        if not shared or not world.credits:
            world.credits.append(Credit(limit))
        theirs = world.engine.state.topic(HERE, sub.topic.name).subscriptions[sub.name]
        consumer = world.engine.consumers.attach(
            theirs,
            now_ms=world.now_ms,
            credits=[world.credits[-1]],
            priority=priority,
            auto_ack=auto_ack,
            visibility_ms=visibility_ms,
        )
        world.consumers.append(consumer)

    @precondition(lambda self: self.world.consumers)
    @rule(pick=picks, requeue=st.booleans(), really=rarely)
    def detach(self, pick: int, requeue: bool, really: bool) -> None:
        if not really:
            return
        world = self.world
        consumer = world.consumers[pick % len(world.consumers)]
        if consumer.subscription.mode is Mode.ASSIGNED:
            return  # its group's business
        world.engine.consumers.detach(consumer, now_ms=world.now_ms, requeue=requeue)
        if requeue:
            for theirs in consumer.subscription.views:
                view = world.ours(theirs)
                world.model.fail(view, world.model.held(view, consumer.id), world.now_ms, 0)
            world.consumers.remove(consumer)

    @precondition(lambda self: self.world.consumers)
    @rule(pick=picks, paused=st.booleans())
    def pause_or_resume(self, pick: int, paused: bool) -> None:
        consumer = self.world.consumers[pick % len(self.world.consumers)]
        if paused:
            consumer.paused = True
        elif consumer in consumer.subscription.consumers:
            self.world.engine.consumers.resume(consumer)

    @precondition(lambda self: self.world.consumers)
    @rule(pick=picks, limit=st.sampled_from([1, 3, 50]))
    def change_credit(self, pick: int, limit: int) -> None:
        consumer = self.world.consumers[pick % len(self.world.consumers)]
        consumer.credits[0].limit = limit
        for each in self.world.consumers:
            if each.credits == consumer.credits and not each.paused:
                self.world.engine.consumers.resume(each)

    @rule()
    def dispatch(self) -> None:
        self.world.dispatch()

    @rule()
    def dispatch_again(self) -> None:
        self.world.dispatch()

    @precondition(lambda self: self.world.consumers)
    @rule(pick=picks, limit=st.integers(1, 10))
    def pull(self, pick: int, limit: int) -> None:
        world = self.world
        consumer = world.consumers[pick % len(world.consumers)]
        deliveries = world.engine.dispatching.pull(consumer, limit, now_ms=world.now_ms)
        assert sum(each.stop_index - each.first_index for each in deliveries) <= limit
        assert all(each.consumer is consumer for each in deliveries)
        world.delivered(deliveries)
        world.observe()

    # --- answers ---

    @precondition(in_flight)
    @rule(pick=picks, width=st.sampled_from([1, 1, 2, 5, 100]), everything=st.booleans())
    def ack(self, pick: int, width: int, everything: bool) -> None:
        consumer, view, cell = self.held_at(pick)  # type: ignore[misc]
        start = 0 if everything else cell.offset
        theirs = self.world.theirs(view)
        count = self.world.engine.settling.ack(consumer, theirs, start, cell.offset + width)
        held = self.world.model.held(view, consumer.id, start, cell.offset + width)
        assert count == self.world.model.settle(view, held)

    @precondition(in_flight)
    @rule(
        pick=picks,
        width=st.sampled_from([1, 2, 5]),
        delay_ms=st.sampled_from([None, None, 0, 40, 700]),
    )
    def nack(self, pick: int, width: int, delay_ms: int | None) -> None:
        world = self.world
        consumer, view, cell = self.held_at(pick)  # type: ignore[misc]
        start, stop = cell.offset, cell.offset + width
        count = world.engine.settling.nack(
            consumer, world.theirs(view), start, stop, now_ms=world.now_ms, delay_ms=delay_ms
        )
        held = world.model.held(view, consumer.id, start, stop)
        assert count == world.model.fail(view, held, world.now_ms, delay_ms)

    @precondition(in_flight)
    @rule(pick=picks, width=st.sampled_from([1, 2, 5]))
    def requeue(self, pick: int, width: int) -> None:
        world = self.world
        consumer, view, cell = self.held_at(pick)  # type: ignore[misc]
        start, stop = cell.offset, cell.offset + width
        count = world.engine.settling.requeue(
            consumer, world.theirs(view), start, stop, now_ms=world.now_ms
        )
        held = world.model.held(view, consumer.id, start, stop)
        assert count == world.model.fail(view, held, world.now_ms, 0)

    @precondition(in_flight)
    @rule(pick=picks, width=st.sampled_from([1, 2, 5]))
    def reject(self, pick: int, width: int) -> None:
        world = self.world
        consumer, view, cell = self.held_at(pick)  # type: ignore[misc]
        start, stop = cell.offset, cell.offset + width
        count = world.engine.settling.reject(
            consumer, world.theirs(view), start, stop, now_ms=world.now_ms, error="no"
        )
        assert count == world.model.reject(view, world.model.held(view, consumer.id, start, stop))

    @precondition(in_flight)
    @rule(pick=picks, width=st.sampled_from([1, 3]), more_ms=st.sampled_from([10, 200, 2000]))
    def extend(self, pick: int, width: int, more_ms: int) -> None:
        world = self.world
        consumer, view, cell = self.held_at(pick)  # type: ignore[misc]
        start, stop, until = cell.offset, cell.offset + width, world.now_ms + more_ms
        count = world.engine.settling.extend(
            consumer, world.theirs(view), start, stop, until_ms=until
        )
        held = world.model.held(view, consumer.id, start, stop)
        assert count == len(held)
        for each in held:
            each.until_ms = until

    @precondition(lambda self: len(self.world.consumers) > 1)
    @rule(pick=picks, other=picks)
    def answer_for_somebody_else(self, pick: int, other: int) -> None:
        found = self.held_at(pick)
        stranger = self.world.consumers[other % len(self.world.consumers)]
        if found is not None and stranger is not found[0]:
            theirs, at = self.world.theirs(found[1]), found[2].offset
            assert self.world.engine.settling.ack(stranger, theirs, at, at + 1) == 0

    @rule(
        pick=picks,
        answer=st.sampled_from(["ack", "nack", "requeue", "reject", "time", "crash"]),
        width=st.sampled_from([1, 2, 5]),
        crash=crashes,
    )
    def work(self, pick: int, answer: str, width: int, crash: Any) -> None:
        """What a consumer does most of the time, in one step."""
        self.world.dispatch()
        if answer == "time":
            self.world.advance(500)
        elif answer == "crash":
            self.world.crash(crash, 10)
            self.world.check()
            self.world.attach_all()
        elif not self.in_flight():
            return
        elif answer == "ack":
            self.ack(pick, width, False)
        elif answer == "nack":
            self.nack(pick, width, None)
        elif answer == "requeue":
            self.requeue(pick, width)
        else:
            self.reject(pick, width)

    @rule()
    def redeem(self) -> None:
        self.world.check_receipts()
        del self.world.receipts[:-100]

    # --- time ---

    @rule(by_ms=st.sampled_from([10, 50, 100, 200, 500, 3000, 400_000]))
    def advance(self, by_ms: int) -> None:
        self.world.advance(by_ms)

    # --- moving and removing ---

    @rule(pick=picks, to=st.sampled_from(["earliest", "latest", "offset", "time"]), at=picks)
    def rewind(self, pick: int, to: str, at: int) -> None:
        world, sub = self.world, self.sub_at(pick)
        topic = world.engine.state.topic(HERE, sub.topic.name)
        end = min(each.log.next_offset for each in topic.partitions)
        start = max(each.log.start_offset for each in topic.partitions)
        where: Any = {"offset": start + at % max(end - start, 1), "time": f"@{world.now_ms - 300}"}
        position = where.get(to, to)
        if to == "offset" and position > end:
            return
        world.finish_compaction(sub.topic)
        numbers = range(len(topic.partitions))
        targets = [world.target(sub.views[number], position) for number in numbers]
        present = [world.present(sub.topic, number) for number in numbers]
        world.engine.offsets.rewind(topic.subscriptions[sub.name], position, now_ms=world.now_ms)
        for number in numbers:
            world.start(sub, number, targets[number], present[number])
        world.model.drop_overflow(sub.topic)

    @rule(pick=picks, really=rarely)
    def purge(self, pick: int, really: bool) -> None:
        if not really:
            return
        topic = self.topic_at(pick)
        count = self.world.engine.retention.purge(self.world.engine.state.topic(HERE, topic.name))
        lost = self.world.model.purge(topic)
        # Without a subscription nobody knows of offsets whose messages a crash lost.
        assert count == lost if topic.subs else count >= lost

    @rule(pick=picks, number=picks, at=picks)
    def commit_offset(self, pick: int, number: int, at: int) -> None:
        sub = self.sub_at(pick)
        view = sub.views[number % len(sub.views)]
        theirs = self.world.theirs(view)
        offset = at % (theirs.state.end + 1)
        self.world.engine.offsets.commit(theirs, offset)
        self.world.model.settle(view, view.among(0, offset, *State))

    @rule(pick=picks, at=picks)
    def cancel_delayed(self, pick: int, at: int) -> None:
        topic = self.topic_at(pick)
        if not topic.subs:
            return
        theirs = self.world.engine.state.topic(HERE, topic.name)
        delayed = [
            (each.partition, each.offset)
            for each in self.world.engine.delayed.find(theirs, now_ms=self.world.now_ms)
        ]
        expected = {
            (view.number, cell.offset)
            for sub in topic.subs.values()
            for view in sub.views
            for cell in view.among(0, FOREVER, State.DELAYED)
        }
        assert set(delayed) == expected
        assert self.world.engine.delayed.count(theirs) == len(expected)
        number, offset = delayed[at % len(delayed)] if delayed else (0, at % 10)
        if self.world.model.cancel(topic, number, offset):
            self.world.engine.delayed.cancel(theirs, number, offset, self.world.now_ms)
        else:
            with pytest.raises(NotDelayed):
                self.world.engine.delayed.cancel(theirs, number, offset, self.world.now_ms)

    # --- administration ---

    @rule(pick=picks, count=st.integers(1, 6))
    def resize(self, pick: int, count: int) -> None:
        topic = self.topic_at(pick)
        ours = self.world.settings[topic.name]
        # Of a queue that drops its head nobody can say afterwards where its records went.
        drops = topic.policy.overflow == "drop-head" and not topic.subs
        if ours.get("ordering") != "strict" and ours.get("overflow") != "drop-head" and not drops:
            self.world.resize(topic, count)

    @rule(pick=picks, change=st.sampled_from(CHANGES))
    def alter(self, pick: int, change: dict[str, Any]) -> None:
        world, topic = self.world, self.topic_at(pick)
        theirs = world.engine.state.topic(HERE, topic.name)
        if (
            change.get("overflow") == "drop-head"
            and (theirs.until_acked or not topic.subs)
            and len(theirs.partitions) > 1
        ):
            return
        rule = topic.policy.retention
        if (theirs.limited and "dead_letter" in change) or (
            rule.keeps_acked and "retention" in change
        ):
            return
        changed = merge(world.settings[topic.name], change)
        world.engine.topics.alter(theirs, changed, now_ms=world.now_ms)
        world.policies_changed(topic)

    @rule(pick=picks, change=st.sampled_from([{"ttl_ms": 300}, {"max_messages": 5}, {}]))
    def set_template(self, pick: int, change: dict[str, Any]) -> None:
        world, name = self.world, self.topic_at(pick).name
        world.engine.templates.put(HERE, "one", f"^{name}$", change, now_ms=world.now_ms)
        world.policies_changed()

    @precondition(lambda self: self.world.engine.state.templates)
    @rule()
    def delete_template(self) -> None:
        self.world.engine.templates.delete(HERE, "one", now_ms=self.world.now_ms)
        self.world.policies_changed()

    @rule(
        pick=picks,
        profile=st.sampled_from(EVERY_PROFILE),
        modes=st.lists(st.sampled_from(MODES), min_size=1, max_size=2),
        really=rarely,
    )
    def recreate(self, pick: int, profile: dict[str, Any], modes: list[Mode], really: bool) -> None:
        if not really:
            return
        world, name = self.world, self.topic_at(pick).name
        theirs = world.engine.state.topic(HERE, name)
        gone = [c for c in world.consumers if c.subscription.topic is theirs]
        world.engine.topics.delete(theirs)
        world.consumers = [each for each in world.consumers if each not in gone]
        assert not any(each.in_flight for each in gone)
        del world.model.topics[name]
        world.create(name, profile, modes)
        world.attach_all()

    @rule(pick=picks, mode=st.sampled_from(MODES), really=rarely)
    def resubscribe(self, pick: int, mode: Mode, really: bool) -> None:
        if not really:
            return
        world, sub = self.world, self.sub_at(pick)
        world.unsubscribe(sub)
        world.subscribe(sub.topic.name, sub.name, mode)
        world.attach_all()

    @rule(pick=picks, really=rarely)
    def unsubscribe(self, pick: int, really: bool) -> None:
        sub = self.sub_at(pick)
        policy = sub.topic.policy
        lonely = sum(len(each.subs) for each in self.world.model.topics.values()) == 1
        if really and not lonely and (policy.overflow != "drop-head" or len(sub.views) == 1):
            self.world.unsubscribe(sub)

    @rule(pick=picks, mode=st.sampled_from(MODES))
    def subscribe(self, pick: int, mode: Mode) -> None:
        topic = self.topic_at(pick)
        if not topic.subs:
            self.world.subscribe(topic.name, "s0", mode)
            self.world.attach_all()

    # --- retention and compaction ---

    @rule(pick=picks)
    def enforce(self, pick: int) -> None:
        self.world.enforce(self.topic_at(pick))

    @rule(pick=picks, checkpoint=st.booleans())
    def compact(self, pick: int, checkpoint: bool) -> None:
        topics = self.world.model.topics.values()
        compacted = [each for each in topics if each.policy.compaction.enabled]
        if compacted:
            self.world.compact(compacted[pick % len(compacted)], checkpoint=checkpoint)

    # --- the disk ---

    @rule()
    def commit(self) -> None:
        self.world.engine.store.commit()

    @rule()
    def checkpoint(self) -> None:
        self.world.engine.store.checkpoint()

    @rule(choice=crashes, outage_ms=st.sampled_from([10, 500]), really=rarely)
    def crash(self, choice: Any, outage_ms: int, really: bool) -> None:
        if not really:
            return
        self.world.crash(choice, outage_ms)
        self.world.check()
        self.world.attach_all()

    @invariant()
    def agrees(self) -> None:
        self.world.checkpoint_if_due()
        self.world.check()

    def teardown(self) -> None:
        if sys.exc_info()[0] is not None:
            return  # what failed says more than what follows from it
        self.world.check_receipts()
        self.world.drain()


EngineMachine.TestCase.settings = settings(
    settings.get_profile("models"),
    deadline=None,
    max_examples=150,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
TestEngine = EngineMachine.TestCase
