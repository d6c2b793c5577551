"""Series of single topics and subscriptions, and the sums of what they hold.

There may be ten thousand of them, so that the text is put together here: the client library takes
ten times as long for it. It is done a few topics at a time, and the loop has its turn in between.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from braidmq.engine.topics import Subscription, Topic

TOPICS_PER_PIECE = 200
"""About a millisecond."""

TOPIC_FAMILIES = (
    ("braid_topic_published_messages_total", "counter", "Messages appended to the topic."),
)

SUBSCRIPTION_FAMILIES = (
    ("braid_subscription_ready_messages", "gauge", "Messages that wait for a consumer."),
    ("braid_subscription_in_flight_messages", "gauge", "Messages delivered and not answered."),
    ("braid_subscription_retrying_messages", "gauge", "Messages that wait for their next attempt."),
    ("braid_subscription_delayed_messages", "gauge", "Messages published for later."),
    ("braid_subscription_unsettled_bytes", "gauge", "Bytes of all messages not settled."),
    ("braid_subscription_consumers", "gauge", "Consumers attached."),
    ("braid_subscription_delivered_messages_total", "counter", "Deliveries, all attempts."),
    ("braid_subscription_redelivered_messages_total", "counter", "Deliveries after the first."),
    ("braid_subscription_acknowledged_messages_total", "counter", "Messages acknowledged."),
    ("braid_subscription_nacked_messages_total", "counter", "Messages given back by consumers."),
    ("braid_subscription_rejected_messages_total", "counter", "Messages rejected by consumers."),
    ("braid_subscription_expired_messages_total", "counter", "Messages that outlived their time."),
    ("braid_subscription_dead_lettered_messages_total", "counter", "Messages dead-lettered."),
)


class Held:
    """What a namespace holds, summed up."""

    __slots__ = ("delayed", "in_flight", "ready", "retrying", "unsettled_bytes")

    def __init__(self) -> None:
        self.ready = self.in_flight = self.retrying = self.delayed = self.unsettled_bytes = 0


class TopicSeries:
    """One pass over all topics. The rest is complete once ``run`` is."""

    def __init__(self, topics: list[Topic], *, detailed: bool) -> None:
        self._topics = topics
        self._detailed = detailed
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
        for subscription in topic.subscriptions.values():
            values = self._count(subscription, held)
            self.subscriptions[topic.namespace] += 1
            self.consumers[topic.namespace] += len(subscription.consumers)
            if self._detailed:
                whole = f'{labels},subscription="{escaped(subscription.name)}"}}'
                for (name, _, _), lines, value in zip(
                    SUBSCRIPTION_FAMILIES, self._subscription_lines, values, strict=True
                ):
                    lines.append(f"{name}{whole} {value}\n")

    def _count(self, subscription: Subscription, held: Held) -> tuple[int, ...]:
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
            subscription.delivered,
            subscription.redelivered,
            subscription.acked,
            subscription.nacked,
            subscription.rejected,
            subscription.expired,
            subscription.dead_lettered,
        )


def escaped(text: str) -> str:
    """As the value of a label."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
