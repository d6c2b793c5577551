"""Bodies of requests, whole: how much they may have, and how long they may take."""

import asyncio

from starlette.requests import Request

from braidmq.gateways.http.problems import BodyTooLarge, SlowRequest
from braidmq.model.limits import MIB

BODIES_BYTES_MAX = 512 * MIB
"""Bodies under way, of all requests together: many slow senders must not fill the memory."""


BYTES_PER_S_MIN = 1024
"""What a body that takes long must have on average: a byte now and then is no body either."""


class Bodies:
    IDLE_S = 30.0
    """A body of which nothing came for so long will not come."""

    def __init__(self) -> None:
        self._bytes = 0

    async def read(self, request: Request, bytes_max: int) -> bytes:
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > bytes_max:
            raise too_large(bytes_max)
        chunks: list[bytes] = []
        size = 0
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        try:
            while True:
                async with asyncio.timeout_at(deadline_s(began_s, now_s(), size, self.IDLE_S)):
                    message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise SlowRequest("the sender is gone")
                chunk = message.get("body", b"")
                chunks.append(chunk)
                size += len(chunk)
                self._bytes += len(chunk)
                if size > bytes_max or self._bytes > BODIES_BYTES_MAX:
                    raise too_large(bytes_max)
                if not message.get("more_body", False):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        except TimeoutError:
            raise SlowRequest(f"{size} bytes of the body came, and no more for too long") from None
        finally:
            self._bytes -= size


def deadline_s(began_s: float, now_s: float, size: int, idle_s: float) -> float:
    """Until when more has to come of a body that began then and has so many bytes now."""
    return min(now_s + idle_s, began_s + idle_s + size / BYTES_PER_S_MIN)


def too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"a body can't have more than {bytes_max} bytes here")
