"""A session: what the broker knows of a client beyond its connection."""

import asyncio
from typing import TYPE_CHECKING

from braidmq.gateways.mqtt.counters import Counters
from braidmq.gateways.mqtt.outbox import Outbox
from braidmq.gateways.mqtt.packet_ids import IdRuns
from braidmq.gateways.mqtt.queues.record import QueueRecord
from braidmq.gateways.mqtt.session_records import (
    PacketIds,
    RetainedPlace,
    SessionRecord,
    SubscriptionRecord,
)
from braidmq.gateways.mqtt.settings import MqttSettings
from braidmq.gateways.mqtt.subscription_index import Subscription, SubscriptionIndex
from braidmq.gateways.mqtt.topic_tree import Walk
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.permissions import Grants
from braidmq.wire.mqtt.packets import Will

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection


class RetainedWalk:
    """Retained messages for one subscription, on their way."""

    __slots__ = ("is_held", "place", "walk")

    def __init__(self, place: RetainedPlace, *, is_held: bool = False) -> None:
        self.place = place
        """What is kept of it."""
        self.walk: Walk | None = None
        """Made when it goes on from there."""
        self.is_held = is_held
        """Whether SUBACK comes first."""


class Session:
    def __init__(
        self,
        node_loop: NodeLoop,
        index: SubscriptionIndex,
        client_id: str,
        grants: Grants,
        settings: MqttSettings,
        counters: Counters,
        *,
        durable: bool,
    ) -> None:
        self.index = index
        self.namespace = index.namespace
        self.client_id = client_id
        self.grants = grants
        """Of the user it belongs to: what that may read is what it gets, connected or not."""
        self.durable = durable
        """Whether it outlives its connection, and the node."""
        self.expiry_s = 0
        self.subscriptions: dict[str, Subscription] = {}
        self.queues: dict[str, QueueRecord] = {}
        self.connection: MqttConnection | None = None
        self.inbound = IdRuns()
        self.meter = node_loop.usage.meter(index.namespace, "mqtt")
        self.outbox = Outbox(node_loop, self, settings.session_messages_max, counters)
        self.will: Will | None = None
        self.disconnected_ms = 0
        self.retained: dict[str, RetainedWalk] = {}
        """By filter, retained messages that it is still to get."""
        self.will_timer: asyncio.TimerHandle | None = None
        self.expiry_timer: asyncio.TimerHandle | None = None

    @property
    def user(self) -> str:
        return self.grants.user

    @property
    def key(self) -> str:
        return f"{self.namespace}\0{self.client_id}"

    def record(self, lead_ms: int) -> SessionRecord:
        """As it is kept: with the time of the wall clock, which a restart begins with."""
        scopes = self.grants.scopes
        return SessionRecord(
            self.user,
            self.expiry_s,
            self.disconnected_ms and self.disconnected_ms + lead_ms,
            self.will,
            list(self.queues.values()),
            None if scopes is None else scopes.texts(),
            scopes is None or scopes.has_account,
        )

    def subscription_record(self, pattern: str) -> SubscriptionRecord | None:
        """None when it has no such filter."""
        found = self.subscriptions.get(pattern)
        if found is None:
            return None
        return SubscriptionRecord(
            found.filter,
            found.qos,
            found.no_local,
            found.retain_as_published,
            found.retain_handling,
            found.identifier,
            None if pattern not in self.retained else self.retained[pattern].place,
        )

    def packet_ids(self) -> PacketIds:
        outbox = self.outbox
        return PacketIds(
            self.inbound.runs(),
            outbox.released.runs(),
            outbox.unreceived.runs(),
            outbox.uncertain.runs(),
        )

    def cancel_timers(self) -> None:
        for timer in (self.will_timer, self.expiry_timer):
            if timer is not None:
                timer.cancel()
        self.will_timer = self.expiry_timer = None
