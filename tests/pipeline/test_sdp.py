"""A pipeline exported to Spark Declarative Pipelines, and run by `spark-pipelines`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from braid_topics import Topics

from braidmq.pipeline.definition import BadPipeline, load
from braidmq.pipeline.sdp import export

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

EXAMPLES = Path(__file__).parents[2] / "docs" / "pipelines" / "examples"


def run(project: Path, connect_url: str, topics: Topics) -> None:
    """On the session of the tests, by Spark Connect: as the command does, without a JVM more."""
    environment = {**os.environ, "BRAIDMQ_URL": topics.node.http_url, "SPARK_REMOTE": connect_url}
    command = [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec"]
    done = subprocess.run(
        [*command, str(project / "spark-pipeline.yml")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_project_runs(
    spark: "SparkSession", connect_url: str, topics: Topics, tmp_path: Path
) -> None:
    source, large = topics.create(partitions=2), topics.create(partitions=1)
    definition = load(EXAMPLES / "declared.toml", {"topic": source, "large": large})
    project = tmp_path / "project"
    export(definition, EXAMPLES, project)
    topics.publish(source, [{"value": json.dumps({"amount": at})} for at in range(1000)])
    run(project, connect_url, topics)
    found = sorted(json.loads(row["value"])["amount"] for row in topics.read(topic=large))
    assert found == list(range(900, 1000))


def test_what_a_project_holds(tmp_path: Path) -> None:
    """Steps in Python go with it, passwords do not; all of it is valid Python."""
    definition = load(EXAMPLES / "join.toml")
    export(definition, EXAMPLES, tmp_path / "join")
    text = (tmp_path / "join" / "transformations" / "pipeline.py").read_text()
    compile(text, "pipeline.py", "exec")
    assert ".withWatermark('timestamp', '10 minutes')" in text
    assert "password" not in text.replace('"password": os.environ', "")
    with pytest.raises(BadPipeline, match="is not empty"):
        export(definition, EXAMPLES, tmp_path / "join")


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("sessions", {}, "only append"),
        ("one_read", {"directory": "/d"}, "have no query"),
        ("formats", {"directory": "/d"}, "only what streams"),
    ],
)
def test_what_can_t_be_one(tmp_path: Path, name: str, values: dict[str, str], said: str) -> None:
    definition = load(EXAMPLES / f"{name}.toml", values, data_here=False)
    with pytest.raises(BadPipeline, match=said):
        export(definition, EXAMPLES, tmp_path / "p")
    assert not (tmp_path / "p").exists()
