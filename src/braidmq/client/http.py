"""JSON over HTTP for the admin part: a few connections that are kept."""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import h11
import msgspec

from braidmq import __version__
from braidmq.client.errors import ConnectFailed, from_status
from braidmq.client.http_wire import HttpWire, Reply
from braidmq.client.tls import TlsOptions
from braidmq.client.tokens import TokenSource
from braidmq.model.errors import BraidError

IDLE_MAX = 4
NEXT_HEADER = b"braid-next"
RESPONSE_S_MAX = 60.0
"""Longer than any long poll the API grants by default, shorter than anybody's patience."""

Query = Mapping[str, str | int | bool | None]


class HttpClient:
    def __init__(
        self,
        url: str,
        user: str,
        password: str,
        tls: TlsOptions | None = None,
        token: TokenSource | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._tls = (tls or TlsOptions()) if parts.scheme == "https" else None
        self._root = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._host = parts.hostname or ""
        self._port = parts.port or (80 if self._tls is None else 443)
        self._base = parts.path.rstrip("/")
        self._token = token
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = [
            ("host", parts.netloc.rpartition("@")[2]),
            ("user-agent", f"braidmq/{__version__}"),
            ("accept", "application/json"),
        ]
        if user and token is None:
            self._headers.append(("authorization", f"Basic {basic}"))
        self._idle: list[HttpWire] = []

    async def call(
        self, method: str, path: list[str], query: Query, body: object | None = None
    ) -> Any:
        """The JSON of the answer, None where it has none. Raises what its problem document says."""
        raw = await self.call_raw(method, path, query, body)
        return msgspec.json.decode(raw) if raw else None

    async def pages(self, path: Sequence[str], query: Query) -> AsyncIterator[Any]:
        """The bodies of all pages of a list."""
        following = ""
        while True:
            reply = await self._reply("GET", path, {**query, "cursor": following})
            yield msgspec.json.decode(reply.body)
            following = reply.header(NEXT_HEADER)
            if not following:
                return

    async def call_raw(
        self, method: str, path: list[str], query: Query, body: object | None = None
    ) -> bytes:
        return (await self._reply(method, path, query, body)).body

    async def _reply(
        self, method: str, path: Sequence[str], query: Query, body: object | None = None
    ) -> Reply:
        data = b"" if body is None else msgspec.json.encode(body)
        headers = [*self._headers, ("content-length", str(len(data)))]
        if self._token is not None:
            headers.append(("authorization", f"Bearer {await self._token.get()}"))
        if data:
            headers.append(("content-type", "application/json"))
        request = h11.Request(method=method, target=self._target(path, query), headers=headers)
        try:
            async with asyncio.timeout(RESPONSE_S_MAX):
                reply = await self._ask(request, data)
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            raise ConnectFailed(f"{self._root} does not answer: {error or 'too slow'}") from error
        if reply.status >= 400:
            raise _problem(reply.status, reply.body)
        return reply

    def _target(self, path: Sequence[str], query: Query) -> str:
        said = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in query.items()
            if value is not None
        }
        target = f"{self._base}/v1/" + "/".join(quote(each, safe="") for each in path)
        return f"{target}?{urlencode(said)}" if said else target

    async def _ask(self, request: h11.Request, data: bytes) -> Reply:
        # A kept connection may be gone by now, and then nobody knows whether the server still did
        # what it was asked: only what may be done twice is sent on one.
        if self._idle and request.method != b"POST":
            try:
                return await self._ask_on(self._idle.pop(), request, data)
            except (ConnectionError, h11.RemoteProtocolError):
                self._drop_idle()
        wire = await HttpWire.connect(self._host, self._port, self._tls)
        return await self._ask_on(wire, request, data)

    async def _ask_on(self, wire: HttpWire, request: h11.Request, data: bytes) -> Reply:
        try:
            answer = await wire.ask(request, data)
        except BaseException:
            wire.close()
            raise
        if len(self._idle) < IDLE_MAX and wire.reuse():
            self._idle.append(wire)
        else:
            wire.close()
        return answer

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def close(self) -> None:
        self._drop_idle()


class _Problem(msgspec.Struct):
    detail: str = ""
    code: str = ""
    remedy: str = ""


def _problem(status: int, answer: bytes) -> BraidError:
    try:
        said = msgspec.json.decode(answer, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = _Problem(answer[:200].decode("utf-8", "replace"))
    error = from_status(status, said.detail or f"HTTP status {status}", said.code)
    if said.code:
        error.code = said.code  # type: ignore[misc]
    if said.remedy:
        error.remedy = said.remedy
    return error
