"""Durable queues: topics of the engine that MQTT clients know as ``$queue/{name}``.

They are the topics that AMQP and HTTP have under the same name. One that is not there is made on
first use, with the defaults of its kind unless a template says otherwise.
"""

from braidmq.engine.dead_letters import DEAD_TOPIC_SETTINGS
from braidmq.engine.topics import Mode, Subscription, Topic
from braidmq.gateways.mqtt.errors import refusal
from braidmq.gateways.mqtt.message import Arrival, batch_of
from braidmq.gateways.mqtt.packet_ids import NO_ANCHOR, Anchor
from braidmq.gateways.mqtt.queues.names import DEAD_SUFFIX, Address, parse
from braidmq.gateways.mqtt.router import BeforeAppend, Routed
from braidmq.gateways.mqtt.session import Session
from braidmq.gateways.translation import TO_PARTITION, queue_partition, queue_record
from braidmq.logs import log_change
from braidmq.model.errors import AccessRefused, BraidError, StorageFailed
from braidmq.record.batch import RecordBatch
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.accounts import Accounts
from braidmq.security.permissions import Grants
from braidmq.security.records import check_name
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.publish import FLAG_USER_PROPERTIES

MODES = {"none": Mode.SHARED, "partition": Mode.KEY_ORDERED, "strict": Mode.SINGLE_ACTIVE}
"""How a new group shares a queue, by the order that the queue promises."""


class Queues:
    def __init__(self, node_loop: NodeLoop, accounts: Accounts) -> None:
        self._node_loop = node_loop
        self._accounts = accounts

    # --- finding and making them ---

    def name_of(self, namespace: str, address: Address) -> str:
        """The topic of the engine; dead letters are where the policy of their queue puts them."""
        if not address.dead:
            return address.name
        queue = self._node_loop.view.state.topics.get((namespace, address.name))
        if queue is None:
            return address.name + DEAD_SUFFIX
        named = self._node_loop.engine().dead_letter_places.own_name(queue)
        return named or address.name + DEAD_SUFFIX

    def find(self, namespace: str, address: Address) -> Topic | None:
        return self._node_loop.view.state.topics.get((namespace, self.name_of(namespace, address)))

    def open(self, namespace: str, address: Address, grants: Grants) -> Topic:
        """The queue, made if there is none and the user may make it."""
        topic = self.find(namespace, address)
        if topic is not None:
            return topic
        grants.need_configure(self.name_of(namespace, address))
        topic = self.make(namespace, address)
        log_change("mqtt", "queue.create", topic.name, namespace=namespace, user=grants.user)
        return topic

    def make(self, namespace: str, address: Address) -> Topic:
        name = self.name_of(namespace, address)
        self.require_room(namespace)
        topics, now_ms = self._node_loop.engine().topics, self._node_loop.now_ms()
        if address.dead:
            return topics.create(namespace, name, DEAD_TOPIC_SETTINGS, now_ms=now_ms)
        return topics.create(namespace, name, now_ms=now_ms, kind="queue")

    def require_room(self, namespace: str) -> None:
        """A namespace may limit its topics, and which of them are queues."""
        self._node_loop.view.state.quotas.require(namespace, "max_topics")
        self._node_loop.view.state.quotas.require(namespace, "max_queues")

    def group(self, topic: Topic, name: str) -> Subscription:
        """The subscription of a group, made if there is none."""
        check_name(name, "consumer group")
        found = topic.subscriptions.get(name)
        if found is None:
            mode = MODES[topic.policy.ordering]
            made = self._node_loop.engine().subscriptions.subscribe(
                topic, name, now_ms=self._node_loop.now_ms(), mode=mode
            )
            log_change("mqtt", "group.create", topic.name, group=name)
            return made
        if found.mode is Mode.ASSIGNED:
            raise MqttError(
                Reason.UNSPECIFIED_ERROR,
                f"group {name!r} of {topic.name!r} assigns whole partitions,"
                " which MQTT clients can't use",
            )
        return found

    # --- publishing ---

    def check_publish(self, namespace: str, topic: str, grants: Grants) -> None:
        """Raises MqttError unless the user may publish there. The queue is there afterwards."""
        address = parse(topic)
        if address.dead or address.verb:
            raise MqttError(Reason.TOPIC_NAME_INVALID, f"{topic!r} can't be published to")
        try:
            grants.need_write(address.name)
            self.open(namespace, address, grants)
        except AccessRefused as error:
            raise refusal(error) from None

    def takes_runs(self, namespace: str, arrival: Arrival) -> bool:
        """Whether messages can be taken together: no answer differs, and none needs its place."""
        try:
            address = parse(arrival.topic.decode())
        except MqttError:
            return True  # all of them are refused
        if _names_partition(arrival):
            return False
        topic = self.find(namespace, address)
        if topic is None or address.verb or arrival.qos == 2 or topic.policy.max_bytes is not None:
            return False
        limit = topic.policy.max_messages
        return limit is None or topic.load[0] + arrival.count <= limit

    def publish(
        self,
        namespace: str,
        arrival: Arrival,
        publisher: Session | None = None,
        *,
        before_append: BeforeAppend | None = None,
    ) -> Routed:
        """Raises MqttError when it is refused."""
        address = parse(arrival.topic.decode())
        try:
            batch = _records(arrival, publisher)
            partition = None
            if _names_partition(arrival):
                partition = queue_partition(arrival.batch.record(0))
            topic = self.find(namespace, address) or self.make(namespace, address)
            if before_append is not None:
                self._node_loop.flush_batch()  # where it will stand is behind that
                before_append(_anchor(topic, batch, partition))
            # Whatever the QoS: a durable queue keeps what it took.
            publishing = self._node_loop.engine().publishing
            lsn = publishing.publish(topic, batch, now_ms=arrival.now_ms, partition=partition).lsn
        except StorageFailed:
            raise
        except BraidError as error:
            raise refusal(error) from None
        return Routed(lsn, True)


PARTITION_PROPERTY = len(TO_PARTITION).to_bytes(2) + TO_PARTITION.encode()
"""As it is in a packet: a name with its length."""


def batch_size(topic: Topic) -> int | None:
    """Messages that one consumer may have unanswered, if the queue says that."""
    found: int | None = topic.attributes.get("mqtt", {}).get("batch_size")
    return found


def _records(arrival: Arrival, publisher: Session | None) -> RecordBatch:
    """The messages as records of a queue: some user properties are fields of a record."""
    if not arrival.flags & FLAG_USER_PROPERTIES:
        return arrival.batch  # due as its topic said, if at all
    user = publisher.user if publisher is not None else ""
    records = [queue_record(each, user) for each in arrival.batch.records()]
    return batch_of(*records)


def _names_partition(arrival: Arrival) -> bool:
    """Whether messages may: then each goes by itself."""
    return bool(arrival.flags & FLAG_USER_PROPERTIES) and arrival.mentions(PARTITION_PROPERTY)


def _anchor(topic: Topic, batch: RecordBatch, partition: int | None) -> Anchor:
    if batch.count > 1 or not topic.journaled:
        return NO_ANCHOR
    if partition is not None:
        log = topic.partition(partition).log
    else:
        log = topic.partition_of(batch.record(0).key).log
    return log.id, log.next_offset
