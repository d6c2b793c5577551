"""Consuming: runs of messages as they arrive, handed out one by one or as batches."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, TypedDict

from braidmq.client.awaitables import DONE, TURN
from braidmq.client.connection import Channel, ChannelOwner
from braidmq.client.errors import (
    AlreadySettled,
    Closed,
    ConsumerCancelled,
    DeliveryTimedOut,
    Unsupported,
)
from braidmq.client.link import Link
from braidmq.client.message import Answers, Batch, Failed, Message, Source, last_tag_of
from braidmq.client.options import one_of
from braidmq.model.errors import BadRequest, BraidError
from braidmq.wire.amqp.client import DeliveryRun, Ledger
from braidmq.wire.amqp.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicExtend,
    BasicFail,
    BasicQos,
    BasicQosOk,
    BasicRetry,
    TxReturn,
)
from braidmq.wire.amqp.tables import FieldValue, Long, Table

PREFETCH = 1000
VISIBILITY_MS_MAX = 12 * 3600 * 1000
TIMEOUTS_KEPT = 1000
"""Runs of deliveries that are remembered to be timed out; older ones were answered before."""
TURN_MESSAGES = 256
"""Messages handed out before others have their turn, and the broker our acknowledgements."""

End = Literal["earliest", "latest"]
Start = End | int | datetime
"""Where a new group begins: an end, an offset, or a time."""

GroupMode = Literal["shared", "key-ordered", "single-active", "exclusive", "assigned"]

PartitionsChanged = Callable[[frozenset[int]], object]
"""Is told which partitions came, or went."""


class ConsumerOptions(TypedDict, total=False):
    group: str | None
    """Share every message of the topic with the group's other consumers; without one, those of a
    queue with the queue's other consumers."""
    prefetch: int
    """Messages that may be unanswered."""
    auto_ack: bool
    """Answer for messages as they are handed out."""
    start: Start
    """Where the group begins, if it is new."""
    mode: GroupMode | None
    """Who gets which message, if the group is new; unless it says, ``"shared"``, or
    ``"single-active"`` where the topic's ordering is strict."""
    priority: int
    """Among consumers with room the highest is served."""
    exclusive: bool
    """Be the only consumer, or fail."""
    visibility_ms: int | None
    """A message that is not answered for this long goes to others; None: it is ours until then."""
    member: str | None
    """In a group whose partitions are assigned: the id under which the consumer has its partitions
    again after its connection was lost, or the broker restarted. Without one it leaves with its
    connection."""
    on_assigned: PartitionsChanged | None
    on_revoked: PartitionsChanged | None
    """Partitions that go. What is in flight of them may still be answered for, for a while."""
    auto_commit_s: float | None
    """Answer for messages once the next one was asked for, this often; 5 is a good number."""


class ChannelAnswers:
    """Answers of one channel's messages; acknowledgements leave once a turn of the loop."""

    def __init__(self, channel: Channel, topic: str, *, has_visibility: bool = False) -> None:
        self.topic = topic
        self.has_visibility = has_visibility
        self.ledger = Ledger(channel.number)
        self._channel: Channel | None = channel
        self._loop = channel.connection.loop
        self._due = False
        self._timed_out: deque[tuple[int, int]] = deque(maxlen=TIMEOUTS_KEPT)

    def time_out(self, first: int, last: int) -> None:
        """The broker has given them to others."""
        self.ledger.settle(first, last)
        self._timed_out.append((first, last))

    def is_in_time(self, tag: int) -> bool:
        return not any(first <= tag <= last for first, last in self._timed_out)

    def _too_late(self, first: int, last: int) -> AlreadySettled | DeliveryTimedOut:
        if not self.is_in_time(first):
            return DeliveryTimedOut(f"the visibility timeout of delivery {first} is over")
        return AlreadySettled(_which(first, last))

    def extend(self, first: int, last: int, visibility_ms: int) -> Awaitable[None]:
        if self._channel is None:
            return DONE
        if not self.has_visibility:
            raise BadRequest("the consumer has no visibility timeout: consume with visibility_ms")
        if isinstance(visibility_ms, bool) or not 0 < visibility_ms <= VISIBILITY_MS_MAX:
            raise BadRequest(f"visibility_ms is {visibility_ms!r}, not 1 to {VISIBILITY_MS_MAX}")
        if not self.is_in_time(first):
            raise self._too_late(first, last)
        self.flush()
        self._channel.send(BasicExtend(first, last, visibility_ms))
        return DONE

    def ack(self, first: int, last: int) -> Awaitable[None]:
        if self._channel is None:
            return DONE
        if not self.ledger.ack(first, last):
            raise self._too_late(first, last)
        if not self._due:
            self._due = True
            self._loop.call_soon(self.flush)
        return DONE

    def ack_rest(self, first: int, last: int) -> None:
        """Those that have no answer yet."""
        if self.ledger.ack(first, last):
            self.flush()

    def finish(self, first: int, last: int, failure: Failed | None) -> Awaitable[None]:
        if failure is None:
            with suppress(AlreadySettled):
                self.ack(first, last)
            return DONE
        final, delay_ms, error = failure
        if self._channel is not None and not self._channel.connection.can_tell_errors:
            error = ""
        # What happened in the block is the news.
        with suppress(AlreadySettled, DeliveryTimedOut):
            if final:
                self.reject(first, last, error)
            else:
                self.nack(first, last, delay_ms, error)
        return DONE

    def nack(self, first: int, last: int, delay_ms: int | None, error: str) -> Awaitable[None]:
        if delay_ms is not None and (type(delay_ms) is not int or not 0 <= delay_ms < 1 << 63):
            # Before it counts as answered: the next answer is to be taken.
            raise BadRequest(f"delay_ms is {delay_ms!r}, not a number of milliseconds")
        if self._channel is None:
            return DONE
        if error:
            return self._fail(self._channel, first, last, error, delay_ms=delay_ms)
        if not self._channel.connection.can_retry:
            return self._requeue(self._channel, first, last, delay_ms)
        ranges = self.ledger.settle(first, last)
        if not ranges:
            raise self._too_late(first, last)
        for start, stop in ranges:
            self._channel.send(BasicRetry(start, stop, delay_ms is not None, delay_ms or 0))
        return DONE

    def _requeue(
        self, channel: Channel, first: int, last: int, delay_ms: int | None
    ) -> Awaitable[None]:
        """What a broker that is not ours can do."""
        if delay_ms is not None:
            raise Unsupported("this broker can't redeliver a message after a delay")
        frames = self.ledger.refuse(first, last, requeue=True)
        if not frames:
            raise self._too_late(first, last)
        channel.write(frames)
        return DONE

    def _fail(
        self,
        channel: Channel,
        first: int,
        last: int,
        error: str,
        *,
        final: bool = False,
        delay_ms: int | None = None,
    ) -> Awaitable[None]:
        if not channel.connection.can_tell_errors:
            raise Unsupported(
                "this broker can't keep the error with a dead letter",
                remedy="Leave error out, or connect to a newer BraidMQ",
            )
        ranges = self.ledger.settle(first, last)
        if not ranges:
            raise self._too_late(first, last)
        for start, stop in ranges:
            delayed = delay_ms is not None
            said = error.encode(errors="replace")
            channel.send(BasicFail(start, stop, final, delayed, delay_ms or 0, said))
        return DONE

    def reject(self, first: int, last: int, error: str) -> Awaitable[None]:
        if self._channel is None:
            return DONE
        if error:
            return self._fail(self._channel, first, last, error, final=True)
        frames = self.ledger.refuse(first, last, requeue=False)
        if not frames:
            raise self._too_late(first, last)
        self._channel.write(frames)
        return DONE

    @property
    def channel(self) -> Channel | None:
        return self._channel

    def take(self, first: int, last: int) -> tuple[Source, list[tuple[int, int]]]:
        if self._channel is None:
            return self, [(first, last)]
        return self, self.ledger.hold(first, last)

    def let_go(self, first: int, last: int) -> None:
        self.ledger.let_go(first, last)

    def give_back(self, first: int, last: int) -> None:
        if self._channel is not None:
            self._channel.send(TxReturn(first, last))
        self.ledger.let_go(first, last)

    def flush(self) -> None:
        self._due = False
        frames = self.ledger.take()
        if frames and self._channel is not None:
            self._channel.write(frames)

    def end(self) -> None:
        """The channel is gone: the broker delivers again what it has no answer for."""
        self._channel = None


def _which(first: int, last: int) -> str:
    if first == last:
        return f"delivery {first} was answered before"
    return f"deliveries {first} to {last} were all answered before"


class Consuming(ChannelOwner):
    """A consumer's channel, and what came on it."""

    number = 0
    """Of its channel, given by the link; 0 before that."""

    def __init__(
        self,
        link: Link,
        topic: str,
        *,
        group: str | None = None,
        prefetch: int = PREFETCH,
        auto_ack: bool = False,
        start: Start = "earliest",
        mode: GroupMode | None = None,
        priority: int = 0,
        exclusive: bool = False,
        visibility_ms: int | None = None,
        member: str | None = None,
        on_assigned: PartitionsChanged | None = None,
        on_revoked: PartitionsChanged | None = None,
        auto_commit_s: float | None = None,
    ) -> None:
        if mode is not None:
            one_of("mode", mode, GroupMode)
        _check_start(start)
        if auto_ack and auto_commit_s is not None:
            raise BadRequest("auto_ack answers for messages at once: nothing is left to commit")
        if auto_commit_s is not None and auto_commit_s <= 0:
            raise BadRequest("auto_commit_s is the time between two commits: more than 0")
        if mode is not None and group is None:
            raise BadRequest("a mode is for a group: name one")
        if mode != "assigned" and (member or on_assigned or on_revoked):
            raise BadRequest('only in a group of mode="assigned" have members partitions')
        self._link = link
        self.topic = topic
        self._prefetch = prefetch
        self._auto_ack = auto_ack
        self._exclusive = exclusive
        self._arguments = _arguments(group, start, mode, priority, member)
        self.partitions: frozenset[int] = frozenset()
        """Those the consumer has now, where they are assigned."""
        self._has_partitions = mode == "assigned"
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._auto_commit_s = auto_commit_s
        self._commit_timer: asyncio.TimerHandle | None = None
        self._handed_tag = 0
        """The last that the program has; when it asks for more it is done with that."""
        self._done_tag = self._committed_tag = 0
        self._visibility_ms = visibility_ms
        if visibility_ms is not None:
            self._arguments["x-visibility-timeout"] = visibility_ms
            self._arguments["x-visibility-notify"] = True
        self._answers: ChannelAnswers | None = None
        self._channel: Channel | None = None
        self._runs: deque[Batch] = deque()
        self._messages: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._over: BraidError | None = Closed("the consumer is not open")
        self.wrap: Callable[[ChannelAnswers], Answers] = lambda answers: answers
        """What messages answer to: the synchronous twin puts its own in between."""

    @property
    def owner(self) -> ChannelOwner:
        return self

    async def open(self) -> None:
        if self.number:
            raise Closed("a consumer can be opened once", remedy="Make another with consume()")
        self._over = None
        try:
            await self._link.attach(self)
        except BaseException as error:
            self._over = error if isinstance(error, BraidError) else Closed("it was not opened")
            raise

    async def close(self) -> None:
        channel = self._channel
        try:
            if channel is not None and channel.open and self._answers is not None:
                self._commit_done()
                self._answers.flush()  # before: a member's partitions go to others when it leaves
                await channel.call(BasicCancel(_TAG), BasicCancelOk)
                self._answers.flush()
        except BraidError:
            pass  # the channel is gone: so is the consumer
        finally:
            self.fail(Closed("the consumer was closed"))
            await self._link.detach(self)
            # It goes with its last consumer: that is not to be undone by the next connection.
            self._link.forget_unused(self.topic)

    # --- taking ---

    async def messages(self) -> AsyncIterator[Message]:
        messages = self._messages
        self._require_open()
        # Two calls a message that mostly have nothing to do.
        notes = self._auto_ack or self._auto_commit_s is not None
        while True:
            for _ in range(min(len(messages), TURN_MESSAGES)):
                if not messages:
                    break  # the connection was lost meanwhile
                message = messages.popleft()
                if notes:
                    self._handing(message)
                yield message
                if notes:
                    self._came_back()
            if messages:
                await TURN
            else:
                messages.extend(self._in_time(await self._next_run()))

    async def next_message(self) -> Message:
        messages = self._messages
        self._came_back()
        while not messages:
            messages.extend(self._in_time(await self._next_run()))
        message = messages.popleft()
        self._handing(message)
        return message

    def _handing(self, message: Message) -> None:
        if self._auto_ack:
            message.ack()
        else:
            self._handed_tag = message.delivery_tag

    def _came_back(self) -> None:
        """The program asks for the next: it is done with what it got before."""
        if self._auto_commit_s is None or self._done_tag == self._handed_tag:
            return
        self._done_tag = self._handed_tag
        if self._commit_timer is None:
            loop = asyncio.get_running_loop()
            self._commit_timer = loop.call_later(self._auto_commit_s, self._commit_done)

    def _commit_done(self) -> None:
        if self._commit_timer is not None:
            self._commit_timer.cancel()
            self._commit_timer = None
        if self._answers is not None and self._done_tag > self._committed_tag:
            self._answers.ack_rest(self._committed_tag + 1, self._done_tag)
            self._committed_tag = self._done_tag

    async def get(self, timeout_s: float | None = None) -> Message | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.next_message()
        except TimeoutError:
            return None

    async def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        self._came_back()
        try:
            async with asyncio.timeout(timeout_s):
                batch = await self._next_run()
        except TimeoutError:
            return None
        if self._auto_ack:
            batch.ack()
        else:
            self._handed_tag = last_tag_of(batch)
        return batch

    def _require_open(self) -> None:
        if self._over is not None:
            raise self._over

    async def _next_run(self) -> Batch:
        while not self._runs:
            self._require_open()
            self._arrived.clear()
            await self._arrived.wait()
        return self._runs.popleft()

    # --- from the broker ---

    async def attached(self, channel: Channel) -> None:
        has_visibility = self._visibility_ms is not None
        if has_visibility and not channel.connection.can_extend:
            raise Unsupported("this broker has no visibility timeout for consumers")
        self._channel = channel
        self._answers = ChannelAnswers(channel, self.topic, has_visibility=has_visibility)
        await channel.call(BasicQos(0, self._prefetch, False), BasicQosOk)
        if self._has_partitions:
            await channel.call(BasicConsume(NOTICES, _NOTICE_TAG, no_ack=True), BasicConsumeOk)
        method = BasicConsume(
            self.topic, _TAG, exclusive=self._exclusive, arguments=self._arguments
        )
        await channel.call(method, BasicConsumeOk)

    @property
    def over(self) -> bool:
        return self._over is not None

    def detached(self) -> None:
        """Nothing of the lost connection can be answered: the broker delivers it again."""
        self._channel = None
        if self._answers is not None:
            self._answers.end()
        self._runs.clear()
        self._messages.clear()
        self._handed_tag = self._done_tag = self._committed_tag = 0
        self._set_partitions(frozenset())

    def fail(self, error: BraidError) -> None:
        if self._over is None:
            self.detached()
            self._over = error
            self._arrived.set()

    def on_deliveries(self, run: DeliveryRun) -> None:
        if self._answers is not None:
            self._answers.ledger.deliver(run.first_tag, run.last_tag)
            if run.consumer_tag == _NOTICE_TAG.encode():
                self._answers.ledger.settle(run.first_tag, run.last_tag)  # it needs no answer
                for body in run.values():
                    self._set_partitions(frozenset(json.loads(body)["assigned"]))
                return
            self._runs.append(Batch(run, self.wrap(self._answers)))
            self._arrived.set()

    def on_timeout(self, first: int, last: int) -> None:
        """What was not handed out yet never is: others have it."""
        if self._answers is not None:
            self._answers.time_out(first, last)
            kept = [each for each in self._messages if not first <= each.delivery_tag <= last]
            self._messages.clear()
            self._messages.extend(kept)

    def _in_time(self, batch: Batch) -> list[Message]:
        messages = list(batch)
        if self._visibility_ms is None or self._answers is None:
            return messages
        return [each for each in messages if self._answers.is_in_time(each.delivery_tag)]

    def _set_partitions(self, partitions: frozenset[int]) -> None:
        before, self.partitions = self.partitions, partitions
        if before - partitions and self._on_revoked is not None:
            self._on_revoked(before - partitions)
        if partitions - before and self._on_assigned is not None:
            self._on_assigned(partitions - before)

    def on_cancel(self) -> None:
        self._link.topology.forget_queue(self.topic)
        self.fail(ConsumerCancelled(f"the broker ended the consumer: {self.topic!r} is gone"))

    def on_closed(self, error: BraidError) -> None:
        self.fail(error)


_TAG = "c"
_NOTICE_TAG = "n"
"""Tags are a channel's own, and a consumer has one to itself."""

NOTICES = "amq.braidmq.group-notices"
"""Whoever consumes from it is told which partitions the channel's consumers have."""


def _arguments(
    group: str | None, start: Start, mode: GroupMode | None, priority: int, member: str | None
) -> Table:
    arguments: Table = {"x-delivery-facts": True}
    if priority:
        arguments["x-priority"] = priority
    if group is not None:
        arguments["x-group"] = group
        arguments["x-group-offset"] = _position(start)
    if mode is not None:
        arguments["x-group-mode"] = mode
    if member is not None:
        arguments["x-group-member"] = member
    return arguments


def _check_start(start: object) -> None:
    if isinstance(start, bool) or not isinstance(start, int | datetime):
        one_of("start", start, End, "an offset, or a datetime")
    elif isinstance(start, int) and start < 0:
        raise BadRequest(f"start is {start}, and an offset is 0 or more")


def _position(start: Start) -> FieldValue:
    if isinstance(start, datetime):
        aware = start if start.tzinfo is not None else start.replace(tzinfo=UTC)
        return f"@{int(aware.timestamp() * 1000)}"
    return Long(start) if isinstance(start, int) else start
