"""The WebSocket of live figures: an overview every so often, for as long as somebody listens."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.websockets import WebSocket, WebSocketDisconnect

from braidmq.api.access import Caller
from braidmq.api.endpoints import query_from
from braidmq.api.resources.node import Figures
from braidmq.model.errors import BraidError, Kind
from braidmq.security.accounts import AccountChange

LISTENERS_MAX = 100
"""Each is sent something every so often."""

SHARED_S = 0.09
"""All topics are looked at, so not anew for each listener; a little less than the shortest
interval there is."""

SEND_S_MAX = 10
"""A listener that does not read for so long is let go."""

GOING_AWAY = 1001


class TooManyListeners(BraidError):
    kind = Kind.REFUSED
    code = "too-many-listeners"
    remedy = "Poll /v1/overview instead"


class StreamQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    interval_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1000


class MetricsStream:
    PATH = ("v1", "stream", "metrics")

    def __init__(self, figures: Figures, left_s: Callable[[Caller], float | None]) -> None:
        """``left_s``: until a caller's token ends."""
        self._figures = figures
        self._left_s = left_s
        self._listeners: dict[asyncio.Event, Caller] = {}
        self._text = ""
        self._looked_s = -SHARED_S

    async def serve(self, socket: WebSocket, caller: Caller) -> None:
        """Until the listener goes, or the node does."""
        query = query_from(socket, StreamQuery)
        if len(self._listeners) >= LISTENERS_MAX:
            raise TooManyListeners(f"{LISTENERS_MAX} clients are already listening")
        await socket.accept()
        over = asyncio.Event()
        self._listeners[over] = caller
        gone = asyncio.ensure_future(_gone(socket, over))
        try:
            while not over.is_set() and caller.is_current() and self._figures.may_see(caller.user):
                async with asyncio.timeout(SEND_S_MAX):
                    await socket.send_text(self._look())
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), self._wait_s(caller, query))
            await socket.close(GOING_AWAY)
        except (TimeoutError, WebSocketDisconnect, RuntimeError):
            pass  # Starlette says RuntimeError for a socket that was closed meanwhile
        finally:
            gone.cancel()
            self._listeners.pop(over, None)

    def _wait_s(self, caller: Caller, query: StreamQuery) -> float:
        left_s, interval_s = self._left_s(caller), query.interval_ms / 1000
        return interval_s if left_s is None else min(interval_s, left_s)

    def recheck(self, _: AccountChange) -> None:
        """Who would not be let in any more is not sent anything more."""
        for over, caller in self._listeners.items():
            if not caller.is_current():
                over.set()

    def _look(self) -> str:
        """Whoever asks at about the same time gets the same."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._looked_s + SHARED_S:
            self._text = msgspec.json.encode(self._figures.look()).decode()
            self._looked_s = now_s
        return self._text

    def stop(self) -> None:
        for over in self._listeners:
            over.set()


async def _gone(socket: WebSocket, over: asyncio.Event) -> None:
    """What a listener says is not listened to; only that it went."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass
    over.set()
