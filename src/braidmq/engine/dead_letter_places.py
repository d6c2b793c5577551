"""Where dead letters lie: the topic that a policy names, or the queues its exchange leads to."""

from collections.abc import Collection, Iterator

from braidmq.engine.exchanges import Exchanges
from braidmq.engine.policy import DeadLetter
from braidmq.engine.state import EngineState
from braidmq.engine.topics import Topic

DEFAULT = DeadLetter().topic
"""Where they went before somebody said otherwise."""


class DeadLetterPlaces:
    def __init__(self, state: EngineState, exchanges: Exchanges) -> None:
        self._state = state
        self._exchanges = exchanges

    def own(self, topic: Topic) -> Topic | None:
        """The topic for a topic's dead letters; None while there are none, or none of their own."""
        name = self.own_name(topic)
        return None if name is None else self._state.topics.get((topic.namespace, name))

    def own_name(self, topic: Topic) -> str | None:
        """The name of that topic, whether it is there or not."""
        rule = topic.dead_letter
        if rule.topic is None or rule.exchange is not None:
            return None
        return rule.topic.replace("{topic}", topic.name)

    def of(self, topic: Topic) -> list[Topic]:
        """Everywhere letters of a topic may lie, its own topic first: also where they went before
        its policy was another one."""
        found: dict[str, Topic | None] = {}
        own = self.own(topic)
        if own is not None:
            found[own.name] = own
        if DEFAULT is not None:
            name = DEFAULT.replace("{topic}", topic.name)
            found.setdefault(name, self._state.topics.get((topic.namespace, name)))
        for name in sorted(self._behind_exchange(topic, {})):
            found.setdefault(name, self._state.topics.get((topic.namespace, name)))
        return [place for place in found.values() if place is not None]

    def named_for(self, namespace: str, topic: str) -> list[Topic]:
        """As ``of``, by name: the topic itself may be gone."""
        found = self._state.topics.get((namespace, topic))
        if found is not None:
            return self.of(found)
        left = None if DEFAULT is None else DEFAULT.replace("{topic}", topic)
        place = None if left is None else self._state.topics.get((namespace, left))
        return [] if place is None else [place]

    def is_own(self, place: Topic, topic: str) -> bool:
        """Whether a place is for the letters of a topic, and not a queue with others' messages."""
        if DEFAULT is not None and place.name == DEFAULT.replace("{topic}", topic):
            return True
        found = self._state.topics.get((place.namespace, topic))
        return found is not None and place.name == self.own_name(found)

    def all_of(self, namespaces: Collection[str]) -> Iterator[Topic | None]:
        """Every topic of some namespaces in which letters may lie, by namespace and name; before
        that None for each topic that has to be asked."""
        names: set[tuple[str, str]] = set()
        known: dict[tuple[str, str], set[str]] = {}
        for topic in self._state.topics_of():
            if topic.namespace in namespaces and not topic.deleted:
                names.update((topic.namespace, name) for name in self._names(topic, known))
            yield None
        for key in sorted(names):
            yield self._state.topics.get(key)

    def _names(self, topic: Topic, known: dict[tuple[str, str], set[str]]) -> Iterator[str]:
        own = self.own_name(topic)
        if own is not None:
            yield own
        if DEFAULT is not None:
            yield DEFAULT.replace("{topic}", topic.name)
        yield from self._behind_exchange(topic, known)

    def _behind_exchange(self, topic: Topic, known: dict[tuple[str, str], set[str]]) -> set[str]:
        rule = topic.dead_letter
        if rule.exchange is None:
            return set()
        if rule.exchange == "" and rule.routing_key is not None:
            return {rule.routing_key}
        key = (topic.namespace, rule.exchange)
        if key not in known:
            known[key] = self._reach(*key)
        return known[key]

    def _reach(self, namespace: str, exchange: str) -> set[str]:
        """Topics that an exchange can lead to, whatever the key: also by others and by its
        alternate."""
        router = self._exchanges.router(namespace)
        names: set[str] = set()
        asked: set[str] = set()
        ask = [exchange]
        while ask:
            name = ask.pop()
            if name in asked or not router.has(name):
                continue
            asked.add(name)
            if name == "":
                names.update(each.name for each in self._state.topics_of(namespace))
                continue
            for binding in router.bindings(source=name):
                to = binding.destination
                (ask.append if to.kind == "exchange" else names.add)(to.name)
            alternate = router.alternate(name)
            if alternate is not None:
                ask.append(alternate)
        return names
