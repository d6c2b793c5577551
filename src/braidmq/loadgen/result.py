"""What one run found."""

from dataclasses import asdict, dataclass, field
from typing import Any

from braidmq.loadgen.arrivals import Histogram

PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True)
class Latency:
    """Milliseconds."""

    p50: float
    p90: float
    p99: float
    p999: float
    max: float

    @classmethod
    def of(cls, histogram: Histogram) -> "Latency | None":
        if not histogram.total:
            return None
        p50, p90, p99, p999 = (histogram.percentile(each) / 1e6 for each in PERCENTILES)
        return cls(p50, p90, p99, p999, histogram.max_ns / 1e6)


@dataclass
class Result:
    """Counts are of the whole run; rates, latency and processor time of its measured part."""

    workload: str
    about: str
    broker: str
    seconds: float = 0.0
    published: int = 0
    confirmed: int = 0
    received: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    redelivered: int = 0
    nacked: int = 0
    strange: int = 0
    """Confirms and delivery tags that were not due, and bodies that are not of this run."""
    measured: int = 0
    """Deliveries in the measured part."""
    publish_rate: float = 0.0
    rate: float = 0.0
    """Deliveries a second."""
    end_to_end_ms: Latency | None = None
    confirm_ms: Latency | None = None
    cpu_us_per_message: float | None = None
    broker_cpus: float | None = None
    broker_rss_bytes: int | None = None
    """At the end of the measured part; of a backlog, when all of it is in the queue."""
    generator_busy: float = 0.0
    """Its processor time, as a share of the measured part."""
    blocked: bool = False
    """The broker told a producer to stop."""
    drain_cpu_us_per_message: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def exactly_once(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered or self.nacked or self.strange)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"exactly_once": self.exactly_once}
