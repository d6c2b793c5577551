"""Publishing in bulk: records as the log stores them, encoded by who sends them (Spark).

The node only checks them: nothing a publisher sends can make it write what it could not read.
"""

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext, InNamespace
from braidmq.api.endpoints import Call, operation
from braidmq.api.messages import Partition
from braidmq.api.resources.publishing import ERRORS, PlacedRun, PublishedBatch, require_fits
from braidmq.api.transaction_headers import PublishHeaders, origin_of
from braidmq.engine.record_times import shifted
from braidmq.gateways.mqtt.queues.names import QUEUE
from braidmq.model.errors import BadRequest
from braidmq.model.limits import MIB
from braidmq.record.batch import BadRecord, RecordBatch
from braidmq.security.records import IMPERSONATOR
from braidmq.security.rights import write
from braidmq.wire.record_rows import check_rows

RECORDS_BYTES_MAX = 16 * MIB


class BadRecords(BadRequest):
    code = "bad-records"
    remedy = "Send whole records as record/batch.pyx has them, numbered from 0"


class IntoPartition(InNamespace, frozen=True):
    partition: Annotated[Partition, Meta(description="Otherwise each goes where its key says")] | (
        UnsetType
    ) = UNSET


class BulkPublishing:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "POST",
        "/v1/topics/{topic}/records",
        right=write("topic").noting(
            "exchanges and MQTT topics that envelopes name need it too",
            "`user_id`s of others take the tag `impersonator`",
        ),
        tag="bulk",
        statuses=(201,),
        errors=(*ERRORS, BadRecords),
        body_bytes_max=RECORDS_BYTES_MAX,
        traffic=True,
    )
    async def publish_records(
        self, call: Call, topic: str, query: IntoPartition, headers: PublishHeaders, body: bytes
    ) -> PublishedBatch:
        """Publish records that are encoded already.

        Their times are kept, and their envelopes: native headers, or the properties of an AMQP or
        MQTT message as they were on the wire. These can say nothing that their publisher could not
        have said over the same protocol: exchange and MQTT topic need the right to write there,
        and `user_id` is who publishes, unless that user has the tag `impersonator`.

        A topic that becomes full on the way takes the first that fit, and `refused` names the
        others; one that is full already answers 429. With a sequence, which is the first record's,
        or in a transaction, all are taken or none.
        """
        engine = self._context.engine()
        target = engine.state.topic(query.namespace, topic)
        self._context.require_room()
        batch = checked(body, call)
        await self._context.let_in(call, query.namespace, batch.count)
        engine = self._context.engine()
        target = engine.state.topic(query.namespace, topic)  # it may have gone meanwhile
        require_fits(target, batch)
        partition = None if query.partition is UNSET else query.partition
        if partition is not None:
            target.partition(partition)
        origin = origin_of(self._context, call, query.namespace, headers)
        lead_ms = engine.state.clock.lead_ms
        if lead_ms:
            # Their times are by the wall clock already.
            batch = shifted(batch, -lead_ms)
        done = engine.publishing.publish(
            target, batch, now_ms=self._context.now_ms, partition=partition, origin=origin
        )
        self._context.published(query.namespace, batch, done.accepted)
        await self._context.done()
        runs = [PlacedRun(*run) for run in done.placed]
        refused = list(range(done.accepted, batch.count))
        return PublishedBatch(topic, done.accepted, runs, refused)


def checked(body: bytes, call: Call) -> RecordBatch:
    """Raises BadRecords or AccessRefused."""
    try:
        batch = RecordBatch.scan(body, base_offset=0)
        users, exchanges, topics = check_rows(batch)
    except BadRecord as error:
        raise BadRecords(str(error)) from None
    if batch.size != len(body) or not batch.count:
        raise BadRecords(f"{len(body)} bytes are not a whole number of records")
    strangers = users - {call.user.name.encode()}
    if strangers and IMPERSONATOR not in call.user.tags:
        raise BadRecords(
            f"user_id is {min(strangers).decode()!r}, but the publisher is {call.user.name!r}",
            remedy=f"Publish as that user, or give {call.user.name!r} the tag {IMPERSONATOR}",
        )
    for exchange in exchanges:
        call.grants.need_write(exchange.decode())
    for topic in topics:
        call.grants.need_write(_written_to(topic.decode()))
    return batch


def _written_to(topic: str) -> str:
    """What an MQTT client needs the right to write to for this topic. Raises BadRecords."""
    name = topic.removeprefix(QUEUE)
    if name.startswith("$"):
        raise BadRecords(f"no client can publish to {topic!r}: it is the broker's")
    return name
