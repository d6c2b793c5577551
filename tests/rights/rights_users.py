"""Users of a live node with patterns to choose, over all protocols."""

from itertools import count
from typing import Any

import httpx
from raw_client import RawClient

from braidmq.testing.live import LiveNode

PASSWORD = "secret"
SERIAL = count(1)
SECRETS: dict[str, str] = {}
"""Of users who log in with a token."""


def secret_of(user: str) -> str:
    return SECRETS.get(user, PASSWORD)


def glob_of(pattern: str) -> str:
    """A pattern of an account as a scope says it; a dot is any character to both of them."""
    head, tail = "" if pattern[0] == "^" else "*", "" if pattern[-1] == "$" else "*"
    return head + pattern.strip("^$").replace(".", "*").replace("/", "%2F") + tail


class Rights:
    """A node as its administrator has it."""

    def __init__(self, node: LiveNode) -> None:
        self.node = node
        self.http = httpx.Client(base_url=node.http_url, auth=("guest", "guest"), timeout=60)

    def __enter__(self) -> "Rights":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        response = self.http.request(method, path, json=body)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def user(self, configure: str = "", write: str = "", read: str = "") -> str:
        return self.user_named(f"user-{next(SERIAL)}", configure, write, read)

    def user_named(self, name: str, configure: str = "", write: str = "", read: str = "") -> str:
        self.ok("PUT", f"/v1/users/{name}", {"password": PASSWORD})
        self.grant(name, configure, write, read)
        return name

    def holder(self, configure: str = "", write: str = "", read: str = "") -> str:
        """A user who may do everything, and logs in with a token that may do no more than this."""
        name = self.user_named(f"user-{next(SERIAL)}", ".*", ".*", ".*")
        scopes = ["read:%2F/nothing-at-all"]  # who has no scope for a namespace may not enter it
        for verb, pattern in (("configure", configure), ("write", write), ("read", read)):
            scopes += [f"{verb}:%2F/{glob_of(each)}" for each in pattern.split("|") if each]
        SECRETS[name] = self.ok("POST", "/v1/tokens", {"user": name, "scopes": scopes})["token"]
        return name

    def grant(self, user: str, configure: str = "", write: str = "", read: str = "") -> None:
        patterns = {"configure": configure, "write": write, "read": read}
        self.ok("PUT", f"/v1/permissions/%2F/{user}", patterns)

    def as_user(self, user: str, method: str, path: str, body: Any = None) -> httpx.Response:
        return self.http.request(method, path, json=body, auth=(user, secret_of(user)))

    def amqp(self, user: str = "", **more: Any) -> RawClient:
        """With channel 1 open."""
        client = RawClient(self.node)
        if user:
            client.login = f"\0{user}\0{secret_of(user)}".encode()
        return client.open(1, **more)

    def messages(self, topic: str) -> list[str]:
        path = f"/v1/topics/{topic}/partitions/0/messages"
        response = self.http.get(path)
        return (
            [each["value"] for each in response.json()["messages"]] if response.is_success else []
        )

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        (line,) = [each for each in lines if each.startswith(name)]
        return float(line.rpartition(" ")[2])
