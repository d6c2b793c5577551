"""What names another object: where dead letters go, alternate exchanges, bindings.

Whoever sets one needs the right to what it names, and not only at that moment. Each is kept with
the user who made it, and holds while that user has the right: it is looked at again when somebody's
permissions change, and what no longer holds is disabled and logged. Nothing is asked when a
message passes. It holds again once the right is back, or somebody who has it sets it anew.

                   needs                                     without it
dead letters       read on the topic, write on the target    they go to ``{topic}.dlq``
                   (configure, to have a topic made)
alternate          read on the exchange, write on the        there is none
                   alternate
binding            read on the source, write on the          nothing goes through it
                   destination

What the broker makes itself, or was made before this was kept, has no user and always holds. The
bindings of a user who is deleted stay as they are: a queue is read under its readers' own rights,
and a message that finds no way is lost.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from braidmq.engine.exchanges import Exchanges
from braidmq.engine.makers import SetBy, lets, name_of
from braidmq.engine.policy import DeadLetter, Template, TopicPolicy, choose_template
from braidmq.engine.state import EngineState
from braidmq.engine.topics import Topic
from braidmq.model.errors import AccessRefused

logger = logging.getLogger(__name__)

SET_BY = "set_by"
"""Attribute of a topic: who named the target of its dead letters."""

DEFAULT_TARGET = "{topic}.dlq"
"""A topic's own, which needs no right."""

_TARGET_KEYS = ("topic", "exchange", "routing_key")

Need = tuple[str, str]
"""``configure``, ``write`` or ``read``, and a name."""

Allowed = Callable[[str, str, str, str], bool]
"""Whether a user may, in a namespace, do something to a name."""


def names_target(settings: dict[str, Any]) -> bool:
    """Whether settings of a topic say where its dead letters go."""
    dead = settings.get("dead_letter")
    return isinstance(dead, dict) and any(key in dead for key in _TARGET_KEYS)


class References:
    def __init__(self, state: EngineState, exchanges: Exchanges) -> None:
        self._state = state
        self._exchanges = exchanges
        self._allowed: Allowed = _everything
        self._named: dict[str, set[Topic]] = {}
        """By user: topics with a target that it named. Most have none, and are not looked at when
        somebody's permissions change."""

    def enforce(self, allowed: Allowed) -> None:
        """From now on these are the rights; all that is there is looked at."""
        self._allowed = self._exchanges.allowed = allowed
        for topic in list(self._state.topics.values()):
            self.judge(topic)
        self._exchanges.enforce()

    # --- when it is set ---

    def require(self, maker: SetBy, namespace: str, needs: Iterable[Need]) -> None:
        """Raises AccessRefused."""
        user = name_of(maker)
        for verb, name in needs:
            if not self._lets(maker, namespace, verb, name):
                raise AccessRefused(
                    f"user {user!r} may not {verb} {name or 'amq.default'!r} in namespace"
                    f" {namespace!r}, which these settings name"
                )

    def _lets(self, maker: SetBy, namespace: str, verb: str, name: str) -> bool:
        user = name_of(maker)
        may = not user or self._allowed(user, namespace, verb, name)
        return may and lets(maker, verb, name)

    def require_target(self, maker: SetBy, namespace: str, topic: str, policy: TopicPolicy) -> None:
        self.require(maker, namespace, self._needs(namespace, topic, policy.dead_letter))

    def require_template(self, namespace: str, template: Template) -> None:
        """What it names outright; for the topics it changes there is ``require_target``."""
        user, dead = template.set_by, template.settings.get("dead_letter")
        targets = [template.alternate_exchange]
        if isinstance(dead, dict):
            targets += [dead.get("exchange"), dead.get("topic")]
        for target in targets:
            if isinstance(target, str) and "{topic}" not in target:
                self.require(user, namespace, [("write", target)])

    def adopt(self, topic: Topic, maker: SetBy) -> None:
        """Somebody sets again what is disabled: it holds, if they may."""
        if topic.dead_letter is topic.policy.dead_letter:
            return
        needs = self._needs(topic.namespace, topic.name, topic.policy.dead_letter)
        if all(self._lets(maker, topic.namespace, *each) for each in needs):
            topic.attributes[SET_BY] = name_of(maker)
            self._state.save_topic(topic)
            self.judge(topic)

    def _needs(self, namespace: str, topic: str, rule: DeadLetter) -> list[Need]:
        if rule.exchange is not None:
            return [("read", topic), ("write", rule.exchange)]
        if rule.topic is None or rule.topic == DEFAULT_TARGET:
            return []
        target = rule.topic.replace("{topic}", topic)
        needs = [("read", topic), ("write", target)]
        if (namespace, target) not in self._state.topics:
            needs.append(("configure", target))
        return needs

    # --- while it holds ---

    def judge(self, topic: Topic) -> None:
        """Have a topic's dead letters go where they may."""
        rule = topic.policy.dead_letter
        needs = self._needs(topic.namespace, topic.name, rule)
        user = self._setter(topic) if needs else ""
        if user:
            self._named.setdefault(user, set()).add(topic)
        held = topic.dead_letter is rule
        if not user or all(self._allowed(user, topic.namespace, *each) for each in needs):
            topic.dead_letter = rule
            return
        topic.dead_letter = msgspec.structs.replace(
            rule, topic=DEFAULT_TARGET, exchange=None, routing_key=None
        )
        if held:
            target = rule.exchange if rule.exchange is not None else rule.topic
            logger.warning(
                "dead letters go to the default topic: the user who set their target lost"
                " the permission on it. Grant it again, or set the target as another user",
                extra={
                    "namespace": topic.namespace,
                    "topic": topic.name,
                    "target": target,
                    "set_by": user,
                },
            )

    def _setter(self, topic: Topic) -> str:
        """Who named the target that holds: the topic's own settings win over a template's."""
        own = topic.settings.get("dead_letter")
        key = "exchange" if topic.policy.dead_letter.exchange is not None else "topic"
        if isinstance(own, dict) and (key in own or "routing_key" in own):
            found: str = topic.attributes.get(SET_BY, "")
            return found
        templates = self._state.templates_of(topic.namespace).values()
        template = choose_template(templates, topic.name, topic.kind)
        return template.set_by if template is not None else ""

    def recheck(self, user: str, namespace: str | None = None) -> None:
        """The permissions of a user in a namespace have changed; without one, in all."""
        named = self._named.pop(user, set())
        for topic in named:
            if not topic.deleted and namespace in (None, topic.namespace):
                self.judge(topic)
            elif not topic.deleted:
                self._named.setdefault(user, set()).add(topic)
        self._exchanges.recheck(user, namespace)

    def forget_user(self, user: str) -> None:
        """It is deleted, and has no rights any more."""
        self._exchanges.release_bindings(user)
        self.recheck(user)

    @property
    def disabled(self) -> int:
        """How many there are that do not hold."""
        topics = self._state.topics.values()
        dead = sum(each.dead_letter is not each.policy.dead_letter for each in topics)
        return dead + self._exchanges.disabled


def _everything(user: str, namespace: str, verb: str, name: str) -> bool:
    return True
