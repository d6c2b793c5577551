"""Log-ins with tokens, and the keys they are verified with."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from braidmq.security.token_logins import TokenLogins


class TokenCollector(Collector):
    def __init__(self, logins: TokenLogins) -> None:
        self._logins = logins

    def collect(self) -> Iterator[Metric]:
        logins = self._logins
        for name, text, label, counts in (
            ("braid_token_logins", "Log-ins with a token.", "kind", logins.verified),
            ("braid_tokens_refused", "Tokens refused.", "reason", logins.refused),
            (
                "braid_token_logins_ended",
                "Connections that ended with the token they were opened with.",
                "reason",
                logins.ended,
            ),
        ):
            family = CounterMetricFamily(name, text, labels=(label,))
            for of, count in sorted(counts.items()):
                family.add_metric((of,), count)
            yield family
        jwks = logins.jwks
        yield CounterMetricFamily(
            "braid_jwks_fetches", "Times an issuer was asked for its keys.", value=jwks.fetches
        )
        yield CounterMetricFamily(
            "braid_jwks_fetch_failures", "Of these, those without an answer.", value=jwks.failures
        )
        yield GaugeMetricFamily(
            "braid_jwks_keys", "Keys that JWT are verified with.", value=len(jwks.ring.keys or ())
        )
