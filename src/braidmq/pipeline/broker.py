"""A broker as jobs see it: its HTTP API without asyncio, patient with what passes.

Spark runs driver and executors as processes of their own that come and go, and its API is
synchronous: so is this, with one connection that is made again when it is lost.
"""

import base64
import http.client
import random
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from braidmq.client.errors import from_status
from braidmq.model.errors import BraidError
from braidmq.model.limits import KIB
from braidmq.model.log_info import FoundLogs, LogInfo, PartitionTime
from braidmq.pipeline.errors import BrokerUnreachable
from braidmq.pipeline.options import BrokerOptions

TIMEOUT_S = 60.0
CONNECT_S_MAX = 10.0
"""A job that has never reached its broker is told soon: most likely the address is wrong."""

BACK_OFF_S, BACK_OFF_S_MAX = 0.1, 5.0
PASSING = frozenset({429, 502, 503, 504, 507})
"""Statuses that may be another in a moment."""

PIECE_BYTES = 256 * KIB

Answer = TypeVar("Answer")


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class _Problem(msgspec.Struct):
    detail: str = ""
    code: str = ""
    remedy: str = ""


class _Committed(msgspec.Struct):
    partition: int
    committed: int


class _Subscription(msgspec.Struct):
    partitions: list[_Committed]


class Broker:
    def __init__(self, options: BrokerOptions, *, sleep: Callable[[float], None] = time.sleep):
        parts = urlsplit(options.url)
        self._url = options.url
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._base = parts.path.rstrip("/")
        self._namespace = options.namespace
        self._retry_s = options.retry_s
        self._sleep = sleep
        self._reached = False
        self._connection: http.client.HTTPConnection | None = None
        if options.token:
            self._authorization = f"Bearer {options.token}"
        else:
            secret = base64.b64encode(f"{options.user}:{options.password}".encode()).decode()
            self._authorization = f"Basic {secret}"

    def __enter__(self) -> "Broker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- asking ---

    def get(self, *path: str | int, wanted: type[Answer], **query: str | int | None) -> Answer:
        return msgspec.json.decode(self.ask("GET", path, query).body, type=wanted)

    def pages(
        self, *path: str | int, wanted: type[Answer], **query: str | int | None
    ) -> Iterator[Answer]:
        """Of a list that may be long. A page may be short, or empty, and not be the last."""
        cursor: str | None = None
        while True:
            reply = self.ask("GET", path, {**query, "cursor": cursor})
            yield msgspec.json.decode(reply.body, type=wanted)
            cursor = reply.headers.get("braid-next")
            if cursor is None:
                return

    def send(
        self, method: str, *path: str | int, body: object = None, patient: bool = True
    ) -> bytes:
        """``patient``: try again when it fails. Only for what may be done twice."""
        data = msgspec.json.encode({} if body is None else body)
        return self.ask(method, path, {}, data, patient=patient).body

    def ask(
        self,
        method: str,
        path: tuple[str | int, ...],
        query: dict[str, str | int | None],
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        patient: bool = True,
    ) -> Reply:
        """What the broker answers. Raises what its problem document says, or BrokerUnreachable."""
        patience_s = self._retry_s if self._reached else min(self._retry_s, CONNECT_S_MAX)
        deadline = time.monotonic() + (patience_s if patient else 0.0)
        pause_s = BACK_OFF_S
        while True:
            try:
                reply = self._once(method, self._target(path, query), body, headers or {})
            except (OSError, http.client.HTTPException) as error:
                self.close()
                refusal: BraidError = BrokerUnreachable(
                    f"no broker answers at {self._url}: {error}"
                )
            else:
                self._reached = True
                if reply.status < 400:
                    return reply
                refusal = problem(reply.status, reply.body)
                if reply.status not in PASSING:
                    raise refusal
            if time.monotonic() + pause_s > deadline:
                raise refusal
            # Not all executors at the same moment.
            self._sleep(pause_s * (0.5 + random.random() / 2))
            pause_s = min(pause_s * 2, BACK_OFF_S_MAX)

    def read_range(self, path: tuple[str | int, ...], at: int, length: int) -> bytes:
        """Bytes of a file. A connection that is cut costs what was on its way: reading goes on
        after what has come, and patience begins anew with every byte."""
        found = bytearray()
        while len(found) < length:
            wanted = {"Range": f"bytes={at + len(found)}-{at + length - 1}"}
            found += self.ask("GET", path, {}, headers=wanted).body
        return bytes(found)

    def _target(self, path: tuple[str | int, ...], query: dict[str, str | int | None]) -> str:
        named = {"namespace": self._namespace, **query}
        said = {name: str(value) for name, value in named.items() if value is not None}
        target = f"{self._base}/v1/" + "/".join(quote(str(each), safe="") for each in path)
        return f"{target}?{urlencode(said)}"

    def _once(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Reply:
        kept = self._connection is not None
        try:
            return self._exchange(method, target, body, headers)
        except (OSError, http.client.HTTPException):
            if not kept or method == "POST":
                raise
            # A kept connection may be gone by now.
            self.close()
            return self._exchange(method, target, body, headers)

    def _exchange(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Reply:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        every = {"Authorization": self._authorization, **headers}
        if body:
            every.setdefault("Content-Type", "application/json")
        self._connection.request(method, target, body or None, every)
        answer = self._connection.getresponse()
        data = self._rest_of(answer)
        named = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, named, data)

    def _rest_of(self, answer: http.client.HTTPResponse) -> bytes:
        """All of it; of a range of bytes (206), what came before the connection was cut."""
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            return answer.read()
        pieces: list[bytes] = []
        wanted = int(answer.headers["Content-Length"])
        try:
            while piece := answer.read1(PIECE_BYTES):
                pieces.append(piece)
        except (OSError, http.client.HTTPException):
            if not pieces:
                raise
        data = b"".join(pieces)
        if len(data) < wanted:
            answer.close()
            self.close()
            if not data:
                raise http.client.IncompleteRead(data, wanted)
        return data


def problem(status: int, body: bytes) -> BraidError:
    try:
        said = msgspec.json.decode(body, type=_Problem)
    except msgspec.DecodeError:
        said = _Problem(body[:200].decode("utf-8", "replace"))
    error = from_status(status, said.detail or f"the broker answered {status}")
    if said.code:
        error.code = said.code  # type: ignore[misc]
    if said.remedy:
        error.remedy = said.remedy
    return error


# --- what it tells of a log ---


LOGS_MAX = 1000
"""In one request, by the broker's limit."""


def describe_logs(
    broker: Broker, topics: Sequence[str], *, segments: bool
) -> tuple[dict[str, LogInfo], list[str]]:
    """What the logs of topics are made of, by topic, and which topics are not there."""
    logs: dict[str, LogInfo] = {}
    missing: list[str] = []
    for first in range(0, len(topics), LOGS_MAX):
        body = {"topics": topics[first : first + LOGS_MAX], "segments": segments}
        found = msgspec.json.decode(broker.send("POST", "logs", body=body), type=FoundLogs)
        logs |= {each.topic: each for each in found.logs}
        missing += found.missing
    return logs, missing


def committed_offsets(broker: Broker, topic: str) -> dict[int, int]:
    """The lowest of all subscriptions, by partition; empty where nobody has subscribed."""
    found: dict[int, int] = {}
    for page in broker.pages("topics", topic, "subscriptions", wanted=list[_Subscription]):
        for at in (at for each in page for at in each.partitions):
            found[at.partition] = min(at.committed, found.get(at.partition, at.committed))
    return found


def find_times(broker: Broker, topic: str, time_ms: int) -> dict[int, PartitionTime]:
    found = broker.get("topics", topic, "log", "times", wanted=list[PartitionTime], time_ms=time_ms)
    return {each.partition: each for each in found}
