"""Handshakes of TLS, and how long certificates last."""

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from braidmq.net.tls_certificates import Certificates


class TlsCollector(Collector):
    """Nothing of a node without TLS."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates

    def collect(self) -> Iterator[Metric]:
        in_use = self._certificates.in_use()
        if not in_use:
            return
        expiry = GaugeMetricFamily(
            "braid_tls_certificate_expiry_seconds",
            "Until a certificate ends; negative once it has.",
            labels=("listener", "subject", "serial"),
        )
        now_s = time.time()
        # One file may be named twice; a series can be there only once.
        for name, each in dict.fromkeys(in_use):
            expiry.add_metric((name, each.subject, each.serial), round(each.not_after_s - now_s))
        yield expiry
        counts = self._certificates.handshakes.counts
        for outcome, text, found in (
            ("handshakes", "Connections over TLS that were begun as they should.", counts.done),
            ("handshakes_failed", "Connections over TLS that were not.", counts.failed),
        ):
            counter = CounterMetricFamily(f"braid_tls_{outcome}", text, labels=("listener",))
            for name in dict.fromkeys(name for name, _ in in_use):
                counter.add_metric((name,), found[name])
            yield counter
        yield GaugeMetricFamily(
            "braid_tls_handshakes_open",
            "Handshakes under way.",
            value=len(self._certificates.handshakes),
        )
        yield CounterMetricFamily(
            "braid_tls_reloads", "Certificates read again.", value=self._certificates.reloads
        )
        yield CounterMetricFamily(
            "braid_tls_reload_failures",
            "Certificates that changed and could not be read: the former stayed in use.",
            value=self._certificates.reload_failures,
        )
        yield GaugeMetricFamily(
            "braid_tls_reloaded_timestamp_seconds",
            "When certificates were read again last; 0 if never.",
            value=self._certificates.reloaded_s,
        )
