"""Series of single topics and subscriptions, and the sums of what they hold.

There may be ten thousand of them, so that the text is put together here: the client library takes
ten times as long for it. It is done a few topics at a time, and the loop has its turn in between.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from braidmq.engine.ages import in_flight_age_ms, ready_age_ms
from braidmq.engine.keeping import kept_of
from braidmq.engine.lanes import lanes_of
from braidmq.engine.later import waiting_in
from braidmq.engine.topics import PartitionView, Subscription, Topic

TOPICS_PER_PIECE = 200
"""About a millisecond."""

TOPIC_FAMILIES = (
    ("braid_topic_published_messages_total", "counter", "Messages appended to the topic."),
    ("braid_topic_kept_messages", "gauge", "Acknowledged messages that the queue keeps."),
    ("braid_topic_kept_bytes", "gauge", "What those take, about."),
)

SUBSCRIPTION_FAMILIES = (
    ("braid_subscription_ready_messages", "gauge", "Messages that wait for a consumer."),
    ("braid_subscription_in_flight_messages", "gauge", "Messages delivered and not answered."),
    ("braid_subscription_retrying_messages", "gauge", "Messages that wait for their next attempt."),
    ("braid_subscription_delayed_messages", "gauge", "Messages published for later."),
    ("braid_subscription_unsettled_bytes", "gauge", "Bytes of all messages not settled."),
    ("braid_subscription_consumers", "gauge", "Consumers attached."),
    (
        "braid_subscription_oldest_ready_seconds",
        "gauge",
        "How long the oldest message has waited for a consumer; 0: none waits.",
    ),
    (
        "braid_subscription_oldest_in_flight_seconds",
        "gauge",
        "How long the oldest delivery has not been answered; 0: there is none.",
    ),
    ("braid_subscription_delivered_messages_total", "counter", "Deliveries, all attempts."),
    ("braid_subscription_redelivered_messages_total", "counter", "Deliveries after the first."),
    ("braid_subscription_acknowledged_messages_total", "counter", "Messages acknowledged."),
    ("braid_subscription_nacked_messages_total", "counter", "Messages given back by consumers."),
    ("braid_subscription_rejected_messages_total", "counter", "Messages rejected by consumers."),
    ("braid_subscription_expired_messages_total", "counter", "Messages that outlived their time."),
    ("braid_subscription_dead_lettered_messages_total", "counter", "Messages dead-lettered."),
)


LANE_FAMILIES = (
    ("braid_lane_ready_messages", "gauge", "Messages of a lane that wait for a consumer."),
    ("braid_lane_in_flight_messages", "gauge", "Messages of a lane delivered and not answered."),
    ("braid_lane_served_messages_total", "counter", "Messages of a lane handed out."),
    (
        "braid_lane_last_served_timestamp_seconds",
        "gauge",
        "When a message of a lane was last handed out.",
    ),
)


class Held:
    """What a namespace holds, summed up."""

    __slots__ = ("delayed", "in_flight", "ready", "retrying", "unsettled_bytes")

    def __init__(self) -> None:
        self.ready = self.in_flight = self.retrying = self.delayed = self.unsettled_bytes = 0


class TopicSeries:
    """One pass over all topics. The rest is complete once ``run`` is."""

    def __init__(
        self,
        topics: list[Topic],
        now_ms: int,
        *,
        detailed: bool,
        lanes_max: int = 0,
        lead_ms: int = 0,
    ) -> None:
        """``lead_ms``: how far the wall clock is before the engine's."""
        self._topics = topics
        self._now_ms = now_ms
        self._detailed = detailed
        self._lanes_max = lanes_max if detailed else 0
        self._lead_ms = lead_ms
        self._lane_lines: list[list[str]] = [[] for _ in LANE_FAMILIES]
        self.lanes = 0
        """Lanes of partitions, with series or without."""
        self.held: dict[str, Held] = {}
        self.consumers: Counter[str] = Counter()
        self.subscriptions: Counter[str] = Counter()
        self._topic_lines: list[list[str]] = [[] for _ in TOPIC_FAMILIES]
        self._subscription_lines: list[list[str]] = [[] for _ in SUBSCRIPTION_FAMILIES]

    def run(self) -> Iterator[None]:
        rest = iter(self._topics)
        while few := list(islice(rest, TOPICS_PER_PIECE)):
            for topic in few:
                if not topic.deleted:
                    self._add(topic)
            yield

    def texts(self) -> Iterator[bytes]:
        """One family after the other."""
        if not self._detailed:
            return
        families = [
            *zip(TOPIC_FAMILIES, self._topic_lines, strict=True),
            *zip(SUBSCRIPTION_FAMILIES, self._subscription_lines, strict=True),
        ]
        if 0 < self.lanes <= self._lanes_max:
            families += zip(LANE_FAMILIES, self._lane_lines, strict=True)
        for (name, kind, text), lines in families:
            head = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
            yield "".join((head, *lines)).encode()

    def _add(self, topic: Topic) -> None:
        held = self.held.get(topic.namespace)
        if held is None:
            held = self.held[topic.namespace] = Held()
        labels = f'{{namespace="{escaped(topic.namespace)}",topic="{escaped(topic.name)}"'
        if self._detailed:
            name = TOPIC_FAMILIES[0][0]
            self._topic_lines[0].append(f"{name}{labels}}} {topic.published}\n")
            kept = [kept_of(each) for each in topic.partitions] if topic.keeps_acked else []
            for index in (0, 1):
                value = sum(each[index] for each in kept)
                name = TOPIC_FAMILIES[1 + index][0]
                self._topic_lines[1 + index].append(f"{name}{labels}}} {value}\n")
        if not topic.subscriptions:
            held.delayed += waiting_in(topic)
        for subscription in topic.subscriptions.values():
            counted = self._count(subscription, held)
            self.subscriptions[topic.namespace] += 1
            self.consumers[topic.namespace] += len(subscription.consumers)
            if self._detailed:
                whole = f'{labels},subscription="{escaped(subscription.name)}"}}'
                for (name, _, _), lines, figure in zip(
                    SUBSCRIPTION_FAMILIES, self._subscription_lines, counted, strict=True
                ):
                    lines.append(f"{name}{whole} {figure}\n")
            if self._detailed and topic.lane_of is not None:
                for view in subscription.views:
                    self._add_lanes(view, whole[:-1])

    def _add_lanes(self, view: PartitionView, labels: str) -> None:
        if view.lanes is None:
            return
        for each in lanes_of(view.state, view.lanes, 0):
            self.lanes += 1
            if self.lanes > self._lanes_max:
                continue
            last_s = 0 if each.last_served_ms is None else each.last_served_ms + self._lead_ms
            values = (each.ready, each.in_flight, each.served, last_s / 1000)
            whole = f'{labels},partition="{view.partition.number}",lane="{each.name}"}}'
            for (name, _, _), lines, value in zip(
                LANE_FAMILIES, self._lane_lines, values, strict=True
            ):
                lines.append(f"{name}{whole} {value}\n")

    def _count(self, subscription: Subscription, held: Held) -> tuple[float, ...]:
        """The values of ``SUBSCRIPTION_FAMILIES``, in order."""
        ready = in_flight = retrying = delayed = unsettled_bytes = 0
        for view in subscription.views:
            state = view.state
            ready += state.ready
            in_flight += state.in_flight
            retrying += state.waiting
            delayed += state.delayed
            unsettled_bytes += state.depth_bytes
        held.ready += ready
        held.in_flight += in_flight
        held.retrying += retrying
        held.delayed += delayed
        held.unsettled_bytes += unsettled_bytes
        return (
            *(ready, in_flight, retrying, delayed, unsettled_bytes, len(subscription.consumers)),
            *self._ages(subscription),
            subscription.delivered,
            subscription.redelivered,
            subscription.acked,
            subscription.nacked,
            subscription.rejected,
            subscription.expired,
            subscription.dead_lettered,
        )

    def _ages(self, subscription: Subscription) -> tuple[float, float]:
        if not self._detailed:
            return 0, 0
        ready = ready_age_ms(subscription, self._now_ms)
        in_flight = in_flight_age_ms(subscription, self._now_ms)
        return (ready or 0) / 1000, (in_flight or 0) / 1000


def escaped(text: str) -> str:
    """As the value of a label."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
