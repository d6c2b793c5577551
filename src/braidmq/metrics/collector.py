"""What a node counts, read when somebody asks and written as Prometheus reads it."""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol, runtime_checkable

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from braidmq import __version__
from braidmq.alerts.sending import AlertCounts
from braidmq.audit.trail import AuditTrail
from braidmq.engine.engine import Engine
from braidmq.engine.record_times import AGE_BOUNDS_MS
from braidmq.engine.topics import Topic
from braidmq.metrics.limits import LimitsCollector
from braidmq.metrics.settings import MetricsSettings
from braidmq.metrics.tls import TlsCollector
from braidmq.metrics.tokens import TokenCollector
from braidmq.metrics.topics import TopicSeries
from braidmq.net.listeners import Listener
from braidmq.net.tls_certificates import Certificates
from braidmq.runtime.pipeline_runs import PipelineRun
from braidmq.security.token_logins import TokenLogins
from braidmq.storage import aside

QUARANTINED_MAX = 20
"""So many are named each for itself."""

NAMESPACE_COUNTERS = {
    "published": ("braid_published_messages", "Messages appended to topics."),
    "delivered": ("braid_delivered_messages", "Deliveries to consumers, all attempts."),
    "redelivered": ("braid_redelivered_messages", "Deliveries after a message's first."),
    "acked": ("braid_acknowledged_messages", "Messages acknowledged by consumers."),
    "nacked": ("braid_nacked_messages", "Messages given back by consumers."),
    "rejected": ("braid_rejected_messages", "Messages rejected by consumers."),
    "timed_out": ("braid_timed_out_messages", "Deliveries that nobody answered in time."),
    "expired": ("braid_expired_messages", "Messages that outlived their time."),
}
"""By what the engine calls them."""

NAMESPACE_GAUGES = {
    "ready": ("braid_ready_messages", "Messages that wait for a consumer."),
    "in_flight": ("braid_in_flight_messages", "Messages delivered and not answered."),
    "retrying": ("braid_retrying_messages", "Messages that wait for their next attempt."),
    "delayed": ("braid_delayed_messages", "Messages published for later."),
    "unsettled_bytes": ("braid_unsettled_bytes", "Bytes of all messages not settled."),
}


class Gateway(Protocol):
    """What every protocol's listener counts."""

    connections_opened: int
    publishers_slowed: int

    @property
    def connection_count(self) -> int: ...
    @property
    def channel_count(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...


@runtime_checkable
class MessageCounting(Protocol):
    """A gateway that passes messages on past the topics of the engine, too."""

    @property
    def received_messages(self) -> int: ...
    @property
    def sent_messages(self) -> int: ...
    @property
    def missed_messages(self) -> int: ...


class ReloadCounts(Protocol):
    """How often the configuration was read again."""

    reloads: int
    failures: int
    reloaded_s: float


class Metrics:
    """``pieces`` is what ``GET /metrics`` answers."""

    def __init__(
        self,
        engine: Engine,
        gateways: Mapping[str, Gateway],
        now_ms: Callable[[], int],
        settings: MetricsSettings | None = None,
        pipelines: Callable[[], Sequence[PipelineRun]] = list,
        alerts: AlertCounts | None = None,
        failed_logins: Mapping[str, int] | None = None,
        listeners: Sequence[Listener] = (),
        certificates: Certificates | None = None,
        reloads: ReloadCounts | None = None,
        tokens: TokenLogins | None = None,
        audit: AuditTrail | None = None,
        rates: Mapping[tuple[str, str], int] | None = None,
        held_back: Callable[[], int] = int,
    ) -> None:
        self._engine = engine
        self._gateways = gateways
        self._now_ms = now_ms
        self._listeners = listeners
        self._certificates = certificates
        self._reloads = reloads
        self._tokens = tokens
        self._audit = audit
        self._rates = {} if rates is None else rates
        self._held_back = held_back
        self._alerts = alerts or AlertCounts()
        self._pipelines = pipelines
        self.replace(settings or MetricsSettings())
        self._failed_logins = {} if failed_logins is None else failed_logins
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        GCCollector(registry=self._process)

    def replace(self, settings: MetricsSettings) -> None:
        self._settings = settings
        self.public = settings.public
        self.local = settings.local

    def render(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The text; others may have their turn between two pieces of it."""
        topics = self._engine.state.topics_of()
        detailed = len(topics) <= self._settings.topics_max
        series = TopicSeries(
            topics,
            self._now_ms(),
            detailed=detailed,
            lanes_max=self._settings.lanes_max,
            lead_ms=self._engine.state.clock.lead_ms,
        )
        for _ in series.run():
            yield b""
        omitted = 0 if detailed else len(topics)
        registry = CollectorRegistry()
        registry.register(
            NodeCollector(self._engine, self._gateways, series, omitted, self._failed_logins)
        )
        registry.register(ListenerCollector(self._listeners))
        if self._certificates is not None:
            registry.register(TlsCollector(self._certificates))
        limits = LimitsCollector(self._engine.state.quotas, self._rates, self._held_back())
        registry.register(limits)
        registry.register(PipelineCollector(self._pipelines()))
        registry.register(AlertCollector(self._alerts))
        if self._audit is not None:
            registry.register(AuditCollector(self._audit))
        if self._reloads is not None:
            registry.register(ReloadCollector(self._reloads))
        if self._tokens is not None:
            registry.register(TokenCollector(self._tokens))
        yield generate_latest(registry)
        yield generate_latest(self._process)
        yield from series.texts()


class ListenerCollector(Collector):
    """Of each listener, whether it is open and how many came by it."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def collect(self) -> Iterator[Metric]:
        labels = ("listener", "protocol")
        is_open = GaugeMetricFamily(
            "braid_listener_open", "Whether a listener accepts connections.", labels=labels
        )
        connections = GaugeMetricFamily(
            "braid_listener_connections", "Connections open, by listener.", labels=labels
        )
        for each in self._listeners:
            of = (each.spec.name, each.spec.protocol)
            is_open.add_metric(of, each.is_open)
            connections.add_metric(of, each.connection_count)
        yield is_open
        yield connections


class PipelineCollector(Collector):
    """What pipelines that run elsewhere have said of themselves."""

    def __init__(self, runs: Sequence[PipelineRun]) -> None:
        self._runs = runs

    def collect(self) -> Iterator[Metric]:
        labels = ("namespace", "pipeline", "parameters")
        # By mistake two may run with the same parameters; a series can be there only once.
        runs = {(each.namespace, each.name, each.identity): each for each in self._runs[::-1]}
        state = GaugeMetricFamily(
            "braid_pipeline_state", "1 for how it is.", labels=(*labels, "state")
        )
        for of, run in runs.items():
            state.add_metric((*of, run.state), 1)
        yield state
        for name, text, attribute in (
            ("braid_pipeline_rows", "Rows of this run so far.", "rows"),
            ("braid_pipeline_rows_per_second", "Rows a second, of the last batch.", "rows_per_s"),
            ("braid_pipeline_lag_messages", "Messages it has still to read.", "lag"),
            ("braid_pipeline_batch", "The last batch done; -1: none.", "batch"),
            ("braid_pipeline_batch_milliseconds", "How long that took.", "batch_ms"),
            ("braid_pipeline_tasks", "Tasks of the batch it is at.", "tasks"),
            ("braid_pipeline_tasks_done", "Of these, how many are done.", "tasks_done"),
            ("braid_pipeline_restarts", "Streams of it begun again.", "restarts"),
            (
                "braid_pipeline_remaining_seconds",
                "Until it has read what is there now, by its rate.",
                "remaining_s",
            ),
        ):
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for of, run in runs.items():
                value = getattr(run, attribute)
                if value is not None:
                    gauge.add_metric(of, value)
            yield gauge


class ReloadCollector(Collector):
    def __init__(self, counts: ReloadCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        yield _counter("braid_config_reloads", "Configurations read again.", self._counts.reloads)
        yield _counter(
            "braid_config_reload_failures",
            "Configurations that could not be used: nothing changed.",
            self._counts.failures,
        )
        yield GaugeMetricFamily(
            "braid_config_reloaded_timestamp_seconds",
            "When the configuration was read again last; 0 if never.",
            value=self._counts.reloaded_s,
        )


class AlertCollector(Collector):
    def __init__(self, counts: AlertCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        for outcome, text in (
            ("sent", "Alerts of dead letters that a webhook took."),
            ("failed", "Alerts given up: the webhook did not take them."),
            ("dropped", "Alerts not tried: too many waited, or the node stopped."),
        ):
            yield _counter(f"braid_alerts_{outcome}", text, getattr(self._counts, outcome))


class AuditCollector(Collector):
    def __init__(self, audit: AuditTrail) -> None:
        self._audit = audit

    def collect(self) -> Iterator[Metric]:
        for what, text, count in (
            ("written", "Events of the audit log that are in its files.", self._audit.written),
            ("lost", "Events of the audit log that could not be written.", self._audit.lost),
            ("unpublished", "Events of the audit log not in its topic.", self._audit.unpublished),
        ):
            yield _counter(f"braid_audit_events_{what}", text, count)


class NodeCollector(Collector):
    def __init__(
        self,
        engine: Engine,
        gateways: Mapping[str, Gateway],
        series: TopicSeries,
        omitted: int,
        failed_logins: Mapping[str, int],
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._gateways = gateways
        self._series = series
        self._omitted = omitted
        self._failed_logins = failed_logins

    def collect(self) -> Iterator[Metric]:
        topics = self._engine.state.topics_of()
        info = InfoMetricFamily("braid_build", "The BraidMQ that runs here.")
        info.add_metric((), {"version": __version__, "python": platform.python_version()})
        yield info
        yield from self._messages(topics)
        yield from self._things(topics)
        yield from self._schedules()
        yield from self._transactions()
        yield from self._connections()
        yield from self._journal()
        yield from self._damage()
        yield from self._background_work()
        yield from self._pressure()

    def _messages(self, topics: Iterable[Topic]) -> Iterator[Metric]:
        totals = self._engine.state.totals
        counts = totals.all_counts(topics)
        for attribute, (name, text) in NAMESPACE_COUNTERS.items():
            yield _by_namespace(
                CounterMetricFamily(name, text, labels=("namespace",)),
                {namespace: each[attribute] for namespace, each in counts.items()},
            )
        ends = totals.namespaces()
        yield _by_reason(
            "braid_dead_lettered_messages",
            "Messages moved to where a topic wants its dead.",
            {namespace: each.dead_lettered for namespace, each in ends.items()},
        )
        yield _by_reason(
            "braid_dropped_messages",
            "Messages given up that had nowhere to go.",
            {namespace: each.dropped for namespace, each in ends.items()},
        )
        yield _by_reason(
            "braid_delays_ended",
            "Messages published for later whose time came, that were cancelled or expired in it.",
            {namespace: each.delays_ended for namespace, each in ends.items()},
            label="state",
        )
        for attribute, (name, text) in NAMESPACE_GAUGES.items():
            held = self._series.held.items()
            yield _by_namespace(
                GaugeMetricFamily(name, text, labels=("namespace",)),
                {namespace: getattr(each, attribute) for namespace, each in held},
            )
        ages = self._engine.state.ages
        yield _histogram(
            "braid_delivery_latency_seconds",
            "From when a message was appended, or became due, to its first delivery.",
            [bound / 1000 for bound in AGE_BOUNDS_MS],
            ages.counts,
            ages.total_ms / 1000,
        )

    def _things(self, topics: Iterable[Topic]) -> Iterator[Metric]:
        for name, text, counts in (
            ("braid_topics", "Topics.", Counter(topic.namespace for topic in topics)),
            ("braid_subscriptions", "Subscriptions.", self._series.subscriptions),
            ("braid_consumers", "Consumers attached.", self._series.consumers),
        ):
            yield _by_namespace(GaugeMetricFamily(name, text, labels=("namespace",)), counts)
        yield _gauge(
            "braid_topics_without_series",
            "Topics that have no series of their own because there are too many.",
            self._omitted,
        )
        yield _gauge(
            "braid_lanes",
            "Lanes of partitions with priorities; above `metrics.lanes_max` without series.",
            self._series.lanes,
        )

    def _schedules(self) -> Iterator[Metric]:
        schedules = self._engine.schedules
        gauge = GaugeMetricFamily(
            "braid_schedules", "Recurring schedules.", labels=("namespace", "state")
        )
        for (namespace, paused), count in schedules.count_by_namespace().items():
            gauge.add_metric((namespace, "paused" if paused else "active"), count)
        yield gauge
        for attribute, text in (
            ("runs", "Messages that schedules published."),
            ("missed", "Times that passed and were made up for with the run before them."),
            ("failures", "Runs that published nothing."),
        ):
            yield _by_namespace(
                CounterMetricFamily(f"braid_schedule_{attribute}", text, labels=("namespace",)),
                {name: getattr(each, attribute) for name, each in schedules.counts.items()},
            )

    def _transactions(self) -> Iterator[Metric]:
        transactions = self._engine.transactions
        yield _gauge(
            "braid_open_transactions",
            "Transactions that are not decided.",
            len(transactions.transactions()),
        )
        yield _counter(
            "braid_transactions_committed", "Transactions committed.", transactions.committed
        )
        yield _counter("braid_transactions_aborted", "Transactions aborted.", transactions.aborted)
        yield _gauge(
            "braid_producers", "Idempotent producers that are known.", transactions.producer_count
        )

    def _connections(self) -> Iterator[Metric]:
        for name, text, attribute in (
            ("braid_connections", "Connections open.", "connection_count"),
            ("braid_channels", "Channels or sessions open.", "channel_count"),
        ):
            gauge = GaugeMetricFamily(name, text, labels=("protocol",))
            for protocol, gateway in self._gateways.items():
                gauge.add_metric((protocol,), getattr(gateway, attribute))
            yield gauge
        for name, text, attribute in (
            ("braid_connections_opened", "Connections that logged in.", "connections_opened"),
            ("braid_publishers_slowed", "Reads put off under pressure.", "publishers_slowed"),
            ("braid_received_bytes", "Bytes read from clients.", "received_bytes"),
            ("braid_sent_bytes", "Bytes written to clients.", "sent_bytes"),
        ):
            counter = CounterMetricFamily(name, text, labels=("protocol",))
            for protocol, gateway in self._gateways.items():
                counter.add_metric((protocol,), getattr(gateway, attribute))
            yield counter
        counter = CounterMetricFamily(
            "braid_logins_refused", "Logins refused.", labels=("protocol",)
        )
        for protocol in (*self._gateways, "http"):
            counter.add_metric((protocol,), self._failed_logins.get(protocol, 0))
        yield counter
        yield _gauge(
            "braid_disabled_references",
            "Dead-letter targets, alternate exchanges and bindings that do not hold: who made them"
            " has lost the right to what they name.",
            self._engine.references.disabled,
        )
        for name, text, attribute in (
            ("braid_received_messages", "Messages that clients published.", "received_messages"),
            ("braid_sent_messages", "Messages written to subscribers.", "sent_messages"),
            (
                "braid_missed_messages",
                "Messages of QoS 0 that a subscriber who does not read had to miss.",
                "missed_messages",
            ),
        ):
            counter = CounterMetricFamily(name, text, labels=("protocol",))
            for protocol, gateway in self._gateways.items():
                if isinstance(gateway, MessageCounting):
                    counter.add_metric((protocol,), getattr(gateway, attribute))
            yield counter

    def _journal(self) -> Iterator[Metric]:
        journal = self._store.journal
        seconds = journal.commit_seconds
        yield _histogram(
            "braid_journal_commit_seconds",
            "Writing and syncing what waited for the disk.",
            seconds.bounds,
            seconds.counts,
            seconds.total,
        )
        yield _counter("braid_journal_syncs", "Syncs of journal files.", journal.syncs)
        yield _counter(
            "braid_journal_written_bytes", "Bytes written to the journal.", journal.bytes_written
        )
        yield _gauge("braid_journal_bytes", "Bytes that a recovery would read.", journal.live_bytes)
        yield _gauge(
            "braid_storage_failed",
            "1 once a write or sync has failed: nothing is confirmed any more.",
            int(self._store.failure() is not None),
        )

    def _damage(self) -> Iterator[Metric]:
        found = self._engine.quarantine.partitions()
        yield _gauge(
            "braid_quarantined_partitions",
            "Partitions that are not served because a file of theirs is damaged.",
            len(self._store.quarantined()),
        )
        info = GaugeMetricFamily(
            "braid_quarantined_partition",
            f"1 for each that is quarantined, the first {QUARANTINED_MAX}.",
            labels=("namespace", "topic", "partition", "file"),
        )
        for each in found[:QUARANTINED_MAX]:
            damage, topic = each.log.damage, each.topic
            if damage is not None:
                labels = (topic.namespace, topic.name, str(each.number), damage.file)
                info.add_metric(labels, 1)
        yield info
        yield _gauge(
            "braid_set_aside_files",
            "Files in aside/: not in use any more, not removed.",
            len(aside.found(self._store.disk)),
        )

    def _background_work(self) -> Iterator[Metric]:
        work, retention = self._store.checkpoints, self._engine.retention
        compacted = self._engine.compacting.records_compacted
        for name, text, value in (
            ("braid_checkpoints", "Checkpoints taken.", work.count),
            ("braid_checkpoint_seconds", "Time spent on checkpoints.", work.seconds),
            ("braid_segment_written_bytes", "Bytes written to segments.", work.bytes_written),
            ("braid_segments_rewritten", "Segments compacted.", work.segments_rewritten),
            ("braid_segments_removed", "Segments nobody needs any more.", work.segments_removed),
            ("braid_retired_records", "Records ended by retention.", retention.records_retired),
            ("braid_compacted_records", "Records compacted.", compacted),
        ):
            yield _counter(name, text, value)
        segments = [each for log in self._store.logs.values() for each in log.segments]
        yield _gauge("braid_segments", "Segments on disk.", len(segments))
        yield _gauge(
            "braid_segment_bytes", "Bytes of all segments.", sum(each.size for each in segments)
        )
        yield _gauge(
            "braid_shared_body_bytes",
            "Bytes of bodies that segments share, beside those of the segments.",
            sum(self._store.bodies.sizes.values()),
        )

    def _pressure(self) -> Iterator[Metric]:
        pressure, memory = self._engine.pressure, self._store.memory
        yield _gauge(
            "braid_pressure_level", "0: none, 1: publishers slowed, 2: blocked.", pressure.level
        )
        yield _gauge("braid_memory_bytes", "Records in memory.", memory.resident)
        yield _gauge(
            "braid_input_bytes",
            "Unfinished input in memory: it counts with the records.",
            pressure.input_bytes(),
        )
        yield _gauge(
            "braid_unsent_bytes",
            "Output in memory that clients do not read: it counts with the records.",
            pressure.unsent_bytes(),
        )
        yield _gauge(
            "braid_memory_unflushed_bytes",
            "Records in memory that are in no segment yet.",
            memory.unflushed,
        )
        yield _gauge(
            "braid_disk_free_bytes",
            "Free space where the data is.",
            self._store.disk.free_bytes(""),
        )
        for resource in ("memory", "disk"):
            marks = GaugeMetricFamily(
                f"braid_{resource}_watermark_bytes",
                f"Where {resource} slows or blocks publishers.",
                labels=("action",),
            )
            for action in ("slow", "block"):
                marks.add_metric((action,), getattr(pressure.marks, f"{resource}_{action}_bytes"))
            yield marks


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _by_namespace(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]
) -> Metric:
    for namespace, value in values.items():
        family.add_metric((namespace,), value)
    return family


def _by_reason(
    name: str, text: str, counts: Mapping[str, Counter[str]], label: str = "reason"
) -> Metric:
    family = CounterMetricFamily(name, text, labels=("namespace", label))
    for namespace, by_reason in counts.items():
        for reason, value in by_reason.items():
            family.add_metric((namespace, reason), value)
    return family


def _histogram(
    name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float
) -> Metric:
    family = HistogramMetricFamily(name, text)
    ends = [*(str(float(bound)) for bound in bounds), "+Inf"]
    family.add_metric((), list(zip(ends, accumulate(counts), strict=True)), sum_value=total)
    return family
