"""Namespaces, as far as the engine knows them: deleting one deletes all that is in it."""

from collections.abc import Iterator

import msgspec

from braidmq.engine.administration import TopicAdministration
from braidmq.engine.hooks import Hooks
from braidmq.engine.state import DELETIONS, TEMPLATES, EngineState


class Namespaces:
    def __init__(self, state: EngineState, hooks: Hooks, topics: TopicAdministration) -> None:
        self._state = state
        self._hooks = hooks
        self._topics = topics

    def delete(self, namespace: str, *, now_ms: int) -> None:
        """With all that is in it."""
        for _ in self.deleting(namespace, now_ms=now_ms):
            pass

    def deleting(self, namespace: str, *, now_ms: int) -> Iterator[None]:
        """The same in steps of a topic each. Nobody finds any of them from the first step on, and
        what a crash leaves of them is removed at the next start."""
        topics = self._state.topics_of(namespace)
        templates = self._state.templates_of(namespace)
        deletion = f"{namespace}\0{self._state.store.journal.next_lsn}"
        numbers = msgspec.msgpack.encode([topic.id for topic in topics if topic.durable])
        gone = [(TEMPLATES, f"{namespace}\0{name}", None) for name in templates]
        self._state.store.change([(DELETIONS, deletion, numbers), *gone])
        for name in templates:
            del self._state.templates[namespace, name]
        for topic in topics:
            self._topics.hide(topic)
        for deleted in self._hooks.namespace_deleted:
            deleted(namespace, now_ms)
        for topic in topics:
            self._topics.remove(topic)
            yield
        self._state.store.change([(DELETIONS, deletion, None)])

    def finish_deletions(self) -> None:
        """Topics of namespaces that were being deleted when the node went down."""
        for key, value in list(self._state.store.catalogue.items(DELETIONS)):
            for number in msgspec.msgpack.decode(value, type=list[int]):
                topic = self._state.topics_by_id.get(number)
                if topic is not None:
                    self._topics.delete(topic)
            self._state.store.change([(DELETIONS, key, None)])
            # Another one may have had the name by then.
            for topic in self._state.topics_by_id.values():
                self._state.topics.setdefault((topic.namespace, topic.name), topic)
