"""Exchanges and bindings, and publishing through them."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext, InNamespace, ListInNamespace, require_storable
from braidmq.api.endpoints import Answer, Body, Call, operation
from braidmq.api.messages import BATCH_MESSAGES_MAX, NewMessage, encode
from braidmq.api.paging import Page, page_of
from braidmq.api.problems import DiskLow, MemoryLow, PreconditionFailed
from braidmq.api.resources.publishing import BATCH_BYTES_MAX, require_fits
from braidmq.engine.envelope import AMQP, headers_of
from braidmq.engine.errors import MessageTooLarge, TopicFull, UnknownTopic
from braidmq.engine.exchanges import Exchanges as EngineExchanges
from braidmq.engine.routing.bindings import Binding, Destination
from braidmq.engine.routing.effects import ExchangeInfo as EngineExchange
from braidmq.engine.routing.errors import (
    ExchangeInUse,
    ExchangeMismatch,
    ExchangeNotFound,
    InternalExchange,
    InvalidArgument,
    ReservedName,
    UnknownKind,
)
from braidmq.engine.topics import Topic
from braidmq.gateways.translation import amqp_from_native, native_headers
from braidmq.model.errors import BadRequest, NotFound
from braidmq.record.batch import RecordBatch
from braidmq.security.permissions import DEFAULT_EXCHANGE
from braidmq.security.records import check_name
from braidmq.security.rights import any_right, configure, listing, read, write
from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX
from braidmq.wire.envelopes import amqp_envelope

Arguments = Annotated[dict[str, Any], Meta(max_length=100)]
DestinationKind = Literal["topic", "exchange"]
RoutingKey = Annotated[str, Meta(max_length=SHORT_STRING_BYTES_MAX)]


class NewExchange(Body, frozen=True):
    kind: Annotated[
        str,
        Meta(description="What it matches", examples=["direct", "fanout", "topic", "headers"]),
    ] = "direct"
    durable: bool = True
    auto_delete: Annotated[bool, Meta(description="It goes with its last binding")] = False
    internal: Annotated[bool, Meta(description="Only other exchanges publish to it")] = False
    alternate_exchange: Annotated[str | None, Meta(description="Gets what matches no binding")] = (
        None
    )
    arguments: Arguments = msgspec.field(default_factory=dict)


class ExchangeInfo(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    alternate_exchange: str | None
    arguments: dict[str, Any]
    disabled: (
        Annotated[
            list[str],
            Meta(description="Settings that do not hold: who made them lost the right to a target"),
        ]
        | UnsetType
    ) = UNSET


class DeleteExchangeQuery(InNamespace, frozen=True):
    if_unused: Annotated[bool, Meta(description="Refuse if it has bindings")] = False


class BindingInfo(msgspec.Struct, frozen=True):
    namespace: str
    source: str
    destination: str
    destination_kind: DestinationKind
    routing_key: str
    arguments: dict[str, Any]
    disabled: (
        Annotated[bool, Meta(description="Nothing goes through: its maker lost a right to an end")]
        | UnsetType
    ) = UNSET


class NewBinding(Body, frozen=True):
    source: Annotated[str, Meta(description="An exchange")]
    destination: Annotated[str, Meta(description="A topic, or another exchange")]
    destination_kind: DestinationKind = "topic"
    routing_key: RoutingKey = ""
    arguments: Arguments = msgspec.field(default_factory=dict)


class BindingsQuery(ListInNamespace, frozen=True):
    source: Annotated[str, Meta(description="Only from this exchange")] | UnsetType = UNSET


class DeleteBindingQuery(InNamespace, frozen=True, kw_only=True):
    source: str
    destination: str
    destination_kind: DestinationKind = "topic"
    routing_key: RoutingKey = ""
    arguments: Annotated[str, Meta(description="The binding's arguments as JSON")] = "{}"


class RoutedMessages(Body, frozen=True):
    """Messages to publish with one routing key."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=BATCH_MESSAGES_MAX)]
    routing_key: RoutingKey = ""


class Routed(msgspec.Struct, frozen=True):
    count: int
    topics: Annotated[list[str], Meta(description="Those that got any of them")]
    unrouted: Annotated[list[int], Meta(description="Places of those that no binding matched")]
    refused: Annotated[list[int], Meta(description="Places of those that a full topic refused")]


class Exchanges:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    # --- exchanges ---

    @operation(
        "GET",
        "/v1/exchanges",
        right=listing("exchanges that the caller may read, write or configure"),
        tag="exchanges",
        errors=(NotFound,),
    )
    async def list_exchanges(self, call: Call, query: ListInNamespace) -> list[ExchangeInfo] | Page:
        """List exchanges, by name. The default one is shown as `amq.default`."""
        exchanges = self._context.engine().exchanges
        router = exchanges.router(query.namespace)
        found, cursor = await page_of(
            router.exchanges(),
            query,
            lambda each: (each.name,),
            tuple[str],
            keep=lambda each: router.has(each.name) and call.grants.sees(each.name),
        )
        return Page([shown(query.namespace, each, exchanges) for each in found], cursor)

    @operation(
        "GET",
        "/v1/exchanges/{exchange}",
        right=any_right("exchange"),
        tag="exchanges",
        errors=(ExchangeNotFound,),
    )
    async def describe_exchange(
        self, call: Call, exchange: str, query: InNamespace
    ) -> ExchangeInfo:
        """Describe an exchange."""
        exchanges = self._context.engine().exchanges
        router = exchanges.router(query.namespace)
        return shown(query.namespace, router.exchange(real_name(exchange)), exchanges)

    @operation(
        "PUT",
        "/v1/exchanges/{exchange}",
        right=configure("exchange").noting(
            "with an alternate exchange also read on `exchange` and write on the alternate"
        ),
        tag="exchanges",
        statuses=(201, 200),
        errors=(
            NotFound,
            ExchangeMismatch,
            ReservedName,
            UnknownKind,
            InvalidArgument,
            PreconditionFailed,
        ),
        examples=({"kind": "topic"},),
    )
    async def create_exchange(
        self, call: Call, exchange: str, query: InNamespace, body: NewExchange
    ) -> ExchangeInfo | Answer:
        """Make an exchange; one that is just so already is left alone."""
        check_name(exchange, "exchange name")
        require_storable(body.arguments)
        exchanges = self._context.engine().exchanges
        known = any(each.name == exchange for each in exchanges.router(query.namespace).exchanges())
        exchanges.declare(
            query.namespace,
            real_name(exchange),
            body.kind,
            durable=body.durable,
            auto_delete=body.auto_delete,
            internal=body.internal,
            arguments=body.arguments,
            alternate_exchange=body.alternate_exchange,
            set_by=call.maker,
        )
        await self._context.done()
        made = exchanges.router(query.namespace).exchange(exchange)
        info = shown(query.namespace, made, exchanges)
        return Answer(info, 200 if known else 201)

    @operation(
        "DELETE",
        "/v1/exchanges/{exchange}",
        right=configure("exchange"),
        tag="exchanges",
        statuses=(204,),
        errors=(ExchangeNotFound, ExchangeInUse, ReservedName),
    )
    async def delete_exchange(self, call: Call, exchange: str, query: DeleteExchangeQuery) -> None:
        """Delete an exchange, with all bindings from and to it."""
        self._context.engine().exchanges.delete(
            query.namespace, real_name(exchange), if_unused=query.if_unused
        )
        await self._context.done()

    # --- bindings ---

    @operation(
        "GET",
        "/v1/bindings",
        right=listing("bindings between what the caller may read, write or configure"),
        tag="exchanges",
        errors=(ExchangeNotFound,),
    )
    async def list_bindings(self, call: Call, query: BindingsQuery) -> list[BindingInfo] | Page:
        """List bindings, by source, destination and routing key."""
        router = self._context.engine().exchanges.router(query.namespace)
        source = None if query.source is UNSET else real_name(query.source)
        if source is not None and not call.grants.sees(source):
            router.exchange(source)
            return []
        sees = call.grants.sees
        found, cursor = await page_of(
            router.bindings(source),
            query,
            place_of,
            tuple[str, str, str, str, str],
            keep=lambda each: (
                router.has(each.source) and sees(each.source) and sees(each.destination.name)
            ),
        )
        listed = [shown_binding(query.namespace, each, router.is_suspended(each)) for each in found]
        return Page(listed, cursor)

    @operation(
        "POST",
        "/v1/bindings",
        right=write("body.destination").and_(read("body.source")),
        tag="exchanges",
        statuses=(201,),
        errors=(ExchangeNotFound, UnknownTopic, ReservedName, InvalidArgument),
        examples=(
            {"source": "amq.topic", "destination": "orders", "routing_key": "shop.*.orders"},
        ),
    )
    async def bind(self, call: Call, query: InNamespace, body: NewBinding) -> BindingInfo:
        """Bind a topic or an exchange to an exchange; a binding that is there is left alone."""
        require_storable(body.arguments)
        require_short(body.routing_key)
        engine = self._context.engine()
        durable = True
        if body.destination_kind == "topic":
            durable = engine.state.topic(query.namespace, body.destination).durable
        key = body.routing_key.encode()
        engine.exchanges.bind(
            query.namespace,
            real_name(body.source),
            destination_of(body),
            key,
            body.arguments,
            durable=durable,
            bound_by=call.maker,
        )
        await self._context.done()
        made = Binding(real_name(body.source), destination_of(body), key, body.arguments)
        return shown_binding(query.namespace, made)

    @operation(
        "DELETE",
        "/v1/bindings",
        right=write("query.destination").and_(read("query.source")),
        tag="exchanges",
        statuses=(204,),
        errors=(ExchangeNotFound, ReservedName, InvalidArgument),
    )
    async def unbind(self, call: Call, query: DeleteBindingQuery) -> None:
        """Remove a binding; one that is not there is removed already."""
        try:
            arguments = msgspec.json.decode(query.arguments, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadRequest(f"the arguments are not a JSON object: {error}") from None
        require_short(query.routing_key)
        self._context.engine().exchanges.unbind(
            query.namespace,
            real_name(query.source),
            destination_of(query),
            query.routing_key.encode(),
            arguments,
        )
        await self._context.done()

    # --- publishing ---

    @operation(
        "POST",
        "/v1/exchanges/{exchange}/messages",
        right=write("exchange"),
        tag="exchanges",
        statuses=(201,),
        errors=(
            ExchangeNotFound,
            InternalExchange,
            MessageTooLarge,
            TopicFull,
            MemoryLow,
            DiskLow,
        ),
        body_bytes_max=BATCH_BYTES_MAX,
        examples=({"routing_key": "shop.eu.orders", "messages": [{"value": "hello"}]},),
        traffic=True,
    )
    async def publish_through_exchange(
        self, call: Call, exchange: str, query: InNamespace, body: RoutedMessages
    ) -> Routed:
        """Publish messages through an exchange.

        `amq.default` is the default exchange, which takes a routing key for the name of a topic.
        A message that names a partition is refused: each topic has its own.
        """
        require_short(body.routing_key)
        for place, message in enumerate(body.messages):
            if message.partition is not UNSET:
                raise BadRequest(
                    f"message {place} names a partition, and goes through an exchange",
                    remedy="Leave the partition out, or publish to the topic",
                )
        await self._context.let_in(call, query.namespace, len(body.messages))
        name = real_name(exchange)
        self._context.engine().exchanges.router(query.namespace).exchange(name)
        self._context.require_room()
        routed = self._publish(call, query.namespace, name, body)
        await self._context.done()
        return routed

    def _publish(self, call: Call, namespace: str, exchange: str, body: RoutedMessages) -> Routed:
        engine, now_ms = self._context.engine(), self._context.now_ms
        key = body.routing_key.encode()
        batch = as_amqp(encode(body.messages, now_ms, call.user.name), exchange.encode(), key)
        runs = self._runs(namespace, exchange, key, batch)
        names: dict[str, None] = {}
        unrouted: list[int] = []
        refused: list[int] = []
        for topic in {topic for topics, _, _ in runs for topic in topics}:
            require_fits(topic, batch)
        for topics, first, stop in runs:
            if not topics:
                unrouted += range(first, stop)
                continue
            data = memoryview(batch)[batch.position_at(first) : end_of(batch, stop)]
            part = RecordBatch.scan(bytes(data), base_offset=0, verify=False)
            try:
                accepted = engine.publishing.fan_out(topics, part, now_ms=now_ms).accepted
            except TopicFull:
                accepted = 0
            self._context.published(namespace, part, accepted)
            refused += range(first + accepted, stop)
            names |= dict.fromkeys(topic.name for topic in topics)
        if len(refused) == batch.count:
            raise TopicFull("a topic that the message is routed to is full")
        return Routed(batch.count - len(refused), sorted(names), unrouted, refused)

    def _runs(
        self, namespace: str, exchange: str, key: bytes, batch: RecordBatch
    ) -> list[tuple[list[Topic], int, int]]:
        """Topics, and which messages go to them: all the same way unless headers decide."""
        router = self._context.engine().exchanges.router(namespace)
        if router.routes_by_key_only(exchange):
            return [(self._topics(namespace, exchange, key, batch, 0), 0, batch.count)]
        runs: list[tuple[list[Topic], int, int]] = []
        for index in range(batch.count):
            topics = self._topics(namespace, exchange, key, batch, index)
            if runs and runs[-1][0] == topics:
                runs[-1] = (topics, runs[-1][1], index + 1)
            else:
                runs.append((topics, index, index + 1))
        return runs

    def _topics(
        self, namespace: str, exchange: str, key: bytes, batch: RecordBatch, index: int
    ) -> list[Topic]:
        def headers() -> Mapping[str, Any]:
            return headers_of(batch.record(index))

        engine = self._context.engine()
        router = engine.exchanges.router(namespace)
        route = router.resolve(exchange, key, headers, from_client=True)
        found = (engine.state.topics.get((namespace, name)) for name in route.topics)
        return [topic for topic in found if topic is not None]


def require_short(routing_key: str) -> None:
    if len(routing_key.encode()) > SHORT_STRING_BYTES_MAX:
        raise BadRequest(f"a routing key can have at most {SHORT_STRING_BYTES_MAX} bytes")


def real_name(exchange: str) -> str:
    """The default exchange has no name, and a path needs one."""
    return "" if exchange == DEFAULT_EXCHANGE else exchange


def place_of(binding: Binding) -> tuple[str, str, str, str, str]:
    """Of any bytes as a key, and of arguments of any length."""
    kind, name = binding.destination
    arguments = repr(binding.frozen_arguments).encode("utf-8", "surrogatepass")
    digest = blake2b(arguments, digest_size=16).hexdigest() if binding.arguments else ""
    return binding.source, kind, name, binding.key.decode("latin-1"), digest


def destination_of(binding: NewBinding | DeleteBindingQuery) -> Destination:
    name = binding.destination
    if binding.destination_kind == "exchange":
        name = real_name(name)
    return Destination(binding.destination_kind, name)


def end_of(batch: RecordBatch, stop: int) -> int:
    return batch.size if stop == batch.count else batch.position_at(stop)


def as_amqp(batch: RecordBatch, exchange: bytes, key: bytes) -> RecordBatch:
    """Records with AMQP envelopes: those say which exchange and key a message came with."""
    made = RecordBatch()
    for record in batch.records():
        # Its priority and times stay in the record; the key of a message goes into a header.
        properties = amqp_from_native(native_headers(record), record)
        made.append(
            record.value,
            key=record.key,
            envelope=amqp_envelope(exchange, key, properties),
            envelope_format=AMQP,
            flags=record.flags,
            priority=record.priority,
            timestamp_ms=record.timestamp_ms,
            expires_at_ms=record.expires_at_ms,
            due_at_ms=record.due_at_ms,
            dated=record.dated,
        )
    return made


def shown(namespace: str, info: EngineExchange, exchanges: EngineExchanges) -> ExchangeInfo:
    return ExchangeInfo(
        namespace,
        info.name or DEFAULT_EXCHANGE,
        info.kind,
        info.durable,
        info.auto_delete,
        info.internal,
        info.alternate_exchange,
        dict(info.arguments),
        ["alternate_exchange"] if exchanges.is_denied(namespace, info) else UNSET,
    )


def shown_binding(namespace: str, binding: Binding, suspended: bool = False) -> BindingInfo:
    return BindingInfo(
        namespace,
        binding.source or DEFAULT_EXCHANGE,
        binding.destination.name,
        binding.destination.kind,
        binding.key.decode("utf-8", "replace"),
        dict(binding.arguments),
        suspended or UNSET,
    )
