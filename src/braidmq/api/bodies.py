"""Bodies of requests, whole: how much they may have, and how long they may take."""

import asyncio

from starlette.requests import Request

from braidmq.api.problems import BodyTooLarge, SlowRequest
from braidmq.net.input_budget import InputBudget

BYTES_PER_S_MIN = 1024
"""What a body that takes long must have on average: a byte now and then is no body either."""


class _Body:
    """One that is being read."""

    def __init__(self, input_budget: InputBudget | None) -> None:
        self.chunks: list[bytes] = []
        self.refused = ""
        self._share = None if input_budget is None else input_budget.share(self)

    def add(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        if self._share is not None:
            self._share.hold(len(chunk))

    def refuse_input(self, text: str) -> None:
        """It is forgotten now, and its sender told when more comes."""
        self.refused = text
        self.end()

    def end(self) -> None:
        self.chunks = []
        if self._share is not None:
            self._share.release()


class Bodies:
    IDLE_S = 30.0
    """A body of which nothing came for so long will not come."""

    def __init__(self, input_budget: InputBudget | None = None) -> None:
        """``intake`` counts them, with what other protocols have not completed: many slow senders
        must not fill the memory."""
        self._intake = input_budget

    async def read(self, request: Request, bytes_max: int) -> bytes:
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > bytes_max:
            raise too_large(bytes_max)
        body = _Body(self._intake)
        size = 0
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        try:
            while True:
                async with asyncio.timeout_at(deadline_s(began_s, now_s(), size, self.IDLE_S)):
                    message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise SlowRequest("the client disconnected")
                chunk = message.get("body", b"")
                body.add(chunk)
                size += len(chunk)
                if size > bytes_max:
                    raise too_large(bytes_max)
                if body.refused:
                    raise BodyTooLarge(body.refused)
                if not message.get("more_body", False):
                    return body.chunks[0] if len(body.chunks) == 1 else b"".join(body.chunks)
        except TimeoutError:
            raise SlowRequest(
                f"{size} bytes of the body arrived, and then nothing for too long"
            ) from None
        finally:
            body.end()


def deadline_s(began_s: float, now_s: float, size: int, idle_s: float) -> float:
    """Until when more has to come of a body that began then and has so many bytes now."""
    return min(now_s + idle_s, began_s + idle_s + size / BYTES_PER_S_MIN)


def too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"a body can't have more than {bytes_max} bytes here")
