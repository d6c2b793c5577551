"""Templates: settings for topics and exchanges by the pattern of their names."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from braidmq.engine.administration import TopicAdministration, at_least_as_wide
from braidmq.engine.errors import UnknownTemplate
from braidmq.engine.exchanges import Exchanges
from braidmq.engine.policy import (
    IllegalPolicy,
    Template,
    TemplateKind,
    TopicPolicy,
    check_template,
)
from braidmq.engine.references import References, names_target
from braidmq.engine.state import TEMPLATES, EngineState
from braidmq.engine.topics import Topic

logger = logging.getLogger(__name__)


class Templates:
    def __init__(
        self,
        state: EngineState,
        exchanges: Exchanges,
        references: References,
        topics: TopicAdministration,
    ) -> None:
        self._state = state
        self._exchanges = exchanges
        self._references = references
        self._topics = topics

    def of(self, namespace: str | None = None) -> list[tuple[str, Template]]:
        """Namespaces and templates, in order."""
        every = sorted(self._state.templates.items(), key=lambda each: each[0])
        return [(key[0], each) for key, each in every if namespace in (None, key[0])]

    def put(
        self,
        namespace: str,
        name: str,
        pattern: str,
        settings: dict[str, Any],
        *,
        now_ms: int,
        priority: int = 0,
        kinds: Sequence[TemplateKind] = ("topic",),
        alternate_exchange: str | None = None,
        attributes: dict[str, Any] | None = None,
        set_by: str = "",
    ) -> Template:
        template = Template(
            name,
            pattern,
            settings,
            priority,
            tuple(kinds),
            alternate_exchange,
            attributes or {},
            set_by,
        )
        for _ in self.putting(namespace, template, now_ms=now_ms):
            pass
        return template

    def putting(self, namespace: str, template: Template, *, now_ms: int) -> Iterator[None]:
        """``put`` in steps of a topic each, for who has others to serve between them: first whether
        all topics can follow, and only then they do. One that is made meanwhile, or after a crash,
        has it from the moment it is kept."""
        check_template(template)
        name = template.name
        yield from self._prepare(namespace, name, template)
        value = msgspec.msgpack.encode(template)
        self._state.store.change([(TEMPLATES, f"{namespace}\0{name}", value)])
        self._state.templates[namespace, name] = template
        yield from self._reapply(namespace, now_ms)
        self._exchanges.set_alternates(namespace)

    def delete(self, namespace: str, name: str, *, now_ms: int) -> None:
        for _ in self.deleting(namespace, name, now_ms=now_ms):
            pass

    def deleting(self, namespace: str, name: str, *, now_ms: int) -> Iterator[None]:
        if name not in self._state.templates_of(namespace):
            raise UnknownTemplate(f"there is no template {name!r} in namespace {namespace!r}")
        yield from self._prepare(namespace, name, None)
        self._state.store.change([(TEMPLATES, f"{namespace}\0{name}", None)])
        self._state.templates.pop((namespace, name), None)
        yield from self._reapply(namespace, now_ms)
        self._exchanges.set_alternates(namespace)

    def _prepare(self, namespace: str, name: str, template: Template | None) -> Iterator[None]:
        """Whether all topics can follow. What queues that are none any more have let go is
        journaled before the template is, and they let go of nothing more: after a crash in the
        midst of them, when all have it, nothing comes back."""
        ending: list[Topic] = []
        try:
            for topic, policy in self._policies(namespace, name, template):
                if topic.until_acked and not policy.retention.until_acked:
                    ending.append(topic)
                    self._topics.hold(topic)
                yield
        except BaseException:
            for topic in ending:
                self._topics.hold_no_more(topic)
            raise

    def _policies(
        self, namespace: str, name: str, template: Template | None
    ) -> Iterator[tuple[Topic, TopicPolicy]]:
        """What each topic's would be. Raises before anything is changed."""
        templates = self._state.templates_of(namespace)
        templates.pop(name, None)
        if template is not None:
            templates[name] = template
        names = False
        if template is not None and template.set_by:
            self._references.require_template(namespace, template)
            names = names_target(template.settings)
        for topic in self._state.topics_of(namespace):
            policy = self._policy_for(topic, templates)
            if names and template is not None and template.matches(topic.name, topic.kind):
                self._references.require_target(template.set_by, namespace, topic.name, policy)
            yield topic, policy

    def _policy_for(self, topic: Topic, templates: dict[str, Template]) -> TopicPolicy:
        policy = self._topics.policy_of(topic, templates)
        return policy if "partitions" in topic.settings else at_least_as_wide(topic, policy)

    def _reapply(self, namespace: str, now_ms: int) -> Iterator[None]:
        for topic in self._state.topics_of(namespace):
            if not topic.deleted:
                # Others may have changed templates since the last step, or this topic.
                self._follow_templates(topic, max(now_ms, self._state.wheel.now_ms))
            yield

    def _follow_templates(self, topic: Topic, now_ms: int) -> None:
        try:
            policy = self._policy_for(topic, self._state.templates_of(topic.namespace))
        except IllegalPolicy:
            logger.exception("a topic keeps its policy: what templates want of it is illegal")
            self._topics.hold_no_more(topic)
            return
        if policy != topic.policy:
            self._topics.apply_policy(topic, policy, now_ms)
        else:
            self._topics.hold_no_more(topic)
            # It may be another's who names the same target now.
            self._references.judge(topic)
