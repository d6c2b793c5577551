"""What may be gone from a log, and what must be: retention and compaction in plain Python.

Retention takes its time, so that the model does not say when a message goes, only whether a rule
allowed it; and what a look at a topic leaves of it at most. A compaction says exactly.
"""

from braidmq.engine.states import State
from model import Message, Topic

Pieces = list[tuple[int, int, int]]
"""Batches and segments of a log: offsets from and to, and bytes. They go as a whole."""


def may_be_gone(
    topic: Topic, number: int, message: Message, now_ms: int, end: int, pieces: Pieces
) -> bool:
    """Whether any rule lets a log that ends at ``end`` be without a message."""
    where, rule = (number, message.offset), topic.policy.retention
    if where in topic.cancelled or where in topic.may_go:
        return True
    if rule.time_ms and message.stamped_ms < now_ms - rule.time_ms:
        return True
    if rule.messages and end - message.offset - _cancelled(topic, where, end) > rule.messages:
        return True
    if rule.bytes and bytes_from(pieces, message.offset) > rule.bytes:
        return True
    if where not in topic.settled_ms:
        return False
    return not topic.subs or (rule.until_acked and not is_kept(topic, where, now_ms, pieces))


def is_kept(topic: Topic, where: tuple[int, int], now_ms: int, pieces: Pieces) -> bool:
    """Whether a queue must have a message that nobody wants any more."""
    rule = topic.policy.retention
    if not rule.keeps_acked:
        return False
    if rule.keep_acked_ms and topic.settled_ms[where] <= now_ms - rule.keep_acked_ms:
        return False
    room = rule.keep_acked_bytes
    return not room or bytes_from(pieces, where[1]) <= room


def bytes_from(pieces: Pieces, offset: int) -> int:
    return sum(size for _, stop, size in pieces if stop > offset)


def _cancelled(topic: Topic, where: tuple[int, int], end: int) -> int:
    number, offset = where
    return sum(1 for n, at in topic.cancelled if n == number and offset <= at < end)


def follow(
    topic: Topic,
    number: int,
    present: set[int],
    times: tuple[int, int],
    end: int,
    pieces: Pieces,
) -> None:
    """Tell the model what the log has; raises AssertionError when too much is gone. ``times``: when
    that was done last, and now."""
    since_ms, now_ms = times
    messages = topic.partitions[number]
    views = [sub.views[number] for sub in topic.holders()]
    wanted = {at for view in views for at in view.cells}
    for offset in messages:
        if offset in wanted:
            topic.settled_ms.pop((number, offset), None)
        else:
            topic.settled_ms.setdefault((number, offset), since_ms)
    for offset, message in messages.items():
        where = (number, offset)
        if offset in present:
            topic.absent.discard(where)
            kept = where not in topic.settled_ms or is_kept(topic, where, now_ms, pieces)
            if topic.policy.retention.until_acked and not kept:
                topic.may_go.add(where)
        elif where not in topic.absent:
            assert may_be_gone(topic, number, message, now_ms, end, pieces), f"{message} is gone"
            topic.absent.add(where)
            for view in views:
                view.cells.pop(offset, None)


def forget(topic: Topic, number: int, offset: int) -> None:
    """A message was lost that was not durable: its offset may be another's from now on."""
    where = (number, offset)
    del topic.partitions[number][offset]
    topic.absent.discard(where)
    topic.may_go.discard(where)
    topic.settled_ms.pop(where, None)
    for sub in topic.holders():
        sub.views[number].cells.pop(offset, None)


def forget_partition(topic: Topic, number: int) -> None:
    for places in (topic.cancelled, topic.absent, topic.may_go):
        places -= {where for where in places if where[0] == number}
    topic.settled_ms = {where: ms for where, ms in topic.settled_ms.items() if where[0] != number}


def check_within(topic: Topic, number: int, present: set[int], now_ms: int, left: Pieces) -> None:
    """What a look at a topic has to leave within its limits."""
    rule = topic.policy.retention
    messages = topic.partitions[number]
    if rule.messages:
        assert len(present) <= rule.messages, "more messages than are to be kept"
    if rule.time_ms:
        oldest = min((messages[at].stamped_ms for at in present), default=now_ms)
        assert oldest >= now_ms - rule.time_ms, "older than anything is to be"
    if rule.bytes:
        assert len(left) <= 1 or bytes_from(left, 0) <= rule.bytes, "more bytes than are to be kept"


def compact(topic: Topic, number: int, present: set[int], now_ms: int) -> set[int]:
    """Take out what later messages of the same key replace; returns what goes of the log."""
    rule = topic.policy.compaction
    views = [sub.views[number] for sub in topic.holders()]
    held = {cell.offset for view in views for cell in view.among(0, 1 << 62, State.IN_FLIGHT)}
    keys: dict[bytes, list[Message]] = {}
    for offset in sorted(present):
        message = topic.partitions[number][offset]
        key = message.header if rule.header else message.key
        if key is not None:
            keys.setdefault(key, []).append(message)
    gone: set[int] = set()
    for *older, latest in keys.values():
        going = [m for m in older if _may_go(m, held, now_ms - rule.lag_ms)]
        if not latest.value and going == older and _may_go(latest, held, now_ms - rule.lag_ms):
            going.append(latest)
        gone |= {message.offset for message in going}
    for view in views:
        for offset in gone:
            view.cells.pop(offset, None)
    topic.may_go |= {(number, offset) for offset in gone}
    return gone


def _may_go(message: Message, held: set[int], until_ms: int) -> bool:
    return message.stamped_ms <= until_ms and message.offset not in held
