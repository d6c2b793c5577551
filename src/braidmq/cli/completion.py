"""Names that a shell completes: asked of the node, in no time, silent if it can't answer."""

from collections.abc import Callable

import typer

TIMEOUT_S = 0.7
"""Whoever pressed a key is waiting, and would rather get nothing."""

NAMES_MAX = 500
"""More than anybody reads; who types on gets the rest."""

LISTS: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "topics": (("topics",), "name", True),
    "queues": (("topics",), "name", True),
    "groups": (("subscriptions",), "name", True),
    "exchanges": (("exchanges",), "name", True),
    "templates": (("templates",), "name", True),
    "schedules": (("schedules",), "name", True),
    "transactions": (("transactions",), "name", True),
    "leases": (("leases",), "name", True),
    "pipelines": (("pipelines",), "name", True),
    "connections": (("connections",), "id", True),
    "sessions": (("mqtt", "sessions"), "client", True),
    "users": (("users",), "name", False),
    "namespaces": (("namespaces",), "name", False),
    "policies": (("policies",), "name", False),
    "tokens": (("tokens",), "id", False),
}
"""What → where the node lists it, the field with the name, and whether it is one of a namespace."""


def complete(what: str) -> Callable[[typer.Context, str], list[str]]:
    def names(context: typer.Context, incomplete: str) -> list[str]:
        try:
            return _names(what, context, incomplete)
        except Exception:
            # Whatever it is, the line that somebody is typing is no place to say it.
            return []

    return names


def _names(what: str, context: typer.Context, incomplete: str) -> list[str]:
    from braidmq.cli.api import GUEST
    from braidmq.cli.node import resolve_options

    options = ("context", "url", "user", "password", "token", "namespace")
    node = resolve_options(context, {name: context.params.get(name) for name in options})
    if node.token is None and node.password is None and node.user != GUEST:
        return []  # it would have to be asked for
    path, field, in_namespace = LISTS[what]
    api = (node.api() if in_namespace else node.global_api()).within(TIMEOUT_S)
    query = {"prefix": incomplete} if path == ("topics",) else {}
    found = {each[field] for each in api.every(*path, **query)}
    fit = sorted(each for each in found if each.startswith(incomplete) and each.isprintable())
    return fit[:NAMES_MAX]
