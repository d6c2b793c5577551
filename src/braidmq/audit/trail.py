"""The audit log of a node: events come on its loop, a thread writes them, anybody may search.

hear() ─ thinning ─► queue, bounded ─► thread ─► files of each kind
                   └► listeners: the topic

Nobody waits for it. What finds the queue full, or the disk, is counted and said in the log.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from braidmq import logs
from braidmq.audit.events import KINDS, AuditEvent, Kind, decode, encode, make_event
from braidmq.audit.files import LineWriter, Place, lines_before
from braidmq.audit.settings import AuditSettings
from braidmq.audit.thinning import Thinning

logger = logging.getLogger(__name__)

QUEUE_MAX: Final = 20_000
"""Some seconds of all that a node can do: a disk that is slower than that is full or broken."""

BATCH_MAX: Final = 1000

SCAN_MAX: Final = 20_000
"""Lines that one search looks at before it answers with what it has: some 50 ms."""

STOP_S_MAX: Final = 5.0

CLOCK_BACK_MS: Final = 3_600_000
"""As far as a wall clock may have been put back: so much older lines end a search."""


class AuditFilter(NamedTuple):
    """What is not given matches all."""

    kind: Kind | None = None
    user: str | None = None
    protocol: str | None = None
    namespace: str | None = None
    text: str = ""
    """Part of the operation, the object or the peer."""
    from_ms: int = 0
    to_ms: int = 1 << 53

    def matches(self, event: AuditEvent) -> bool:
        return (
            self.user in (None, event.user)
            and self.protocol in (None, event.protocol)
            and self.namespace in (None, event.namespace)
            and self.from_ms <= event.at_ms < self.to_ms
            and any(self.text in each for each in (event.operation, event.object, event.peer))
        )


Places = dict[Kind, Place]
"""By kind, the oldest line that was looked at: the search goes on before it."""


class Found(NamedTuple):
    events: list[AuditEvent]
    places: Places | None
    """Where to go on; None: there are no more."""


class AuditTrail:
    def __init__(
        self, directory: Path | None, settings: AuditSettings, wall_ms: Callable[[], int]
    ) -> None:
        """Without a directory nothing is kept."""
        self._directory = directory if settings.enabled else None
        self._settings = settings
        self._wall_ms = wall_ms
        self._thinning = Thinning()
        self._queue: deque[tuple[Kind, bytes]] = deque()
        self._more = threading.Event()
        self._stopping = False
        self._writers = {} if directory is None else {k: LineWriter(directory, k) for k in KINDS}
        self._complaints = logs.FewLines(logger, "more of the audit log was not written")
        self._thread: threading.Thread | None = None
        self.listeners: list[Callable[[AuditEvent], None]] = []
        self.written = 0
        self._dropped = self._unwritten = 0
        """By the loop, and by the thread: each counts its own."""
        self.unpublished = 0
        """Events that are in no topic, though there is one."""

    def replace(self, settings: AuditSettings) -> None:
        self._settings = settings

    def start(self) -> None:
        if self._directory is None:
            return
        self._thread = threading.Thread(target=self._run, name="braid-audit", daemon=True)
        self._thread.start()
        logs.witnesses.append(self.hear)

    def stop(self) -> None:
        """All that was heard is written, if the disk takes it."""
        if self._thread is None:
            return
        logs.witnesses.remove(self.hear)
        for event in self._thinning.rest(self._wall_ms()):
            self._put(event)
        self._stopping = True
        self._more.set()
        self._thread.join(STOP_S_MAX)
        self._thread = None

    def hear(self, kind: Kind, operation: str, facts: dict[str, object]) -> None:
        event = make_event(self._wall_ms(), kind, operation, facts)
        if kind in ("login", "refused"):
            for each in self._thinning.take(event):
                self._put(each)
        else:
            self._put(event)

    def _put(self, event: AuditEvent) -> None:
        for listener in self.listeners:
            listener(event)
        if len(self._queue) >= QUEUE_MAX:
            self._dropped += 1
            self._complain(1, "it is written too slowly")
            return
        self._queue.append((event.kind, encode(event) + b"\n"))
        self._more.set()

    @property
    def lost(self) -> int:
        """Events that are in no file."""
        return self._dropped + self._unwritten

    def _complain(self, count: int, reason: str) -> None:
        self._complaints.say("audit log not written", {"events": count, "reason": reason})

    # --- the thread ---

    def _run(self) -> None:
        while True:
            self._more.wait()
            self._more.clear()
            while self._queue:
                self._write(
                    [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_MAX))]
                )
            if self._stopping:
                break
        for writer in self._writers.values():
            writer.close()

    def _write(self, batch: list[tuple[Kind, bytes]]) -> None:
        settings = self._settings
        for kind, events in groupby(sorted(batch, key=lambda each: each[0]), lambda each: each[0]):
            lines = [line for _, line in events]
            try:
                self._writers[kind].write(
                    b"".join(lines), settings.file_bytes_max, settings.files_max
                )
                self.written += len(lines)
            except OSError as error:
                self._unwritten += len(lines)
                self._complain(len(lines), str(error))

    # --- search ---

    def find(self, wanted: AuditFilter, limit: int, places: Places | None = None) -> Found:
        """The newest first. Slow: it reads files; may run in any thread."""
        if self._directory is None:
            return Found([], None)
        kinds = KINDS if wanted.kind is None else (wanted.kind,)
        reached = dict(places or {})
        every = merge(
            *(_events(self._directory, kind, reached.get(kind)) for kind in kinds),
            key=lambda each: -each[2].at_ms,
        )
        found: list[AuditEvent] = []
        for looked_at, (kind, place, event) in enumerate(every, 1):
            reached[kind] = place
            if event.at_ms < wanted.from_ms - CLOCK_BACK_MS:
                break  # merged by time: all others are older
            if wanted.matches(event):
                found.append(event)
            if len(found) >= limit or looked_at >= SCAN_MAX:
                return Found(found, reached)
        return Found(found, None)


def _events(
    directory: Path, kind: Kind, before: Place | None
) -> Iterator[tuple[Kind, Place, AuditEvent]]:
    for place, line in lines_before(directory, kind, before):
        try:
            yield kind, place, decode(line)
        except msgspec.MsgspecError:
            continue  # a crash left half of it
