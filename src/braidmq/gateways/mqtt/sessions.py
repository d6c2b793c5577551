"""Sessions from their first connection to their expiry, across connections and restarts."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

import msgspec

from braidmq.gateways.mqtt.bridge import Bridges
from braidmq.gateways.mqtt.delayed import DelayedQueues, timed
from braidmq.gateways.mqtt.message import make_arrival
from braidmq.gateways.mqtt.packet_ids import IdRun, IdRuns
from braidmq.gateways.mqtt.queues.names import is_queue, parse
from braidmq.gateways.mqtt.queues.registry import Queues
from braidmq.gateways.mqtt.router import MqttRouter
from braidmq.gateways.mqtt.session import RetainedWalk, Session
from braidmq.gateways.mqtt.session_records import (
    PACKET_IDS,
    SESSIONS,
    SUBSCRIPTIONS,
    PacketIds,
    SessionRecord,
    SubscriptionRecord,
)
from braidmq.gateways.mqtt.settings import EXPIRES_NEVER, MqttSettings
from braidmq.gateways.mqtt.subscription_index import Subscription
from braidmq.model.errors import BraidError
from braidmq.model.ids import Lsn
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.permissions import Grants
from braidmq.security.scopes import Scopes
from braidmq.storage.catalogue import Change
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.packets import Will
from braidmq.wire.mqtt.text import split_share

TIMER_S_MIN, TIMER_S_MAX = 0.05, 86_400.0
"""Timers of event loops are not made for years: a long wait is made of days."""

logger = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode
_decode_session = msgspec.msgpack.Decoder(SessionRecord).decode
_decode_subscription = msgspec.msgpack.Decoder(SubscriptionRecord).decode
_decode_ids = msgspec.msgpack.Decoder(PacketIds).decode


class Sessions:
    def __init__(
        self,
        node_loop: NodeLoop,
        router: MqttRouter,
        queues: Queues,
        settings: MqttSettings,
    ) -> None:
        self._node_loop = node_loop
        self._router = router
        self._queues = queues
        self._settings = settings
        self._store = node_loop.view.store
        self._bridges = Bridges(node_loop, router)
        self._sessions: dict[tuple[str, str], Session] = {}
        self.delayed = DelayedQueues(node_loop, router, self.get, settings.delayed_messages_max)

    def replace(self, settings: MqttSettings) -> None:
        self._settings = settings
        self.delayed.replace(settings.delayed_messages_max)

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, namespace: str, client_id: str) -> Session | None:
        return self._sessions.get((namespace, client_id))

    # --- coming ---

    def open(
        self,
        namespace: str,
        client_id: str,
        user: str,
        *,
        clean_start: bool,
        expiry_s: int,
        scopes: Scopes | None = None,
    ) -> tuple[Session, bool]:
        """The session of a client that connects, and whether it was there before. A connection it
        still has is taken over, and the caller has said so to it already. ``scopes``: what its
        token says it may."""
        grants = self._router.accounts.grants(user, namespace, scopes, client_id)
        session = self._sessions.get((namespace, client_id))
        present = session is not None and not clean_start and session.user == user
        if session is not None and not present:
            self.end(session)
            session = None
        if session is None:
            session = Session(
                self._node_loop,
                self._router.index(namespace),
                client_id,
                grants,
                self._settings,
                self._router.counters,
                durable=expiry_s > 0,
            )
            self._sessions[namespace, client_id] = session
        elif session.grants is not grants:
            self.regrant(session, grants)
        session.cancel_timers()
        session.will = None
        session.expiry_s = expiry_s
        session.disconnected_ms = 0
        return session, present

    def find(self, namespace: str, client_id: str, user: str) -> Session | None:
        """The session with a client id. Raises NOT_AUTHORIZED when it is not this user's."""
        found = self._sessions.get((namespace, client_id))
        if found is not None and found.user != user and not self._settings.foreign_client_ids:
            if found.user:
                raise MqttError(
                    Reason.NOT_AUTHORIZED, f"the client id {client_id!r} belongs to another user"
                )
            # nobody's so far
            found.grants = self._router.accounts.grants(user, namespace, client_id=client_id)
        return found

    # --- going ---

    def disconnected(self, session: Session, *, with_will: bool) -> None:
        """Its connection is gone; it stays for as long as it was asked to."""
        session.connection = None
        session.index.moved()
        session.outbox.detach()
        session.disconnected_ms = self._node_loop.now_ms()
        if not with_will:
            session.will = None
        if not session.expiry_s:
            self.end(session)
            return
        delay_s = _delay_s(session.will)
        if session.will is not None and not delay_s:
            self._publish_will(session)
        self._arm(session)
        # After a crash nobody would know what a client holds that is away.
        self.save(session, with_ids=session.outbox.has_ids)

    def _arm(self, session: Session) -> None:
        """Timers for what is to happen while it is away."""
        now_ms = self._node_loop.now_ms()
        if session.will is not None:
            due_ms = session.disconnected_ms + _delay_s(session.will) * 1000
            session.will_timer = self._timer(due_ms - now_ms, self._will_due, session)
        if session.expiry_s != EXPIRES_NEVER:
            due_ms = session.disconnected_ms + session.expiry_s * 1000
            session.expiry_timer = self._timer(due_ms - now_ms, self._expiry_due, session)

    def _timer(
        self, wait_ms: int, due: Callable[[Session], None], session: Session
    ) -> asyncio.TimerHandle:
        wait_s = min(max(wait_ms / 1000, TIMER_S_MIN), TIMER_S_MAX)
        return self._node_loop.loop.call_later(wait_s, due, session)

    def _is_early(self, due_ms: int) -> bool:
        """Also while a CONNECT may be unread that came in time."""
        return self._node_loop.now_ms() < due_ms or self._node_loop.is_catching_up()

    def _will_due(self, session: Session) -> None:
        session.will_timer = None
        due_ms = session.disconnected_ms + _delay_s(session.will) * 1000
        if self._is_early(due_ms):
            session.cancel_timers()
            self._arm(session)
            return
        self._publish_will(session)
        self.save(session)

    def _expiry_due(self, session: Session) -> None:
        session.expiry_timer = None
        if self._is_early(session.disconnected_ms + session.expiry_s * 1000):
            session.cancel_timers()
            self._arm(session)
        else:
            self.end(session)

    def end(self, session: Session) -> None:
        """For good, with all that waits for it. A will that waits is due now (3.1.3.2.2)."""
        session.cancel_timers()
        if session.connection is None and session.will is not None:
            self._publish_will(session)
        keys = [(SESSIONS, session.key), (PACKET_IDS, session.key)]
        keys += [(SUBSCRIPTIONS, f"{session.key}\0{each}") for each in session.subscriptions]
        for each in list(session.subscriptions.values()):
            self._remove(session, each)
        session.outbox.delete()
        self._sessions.pop((session.namespace, session.client_id), None)
        gone: list[Change] = [
            (table, key, None)
            for table, key in keys
            if self._store.catalogue.get(table, key) is not None
        ]
        if gone:
            self._store.change(gone)

    def _publish_will(self, session: Session) -> None:
        will, session.will = session.will, None
        assert will is not None
        properties = msgspec.structs.replace(will.properties, will_delay_interval=None)
        arrival = make_arrival(
            will.topic.encode(),
            will.payload,
            self._node_loop.now_ms(),
            qos=will.qos,
            retain=will.retain,
            properties=properties,
        )
        try:
            if is_queue(will.topic):
                self._queues.check_publish(session.namespace, will.topic, session.grants)
                self._queues.publish(session.namespace, arrival, session)
            else:
                session.grants.need_write(will.topic)
                arrival = timed(arrival)
                to = self.delayed if arrival.due.at_ms else self._router
                to.publish(session.namespace, arrival, session)
        except BraidError as error:
            # Refused for want of room, or of a right that it had when it was given; there is
            # nobody left to hear of it.
            self._router.counters.dropped += 1
            logger.warning(
                "a will was not published",
                extra={
                    "namespace": session.namespace,
                    "client": session.client_id,
                    "user": session.user,
                    "topic": will.topic,
                    "reason": str(error),
                },
            )

    def end_unreadable(self, user: str, namespace: str) -> None:
        """The permissions of a user have changed: subscriptions to what it may not read any more
        end, whether it is connected or not. A client that loses one is disconnected: MQTT has no
        other way to say that there is nothing to hear any more."""
        for session in [each for each in self._sessions.values() if each.user == user]:
            if session.namespace == namespace:
                # Other patterns may name clients, or not any more.
                grants = self._router.accounts.grants(
                    user, namespace, session.grants.scopes, session.client_id
                )
                self._hold(session, grants)

    def regrant(self, session: Session, grants: Grants) -> None:
        """Its client has another token: what that does not allow ends."""
        self._router.accounts.refresh()
        self._hold(session, grants)

    def _hold(self, session: Session, grants: Grants) -> None:
        namespace, session.grants = session.namespace, grants
        if session.connection is not None:
            session.connection.grants = grants
        lost = [each for each in session.subscriptions if not may_subscribe(grants, each)]
        queues = [
            each.filter
            for each in session.queues.values()
            if not grants.may_read(self._queues.name_of(namespace, parse(each.topic)))
        ]
        if lost or queues:
            self._end_subscriptions(session, lost, queues)

    def _end_subscriptions(self, session: Session, filters: list[str], queues: list[str]) -> None:
        for each in filters:
            self.unsubscribe(session, each)
        for each in queues:
            del session.queues[each]
        self.save_subscriptions(session, filters)
        self.save(session)
        ended = ", ".join((*filters, *queues))
        logger.info(
            "subscriptions ended: the user is no longer allowed to read them",
            extra={
                "namespace": session.namespace,
                "client": session.client_id,
                "user": session.user,
                "filters": ended,
            },
        )
        connection = session.connection
        if connection is not None:
            connection.shut_down(
                Reason.NOT_AUTHORIZED, f"the right to subscribe to {ended} was withdrawn"
            )

    def forget_namespace(self, namespace: str) -> None:
        for session in [each for each in self._sessions.values() if each.namespace == namespace]:
            session.will = None
            self.end(session)
        self._router.retained.forget_namespace(namespace)

    def forget_user(self, name: str) -> None:
        """Its sessions are nobody's, and not those of a namesake that comes later."""
        for session in [each for each in self._sessions.values() if each.user == name]:
            scopes = session.grants.scopes
            if scopes is not None and not scopes.has_account:
                continue  # of somebody else, who only had a token
            session.will = None
            self.end(session)

    # --- subscriptions ---

    def subscribe(self, session: Session, new: Subscription) -> bool:
        """False when the session had this filter; it has other options now."""
        old = session.subscriptions.get(new.filter)
        if old is not None:
            self._router.index(session.namespace).remove(old)
        # First the index, which may refuse the filter.
        self._router.index(session.namespace).add(new)
        session.subscriptions[new.filter] = new
        if old is None:
            self._bridges.want(session.namespace, new.filter)
        if new.qos:
            session.outbox.topic()
        return old is None

    def unsubscribe(self, session: Session, pattern: str) -> bool:
        old = session.subscriptions.get(pattern)
        if old is None:
            return False
        self._remove(session, old)
        return True

    def _remove(self, session: Session, old: Subscription) -> None:
        del session.subscriptions[old.filter]
        session.retained.pop(old.filter, None)
        self._router.index(session.namespace).remove(old)
        self._bridges.forget(session.namespace, old.filter)

    # --- the catalogue ---

    def save(self, session: Session, *, with_ids: bool = False) -> Lsn | None:
        """Keep a session that is to outlive the node; None for others."""
        if not session.durable:
            return None
        record = session.record(self._node_loop.view.state.clock.lead_ms)
        changes: list[Change] = [(SESSIONS, session.key, _encode(record))]
        if with_ids:
            changes.append((PACKET_IDS, session.key, _encode(session.packet_ids())))
        return self._store.change(changes)

    def save_subscriptions(self, session: Session, filters: Iterable[str]) -> Lsn | None:
        """Keep what became of some of its filters; the others are as they were."""
        if not session.durable:
            return None
        changes: list[Change] = []
        for pattern in dict.fromkeys(filters):
            record = session.subscription_record(pattern)
            value = None if record is None else _encode(record)
            changes.append((SUBSCRIPTIONS, f"{session.key}\0{pattern}", value))
        if len(session.outbox.unreceived):
            # They went out at QoS 2, and perhaps would not any more.
            changes.append((PACKET_IDS, session.key, _encode(session.packet_ids())))
        return self._store.change(changes)

    def save_ids(self, session: Session) -> Lsn | None:
        """Keep where its exchanges of QoS 2 are."""
        if not session.durable:
            return None
        return self._store.change([(PACKET_IDS, session.key, _encode(session.packet_ids()))])

    def restore(self) -> None:
        """After a start: everybody is away, who was connected since now."""
        now_ms = self._node_loop.now_ms()
        subscriptions: dict[str, list[SubscriptionRecord]] = {}
        for key, value in self._store.catalogue.items(SUBSCRIPTIONS):
            owner = key.rpartition("\0")[0]
            subscriptions.setdefault(owner, []).append(_decode_subscription(value))
        for key, value in list(self._store.catalogue.items(SESSIONS)):
            namespace, _, client_id = key.partition("\0")
            record = _decode_session(value)
            session, _ = self.open(
                namespace,
                client_id,
                record.user,
                clean_start=False,
                expiry_s=record.expiry_s,
                scopes=record.kept_scopes(),
            )
            session.durable = True
            # Not later than now: the clock may have been set back while the node was down.
            session.disconnected_ms = min(record.disconnected_ms or now_ms, now_ms)
            session.will = record.will
            for each in subscriptions.get(key, ()):
                self.subscribe(session, _subscription_of(session, each))
            session.queues = {each.filter: each for each in record.queues}
            session.outbox.reopen()
            self._restore_ids(session)
            self._restore_retained(session, subscriptions.get(key, ()))
            if not session.expiry_s:
                self.end(session)
                continue
            self._arm(session)
            if not record.disconnected_ms:
                session.outbox.suspect()
                self.save(session, with_ids=session.outbox.has_ids)
        self._bridges.restored()
        self.delayed.restored()

    def _restore_retained(self, session: Session, records: Iterable[SubscriptionRecord]) -> None:
        changed: list[str] = []
        for each in records:
            if each.retained is None:
                continue
            place = each.retained.found(session.outbox.next_offset)
            if place is not None:
                session.retained[each.filter] = RetainedWalk(place)
            if place != each.retained:
                # Other messages will stand where a slice did not come.
                changed.append(each.filter)
        if changed:
            self.save_subscriptions(session, changed)

    def _restore_ids(self, session: Session) -> None:
        value = self._store.catalogue.get(PACKET_IDS, session.key)
        if value is not None:
            ids = _decode_ids(value)
            session.outbox.restore_ids(ids)
            session.inbound = IdRuns([run for each in ids.inbound for run in self._arrived(each)])
            if session.inbound.runs() != sorted(ids.inbound):
                # Of what did not come nothing may be left: other messages will stand in its
                # place, and after another crash it would seem to have come.
                self.save_ids(session)

    def _arrived(self, run: IdRun) -> list[IdRun]:
        """The packet ids of a run whose messages came to the log before the crash."""
        first, stop, number, offset = run
        partition = self._node_loop.view.state.partitions.get(number)  # type: ignore[call-overload]
        # A queue that is gone had them, as far as anybody can tell.
        if number and partition is not None:
            stop = min(stop, first + partition.log.next_offset - offset)
        return [(first, stop, number, offset)] if first < stop else []


def _subscription_of(session: Session, record: SubscriptionRecord) -> Subscription:
    return Subscription(
        session,
        record.filter,
        record.qos,
        record.no_local,
        record.retain_as_published,
        record.retain_handling,
        record.identifier,
    )


def may_subscribe(grants: Grants, pattern: str) -> bool:
    """Whether a user may have a subscription with this filter."""
    shared = split_share(pattern)
    return grants.may_read(pattern if shared is None else shared.filter)


def _delay_s(will: Will | None) -> int:
    return (will.properties.will_delay_interval or 0) if will is not None else 0
