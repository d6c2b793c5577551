"""``braid init``, and what a node does without it beyond this machine."""

import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import Cli, Outcome

import braidmq
from braidmq.testing.live import LiveNode, free_ports, live_node, starting_node

FILES = {
    "braid.toml",
    "tls/ca.pem",
    "tls/ca.key",
    "tls/node.pem",
    "tls/node.key",
}


class Shell:
    """``braid`` without a node."""

    def __init__(self, cli: type[Cli], patch: pytest.MonkeyPatch) -> None:
        self._cli = cli.__new__(cli)
        self._cli._patch = patch

    def run(self, *arguments: str) -> Outcome:
        return self._cli.run(*arguments)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    return Shell(Cli, monkeypatch)


def files_of(home: Path) -> set[str]:
    return {
        str(each.relative_to(home))
        for each in home.rglob("*")
        if each.is_file() and "data" not in each.relative_to(home).parts
    }


@contextmanager
def exposed(data_dir: Path, **flags: Any) -> Iterator[LiveNode]:
    with starting_node(data_dir, host="0.0.0.0", **flags) as node:
        node.wait_for_line("ready")
        yield node


def test_it_makes_all_that_a_node_needs(shell: Shell, tmp_path: Path) -> None:
    home = tmp_path / "braid"
    made = shell.run("init", str(home), "--listen", "0.0.0.0")
    assert made.code == 0, made.errors
    assert files_of(home) == FILES
    for name in FILES:
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600, name
    for directory in (home, home / "tls", home / "data"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    password = made.text.split("password ")[1].split()[0]
    assert len(password) >= 20
    assert not any(password in (home / name).read_text() for name in FILES)
    assert shell.run("config", "check", str(home / "braid.toml")).code == 0


def test_a_node_runs_with_it_over_tls_only(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("init", str(tmp_path), "--new-password", "geheim").code == 0
    amqps, https = free_ports(2)
    config = tmp_path / "braid.toml"
    config.write_text(
        config.read_text().replace(
            "[listeners]",
            f"[listeners]\namqps_port = {amqps}\nmqtts_port = 0"
            f"\nwss_port = 0\nhttps_port = {https}",
        )
    )
    with live_node(tmp_path / "data", config=config) as node:
        context = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.pem"))
        for host in ("localhost", "127.0.0.1"):
            answer = httpx.get(
                f"https://{host}:{https}/v1/users", verify=context, auth=("admin", "geheim")
            )
            assert answer.status_code == 200, answer.text
        assert [each["name"] for each in answer.json()] == ["admin"]
        guest = httpx.get(f"{node.http_url}/v1/topics", auth=("guest", "guest"))
        assert guest.status_code == 401
        ca = tmp_path / "tls" / "ca.pem"
        url = f"amqps://admin:geheim@localhost:{amqps}/?ca={ca}"
        with braidmq.connect_sync(url):
            pass
        assert node.stop() == 0


def test_nothing_is_written_over(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("init", str(tmp_path)).code == 0
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    again = shell.run("init", str(tmp_path))
    assert again.code == 6
    assert "is there already" in again.errors
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before
    elsewhere = shell.run("init", str(tmp_path / "other"), "--data-dir", str(tmp_path / "data"))
    assert elsewhere.code == 6
    assert "there is a user 'admin'" in elsewhere.errors
    assert not (tmp_path / "other" / "braid.toml").exists()


def test_with_force_it_is_and_the_data_stay(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("init", str(tmp_path), "--new-password", "old").code == 0
    with live_node(tmp_path / "data") as node:
        body: dict[str, object] = {}
        made = httpx.put(f"{node.http_url}/v1/topics/kept", json=body, auth=("admin", "old"))
        assert made.status_code == 201
        node.stop()
    before = (tmp_path / "tls/ca.pem").read_bytes()
    assert shell.run("init", str(tmp_path), "--new-password", "new", "--force").code == 0
    assert (tmp_path / "tls/ca.pem").read_bytes() != before
    with live_node(tmp_path / "data") as node:
        path = f"{node.http_url}/v1/topics/kept"
        assert httpx.get(path, auth=("admin", "old")).status_code == 401
        assert httpx.get(path, auth=("admin", "new")).status_code == 200


def test_not_while_a_node_runs(shell: Shell, tmp_path: Path) -> None:
    with live_node(tmp_path / "data"):
        refused = shell.run("init", str(tmp_path))
    assert refused.code == 2
    assert files_of(tmp_path) == set()


def test_a_name_that_is_none_is_refused(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("init", str(tmp_path), "--user", "a:b").code == 1
    assert files_of(tmp_path) == set()


# --- beyond this machine ---


def test_a_first_start_beyond_this_machine_has_no_default_user(
    shell: Shell, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    with exposed(data_dir) as node:
        (said,) = [each for each in node.lines if "nobody can log in" in each]
        assert f"braid init --data-dir {data_dir}" in said
        assert httpx.get(f"{node.http_url}/v1/topics", auth=("guest", "guest")).status_code == 401
        address = f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}"
        with pytest.raises(braidmq.BraidError), braidmq.connect_sync(address):
            pass
        node.stop()
    # As it says.
    made = shell.run(
        "init", str(tmp_path / "etc"), "--data-dir", str(data_dir), "--new-password", "geheim"
    )
    assert made.code == 0, made.errors
    with exposed(data_dir) as node:
        assert not any("nobody can log in" in each for each in node.lines)
        assert httpx.get(f"{node.http_url}/v1/users", auth=("admin", "geheim")).is_success
        assert httpx.get(f"{node.http_url}/v1/topics", auth=("guest", "guest")).status_code == 401


def test_a_node_that_had_the_default_user_warns(tmp_path: Path) -> None:
    with live_node(tmp_path) as node:
        node.stop()
        assert not any("everybody knows" in each for each in node.lines)
    with exposed(tmp_path) as node:
        assert any("password that everybody knows" in each for each in node.lines)
        changed = httpx.put(
            f"{node.http_url}/v1/users/guest/password",
            json={"password": "another"},
            auth=("guest", "guest"),
        )
        assert changed.is_success
        node.stop()
    with exposed(tmp_path) as node:
        assert not any("everybody knows" in each for each in node.lines)


def test_every_careless_listener_is_warned_of(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell.run("init", str(tmp_path), "--new-password", "geheim").code == 0
    config = tmp_path / "careless.toml"
    (tls_port,) = free_ports(1)
    config.write_text(
        '[mqtt]\norigins = "*"\n[http]\nallowed_origins = "*"\n'
        f'[tls]\ncert = "{tmp_path}/tls/node.pem"\nkey = "{tmp_path}/tls/node.key"\n'
        f"[listeners]\namqps_port = {tls_port}\nmqtts_port = 0\nwss_port = 0\nhttps_port = 0\n"
    )
    with exposed(tmp_path / "data", config=config) as node:
        warned = [each for each in node.lines if "open to the network" in each]
        listeners = [each.split("listener=")[1].split()[0] for each in warned]
        assert sorted(listeners) == ["amqp", "http", "http", "mqtt", "ws", "ws"]
        cli = Cli(node, monkeypatch)
        monkeypatch.setenv("BRAID_USER", "admin")
        monkeypatch.setenv("BRAID_PASSWORD", "geheim")
        found = [each for each in cli.json("doctor") if each["check"] in ("listener", "listeners")]
        assert [each["verdict"] for each in found] == ["warn"] * 6
        assert sum("no TLS" in each["finding"] for each in found) == 4
        assert sum("any web page" in each["finding"] for each in found) == 2
        assert all(each["remedy"] for each in found)


def test_nothing_is_said_on_this_machine(shell: Shell, tmp_path: Path) -> None:
    with live_node(tmp_path) as node:
        assert not any("open to the network" in each for each in node.lines)


def test_it_is_only_where_it_is_used_that_certificates_are_made() -> None:
    program = "import braidmq.cli.app, sys; print('cryptography' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout == "False\n"
