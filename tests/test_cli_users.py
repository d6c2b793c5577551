"""``braid users``, ``permissions`` and ``namespaces`` against a real node in its own process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from braidmq.security.accounts import LIMITS
from braidmq.testing.live import LiveNode, free_ports, live_node

ONLY_HTTP = {"amqp_port": 0, "mqtt_port": 0, "ws_port": 0}
Done = subprocess.CompletedProcess[str]


def braid(url: str, *arguments: str, stdin: str = "", **environment: str) -> Done:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BRAID_")}
    # A proxy for the web must not be asked for a node.
    proxied = {"http_proxy": "http://127.0.0.1:9", "COLUMNS": "200"}
    # Contexts of whoever runs the tests are none of ours.
    proxied["XDG_CONFIG_HOME"] = "/nonexistent"
    return subprocess.run(
        [sys.executable, "-m", "braidmq.cli", *arguments],
        env={**clean, **proxied, "BRAID_URL": url, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )


def done(result: Done) -> str:
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def listed(url: str, what: str, *flags: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(done(braid(url, what, "list", "--json", *flags)))
    return rows


def complaint(result: Done, code: int) -> str:
    assert (result.returncode, result.stdout) == (code, ""), result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("braid: error: ")
    return line


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with live_node(tmp_path_factory.mktemp("data"), **ONLY_HTTP) as running:
        yield running


def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    with live_node(tmp_path, **ONLY_HTTP) as first:
        url = first.http_url
        done(braid(url, "users", "add", "ann", "secret", "--tag", "administrator"))
        done(braid(url, "namespaces", "add", "sh/op", "--max-queues", "7"))
        done(braid(url, "permissions", "set", "ann", "^a", "", "[b-d]$", "-n", "sh/op"))
        done(
            braid(url, "users", "delete", "--yes", "guest", "--user", "ann", "--password", "secret")
        )
        first.kill()
    with live_node(tmp_path, **ONLY_HTTP) as second:
        url = second.http_url
        ann = ("--user", "ann", "--password", "secret")
        assert listed(url, "users", *ann) == [{"name": "ann", "tags": ["administrator"]}]
        assert listed(url, "permissions", *ann) == [
            {"namespace": "sh/op", "user": "ann", "configure": "^a", "write": "", "read": "[b-d]$"}
        ]
        assert listed(url, "namespaces", *ann) == [
            {"name": "/", **dict.fromkeys(LIMITS), "storage": "disk"},
            {"name": "sh/op", **dict.fromkeys(LIMITS), "max_queues": 7, "storage": "disk"},
        ]
        complaint(braid(url, "users", "list"), 4)
        assert second.stop() == 0


def test_a_users_life(node: LiveNode) -> None:
    url = node.http_url
    assert done(braid(url, "users", "add", "bob", stdin="first\n")) == ""
    done(braid(url, "users", "tags", "bob", "monitoring", "administrator"))
    done(braid(url, "users", "password", "bob", stdin="second\n"))
    table = done(braid(url, "users", "list", BRAID_USER="bob", BRAID_PASSWORD="second"))
    assert [line.split() for line in table.splitlines()] == [
        ["name", "tags"],
        ["bob", "administrator,", "monitoring"],
        ["guest", "administrator"],
    ]
    # Not guest, and no password anywhere: it is asked for.
    assert done(braid(url, "users", "list", "--user", "bob", stdin="second\n")) == table
    complaint(braid(url, "users", "list", "--user", "bob", stdin="first\n"), 4)
    done(braid(url, "users", "tags", "bob"))
    line = complaint(braid(url, "users", "list", "--user", "bob", stdin="second\n"), 4)
    assert line == "braid: error: user 'bob' is not an administrator"
    done(braid(url, "users", "delete", "--yes", "bob"))


def test_permissions_and_namespaces(node: LiveNode) -> None:
    url = node.http_url
    done(braid(url, "namespaces", "add", "shop", "--max-connections", "5"))
    done(braid(url, "namespaces", "limits", "shop", "--max-connections", "-1"))
    done(braid(url, "permissions", "set", "guest", "", "^[a-z]+$", ".*", "-n", "shop"))
    table = done(braid(url, "permissions", "list", "--namespace", "shop")).splitlines()
    assert table[1].split() == ["shop", "guest", "^[a-z]+$", ".*"]
    assert ["shop", "disk", *("-" * 4)] in [
        row.split() for row in done(braid(url, "namespaces", "list")).splitlines()
    ]
    done(braid(url, "permissions", "clear", "--yes", "guest", "-n", "shop"))
    assert listed(url, "permissions", "-n", "shop") == []
    done(braid(url, "namespaces", "delete", "--yes", "shop"))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("users", "add", "guest", "x"), 6, "user 'guest' already exists"),
        (("users", "delete", "--yes", "nobody"), 5, "there is no user 'nobody'"),
        (("users", "password", "nobody", "x"), 5, "there is no user 'nobody'"),
        (("users", "add", "a:b", "x"), 1, "colon"),
        (("users", "add", "ann"), 2, "New password of ann: missing"),
        (("users", "list", "--password", "wrong"), 4, "the user name or the password is wrong"),
        (("permissions", "set", "guest", "(", "", ""), 1, "is not a pattern"),
        (("permissions", "clear", "--yes", "guest", "-n", "no"), 5, "has no permission"),
        (("namespaces", "delete", "--yes", "/"), 6, "can't be deleted"),
        (("namespaces", "limits", "no", "--max-queues", "1"), 5, "there is no namespace 'no'"),
        (("users", "list", "--url", "ftp://x"), 2, "ftp://x is not the URL of a node"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    node: LiveNode, arguments: tuple[str, ...], code: int, says: str
) -> None:
    assert says in complaint(braid(node.http_url, *arguments), code)


def test_where_no_node_is() -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    line = complaint(braid(url, "users", "list"), 2)
    assert f"no node answers at {url}: " in line
    assert "braid serve" in line


def test_a_root_namespace_goes_through_a_real_server_encoded(node: LiveNode) -> None:
    url = f"{node.http_url}/v1/permissions/%2F/guest"
    assert httpx.get(url, auth=("guest", "guest")).json()["namespace"] == "/"


def test_dev_warns_and_lets_anyone_in(tmp_path: Path) -> None:
    with live_node(tmp_path, dev=True, **ONLY_HTTP) as node:
        (warning,) = [line for line in node.lines if line.startswith("WARNING")]
        assert "--dev" in warning
        done(braid(node.http_url, "users", "list", "--user", "x", "--password", "y"))
        done(braid(node.http_url, "users", "password", "guest", "mended"))
        assert node.stop() == 0
    with live_node(tmp_path, **ONLY_HTTP) as node:
        assert not [line for line in node.lines if line.startswith("WARNING")]
        complaint(braid(node.http_url, "users", "list", "--user", "x", "--password", "y"), 4)
        done(braid(node.http_url, "users", "list", "--password", "mended"))
