import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.config import Config, load
from braidmq.config.loading import BadSettings, LineFinder
from braidmq.config.settings import all_keys
from braidmq.model.errors import BadSetting


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("BRAID_")]:
        monkeypatch.delenv(name)


def written(folder: Path, text: str) -> Path:
    path = folder / "braid.toml"
    path.write_text(text)
    return path


def refusal(
    path: Path | None,
    flags: dict[str, object] | None = None,
    environment: dict[str, str] | None = None,
) -> str:
    with pytest.raises(BadSetting) as caught:
        load(path, flags, environment)
    return str(caught.value)


def test_without_file_and_flags_everything_has_its_default() -> None:
    config = load(None)
    assert config == Config()
    assert config.node.data_dir == "./data"
    assert config.listeners.host == "127.0.0.1"
    assert config.listeners.amqp_port == 5672


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load(written(tmp_path, "")) == Config()


def test_the_file_wins_over_defaults(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '[node]\ndata_dir = "/srv/braid"\n[listeners]\nmqtt_port = 0\n'
        "[storage]\nsegment_bytes_max = 1048576\n",
    )
    config = load(path)
    assert config.node.data_dir == "/srv/braid"
    assert config.listeners.mqtt_port == 0
    assert config.listeners.amqp_port == 5672
    assert config.storage.segment_bytes_max == 1_048_576


def test_flags_win_over_the_file_and_absent_flags_do_not(tmp_path: Path) -> None:
    path = written(tmp_path, "[listeners]\nhttp_port = 1\nmqtt_port = 2\n")
    config = load(path, {"listeners.http_port": 3, "listeners.mqtt_port": None})
    assert config.listeners.http_port == 3
    assert config.listeners.mqtt_port == 2


def test_a_flag_can_say_zero_and_false_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[node]\ndev = true\n[listeners]\nhttp_port = 1\n")
    config = load(path, {"listeners.http_port": 0, "node.dev": False})
    assert config.listeners.http_port == 0
    assert not config.node.dev


def test_an_unknown_key_is_refused_with_the_close_one(tmp_path: Path) -> None:
    path = written(tmp_path, "[listeners]\nhtpp_port = 8080\n")
    assert refusal(path) == (
        f"{path}:2: unknown key listeners.htpp_port. Did you mean listeners.http_port?"
    )


def test_an_unknown_section_is_refused_with_the_close_one(tmp_path: Path) -> None:
    path = written(tmp_path, "[listener]\n")
    assert refusal(path) == f"{path}:1: unknown section listener. Did you mean listeners?"


def test_an_unknown_key_like_no_other_gets_the_list(tmp_path: Path) -> None:
    path = written(tmp_path, "[node]\nqqqq = 1\n")
    assert refusal(path) == (
        f"{path}:2: unknown key node.qqqq."
        " Known here: node.data_dir, node.dev, node.shutdown_deadline_s"
    )


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[listeners]\nhttp_port = 65536\n", "2: listeners.http_port"),
        ("[listeners]\n\n# so\nhttp_port = -1\n", "4: listeners.http_port"),
        ('[listeners]\nhttp_port = "8080"\n', "2: listeners.http_port"),
        ("[listeners]\nhttp_port = 80.5\n", "2: listeners.http_port"),
        ("listeners.http_port = true\n", "1: listeners.http_port"),
        ('\nlisteners = { host = "" }\n', "2: listeners.host"),
        ("[node]\nshutdown_deadline_s = inf\n", "2: node.shutdown_deadline_s"),
        ("[node]\nshutdown_deadline_s = nan\n", "2: node.shutdown_deadline_s"),
        ("[node]\ndev = 1\n", "2: node.dev"),
        ("[node]\ndata_dir = [\n1,\n]\n", "2: node.data_dir"),
        ("node = 5\n", "1: node"),
        ("[[listeners]]\nhttp_port = 1\n", "1: listeners"),
    ],
)
def test_a_bad_value_names_the_file_the_line_and_the_key(
    tmp_path: Path, text: str, where: str
) -> None:
    path = written(tmp_path, text)
    assert refusal(path).startswith(f"{path}:{where}: expected ")


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, "[log]\nlevel = 'loud'\n[nodes]\n[listeners]\nhttp_port = -1\n")
    with pytest.raises(BadSettings) as caught:
        load(path, {"listeners.amqp_port": -2}, {"BRAID_NODE_DEV": "perhaps"})
    starts = [mistake.partition(" ")[0] for mistake in caught.value.mistakes]
    assert starts == [f"{path}:2:", f"{path}:3:", f"{path}:5:", "BRAID_NODE_DEV:", "--amqp-port:"]
    assert str(caught.value) == "; ".join(caught.value.mistakes)


def test_keys_that_contradict_each_other_are_named_where_they_are_given(tmp_path: Path) -> None:
    path = written(tmp_path, "[limits]\nmemory_block_bytes = 5\n")
    assert refusal(path) == (
        f"{path}:2: limits.memory_block_bytes: memory_slow_bytes is above memory_block_bytes"
    )
    variables = {"BRAID_LIMITS_DISK_SLOW_BYTES": "0"}
    assert refusal(None, None, variables) == (
        "BRAID_LIMITS_DISK_SLOW_BYTES: disk_slow_bytes is below disk_block_bytes"
    )


# --- the environment ---


def test_variables_win_over_the_file_and_flags_over_variables(tmp_path: Path) -> None:
    path = written(tmp_path, "[listeners]\nhttp_port = 1\nmqtt_port = 2\nws_port = 3\n")
    variables = {"BRAID_LISTENERS_HTTP_PORT": "10", "BRAID_LISTENERS_MQTT_PORT": "20"}
    at = load(path, {"listeners.http_port": 100}, variables).listeners
    assert (at.http_port, at.mqtt_port, at.ws_port) == (100, 20, 3)


def test_the_environment_of_the_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_NODE_DATA_DIR", "/srv/braid")
    assert load(None).node.data_dir == "/srv/braid"


def test_variables_become_what_their_key_is() -> None:
    variables = {
        "BRAID_NODE_DEV": "true",
        "BRAID_NODE_SHUTDOWN_DEADLINE_S": "2.5",
        "BRAID_LOG_FORMAT": "json",
        "BRAID_STORAGE_TAIL_BYTES_MAX": "0",
    }
    config = load(None, None, variables)
    assert (config.node.dev, config.node.shutdown_deadline_s) == (True, 2.5)
    assert (config.log.format, config.storage.tail_bytes_max) == ("json", 0)


def test_every_key_has_a_variable_of_its_own() -> None:
    variables = [key.variable for key in all_keys()]
    assert len(set(variables)) == len(variables)


def test_an_unknown_variable_is_refused_with_the_close_one() -> None:
    assert refusal(None, None, {"BRAID_LISTENERS_HTPP_PORT": "1"}) == (
        "environment: unknown variable BRAID_LISTENERS_HTPP_PORT."
        " Did you mean BRAID_LISTENERS_HTTP_PORT?"
    )


def test_variables_of_others_and_of_the_command_line_are_left_alone() -> None:
    variables = {"PATH": "/bin", "BRAID_URL": "http://x", "BRAID_PASSWORD": "secret"}
    assert load(None, None, variables) == Config()


def test_a_bad_variable_is_named() -> None:
    message = refusal(None, None, {"BRAID_LISTENERS_HTTP_PORT": "http"})
    assert message == "BRAID_LISTENERS_HTTP_PORT: expected `int`, got `str`"


# --- flags, and files that can't be read ---


def test_a_bad_flag_is_named_as_the_flag(tmp_path: Path) -> None:
    path = written(tmp_path, "[listeners]\nhttp_port = 1\n")
    message = refusal(path, {"listeners.http_port": 70_000})
    assert message == "--http-port: expected `int` <= 65535"


def test_a_bad_file_is_refused_even_where_a_flag_overrides_it(tmp_path: Path) -> None:
    path = written(tmp_path, "[listeners]\nhttp_port = 70000\n")
    assert str(path) in refusal(path, {"listeners.http_port": 1})


def test_bad_toml_names_the_line(tmp_path: Path) -> None:
    path = written(tmp_path, "[node\n")
    message = refusal(path)
    assert message.startswith(f"{path}:1: not valid TOML: ")


def test_toml_that_ends_too_early_names_the_last_line(tmp_path: Path) -> None:
    path = written(tmp_path, "[node]\ndata_dir = [\n")
    assert refusal(path).startswith(f"{path}:2: not valid TOML: ")


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "braid.toml"
    path.write_bytes(b"[node]\n\xff\xfe")
    assert refusal(path).startswith(f"{path}:2: not valid TOML: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.toml"
    assert refusal(path) == f"cannot read {path}: No such file or directory"


@given(st.data())
def test_the_line_of_a_key_is_found_in_any_layout(data: st.DataObject) -> None:
    lines: list[str] = []
    where: dict[tuple[str, ...], int] = {}
    filler = st.lists(st.sampled_from(["", "# x = 1", "   "]), max_size=2)
    value = st.sampled_from(["1", "[\n1,\n\n2]", '"""\n[a]\nb = 3\n"""', "{ y = '#' }", "'\u2028'"])
    for section in data.draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1)):
        lines += data.draw(filler)
        lines.append(f"[{section}]")
        where[(section,)] = len(lines)
        for key in data.draw(st.lists(st.sampled_from("pqr"), unique=True)):
            lines += data.draw(filler)
            where[section, key] = len(lines) + 1
            lines += f"{key} = {data.draw(value)} # so".split("\n")
    text = "\n".join(lines)
    tomllib.loads(text)
    finder = LineFinder(text)
    assert {path: finder.of(*path) for path in where} == where
