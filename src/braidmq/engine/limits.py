"""What a topic takes before it refuses: messages up to a size, and so many of them."""

from braidmq.engine.errors import MessageTooLarge, PartitionRequired
from braidmq.engine.topics import Topic
from braidmq.record.batch import RecordBatch


def check_size(topic: Topic, batch: RecordBatch) -> None:
    if batch.value_bytes_max > topic.message_bytes_max:
        raise MessageTooLarge(
            f"a message of {batch.value_bytes_max} bytes, topic {topic.name!r} takes at most "
            f"{topic.message_bytes_max}"
        )


def check_place(topic: Topic) -> None:
    """For a batch whose publisher names no partition."""
    if topic.needs_partition:
        raise PartitionRequired(
            f"whoever publishes to topic {topic.name!r} has to name one of its {topic.width} "
            "partitions"
        )


def room(topic: Topic, batch: RecordBatch) -> int:
    """How many records of the batch the topic takes, before it refuses."""
    if topic.drops_head:
        return batch.count
    policy, fitting = topic.policy, batch.count
    count, size = _load(topic)
    if topic.counts_ready and policy.max_messages != 0 and topic.subscriptions:
        awaited = min(each.awaited for each in topic.subscriptions.values())
        if awaited >= count + fitting:
            return fitting  # all of it is as good as delivered
        count -= awaited
    if policy.max_messages is not None:
        fitting = min(fitting, max(0, policy.max_messages - count))
    if policy.max_bytes is not None:
        left = policy.max_bytes - size
        if batch.value_bytes_between(0, fitting) > left:
            fitting = max(batch.reach(0, fitting, left + 1) - 1, 0) if left >= 0 else 0
    return fitting


def _load(topic: Topic) -> tuple[int, int]:
    """What counts towards the limits before something is refused, with what is undecided:
    subscriptions are not told of it yet, but it may come."""
    count, size = topic.load
    undecided = sum([each.undecided for each in topic.partitions])
    if undecided:
        more = sum([each.undecided_bytes for each in topic.partitions])
        for subscription in topic.limited_subscriptions:
            if not subscription.uncommitted:
                its_count, its_size = subscription.load
                count = max(count, its_count + undecided)
                size = max(size, its_size + more)
    return count, size


def has_room(topic: Topic, count: int, size: int) -> bool:
    """Whether so many messages of so many bytes fit without one being refused or pushed out."""
    policy = topic.policy
    if not topic.bounded:
        return True
    there, there_bytes = _load(topic)
    return (policy.max_messages is None or there + count <= policy.max_messages) and (
        policy.max_bytes is None or there_bytes + size <= policy.max_bytes
    )


def is_full(topic: Topic) -> bool:
    """Whether a topic that refuses takes no more."""
    policy = topic.policy
    if topic.drops_head:
        return False
    count, size = _load(topic)
    return (policy.max_messages is not None and count >= policy.max_messages) or (
        policy.max_bytes is not None and size >= policy.max_bytes
    )
