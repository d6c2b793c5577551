"""uvicorn's WebSocket protocol, for listeners that have nothing to say.

The only stream there is goes to the client. What comes from it is told apart in Python, frame by
frame, so one that pings without end would keep everybody waiting.
"""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class ListenerProtocol(WebSocketsSansIOProtocol):
    HEARD_BYTES = 512
    HEARD_BYTES_PER_S = 128
    """What a listener may send at once, and on average: pings, answers to ours, a goodbye. Those of
    a hundred listeners may be read in one turn of the loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._began_s = self.loop.time()
        self._heard_bytes = 0
        self._has_asked = False

    def data_received(self, data: bytes) -> None:
        if not self._has_asked:
            # The head of its request, as HTTP has read it: by itself, and within its limits.
            self._has_asked = True
            super().data_received(data)
            return
        self._heard_bytes += len(data)
        since_s = self.loop.time() - self._began_s
        if self._heard_bytes > self.HEARD_BYTES + since_s * self.HEARD_BYTES_PER_S:
            self.transport.abort()
        else:
            super().data_received(data)
