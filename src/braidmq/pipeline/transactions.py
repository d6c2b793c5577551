"""Transactions of the broker as a sink needs them: all of it by name, all of it repeatable.

Any process may begin, go on with or end a transaction: it belongs to its name. Each request may be
sent again when its answer is lost.
"""

from dataclasses import dataclass

import msgspec

from braidmq.model.errors import BraidError
from braidmq.pipeline.broker import Broker
from braidmq.pipeline.encoding import Chunk
from braidmq.pipeline.errors import StaleCheckpoint, TopicFull

COMMITTED = "transaction-committed"
ABORTED = "transaction-aborted"
UNKNOWN = "unknown-transaction"
UNKNOWN_APPLICATION = "unknown-application"


@dataclass(frozen=True)
class Step:
    """A number that an application commits once, however often it tries."""

    application: str
    epoch: int
    sequence: int


class _Published(msgspec.Struct):
    count: int


class _Application(msgspec.Struct):
    epoch: int
    sequence: int


class Transactions:
    def __init__(self, broker: Broker, timeout_s: int) -> None:
        self._broker = broker
        self._timeout_ms = timeout_s * 1000

    def begin(self, name: str, step: Step | None) -> bool:
        """Begin it, or go on with it. False: it is committed already, and nothing is to be done.

        Raises StaleCheckpoint when the application has come further than its checkpoint knows.
        """
        body: dict[str, object] = {
            "name": name,
            "timeout_ms": self._timeout_ms,
            "session_ms": self._timeout_ms,
        }
        if step is not None:
            body["application"] = {
                "name": step.application,
                "epoch": step.epoch,
                "sequence": step.sequence,
            }
        try:
            self._broker.send("POST", "transactions", body=body)
        except BraidError as error:
            if error.code != COMMITTED:
                raise
            if step is not None:
                self._check_checkpoint(step)
            return False
        return True

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

    def commit(self, name: str, branches: list[str], step: Step | None) -> None:
        """All of these branches, and nothing of others. To do it again changes nothing."""
        try:
            self._broker.send("POST", "transactions", name, "commit", body={"branches": branches})
        except BraidError as error:
            # How it ended is forgotten after an hour; the application's place is not.
            if error.code != UNKNOWN or step is None:
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


class Stage:
    """One task's branch of a transaction: numbered, so that a request sent twice counts once."""

    def __init__(self, broker: Broker, transaction: str, branch: str) -> None:
        self._broker = broker
        self._headers = {"Braid-Transaction": transaction, "Braid-Branch": branch}
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
