"""What an administrator does to a broker while clients look: policies, users, permissions."""

import json
import shlex
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from typing import Any, Protocol
from urllib.parse import quote

VHOST = "/"
ANSWER_S_MAX = 60


class Operator(Protocol):
    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        priority: int = 0,
        apply_to: str = "all",
    ) -> bool:
        """Whether the broker took it."""

    def delete_policy(self, name: str) -> None: ...

    def add_user(self, name: str, password: str, configure: str, write: str, read: str) -> None: ...

    def delete_user(self, name: str) -> None: ...


class RabbitmqCtl:
    """A command that takes the arguments of rabbitmqctl."""

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)

    def _run(self, *arguments: str) -> bool:
        done = subprocess.run(
            [*self._command, "-q", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S_MAX,
            check=False,
        )
        return done.returncode == 0

    def _insist(self, *arguments: str) -> None:
        assert self._run(*arguments), arguments

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        priority: int = 0,
        apply_to: str = "all",
    ) -> bool:
        options = ("--priority", str(priority), "--apply-to", apply_to)
        return self._run("set_policy", *options, name, pattern, json.dumps(definition))

    def delete_policy(self, name: str) -> None:
        self._insist("clear_policy", name)

    def add_user(self, name: str, password: str, configure: str, write: str, read: str) -> None:
        self._insist("add_user", name, password)
        self._insist("set_permissions", name, configure, write, read)

    def delete_user(self, name: str) -> None:
        self._insist("delete_user", name)


class BraidHttp:
    def __init__(self, url: str) -> None:
        self._url = url

    def _call(self, method: str, *path: str, body: dict[str, Any] | None = None) -> int:
        request = urllib.request.Request(
            "/".join([self._url, "v1", *(quote(part, safe="") for part in path)]),
            None if body is None else json.dumps(body).encode(),
            {"Authorization": "Basic " + b64encode(b"guest:guest").decode()},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def _insist(self, method: str, *path: str, body: dict[str, Any] | None = None) -> None:
        status = self._call(method, *path, body=body)
        assert status < 300, (status, method, path)

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        priority: int = 0,
        apply_to: str = "all",
    ) -> bool:
        body = {
            "pattern": pattern,
            "definition": definition,
            "priority": priority,
            "apply_to": apply_to,
        }
        return self._call("PUT", "policies", VHOST, name, body=body) < 300

    def delete_policy(self, name: str) -> None:
        self._insist("DELETE", "policies", VHOST, name)

    def add_user(self, name: str, password: str, configure: str, write: str, read: str) -> None:
        self._insist("PUT", "users", name, body={"password": password})
        permission = {"configure": configure, "write": write, "read": read}
        self._insist("PUT", "permissions", VHOST, name, body=permission)

    def delete_user(self, name: str) -> None:
        self._insist("DELETE", "users", name)
