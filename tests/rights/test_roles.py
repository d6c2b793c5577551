"""What the tags let a user see and do, on a live node: none, management, monitoring,
administrator. Each sees what the one before does, and no tag gives a right to a message."""

from typing import Any

import httpx
import pika
import pytest
from rights_users import PASSWORD, Rights

ROLES = ("none", "management", "monitoring", "administrator")

LEAST = {
    # What is asked → the least role that gets it, in a namespace that it enters, and in another.
    "/v1/namespaces": ("management", "management"),
    "/v1/namespaces/{namespace}": ("management", "monitoring"),
    "/v1/policies/{namespace}": ("management", ""),
    "/v1/policies/{namespace}/p": ("management", ""),
    "/v1/overview": ("monitoring", "monitoring"),
    "/v1/listeners": ("monitoring", "monitoring"),
    "/v1/usage": ("monitoring", "monitoring"),
    "/v1/users": ("administrator", "administrator"),
    "/v1/permissions": ("administrator", "administrator"),
    "/v1/policies": ("administrator", "administrator"),
    "/v1/log-level": ("administrator", "administrator"),
    "/v1/audit": ("administrator", "administrator"),
    "/v1/topics?namespace={namespace}": ("none", ""),
    "/v1/connections?namespace={namespace}": ("none", ""),
}


@pytest.fixture(scope="module")
def users(rights: Rights) -> dict[str, str]:
    """By role; each may enter the namespace `entered`, and has no pattern there."""
    nothing = {"configure": "", "write": "", "read": ""}
    policy = {"pattern": "^z", "definition": {"max-length": 5}}
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    for namespace in ("entered", "other"):
        rights.ok("PUT", f"/v1/namespaces/{namespace}", {})
        rights.ok("PUT", f"/v1/permissions/{namespace}/guest", every)
        rights.ok("PUT", f"/v1/policies/{namespace}/p", policy)
    made = {}
    for role in ROLES:
        made[role] = f"of-{role}"
        tags = [] if role == "none" else [role]
        rights.ok("PUT", f"/v1/users/{made[role]}", {"password": PASSWORD, "tags": tags})
        rights.ok("PUT", f"/v1/permissions/entered/{made[role]}", nothing)
    return made


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("path", LEAST)
def test_what_a_role_may_ask(rights: Rights, users: dict[str, str], role: str, path: str) -> None:
    for namespace, least in zip(("entered", "other"), LEAST[path], strict=True):
        answer = rights.as_user(users[role], "GET", path.format(namespace=namespace))
        allowed = bool(least) and ROLES.index(role) >= ROLES.index(least)
        assert answer.status_code == (200 if allowed else 403), answer.text


def test_the_namespaces_that_are_listed(rights: Rights, users: dict[str, str]) -> None:
    def names(role: str) -> set[str]:
        found = rights.as_user(users[role], "GET", "/v1/namespaces").json()
        return {each["name"] for each in found}

    assert names("management") == {"entered"}
    assert names("monitoring") == names("administrator") >= {"/", "entered", "other"}


def test_whose_connections_are_listed(rights: Rights, users: dict[str, str]) -> None:
    def seen(role: str) -> set[str]:
        path = "/v1/connections?namespace=entered"
        return {each["user"] for each in rights.as_user(users[role], "GET", path).json()}

    def connected(user: str, password: str) -> pika.BlockingConnection:
        port = rights.node.ports["amqp_port"]
        credentials = pika.PlainCredentials(user, password)
        where = pika.ConnectionParameters("127.0.0.1", port, "entered", credentials)
        return pika.BlockingConnection(where)

    with connected(users["none"], PASSWORD), connected("guest", "guest"):
        assert seen("none") == {users["none"]}
        assert seen("management") == set()
        assert seen("monitoring") == seen("administrator") == {users["none"], "guest"}


CHANGES: list[tuple[str, str, Any]] = [
    ("PUT", "/v1/users/x", {"password": "x"}),
    ("PUT", "/v1/users/of-none/tags", {"tags": ["administrator"]}),
    ("PUT", "/v1/permissions/entered/of-none", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("PUT", "/v1/namespaces/mine", {}),
    ("PUT", "/v1/policies/entered/mine", {"pattern": "^z", "definition": {"max-length": 1}}),
    ("DELETE", "/v1/policies/entered/p", None),
    ("PUT", "/v1/log-level", {"level": "info"}),
    ("POST", "/v1/config/reload", None),
]


@pytest.mark.parametrize("role", ROLES[:-1])
@pytest.mark.parametrize("change", CHANGES, ids=lambda each: f"{each[0]} {each[1]}")
def test_only_administrators_change_it(
    rights: Rights, users: dict[str, str], role: str, change: tuple[str, str, Any]
) -> None:
    method, path, body = change
    assert rights.as_user(users[role], method, path, body).status_code == 403


@pytest.mark.parametrize("role", ROLES)
def test_no_role_is_a_right_to_a_message(rights: Rights, users: dict[str, str], role: str) -> None:
    rights.ok("PUT", "/v1/topics/secret?namespace=entered", {})
    asked: list[httpx.Response] = [
        rights.as_user(users[role], method, f"/v1/topics/secret{rest}?namespace=entered", body)
        for method, rest, body in (
            ("GET", "/partitions/0/messages", None),
            ("POST", "/messages", {"value": "x"}),
            ("DELETE", "", None),
            ("POST", "/purge", None),
        )
    ]
    assert {each.status_code for each in asked} == {403}
