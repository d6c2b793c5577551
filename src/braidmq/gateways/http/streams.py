"""What is sent over WebSockets for as long as somebody listens."""

from typing import Protocol

from starlette.websockets import WebSocket


class Streams(Protocol):
    PATH: tuple[str, ...]

    async def serve(self, socket: WebSocket) -> None: ...
