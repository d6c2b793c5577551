"""Dead letters, found and shown: which there are, where they lie, and why they died."""

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext
from braidmq.api.endpoints import Call
from braidmq.api.messages import Message, show
from braidmq.api.paging import cursor_of, place_in
from braidmq.engine.dead_letter_queue import Revived
from braidmq.engine.topics import Topic
from braidmq.gateways.deaths import Dead, death_of, without_deaths
from braidmq.model.errors import PartitionQuarantined
from braidmq.model.limits import MIB
from braidmq.record.batch import Record
from braidmq.runtime.exclusive_queues import is_shared
from braidmq.security.permissions import Grants

EXAMINED_MAX = 20_000
"""Messages looked at for one answer: some tenths of a second, in slices. A queue behind an
exchange may have others among them; who asks goes on where the answer ends."""

PAGE_BYTES_MAX = 4 * MIB
"""An answer ends with the letter that makes it this large."""


class DeadLetterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was given up. `queue` and `offset` name it."""

    namespace: str
    queue: Annotated[str, Meta(description="Where it lies")]
    offset: int
    reason: Annotated[
        str, Meta(description="Why", examples=["rejected", "max-attempts", "expired"])
    ]
    topic: Annotated[str, Meta(description="Where it died")]
    partition: int | UnsetType = UNSET
    original_offset: int | UnsetType = UNSET
    subscription: str | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    error: Annotated[str, Meta(description="What the last consumer said")] | UnsetType = UNSET
    at_ms: int | UnsetType = UNSET
    message: Message | UnsetType = UNSET


class Letter(NamedTuple):
    place: Topic
    record: Record
    death: Dead

    @property
    def size(self) -> int:
        return len(self.record.value or b"") + len(self.record.envelope)

    def revived(self, *, for_everybody: bool) -> Revived:
        """As it was, for who gave it up. Earlier versions did not always say who that was."""
        who = None if for_everybody else self.death.subscription or None
        return Revived(self.record, *without_deaths(self.record), self.death.partition, who)

    def described(self, *, whole: bool = True) -> DeadLetterInfo:
        death, place = self.death, self.place
        known = {
            "partition": death.partition,
            "original_offset": death.offset,
            "subscription": death.subscription or None,
            "attempts": death.attempts,
            "error": death.error or None,
            "at_ms": death.at_ms,
            "message": show(place.name, 0, self.record) if whole else None,
        }
        return DeadLetterInfo(
            namespace=place.namespace,
            queue=place.name,
            offset=self.record.offset,
            reason=death.reason,
            topic=death.topic,
            **{name: value for name, value in known.items() if value is not None},  # type: ignore[arg-type]
        )


class Wanted(NamedTuple):
    """Which letters; None is any."""

    topic: str | None = None
    reason: str | None = None
    subscription: str | None = None
    queue: str | None = None
    offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def has(self, record: Record, death: Dead) -> bool:
        at_ms = death.at_ms or 0
        return (
            self.topic in (None, death.topic)
            and self.reason in (None, death.reason)
            and self.subscription in (None, death.subscription)
            and self.offset in (None, record.offset)
            and (self.since_ms is None or at_ms >= self.since_ms)
            and (self.until_ms is None or at_ms < self.until_ms)
        )


class Cursor(NamedTuple):
    """Where to go on: everything before it was looked at."""

    namespace: str = ""
    queue: str = ""
    offset: int = 0

    @property
    def text(self) -> str:
        return cursor_of(self)

    @classmethod
    def read(cls, text: str) -> "Cursor":
        """Raises BadRequest."""
        return place_in(text, cls, cls())


class Search:
    """Goes through letters in the order of namespace, queue and offset, a little at a time."""

    def __init__(
        self, context: ApiContext, call: Call, namespaces: Sequence[str], wanted: Wanted
    ) -> None:
        self._context = context
        self._call = call
        self._grants = {each: context.access.enter(call.user, each) for each in namespaces}
        self._wanted = wanted
        self.at: Cursor | None = Cursor()
        """Where it is; None at the end."""
        self.unreadable: list[str] = []
        """Queues that are quarantined."""

    def go_on(self, cursor: Cursor) -> Iterator[Letter | None]:
        """The letters that its caller may see; None after whatever else was looked at, so that
        others have their turn."""
        examined = 0
        for place in self._places():
            if place is None or (place.namespace, place.name) < cursor[:2]:
                yield None
                continue
            start = cursor.offset if (place.namespace, place.name) == cursor[:2] else 0
            try:
                for found in self._letters_in(place, start):
                    yield found
                    examined += 1
                    if examined == EXAMINED_MAX:
                        return
            except PartitionQuarantined:
                self.unreadable.append(place.name)
        self.at = None

    def _letters_in(self, place: Topic, start: int) -> Iterator[Letter | None]:
        if place.deleted or not is_shared(place):
            return
        grants, engine = self._grants[place.namespace], self._context.engine()
        if self._wanted.offset is not None:
            start = max(start, self._wanted.offset)
        for record in engine.dead_letter_queue.records(place, start):
            self.at = Cursor(place.namespace, place.name, record.offset + 1)
            death = death_of(record)
            if death is None or not self._wanted.has(record, death):
                yield None
            elif may_see(self._context, grants, place, death.topic):
                yield Letter(place, record, death)
            else:
                yield None
            if self._wanted.offset == record.offset:
                return

    def _places(self) -> Iterator[Topic | None]:
        engine, wanted = self._context.engine(), self._wanted
        if wanted.queue is not None:
            for namespace in self._grants:
                yield engine.state.topics.get((namespace, wanted.queue))
        elif wanted.topic is not None:
            for namespace in self._grants:
                found = engine.dead_letter_places.named_for(namespace, wanted.topic)
                yield from sorted(found, key=lambda each: each.name)
        else:
            yield from engine.dead_letter_places.all_of(self._grants)


def may_see(context: ApiContext, grants: Grants, place: Topic, topic: str) -> bool:
    """Who may read a topic may see its letters; where they lie among others' messages, in queues
    behind an exchange, only with the right to read those too."""
    if not grants.may_read(topic):
        return False
    return context.engine().dead_letter_places.is_own(place, topic) or grants.may_read(place.name)


def entered(context: ApiContext, call: Call, namespace: str | None) -> list[str]:
    """The namespaces that a caller may enter, or the one it names. Raises AccessRefused."""
    if namespace is not None:
        context.access.enter(call.user, namespace)
        return [namespace]
    access = context.access
    names = [each.name for each in access.accounts.namespaces()]
    return [name for name in names if access.can_enter(call.user, name)]
