"""Sessions, their filters and retained messages, for those who list them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from braidmq.gateways.mqtt.session import Session
from braidmq.record.batch import Record
from braidmq.wire.mqtt.text import split_share

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.listener import MqttGateway


class MqttSessionInfo(msgspec.Struct, frozen=True):
    namespace: str
    client: Annotated[str, Meta(description="The client id")]
    user: str
    connected: bool
    connection: Annotated[str, Meta(description="Its id in /v1/connections; empty: none")]
    expiry_s: Annotated[int, Meta(description="How long it outlives its connection")]
    disconnected_ms: Annotated[int, Meta(description="Since when it is away; 0: it is not")]
    filters: int
    in_flight: Annotated[int, Meta(description="Messages above QoS 0 sent and not answered")]
    waiting: Annotated[int, Meta(description="Messages above QoS 0 that are still to be sent")]


class MqttFilter(msgspec.Struct, frozen=True):
    """What a session subscribed to. Those of durable queues have a group and how it is answered."""

    filter: str
    qos: int
    identifier: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    share: Annotated[str, Meta(description="The group of a shared subscription")] = ""
    queue_group: Annotated[str, Meta(description="The group of a durable queue")] = ""
    explicit: Annotated[bool, Meta(description="Whether deliveries are answered one by one")] = (
        False
    )


class MqttLists:
    def __init__(self, gateway: "MqttGateway") -> None:
        self._gateway = gateway

    def sessions(self, namespace: str) -> list[Session]:
        """By client id."""
        found = [each for each in self._gateway.sessions if each.namespace == namespace]
        return sorted(found, key=lambda each: each.client_id)

    def find(self, namespace: str, client_id: str) -> Session | None:
        return self._gateway.sessions.get(namespace, client_id)

    def describe(self, session: Session) -> MqttSessionInfo:
        connection = session.connection
        lead_ms = self._gateway.node_loop.view.state.clock.lead_ms
        return MqttSessionInfo(
            session.namespace,
            session.client_id,
            session.user,
            connection is not None,
            "" if connection is None else connection.describe().id,
            session.expiry_s,
            session.disconnected_ms and session.disconnected_ms + lead_ms,
            len(session.subscriptions) + len(session.queues),
            session.outbox.in_flight,
            session.outbox.waiting,
        )

    def filters(self, session: Session) -> list[MqttFilter]:
        """By name."""
        found = []
        for each in session.subscriptions.values():
            shared = split_share(each.filter)
            found.append(
                MqttFilter(
                    each.filter,
                    each.qos,
                    each.identifier,
                    each.no_local,
                    each.retain_as_published,
                    each.retain_handling,
                    "" if shared is None else shared.group,
                )
            )
        found += [
            MqttFilter(
                each.filter,
                each.qos,
                each.identifier,
                queue_group=each.group,
                explicit=each.explicit,
            )
            for each in session.queues.values()
        ]
        return sorted(found, key=lambda each: each.filter)

    def retained_topics(self, namespace: str, pattern: str, after: str) -> Iterator[str | None]:
        """Topics of retained messages that a filter matches, in the order of their levels; None
        for steps on which there is none: others may have their turn after any of them."""
        walk = self._gateway.router.retained.walk(namespace, pattern, after)
        while not walk.is_over:
            yield walk.step()

    def retained(self, namespace: str, topic: str, now_ms: int) -> Record | None:
        return self._gateway.router.retained.get(namespace, topic, now_ms)
