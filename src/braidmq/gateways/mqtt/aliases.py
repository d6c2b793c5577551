"""Topic aliases that we set for a client: numbers that stand for topics it has heard of.

First come, first served: a topic keeps its number as long as the connection lasts. Passing numbers
on to newer topics would cost more than it saves where there are more topics than numbers.
"""

ALIASES_MAX = 1024
"""For one client, whatever it offers to remember: we have to remember them, too."""

ALIASED_BYTES_MAX = 1024
"""Longer topics get none."""


class Aliases:
    __slots__ = ("_maximum", "_numbers")

    def __init__(self, maximum: int) -> None:
        self._maximum = min(maximum, ALIASES_MAX)
        self._numbers: dict[bytes, int] = {}

    def look(self, topic: bytes) -> tuple[int, bool]:
        """The number for a topic, 0 if it gets none, and whether the client knows it."""
        known = self._numbers.get(topic)
        if known is not None:
            return known, True
        room = len(self._numbers) < self._maximum and len(topic) <= ALIASED_BYTES_MAX
        return (len(self._numbers) + 1 if room else 0), False

    def sent(self, topic: bytes, number: int) -> None:
        """The client has both."""
        if number:
            self._numbers[topic] = number
