"""Dead letters of a topic: listed, looked at, retried, removed.

They lie in the topic its policy names, ``{topic}.dlq`` unless it says otherwise; where a policy
sends its dead through an exchange, in the queues that leads to.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from braidmq.api.context import ApiContext, InNamespace
from braidmq.api.endpoints import Call, operation
from braidmq.api.letters import (
    EXAMINED_MAX,
    PAGE_BYTES_MAX,
    DeadLetterInfo,
    Letter,
)
from braidmq.api.paging import LIST_MAX, CursorText, Page, cursor_of, place_in
from braidmq.api.problems import DiskLow, MemoryLow
from braidmq.api.resources.reading import OFFSET_MAX, Offset
from braidmq.api.resources.returning import RETURN_MAX, Moving
from braidmq.engine.errors import (
    LetterInFlight,
    LetterUndecided,
    MessageTooLarge,
    TopicFull,
    UnknownLetter,
    UnknownSubscription,
    UnknownTopic,
)
from braidmq.engine.topics import Topic
from braidmq.gateways.deaths import death_of
from braidmq.model.errors import BadRequest
from braidmq.runtime.exclusive_queues import is_shared
from braidmq.security.rights import configure, read, write

BEHIND = "and read on the queue a letter lies in, behind an exchange"
Queue = Annotated[
    str, Meta(description="Where they lie; needed where an exchange leads to several queues")
]


QueuePlace = tuple[str, Annotated[int, Meta(ge=0, le=OFFSET_MAX)]]


class OfQueue(InNamespace, frozen=True):
    queue: Queue = ""


class LettersQuery(OfQueue, frozen=True):
    cursor: CursorText = ""
    start: Annotated[
        int, Meta(ge=0, le=OFFSET_MAX, description="The first offset to show of the queue")
    ] = 0
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100


class Letters(msgspec.Struct, frozen=True):
    topic: Annotated[
        str, Meta(description="The dead-letter topic, or first queue; empty if there is none")
    ]
    letters: list[DeadLetterInfo]


class Retried(msgspec.Struct, frozen=True):
    count: int
    more: Annotated[bool, Meta(description="Whether there are some left: call again")]
    stayed: Annotated[int, Meta(description="Those that can't go back; see `/dead-letters/return`")]


class Removed(msgspec.Struct, frozen=True):
    count: int
    stayed: Annotated[int, Meta(description="Those that consumers have")]


class DeadLetters:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/topics/{topic}/dead-letters",
        right=read("topic").noting(BEHIND),
        tag="dead letters",
        errors=(UnknownTopic, UnknownLetter),
    )
    async def list_dead_letters(
        self, call: Call, topic: str, query: LettersQuery
    ) -> Letters | Page:
        """List the dead letters of a topic.

        Where an exchange leads to several queues they follow one another, and those behind `queue`
        follow it.
        """
        found = self._context.topic(call, topic)
        queue, first = place_in(query.cursor, QueuePlace, (query.queue, query.start))
        places = self._places(call, found, queue)
        if not places:
            return Letters("", [])
        if queue:
            every = self._places(call, found)
            places = every[every.index(places[0]) :]
        letters: list[DeadLetterInfo] = []
        at, offset = places[0], first

        def listed() -> Iterator[None]:
            nonlocal at, offset
            size = examined = 0
            for place in places:
                at, start = place, first if place is places[0] else 0
                for letter, following in self._letters(found, place, start):
                    offset = following
                    examined += 1
                    if letter is not None:
                        letters.append(letter.described())
                        size += letter.size
                    full = len(letters) == query.limit or size >= PAGE_BYTES_MAX
                    if full or examined == EXAMINED_MAX:
                        return
                    yield
            at, offset = places[-1], places[-1].partitions[0].log.next_offset

        await self._context.node_loop.work(listed())
        is_over = at is places[-1] and offset >= at.partitions[0].log.next_offset
        following = "" if is_over else cursor_of([at.name, offset])
        return Page(Letters(places[0].name, letters), following)

    @operation(
        "GET",
        "/v1/topics/{topic}/dead-letters/{offset}",
        right=read("topic").noting(BEHIND),
        tag="dead letters",
        errors=(UnknownTopic, UnknownLetter),
    )
    async def describe_dead_letter(
        self, call: Call, topic: str, offset: Offset, query: OfQueue
    ) -> DeadLetterInfo:
        """Look at one dead letter."""
        found = self._context.topic(call, topic)
        return self._one(call, found, query.queue, offset).described()

    @operation(
        "POST",
        "/v1/topics/{topic}/dead-letters/{offset}/retry",
        right=write("topic").and_(read("topic")).noting(BEHIND),
        tag="dead letters",
        statuses=(204,),
        errors=(
            UnknownTopic,
            UnknownLetter,
            UnknownSubscription,
            LetterInFlight,
            LetterUndecided,
            TopicFull,
            MessageTooLarge,
            MemoryLow,
            DiskLow,
        ),
    )
    async def retry_dead_letter(
        self, call: Call, topic: str, offset: Offset, query: OfQueue
    ) -> None:
        """Return a dead letter to the topic it died in.

        It is then a new message there, for the subscription that gave it up, and gone from here.
        """
        found = self._context.topic(call, topic)
        self._context.require_room()
        letter = self._one(call, found, query.queue, offset)
        revived = letter.revived(for_everybody=False)
        queue = self._context.engine().dead_letter_queue
        queue.bring_back(letter.place, found, revived, self._context.now_ms)
        await self._context.done()

    @operation(
        "POST",
        "/v1/topics/{topic}/dead-letters/retry",
        right=write("topic").and_(read("topic")).noting(BEHIND),
        tag="dead letters",
        errors=(UnknownTopic, MemoryLow, DiskLow),
    )
    async def retry_dead_letters(self, call: Call, topic: str, query: InNamespace) -> Retried:
        """Return all dead letters of a topic, the oldest first.

        At most 10000 a call. With a filter, or to see first what would be done: `POST
        /v1/dead-letters/return`.
        """
        found = self._context.topic(call, topic)
        self._context.require_room()
        moving = Moving(self._context, call)
        is_whole = False

        def retried() -> Iterator[None]:
            nonlocal is_whole
            for place in self._places(call, found):
                for letter, _ in self._letters(found, place, 0):
                    if moving.count == RETURN_MAX:
                        return
                    if letter is not None:
                        moving.move(letter)
                    yield
            is_whole = True

        await self._context.node_loop.work(retried())
        await self._context.done()
        return Retried(moving.count, not is_whole, moving.stayed_count)

    @operation(
        "DELETE",
        "/v1/topics/{topic}/dead-letters/{offset}",
        right=configure("topic").noting(BEHIND),
        tag="dead letters",
        statuses=(204,),
        errors=(UnknownTopic, UnknownLetter, LetterInFlight),
    )
    async def delete_dead_letter(
        self, call: Call, topic: str, offset: Offset, query: OfQueue
    ) -> None:
        """Remove a dead letter."""
        found = self._context.topic(call, topic)
        letter = self._one(call, found, query.queue, offset)
        queue = self._context.engine().dead_letter_queue
        queue.remove(letter.place, offset, self._context.now_ms)
        await self._context.done()

    @operation(
        "DELETE",
        "/v1/topics/{topic}/dead-letters",
        right=configure("topic").noting(BEHIND),
        tag="dead letters",
        errors=(UnknownTopic, UnknownLetter),
    )
    async def purge_dead_letters(self, call: Call, topic: str, query: OfQueue) -> Removed:
        """Remove all dead letters of a topic."""
        found = self._context.topic(call, topic)
        count = stayed = 0

        def removed() -> Iterator[None]:
            nonlocal count, stayed
            for place in self._places(call, found, query.queue):
                for letter, _ in self._letters(found, place, 0):
                    if letter is not None:
                        queue = self._context.engine().dead_letter_queue
                        try:
                            queue.remove(place, letter.record.offset, self._context.now_ms)
                            count += 1
                        except LetterInFlight:
                            stayed += 1
                        except UnknownLetter:
                            pass  # somebody else was quicker
                    yield

        await self._context.node_loop.work(removed())
        await self._context.done()
        return Removed(count, stayed)

    def _places(self, call: Call, topic: Topic, queue: str = "") -> list[Topic]:
        """Where letters of a topic may lie, as far as its caller may know; or the one named."""
        places = [
            place
            for place in self._context.engine().dead_letter_places.of(topic)
            if self._is_open(call, place, topic)
        ]
        if not queue:
            return places
        named = [place for place in places if place.name == queue]
        if not named:
            raise UnknownLetter(f"no dead letters of {topic.name!r} are in {queue!r}")
        return named

    def _is_open(self, call: Call, place: Topic, topic: Topic) -> bool:
        own = self._context.engine().dead_letter_places.is_own(place, topic.name)
        return (own or call.grants.may_read(place.name)) and is_shared(place)

    def _letters(
        self, topic: Topic, place: Topic, start: int
    ) -> Iterator[tuple[Letter | None, int]]:
        """Those that died in ``topic``, with where to go on: others may share the place."""
        for record in self._context.engine().dead_letter_queue.records(place, start):
            death = death_of(record)
            mine = death is not None and death.topic == topic.name
            yield (
                Letter(place, record, death) if mine and death is not None else None,
                record.offset + 1,
            )

    def _one(self, call: Call, topic: Topic, queue: str, offset: int) -> Letter:
        found = []
        for place in self._places(call, topic, queue):
            letter, _ = next(self._letters(topic, place, offset), (None, 0))
            if letter is not None and letter.record.offset == offset:
                found.append(letter)
        if not found:
            raise UnknownLetter(f"topic {topic.name!r} has no dead letter {offset}")
        if len(found) > 1:
            names = ", ".join(each.place.name for each in found)
            raise BadRequest(f"{names} have a letter {offset} each", remedy="Give `queue`")
        return found[0]
