"""Barriers: what a key has in its new partition waits for what it has in the old one.

When a topic's partitions become more or fewer, keys move. A resize is kept with its topic as the
next offset of every partition at the switch. For a subscription, what stands at or above that
offset in partition q waits until it has settled what the *sources* of q have below theirs: the
partitions that keys of q may have come from.

    resize 2 → 4, hash 7:    partition 1   ──────── end ┊ ────────
                                              7     7   ┊              7 mod 2 = 1
                             partition 3                ┊ 7    7       7 mod 4 = 3: waits for the
                                                        ┊              two in partition 1

Nothing of this is stored for a subscription: it follows from the resizes and from what is settled,
so that it is there again after a restart and after a rewind. The kernel is told a ceiling
(``DeliveryState.ceiling``), which decides only what is handed out: limits, expiry, purges and
retention know nothing of barriers.
"""

from math import gcd

from braidmq.engine.records import Resize
from braidmq.engine.topics import Mode, Subscription, Topic

NO_CEILING = (1 << 63) - 1


def common(resize: Resize) -> int:
    """Keys of a partition can have been in those that have the same remainder by this number."""
    return gcd(resize.before, resize.after)


class Barriers:
    """What one subscription waits for, while there is something."""

    __slots__ = ("_ahead", "_known", "_resizes", "_unsettled", "_views")

    def __init__(self, subscription: Subscription, resizes: tuple[Resize, ...]) -> None:
        self._views = subscription.views
        self._resizes = resizes
        self._unsettled: list[set[int]] = [
            {number for number in range(resize.before) if resize.ends[number]} for resize in resizes
        ]
        """Of each resize: partitions in which something below the switch is not settled."""
        self._ahead: dict[int, list[int]] = {}
        """Of each partition the resizes for which it is unsettled, the oldest last. Later ones end
        at the same offset or after it, so that only the oldest wants to be looked at."""
        for index in reversed(range(len(resizes))):
            for number in self._unsettled[index]:
                self._ahead.setdefault(number, []).append(index)
        self._known = dict.fromkeys(self._ahead, 0)
        """Of each of them an offset below which all is settled."""

    def look(self) -> bool:
        """Follow what was settled since the last look; returns whether anything is free now."""
        changed = False
        for number, indexes in list(self._ahead.items()):
            view = self._views[number]
            start = max(self._known[number], view.log.start_offset)
            while indexes:
                end = self._resizes[indexes[-1]].ends[number]
                at = view.state.first_unsettled(start, end)
                if at >= 0:
                    self._known[number] = at
                    break
                self._unsettled[indexes.pop()].discard(number)
                start, changed = max(start, end), True
            else:
                del self._ahead[number]
        return changed and self.set_ceilings()

    @property
    def is_over(self) -> bool:
        return not any(self._unsettled)

    def set_ceilings(self) -> bool:
        """Returns whether one was raised."""
        raised = False
        for view, ceiling in zip(self._views, self._ceilings(), strict=False):
            raised = raised or ceiling > view.state.ceiling
            view.state.ceiling = ceiling
        return raised

    def _ceilings(self) -> list[int]:
        """Oldest resize first. A source that waits for an older one itself counts as unsettled,
        even if it has nothing: its keys may have more in partitions before it."""
        ceilings = [NO_CEILING] * max(
            len(self._views), *(max(each.before, each.after) for each in self._resizes)
        )
        for resize, unsettled in zip(self._resizes, self._unsettled, strict=True):
            divisor = common(resize)
            counts = [0] * divisor
            waits = [
                number in unsettled or ceilings[number] != NO_CEILING
                for number in range(resize.before)
            ]
            for number, each in enumerate(waits):
                counts[number % divisor] += each
            for number in range(resize.after):
                itself = number < resize.before and waits[number]
                if counts[number % divisor] > itself:
                    ceilings[number] = min(ceilings[number], resize.ends[number])
        return ceilings

    def awaited(self, most: int) -> list[list[int]]:
        """For each view partitions whose messages hold back some of it, at most so many: of ten
        thousand each may wait for all others."""
        found: list[list[int]] = [[] for _ in self._views]
        for resize, unsettled in zip(self._resizes, self._unsettled, strict=True):
            divisor = common(resize)
            alike: list[list[int]] = [[] for _ in range(divisor)]
            for number in sorted(unsettled):
                if len(alike[number % divisor]) <= most:  # one more: it may be the view's own
                    alike[number % divisor].append(number)
            for number, mine in enumerate(found[: resize.after]):
                if len(mine) < most:
                    others = alike[number % divisor]
                    mine += [each for each in others if each != number and each not in mine]
        return [sorted(mine[:most]) for mine in found]


def keeps_order(subscription: Subscription) -> bool:
    return subscription.topic.policy.ordering != "none" or subscription.mode is Mode.KEY_ORDERED


def raise_barriers(subscription: Subscription) -> None:
    """Find anew what a subscription waits for: there was a resize, a restart, a rewind."""
    for view in subscription.views:
        view.state.ceiling = NO_CEILING
    subscription.barriers = None
    if subscription.topic.resizes and keeps_order(subscription):
        barriers = Barriers(subscription, subscription.topic.resizes)
        barriers.look()
        if not barriers.is_over:
            barriers.set_ceilings()
            subscription.barriers = barriers


def lift_barriers(subscription: Subscription) -> None:
    """What was waited for may be settled."""
    assert subscription.barriers is not None
    subscription.barriers.look()
    if subscription.barriers.is_over:
        subscription.barriers = None


def is_past(topic: Topic, resize: Resize) -> bool:
    """Whether no partition holds a record from before it: nobody can be held back by it."""
    return all(
        not end or topic.partitions[number].log.start_offset >= end
        for number, end in enumerate(resize.ends[: resize.before])
    )
