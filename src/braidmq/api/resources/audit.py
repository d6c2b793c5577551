"""The audit log: who did what from where."""

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import MillisecondsSinceEpoch
from braidmq.api.endpoints import Call, operation
from braidmq.api.paging import CursorText, Page, cursor_of, place_in
from braidmq.audit.events import Kind
from braidmq.audit.files import Place
from braidmq.audit.trail import AuditFilter, AuditTrail, Places
from braidmq.model.errors import StorageError
from braidmq.security.rights import ADMINISTRATOR

LIST_MAX = 1000
TIME_MS_MAX = 1 << 53

Reached = list[tuple[Kind, Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]]
"""Of each kind the file, and the byte in it."""


class AuditUnreadable(StorageError):
    code = "audit-unreadable"
    remedy = "Look at `audit.directory` and who may read it"


class AuditQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: Annotated[Kind, Meta(description="Only these")] | UnsetType = UNSET
    user: Annotated[str, Meta(description="Only this one's")] | UnsetType = UNSET
    protocol: (
        Annotated[str, Meta(description="Only by this: amqp, mqtt, http, signal, node")] | UnsetType
    ) = UNSET
    namespace: Annotated[str, Meta(description="Only in this one")] | UnsetType = UNSET
    text: Annotated[str, Meta(description="Part of operation, object or peer")] = ""
    from_ms: Annotated[int, Meta(ge=0, le=TIME_MS_MAX, description="From this time on")] = 0
    to_ms: Annotated[int, Meta(ge=0, le=TIME_MS_MAX, description="Before this time")] = TIME_MS_MAX
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX, description="Events at most")] = LIST_MAX
    cursor: CursorText = ""


class AuditInfo(msgspec.Struct, frozen=True):
    at_ms: MillisecondsSinceEpoch
    kind: Annotated[
        Kind,
        Meta(
            description="administration: users, permissions, tokens, policies, configuration and"
            " the like; object: topics, exchanges, bindings and the like; login; refused: log-ins"
        ),
    ]
    operation: str
    protocol: str
    user: str
    peer: Annotated[str, Meta(description="The address it came from")]
    namespace: str
    object: Annotated[str, Meta(description="A name, or over HTTP a path")]
    count: Annotated[int, Meta(description="So many of them, if they were too many to keep singly")]
    facts: Annotated[dict[str, Any], Meta(description="What else is known of it")]


class AuditPage(msgspec.Struct, frozen=True):
    events: list[AuditInfo]


class AuditResource:
    def __init__(self, audit: AuditTrail | None) -> None:
        self._audit = audit

    @operation("GET", "/v1/audit", right=ADMINISTRATOR, tag="node", errors=(AuditUnreadable,))
    async def list_audit(self, call: Call, query: AuditQuery) -> AuditPage | Page:
        """Say who did what from where, the newest first.

        A page may have fewer events than asked for, or none, and yet be followed by another: an
        answer does not wait for a long search.
        """
        given: Reached = place_in(query.cursor, Reached, [])
        places: Places = {kind: Place(file, byte) for kind, file, byte in given}
        if self._audit is None:
            return Page(AuditPage([]))
        wanted = AuditFilter(
            None if query.kind is UNSET else query.kind,
            None if query.user is UNSET else query.user,
            None if query.protocol is UNSET else query.protocol,
            None if query.namespace is UNSET else query.namespace,
            query.text,
            query.from_ms,
            query.to_ms,
        )
        try:
            found = await asyncio.to_thread(self._audit.find, wanted, query.limit, places)
        except OSError as error:
            raise AuditUnreadable(f"the audit log can't be read: {error}") from error
        events = [AuditInfo(**msgspec.structs.asdict(each)) for each in found.events]
        following = (
            ""
            if found.places is None
            else cursor_of([(kind, *place) for kind, place in found.places.items()])
        )
        return Page(AuditPage(events), following)
