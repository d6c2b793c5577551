"""Groups over AMQP: a consumer that names one shares a topic with the group's other consumers.

x-group          the group's name, which is its subscription's
x-group-offset   where a new group begins: earliest (default), latest, an offset, a time, or @
                 and milliseconds since the epoch
x-group-mode     who gets what in a new group: shared (default), key-ordered, single-active,
                 exclusive
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from braidmq.engine.engine import Engine
from braidmq.engine.errors import WrongMode
from braidmq.engine.reading import Position
from braidmq.engine.topics import Mode, Subscription, Topic
from braidmq.gateways.amqp.errors import precondition_failed
from braidmq.gateways.amqp.queues import SUBSCRIPTION


def group_subscription(
    engine: Engine, topic: Topic, arguments: Mapping[str, Any], now_ms: int
) -> Subscription:
    """The subscription of the group a consumer names, made if there is none."""
    name = arguments["x-group"]
    if not isinstance(name, str) or not name or name.split(".")[0] == SUBSCRIPTION:
        raise precondition_failed(f"invalid arg 'x-group': {name!r} is not a valid group name")
    found = topic.subscriptions.get(name)
    wanted = _mode(arguments)
    if found is None:
        return engine.subscriptions.subscribe(
            topic,
            name,
            now_ms=now_ms,
            mode=wanted or Mode.SHARED,
            start=_start(arguments.get("x-group-offset", "earliest")),
        )
    if found.mode is Mode.ASSIGNED or wanted not in (None, found.mode):
        raise WrongMode(f"group {name!r} of topic {topic.name!r} is {found.mode}")
    return found


def _mode(arguments: Mapping[str, Any]) -> Mode | None:
    given = arguments.get("x-group-mode")
    if given is None:
        return None
    if given not in set(Mode) - {Mode.ASSIGNED}:
        raise precondition_failed(f"invalid arg 'x-group-mode': {given!r}")
    return Mode(given)


def _start(given: object) -> Position:
    if isinstance(given, datetime):
        return f"@{int(given.timestamp() * 1000)}"
    if isinstance(given, str | int) and not isinstance(given, bool):
        return given
    raise precondition_failed(f"invalid arg 'x-group-offset': {given!r}")
