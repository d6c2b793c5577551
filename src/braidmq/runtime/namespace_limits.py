"""The quotas of namespaces: what the accounts say is what the engine and the rates hold to."""

from collections import Counter
from typing import Final

from braidmq.engine.quotas import STORAGE
from braidmq.model.ids import PRIVATE_PREFIX
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.accounts import AccountChange, Accounts, LimitsChanged, NamespaceDeleted

RATE_IN: Final = "max_messages_in_per_s"
RATE_OUT: Final = "max_messages_out_per_s"
MEASURED_MS: Final = 1000
"""A rate is that of so long, at least."""


class NamespaceQuotas:
    def __init__(self, node_loop: NodeLoop, accounts: Accounts) -> None:
        self._node_loop = node_loop
        self._accounts = accounts
        self._state = node_loop.view.state
        self.quotas = self._state.quotas
        self._measured_ms = node_loop.now_ms()
        self._counted: dict[tuple[str, str], int] = {}
        self._rates: Counter[tuple[str, str]] = Counter()
        for quota, count in (
            ("max_topics", self._topics),
            ("max_queues", self._queues),
            ("max_connections", node_loop.admission.count),
            ("max_consumers", self._consumers),
            ("max_transactions", self._transactions),
            (STORAGE, self._stored),
            (RATE_IN, lambda namespace: self._rate(namespace, RATE_IN)),
            (RATE_OUT, lambda namespace: self._rate(namespace, RATE_OUT)),
        ):
            self.quotas.count_by(quota, count)
        accounts.watch(self._on_change)

    def restore(self) -> None:
        """Once everybody has said what it counts."""
        for each in self._accounts.namespaces():
            self._set(each.name)

    def _on_change(self, change: AccountChange) -> None:
        if isinstance(change, LimitsChanged):
            self._set(change.namespace)
        elif isinstance(change, NamespaceDeleted):
            self.quotas.set(change.name, {})
            self._node_loop.rates.set_namespace(change.name, None, None)

    def _set(self, namespace: str) -> None:
        limits = self._accounts.limits(namespace)
        self.quotas.set(namespace, limits)
        rates = limits.get(RATE_IN), limits.get(RATE_OUT)
        self._node_loop.rates.set_namespace(namespace, *rates)

    # --- what there is ---

    def _topics(self, namespace: str) -> int:
        """Without those that the broker keeps for MQTT's sessions."""
        topics = self._state.topics_of(namespace)
        return sum(not each.name.startswith(PRIVATE_PREFIX) for each in topics)

    def _queues(self, namespace: str) -> int:
        topics = self._state.topics_of(namespace)
        return sum(each.kind not in ("topic", "stream") for each in topics)

    def _consumers(self, namespace: str) -> int:
        return sum(
            each in each.subscription.consumers
            and each.subscription.topic.namespace == namespace
            and not each.subscription.topic.name.startswith(PRIVATE_PREFIX)
            for each in self._state.consumers.values()
        )

    def _transactions(self, namespace: str) -> int:
        transactions = self._node_loop.engine().transactions
        return transactions.open_count(namespace)

    def _stored(self, namespace: str) -> int:
        return sum(
            partition.log.retained()[1]
            for topic in self._state.topics_of(namespace)
            for partition in topic.partitions
        )

    def _rate(self, namespace: str, quota: str) -> int:
        """Messages a second since it was asked last, if that is not too short ago."""
        now_ms = self._node_loop.now_ms()
        passed_ms = now_ms - self._measured_ms
        if passed_ms >= MEASURED_MS:
            self._measured_ms = now_ms
            counted = self._node_loop.usage.totals()
            for key, count in counted.items():
                self._rates[key] = (count - self._counted.get(key, 0)) * 1000 // passed_ms
            self._counted = counted
        return self._rates[namespace, "in" if quota == RATE_IN else "out"]
