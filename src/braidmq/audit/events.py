"""One event: who did what from where."""

from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from braidmq.logs import WitnessKind

Kind = WitnessKind
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

CHARACTERS_MAX: Final = 512
"""Of one text: names have 255, and a request's path may have more than anybody wants to keep."""

FACTS_MAX: Final = 32

KEPT: Final = ("protocol", "user", "peer", "namespace", "object")


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    at_ms: int
    kind: Kind
    operation: str
    protocol: str = ""
    user: str = ""
    peer: str = ""
    namespace: str = ""
    object: str = ""
    count: int = 1
    """How many of them, where they were too many to keep singly."""
    facts: dict[str, Any] = {}
    """What else is known: patterns, tags, the number of messages."""


encode = msgspec.json.Encoder(enc_hook=str).encode
decode = msgspec.json.Decoder(AuditEvent).decode


def make_event(at_ms: int, kind: Kind, operation: str, facts: Mapping[str, object]) -> AuditEvent:
    said = {name: shortened(str(facts.get(name) or "")) for name in KEPT}
    rest = {
        name: _bounded(value)
        for name, value in list(facts.items())[:FACTS_MAX]
        if name not in KEPT and value is not None
    }
    return AuditEvent(
        at_ms=at_ms,
        kind=kind,
        operation=shortened(operation),
        protocol=said["protocol"],
        user=said["user"],
        peer=said["peer"],
        namespace=said["namespace"],
        object=said["object"],
        facts=rest,
    )


def shortened(text: str) -> str:
    """As JSON can have it, too: half of a surrogate pair is written as its number."""
    text = text if len(text) <= CHARACTERS_MAX else text[:CHARACTERS_MAX] + "…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _bounded(value: object) -> object:
    """Numbers as they are; all else is a text, or texts."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [shortened(str(each)) for each in value[:FACTS_MAX]]
    return shortened(str(value))
