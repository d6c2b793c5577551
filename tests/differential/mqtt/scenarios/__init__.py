"""What is tried: a module an area, a function a scenario."""

from collections.abc import Callable
from typing import TypeVar

from tests.differential.mqtt.wire import V3, V5

F = TypeVar("F", bound=Callable[..., object])


def scenario(function: F) -> F:
    """Marks a function of a ``Stage`` that returns what was seen. It is run in both versions."""
    function.versions = (V3, V5)  # type: ignore[attr-defined]
    return function


def only_v5(function: F) -> F:
    function.versions = (V5,)  # type: ignore[attr-defined]
    return function


def only_v3(function: F) -> F:
    function.versions = (V3,)  # type: ignore[attr-defined]
    return function
