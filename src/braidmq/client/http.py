"""JSON over HTTP/1.1 for the admin part: a few connections that are kept, on h11.

h11 is there already, as uvicorn stands on it; httpx would bring four more packages and a tenth of a
second of imports for what is fifty lines here.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import h11
import msgspec

from braidmq import __version__
from braidmq.client.errors import ConnectFailed, from_status
from braidmq.client.tls import TlsOptions
from braidmq.model.errors import BraidError

IDLE_MAX = 4
NEXT_HEADER = b"braid-next"
READ_BYTES = 256 * 1024
RESPONSE_S_MAX = 60.0
"""Longer than any long poll the API grants by default, shorter than anybody's patience."""

Query = Mapping[str, str | int | bool | None]


class _Reply(NamedTuple):
    status: int
    next: str
    """The cursor of the next page, where there is one."""
    body: bytes


class _Wire:
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.CLIENT)

    async def ask(self, request: h11.Request, body: bytes) -> "_Reply":
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            data = self._state.send(event)
            if data:
                self._writer.write(data)
        await self._writer.drain()
        status, following, parts = 0, "", []
        while True:
            answer = self._state.next_event()
            if answer is h11.NEED_DATA:
                self._state.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(answer, h11.Response):
                status = answer.status_code
                following = dict(answer.headers).get(NEXT_HEADER, b"").decode("latin-1")
            elif isinstance(answer, h11.Data):
                parts.append(bytes(answer.data))
            elif isinstance(answer, h11.EndOfMessage):
                return _Reply(status, following, b"".join(parts))
            elif isinstance(answer, h11.ConnectionClosed):
                raise ConnectionError("closed before the answer")

    def reuse(self) -> bool:
        """Whether it takes another request."""
        if self._state.our_state is h11.DONE and self._state.their_state is h11.DONE:
            self._state.start_next_cycle()
            return True
        return False

    def close(self) -> None:
        self._writer.close()


class HttpClient:
    def __init__(self, url: str, user: str, password: str, tls: TlsOptions | None = None) -> None:
        parts = urlsplit(url)
        self._tls = (tls or TlsOptions()) if parts.scheme == "https" else None
        self._root = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._host = parts.hostname or ""
        self._port = parts.port or (80 if self._tls is None else 443)
        self._base = parts.path.rstrip("/")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = [
            ("host", parts.netloc.rpartition("@")[2]),
            ("user-agent", f"braidmq/{__version__}"),
            ("accept", "application/json"),
        ]
        if user:
            self._headers.append(("authorization", f"Basic {token}"))
        self._idle: list[_Wire] = []

    async def call(
        self, method: str, path: list[str], query: Query, body: object | None = None
    ) -> Any:
        """The JSON of the answer, None where it has none. Raises what its problem document says."""
        raw = await self.call_raw(method, path, query, body)
        return msgspec.json.decode(raw) if raw else None

    async def pages(self, path: list[str], query: Query) -> AsyncIterator[Any]:
        """The bodies of all pages of a list."""
        following = ""
        while True:
            reply = await self._reply("GET", path, {**query, "cursor": following})
            yield msgspec.json.decode(reply.body)
            following = reply.next
            if not following:
                return

    async def call_raw(
        self, method: str, path: list[str], query: Query, body: object | None = None
    ) -> bytes:
        return (await self._reply(method, path, query, body)).body

    async def _reply(
        self, method: str, path: list[str], query: Query, body: object | None = None
    ) -> _Reply:
        data = b"" if body is None else msgspec.json.encode(body)
        headers = [*self._headers, ("content-length", str(len(data)))]
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

    def _target(self, path: list[str], query: Query) -> str:
        said = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in query.items()
            if value is not None
        }
        target = f"{self._base}/v1/" + "/".join(quote(each, safe="") for each in path)
        return f"{target}?{urlencode(said)}" if said else target

    async def _ask(self, request: h11.Request, data: bytes) -> _Reply:
        # A kept connection may be gone by now, and then nobody knows whether the server still did
        # what it was asked: only what may be done twice is sent on one.
        if self._idle and request.method != b"POST":
            try:
                return await self._ask_on(self._idle.pop(), request, data)
            except (ConnectionError, h11.RemoteProtocolError):
                self._drop_idle()
        context = None if self._tls is None else self._tls.context()
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=context)
        return await self._ask_on(_Wire(reader, writer), request, data)

    async def _ask_on(self, wire: _Wire, request: h11.Request, data: bytes) -> _Reply:
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
