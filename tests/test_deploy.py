"""deploy/spark: what the image is made of is there, and its entrypoint says what Spark asks for."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "deploy" / "spark"

EXECUTOR = {
    "SPARK_HOME": "/spark",
    "SPARK_JAVA_OPT_0": "-Da=b c",
    "SPARK_JAVA_OPT_1": "-Dd=e",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_DRIVER_URL": "spark://driver",
    "SPARK_EXECUTOR_ID": "7",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "app-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
    "SPARK_EXECUTOR_POD_NAME": "pod-7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1",
}


def run(folder: Path, *arguments: str) -> list[str]:
    """The command that the entrypoint becomes, word by word."""
    for name in ("java", "spark-submit"):
        stub = folder / name
        stub.write_text('#!/bin/sh\nfor each; do echo "$each"; done\n')
        stub.chmod(0o755)
    ran = subprocess.run(
        ["/bin/bash", PLACE / "entrypoint.sh", *arguments],
        env=EXECUTOR | {"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.splitlines()


def test_the_entrypoint_of_an_executor(tmp_path: Path) -> None:
    assert run(tmp_path, "executor") == [
        *("-Da=b c", "-Dd=e", "-Xms512m", "-Xmx512m", "-cp", "/spark/conf:/spark/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://driver", "--executor-id", "7", "--cores", "2"),
        *("--app-id", "app-1", "--hostname", "10.0.0.9", "--podName", "pod-7"),
        *("--resourceProfileId", "0"),
    ]


def test_the_entrypoint_of_a_driver_and_of_commands(tmp_path: Path) -> None:
    address = "spark.driver.bindAddress=10.0.0.1"
    submit = ["--deploy-mode", "client", "--conf", address, "job.py"]
    assert run(tmp_path, "driver", "job.py") == submit
    assert run(tmp_path, "echo", "one two") == ["one two"]


def test_what_the_image_copies_is_there() -> None:
    copied = re.findall(r"^COPY (?!--)(\S+)", (PLACE / "Dockerfile").read_text(), re.MULTILINE)
    assert copied
    assert all((ROOT / each).exists() for each in copied)


def test_the_pipeline_of_the_manifest_is_one(tmp_path: Path) -> None:
    found = re.search(
        r"orders\.toml: \|\n((?:    .*\n|\n)+)", (PLACE / "pipeline.yaml").read_text()
    )
    assert found is not None
    text = re.sub(r"^    ", "", found[1], flags=re.MULTILINE)
    settings = tomllib.loads(text)["spark"]
    assert settings["spark.driver.host"] == "braid-pipeline.data.svc"
    from braidmq.pipeline.definition import load

    file = tmp_path / "orders.toml"
    file.write_text(text)
    assert load(file).streams
