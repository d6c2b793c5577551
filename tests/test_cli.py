import re
from collections.abc import Callable
from datetime import date

import pytest
from typer.testing import CliRunner

from braidmq import __version__, server
from braidmq.cli.app import app, main, version_line
from braidmq.config import Config
from braidmq.model.errors import BadRequest, BraidError, CorruptData, DirectoryLocked, StorageFailed

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("today", "name"),
    [
        (date(2026, 4, 1), "RabidMQ"),
        (date(2027, 4, 1), "RabidMQ"),
        (date(2026, 3, 31), "BraidMQ"),
        (date(2026, 4, 2), "BraidMQ"),
        (date(2026, 1, 4), "BraidMQ"),
    ],
)
def test_the_name_depends_on_the_day(today: date, name: str) -> None:
    assert version_line(today) == f"{name} {__version__}"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.rstrip("\n") == version_line(date.today())


def test_help_shows_every_flag_with_its_default() -> None:
    result = CliRunner().invoke(app, ["serve", "--help"], terminal_width=200)
    text = " ".join(COLOUR.sub("", result.output).replace("│", " ").split())
    assert result.exit_code == 0
    for flag, default in [
        ("--data-dir", "./data"),
        ("--host", "127.0.0.1"),
        ("--amqp-port", "5672"),
        ("--mqtt-port", "1883"),
        ("--ws-port", "8083"),
        ("--http-port", "8080"),
        ("--config", "no file"),
        ("--dev", "no-dev"),
    ]:
        assert flag in text
        assert f"[default: ({default})]" in text


def test_flags_reach_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Config] = []
    monkeypatch.setattr(server, "serve", lambda load: served.append(load()))
    flags = ["--data-dir", "/srv/b", "--host", "::1", "--http-port", "1", "--amqp-port", "2"]
    assert run("serve", *flags, "--mqtt-port", "3", "--ws-port", "0", "--dev") == 0
    (config,) = served
    assert (config.node.data_dir, config.node.dev) == ("/srv/b", True)
    at = config.listeners
    assert (at.host, at.http_port, at.amqp_port, at.mqtt_port, at.ws_port) == ("::1", 1, 2, 3, 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DirectoryLocked("./data is used by process 7"), 2),
        (StorageFailed("journal/1: No space left on device"), 3),
        (CorruptData("journal/1", 12, "bad checksum"), 3),
        (BadRequest("two\nlines"), 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BraidError,
    code: int,
) -> None:
    def fail(_: Callable[[], Config]) -> None:
        raise error

    monkeypatch.setattr(server, "serve", fail)
    assert run("serve") == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"braid: error: {' '.join(str(error).split())}\n"


def test_a_port_out_of_range_names_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("serve", "--http-port", "70000") == 2
    assert capsys.readouterr().err == "braid: error: --http-port: expected `int` <= 65535\n"
