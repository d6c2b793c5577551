"""``braid pipeline run`` in a process and a terminal of its own, on Spark Connect."""

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from braid_topics import Topics, wait_until

from braidmq.cli.app import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

CTRL_C = b"\x03"
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """What a command shows on a terminal, and keys for it."""

    def __init__(self, *arguments: str) -> None:
        self._keys, theirs = pty.openpty()
        environment = {
            **os.environ,
            "COLUMNS": "120",
            "TERM": "xterm",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "braidmq.cli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            # The terminal is the new session's own: its Ctrl-C goes to all who were started there.
            preexec_fn=lambda: os.login_tty(theirs),
        )
        os.close(theirs)
        self._shown = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                more = os.read(self._keys, 65536)
            except OSError:  # Linux says so when the other side is closed
                return
            if not more:
                return
            self._shown += more

    @property
    def shown(self) -> str:
        return STYLE.sub("", self._shown.decode("utf-8", "replace"))

    def wait_for(self, pattern: str) -> None:
        wanted = re.compile(pattern)
        wait_until(lambda: wanted.search(self.shown) or self.process.poll() is not None, 120)
        assert wanted.search(self.shown), self.shown

    def press(self, keys: bytes) -> None:
        os.write(self._keys, keys)

    def wait(self) -> int:
        code = self.process.wait(120)
        self._reader.join()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.wait()
        os.close(self._keys)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    opened = Terminal(*arguments)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def pair(topics: Topics) -> tuple[str, str]:
    """A topic with ten messages, and one to write to."""
    source, target = topics.create(partitions=1), topics.create(partitions=1)
    topics.publish(source, [{"value": str(at)} for at in range(10)])
    return source, target


def pipeline(
    directory: Path, pair: tuple[str, str], trigger: str, sql: str = ""
) -> tuple[str, str]:
    """A file, and the pipeline's name."""
    name = f"{trigger}-{pair[0]}"
    step = f'[[step]]\nname = "made"\nsql = "{sql}"\n' if sql else ""
    checkpoint = "" if trigger == "once" else f'checkpoint = "{directory}/checkpoint"'
    path = directory / "pipeline.toml"
    path.write_text(f"""
name = "{name}"
trigger = "{trigger}"
{checkpoint}
[[source]]
name = "numbers"
topic = "{pair[0]}"
{step}
[[sink]]
from = "{"made" if sql else "numbers"}"
topic = "{pair[1]}"
""")
    return str(path), name


def test_a_stream_on_a_terminal_until_ctrl_c(
    spark: "SparkSession", connect_url: str, topics: Topics, pair: tuple[str, str], tmp_path: Path
) -> None:
    file, name = pipeline(tmp_path, pair, "1s")
    where = ("--remote", connect_url, "--url", topics.node.http_url)
    with terminal("pipeline", "run", file, *where) as shell:
        shell.wait_for(r"Spark|run [0-9a-f]{32}")
        shell.wait_for(r"numbers-topic  batch \d+  10 rows")
        topics.publish(pair[0], [{"value": "more"}])
        shell.wait_for(r"numbers-topic  batch \d+  11 rows")
        shell.press(CTRL_C)
        assert shell.wait() == 0, shell.shown
        assert f"{name} stopped: 11 rows" in shell.shown
    assert len(topics.read(topic=pair[1])) == 11
    assert topics.api.get(f"/v1/pipelines/{name}").json()["state"] == "stopped"
    wait_until(lambda: all(pair[0] not in str(each["positions"]) for each in topics.leases()))


def test_a_batch_is_cancelled_by_ctrl_c(
    spark: "SparkSession", connect_url: str, topics: Topics, pair: tuple[str, str], tmp_path: Path
) -> None:
    """It would take hours; nothing of it is to be seen."""
    # Nothing that Spark can tell without looking at the rows, as it does of rand() > 2.
    numbers = "SELECT CAST(id AS STRING) AS value FROM range(1000000000000)"
    slow = f"SELECT value FROM ({numbers}) WHERE sha2(value, 256) = 'none'"
    file, name = pipeline(tmp_path, pair, "once", slow)
    where = ("--remote", connect_url, "--url", topics.node.http_url)
    with terminal("pipeline", "run", file, *where) as shell:
        shell.wait_for("writing")
        shell.press(CTRL_C)
        assert shell.wait() == 0, shell.shown
        assert f"{name} stopped: 0 rows" in shell.shown
    assert topics.read(topic=pair[1]) == []


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT value FROM numbers", ""),
        ("SELECT valu FROM numbers", "step 'made': [UNRESOLVED_COLUMN"),
        (
            "SELECT value, offset AS place FROM numbers",
            "sink 'made-topic': messages have no column 'place'",
        ),
    ],
)
def test_a_check_with_spark(
    spark: "SparkSession",
    topics: Topics,
    pair: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sql: str,
    said: str,
) -> None:
    file, name = pipeline(tmp_path, pair, "available_now", sql)
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "check", file, "--plan", "--url", topics.node.http_url])
    shown = capsys.readouterr()
    assert said in shown.err
    assert (ended.value.code in (None, 0)) == (not said)
    if not said:
        said, checkpoint = shown.out.splitlines()
        assert said == f"{name}: {pair[0]} → 1 step → {pair[1]} (available_now)"
        assert checkpoint == f"checkpoint: {tmp_path}/checkpoint"
