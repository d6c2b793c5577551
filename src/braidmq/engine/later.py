"""Records that wait for their time where nobody subscribes.

Where somebody does, their views know (``State.DELAYED``). Without one there is only the log, in
which nobody wants to look for each figure: each partition keeps the offsets. A record is noted with
its timer, which is set when it is appended, when its transaction is committed, and when its
partition is brought back; so is it when the last view goes.
"""

from braidmq.engine.topics import Topic, TopicPartition
from braidmq.record.offset_set import OffsetBits


def note_later(partition: TopicPartition, offset: int) -> None:
    """A record that is not due yet."""
    if partition.views:
        return
    if partition.later is None:
        partition.later = OffsetBits()
    partition.later.add(offset, offset + 1)


def forget_later(partition: TopicPartition, start: int, stop: int) -> bool:
    """They are due, or cancelled, or gone; returns whether one had waited."""
    return partition.later is not None and partition.later.discard(start, stop) > 0


def later_in(partition: TopicPartition) -> OffsetBits:
    """Those that wait, in so far as the log still has them; changed by nobody."""
    if partition.later is None:
        return OffsetBits()
    partition.later.discard(0, partition.log.start_offset)
    return partition.later


def waiting_at(partition: TopicPartition) -> int:
    """How many wait in a partition, at a cost that does not grow with them: for the subscription
    that waits for most of them."""
    if not partition.views:
        return len(later_in(partition))
    return max(view.state.delayed for view in partition.views)


def waiting_in(topic: Topic) -> int:
    return sum(waiting_at(each) for each in topic.partitions)
