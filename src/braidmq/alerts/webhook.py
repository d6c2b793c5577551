"""One POST to a webhook. Redirects are not followed: their target may not be in alerts.hosts."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import h11

from braidmq import __version__

READ_BYTES = 65_536
PORTS = {"http": 80, "https": 443}

T = TypeVar("T")


def origin_of(url: str) -> str:
    """As logs may have it: the rest of a webhook is often its password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def post(url: str, body: bytes, timeout_s: float) -> str | None:
    """Why it was not taken; None: it was."""
    try:
        async with asyncio.timeout(timeout_s):
            status = await _status_of(urlsplit(url), body)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    # ValueError: a host that no name server could be asked for.
    except (OSError, ValueError, h11.RemoteProtocolError) as error:
        return str(error) or type(error).__name__
    return None if 200 <= status < 300 else f"the answer was {status}"


async def _status_of(parts: SplitResult, body: bytes) -> int:
    http = h11.Connection(h11.CLIENT)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [
        ("Host", parts.netloc),
        ("User-Agent", f"braidmq/{__version__}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    ]
    events = (
        h11.Request(method="POST", target=target, headers=headers),
        h11.Data(data=body),
        h11.EndOfMessage(),
    )
    reader, writer = await _connect(parts)
    try:
        writer.write(b"".join([http.send(event) or b"" for event in events]))
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(READ_BYTES))
            elif isinstance(event, h11.Response):
                return event.status_code
    finally:
        writer.close()


async def _connect(parts: SplitResult) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    secure = await _in_thread(_tls) if parts.scheme == "https" else None
    found = await _in_thread(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    name = host if secure is not None else None
    failure = OSError(f"cannot resolve host {host}")
    for *_, address in found:
        try:
            return await asyncio.open_connection(
                str(address[0]), port, ssl=secure, server_hostname=name
            )
        except OSError as error:
            failure = error
    raise failure


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _in_thread(function: Callable[[], T]) -> T:
    """For what the loop must not wait for. Threads of an executor, and those that uvloop asks name
    servers in, would have a process that ends wait for them."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(give: Callable[[Any], None], outcome: object) -> None:
        if not done.done():
            give(outcome)

    def run() -> None:
        try:
            finished = partial(finish, done.set_result, function())
        except Exception as error:
            finished = partial(finish, done.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finished)

    threading.Thread(target=run, name="webhook", daemon=True).start()
    return await done
