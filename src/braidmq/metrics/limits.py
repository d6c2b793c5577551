"""What was slowed or refused for being too fast, and what namespaces use of their quotas."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from braidmq.engine.quotas import Quotas


class LimitsCollector(Collector):
    def __init__(
        self, quotas: Quotas, rates: Mapping[tuple[str, str], int], held_back: int
    ) -> None:
        """``rates``: by kind of limit, and what became of who was above it."""
        self._quotas = quotas
        self._rates = rates
        self._held_back = held_back

    def collect(self) -> Iterator[Metric]:
        limited = CounterMetricFamily(
            "braid_rate_limited",
            "Clients that were too fast: how often one was slowed, or refused.",
            labels=("limit", "outcome"),
        )
        for of, count in sorted(self._rates.items()):
            limited.add_metric(of, count)
        limited.add_metric(("logins", "refused"), self._held_back)
        yield limited
        labels = ("namespace", "quota")
        limit = GaugeMetricFamily("braid_quota_limit", "What a namespace may have.", labels=labels)
        used = GaugeMetricFamily("braid_quota_used", "What it has of that.", labels=labels)
        near = GaugeMetricFamily(
            "braid_quota_near", "Whether that is 80 % or more of what it may have.", labels=labels
        )
        for namespace, use in self._quotas.all_usage():
            of = (namespace, use.quota)
            limit.add_metric(of, use.limit)
            used.add_metric(of, use.used)
            near.add_metric(of, use.is_near)
        yield from (limit, used, near)
        refused = CounterMetricFamily(
            "braid_quota_refused", "Requests refused because a quota is used up.", labels=labels
        )
        for of, count in sorted(self._quotas.refused.items()):
            refused.add_metric(of, count)
        yield refused
