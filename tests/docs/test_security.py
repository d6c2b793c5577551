"""The recipes of docs/security.md, run as they stand there, against live nodes."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pages import DOCS, blocks, run_bash

from braidmq.config import load
from braidmq.security.authority import trial_files
from braidmq.testing.live import LiveNode, free_ports, live_node

PAGE = (DOCS / "security.md").read_text()


def recipe(title: str, language: str) -> list[str]:
    """The blocks below a heading."""
    (below,) = re.findall(rf"^###? {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    return [
        each.code
        for each in blocks("security.md")
        if each.language == language and each.code in below
    ]


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    home = tmp_path_factory.mktemp("security")
    (home / "braid.toml").write_text("[audit]\ntopic = true\n")
    with live_node(home / "data", config=home / "braid.toml") as running:
        yield running


def asked(node: LiveNode, user: str, password: str, method: str, path: str) -> int:
    body = {"value": "x"} if method == "POST" else {} if method == "PUT" else None
    url = node.http_url + path
    return httpx.request(method, url, json=body, auth=(user, password), timeout=60).status_code


def test_tenants(node: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_URL", node.http_url)
    for each in recipe("Tenants", "sh"):
        run_bash(node, each, tmp_path)
    secrets = {
        each: (tmp_path / f"{each}.password").read_text().strip() for each in ("red", "blue")
    }
    for tenant, other in (("red", "blue"), ("blue", "red")):
        owner, secret = f"{tenant}-owner", secrets[tenant]
        own, foreign = f"?namespace={tenant}", f"?namespace={other}"
        assert asked(node, owner, secret, "PUT", f"/v1/topics/orders{own}") == 201
        assert asked(node, owner, secret, "GET", f"/v1/topics{foreign}") == 403
        assert asked(node, owner, secret, "PUT", f"/v1/topics/orders{foreign}") == 403
        assert asked(node, owner, secret, "GET", "/v1/topics") == 403
        assert asked(node, owner, secret, "GET", "/v1/namespaces") == 403
    found = httpx.get(f"{node.http_url}/v1/namespaces/red", auth=("guest", "guest")).json()
    assert (found["max_connections"], found["max_queues"]) == (200, 100)
    permissions = httpx.get(f"{node.http_url}/v1/permissions/red", auth=("guest", "guest")).json()
    assert {each["user"]: each["write"] for each in permissions} == {
        "red-owner": ".*",
        "red-shop": "^orders$",
        "red-desk": "",
    }


def test_one_permission_for_many_devices(
    node: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAID_URL", node.http_url)
    (command,) = recipe("One permission for many devices", "sh")
    run_bash(node, "braid users add meters x\n" + command, tmp_path)
    mosquitto = "mosquitto_pub -h 127.0.0.1 -p 1883 -V 5 -q 1 -u meters -P x -i 17 -m 5"
    run_bash(node, f"{mosquitto} -t meters/17/heat\n", tmp_path)
    with pytest.raises(AssertionError, match=r"[Nn]ot authori"):
        run_bash(node, f"{mosquitto} -t meters/1/heat\n", tmp_path)


def test_the_audit_log(node: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_URL", node.http_url)
    look, read = recipe("The audit log", "sh")
    run_bash(node, "braid users add auditor geheim\n" + look, tmp_path)
    read = read.replace("--follow", "--last 1") + "\n"
    monkeypatch.setenv("BRAID_PASSWORD", "geheim")
    read = read.replace("braid permissions", "BRAID_PASSWORD=guest braid permissions")
    assert "auditor" in run_bash(node, read, tmp_path)


def test_from_nothing_to_a_node_on_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, talk = recipe("From nothing to a node on a network", "sh")

    def here(text: str) -> str:
        return text.replace("/etc/braid", f"{tmp_path}/etc").replace(
            "/var/lib/braidmq", f"{tmp_path}/data"
        )

    init, serve = here(make).strip().splitlines()
    with live_node(tmp_path / "other") as other:
        said = run_bash(other, init + "\n", tmp_path)
    password = said.split("password ")[1].split()[0]
    config = tmp_path / "etc" / "braid.toml"
    assert serve == f"braid serve --config {config}"
    assert load(config, environment={}).listeners.http_port == 0
    amqps, mqtts, wss, https = free_ports(4)
    ports = f"amqps_port = {amqps}\nmqtts_port = {mqtts}\nwss_port = {wss}\nhttps_port = {https}"
    config.write_text(config.read_text().replace("[listeners]", f"[listeners]\n{ports}"))
    plain = dict.fromkeys(("amqp_port", "mqtt_port", "ws_port", "http_port"), 0)
    with live_node(tmp_path / "data", config=config, **plain) as node:
        assert not any("open to the network" in each for each in node.lines)
        text = here(talk).replace("8443", str(https)).replace("=…", f"={password}")
        found = run_bash(node, text.strip() + f" --amqp-port {amqps} || true\n", tmp_path)
        assert "user and password are right" in found
        assert "none is open to the network without TLS" in found
        assert "no TLS" not in found


def test_devices_with_certificates(
    node: LiveNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, use = recipe("Devices with certificates", "sh")
    (listener,) = recipe("Devices with certificates", "toml")
    (port,) = free_ports(1)
    run_bash(node, f"exec 2>/dev/null\n{authority}", tmp_path)
    for name, content in trial_files(["localhost", "127.0.0.1"]).items():
        (tmp_path / name).write_bytes(content)
    config = tmp_path / "braid.toml"
    listener = listener.replace("8884", str(port)).replace("/etc/braid", str(tmp_path))
    config.write_text(
        f'[tls]\ncert = "{tmp_path}/node.pem"\nkey = "{tmp_path}/node.key"\n'
        "[listeners]\namqps_port = 0\nmqtts_port = 0\nwss_port = 0\nhttps_port = 0\n" + listener
    )
    with live_node(tmp_path / "data") as first:
        first.stop()  # on this machine: it has its guest
    with live_node(tmp_path / "data", config=config) as running:
        monkeypatch.setenv("BRAID_URL", running.http_url)
        use = use.replace("-h host -p 8884", f"-h 127.0.0.1 -p {port} -q 1 -V 5")
        run_bash(running, use, tmp_path)
        other = (
            use.strip().splitlines()[-1].replace("sensors/sensor-1/heat", "sensors/sensor-2/heat")
        )
        with pytest.raises(AssertionError, match=r"[Nn]ot authori"):
            run_bash(running, other + "\n", tmp_path)


def test_lets_encrypts_files_are_links(tmp_path: Path) -> None:
    (text,) = recipe("Let's Encrypt", "toml")
    live = tmp_path / "live" / "broker.example.com"
    live.mkdir(parents=True)
    made = trial_files(["broker.example.com"])
    for name, link in (("node.pem", "fullchain.pem"), ("node.key", "privkey.pem")):
        (tmp_path / f"{name}1").write_bytes(made[name])
        (live / link).symlink_to(tmp_path / f"{name}1")
    config = tmp_path / "braid.toml"
    config.write_text(text.replace("/etc/letsencrypt", str(tmp_path)))
    assert load(config, environment={}).tls.cert == str(live / "fullchain.pem")
