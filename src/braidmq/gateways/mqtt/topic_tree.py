"""Topics by their levels, and a walk through those that a filter matches, a few at a time.

Between two steps of a walk topics may come and go: it remembers names, not positions. What is there
from beginning to end is found once; what comes meanwhile may be found or not.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

LAST_OF_BROKER = "$\U0010ffff"
"""Behind every name that begins with a dollar."""


class _Level:
    """``topic`` is set where one ends."""

    __slots__ = ("below", "names", "topic")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.names: list[str] = []
        """Of what is below, in order."""
        self.topic: str | None = None

    def after(self, name: str | None) -> str | None:
        """The first name behind another one."""
        at = 0 if name is None else bisect_right(self.names, name)
        return self.names[at] if at < len(self.names) else None


class TopicTree:
    def __init__(self, topics: Iterable[str] = ()) -> None:
        self._root = _Level()
        # In order, so that each name goes to the end of its level.
        for topic in sorted(topics, key=lambda each: each.split("/")):
            self.add(topic)

    def add(self, topic: str) -> None:
        """One that is not there."""
        level = self._root
        for word in topic.split("/"):
            below = level.below.get(word)
            if below is None:
                below = level.below[word] = _Level()
                insort(level.names, word)
            level = below
        level.topic = topic

    def remove(self, topic: str) -> None:
        """One that is there."""
        words = topic.split("/")
        path = [self._root]
        for word in words:
            path.append(path[-1].below[word])
        path[-1].topic = None
        for word, level, above in zip(reversed(words), path[:0:-1], path[-2::-1], strict=True):
            if level.below or level.topic is not None:
                break
            del above.below[word]
            del above.names[bisect_left(above.names, word)]

    def walk(self, pattern: str, after: str = "") -> "Walk":
        """Through all topics that a filter matches, or those behind one of them."""
        return Walk(self._root, pattern.split("/"), after)


class Walk:
    """Use ``TopicTree.walk``."""

    __slots__ = ("_after", "_root", "_stack", "_words")

    def __init__(self, root: _Level, words: list[str], after: str) -> None:
        self._root = root
        self._words = words
        self._after = after
        self._stack: list[tuple[_Level, int, str | None]] = []
        """Levels to go on at: how many words of the filter led there, and the name below that was
        last looked at."""
        if after:
            self._go_to(after.split("/"))
        else:
            self._stack.append((root, 0, None))

    def _go_to(self, names: list[str]) -> None:
        """Where a walk stands just before that topic, or before the next if it is gone."""
        level, depth = self._root, 0
        for name in names:
            if depth == len(self._words):
                return  # the filter does not match it: nothing is behind it
            word = self._words[depth]
            if word in ("#", "+"):
                self._stack.append((level, depth, name))
            below = level.below.get(name)
            if below is None:
                return
            level = below
            depth += word != "#"
        self._stack.append((level, depth, None))

    @property
    def is_over(self) -> bool:
        return not self._stack

    def step(self) -> str | None:
        """Look at one more level; the topic that ends there, if it is one of those."""
        found = self._step()
        return None if found == self._after else found

    def _step(self) -> str | None:
        level, depth, last = self._stack.pop()
        word = self._words[depth] if depth < len(self._words) else ""
        if depth == len(self._words):
            return level.topic
        if word not in ("#", "+"):
            below = level.below.get(word)
            if below is not None:
                self._stack.append((below, depth + 1, None))
            return None
        found = level.topic if word == "#" and last is None else None
        name = level.after(last)
        if level is self._root and name is not None and name.startswith("$"):
            name = level.after(LAST_OF_BROKER)  # MQTT-4.7.2-1
        if name is not None:
            self._stack.append((level, depth, name))
            self._stack.append((level.below[name], depth if word == "#" else depth + 1, None))
        return found
