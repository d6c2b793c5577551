"""How long the oldest message of a subscription has been ready, and its oldest delivery unanswered.

Asked for by whoever looks, and nothing is counted for it in between: of each partition one record
is read, and only if it is another than at the last look.
"""

from braidmq.engine.topics import PartitionView, Subscription, Topic
from braidmq.model.errors import PartitionQuarantined


def ready_age_ms(subscription: Subscription, now_ms: int) -> int | None:
    """Of the oldest message that waits for a consumer: since it was published, or was due. None:
    there is no such message."""
    return _age(now_ms, [_ready_since(view) for view in subscription.views])


def in_flight_age_ms(subscription: Subscription, now_ms: int) -> int | None:
    """Of the oldest delivery that is not answered. None: there is none, or only those that were
    handed out before a restart and outlived it."""
    return _age(now_ms, [view.state.in_flight_since_ms for view in subscription.views])


def oldest(topic: Topic, now_ms: int) -> tuple[int | None, int | None]:
    """Both, of all its subscriptions."""
    ready = [ready_age_ms(each, now_ms) for each in topic.subscriptions.values()]
    flying = [in_flight_age_ms(each, now_ms) for each in topic.subscriptions.values()]
    return (
        max((each for each in ready if each is not None), default=None),
        max((each for each in flying if each is not None), default=None),
    )


def _age(now_ms: int, times_ms: list[int]) -> int | None:
    known = [each for each in times_ms if each >= 0]
    return max(0, now_ms - min(known)) if known else None


def _ready_since(view: PartitionView) -> int:
    """When the oldest ready message could be had; -1: nothing is ready, or its record is gone or
    can't be read."""
    offset = view.state.oldest_ready()
    known, since_ms = view.ready_since
    if offset == known:
        return since_ms
    since_ms = -1
    try:
        for run in view.partition.runs(offset, offset + 1) if offset >= 0 else ():
            clock = view.partition.clock_at(offset)
            stamp_ms = clock.stamp_of(run.batch, run.first)
            since_ms = max(stamp_ms, clock.due_of(run.batch, run.first), 0)
    except PartitionQuarantined:
        return -1
    view.ready_since = (offset, since_ms)
    return since_ms
