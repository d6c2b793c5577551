"""One connection that speaks HTTP/1.1, on h11: a request at a time, its answer whole or in pieces.

h11 is there already, as uvicorn stands on it; httpx would bring four more packages and a tenth of a
second of imports.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import h11

from braidmq.client.tls import TlsOptions

READ_BYTES = 256 * 1024
Headers = list[tuple[bytes, bytes]]


class Reply(NamedTuple):
    status: int
    headers: Headers
    body: bytes

    def header(self, name: bytes) -> str:
        """Empty if there is none; ``name`` in lower case."""
        return dict(self.headers).get(name, b"").decode("latin-1")


class HttpWire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.CLIENT)

    @classmethod
    async def connect(cls, host: str, port: int, tls: TlsOptions | None) -> "HttpWire":
        """Raises OSError."""
        context = None if tls is None else tls.context()
        return cls(*await asyncio.open_connection(host, port, ssl=context))

    async def ask(self, request: h11.Request, body: bytes) -> Reply:
        """Raises OSError or h11.ProtocolError."""
        answer = await self.begin(request, body)
        pieces = [piece async for piece in self.pieces()]
        return Reply(answer.status_code, answer.headers.raw_items(), b"".join(pieces))

    async def begin(self, request: h11.Request, body: bytes) -> h11.Response:
        """The head of the answer: what follows is in ``pieces``."""
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            if data := self._state.send(event):
                self._writer.write(data)
        await self._writer.drain()
        while True:
            answer = await self._next()
            if isinstance(answer, h11.Response):
                return answer

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body of the answer, as it comes."""
        while True:
            part = await self._next()
            if isinstance(part, h11.Data):
                yield bytes(part.data)
            elif isinstance(part, h11.EndOfMessage):
                return

    async def _next(self) -> h11.Event:
        while True:
            event = self._state.next_event()
            if event is h11.NEED_DATA:
                self._state.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionError("closed before the answer")
            elif isinstance(event, h11.Event):
                return event

    def reuse(self) -> bool:
        """Whether it takes another request."""
        if self._state.our_state is h11.DONE and self._state.their_state is h11.DONE:
            self._state.start_next_cycle()
            return True
        return False

    def get_socket(self) -> object:
        return self._writer.get_extra_info("socket")

    def close(self) -> None:
        self._writer.close()
