"""An event loop in a thread, for programs that have none."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from braidmq.client.errors import Closed

_T = TypeVar("_T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="braidmq", daemon=True)
        self._handed_over: deque[Callable[[], object]] = deque()
        self._taking = False
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def wait_for(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run it there and wait here. An interrupt here cancels it there."""
        if not self._thread.is_alive():
            work.close()
            raise Closed("the connection was closed")
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def hand_over(self, work: Callable[[], object]) -> None:
        """Run it there soon, in the order it came; nobody waits."""
        if not self._thread.is_alive():
            raise Closed("the connection was closed")
        self._handed_over.append(work)
        if not self._taking:
            self._taking = True
            self.loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        # First the flag: what is appended from here on is seen below, or schedules another.
        self._taking = False
        while self._handed_over:
            try:
                self._handed_over.popleft()()
            except Exception as error:
                self.loop.call_exception_handler(
                    {"message": "braidmq: a call without a waiter failed", "exception": error}
                )

    @property
    def handed_over(self) -> int:
        """What the loop has not taken yet."""
        return len(self._handed_over)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
