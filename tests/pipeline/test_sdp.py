"""A pipeline exported to Spark Declarative Pipelines, and run by `spark-pipelines`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from braid_topics import GUEST, Topics

from braidmq.pipeline.definition import BadPipeline, load
from braidmq.pipeline.sdp import export
from braidmq.testing.live import live_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

EXAMPLES = Path(__file__).parents[2] / "docs" / "pipelines" / "examples"


def run(project: Path, connect_url: str, topics: Topics, works: bool = True, **who: str) -> str:
    """On the session of the tests, by Spark Connect: as the command does, without a JVM more."""
    environment = {**os.environ, "BRAID_URL": topics.node.http_url, "SPARK_REMOTE": connect_url}
    environment |= who
    command = [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec"]
    done = subprocess.run(
        [*command, str(project / "spark-pipeline.yml")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode == 0) == works, done.stdout + done.stderr
    return done.stdout + done.stderr


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


def test_a_project_logs_in(spark: "SparkSession", connect_url: str, tmp_path: Path) -> None:
    """At a node where nobody is guest: with a token, with a password, and not without."""
    with (
        live_node(tmp_path / "data", ws_port=0) as node,
        httpx.Client(base_url=node.http_url, auth=GUEST, timeout=60) as guest,
        httpx.Client(base_url=node.http_url, auth=("jobs", "open sesame"), timeout=60) as jobs,
    ):
        body = {"password": "open sesame", "tags": ["administrator"]}
        guest.put("/v1/users/jobs", json=body).raise_for_status()
        every = {"configure": ".*", "write": ".*", "read": ".*"}
        guest.put("/v1/permissions/%2F/jobs", json=every).raise_for_status()
        jobs.delete("/v1/users/guest").raise_for_status()
        topics = Topics(node, jobs)
        token = jobs.post("/v1/tokens", json={"description": "sdp"}).json()["token"]
        source, large = topics.create(partitions=1), topics.create(partitions=1)
        definition = load(EXAMPLES / "declared.toml", {"topic": source, "large": large})
        project = tmp_path / "project"
        export(definition, EXAMPLES, project)
        every_file = "".join(path.read_text() for path in project.rglob("*") if path.is_file())
        assert token not in every_file
        known = {"BRAID_TOKEN": token}
        for who in (known, {"BRAID_USER": "jobs", "BRAID_PASSWORD": "open sesame"}):
            topics.publish(source, [{"value": json.dumps({"amount": 950})}])
            run(project, connect_url, topics, **who)
        said = run(project, connect_url, topics, works=False)
        assert "not-authenticated" in said or "401" in said or "NotAuthenticated" in said
        who = {"token": token}
        assert [json.loads(row["value"])["amount"] for row in topics.read(topic=large, **who)] == [
            950,
            950,
        ]


SECRETS = """
name = "secrets"
{spark}
[[source]]
name = "orders"
topic = "orders"
options = {{ user = "me", password = "s3cret", url = "http://other:8080" }}
[[step]]
name = "scored"
python = "functions.py:score"
inputs = ["orders"]
options = {{ api_token = "s3cret" }}
[[sink]]
from = "scored"
name = "to the lake"
lake = "s3://lakes/orders"
options = {{ "storage.aws_secret_access_key" = "s3cret", "storage.aws_region" = "eu-central-1" }}
"""


def test_a_project_holds_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from the environment, by names that its first lines say."""
    (tmp_path / "functions.py").write_text("def score(orders, api_token):\n    return orders\n")
    file = tmp_path / "secrets.toml"
    file.write_text(SECRETS.format(spark=""))
    export(load(file), tmp_path, tmp_path / "project")
    every = "".join(path.read_text() for path in (tmp_path / "project").rglob("*.[py]*"))
    assert "s3cret" not in every
    text = (tmp_path / "project" / "transformations" / "pipeline.py").read_text()
    names = ["AWS_SECRET_ACCESS_KEY", "ORDERS_PASSWORD", "SCORED_API_TOKEN"]
    for name in names:
        assert f"\n{name}" in text.split('"""')[1]
    assert "'storage.aws_region': 'eu-central-1'" in text
    head = text.partition("@dp")[0].replace("spark = SparkSession.active()", "")
    monkeypatch.setenv("BRAID_TOKEN", "t0ken")
    monkeypatch.setenv("ORDERS_PASSWORD", "s3cret")
    made: dict[str, Any] = {"__file__": "/p/transformations/pipeline.py"}
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    exec(head, made)
    assert made["LOGIN"] == {"token": "t0ken"}
    assert set(made["PLACE"]) == {"url", "namespace"}
    assert ".options(**PLACE).options(" in text  # the source has a login of its own
    assert made["secret"]("ORDERS_PASSWORD") == "s3cret"
    with pytest.raises(RuntimeError, match="set AWS_SECRET_ACCESS_KEY"):
        made["secret"]("AWS_SECRET_ACCESS_KEY")


def test_a_secret_of_spark_is_for_who_runs_it(tmp_path: Path) -> None:
    file = tmp_path / "secrets.toml"
    (tmp_path / "functions.py").write_text("def score(orders, api_token):\n    return orders\n")
    file.write_text(SECRETS.format(spark='[spark]\n"spark.hadoop.fs.s3a.secret.key" = "s3cret"'))
    with pytest.raises(BadPipeline, match=r"secret\.key' is a secret"):
        export(load(file), tmp_path, tmp_path / "project")


def test_what_a_project_holds(tmp_path: Path) -> None:
    """Steps in Python go with it, passwords do not; all of it is valid Python."""
    definition = load(EXAMPLES / "join.toml")
    export(definition, EXAMPLES, tmp_path / "join")
    text = (tmp_path / "join" / "transformations" / "pipeline.py").read_text()
    compile(text, "pipeline.py", "exec")
    assert ".withWatermark('timestamp', '10 minutes')" in text
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
