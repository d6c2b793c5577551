"""Every method of AMQP 0-9-1: a frozen struct each, and one table that says how it is written.

    frame    kind:u8  channel:u16  size:u32  payload:size  0xCE
    payload  class_id:u16  method_id:u16  fields              (of a method frame)

Fields are packed in the order of the table. Neighbouring bits share an octet, lowest bit first,
eight to an octet. Fields named ``_`` are reserved: written as zero, read and ignored.
Long strings are ``bytes``: they carry SASL responses, which need not be text.
"""

import struct
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from braidmq.wire.amqp.constants import FRAME_END, ClassId, FrameKind
from braidmq.wire.amqp.errors import AmqpError, FrameError, UnknownMethod
from braidmq.wire.amqp.method_fields import OCTET, Step, steps_of
from braidmq.wire.amqp.tables import Table


class Method(msgspec.Struct, frozen=True):
    """What ``decode`` gives and ``encode`` takes. The class attributes come from ``METHODS``."""

    NAME: ClassVar[str]
    IDS: ClassVar[tuple[int, int]]
    """Of its class, and its own."""
    REPLIES: ClassVar[tuple[type["Method"], ...]]
    """The sender waits for one of these, unless it said nowait."""


# --- connection ---


class ConnectionStart(Method, frozen=True):
    version_major: int = 0
    version_minor: int = 9
    server_properties: Table = {}
    mechanisms: bytes = b"PLAIN"
    locales: bytes = b"en_US"


class ConnectionStartOk(Method, frozen=True):
    client_properties: Table = {}
    mechanism: str = "PLAIN"
    response: bytes = b""
    locale: str = "en_US"


class ConnectionSecure(Method, frozen=True):
    challenge: bytes = b""


class ConnectionSecureOk(Method, frozen=True):
    response: bytes = b""


class ConnectionTune(Method, frozen=True):
    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


class ConnectionTuneOk(Method, frozen=True):
    channel_max: int = 0
    frame_max: int = 0
    heartbeat: int = 0


class ConnectionOpen(Method, frozen=True):
    virtual_host: str = "/"


class ConnectionOpenOk(Method, frozen=True):
    pass


class ConnectionClose(Method, frozen=True):
    reply_code: int = 200
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


class ConnectionCloseOk(Method, frozen=True):
    pass


class ConnectionBlocked(Method, frozen=True):
    reason: str = ""


class ConnectionUnblocked(Method, frozen=True):
    pass


class ConnectionUpdateSecret(Method, frozen=True):
    new_secret: bytes = b""
    reason: str = ""


class ConnectionUpdateSecretOk(Method, frozen=True):
    pass


# --- channel ---


class ChannelOpen(Method, frozen=True):
    pass


class ChannelOpenOk(Method, frozen=True):
    pass


class ChannelFlow(Method, frozen=True):
    active: bool = True


class ChannelFlowOk(Method, frozen=True):
    active: bool = True


class ChannelClose(Method, frozen=True):
    reply_code: int = 200
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0


class ChannelCloseOk(Method, frozen=True):
    pass


# --- access: not in the 0-9-1 specification, but pika and older clients know it ---


class AccessRequest(Method, frozen=True):
    realm: str = "/data"
    exclusive: bool = False
    passive: bool = True
    active: bool = True
    write: bool = True
    read: bool = True


class AccessRequestOk(Method, frozen=True):
    ticket: int = 1


# --- exchange ---


class ExchangeDeclare(Method, frozen=True):
    exchange: str = ""
    type: str = "direct"
    passive: bool = False
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    nowait: bool = False
    arguments: Table = {}


class ExchangeDeclareOk(Method, frozen=True):
    pass


class ExchangeDelete(Method, frozen=True):
    exchange: str = ""
    if_unused: bool = False
    nowait: bool = False


class ExchangeDeleteOk(Method, frozen=True):
    pass


class ExchangeBind(Method, frozen=True):
    destination: str = ""
    source: str = ""
    routing_key: str = ""
    nowait: bool = False
    arguments: Table = {}


class ExchangeBindOk(Method, frozen=True):
    pass


class ExchangeUnbind(Method, frozen=True):
    destination: str = ""
    source: str = ""
    routing_key: str = ""
    nowait: bool = False
    arguments: Table = {}


class ExchangeUnbindOk(Method, frozen=True):
    pass


# --- queue ---


class QueueDeclare(Method, frozen=True):
    queue: str = ""
    passive: bool = False
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    nowait: bool = False
    arguments: Table = {}


class QueueDeclareOk(Method, frozen=True):
    queue: str = ""
    message_count: int = 0
    consumer_count: int = 0


class QueueBind(Method, frozen=True):
    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    nowait: bool = False
    arguments: Table = {}


class QueueBindOk(Method, frozen=True):
    pass


class QueuePurge(Method, frozen=True):
    queue: str = ""
    nowait: bool = False


class QueuePurgeOk(Method, frozen=True):
    message_count: int = 0


class QueueDelete(Method, frozen=True):
    queue: str = ""
    if_unused: bool = False
    if_empty: bool = False
    nowait: bool = False


class QueueDeleteOk(Method, frozen=True):
    message_count: int = 0


class QueueUnbind(Method, frozen=True):
    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    arguments: Table = {}


class QueueUnbindOk(Method, frozen=True):
    pass


# --- basic ---


class BasicQos(Method, frozen=True):
    prefetch_size: int = 0
    prefetch_count: int = 0
    global_qos: bool = False


class BasicQosOk(Method, frozen=True):
    pass


class BasicConsume(Method, frozen=True):
    queue: str = ""
    consumer_tag: str = ""
    no_local: bool = False
    no_ack: bool = False
    exclusive: bool = False
    nowait: bool = False
    arguments: Table = {}


class BasicConsumeOk(Method, frozen=True):
    consumer_tag: str = ""


class BasicCancel(Method, frozen=True):
    consumer_tag: str = ""
    nowait: bool = False


class BasicCancelOk(Method, frozen=True):
    consumer_tag: str = ""


class BasicPublish(Method, frozen=True):
    exchange: str = ""
    routing_key: str = ""
    mandatory: bool = False
    immediate: bool = False


class BasicReturn(Method, frozen=True):
    reply_code: int = 200
    reply_text: str = ""
    exchange: str = ""
    routing_key: str = ""


class BasicDeliver(Method, frozen=True):
    consumer_tag: str = ""
    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""


class BasicGet(Method, frozen=True):
    queue: str = ""
    no_ack: bool = False


class BasicGetOk(Method, frozen=True):
    delivery_tag: int = 0
    redelivered: bool = False
    exchange: str = ""
    routing_key: str = ""
    message_count: int = 0


class BasicGetEmpty(Method, frozen=True):
    pass


class BasicAck(Method, frozen=True):
    delivery_tag: int = 0
    multiple: bool = False


class BasicReject(Method, frozen=True):
    delivery_tag: int = 0
    requeue: bool = True


class BasicRecoverAsync(Method, frozen=True):
    requeue: bool = False


class BasicRecover(Method, frozen=True):
    requeue: bool = False


class BasicRecoverOk(Method, frozen=True):
    pass


class BasicNack(Method, frozen=True):
    delivery_tag: int = 0
    multiple: bool = False
    requeue: bool = True


# --- ours, by capability: ``braid.retry``, and ``braid.visibility`` for the second ---


class BasicRetry(Method, frozen=True):
    """Deliveries ``first_tag`` to ``last_tag`` failed: again after the topic's back-off, or with
    ``delayed`` after ``delay_ms``."""

    first_tag: int = 0
    last_tag: int = 0
    delayed: bool = False
    delay_ms: int = 0


class BasicExtend(Method, frozen=True):
    """So much time is left to answer for deliveries; the broker says 0 when there is none."""

    first_tag: int = 0
    last_tag: int = 0
    visibility_ms: int = 0


class BasicPlaced(Method, frozen=True):
    """Where a run of published messages is, to who asked with confirm.places; their confirm comes
    behind it."""

    first_tag: int = 0
    count: int = 0
    topic: str = ""
    partition: int = 0
    offset: int = 0  # of the first


class BasicFail(Method, frozen=True):
    """As ``BasicRetry``, or given up; and why. The capability is ``braid.errors``."""

    first_tag: int = 0
    last_tag: int = 0
    final: bool = False
    delayed: bool = False
    delay_ms: int = 0
    error: bytes = b""


# --- confirm, tx ---


class ConfirmSelect(Method, frozen=True):
    nowait: bool = False


class ConfirmPlaces(Method, frozen=True):
    """Before the confirms of this channel, say where the messages are."""


class ConfirmSelectOk(Method, frozen=True):
    pass


class TxSelect(Method, frozen=True):
    pass


class TxSelectOk(Method, frozen=True):
    pass


class TxCommit(Method, frozen=True):
    pass


class TxCommitOk(Method, frozen=True):
    pass


class TxRollback(Method, frozen=True):
    pass


class TxRollbackOk(Method, frozen=True):
    pass


class TxBegin(Method, frozen=True):
    """Ours. The channel publishes in a transaction; the next message has number ``sequence``."""

    name: str = ""
    branch: str = ""
    join: bool = False
    number: int = 0  # of the transaction to join, for who was in it before
    sequence: int = 0
    timeout_ms: int = 0
    session_ms: int = 0
    producer: int = 0
    epoch: int = 0
    application: str = ""
    application_epoch: int = 0
    application_sequence: int = 0


class TxBeginOk(Method, frozen=True):
    name: str = ""
    number: int = 0  # another one of the same name has another


class TxAck(Method, frozen=True):
    """Deliveries of a channel of this connection are acknowledged when the transaction commits."""

    channel: int = 0
    first_tag: int = 0
    last_tag: int = 0


class TxReturn(Method, frozen=True):
    """Deliveries of this channel that a transaction has not taken over are ready again."""

    first_tag: int = 0
    last_tag: int = 0


class TxEnd(Method, frozen=True):
    """``chosen``: only the branches in ``arguments["branches"]`` count."""

    commit: bool = False
    chosen: bool = False
    arguments: Table = {}


class TxHeartbeat(Method, frozen=True):
    """Whoever has the channel's transaction is still there."""


class TxProducer(Method, frozen=True):
    """The channel's messages are those of a producer, numbered; 0 is a new one."""

    name: str = ""
    producer: int = 0
    epoch: int = 0
    sequence: int = 0


class TxProducerOk(Method, frozen=True):
    producer: int = 0
    epoch: int = 0


# --- the table ---


class MethodSpec(NamedTuple):
    class_id: ClassId
    method_id: int
    name: str
    method: type[Method]
    fields: str  # "name:type ..." in wire order
    replies: tuple[type[Method], ...] = ()


_CLOSE = "reply_code:short reply_text:shortstr class_id:short method_id:short"
_TUNE = "channel_max:short frame_max:long heartbeat:short"
_EXCHANGE_BIND = (
    "_:short destination:shortstr source:shortstr routing_key:shortstr nowait:bit arguments:table"
)
_10, _20, _30, _40, _50, _60, _85, _90 = ClassId

# fmt: off
METHODS: Final[tuple[MethodSpec, ...]] = (
    MethodSpec(_10, 10, "connection.start", ConnectionStart,
               "version_major:octet version_minor:octet server_properties:table "
               "mechanisms:longstr locales:longstr", (ConnectionStartOk,)),
    MethodSpec(_10, 11, "connection.start-ok", ConnectionStartOk,
               "client_properties:table mechanism:shortstr response:longstr locale:shortstr"),
    MethodSpec(_10, 20, "connection.secure", ConnectionSecure,
               "challenge:longstr", (ConnectionSecureOk,)),
    MethodSpec(_10, 21, "connection.secure-ok", ConnectionSecureOk, "response:longstr"),
    MethodSpec(_10, 30, "connection.tune", ConnectionTune, _TUNE, (ConnectionTuneOk,)),
    MethodSpec(_10, 31, "connection.tune-ok", ConnectionTuneOk, _TUNE),
    MethodSpec(_10, 40, "connection.open", ConnectionOpen,
               "virtual_host:shortstr _:shortstr _:bit", (ConnectionOpenOk,)),
    MethodSpec(_10, 41, "connection.open-ok", ConnectionOpenOk, "_:shortstr"),
    MethodSpec(_10, 50, "connection.close", ConnectionClose, _CLOSE, (ConnectionCloseOk,)),
    MethodSpec(_10, 51, "connection.close-ok", ConnectionCloseOk, ""),
    MethodSpec(_10, 60, "connection.blocked", ConnectionBlocked, "reason:shortstr"),
    MethodSpec(_10, 61, "connection.unblocked", ConnectionUnblocked, ""),
    MethodSpec(_10, 70, "connection.update-secret", ConnectionUpdateSecret,
               "new_secret:longstr reason:shortstr", (ConnectionUpdateSecretOk,)),
    MethodSpec(_10, 71, "connection.update-secret-ok", ConnectionUpdateSecretOk, ""),

    MethodSpec(_20, 10, "channel.open", ChannelOpen, "_:shortstr", (ChannelOpenOk,)),
    MethodSpec(_20, 11, "channel.open-ok", ChannelOpenOk, "_:longstr"),
    MethodSpec(_20, 20, "channel.flow", ChannelFlow, "active:bit", (ChannelFlowOk,)),
    MethodSpec(_20, 21, "channel.flow-ok", ChannelFlowOk, "active:bit"),
    MethodSpec(_20, 40, "channel.close", ChannelClose, _CLOSE, (ChannelCloseOk,)),
    MethodSpec(_20, 41, "channel.close-ok", ChannelCloseOk, ""),

    MethodSpec(_30, 10, "access.request", AccessRequest,
               "realm:shortstr exclusive:bit passive:bit active:bit write:bit read:bit",
               (AccessRequestOk,)),
    MethodSpec(_30, 11, "access.request-ok", AccessRequestOk, "ticket:short"),

    MethodSpec(_40, 10, "exchange.declare", ExchangeDeclare,
               "_:short exchange:shortstr type:shortstr passive:bit durable:bit auto_delete:bit "
               "internal:bit nowait:bit arguments:table", (ExchangeDeclareOk,)),
    MethodSpec(_40, 11, "exchange.declare-ok", ExchangeDeclareOk, ""),
    MethodSpec(_40, 20, "exchange.delete", ExchangeDelete,
               "_:short exchange:shortstr if_unused:bit nowait:bit", (ExchangeDeleteOk,)),
    MethodSpec(_40, 21, "exchange.delete-ok", ExchangeDeleteOk, ""),
    MethodSpec(_40, 30, "exchange.bind", ExchangeBind, _EXCHANGE_BIND, (ExchangeBindOk,)),
    MethodSpec(_40, 31, "exchange.bind-ok", ExchangeBindOk, ""),
    MethodSpec(_40, 40, "exchange.unbind", ExchangeUnbind, _EXCHANGE_BIND, (ExchangeUnbindOk,)),
    MethodSpec(_40, 51, "exchange.unbind-ok", ExchangeUnbindOk, ""),  # 51, not 41

    MethodSpec(_50, 10, "queue.declare", QueueDeclare,
               "_:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit "
               "nowait:bit arguments:table", (QueueDeclareOk,)),
    MethodSpec(_50, 11, "queue.declare-ok", QueueDeclareOk,
               "queue:shortstr message_count:long consumer_count:long"),
    MethodSpec(_50, 20, "queue.bind", QueueBind,
               "_:short queue:shortstr exchange:shortstr routing_key:shortstr nowait:bit "
               "arguments:table", (QueueBindOk,)),
    MethodSpec(_50, 21, "queue.bind-ok", QueueBindOk, ""),
    MethodSpec(_50, 30, "queue.purge", QueuePurge,
               "_:short queue:shortstr nowait:bit", (QueuePurgeOk,)),
    MethodSpec(_50, 31, "queue.purge-ok", QueuePurgeOk, "message_count:long"),
    MethodSpec(_50, 40, "queue.delete", QueueDelete,
               "_:short queue:shortstr if_unused:bit if_empty:bit nowait:bit", (QueueDeleteOk,)),
    MethodSpec(_50, 41, "queue.delete-ok", QueueDeleteOk, "message_count:long"),
    MethodSpec(_50, 50, "queue.unbind", QueueUnbind,
               "_:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table",
               (QueueUnbindOk,)),
    MethodSpec(_50, 51, "queue.unbind-ok", QueueUnbindOk, ""),

    MethodSpec(_60, 10, "basic.qos", BasicQos,
               "prefetch_size:long prefetch_count:short global_qos:bit", (BasicQosOk,)),
    MethodSpec(_60, 11, "basic.qos-ok", BasicQosOk, ""),
    MethodSpec(_60, 20, "basic.consume", BasicConsume,
               "_:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit "
               "exclusive:bit nowait:bit arguments:table", (BasicConsumeOk,)),
    MethodSpec(_60, 21, "basic.consume-ok", BasicConsumeOk, "consumer_tag:shortstr"),
    MethodSpec(_60, 30, "basic.cancel", BasicCancel,
               "consumer_tag:shortstr nowait:bit", (BasicCancelOk,)),
    MethodSpec(_60, 31, "basic.cancel-ok", BasicCancelOk, "consumer_tag:shortstr"),
    MethodSpec(_60, 40, "basic.publish", BasicPublish,
               "_:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit"),
    MethodSpec(_60, 50, "basic.return", BasicReturn,
               "reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr"),
    MethodSpec(_60, 60, "basic.deliver", BasicDeliver,
               "consumer_tag:shortstr delivery_tag:longlong redelivered:bit exchange:shortstr "
               "routing_key:shortstr"),
    MethodSpec(_60, 70, "basic.get", BasicGet,
               "_:short queue:shortstr no_ack:bit", (BasicGetOk, BasicGetEmpty)),
    MethodSpec(_60, 71, "basic.get-ok", BasicGetOk,
               "delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr "
               "message_count:long"),
    MethodSpec(_60, 72, "basic.get-empty", BasicGetEmpty, "_:shortstr"),
    MethodSpec(_60, 80, "basic.ack", BasicAck, "delivery_tag:longlong multiple:bit"),
    MethodSpec(_60, 90, "basic.reject", BasicReject, "delivery_tag:longlong requeue:bit"),
    MethodSpec(_60, 100, "basic.recover-async", BasicRecoverAsync, "requeue:bit"),
    MethodSpec(_60, 110, "basic.recover", BasicRecover, "requeue:bit", (BasicRecoverOk,)),
    MethodSpec(_60, 111, "basic.recover-ok", BasicRecoverOk, ""),
    MethodSpec(_60, 120, "basic.nack", BasicNack,
               "delivery_tag:longlong multiple:bit requeue:bit"),

    MethodSpec(_85, 10, "confirm.select", ConfirmSelect, "nowait:bit", (ConfirmSelectOk,)),
    MethodSpec(_85, 11, "confirm.select-ok", ConfirmSelectOk, ""),

    MethodSpec(_90, 10, "tx.select", TxSelect, "", (TxSelectOk,)),
    MethodSpec(_90, 11, "tx.select-ok", TxSelectOk, ""),
    MethodSpec(_90, 20, "tx.commit", TxCommit, "", (TxCommitOk,)),
    MethodSpec(_90, 21, "tx.commit-ok", TxCommitOk, ""),
    MethodSpec(_90, 30, "tx.rollback", TxRollback, "", (TxRollbackOk,)),
    MethodSpec(_90, 31, "tx.rollback-ok", TxRollbackOk, ""),
)
EXTENSIONS: Final[tuple[MethodSpec, ...]] = (  # methods that AMQP does not have
    MethodSpec(_60, 200, "basic.retry", BasicRetry,
               "first_tag:longlong last_tag:longlong delayed:bit delay_ms:longlong"),
    MethodSpec(_60, 201, "basic.extend", BasicExtend,
               "first_tag:longlong last_tag:longlong visibility_ms:longlong"),
    MethodSpec(_60, 202, "basic.placed", BasicPlaced,
               "first_tag:longlong count:long topic:shortstr partition:long offset:longlong"),
    MethodSpec(_60, 210, "basic.fail", BasicFail,
               "first_tag:longlong last_tag:longlong final:bit delayed:bit delay_ms:longlong "
               "error:longstr"),

    MethodSpec(_85, 200, "confirm.places", ConfirmPlaces, ""),

    MethodSpec(_90, 200, "tx.begin", TxBegin,
               "name:shortstr branch:shortstr join:bit number:longlong sequence:longlong "
               "timeout_ms:longlong session_ms:longlong producer:longlong epoch:short application:"
               "shortstr application_epoch:longlong application_sequence:longlong", (TxBeginOk,)),
    MethodSpec(_90, 201, "tx.begin-ok", TxBeginOk, "name:shortstr number:longlong"),
    MethodSpec(_90, 202, "tx.ack", TxAck, "channel:short first_tag:longlong last_tag:longlong"),
    MethodSpec(_90, 203, "tx.return", TxReturn, "first_tag:longlong last_tag:longlong"),
    MethodSpec(_90, 204, "tx.end", TxEnd, "commit:bit chosen:bit arguments:table",
               (TxCommitOk, TxRollbackOk)),
    MethodSpec(_90, 206, "tx.heartbeat", TxHeartbeat, ""),
    MethodSpec(_90, 210, "tx.producer", TxProducer,
               "name:shortstr producer:longlong epoch:short sequence:longlong", (TxProducerOk,)),
    MethodSpec(_90, 211, "tx.producer-ok", TxProducerOk, "producer:longlong epoch:short"),
)
# fmt: on


# --- the table, made ready to run: one step per field, or per octet of neighbouring bits ---


class _Plan(NamedTuple):
    spec: MethodSpec
    prefix: bytes  # class id and method id
    steps: tuple[Step, ...]


def _plan(spec: MethodSpec) -> _Plan:
    steps = steps_of(spec.fields)
    named = tuple(name for step in steps for name in step.names if name != "_")
    # ``decode`` fills the struct by position.
    assert named == spec.method.__struct_fields__, spec.name
    method = spec.method
    method.NAME = spec.name
    method.IDS = spec.class_id, spec.method_id
    method.REPLIES = spec.replies
    return _Plan(spec, struct.pack(">HH", spec.class_id, spec.method_id), steps)


_PLANS: Final = tuple(_plan(spec) for spec in METHODS + EXTENSIONS)
_PLAN_BY_PREFIX: Final = {plan.prefix: plan for plan in _PLANS}
_PLAN_BY_TYPE: Final = {plan.spec.method: plan for plan in _PLANS}
assert len(_PLAN_BY_PREFIX) == len(_PLAN_BY_TYPE) == len(METHODS) + len(EXTENSIONS)


# --- decoding and encoding ---

Buffer: TypeAlias = bytes | memoryview


def decode(payload: Buffer) -> Method:
    """The method in a method frame's payload. Raises only ``ConnectionError_``s."""
    raw = bytes(payload)
    if len(raw) < 4:
        raise FrameError("method frame without a class and a method id")
    plan = _PLAN_BY_PREFIX.get(raw[:4])
    if plan is None:
        class_id, method_id = struct.unpack(">HH", raw[:4])
        raise UnknownMethod(
            f"unknown method {class_id}.{method_id}", class_id=class_id, method_id=method_id
        )
    try:
        return plan.spec.method(*_read_fields(raw, plan.steps))
    except AmqpError as error:
        error.class_id, error.method_id = plan.spec.class_id, plan.spec.method_id
        raise


def _read_fields(raw: bytes, steps: tuple[Step, ...]) -> list[Any]:
    position = 4
    values: list[Any] = []
    for codec, names, bits in steps:
        value, position = codec.read(raw, position)
        if bits:
            values += [bool(value >> i & 1) for i, name in enumerate(names) if name != "_"]
        elif names[0] != "_":
            values.append(value)
    # RabbitMQ matches the payload as a whole: a byte too many is as wrong as one too few.
    if position != len(raw):
        raise FrameError(f"{len(raw) - position} bytes after the last field")
    return values


def encode(method: Method) -> bytes:
    """The payload of a method frame. Raises ValueError for a value that its field cannot hold."""
    _, prefix, steps = _PLAN_BY_TYPE[type(method)]
    parts = [prefix]
    try:
        for codec, names, bits in steps:
            if bits:
                parts.append(OCTET.write(_bit_octet(method, names)))
            elif names[0] == "_":
                parts.append(codec.write(codec.zero))
            else:
                parts.append(codec.write(getattr(method, names[0])))
    except struct.error as error:
        raise ValueError(f"{method.NAME}: {error}") from None
    return b"".join(parts)


def _bit_octet(method: Method, names: tuple[str, ...]) -> int:
    octet = 0
    for i, name in enumerate(names):
        if name != "_" and getattr(method, name):
            octet |= 1 << i
    return octet


# --- frames ---

_FRAME_HEADER = struct.Struct(">BHI")
_FRAME_END = bytes((FRAME_END,))


def frame(kind: int, channel: int, payload: Buffer) -> bytes:
    return b"".join((_FRAME_HEADER.pack(kind, channel, len(payload)), payload, _FRAME_END))


def method_frame(channel: int, method: Method) -> bytes:
    return frame(FrameKind.METHOD, channel, encode(method))


HEARTBEAT_FRAME: Final = frame(FrameKind.HEARTBEAT, 0, b"")
