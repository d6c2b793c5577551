"""uvicorn's HTTP protocol, with an end to how long a client may keep it waiting.

uvicorn waits without limit for the head of a request, and for a client to read its answer: whoever
sends a byte now and then, or reads none, would keep a connection and its buffers for ever. Bodies
have their own limit, in ``app.py``.
"""

import asyncio
from http import HTTPStatus
from typing import Any

import h11
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from braidmq.api.problems import SlowRequest, problem
from braidmq.model.errors import BadRequest
from braidmq.net.admission import admit
from braidmq.net.tls_handshakes import ALERT, is_tls, note_tls
from braidmq.runtime.rate_limits import RateLimits

ARRIVAL = "arrival"


class Arrival:
    """How a connection came: whether there are too many from its address."""

    def __init__(self, rates: RateLimits, host: str) -> None:
        self._rates = rates
        self._host = host
        self._late_ms = rates.arrived(host)

    async def let_in(self) -> None:
        """Before its first request; raises RateExceeded."""
        if self._late_ms:
            await self._rates.let_in(self._late_ms, self._host)
            self._late_ms = 0


class TimeoutProtocol(H11Protocol):
    HEAD_S = 10.0
    """From the connection, or the first byte of a later request, to the end of the head."""
    UNREAD_S = 30.0
    """A client that read nothing of what waits for it for so long reads no more."""

    def __init__(self, *args: Any, rates: RateLimits | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rates = rates
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._is_new = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._rates is not None and self.client is not None:
            # Of this connection alone, as long as it lives.
            self.app_state = {**self.app_state, ARRIVAL: Arrival(self._rates, self.client[0])}
        if admit(transport):
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_awaiting_head()
        self._stop_awaiting_reading()
        super().connection_lost(exc)

    # --- requests ---

    def data_received(self, data: bytes) -> None:
        if self._is_new and is_tls(data):
            note_tls("http", "?" if self.client is None else f"{self.client[0]}:{self.client[1]}")
            self.transport.write(ALERT)
            self.transport.close()
            return
        self._is_new = False
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._await_head()
        else:
            self._stop_awaiting_head()

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(self.HEAD_S, self._head_missing)

    def _stop_awaiting_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _head_missing(self) -> None:
        self._head = None
        began = bool(self.conn.trailing_data[0])
        if began and self.conn.our_state is h11.IDLE:
            late = SlowRequest(f"the head of a request can't take more than {self.HEAD_S:g} s")
            self._refuse(problem(late))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(problem(BadRequest(msg)))
        else:
            self.transport.close()

    def _refuse(self, answer: Response) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # whoever works on it need not answer any more
            self.cycle.message_event.set()
        headers = [each for each in answer.raw_headers if each[0] != b"connection"]
        headers.append((b"connection", b"close"))
        phrase = HTTPStatus(answer.status_code).phrase
        start = h11.Response(status_code=answer.status_code, headers=headers, reason=phrase)
        for event in (start, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    # --- answers ---

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_awaiting_reading()
        super().resume_writing()

    def _await_reading(self, size: int) -> None:
        self._unread = self.loop.call_later(self.UNREAD_S, self._look_at_unread, size)

    def _stop_awaiting_reading(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _look_at_unread(self, before: int) -> None:
        size = self.transport.get_write_buffer_size()
        if size >= before:
            self._unread = None
            self.transport.abort()
        else:
            self._await_reading(size)
