"""What is tried: a module an area, a function a scenario."""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def scenario(function: F) -> F:
    """Marks a function of a ``Client`` that returns what it saw."""
    function.is_scenario = True  # type: ignore[attr-defined]
    return function
