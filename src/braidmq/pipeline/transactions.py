"""Transactions of the broker as a sink needs them: all of it by name, all of it repeatable.

Any process may begin, go on with or end a transaction: it belongs to its name. Each request may be
sent again when its answer is lost. What is published in one is staged: however long its tasks take,
nobody who reads the topic waits for them.
"""

import threading
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

import msgspec

from braidmq.model.errors import BraidError
from braidmq.pipeline.broker import Broker
from braidmq.pipeline.encoding import Chunk
from braidmq.pipeline.errors import StaleCheckpoint, TopicFull
from braidmq.pipeline.sink_options import SinkOptions

COMMITTED = "transaction-committed"
ABORTED = "transaction-aborted"
UNKNOWN = "unknown-transaction"
UNKNOWN_APPLICATION = "unknown-application"
OTHER_INSTANCE = "other-instance"

BEATS_A_SESSION = 4
"""Signs of life in the time after which the broker gives a transaction up: three may be lost."""


@dataclass(frozen=True)
class Step:
    """A number that an application commits once, however often it tries."""

    application: str
    epoch: int
    sequence: int
    instance: str = ""
    """Who counts: a query with a new checkpoint is another, and so is a batch for another topic."""


class _Published(msgspec.Struct):
    count: int


class _Begun(msgspec.Struct):
    number: int


class _Application(msgspec.Struct):
    epoch: int
    sequence: int


class Transactions:
    def __init__(self, broker: Broker, options: SinkOptions) -> None:
        self._broker = broker
        self._timeout_ms = options.transaction_s * 1000
        self._session_ms = options.session_s * 1000

    def begin(self, name: str, step: Step | None) -> int:
        """Begin it, or go on with it: its number, since a name that was given up may be another's.
        0: it is committed already, and nothing is to be done.

        Raises StaleCheckpoint when the application has come further than its checkpoint knows.
        """
        body: dict[str, object] = {
            "name": name,
            "timeout_ms": self._timeout_ms,
            "session_ms": self._session_ms,
            "staged": True,
        }
        if step is not None:
            body["application"] = {
                "name": step.application,
                "epoch": step.epoch,
                "sequence": step.sequence,
                "instance": step.instance,
            }
        try:
            answer = self._broker.send("POST", "transactions", body=body)
        except BraidError as error:
            if error.code == OTHER_INSTANCE and step is not None:
                raise StaleCheckpoint(
                    f"epoch {step.epoch} of application {step.application!r} is another's: this"
                    f" one, {step.instance}, begins at batch {step.sequence} ({error})"
                ) from None
            if error.code != COMMITTED:
                raise
            if step is not None:
                self._check_checkpoint(step)
            return 0
        return msgspec.json.decode(answer, type=_Begun).number

    def _check_checkpoint(self, step: Step) -> None:
        last = self._last(step)
        if last is not None and last > (step.epoch, step.sequence):
            raise StaleCheckpoint(
                f"application {step.application!r} has committed batch {last[1]} of epoch {last[0]}"
                f" already, and this query begins again at batch {step.sequence} of epoch"
                f" {step.epoch}"
            )

    def _last(self, step: Step) -> tuple[int, int] | None:
        try:
            found = self._broker.get("applications", step.application, wanted=_Application)
        except BraidError as error:
            if error.code == UNKNOWN_APPLICATION:
                return None
            raise
        return found.epoch, found.sequence

    def commit(self, name: str, number: int, branches: list[str], step: Step | None) -> None:
        """All of these branches, and nothing of others. To do it again changes nothing."""
        try:
            body = {"branches": branches, "number": number}
            self._broker.send("POST", "transactions", name, "commit", body=body)
        except BraidError as error:
            # How it ended is forgotten after an hour; the application's place is not. And another
            # driver may have done the same batch meanwhile.
            if error.code not in (UNKNOWN, COMMITTED) or step is None:
                raise
            last = self._last(step)
            if last is None or last < (step.epoch, step.sequence):
                raise

    def abort(self, name: str) -> None:
        """Discard it, unless it is committed: a commit whose answer was lost stays."""
        try:
            self._broker.send("POST", "transactions", name, "abort")
        except BraidError as error:
            if error.code not in (COMMITTED, ABORTED, UNKNOWN):
                raise


class Heartbeat:
    """Says for a task that it is there, also while it has nothing to publish for long. The broker
    gives up what nobody says that of."""

    def __init__(self, options: SinkOptions, transaction: str) -> None:
        self._options = options
        self._transaction = transaction
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="braid-heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()

    def _beat(self) -> None:
        with Broker(self._options) as broker:
            while not self._over.wait(self._options.session_s / BEATS_A_SESSION):
                # Whatever it is, who publishes or commits is told of it: there may be no
                # transaction yet, no broker for a moment, or it is over.
                with suppress(BraidError):
                    path = ("transactions", self._transaction, "heartbeat")
                    broker.send("POST", *path, patient=False)


class Stage:
    """One task's branch of a transaction: numbered, so that a request sent twice counts once."""

    def __init__(self, broker: Broker, transaction: str, number: int, branch: str) -> None:
        self._broker = broker
        self._headers = {
            "Braid-Transaction": transaction,
            "Braid-Transaction-Number": str(number),
            "Braid-Branch": branch,
        }
        self._next: dict[tuple[str, int | None], int] = {}

    def publish(self, chunk: Chunk) -> None:
        place = (chunk.topic, chunk.partition)
        sequence = self._next.get(place, 0)
        send_records(self._broker, chunk, {**self._headers, "Braid-Sequence": str(sequence)})
        self._next[place] = sequence + chunk.rows


def send_records(broker: Broker, chunk: Chunk, headers: dict[str, str]) -> None:
    query: dict[str, str | int | None] = {"partition": chunk.partition}
    path = ("topics", chunk.topic, "records")
    every = {"Content-Type": "application/octet-stream", **headers}
    reply = broker.ask("POST", path, query, bytes(chunk.data), every)
    taken = msgspec.json.decode(reply.body, type=_Published).count
    if taken < chunk.rows:
        raise TopicFull(f"topic {chunk.topic!r} took {taken} of {chunk.rows} rows and is full")
