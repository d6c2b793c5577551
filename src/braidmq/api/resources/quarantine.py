"""Partitions whose files are damaged: which, and what an operator may do about them."""

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from braidmq.api.context import ApiContext, InNamespace
from braidmq.api.endpoints import Call, operation
from braidmq.api.messages import Partition
from braidmq.api.paging import ListQuery, Page, page_of
from braidmq.engine.errors import UnknownPartition, UnknownTopic
from braidmq.engine.topics import TopicPartition
from braidmq.model.errors import Conflict, PartitionQuarantined, StorageFailed
from braidmq.security.rights import ADMINISTRATOR
from braidmq.storage import aside
from braidmq.storage.quarantine import Damage, Skipped, check


class NotQuarantined(Conflict):
    code = "not-quarantined"


class QuarantinedInfo(msgspec.Struct, frozen=True):
    namespace: str
    topic: str
    partition: int
    file: Annotated[str, Meta(description="In the data directory")]
    byte: Annotated[int, Meta(description="Where it is damaged first")]
    reason: str


class SetAsideInfo(msgspec.Struct, frozen=True):
    file: str
    bytes: int


class QuarantineInfo(msgspec.Struct, frozen=True):
    partitions: list[QuarantinedInfo]
    set_aside: Annotated[
        list[SetAsideInfo],
        Meta(description="Files that the node does not use any more and did not remove"),
    ]


class SkippedInfo(msgspec.Struct, frozen=True):
    file: str
    aside: Annotated[str, Meta(description="Where the damaged file is now; empty: it was missing")]
    ranges: Annotated[list[tuple[int, int]], Meta(description="Bytes of it that were passed over")]
    records: Annotated[int, Meta(description="Records that are lost with them")]


class SkippedDamage(msgspec.Struct, frozen=True):
    skipped: list[SkippedInfo]


class QuarantineResource:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation("GET", "/v1/quarantine", right=ADMINISTRATOR, tag="node")
    async def list_quarantined(self, call: Call, query: ListQuery) -> QuarantineInfo | Page:
        """List the partitions that are quarantined because a file of theirs is damaged.

        They are neither read nor written; all others are. Also lists the files that were set aside,
        after the partitions: a page may have both.
        """
        engine = self._context.engine()
        every: list[QuarantinedInfo | SetAsideInfo] = [
            *(_described(each) for each in engine.quarantine.partitions()),
            *(SetAsideInfo(*each) for each in aside.found(engine.store.disk)),
        ]
        found, cursor = await page_of(every, query, _place_of, tuple[bool, str, str, int])
        partitions = [each for each in found if isinstance(each, QuarantinedInfo)]
        files = [each for each in found if isinstance(each, SetAsideInfo)]
        return Page(QuarantineInfo(partitions, files), cursor)

    @operation(
        "POST",
        "/v1/topics/{topic}/partitions/{partition}/quarantine/retry",
        right=ADMINISTRATOR,
        tag="node",
        statuses=(204,),
        errors=(UnknownTopic, UnknownPartition, NotQuarantined, PartitionQuarantined),
    )
    async def retry_quarantined(
        self, call: Call, topic: str, partition: Partition, query: InNamespace
    ) -> None:
        """Read all of a quarantined partition again, and serve it if it is whole.

        For when the damaged file was restored.
        """
        found = self._found(query.namespace, topic, partition)
        store, log = self._context.engine().store, found.log
        loop = asyncio.get_running_loop()
        damage = await loop.run_in_executor(
            None, check, store.disk, list(log.segments), log.header_label
        )
        self._context.engine()
        if log.damage is None or store.logs.get(log.id) is not log:
            return  # somebody else was quicker
        if damage is not None:
            store.note_damage(log, damage)
            raise log.quarantined()
        store.lift(log)
        await self._context.done()

    @operation(
        "POST",
        "/v1/topics/{topic}/partitions/{partition}/quarantine/skip",
        right=ADMINISTRATOR,
        tag="node",
        errors=(UnknownTopic, UnknownPartition, NotQuarantined, PartitionQuarantined),
    )
    async def skip_quarantined(
        self, call: Call, topic: str, partition: Partition, query: InNamespace
    ) -> SkippedDamage:
        """Serve a quarantined partition without what is damaged.

        Its segments are written anew with all records that are intact, before the damage and after
        it; the damaged files are set aside. The answer says what is lost.
        """
        found = self._found(query.namespace, topic, partition)
        future: asyncio.Future[list[Skipped]] = asyncio.get_running_loop().create_future()

        def told(result: list[Skipped] | StorageFailed) -> None:
            if future.done():
                return
            if isinstance(result, StorageFailed):
                future.set_exception(result)
            else:
                future.set_result(result)

        self._context.engine().store.skip_damage(found.log, told)
        skipped = await future
        self._context.engine()
        if found.log.damage is not None and not found.topic.deleted:
            raise found.log.quarantined()
        await self._context.done()
        return SkippedDamage(
            [SkippedInfo(each.file, each.aside, each.ranges, each.records) for each in skipped]
        )

    def _found(self, namespace: str, topic: str, partition: int) -> TopicPartition:
        engine = self._context.engine()
        found = engine.state.topic(namespace, topic).partition(partition)
        if found.log.damage is None:
            raise NotQuarantined(f"{found.log.label} is not quarantined")
        return found


def _described(partition: TopicPartition) -> QuarantinedInfo:
    damage = partition.log.damage
    assert isinstance(damage, Damage)
    topic = partition.topic
    return QuarantinedInfo(
        topic.namespace, topic.name, partition.number, damage.file, damage.position, damage.reason
    )


def _place_of(found: QuarantinedInfo | SetAsideInfo) -> tuple[bool, str, str, int]:
    if isinstance(found, SetAsideInfo):
        return True, found.file, "", 0
    return False, found.namespace, found.topic, found.partition
