"""Awaitables for what is done already: no coroutine is made for it.

A method that seldom has to wait returns one of these, so that calling it costs little, and calling
it without ``await`` is no mistake.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any


class _Done:
    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return iter(())  # type: ignore[return-value]


class _Turn:
    """Lets others run once: a loop over what never waits would keep them out."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        yield


DONE = _Done()
TURN = _Turn()


class Later:
    """Waits in a way that is only begun if somebody awaits it."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, None, None]:
        return self._begin().__await__()
