import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from braidmq.cli.app import app, main
from braidmq.config import Config, load
from braidmq.config.reference import as_markdown, as_toml, as_tree
from braidmq.config.settings import all_keys
from braidmq.gateways.amqp.settings import AmqpSettings
from braidmq.logs import LogSettings

DOCS = Path(__file__).parents[2] / "docs/configuration.md"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("BRAID_")]:
        monkeypatch.delenv(name)


def loaded(folder: Path, text: str) -> Config:
    path = folder / "braid.toml"
    path.write_text(text)
    return load(path)


def test_every_key_says_what_it_is_for() -> None:
    assert not [key.dotted for key in all_keys() if not (key.meta.description or "").endswith(".")]


def test_the_reference_loads_as_the_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path, as_toml(Config())) == Config()


@given(
    data_dir=st.text(min_size=1),
    dev=st.booleans(),
    deadline=st.floats(min_value=1e-9, max_value=3600),
    heartbeat=st.integers(0, 65_535),
    level=st.sampled_from(["debug", "error"]),
)
def test_any_configuration_is_the_same_after_being_written_and_read(
    heartbeat: int, level: Any, **node: Any
) -> None:
    config = msgspec.structs.replace(
        Config(),
        node=msgspec.structs.replace(
            Config().node,
            data_dir=node["data_dir"],
            dev=node["dev"],
            shutdown_deadline_s=node["deadline"],
        ),
        amqp=AmqpSettings(heartbeat_s=heartbeat),
        log=LogSettings(level=level),
    )
    with TemporaryDirectory() as folder:
        assert loaded(Path(folder), as_toml(config)) == config


def test_the_docs_are_those_of_the_code() -> None:
    assert DOCS.read_text() == as_markdown()


# --- the commands ---


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_show_prints_the_file_and_the_environment_as_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "my.toml"
    path.write_text("[listeners]\nhttp_port = 1\n")
    monkeypatch.setenv("BRAID_LISTENERS_MQTT_PORT", "2")
    shown = CliRunner().invoke(app, ["config", "show", "--config", str(path)])
    assert shown.exit_code == 0
    monkeypatch.delenv("BRAID_LISTENERS_MQTT_PORT")
    at = loaded(tmp_path, shown.output).listeners
    assert (at.http_port, at.mqtt_port, at.amqp_port) == (1, 2, 5672)


def test_show_defaults_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_LISTENERS_MQTT_PORT", "2")
    shown = CliRunner().invoke(app, ["config", "show", "--defaults"])
    assert shown.output == as_toml(Config())


def test_show_as_json() -> None:
    shown = CliRunner().invoke(app, ["config", "show", "--json"])
    assert json.loads(shown.output) == as_tree(Config())


def test_check_accepts_the_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "braid.toml"
    path.write_text(as_toml(Config()))
    assert exit_code("config", "check", str(path)) == 0
    assert capsys.readouterr() == (f"{path} is valid\n", "")


def test_check_names_every_mistake_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "braid.toml"
    path.write_text("[listeners]\nhtpp_port = 1\namqp_port = 70000\n")
    assert exit_code("config", "check", str(path)) == 2
    assert capsys.readouterr() == (
        "",
        f"{path}:2: unknown key listeners.htpp_port. Did you mean listeners.http_port?\n"
        f"{path}:3: listeners.amqp_port: expected `int` <= 65535\n",
    )


def test_check_of_a_file_that_is_not_toml_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "braid.toml"
    path.write_text("[listeners\n")
    assert exit_code("config", "check", str(path)) == 2
    assert f"{path}:1: not valid TOML" in capsys.readouterr().err
