"""Contexts, tokens, and which of flag, environment, context and default wins."""

import stat
from pathlib import Path
from typing import Any

import pytest
from commands import Cli
from test_cli_surface import EVERY

from braidmq.cli.context_file import Context, Contexts, contexts_file, read_contexts, write_contexts
from braidmq.cli.node import Node, resolve
from braidmq.config.loading import NOT_KEYS, load
from braidmq.model.errors import BadSetting


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def at_home(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    return cli


def found(flags: dict[str, Any], environment: dict[str, Any], *, named: bool = False) -> Node:
    return resolve(flags, environment, named_by_flag=named)


def test_flag_then_environment_then_context_then_default() -> None:
    write_contexts(Contexts("here", {"here": Context(url="http://context", namespace="c")}))
    assert found({"url": "http://flag"}, {"url": "http://env"}).url == "http://flag"
    assert found({}, {"url": "http://env"}).url == "http://env"
    assert found({}, {}).url == "http://context"
    assert found({}, {}).namespace == "c"
    assert found({}, {"namespace": "e"}).namespace == "e"
    assert found({}, {}).amqp_port == 5672


def test_a_context_that_a_flag_names_wins_over_the_environment() -> None:
    write_contexts(Contexts(None, {"prod": Context(url="http://prod", user="ann")}))
    env = {"url": "http://env", "password": "secret"}
    assert found({"context": "prod"}, env, named=True).url == "http://prod"
    assert found({"context": "prod", "url": "http://flag"}, env, named=True).url == "http://flag"
    assert found({}, {**env, "context": "prod"}).url == "http://env"
    # What it does not say is found as without it.
    named = found({"context": "prod"}, env, named=True)
    assert (named.user, named.password) == ("ann", "secret")


def test_a_password_of_a_context_is_for_its_own_user_only() -> None:
    write_contexts(Contexts("here", {"here": Context(user="ann", password="hers")}))
    assert found({}, {}).password == "hers"
    assert found({"user": "ann"}, {}).password == "hers"
    assert found({"user": "bob"}, {}).password is None
    assert found({"user": "bob"}, {"password": "env"}).password == "env"


def test_whoever_says_more_closely_who_asks_decides_token_or_password() -> None:
    write_contexts(Contexts("here", {"here": Context(token="t")}))
    assert found({}, {}).token == "t"
    assert found({"user": "ann"}, {}).token is None
    assert found({}, {"token": "e"}).token == "e"
    assert found({"password": "p"}, {"token": "e"}) == Node(password="p")
    with pytest.raises(BadSetting, match="login of its own"):
        found({"token": "t", "user": "ann"}, {})


def test_the_file_is_its_owners_only_and_holds_any_text() -> None:
    strange = 'a"b\\c\n\x7f[x]é'
    every = Contexts(strange, {strange: Context(user=strange, password=strange, amqp_port=7)})
    contexts_file().parent.mkdir(parents=True)
    contexts_file().touch(mode=0o644)
    write_contexts(every)
    assert stat.S_IMODE(contexts_file().stat().st_mode) == 0o600
    assert read_contexts() == every


def test_a_file_that_is_damaged_is_named_without_its_secrets(at_home: Cli) -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text('[contexts.a]\npassword = "geheim\n')
    said = at_home.fails(2, "topics", "list")
    assert str(contexts_file()) in said
    assert "geheim" not in said


def test_a_context_reaches_the_node(at_home: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    url, port = at_home.node.http_url, str(at_home.node.ports["amqp_port"])
    monkeypatch.delenv("BRAID_URL")
    monkeypatch.delenv("BRAID_AMQP_PORT")
    at_home.fails(2, "topics", "list", "--url", "http://127.0.0.1:1")
    at_home.ok("users", "add", "zoe", "hers", "--tag", "administrator", "--url", url)
    login = ("--url", url, "--amqp-port", port, "--user", "zoe", "--password", "-")
    at_home.ok("context", "add", "live", *login, "--use", stdin=b"hers\n")
    listed = at_home.ok("context", "list") + at_home.ok("context", "show", "live")
    assert "hers" not in listed + at_home.ok("context", "list", "--json")
    assert at_home.json("users", "list")
    monkeypatch.setenv("BRAID_URL", "http://127.0.0.1:1")
    at_home.fails(2, "users", "list")
    assert at_home.json("users", "list", "--context", "live")
    monkeypatch.delenv("BRAID_URL")
    at_home.ok("context", "use", "--none")
    monkeypatch.setenv("BRAID_CONTEXT", "live")
    assert at_home.json("users", "list")
    assert "no context 'dead'" in at_home.fails(5, "users", "list", "--context", "dead")
    assert "--replace" in at_home.fails(6, "context", "add", "live")
    at_home.fails(2, "context", "remove", "live")
    at_home.ok("context", "remove", "live", "--yes")
    assert at_home.json("context", "list") == []


def test_a_token_logs_in_everywhere(
    at_home: Cli, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home.ok("publish", topic, "1", "2")
    token = at_home.ok("tokens", "create").strip()
    monkeypatch.setenv("BRAID_TOKEN", token)
    assert at_home.json("topics", "show", topic)["name"] == topic
    assert at_home.ok("consume", topic) == "1\n2\n"
    assert {each["verdict"] for each in at_home.json("doctor")} <= {"ok", "skipped"}
    at_home.ok("publish", topic, "3")
    assert "nobody gets" in at_home.fails(1, "publish", topic, "3", "--exchange", "amq.topic")
    assert at_home.ok("consume", topic, "--group", "g") == "1\n2\n3\n"
    at_home.ok("publish", topic, "4", "--user", "guest")
    assert at_home.ok("consume", topic) == "1\n2\n3\n4\n"
    assert "unknown, or was revoked" in at_home.fails(4, "topics", "list", "--token", "braid_a_b")


def test_variables_of_the_command_line_do_not_stop_a_node() -> None:
    used = {
        name
        for _, command in EVERY
        for option in command.params
        for name in [getattr(option, "envvar", None)]
        if isinstance(name, str)
    }
    assert {"BRAID_NAMESPACE", "BRAID_AMQP_PORT", "BRAID_TOKEN", "BRAID_CONTEXT"} <= used
    assert used <= NOT_KEYS
    assert load(None, environment=dict.fromkeys(used, "x")) == load(None, environment={})
    with pytest.raises(BadSetting, match="unknown variable BRAID_NAMESPCE"):
        load(None, environment={"BRAID_NAMESPCE": "x"})
