"""etcd over its HTTP/JSON gateway: keys that change by compare-and-swap, leases, and what changed.

    POST /v3/kv/range     {"key", "range_end"}       what is there now
    POST /v3/kv/txn       {"compare", "success"}     several changes, if nothing came between
    POST /v3/lease/…      grant, keepalive, revoke   keys that go with the process that set them
    POST /v3/watch        {"create_request"}         an answer that does not end: a line a change

Keys and values are base64; integers of 64 bits are text, and what is zero is left out.

A request that is read only, or may be carried out twice, is asked of the next endpoint when one
does not answer. A swap is not: it may have been carried out, and another one from the same revision
is the only way to learn that (ADR 0030). It raises ``Unanswered``.
"""

import asyncio
import base64
import socket
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, NewType, TypeVar
from urllib.parse import urlsplit

import h11
import msgspec

from braidmq import __version__
from braidmq.client.http_wire import HttpWire
from braidmq.client.tls import TlsOptions
from braidmq.cluster.shard import Revision
from braidmq.model.errors import BadSetting, BraidError, Kind

IDLE_MAX: Final = 2
LINE_BYTES_MAX: Final = 16 << 20
"""One event of a watch: etcd takes requests of 1.5 MiB, and base64 makes them longer."""
RETRY_S: Final = 0.5
"""Between two attempts to begin a watch, when all endpoints were tried."""
PORT: Final = 2379
KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 2, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 3}
"""Of watches: a member that is gone is noticed after five seconds."""

UNAUTHENTICATED, UNAVAILABLE, DEADLINE_EXCEEDED, UNKNOWN = 16, 14, 4, 2
NO_ANSWER: Final = frozenset({UNKNOWN, DEADLINE_EXCEEDED, UNAVAILABLE})
"""Codes of gRPC after which nobody knows what was done."""
LEASE_GONE: Final = 5
TRUSTED: Final = TlsOptions()

LeaseId = NewType("LeaseId", int)
T = TypeVar("T")


class EtcdAway(BraidError):
    """No endpoint answered."""

    kind = Kind.REFUSED
    code = "etcd-away"
    remedy = "Check that etcd runs and can be reached; what is in sync stays so meanwhile"


class Unanswered(EtcdAway):
    """Nobody knows whether a swap was carried out, or will be."""

    code = "etcd-unanswered"
    remedy = "Swap again from the same revision"


class EtcdRefused(BraidError):
    """It answered, and will not do it: the user may not, or the request is wrong."""

    kind = Kind.FORBIDDEN
    code = "etcd-refused"
    remedy = "Check the user, its role and the certificate that [cluster] names for etcd"


class LeaseGone(BraidError):
    kind = Kind.NOT_FOUND
    code = "etcd-lease-gone"
    remedy = "Ask for another lease"


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    endpoints: tuple[str, ...]
    """URLs; the first that answers is used until it does not."""
    user: str = ""
    password: str = ""
    tls: TlsOptions = TRUSTED
    timeout_s: float = 2.0
    """For an endpoint's answer."""


class Kept(NamedTuple):
    value: bytes
    revision: Revision
    """Of the last change."""
    lease: int
    """Zero: it stays."""


class Compare(NamedTuple):
    key: str
    what: Literal["MOD", "CREATE", "LEASE"]
    number: int


class Put(NamedTuple):
    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    key: str


class Swapped(NamedTuple):
    succeeded: bool
    revision: Revision
    """Of all of etcd, once it was decided: that of what was put."""


class Listing(NamedTuple):
    """All there is, as of a revision."""

    revision: Revision
    kept: dict[str, Kept]


class Changes(NamedTuple):
    """What came since, in one transaction or several."""

    revision: Revision
    kept: dict[str, Kept | None]
    """None: it was deleted, or its lease ended."""


class Away(NamedTuple):
    """Changes are not heard of; a ``Listing`` follows when they are."""

    why: str


def unchanged(key: str, revision: int) -> Compare:
    return Compare(key, "MOD", revision)


def absent(key: str) -> Compare:
    return Compare(key, "CREATE", 0)


def bound_to(key: str, lease: int) -> Compare:
    return Compare(key, "LEASE", lease)


class Etcd:
    def __init__(self, settings: EtcdSettings) -> None:
        """Raises BadSetting."""
        if not settings.endpoints:
            raise BadSetting("etcd has no endpoint", remedy="Name one: http://127.0.0.1:2379")
        self._settings = settings
        self._endpoints = deque(_Endpoint(url, settings.tls) for url in settings.endpoints)
        self._token = ""

    async def get(self, key: str) -> Kept | None:
        """Raises EtcdAway, EtcdRefused."""
        answer = await self._ask("/v3/kv/range", {"key": _b64(key)}, _Range)
        return answer.kvs[0].kept if answer.kvs else None

    async def below(self, prefix: str) -> Listing:
        """Raises EtcdAway, EtcdRefused."""
        answer = await self._ask("/v3/kv/range", _all_below(prefix), _Range)
        return Listing(
            Revision(answer.header.revision), {each.name: each.kept for each in answer.kvs}
        )

    async def swap(self, compares: Sequence[Compare], changes: Sequence[Put | Delete]) -> Swapped:
        """All changes, or none. Raises Unanswered; EtcdAway if it was sent to nobody; EtcdRefused,
        LeaseGone."""
        body = {
            "compare": [_comparison(each) for each in compares],
            "success": [_operation(each) for each in changes],
        }
        answer = await self._ask("/v3/kv/txn", body, _Txn, may_repeat=False)
        return Swapped(answer.succeeded, Revision(answer.header.revision))

    async def grant(self, ttl_s: int) -> LeaseId:
        """Raises EtcdAway, EtcdRefused."""
        answer = await self._ask("/v3/lease/grant", {"TTL": ttl_s}, _Lease)
        return LeaseId(answer.id)

    async def keep_alive(self, lease: LeaseId) -> int:
        """Seconds it has. Raises LeaseGone, EtcdAway, EtcdRefused."""
        answer = await self._ask("/v3/lease/keepalive", {"ID": str(lease)}, _KeptAlive)
        if answer.result.ttl <= 0:
            raise LeaseGone(f"lease {lease:x} has ended")
        return answer.result.ttl

    async def revoke(self, lease: LeaseId) -> None:
        """Its keys go; nothing happens if it has ended. Raises EtcdAway, EtcdRefused."""
        try:
            await self._ask("/v3/lease/revoke", {"ID": str(lease)}, _Answer)
        except LeaseGone:
            return

    async def watch(self, prefix: str) -> AsyncGenerator[Listing | Changes | Away]:
        """All there is, then what changes, for ever. What a broken connection hid is in the next
        listing. Raises EtcdRefused."""
        while True:
            try:
                listing = await self.below(prefix)
                yield listing
                async for changes in self._changes(prefix, listing.revision + 1):
                    yield changes
            except EtcdAway as error:
                yield Away(str(error))
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.close()

    async def _changes(self, prefix: str, since: int) -> AsyncGenerator[Changes]:
        """Ends where the server ended it, and one has to look at everything again. Raises EtcdAway
        when it was cut off."""
        endpoint = self._endpoints[0]
        request = {"create_request": {**_all_below(prefix), "start_revision": str(since)}}
        body = msgspec.json.encode(request)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                wire = await endpoint.wire()
                _notice_silence(wire.get_socket())
                # Without: a member that was cut off from the others would say nothing, for ever.
                headers = [("grpc-metadata-hasleader", "true")]
                head = await wire.begin(self._request("/v3/watch", body, headers), body)
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            self._rotate()
            raise EtcdAway(f"{endpoint.url} does not answer: {_said(error)}") from error
        try:
            if head.status_code != 200:
                raise EtcdAway(f"{endpoint.url} refuses to be watched: status {head.status_code}")
            async for line in _lines(wire):
                answer = _decode(line, _Watched)
                if answer.error is not None:
                    raise EtcdAway(f"{endpoint.url} ends the watch: {answer.error.said}")
                if answer.result.canceled:
                    return  # what was asked for is compacted away: look at everything again
                if answer.result.events:
                    yield answer.result.changes
            raise EtcdAway(f"{endpoint.url} ends the watch")
        except (OSError, h11.ProtocolError) as error:
            raise EtcdAway(f"{endpoint.url} was lost: {_said(error)}") from error
        except EtcdAway:
            self._rotate()
            raise
        finally:
            wire.close()

    async def _ask(
        self, path: str, body: Mapping[str, Any], kind: type[T], *, may_repeat: bool = True
    ) -> T:
        data = msgspec.json.encode(body)
        why = ""
        for _ in range(len(self._endpoints)):
            endpoint = self._endpoints[0]
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    wire = await endpoint.wire()
            except (OSError, TimeoutError) as error:
                why = f"{endpoint.url} can't be reached: {_said(error)}"
                self._rotate()
                continue
            try:
                return await self._ask_on(endpoint, wire, path, data, kind)
            except _NoAnswer as error:
                why = str(error)
                self._rotate()
                if not may_repeat:
                    raise Unanswered(why) from error
        raise EtcdAway(why)

    async def _ask_on(
        self, endpoint: "_Endpoint", wire: HttpWire, path: str, data: bytes, kind: type[T]
    ) -> T:
        """Raises _NoAnswer, LeaseGone, EtcdRefused."""
        for is_again in (False, True):
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    if self._settings.user and not self._token:
                        self._token = await self._authenticate(wire)
                    reply = await wire.ask(self._request(path, data), data)
            except (OSError, TimeoutError, h11.ProtocolError) as error:
                wire.close()
                raise _NoAnswer(f"{endpoint.url} does not answer: {_said(error)}") from error
            except BaseException:
                wire.close()
                raise
            can_go_on = wire.reuse()
            if reply.status == 200:
                endpoint.put_back(wire, can_go_on)
                return _decode(reply.body, kind)
            problem = _decode(reply.body, _Problem)
            if problem.code == UNAUTHENTICATED and self._token and can_go_on and not is_again:
                self._token = ""  # it expired: nothing was done
                continue
            endpoint.put_back(wire, can_go_on)
            break
        if problem.code == LEASE_GONE:
            raise LeaseGone(problem.said)
        if problem.code in NO_ANSWER and not self._is_refusal(problem):
            raise _NoAnswer(f"{endpoint.url} says: {problem.said}")
        raise EtcdRefused(f"etcd at {endpoint.url} refuses {path}: {problem.said}")

    @staticmethod
    def _is_refusal(problem: "_Problem") -> bool:
        # 3.4 has no code for these.
        return problem.code == UNKNOWN and "permission denied" in problem.said

    async def _authenticate(self, wire: HttpWire) -> str:
        settings = self._settings
        body = msgspec.json.encode({"name": settings.user, "password": settings.password})
        reply = await wire.ask(self._request("/v3/auth/authenticate", body), body)
        if not wire.reuse():
            raise ConnectionError("closed after the log-in")
        if reply.status != 200:
            problem = _decode(reply.body, _Problem)
            if problem.code in NO_ANSWER:
                raise ConnectionError(problem.said)
            raise EtcdRefused(f"etcd refuses user {settings.user!r}: {problem.said}")
        return _decode(reply.body, _Token).token

    def _request(self, path: str, body: bytes, more: Sequence[tuple[str, str]] = ()) -> h11.Request:
        headers = [
            ("host", self._endpoints[0].host),
            ("user-agent", f"braidmq/{__version__}"),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            *more,
        ]
        if self._token:
            headers.append(("authorization", self._token))
        return h11.Request(method="POST", target=path, headers=headers)

    def _rotate(self) -> None:
        self._endpoints[0].close()
        self._endpoints.rotate(-1)


class _NoAnswer(Exception):
    """From one endpoint, after the request was sent to it."""


class _Endpoint:
    def __init__(self, url: str, tls: TlsOptions) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise BadSetting(
                f"{url!r} is no endpoint of etcd", remedy="Write http://host:2379 or https://…"
            )
        self.url = url
        self.host = parts.netloc
        self._address = parts.hostname, parts.port or PORT
        self._tls = tls if parts.scheme == "https" else None
        self._idle: list[HttpWire] = []

    async def wire(self) -> HttpWire:
        if self._idle:
            return self._idle.pop()
        return await HttpWire.connect(*self._address, self._tls)

    def put_back(self, wire: HttpWire, can_go_on: bool) -> None:
        if can_go_on and len(self._idle) < IDLE_MAX:
            self._idle.append(wire)
        else:
            wire.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


# --- what it says ---


class _Header(msgspec.Struct):
    revision: int = 0


class _Kv(msgspec.Struct):
    key: str
    value: str = ""
    mod_revision: int = 0
    lease: int = 0

    @property
    def name(self) -> str:
        return base64.b64decode(self.key).decode("utf-8", "replace")

    @property
    def kept(self) -> Kept:
        return Kept(base64.b64decode(self.value), Revision(self.mod_revision), self.lease)


class _Answer(msgspec.Struct):
    header: _Header = msgspec.field(default_factory=_Header)


class _Range(_Answer):
    kvs: list[_Kv] = []


class _Txn(_Answer):
    succeeded: bool = False


class _Lease(_Answer):
    id: int = msgspec.field(name="ID", default=0)
    ttl: int = msgspec.field(name="TTL", default=0)


class _KeptAlive(msgspec.Struct):
    result: _Lease


class _Token(msgspec.Struct):
    token: str


class _Problem(msgspec.Struct):
    code: int = UNKNOWN
    message: str = ""
    error: str = ""

    @property
    def said(self) -> str:
        return self.message or self.error


class _StreamProblem(msgspec.Struct):
    message: str = ""

    @property
    def said(self) -> str:
        return self.message


class _Event(msgspec.Struct):
    kv: _Kv
    type: str = "PUT"


class _WatchResult(_Answer):
    events: list[_Event] = []
    canceled: bool = False

    @property
    def changes(self) -> Changes:
        kept = {
            each.kv.name: None if each.type == "DELETE" else each.kv.kept for each in self.events
        }
        # Of the last of these; the header's is of all of etcd, and may be ahead of them.
        return Changes(Revision(max(each.kv.mod_revision for each in self.events)), kept)


class _Watched(msgspec.Struct):
    result: _WatchResult = msgspec.field(default_factory=_WatchResult)
    error: _StreamProblem | None = None


def _decode(data: bytes, kind: type[T]) -> T:
    """Raises EtcdRefused for what is no answer of etcd's."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise EtcdRefused(
            f"the answer is none of etcd's: {data[:80]!r}",
            remedy="Check that the endpoint is etcd's client port",
        ) from None


async def _lines(wire: HttpWire) -> AsyncIterator[bytes]:
    begun = b""
    async for piece in wire.pieces():
        *whole, begun = (begun + piece).split(b"\n")
        for line in filter(None, whole):
            yield line
        if len(begun) > LINE_BYTES_MAX:
            raise ConnectionError(f"a line has more than {LINE_BYTES_MAX} bytes")


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _all_below(prefix: str) -> dict[str, str]:
    """Keys that begin so: up to the prefix with its last byte one higher."""
    raw = prefix.encode()
    end = raw[:-1] + bytes([raw[-1] + 1])
    return {"key": _b64(prefix), "range_end": base64.b64encode(end).decode()}


def _comparison(each: Compare) -> dict[str, str]:
    field = {"MOD": "mod_revision", "CREATE": "create_revision", "LEASE": "lease"}[each.what]
    return {
        "key": _b64(each.key),
        "target": each.what,
        "result": "EQUAL",
        field: str(each.number),
    }


def _operation(change: Put | Delete) -> dict[str, dict[str, str]]:
    if isinstance(change, Delete):
        return {"request_delete_range": {"key": _b64(change.key)}}
    value = base64.b64encode(change.value).decode()
    return {"request_put": {"key": _b64(change.key), "value": value, "lease": str(change.lease)}}


def _notice_silence(sock: Any) -> None:
    """A watch may have nothing to say for hours: its host may have gone without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
