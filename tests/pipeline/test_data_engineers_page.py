"""docs/data-engineers.md: its programs are the files in examples/, and work in its order.

They run as a stranger would run them: from another directory, with an environment that knows
nothing of the venv, which is not activated.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from braid_topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "sensors"
PAGE = (ROOT / "docs" / "data-engineers.md").read_text()
BLOCK = re.compile(r"^`sensors/([\w.]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SYSTEM_PATH = "/usr/bin:/bin"


def test_the_page_shows_the_files() -> None:
    shown = dict(BLOCK.findall(PAGE))
    assert set(shown) == {each.name for each in EXAMPLES.iterdir()}
    for name, code in shown.items():
        assert code == (EXAMPLES / name).read_text(), name


@pytest.fixture
def stranger(topics: Topics, tmp_path: Path):
    """Runs a command in a directory with the examples, for this node."""
    ports = topics.node.ports
    for each in EXAMPLES.iterdir():
        code = each.read_text().replace("8080", str(ports["http_port"]))
        (tmp_path / each.name).write_text(code.replace("1883", str(ports["mqtt_port"])))
    java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
    path = f"{Path(shutil.which('java') or '/usr/bin/java').parent}:{SYSTEM_PATH}"

    def run(*command: str) -> str:
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env={"PATH": path, "HOME": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1", **java},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    return run


def test_from_mqtt_to_a_plot(
    stranger, spark: "SparkSession", connect_url: str, topics: Topics, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    stranger("bash", "-e", "topic.sh")
    stranger(sys.executable, "publish.py")
    assert len(topics.read(topic="sensors")) == 960
    stranger(sys.executable, "windows.py", lake)
    braid = str(Path(sys.executable).with_name("braid"))
    url = topics.node.http_url
    set_lake = ("--set", f"lake={lake}", "--url", url, "--remote", connect_url)
    stranger(braid, "pipeline", "run", "plot.toml", *set_lake)
    page = (tmp_path / "sensors.html").read_text()
    assert page.count("<polyline") == 4
    assert "room-4" in page
    said = stranger(sys.executable, "read.py", lake)
    # Two hours have 24 windows, or 25 where they begin in the middle of one; the last three may
    # still get readings, as the watermark has it.
    rows = int(said.split()[0])
    assert 4 * 21 <= rows <= 4 * 23, said
