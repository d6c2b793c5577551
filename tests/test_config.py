from pathlib import Path

import pytest

from braidmq.config import Config, load
from braidmq.model.errors import BadSetting


def written(folder: Path, text: str) -> Path:
    path = folder / "braid.toml"
    path.write_text(text)
    return path


def refusal(path: Path | None, overrides: dict[str, object] | None = None) -> str:
    with pytest.raises(BadSetting) as caught:
        load(path, overrides)
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
        f"{path}: unknown key listeners.htpp_port. Did you mean listeners.http_port?"
    )


def test_an_unknown_section_is_refused_with_the_close_one(tmp_path: Path) -> None:
    path = written(tmp_path, "[listener]\n")
    assert refusal(path) == f"{path}: unknown key listener. Did you mean listeners?"


def test_an_unknown_key_like_no_other_gets_the_list(tmp_path: Path) -> None:
    path = written(tmp_path, "[node]\nqqqq = 1\n")
    assert refusal(path).endswith("unknown key node.qqqq. Known here: node.data_dir, node.dev")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[listeners]\nhttp_port = 65536\n", "listeners.http_port"),
        ("[listeners]\nhttp_port = -1\n", "listeners.http_port"),
        ('[listeners]\nhttp_port = "8080"\n', "listeners.http_port"),
        ("[listeners]\nhttp_port = 80.5\n", "listeners.http_port"),
        ("[listeners]\nhttp_port = true\n", "listeners.http_port"),
        ('[listeners]\nhost = ""\n', "listeners.host"),
        ("[node]\ndev = 1\n", "node.dev"),
        ("node = 5\n", "node"),
        ("[[listeners]]\nhttp_port = 1\n", "listeners"),
    ],
)
def test_a_bad_value_names_the_file_and_the_key(tmp_path: Path, text: str, key: str) -> None:
    path = written(tmp_path, text)
    assert refusal(path).startswith(f"{path}: {key}: expected ")


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
    assert message.startswith(f"{path}: not valid TOML: ")
    assert "line 1" in message


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "braid.toml"
    path.write_bytes(b"\xff\xfe")
    assert refusal(path).startswith(f"{path}: not valid TOML: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.toml"
    assert refusal(path) == f"--config: cannot read {path}: No such file or directory"
