"""What a client publishes: checked, handed on, and answered when it is safe."""

from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

from braidmq.engine.errors import LimitReached
from braidmq.engine.topics import Topic
from braidmq.gateways.mqtt.delayed import may_be_delayed, real_topic, timed
from braidmq.gateways.mqtt.errors import translate
from braidmq.gateways.mqtt.fast_path import Route
from braidmq.gateways.mqtt.message import Arrival
from braidmq.gateways.mqtt.packet_ids import NO_ANCHOR, Anchor, IdRuns
from braidmq.gateways.mqtt.pending_acks import PublishAnswer
from braidmq.gateways.mqtt.queues.admin import ADMIN_BYTES, is_admin
from braidmq.gateways.mqtt.queues.names import QUEUE_BYTES, is_queue, parse
from braidmq.gateways.mqtt.router import BeforeAppend, Routed, later
from braidmq.gateways.mqtt.subscription_index import REMEMBERED_BYTES_MAX
from braidmq.logs import about
from braidmq.model.errors import StorageError
from braidmq.model.ids import Lsn
from braidmq.security.token_bucket import Throttle
from braidmq.wire.mqtt.constants import Kind, Reason
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.packets import publish_head
from braidmq.wire.mqtt.publish import FLAG_USER_PROPERTIES
from braidmq.wire.mqtt.render import id_runs, render_acks

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection

EXACTLY_ONCE = 2
CHECKED_MAX = 256
"""Topics of one client that it is known to have the right to publish to."""
ANSWERS = frozenset({b"$ack", b"$nack", b"$reject"})
"""Verbs of queues that settle a message and publish none."""
RESERVED = ("$SYS", "$share", "$queue", "$admin", "$mqtt", "$delayed")
"""First levels that mean something to the broker; clients can't publish there."""


def state_topic(client_id: str) -> str:
    """Where a bridge says whether it is connected, as Mosquitto's do: with its will, and then."""
    return f"$SYS/broker/connection/{client_id}/state"


def is_reserved(topic: str) -> bool:
    return topic[:1] == "$" and topic.partition("/")[0] in RESERVED


class Publisher:
    def __init__(self, connection: "MqttConnection") -> None:
        self._connection = connection
        self.checked: set[bytes] = set()
        """Topics that the client may publish to, while nobody's rights change."""
        self.checked_at = -1
        self._answer: PublishAnswer | None = None
        """To the run that is handed on just now."""
        self.open_ids = IdRuns()
        """Packet ids of QoS 2 that this connection has begun and not completed."""

    def check_topic(self, topic: str) -> None:
        """Raises MqttError or AccessRefused."""
        if is_queue(topic):
            connection = self._connection
            queues = connection.gateway.queues
            token = about.set(connection)  # it may make the queue
            try:
                queues.check_publish(connection.namespace, topic, connection.grants)
            finally:
                about.reset(token)
            return
        if self._is_reserved(topic):
            raise MqttError(
                Reason.TOPIC_NAME_INVALID,
                f"clients can't publish to {topic!r}: it belongs to the broker",
            )
        levels, levels_max = topic.count("/") + 1, self._connection.settings.topic_levels_max
        if levels > levels_max:
            raise MqttError(
                Reason.TOPIC_NAME_INVALID, f"{levels} levels in a topic; at most {levels_max}"
            )
        self._connection.grants.need_write(topic)

    def _is_reserved(self, topic: str) -> bool:
        connection = self._connection
        is_own = connection.is_bridge and topic == state_topic(connection.client_id)
        return is_reserved(topic) and not is_own

    def _require_plain(self, topic: str) -> None:
        """Raises MqttError. For topics that are no queues, nor asked to administer them."""
        if not self._is_reserved(topic) and not self._connection.grants.may_write(topic):
            raise MqttError(Reason.NOT_AUTHORIZED, f"may not publish to {topic!r}")
        self.check_topic(topic)

    def is_answered_now(self, arrival: Arrival) -> bool:
        """While nothing can be taken: whether it is no message but an answer to one, which makes
        room, or whether the client can be told no."""
        if arrival.qos and self._connection.speaks_v5:
            return True
        return _is_answer(arrival.topic)

    def is_refused(self, data: memoryview) -> bool:
        """Whether a large packet, of which this is the beginning, need not be kept: it is a publish
        that the client is told no to already."""
        found = publish_head(data)
        return found is not None and self.refuse_early(*found)

    def refuse_early(self, topic: bytes, qos: int, packet_id: int) -> bool:
        """Whether a publish whose payload has not come yet is refused, and was told so. Raises
        MqttError for a client that can't be told."""
        connection = self._connection
        if qos == EXACTLY_ONCE and packet_id in connection.session.inbound:
            return False  # it was here before, and is no more to be refused
        try:
            text = real_topic(topic.decode())
            if not (is_queue(text) or is_admin(text)):
                self._require_plain(text)
            if connection.must_wait() and qos and connection.speaks_v5 and not _is_answer(topic):
                raise no_room()
        except UnicodeDecodeError:
            return False  # it is refused once it is whole
        except MqttError as error:
            answer = None
            if qos and packet_id and connection.speaks_v5 and connection.quota() > 0:
                kind = Kind.PUBACK if qos == 1 else Kind.PUBREC
                answer = connection.answers.expect(kind, array("H", [packet_id]))
            self._refuse(answer, error)
            return True
        return False

    def is_let_in(
        self, throttle: Throttle, arrival: Arrival, packet_ids: "array[int] | None"
    ) -> bool:
        """Whether the client may send all of this now. Of a run that is too long the first are
        taken, and it is told no to the rest. Raises MqttError for a client that can't be told."""
        connection = self._connection
        now_ms = connection.node_loop.now_ms()
        if throttle.admit(arrival.count, arrival.value_bytes, now_ms):
            return True
        taken = connection.rates.publish(arrival.count, arrival.value_bytes)
        if taken == arrival.count:
            return True
        ids = packet_ids if packet_ids is not None else array("H")
        if arrival.qos == EXACTLY_ONCE and any(each in connection.session.inbound for each in ids):
            return True  # it was here before, and is no more to be refused
        for index in range(taken):
            connection.take_all(arrival.part(index), ids[index : index + 1] if ids else None)
        client = connection.rates.client
        assert client is not None
        if not arrival.qos:
            raise MqttError(Reason.MESSAGE_RATE_TOO_HIGH, str(client.too_fast()))
        kind = Kind.PUBACK if arrival.qos == 1 else Kind.PUBREC
        answer = connection.answers.expect(kind, ids[taken:])
        self._refuse(answer, MqttError(Reason.QUOTA_EXCEEDED, str(client.too_fast())))
        return False

    def publish(
        self, arrival: Arrival, packet_ids: "array[int] | None", *, as_run: bool = False
    ) -> None:
        """``as_run``: they are known to go the same way."""
        connection = self._connection
        if arrival.qos > connection.settings.maximum_qos and connection.speaks_v5:
            raise MqttError(Reason.QOS_NOT_SUPPORTED, f"QoS {arrival.qos} is not supported")
        is_known = self._is_checked(arrival.topic)
        if (arrival.flags & FLAG_USER_PROPERTIES or not is_known) and may_be_delayed(arrival):
            self._publish_all(arrival, packet_ids, as_run=False)
            return
        if packet_ids is not None or not is_known or not self._passed_on(arrival):
            self._publish_all(arrival, packet_ids, as_run)
        if is_known and arrival.count == 1 and arrival.flags in (0, 1):
            # One that comes again and again: the next may find a shorter way.
            connection.open_route(arrival.topic)

    def _publish_all(self, arrival: Arrival, packet_ids: "array[int] | None", as_run: bool) -> None:
        ids = packet_ids if packet_ids is not None else array("H")
        if as_run or arrival.count == 1 or self.takes_runs(arrival):
            self._publish_run(arrival, ids)
            return
        for index in range(arrival.count):
            self._publish_run(arrival.part(index), ids[index : index + 1])

    def _passed_on(self, arrival: Arrival) -> bool:
        connection = self._connection
        return connection.router.pass_on(connection.namespace, arrival, connection.session)

    def takes_runs(self, arrival: Arrival) -> bool:
        """Whether all messages of a run go the same way."""
        connection = self._connection
        if may_be_delayed(arrival):
            return False
        if arrival.topic.startswith(QUEUE_BYTES):
            return connection.gateway.queues.takes_runs(connection.namespace, arrival)
        return connection.router.takes_runs(connection.namespace, arrival.topic)

    # --- as the short way knows it ---

    def short_way(self, topic: bytes) -> Route | None:
        """Where single messages to a topic may go without the long way, as things are now."""
        connection = self._connection
        if not self._is_checked(topic) or connection.node_loop.view.pressure.level:
            return None
        if connection.rates.limits_deliveries:
            return None
        return connection.router.route(connection.namespace, topic)

    @property
    def is_idle(self) -> bool:
        """Whether the client is owed no answer, nor in the middle of an exchange of QoS 2."""
        return not self._connection.answers.waiting and not len(self.open_ids)

    # --- the long way ---

    def _publish_run(self, arrival: Arrival, ids: "array[int]") -> None:
        if arrival.qos == EXACTLY_ONCE:
            self._publish_once(arrival, ids)
            return
        answer = self._connection.answers.expect(Kind.PUBACK, ids) if arrival.qos else None
        self._hand_on(arrival, answer)

    def _hand_on(self, arrival: Arrival, answer: PublishAnswer | None) -> None:
        connection = self._connection
        self._answer = answer
        try:
            arrival = timed(arrival)
            self._check(arrival)
            routed = self.route(arrival, waiting=self if answer is not None else None)
        except (MqttError, LimitReached) as error:
            self._refuse(answer, translate(error))
            return
        if answer is not None and not routed.gathered:
            if not routed.matched:
                answer.reason = Reason.NO_MATCHING_SUBSCRIBERS
            connection.when_stored(routed.lsn, answer)

    def _is_checked(self, topic: bytes) -> bool:
        """A topic that was published to before needs no look, while nobody's rights change."""
        generation = self._connection.gateway.accounts.generation
        return generation == self.checked_at and topic in self.checked

    def _check(self, arrival: Arrival) -> None:
        connection = self._connection
        if connection.must_wait() and not _is_answer(arrival.topic):
            raise no_room()
        if self._is_checked(arrival.topic):
            return
        generation = connection.gateway.accounts.generation
        topic = arrival.topic.decode()
        if is_queue(topic) or is_admin(topic):
            # Not remembered: a queue may be gone the next time.
            if is_queue(topic) and not parse(topic).verb:
                self.check_topic(topic)
            return
        self._require_plain(topic)
        if generation != self.checked_at or len(self.checked) >= CHECKED_MAX:
            self.checked.clear()
            self.checked_at = generation
        if len(arrival.topic) <= REMEMBERED_BYTES_MAX:
            self.checked.add(arrival.topic)

    def route(
        self,
        arrival: Arrival,
        before_append: BeforeAppend | None = None,
        waiting: "Publisher | None" = None,
    ) -> Routed:
        """Where a topic leads: to a queue, to the broker itself, or to subscribers."""
        connection, topic = self._connection, arrival.topic
        namespace, session = connection.namespace, connection.session
        if topic[:1] != b"$" or not topic.startswith((QUEUE_BYTES, ADMIN_BYTES)):
            if arrival.due.at_ms:
                return connection.gateway.delayed.publish(
                    namespace, arrival, session, before_append=before_append
                )
            return connection.router.publish(
                namespace, arrival, session, before_append=before_append, waiting=waiting
            )
        connection.router.counters.received += arrival.count
        address = parse(topic.decode()) if topic.startswith(QUEUE_BYTES) else None
        if address is not None and not address.verb:
            session.meter.took(arrival.count, arrival.value_bytes)
            queues = connection.gateway.queues
            return queues.publish(namespace, arrival, session, before_append=before_append)
        if arrival.due.at_ms:
            raise MqttError(
                Reason.TOPIC_NAME_INVALID, f"what is asked of {topic.decode()!r} can't wait"
            )
        if before_append is not None:
            before_append(NO_ANCHOR)
        if address is not None:
            return connection.queue_client().answer(address, arrival)
        return connection.gateway.admin.request(connection, arrival)

    def _refuse(self, answer: PublishAnswer | None, error: MqttError) -> None:
        """Who can't be told in an answer is disconnected: nothing is lost in silence."""
        if answer is None or not self._connection.speaks_v5:
            raise error
        answer.reason, answer.text = error.reason, str(error)
        self._connection.answers.settle(answer, None)

    # --- as the broker's gathering knows a publisher ---

    @property
    def wants_places(self) -> bool:
        return False

    def placed(self, ticket: object, topic: Topic, offset: int) -> None:
        """MQTT has no words for it."""

    def expect(self, _count: int) -> list[PublishAnswer]:
        assert self._answer is not None
        return [self._answer]

    def expect_more(self, ticket: object, _count: int) -> None:
        assert isinstance(ticket, list)
        ticket.append(self._answer)

    def confirmed(self, ticket: object, failure: StorageError | None) -> None:
        assert isinstance(ticket, list)
        if not self._connection.is_closed:
            self._connection.answers.settle_all(ticket, failure)

    # --- QoS 2 ---

    def _publish_once(self, arrival: Arrival, ids: "array[int]") -> None:
        inbound = self._connection.session.inbound
        runs = id_runs(ids)
        if not any(inbound.overlaps(*run) for run in runs) and _are_distinct(runs):
            self._publish_new(arrival, ids)
            return
        for index in range(arrival.count):
            one = ids[index : index + 1]
            if one[0] in inbound:
                self._answer_again(one)
            else:
                self._publish_new(arrival.part(index), one)

    def _publish_new(self, arrival: Arrival, ids: "array[int]") -> None:
        connection = self._connection
        session = connection.session
        answer = connection.answers.expect(Kind.PUBREC, ids)
        lsn: Lsn | None = None

        def remember(anchor: Anchor) -> None:
            nonlocal lsn
            partition, offset = anchor
            for first, stop in runs:
                session.inbound.put(first, stop, (partition, offset))
                offset += stop - first if partition else 0
            lsn = connection.sessions.save_ids(session)

        runs = self._begin(ids)
        try:
            arrival = timed(arrival)
            self._check(arrival)
            routed = self.route(arrival, remember)
        except (MqttError, LimitReached) as error:
            self._forget(ids)
            self._refuse(answer, translate(error))
            return
        if not routed.matched:
            answer.reason = Reason.NO_MATCHING_SUBSCRIBERS
        connection.when_stored(later(routed.lsn, lsn), answer)

    def _begin(self, ids: "array[int]") -> list[tuple[int, int]]:
        runs = id_runs(ids)
        for first, stop in runs:
            self.open_ids.put(first, stop)
        return runs

    def _answer_again(self, ids: "array[int]") -> None:
        """The message was here before. It may still be on its way to the disk, and what is written
        now is behind it."""
        connection = self._connection
        self._begin(ids)
        answer = connection.answers.expect(Kind.PUBREC, ids)
        connection.when_stored(connection.sessions.save_ids(connection.session), answer)

    def _forget(self, ids: "array[int]") -> Lsn | None:
        session = self._connection.session
        for first, stop in id_runs(ids):
            self.open_ids.discard(first, stop)
            session.inbound.discard(first, stop)
        return self._connection.sessions.save_ids(session)

    def released(self, ids: "array[int]") -> None:
        """PUBREL: the ids are free once that is on disk, or the next message with one of them
        would be taken for this one after a crash."""
        connection = self._connection
        inbound = connection.session.inbound
        unknown = array("H")
        known = ids
        if not all(inbound.covers(*run) for run in id_runs(ids)):
            known = array("H")
            for number in ids:
                (known if number in inbound else unknown).append(number)
        lsn = self._forget(ids)

        data = render_acks(Kind.PUBCOMP, known, connection.version) if known else b""
        if unknown:
            reason = Reason.PACKET_IDENTIFIER_NOT_FOUND
            data += render_acks(Kind.PUBCOMP, unknown, connection.version, reason)
        connection.answers.reply(data, lsn)


def no_room() -> MqttError:
    return MqttError(Reason.QUOTA_EXCEEDED, "the node is low on memory or disk: try again later")


def _is_answer(topic: bytes) -> bool:
    """Whether it is no message to keep: an answer to one, or a request to the broker."""
    if topic.startswith(ADMIN_BYTES):
        return True
    verb = topic.rpartition(b"/")[2]
    return topic.startswith(QUEUE_BYTES) and verb in ANSWERS


def _are_distinct(runs: list[tuple[int, int]]) -> bool:
    """Whether no packet id stands there twice."""
    if len(runs) == 1:
        return True
    ordered = sorted(runs)
    return all(one[1] <= next_one[0] for one, next_one in pairwise(ordered))
