from collections.abc import Callable, Coroutine, Generator
from typing import Any

class Done:
    def __await__(self) -> Generator[Any]: ...

class Turn:
    def __await__(self) -> Generator[Any]: ...

class Later:
    def __init__(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None: ...
    def __await__(self) -> Generator[Any]: ...

DONE: Done
TURN: Turn
