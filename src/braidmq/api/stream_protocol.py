"""uvicorn's WebSocket protocol, for listeners that have nothing to say.

The only stream there is goes to the client. What comes from it is told apart in Python, frame by
frame, so one that pings without end would keep everybody waiting.
"""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from braidmq.model.limits import KIB


class ListenerProtocol(WebSocketsSansIOProtocol):
    HEARD_BYTES = 16 * KIB
    HEARD_BYTES_PER_S = 1 * KIB
    """What a listener may send at once, and on average: the head of its request, pings, answers to
    ours, a goodbye."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._began_s = self.loop.time()
        self._heard_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._heard_bytes += len(data)
        since_s = self.loop.time() - self._began_s
        if self._heard_bytes > self.HEARD_BYTES + since_s * self.HEARD_BYTES_PER_S:
            self.transport.abort()
        else:
            super().data_received(data)
