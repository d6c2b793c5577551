"""Spark as a cluster: a master and a worker in JVMs of their own, as docs/spark-clusters.md starts
them. Connect has its tests in test_run_command.py."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from braid_topics import Topics

from braidmq.testing.live import free_ports

pytestmark = pytest.mark.timeout(600)

SPARK_CLASS = Path(sys.executable).with_name("spark-class")
JOB = """
import sys

import pyspark_braid
from pyspark.sql import SparkSession

master, url, source, target, place = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m")
    .config("spark.driver.memory", "512m")
    .getOrCreate()
)
assert spark.sparkContext.master == master
messages = spark.readStream.format("braid").option("url", url).option("topic", source)
query = (
    messages.option("startingOffsets", "earliest")
    .load()
    .select("key", "value")
    .writeStream.format("braid")
    .option("url", url)
    .option("topic", target)
    .option("checkpointLocation", place)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
"""


@contextmanager
def daemon(name: str, ready: str, place: Path, *arguments: str) -> Iterator[None]:
    """A JVM of Spark's, when it has logged that it is ready."""
    command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
    settings = {
        "SPARK_WORKER_DIR": str(place / "work"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    with subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | settings,
    ) as process:
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if ready in line:
                break
        else:
            raise AssertionError(f"{name} ended: {''.join(said)}")
        # A pipe that nobody reads would stop it.
        reader = threading.Thread(target=said.extend, args=(process.stdout,))
        reader.start()
        try:
            yield
        finally:
            process.terminate()
            reader.join()


@pytest.mark.skipif(
    shutil.which("java") is None, reason="Spark needs Java, which is not installed here"
)
def test_a_stream_on_a_standalone_cluster(topics: Topics, tmp_path: Path) -> None:
    source, target = topics.create(partitions=2), topics.create(partitions=2)
    topics.publish(source, [{"key": f"k{at % 5}", "value": str(at)} for at in range(100)])
    port, *ports = map(str, free_ports(4))
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as cluster:
        started = "I have been elected leader"
        flags = ("--port", port, "--webui-port", ports[0])
        cluster.enter_context(daemon("master.Master", started, tmp_path, *flags))
        flags = ("--port", ports[1], "--webui-port", ports[2], "--cores", "2", "--memory", "1g")
        cluster.enter_context(
            daemon("worker.Worker", "Successfully registered", tmp_path, *flags, master)
        )
        job = [sys.executable, "-c", JOB, master, topics.node.http_url, source, target]
        ran = subprocess.run(
            [*job, str(tmp_path / "checkpoint")], capture_output=True, text=True, timeout=300
        )
    assert ran.returncode == 0, ran.stderr
    assert sorted(row["value"] for row in topics.read(topic=target)) == sorted(
        b"%d" % at for at in range(100)
    )
