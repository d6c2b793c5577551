"""Clients that take their time, against uvicorn with a protocol that has little patience."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from braidmq.api.bodies import Bodies, deadline_s
from braidmq.api.http_timeouts import TimeoutProtocol
from braidmq.api.problems import SlowRequest

pytestmark = pytest.mark.timeout(30)

BIG = b"x" * (16 << 20)
"""More than the sockets of both sides hold."""


class Hasty(TimeoutProtocol):
    HEAD_S = 0.2
    UNREAD_S = 0.2


class Patient(TimeoutProtocol):
    HEAD_S = 3600
    UNREAD_S = 3600


async def answer_big(scope: Scope, receive: Receive, send: Send) -> None:
    size = int(scope["path"].lstrip("/"))
    await Response(BIG[:size])(scope, receive, send)


@asynccontextmanager
async def serving(protocol: type[TimeoutProtocol]) -> AsyncIterator[int]:
    config = uvicorn.Config(answer_big, log_config=None, lifespan="off", http=protocol)
    config.timeout_keep_alive = 3600
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(config)
        server.capture_signals = suppress  # type: ignore[method-assign,assignment]
        running = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0)
        try:
            yield listener.getsockname()[1]
        finally:
            server.force_exit = server.should_exit = True
            await running


async def answered(reader: asyncio.StreamReader) -> bytes:
    """All that came until the end, which is a reset where we were still sending."""
    pieces: list[bytes] = []
    with suppress(ConnectionResetError):
        while piece := await reader.read(1 << 16):
            pieces.append(piece)
    return b"".join(pieces)


async def test_a_head_that_does_not_end() -> None:
    async with serving(Hasty) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def drip() -> None:
            for byte in b"GET /1 HTTP/1.1\r\nx: " + b"y" * 10_000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        head, _, body = (await answered(reader)).partition(b"\r\n\r\n")
        dripping.cancel()
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b"connection: close" in head.lower()
        assert b'"code":"request-timeout"' in body
        writer.close()


@pytest.mark.parametrize("first", [b"", b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\n"])
async def test_heads_of_later_requests_too(first: bytes) -> None:
    async with serving(Hasty) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if first:
            writer.write(first)
            assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"GET /1 HT")
        assert (await answered(reader)).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_a_connection_that_says_nothing() -> None:
    async with serving(Hasty) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


async def test_requests_one_after_the_other_and_at_once() -> None:
    request = b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\n"
    async with serving(Patient) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in (request, request * 3, request[:9], request[9:]):
            writer.write(piece)
            for _ in range(piece.count(b"\r\n\r\n")):
                assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def send_on(client: socket.socket) -> None:
    while True:
        client.send(b"x")
        await asyncio.sleep(0.01)


async def test_an_answer_that_nobody_reads() -> None:
    async with serving(Hasty) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.send(f"GET /{len(BIG)} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                await send_on(client)


class SlowReader(asyncio.Transport):
    """What waits for it gets less and less, until it stops to read."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = list(sizes)
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.sizes.pop(0)

    def abort(self) -> None:
        self.aborted.set()


async def test_an_answer_that_is_read_slowly() -> None:
    reader = SlowReader(9, 8, 3, 1, 1, 0)
    protocol = Hasty(uvicorn.Config(answer_big, log_config=None), ServerState(), {})
    protocol.connection_made(reader)
    protocol.pause_writing()
    await reader.aborted.wait()
    assert reader.sizes == [0]
    protocol.connection_lost(ConnectionResetError())


async def test_what_is_no_request_is_a_problem() -> None:
    async with serving(Patient) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x17\x03\x01\x02\x00\x01\x00\r\n\r\n")
        head, _, body = (await answered(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b'"code":"bad-request"' in body
        writer.close()


async def test_a_body_that_goes_wrong_is_answered_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Patient) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"PUT /1 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"no number\r\n")
        assert (await answered(reader)).count(b"HTTP/1.1 ") == 1
        writer.close()
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


class HastyBodies(Bodies):
    IDLE_S = 0.2


async def test_a_body_that_drips() -> None:
    """Something comes all the time, and still it is not enough."""

    async def drop_by_drop() -> Message:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    request = Request({"type": "http", "method": "POST", "headers": []}, drop_by_drop)
    with pytest.raises(SlowRequest):
        await HastyBodies().read(request, 1 << 20)


@pytest.mark.parametrize(
    ("now_s", "size", "until_s"),
    [
        (0, 0, 30),
        (29, 0, 30),
        (29, 1024, 31),
        (29, 1 << 20, 59),
        (1000, 1 << 20, 1030),
        (1053, 1 << 20, 1054),
    ],
)
def test_a_body_that_comes_has_more_time(now_s: float, size: int, until_s: float) -> None:
    assert deadline_s(0, now_s, size, 30) == until_s
