"""Dead letters of the whole node: listed, and returned to where they came from."""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext, GivenTime
from braidmq.api.endpoints import Body, Call, operation
from braidmq.api.letters import (
    PAGE_BYTES_MAX,
    Cursor,
    DeadLetterInfo,
    Letter,
    Search,
    Wanted,
    entered,
)
from braidmq.api.paging import LIST_MAX, CursorText, Page
from braidmq.api.problems import DiskLow, MemoryLow
from braidmq.api.resources.reading import OFFSET_MAX
from braidmq.engine.dead_letter_queue import Planned
from braidmq.engine.errors import UnknownTopic
from braidmq.engine.topics import Topic
from braidmq.model.errors import AccessRefused, BadRequest, BraidError, NotFound
from braidmq.runtime.exclusive_queues import require_shared
from braidmq.security.rights import USER

RETURN_MAX = 10_000
"""Each is an entry of the journal."""

EXAMPLES_MAX = 10
STAYED_MAX = 100

Namespace = Annotated[
    str, Meta(description="Only this one; else all that the user may enter", examples=["/"])
]
Died = Annotated[str, Meta(description="Only what died in this topic")]
Reason = Annotated[str, Meta(description="Only what died of this", examples=["rejected"])]
GaveUp = Annotated[str, Meta(description="Only what this subscription gave up")]
Queue = Annotated[str, Meta(description="Only what lies here")]
Since = Annotated[GivenTime, Meta(description="Only what died at or after this, in ms since 1970")]
Until = Annotated[GivenTime, Meta(description="Only what died before this, in ms since 1970")]


class LettersQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace | UnsetType = UNSET
    topic: Died | UnsetType = UNSET
    reason: Reason | UnsetType = UNSET
    subscription: GaveUp | UnsetType = UNSET
    queue: Queue | UnsetType = UNSET
    since_ms: Since | UnsetType = UNSET
    until_ms: Until | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    cursor: CursorText = ""


class LetterPage(msgspec.Struct, frozen=True):
    letters: list[DeadLetterInfo]
    unreadable: Annotated[list[str], Meta(description="Queues that are quarantined")]


class ReturnLetters(Body, frozen=True):
    """Which letters to return: all that have everything that is said here."""

    namespace: Namespace | UnsetType = UNSET
    topic: Died | UnsetType = UNSET
    reason: Reason | UnsetType = UNSET
    subscription: GaveUp | UnsetType = UNSET
    queue: Queue | UnsetType = UNSET
    offset: (
        Annotated[
            int,
            Meta(ge=0, le=OFFSET_MAX, description="One letter, with `queue` and `namespace`"),
        ]
        | UnsetType
    ) = UNSET
    since_ms: Since | UnsetType = UNSET
    until_ms: Until | UnsetType = UNSET
    all: Annotated[bool, Meta(description="Needed where nothing else is said")] = False
    dry_run: Annotated[bool, Meta(description="Only say what would be done")] = False
    to: Annotated[
        Literal["subscription", "topic"],
        Meta(
            description="Who gets them: only the subscription that gave each up, or all"
            " subscriptions of its topic"
        ),
    ] = "subscription"
    limit: Annotated[int, Meta(ge=1, le=RETURN_MAX)] = RETURN_MAX
    cursor: CursorText = ""


class StayedLetter(msgspec.Struct, frozen=True):
    """A letter that can't go back now."""

    letter: DeadLetterInfo
    code: Annotated[str, Meta(examples=["topic-full", "unknown-subscription"])]
    detail: str


class ReturnedLetters(msgspec.Struct, frozen=True):
    count: Annotated[int, Meta(description="How many went back, or would")]
    examples: Annotated[list[DeadLetterInfo], Meta(description="The first of them")]
    stayed_count: int
    stayed: Annotated[list[StayedLetter], Meta(description="The first that can't, and why")]
    next: Annotated[str, Meta(description="The `cursor` to go on with; empty: that was all")]
    unreadable: Annotated[list[str], Meta(description="Queues that are quarantined")]


class AllDeadLetters:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/dead-letters",
        right=USER.noting(
            "lists only letters of topics that the user may read, and behind an exchange only in"
            " queues that it may read"
        ),
        tag="dead letters",
        errors=(AccessRefused, NotFound),
    )
    async def list_all_dead_letters(self, call: Call, query: LettersQuery) -> LetterPage | Page:
        """List dead letters of all topics, with the reason of each.

        A page may have fewer than `limit`, or none, and not be the last: so much is looked at for
        one answer.
        """
        namespace = None if query.namespace is UNSET else query.namespace
        search = Search(
            self._context, call, entered(self._context, call, namespace), _wanted(query)
        )
        cursor = Cursor.read(query.cursor)
        letters: list[DeadLetterInfo] = []

        def listed() -> Iterator[None]:
            size = 0
            for letter in search.go_on(cursor):
                if letter is not None:
                    letters.append(letter.described())
                    size += letter.size
                    if len(letters) == query.limit or size >= PAGE_BYTES_MAX:
                        return
                yield

        await self._context.node_loop.work(listed())
        return Page(LetterPage(letters, search.unreadable), _next(search))

    @operation(
        "POST",
        "/v1/dead-letters/return",
        right=USER.noting(
            "read and write on the topic of each letter, and read on the queue it lies in behind an"
            " exchange; those that are not allowed stay"
        ),
        tag="dead letters",
        errors=(AccessRefused, NotFound, MemoryLow, DiskLow),
        examples=({"topic": "orders", "reason": "max-attempts", "dry_run": True}, {"all": True}),
    )
    async def return_dead_letters(self, call: Call, body: ReturnLetters) -> ReturnedLetters:
        """Return dead letters to where they came from: one, some or all.

        Each becomes a new message of its topic, for the subscription that gave it up, and is gone
        from the dead letters in the same step. What can't go back stays, and the answer says why.
        With `dry_run` nothing is done. At most 10000 a call: go on with `next`.
        """
        _require_choice(body)
        self._context.require_room()
        namespace = None if body.namespace is UNSET else body.namespace
        namespaces = entered(self._context, call, namespace)
        search = Search(self._context, call, namespaces, _wanted(body))
        moving = Moving(self._context, call, dry_run=body.dry_run, for_everybody=body.to == "topic")
        cursor = Cursor.read(body.cursor)

        def returned() -> Iterator[None]:
            for letter in search.go_on(cursor):
                if letter is not None:
                    moving.move(letter)
                    if moving.count == body.limit:
                        return
                yield

        await self._context.node_loop.work(returned())
        await self._context.done()
        return ReturnedLetters(
            moving.count,
            moving.examples,
            moving.stayed_count,
            moving.stayed,
            _next(search),
            search.unreadable,
        )


class Moving:
    """Letters on their way back, or what would become of them."""

    def __init__(
        self, context: ApiContext, call: Call, *, dry_run: bool = False, for_everybody: bool = False
    ) -> None:
        self._context = context
        self._call = call
        self._dry_run = dry_run
        self._for_everybody = for_everybody
        self._planned: dict[Topic, Planned] = {}
        self.count = 0
        self.examples: list[DeadLetterInfo] = []
        self.stayed_count = 0
        self.stayed: list[StayedLetter] = []

    def move(self, letter: Letter) -> None:
        """Raises AccessRefused when its user is one no longer."""
        self._call.require_still(lambda: True)
        try:
            self._move(letter)
        except BraidError as error:
            self.stayed_count += 1
            if len(self.stayed) < STAYED_MAX:
                shown = letter.described(whole=False)
                self.stayed.append(StayedLetter(shown, error.code, str(error.args[0])))
            return
        self.count += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(letter.described(whole=False))

    def _move(self, letter: Letter) -> None:
        place, death = letter.place, letter.death
        grants = self._context.access.enter(self._call.user, place.namespace)
        grants.need_read(death.topic)
        grants.need_write(death.topic)
        engine = self._context.engine()
        target = engine.state.topics.get((place.namespace, death.topic))
        if target is None:
            raise UnknownTopic(f"there is no topic {death.topic!r} any more")
        require_shared(target)
        revived = letter.revived(for_everybody=self._for_everybody)
        queue, now_ms = engine.dead_letter_queue, self._context.now_ms
        if not self._dry_run:
            queue.bring_back(place, target, revived, now_ms)
            return
        planned = self._planned.get(target, Planned())
        queue.require_returnable(place, target, revived, now_ms, planned)
        value = letter.record.value or b""
        self._planned[target] = Planned(planned.messages + 1, planned.size + len(value))


def _wanted(said: LettersQuery | ReturnLetters) -> Wanted:
    names = [each for each in Wanted._fields if getattr(said, each, UNSET) is not UNSET]
    return Wanted(**{name: getattr(said, name) for name in names})


def _require_choice(body: ReturnLetters) -> None:
    """Nobody returns everything by mistake."""
    if not body.all and _wanted(body) == Wanted():
        raise BadRequest(
            "no dead letters were chosen", remedy="Say which, or `all`; `dry_run` shows them first"
        )
    if body.offset is not UNSET and UNSET in (body.queue, body.namespace):
        raise BadRequest("an offset names a letter only with `queue` and `namespace`")


def _next(search: Search) -> str:
    return "" if search.at is None else search.at.text
