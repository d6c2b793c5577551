"""The API of a live node, for tests."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import quote

import httpx

from braidmq.testing.live import LiveNode

GUEST = ("guest", "guest")


@dataclass
class Api:
    """A live node's API, with names that no other test uses."""

    node: LiveNode
    client: httpx.Client
    _numbers: Iterator[int] = field(default_factory=count)

    def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        response = self.call(method, path, body, **more)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def pages(self, path: str, **query: Any) -> Iterator[Any]:
        """The bodies of all pages of a list."""
        cursor = ""
        while True:
            response = self.call("GET", path, params={**query, "cursor": cursor})
            assert response.is_success, response.text
            yield response.json()
            cursor = response.headers.get("braid-next", "")
            if not cursor:
                return

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        if body is not None:
            more["json"] = body
        return self.client.request(method, path, **more)

    def fails(self, status: int, code: str, method: str, path: str, body: Any = None) -> None:
        response = self.call(method, path, body)
        assert (response.status_code, response.json()["code"]) == (status, code), response.text
        assert response.headers["content-type"] == "application/problem+json"

    def topic(self, **settings: Any) -> str:
        name = f"topic-{next(self._numbers)}"
        self.ok("PUT", f"/v1/topics/{name}", {"settings": settings})
        return name

    def publish(self, topic: str, *messages: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self.ok(
            "POST", f"/v1/topics/{topic}/messages/batch", {"messages": messages}
        )
        return answer

    def receive(self, topic: str, subscription: str, **body: Any) -> list[dict[str, Any]]:
        path = f"/v1/topics/{topic}/subscriptions/{subscription}/receive"
        messages: list[dict[str, Any]] = self.ok("POST", path, {"wait_ms": 0, **body})["messages"]
        return messages


def encoded(name: str) -> str:
    return quote(name, safe="")
