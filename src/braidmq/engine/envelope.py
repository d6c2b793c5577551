"""What the engine does with envelopes: deaths are written into them, and routing reads them.

A message's properties stay as they came (``wire/envelopes.py`` has the formats). Protocols other
than the native one register here how to write a death into theirs.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from braidmq.record.batch import Record
from braidmq.wire.deaths import DeathWriter, NativeDeath
from braidmq.wire.envelopes import (
    AMQP,
    MQTT,
    NATIVE,
    BadHeaders,
    Headers,
    decode_headers,
    encode_headers,
)

__all__ = [
    "AMQP",
    "MQTT",
    "NATIVE",
    "BadHeaders",
    "Death",
    "Headers",
    "annotate",
    "decode_headers",
    "encode_headers",
    "headers_of",
    "register_format",
    "routing_keys",
]


class Death(NamedTuple):
    """Why and where a message was given up."""

    reason: str
    namespace: str
    topic: str
    partition: int
    attempts: int
    subscription: str
    at_ms: int
    error: str = ""
    to_exchange: str | None = None
    """The exchange it goes through now, with the key below; None: straight to a topic."""
    to_key: bytes = b""
    new_key: bool = False
    """Whether the topic gives its dead a key of its own."""


Deaths = list[tuple[str, str]]
"""Topics a message died in and the reasons, the newest first."""

Annotator = Callable[[Record, Death], tuple[int, bytes, Deaths]]
"""Gives a dead record's envelope format, its new envelope, and all its deaths, the latest too."""

WriterMaker = Callable[[Death], DeathWriter]
"""Gives what writes a death into many envelopes of a format, as its annotator does into one."""

KeyReader = Callable[[Record], list[bytes]]
"""Gives the routing keys a record was published with."""

HeaderReader = Callable[[Record], Mapping[str, object]]
"""Gives a record's headers, as exchanges compare them."""

IdReader = Callable[[Record], bytes | None]
"""Gives what a publisher calls a message, if it does."""

MESSAGE_ID = "message-id"

_annotators: dict[int, Annotator] = {}
_key_readers: dict[int, KeyReader] = {}
_header_readers: dict[int, HeaderReader] = {}
_id_readers: dict[int, IdReader] = {}
_writer_makers: dict[int, WriterMaker] = {}


def register_format(
    envelope_format: int,
    annotator: Annotator,
    keys: KeyReader,
    headers: HeaderReader,
    message_id: IdReader,
    writer: WriterMaker | None = None,
) -> None:
    """A protocol says how deaths are written into its envelopes, and what they say."""
    _annotators[envelope_format] = annotator
    if writer is not None:
        _writer_makers[envelope_format] = writer
    _key_readers[envelope_format] = keys
    _header_readers[envelope_format] = headers
    _id_readers[envelope_format] = message_id


def annotate(record: Record, death: Death) -> tuple[int, bytes, Deaths]:
    return _annotators.get(record.envelope_format, annotate_native)(record, death)


def death_writers(death: Death) -> list[DeathWriter]:
    """Of each format that has any; its time is said when it writes."""
    writers = [make(death) for make in _writer_makers.values()]
    for writer in writers:
        writer.placed = death.partition >= 0
    return writers


def routing_keys(record: Record) -> list[bytes]:
    reader = _key_readers.get(record.envelope_format)
    return reader(record) if reader is not None else [record.key or b""]


def headers_of(record: Record) -> Mapping[str, object]:
    reader = _header_readers.get(record.envelope_format)
    if reader is not None:
        return reader(record)
    return dict(decode_headers(record.envelope)) if record.envelope_format == NATIVE else {}


def message_id(record: Record) -> bytes | None:
    reader = _id_readers.get(record.envelope_format)
    if reader is not None:
        return reader(record)
    if record.envelope_format != NATIVE or not record.envelope:
        return None
    return dict(decode_headers(record.envelope)).get(MESSAGE_ID)


def is_cycle(topic: str, deaths: Deaths) -> bool:
    """Whether going to ``topic`` closes a circle that no consumer's choice is part of."""
    for index, (where, _) in enumerate(deaths):
        if where == topic:
            return all(reason != "rejected" for _, reason in deaths[: index + 1])
    return False


DEATH = "x-death-"
PATH = "x-death-path"
COUNT_BYTES, LENGTH_BYTES = 2, 4
"""Of encoded headers: how many they are, and how long the value of one is."""


DEATHS_MAX = 64
"""As many are remembered, the latest."""


def facts_of(death: Death, offset: int) -> dict[str, str]:
    """What every dead letter says of its end, in whichever protocol. What a full topic refused has
    never been in a partition."""
    return {
        "reason": death.reason,
        "topic": death.topic,
        "partition": str(death.partition),
        "offset": str(offset if death.partition >= 0 else NOWHERE),
        "attempts": str(death.attempts),
        "subscription": death.subscription,
        "time": str(death.at_ms),
        "error": death.error,
    }


NOWHERE = -1


def annotate_native(record: Record, death: Death) -> tuple[int, bytes, Deaths]:
    headers = decode_headers(record.envelope) if record.envelope_format == NATIVE else []
    said = dict(headers)
    path = _grown_path(said.get(PATH, b""), death, said.get(f"{DEATH}time", b""))
    first = [(key, value) for key, value in headers if key.startswith(f"{DEATH}first-")] or [
        (f"{DEATH}first-topic", death.topic.encode()),
        (f"{DEATH}first-reason", death.reason.encode()),
    ]
    kept = [(key, value) for key, value in headers if not key.startswith(DEATH)]
    latest = facts_of(death, record.offset)
    written = [
        *kept,
        *first,
        *((DEATH + key, value.encode()) for key, value in latest.items()),
        (PATH, encode_headers(path)),
    ]
    deaths = [(topic, reason) for topic, reason, _ in decode_path(encode_headers(path))]
    return NATIVE, encode_headers(written), deaths


def _grown_path(before: bytes, death: Death, last_ms: bytes) -> Headers:
    """Topics and reasons, the newest first; the older ones with their times, which are said of the
    newest elsewhere."""
    try:
        path = decode_headers(before)
    except BadHeaders:
        path = []  # a publisher's
    if path and last_ms.isdigit() and AT not in path[0][1]:
        path[0] = (path[0][0], path[0][1] + AT + last_ms)
    return [(death.topic, death.reason.encode()), *path][:DEATHS_MAX]


AT = b"\0"
"""Between a reason and its time."""


def decode_path(path: bytes) -> list[tuple[str, str, int | None]]:
    """Topic, reason and time of each death. Raises BadHeaders."""
    found = []
    for topic, told in decode_headers(path):
        reason, _, at_ms = told.partition(AT)
        time = int(at_ms) if at_ms.isdigit() and len(at_ms) < 19 else None
        found.append((topic, reason.decode("utf-8", "replace"), time))
    return found


def native_writer(death: Death) -> DeathWriter:
    """What ``annotate_native`` writes into a message that never died before."""
    envelope = annotate_native(Record(0, 0, None, None), death._replace(at_ms=0))[1]
    headers = decode_headers(envelope)
    names = [name for name, _ in headers]
    offset, time = names.index(f"{DEATH}offset"), names.index(f"{DEATH}time")
    parts = [headers[:offset], headers[offset + 1 : time], headers[time + 1 :]]
    before, between, after = [encode_headers(part)[COUNT_BYTES:] for part in parts]
    before += encode_headers([(names[offset], b"")])[COUNT_BYTES:-LENGTH_BYTES]
    between += encode_headers([(names[time], b"")])[COUNT_BYTES:-LENGTH_BYTES]
    return NativeDeath(before, between, after, len(headers))


_writer_makers[NATIVE] = native_writer
