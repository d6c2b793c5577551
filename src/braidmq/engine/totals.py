"""What became of messages, by namespace, since the node started. These counts never go back: what
a topic or subscription has counted is kept when it is deleted."""

from collections import Counter
from collections.abc import Iterable
from operator import add, attrgetter

from braidmq.engine.topics import Subscription, Topic

SUBSCRIPTION_COUNTS = (
    "delivered",
    "redelivered",
    "acked",
    "nacked",
    "rejected",
    "timed_out",
    "expired",
    "dead_lettered",
)
"""Attributes of a subscription that only grow."""


_counts_of = attrgetter(*SUBSCRIPTION_COUNTS)


class NamespaceTotals:
    __slots__ = ("counts", "dead_lettered", "delays_ended", "dropped")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """``published`` and ``SUBSCRIPTION_COUNTS``, of topics and subscriptions that are gone."""
        self.dead_lettered: Counter[str] = Counter()
        """Messages that became dead letters, by reason."""
        self.dropped: Counter[str] = Counter()
        """Messages given up that had nowhere to go, by reason."""
        self.delays_ended: Counter[str] = Counter()
        """Messages published for later, by what became of them."""


class Totals:
    def __init__(self) -> None:
        self._namespaces: dict[str, NamespaceTotals] = {}

    def of(self, namespace: str) -> NamespaceTotals:
        found = self._namespaces.get(namespace)
        if found is None:
            found = self._namespaces[namespace] = NamespaceTotals()
        return found

    def keep_topic(self, topic: Topic) -> None:
        """Once, when it is deleted; its subscriptions are kept for themselves."""
        self.of(topic.namespace).counts["published"] += topic.published

    def keep_subscription(self, subscription: Subscription) -> None:
        counts = self.of(subscription.topic.namespace).counts
        for name in SUBSCRIPTION_COUNTS:
            counts[name] += getattr(subscription, name)

    def all_counts(self, topics: Iterable[Topic]) -> dict[str, Counter[str]]:
        """By namespace, those of the living ``topics`` included."""
        sums: dict[str, list[int]] = {}
        for topic in topics:
            total = sums.get(topic.namespace)
            if total is None:
                total = sums[topic.namespace] = [0] * (1 + len(SUBSCRIPTION_COUNTS))
            total[0] += topic.published
            for subscription in topic.subscriptions.values():
                total[1:] = map(add, total[1:], _counts_of(subscription))
        found = {name: Counter(each.counts) for name, each in self._namespaces.items()}
        for namespace, total in sums.items():
            living = dict(zip(("published", *SUBSCRIPTION_COUNTS), total, strict=True))
            found.setdefault(namespace, Counter()).update(living)
        return found

    def namespaces(self) -> dict[str, NamespaceTotals]:
        return dict(self._namespaces)
