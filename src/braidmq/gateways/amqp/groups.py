"""Groups over AMQP: a consumer that names one shares a topic with the group's other consumers.

x-group          the group's name, which is its subscription's
x-group-offset   where a new group begins: earliest (default), latest, an offset, a time, or @
                 and milliseconds since the epoch
x-group-mode     who gets what in a new group: shared, key-ordered, single-active, exclusive,
                 assigned; unless it says, shared, or single-active where the topic's ordering is
                 strict
x-group-member   assigned: the id of a member that keeps its partitions while its connection is
                 lost, for a session's time; without one it leaves the group with its connection

A consumer in mode assigned is a member of the group, as over HTTP: partitions are shared out. Which
it has is told to whoever consumes from ``NOTICES`` on its channel, without acknowledgements.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from braidmq.engine.engine import Engine
from braidmq.engine.errors import WrongMode
from braidmq.engine.groups import Membership
from braidmq.engine.reading import Position
from braidmq.engine.topics import (
    Consumer,
    Credit,
    Mode,
    Receiver,
    Subscription,
    Topic,
    mode_by_ordering,
)
from braidmq.gateways.amqp.errors import precondition_failed
from braidmq.gateways.amqp.queues import SUBSCRIPTION
from braidmq.wire.amqp.properties import Properties, encode_properties

NOTICES = "amq.braidmq.group-notices"

MEMBER_BYTES_MAX = 255
"""As over HTTP."""


class Member(NamedTuple):
    """What an AMQP consumer is in a group whose partitions are assigned."""

    namespace: str
    group: str
    member_id: str


OF_GROUPS = ("x-group-offset", "x-group-mode", "x-group-member")


def is_assigned(topic: Topic, arguments: Mapping[str, Any]) -> bool:
    """Whether a consumer with these arguments becomes a member of its group."""
    if "x-group" not in arguments:
        for name in OF_GROUPS:
            if name in arguments:  # it would get something else than it asked for
                raise precondition_failed(f"invalid arg {name!r}: 'x-group' names no group")
        return False
    found = topic.subscriptions.get(_name(arguments))
    wanted = _mode(arguments)
    if found is not None and wanted in (None, found.mode):
        return found.mode is Mode.ASSIGNED
    return wanted is Mode.ASSIGNED


def join(
    engine: Engine,
    topic: Topic,
    arguments: Mapping[str, Any],
    now_ms: int,
    *,
    owner: str,
    receiver: Receiver,
    credits: Sequence[Credit],
    auto_ack: bool,
) -> tuple[Consumer, Member]:
    """Become a member of the group a consumer names; it is made if there is none."""
    member_id = arguments.get("x-group-member")
    if member_id is not None and not (
        isinstance(member_id, str) and 0 < len(member_id.encode()) <= MEMBER_BYTES_MAX
    ):
        raise precondition_failed(f"invalid arg 'x-group-member': {member_id!r}")
    if arguments.get("x-priority"):
        raise precondition_failed("invalid arg 'x-priority': members have partitions of their own")
    name = _name(arguments)
    answer = engine.groups.join(
        topic.namespace,
        name,
        member_id,
        "amqp",
        [topic.name],
        now_ms=now_ms,
        owner=owner,
        start=_start(arguments.get("x-group-offset", "earliest")),
        receiver=receiver,
        credits=credits,
        auto_ack=auto_ack,
    )
    member = Member(topic.namespace, name, answer.membership.member_id)
    return engine.groups.consumer(*member, topic.name), member


def notice(tag: str, topic: str, group: str, membership: Membership) -> bytes:
    """What a member has, as those who consume notices are told."""
    facts = {
        "consumer_tag": tag,
        "group": group,
        "topic": topic,
        "member_id": membership.member_id,
        "assigned": membership.assigned.get(topic, ()),
        "revoking": membership.revoking.get(topic, ()),
    }
    return json.dumps(facts).encode()


NOTICE_PROPERTIES = encode_properties(
    Properties(content_type="application/json", type="group-assignment")
)


def _name(arguments: Mapping[str, Any]) -> str:
    name = arguments["x-group"]
    if not isinstance(name, str) or not name or name.split(".")[0] == SUBSCRIPTION:
        raise precondition_failed(f"invalid arg 'x-group': {name!r} is not a valid group name")
    return name


def group_subscription(
    engine: Engine, topic: Topic, arguments: Mapping[str, Any], now_ms: int
) -> Subscription:
    """The subscription of the group a consumer names, made if there is none."""
    name = _name(arguments)
    if "x-group-member" in arguments:
        raise precondition_failed(
            f"invalid arg 'x-group-member': the partitions of group {name!r} are not assigned"
        )
    found = topic.subscriptions.get(name)
    wanted = _mode(arguments)
    if found is None:
        return engine.subscriptions.subscribe(
            topic,
            name,
            now_ms=now_ms,
            mode=wanted or mode_by_ordering(topic.policy.ordering),
            start=_start(arguments.get("x-group-offset", "earliest")),
        )
    if wanted not in (None, found.mode):
        raise WrongMode(f"group {name!r} of topic {topic.name!r} is {found.mode}")
    return found


def _mode(arguments: Mapping[str, Any]) -> Mode | None:
    given = arguments.get("x-group-mode")
    if given is None:
        return None
    if given not in set(Mode):
        raise precondition_failed(f"invalid arg 'x-group-mode': {given!r}")
    return Mode(given)


def _start(given: object) -> Position:
    if isinstance(given, datetime):
        return f"@{int(given.timestamp() * 1000)}"
    if isinstance(given, str | int) and not isinstance(given, bool):
        return given
    raise precondition_failed(f"invalid arg 'x-group-offset': {given!r}")
