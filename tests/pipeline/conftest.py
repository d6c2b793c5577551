import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="braidmq[spark] is not installed")

from braid_topics import GUEST, Topics

from braidmq.pipeline.definition import find, load
from braidmq.pipeline.options import BrokerOptions
from braidmq.pipeline.reporting import Progress
from braidmq.pipeline.source import StreamReader
from braidmq.testing.live import LiveNode, free_ports, live_node

SMALL_FILES = "[storage]\nsegment_bytes_max = 262144\njournal_file_bytes = 262144\n"
"""So that some thousand messages make a log with many sealed segments."""


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    config = tmp_path_factory.mktemp("config") / "braid.toml"
    config.write_text(SMALL_FILES)
    with live_node(tmp_path_factory.mktemp("data"), config=config, ws_port=0) as running:
        yield running
        assert running.complaints == []


@pytest.fixture(scope="session")
def topics(node: LiveNode) -> Iterator[Topics]:
    with httpx.Client(base_url=node.http_url, auth=GUEST, timeout=60) as client:
        yield Topics(node, client)


@pytest.fixture
def running(topics: Topics) -> Iterator[Callable[..., StreamReader]]:
    """Makes readers, and stops them: each has a thread."""
    made: list[StreamReader] = []

    def make(**options: object) -> StreamReader:
        made.append(topics.stream_reader(**{"startingOffsets": "earliest", **options}))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def java_is_there() -> bool:
    java = shutil.which("java") or os.environ.get("JAVA_HOME")
    return java is not None


@pytest.fixture(scope="session")
def connect_url() -> str:
    """Where the test session answers Spark Connect too: commands in processes of their own need no
    JVM of their own."""
    return f"sc://127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, connect_url: str) -> "Iterator[SparkSession]":
    """One for all tests: it takes seconds to start and half a gigabyte."""
    if not java_is_there():
        pytest.skip("Spark needs Java, which is not installed here")
    from pyspark.sql import SparkSession

    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    session = (
        SparkSession.builder.master("local[2]")
        .appName("braidmq tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", connect_url.rpartition(":")[2])
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def run(spark: "SparkSession", topics: Topics) -> Callable[..., Progress]:
    """A shipped pipeline, or a file, with its parameters."""
    from braidmq.pipeline.runner import Runner

    def run_one(name: str, watch: Callable[[Progress], bool] = lambda _: False, **values: Any):
        path = find(name)
        definition = load(path, {key: str(value) for key, value in values.items()})
        broker = BrokerOptions(url=topics.node.http_url)
        return Runner(definition, spark, broker, path.parent).run(watch)

    return run_one
