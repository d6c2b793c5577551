"""AMQP policies: templates of the engine in RabbitMQ's words, checked as RabbitMQ 3.10 checks them.

What has no meaning here is checked, kept and shown, and nothing else: mirroring, where leaders are,
and how large a stream's segments are, which is the node's setting.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

import msgspec

from braidmq.engine.engine import Engine
from braidmq.engine.errors import UnknownTemplate
from braidmq.engine.policy import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    IllegalPolicy,
    Template,
    TemplateKind,
)
from braidmq.wire.amqp.constants import SHORT_STRING_BYTES_MAX

ApplyTo = Literal["all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams"]
Definition = Mapping[str, Any]

QUEUES: tuple[TemplateKind, ...] = ("classic", "quorum", "stream")
KINDS: dict[ApplyTo, tuple[TemplateKind, ...]] = {
    "all": (*QUEUES, "exchange"),
    "queues": QUEUES,
    "exchanges": ("exchange",),
    "classic_queues": ("classic",),
    "quorum_queues": ("quorum",),
    "streams": ("stream",),
}
OVERFLOWS = {
    "drop-head": "drop-head",
    "reject-publish": "reject",
    "reject-publish-dlx": "dead-letter",
}
"""RabbitMQ's word → ours."""

LEADER_LOCATORS = ("client-local", "balanced", "random", "least-leaders")
DEAD_LETTER_STRATEGIES = ("at-most-once", "at-least-once")

NUMBER_MAX = (1 << 63) - 1
TTL_MS_MAX = 1 << 53
"""Longer is for ever; the engine's times are this wide."""


class Policy(msgspec.Struct, frozen=True):
    """As it was given, and as it is shown."""

    namespace: str
    name: str
    pattern: str
    definition: dict[str, Any]
    priority: int = 0
    apply_to: ApplyTo = "all"


def setting_policy(
    engine: Engine, policy: Policy, *, now_ms: int, set_by: str = ""
) -> Iterator[None]:
    """Make or replace a policy: queues and exchanges follow in steps, so that others are served
    between them. Raises IllegalPolicy."""
    check(policy)
    template = Template(
        policy.name,
        policy.pattern,
        settings_of(policy.definition),
        policy.priority,
        tuple(kinds_of(policy)),
        policy.definition.get("alternate-exchange"),
        {"amqp": {"definition": policy.definition, "apply_to": policy.apply_to}},
        set_by,
    )
    yield from engine.templates.putting(policy.namespace, template, now_ms=now_ms)


def deleting_policy(engine: Engine, namespace: str, name: str, *, now_ms: int) -> Iterator[None]:
    find_policy(engine, namespace, name)
    yield from engine.templates.deleting(namespace, name, now_ms=now_ms)


def find_policy(engine: Engine, namespace: str, name: str) -> Policy:
    for policy in list_policies(engine, namespace):
        if policy.name == name:
            return policy
    raise UnknownTemplate(f"there is no policy {name!r} in namespace {namespace!r}")


def list_policies(engine: Engine, namespace: str | None = None) -> list[Policy]:
    return [
        _shown(where, template)
        for where, template in engine.templates.of(namespace)
        if "amqp" in template.attributes
    ]


def _shown(namespace: str, template: Template) -> Policy:
    return Policy(
        namespace,
        template.name,
        template.pattern,
        priority=template.priority,
        **template.attributes["amqp"],
    )


# --- what it means ---


def settings_of(definition: Definition) -> dict[str, Any]:
    """Topic settings for the keys of a definition that queues have."""
    settings: dict[str, Any] = {}
    for key, value in definition.items():
        if key in MEANINGS:
            section, name, meaning = MEANINGS[key]
            target = settings.setdefault(section, {}) if section else settings
            target[name] = meaning(value)
    return settings


MEANINGS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    # 0 is no TTL to the engine; a ready consumer still gets the message in time.
    "message-ttl": ("", "ttl_ms", lambda value: min(max(value, 1), TTL_MS_MAX)),
    "expires": ("", "idle_expires_ms", lambda value: min(value, TTL_MS_MAX)),
    "max-length": ("", "max_messages", int),
    "max-length-bytes": ("", "max_bytes", int),
    "overflow": ("", "overflow", OVERFLOWS.__getitem__),
    "consumer-prefetch-max": ("", "consumer_prefetch_max", int),
    "dead-letter-exchange": ("dead_letter", "exchange", str),
    "dead-letter-routing-key": ("dead_letter", "routing_key", str),
    "dead-letter-alert-webhook": ("dead_letter", "alert_webhook", str),
    "delivery-limit": ("retry", "attempts", lambda value: value + 1),
    "keep-acknowledged-ms": ("retention", "keep_acked_ms", lambda value: min(value, TTL_MS_MAX)),
    "keep-acknowledged-bytes": ("retention", "keep_acked_bytes", int),
    "max-age": ("retention", "time_ms", lambda value: age_ms(value)),
}
"""Key → section and name of the topic's setting, and its value."""

MIRRORING = (
    "ha-mode",
    "ha-params",
    "ha-sync-mode",
    "ha-sync-batch-size",
    "ha-promote-on-shutdown",
    "ha-promote-on-failure",
)
_STREAM_ONLY = ("max-age", "stream-max-segment-size-bytes", "initial-cluster-size")
UNSUPPORTED: dict[str, tuple[str, ...]] = {
    "classic": (*_STREAM_ONLY, "queue-leader-locator", "delivery-limit", "dead-letter-strategy"),
    "quorum": (*_STREAM_ONLY, *MIRRORING, "queue-mode", "queue-master-locator"),
    "stream": (
        *MIRRORING,
        "expires",
        "message-ttl",
        "dead-letter-exchange",
        "dead-letter-routing-key",
        "dead-letter-alert-webhook",
        "dead-letter-strategy",
        "max-length",
        "keep-acknowledged-ms",
        "keep-acknowledged-bytes",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "overflow",
        "queue-mode",
        "delivery-limit",
        "queue-master-locator",
    ),
    "exchange": (),
}
"""A policy with one of these keys does not apply to queues of the kind, whatever else it says."""


def kinds_of(policy: Policy) -> list[TemplateKind]:
    keys = policy.definition.keys()
    return [kind for kind in KINDS[policy.apply_to] if not keys & set(UNSUPPORTED[kind])]


# --- what is right ---


def check(policy: Policy) -> None:
    definition = policy.definition
    if policy.apply_to not in get_args(ApplyTo):
        raise _illegal(policy, f"apply-to {policy.apply_to!r} is not one of {', '.join(KINDS)}")
    if not definition:
        raise _illegal(policy, "its definition is empty")
    unknown = sorted(definition.keys() - CHECKS.keys())
    if unknown:
        raise _illegal(policy, f"{_listed(unknown)} not recognised as policy settings")
    for key, value in definition.items():
        if not CHECKS[key](value):
            raise _illegal(policy, f"{value!r} is not a valid {key}")
    _check_mirroring(policy)


def _check_mirroring(policy: Policy) -> None:
    definition = policy.definition
    mode, parameters = definition.get("ha-mode"), definition.get("ha-params")
    if mode is None:
        if definition.keys() & set(MIRRORING):
            raise _illegal(policy, "other ha- settings need ha-mode")
    elif mode == "all":
        if parameters is not None:
            raise _illegal(policy, "ha-mode all takes no ha-params")
    elif mode == "exactly":
        if not _is_number(1)(parameters):
            raise _illegal(policy, "ha-mode exactly takes a number as ha-params")
    elif not (parameters and _is_texts(parameters)):
        raise _illegal(policy, "ha-mode nodes takes a list of nodes as ha-params")


def _illegal(policy: Policy, reason: str) -> IllegalPolicy:
    return IllegalPolicy(f"policy {policy.name}: {reason}")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


Check = Callable[[Any], bool]


def _is_number(least: int) -> Check:
    def check(value: Any) -> bool:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and least <= value <= NUMBER_MAX

    return check


def _one_of(*known: object) -> Check:
    return lambda value: not isinstance(value, bool | list | dict) and value in known


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value.encode()) <= SHORT_STRING_BYTES_MAX


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


AGE_UNITS_MS = {
    "Y": 365 * DAY_MS,
    "M": 30 * DAY_MS,
    "D": DAY_MS,
    "h": HOUR_MS,
    "m": MINUTE_MS,
    "s": SECOND_MS,
}


def age_ms(text: str) -> int | None:
    """An age as RabbitMQ writes it, ``12h``; None for what is none."""
    found = re.fullmatch(r"([0-9]+)([YMDhms])", text)
    if found is None:
        return None
    # 0 is no limit to the engine: what is older than nothing goes at once.
    return min(max(int(found[1]) * AGE_UNITS_MS[found[2]], 1), TTL_MS_MAX)


def _is_age(value: Any) -> bool:
    return isinstance(value, str) and age_ms(value) is not None


CHECKS: dict[str, Check] = {
    "message-ttl": _is_number(0),
    "expires": _is_number(1),
    "max-length": _is_number(0),
    "max-length-bytes": _is_number(0),
    "keep-acknowledged-ms": _is_number(0),
    "keep-acknowledged-bytes": _is_number(0),
    "max-in-memory-length": _is_number(0),
    "max-in-memory-bytes": _is_number(0),
    "overflow": _one_of(*OVERFLOWS),
    "consumer-prefetch-max": _is_number(1),
    "dead-letter-exchange": _is_name,
    "dead-letter-routing-key": _is_name,
    "dead-letter-alert-webhook": lambda value: isinstance(value, str),
    "dead-letter-strategy": _one_of(*DEAD_LETTER_STRATEGIES),
    "delivery-limit": _is_number(0),
    "alternate-exchange": _is_name,
    "queue-mode": _one_of("default", "lazy"),
    "queue-version": _one_of(1, 2),
    "queue-master-locator": _one_of("min-masters", "client-local", "random"),
    "queue-leader-locator": _one_of(*LEADER_LOCATORS),
    "initial-cluster-size": _is_number(0),
    "max-age": _is_age,
    "stream-max-segment-size-bytes": _is_number(0),
    "ha-mode": _one_of("all", "exactly", "nodes"),
    "ha-params": lambda value: _is_number(1)(value) or _is_texts(value),
    "ha-sync-mode": _one_of("manual", "automatic"),
    "ha-sync-batch-size": _is_number(1),
    "ha-promote-on-shutdown": _one_of("always", "when-synced"),
    "ha-promote-on-failure": _one_of("always", "when-synced"),
}
