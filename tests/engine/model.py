"""The engine in plain Python: one cell for each message and subscription, no ranges, no kernels.

It decides nothing that the engine is free to decide: which consumer gets what, and when exactly an
expired message leaves, are told to it, and it says whether that was allowed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from braidmq.engine.policy import TopicPolicy, lane_table
from braidmq.engine.states import State
from braidmq.engine.topics import Mode

FOREVER = 1 << 62

lanes_of = lru_cache(lane_table)


@dataclass(frozen=True, slots=True)
class Message:
    offset: int
    name: bytes
    """No two have the same, also those without a value."""
    value: bytes
    key: bytes | None
    header: bytes | None
    """What a compaction by header goes by."""
    priority: int
    stamped_ms: int
    due_ms: int
    expires_ms: int
    durable: bool

    @property
    def place(self) -> int:
        """In the order in which all messages were published."""
        return int(self.name[1 : self.name.index(b".")])

    def expired(self, policy: TopicPolicy, now_ms: int) -> bool:
        if policy.ttl_ms and max(self.stamped_ms, self.due_ms) + policy.ttl_ms <= now_ms:
            return True
        return 0 < self.expires_ms <= now_ms


@dataclass(slots=True)
class Cell:
    """One message as one subscription sees it, until it is settled."""

    message: Message
    state: State
    attempts: int = 0
    holder: int = 0
    until_ms: int = 0
    """In flight: when it is overdue, 0 for never. Waiting: when it is ready again."""
    delivery: object = None
    """Stands for the delivery that is in flight."""
    lazy: bool = False
    """It was expired already when it came, so that no timer takes it out: a rewind."""

    @property
    def offset(self) -> int:
        return self.message.offset


@dataclass
class Dead:
    """How a message ended that went to a dead-letter topic."""

    place: str
    value: bytes
    reason: str
    attempts: int
    subscription: str
    topic: str

    def row(self) -> tuple[str, bytes, str, int, str, str]:
        return (
            self.place,
            self.value,
            self.reason,
            self.attempts,
            self.subscription,
            self.topic,
        )


class View:
    def __init__(self, sub: "Sub", number: int) -> None:
        self.sub = sub
        self.number = number
        self.cells: dict[int, Cell] = {}

    def cell(self, offset: int) -> Cell | None:
        return self.cells.get(offset)

    def among(self, start: int, stop: int, *states: State) -> list[Cell]:
        found = (self.cells[at] for at in sorted(self.cells) if start <= at < stop)
        return [cell for cell in found if cell.state in states]

    def counts(self) -> dict[str, int]:
        every = list(self.cells.values())
        by_state = Counter(cell.state for cell in every)
        size = {
            state: sum(len(cell.message.value) for cell in every if cell.state is state)
            for state in State
        }
        return {
            "ready": by_state[State.READY],
            "in_flight": by_state[State.IN_FLIGHT],
            "waiting": by_state[State.WAITING],
            "delayed": by_state[State.DELAYED],
            "depth": len(every),
            "ready_bytes": size[State.READY],
            "in_flight_bytes": size[State.IN_FLIGHT],
            "depth_bytes": sum(size.values()),
        }


class Sub:
    def __init__(self, topic: "Topic", name: str, mode: Mode) -> None:
        self.topic = topic
        self.name = name
        self.mode = mode
        self.views: list[View] = []

    @property
    def keeps_key_order(self) -> bool:
        """Over all partitions, also those that a key was in before a resize."""
        return self.topic.policy.ordering != "none" or self.mode is Mode.KEY_ORDERED

    @property
    def depth(self) -> int:
        return sum(len(view.cells) for view in self.views)

    @property
    def depth_bytes(self) -> int:
        return sum(view.counts()["depth_bytes"] for view in self.views)

    def over_limit(self) -> bool:
        policy = self.topic.policy
        return (policy.max_messages is not None and self.depth > policy.max_messages) or (
            policy.max_bytes is not None and self.depth_bytes > policy.max_bytes
        )


@dataclass
class Topic:
    name: str
    policy: TopicPolicy
    partitions: list[dict[int, Message]]
    subs: dict[str, Sub] = field(default_factory=dict)
    cancelled: set[tuple[int, int]] = field(default_factory=set)
    resized: bool = False
    stand_in: Sub = field(init=False)
    """Of a topic that nobody subscribes to: what is in it and not gone."""
    absent: set[tuple[int, int]] = field(default_factory=set)
    """Partition and offset of messages that are not in the log any more, and need not be."""
    may_go: set[tuple[int, int]] = field(default_factory=set)
    """Of those that were replaced by later ones of their key, purged, or kept long enough: a
    checkpoint need not write them."""
    settled_ms: dict[tuple[int, int], int] = field(default_factory=dict)
    """Since when no subscription wants them."""

    def __post_init__(self) -> None:
        self.stand_in = Sub(self, "", Mode.SHARED)
        for number in range(len(self.partitions)):
            self.stand_in.views.append(View(self.stand_in, number))

    def holders(self) -> list[Sub]:
        """Whose messages count towards the limits."""
        return list(self.subs.values()) or [self.stand_in]

    def lane(self, message: Message) -> int:
        lanes = lanes_of(self.policy)
        return lanes[message.priority] if lanes is not None else 0

    def settled(self) -> set[tuple[int, int]]:
        """What no subscription wants."""
        every = {(n, at) for n, messages in enumerate(self.partitions) for at in messages}
        return every - {
            (view.number, at) for sub in self.holders() for view in sub.views for at in view.cells
        }

    def room(self, sizes: list[int]) -> int:
        """How many messages of these sizes are taken, from the first."""
        policy = self.policy
        if policy.overflow == "drop-head":
            return len(sizes)
        fitting = len(sizes)
        if policy.max_messages is not None:
            depth = max(sub.depth for sub in self.holders())
            fitting = min(fitting, max(0, policy.max_messages - depth))
        if policy.max_bytes is not None:
            room = policy.max_bytes - max(sub.depth_bytes for sub in self.holders())
            while fitting and sum(sizes[:fitting]) > room:
                fitting -= 1
        return fitting


class Model:
    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.dead: list[Dead] = []

    def views(self) -> Iterator[View]:
        for topic in self.topics.values():
            for sub in topic.holders():
                yield from sub.views

    # --- coming ---

    def published(
        self, topic: Topic, number: int, messages: Iterable[Message], now_ms: int
    ) -> None:
        for message in messages:
            topic.partitions[number][message.offset] = message
            for sub in topic.holders():
                admit(sub.views[number], message, now_ms)

    def start(self, sub: Sub, number: int, target: int, present: set[int], now_ms: int) -> None:
        """A subscription begins, or begins again, at an offset of a partition."""
        view = sub.views[number]
        view.cells.clear()
        for offset, message in sorted(sub.topic.partitions[number].items()):
            wanted = offset >= target and (number, offset) not in sub.topic.cancelled
            if wanted and offset in present:
                admit(view, message, now_ms)

    def drop_overflow(self, topic: Topic) -> None:
        if topic.policy.overflow != "drop-head":
            return
        for sub in topic.holders():
            while sub.over_limit():
                heads = []
                for number, view in enumerate(sub.views):
                    ready = view.among(0, FOREVER, State.READY)
                    if ready:
                        cell = min(ready, key=lambda c: (-topic.lane(c.message), c.offset))
                        order = (-topic.lane(cell.message), cell.message.stamped_ms, number)
                        heads.append((order, view, cell))
                if not heads:
                    break
                _, view, victim = min(heads, key=lambda head: head[0])
                self._bury(view, victim, "maxlen", victim.attempts)

    # --- going ---

    def deliver(
        self, view: View, offset: int, holder: int, attempts: int, until_ms: int, now_ms: int
    ) -> Cell:
        """Raises AssertionError when that message must not be handed out now."""
        topic = view.sub.topic
        cell = view.cell(offset)
        assert cell is not None, f"{offset} is settled, or never was there"
        assert cell.state is State.READY, f"{offset} is {cell.state.name}"
        assert not cell.message.expired(topic.policy, now_ms), f"{offset} is expired"
        assert attempts == cell.attempts + 1, f"{offset}: delivery {cell.attempts + 1}"
        if view.sub.mode is Mode.KEY_ORDERED:
            self._check_key_order(view, cell, holder, now_ms)
        else:
            self._check_order(view, cell, now_ms)
        if view.sub.keeps_key_order and cell.message.key is not None:
            self._check_barriers(view, cell, now_ms)
        cell.state, cell.attempts = State.IN_FLIGHT, attempts
        cell.holder, cell.until_ms, cell.delivery = holder, until_ms, object()
        return cell

    def _check_order(self, view: View, cell: Cell, now_ms: int) -> None:
        topic = view.sub.topic
        lane = topic.lane(cell.message)
        for other in view.among(0, FOREVER, State.READY):
            if other.message.expired(topic.policy, now_ms):
                continue
            theirs = topic.lane(other.message)
            assert theirs != lane or other.offset >= cell.offset, "order within a lane"
            if topic.policy.priority == "strict" and not topic.resized:
                assert theirs >= lane, "strict priority"
        if topic.policy.ordering != "none":
            below = view.among(0, cell.offset, State.WAITING)
            assert not below, f"{cell.offset} overtakes {below[0].offset}, which waits"

    def _check_key_order(self, view: View, cell: Cell, holder: int, now_ms: int) -> None:
        policy = view.sub.topic.policy
        if cell.message.key is None:
            return
        for other in view.cells.values():
            if other.message.key != cell.message.key or other is cell:
                continue
            if other.state is State.IN_FLIGHT:
                assert other.holder == holder, "one key at two consumers"
            alive = other.state is State.READY and not other.message.expired(policy, now_ms)
            if alive or other.state is State.WAITING:
                assert other.offset > cell.offset, "a key overtakes itself"

    def _check_barriers(self, view: View, cell: Cell, now_ms: int) -> None:
        """Whatever a key has in another partition was published before a resize, or after one."""
        for other_view in view.sub.views:
            for other in other_view.cells.values() if other_view is not view else ():
                message = other.message
                assert (
                    message.key != cell.message.key
                    or message.place > cell.message.place
                    or message.due_ms
                    or message.expired(view.sub.topic.policy, now_ms)
                ), f"{cell} overtakes {other} of partition {other_view.number}"

    def settle(self, view: View, cells: Iterable[Cell]) -> int:
        gone = list(cells)
        for cell in gone:
            del view.cells[cell.offset]
        return len(gone)

    def held(self, view: View, holder: int, start: int = 0, stop: int = FOREVER) -> list[Cell]:
        found = view.among(start, stop, State.IN_FLIGHT)
        return [cell for cell in found if cell.holder == holder]

    def fail(self, view: View, cells: Iterable[Cell], now_ms: int, delay_ms: int | None) -> int:
        retry, count = view.sub.topic.policy.retry, 0
        for cell in list(cells):
            count += 1
            if retry.attempts and cell.attempts >= retry.attempts:
                self._bury(view, cell, "max-attempts", cell.attempts)
            elif retry.total_ms and cell.message.stamped_ms <= now_ms - retry.total_ms:
                self._bury(view, cell, "max-age", cell.attempts)
            else:
                delay = retry.delay_ms(cell.attempts) if delay_ms is None else delay_ms
                cell.state = State.WAITING if delay else State.READY
                cell.holder, cell.until_ms, cell.delivery = 0, now_ms + delay, None
        return count

    def reject(self, view: View, cells: Iterable[Cell]) -> int:
        gone = list(cells)
        for cell in gone:
            self._bury(view, cell, "rejected", cell.attempts)
        return len(gone)

    def expire(self, view: View, cell: Cell) -> None:
        """It was found gone, and it was time."""
        if view.sub.topic.policy.dead_letter.expired:
            self._bury(view, cell, "expired", cell.attempts)
        else:
            self.settle(view, [cell])

    def refuse(self, topic: Topic, value: bytes) -> None:
        """A full topic sends what it refuses to its dead letters."""
        self._dead(topic, value, "maxlen", 0, "")

    def _bury(self, view: View, cell: Cell, reason: str, attempts: int) -> None:
        self.settle(view, [cell])
        self._dead(view.sub.topic, cell.message.value, reason, attempts, view.sub.name)

    def _dead(self, topic: Topic, value: bytes, reason: str, attempts: int, sub: str) -> None:
        if topic.policy.dead_letter.topic is not None:
            place = topic.policy.dead_letter.topic.replace("{topic}", topic.name)
            self.dead.append(Dead(place, value, reason, attempts, sub, topic.name))

    def cancel(self, topic: Topic, number: int, offset: int) -> bool:
        found = False
        for sub in topic.subs.values():
            cell = sub.views[number].cell(offset)
            if cell is not None and cell.state is State.DELAYED:
                self.settle(sub.views[number], [cell])
                found = True
        if found:
            topic.cancelled.add((number, offset))
        return found

    def purge(self, topic: Topic) -> int:
        states = (State.READY, State.WAITING, State.DELAYED)
        lost = [
            sum(self.settle(view, view.among(0, FOREVER, *states)) for view in sub.views)
            for sub in topic.holders()
        ]
        if topic.policy.retention.keeps_acked and topic.subs:
            topic.cancelled |= topic.settled()  # for those who are set back, or come later, too
        return max(lost, default=0)

    # --- time ---

    def advance(self, now_ms: int) -> None:
        for view in list(self.views()):
            overdue = [c for c in view.among(0, FOREVER, State.IN_FLIGHT) if c.until_ms > 0]
            self.fail(view, [c for c in overdue if c.until_ms <= now_ms], now_ms, None)
            self._become_ready(view, now_ms)

    def _become_ready(self, view: View, now_ms: int) -> None:
        for cell in view.cells.values():
            if (cell.state is State.WAITING and cell.until_ms <= now_ms) or (
                cell.state is State.DELAYED and cell.message.due_ms <= now_ms
            ):
                cell.state = State.READY

    def reopen(self, now_ms: int) -> None:
        """Nobody has anything any more: all consumers here stand for connections or members. The
        rest is as it was."""
        for view in self.views():
            for cell in view.cells.values():
                if cell.state is State.IN_FLIGHT:
                    cell.state = State.READY
                    cell.holder, cell.delivery = 0, None
            self._become_ready(view, now_ms)


def admit(view: View, message: Message, now_ms: int) -> None:
    state = State.DELAYED if message.due_ms > now_ms else State.READY
    lazy = message.expired(view.sub.topic.policy, now_ms)
    view.cells[message.offset] = Cell(message, state, lazy=lazy)
