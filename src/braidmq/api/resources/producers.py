"""Producers that number their messages, so that none is written twice."""

from typing import Annotated

import msgspec
from msgspec import Meta

from braidmq.api.context import ApiContext, InNamespace
from braidmq.api.endpoints import Body, Call, operation
from braidmq.api.transaction_headers import NAME_CHARACTERS_MAX
from braidmq.engine.transactions.errors import NotYourTransaction
from braidmq.model.errors import NotFound
from braidmq.security.rights import write


class NewProducer(Body, frozen=True):
    name: Annotated[
        str,
        Meta(
            max_length=NAME_CHARACTERS_MAX,
            description="Whoever opens it again has a new epoch, and those before may write no"
            " more. Without one, it is a producer nobody can take over",
        ),
    ] = ""


class ProducerInfo(msgspec.Struct, frozen=True):
    producer_id: int
    epoch: int
    name: str


class Producers:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "POST",
        "/v1/producers",
        right=write().noting("a name that is another user's producer is refused"),
        tag="transactions",
        statuses=(201,),
        errors=(NotFound, NotYourTransaction),
        examples=({}, {"name": "billing-1"}),
        traffic=True,
    )
    async def open_producer(
        self, call: Call, query: InNamespace, body: NewProducer
    ) -> ProducerInfo:
        """Open a producer.

        Publish with its id and epoch in `Braid-Producer-Id` and `Braid-Producer-Epoch`, and number
        the messages of each topic from 0 on with `Braid-Sequence`: one that is sent again is
        answered as the first time, and written once. An open transaction of an earlier epoch is
        aborted.
        """
        producer, lsn = self._context.engine().transactions.open_producer(
            query.namespace, body.name, owner=call.user.name, now_ms=self._context.now_ms
        )
        await self._context.node_loop.durable(lsn)
        return ProducerInfo(producer.id, producer.epoch, producer.name)
