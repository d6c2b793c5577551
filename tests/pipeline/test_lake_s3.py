"""A lake in an object store: moto's, on loopback."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="braidmq[spark] is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

import boto3
from lake_tables import numbers, read, write

from braidmq.pipeline.errors import WrongSchema
from braidmq.pipeline.lake import upkeep
from braidmq.pipeline.lake.options import parse_lake_options
from braidmq.testing.live import free_ports


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    (port,) = free_ports(1)
    # A process of its own: deltalake holds the interpreter's lock while it waits for the store.
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    while "Running on" not in (line := server.stderr.readline()):
        assert line, "moto's server did not start"
    drain = threading.Thread(target=server.stderr.read)
    drain.start()
    found = {
        "aws_endpoint_url": f"http://127.0.0.1:{port}",
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    client = boto3.client(
        "s3",
        endpoint_url=found["aws_endpoint_url"],
        aws_access_key_id="k",
        aws_secret_access_key="s",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="lakes")
    yield {f"storage.{name}": value for name, value in found.items()}
    client.close()
    server.terminate()
    server.wait()
    drain.join()
    server.stderr.close()


def test_writing_reading_and_upkeep(storage: dict[str, str]) -> None:
    place = "s3://lakes/orders"
    for at in range(3):
        step = {"applicationId": "app", "batchId": str(at), "partitionBy": "topic"}
        for _ in range(2):
            write(place, numbers(at, 2, topic=f"a b{at % 2}"), options={**storage, **step})
    expected = sorted((at + more, f"a b{at % 2}") for at in range(3) for more in range(2))
    found = read(place, **storage)
    assert sorted((row["n"], row["topic"]) for row in found) == expected
    assert len(read(place, version=0, **storage)) == 2
    with pytest.raises(WrongSchema, match="no column x"):
        write(place, numbers(0, 1, topic="t", x=1), options=storage)
    options = parse_lake_options({"path": place, **storage})
    done = upkeep.optimize(options, 1 << 20)
    assert (done.removed, done.added) == (2, 1)
    gone = upkeep.vacuum(options, 0, short=True)
    # The two that were put together, and those of batches that were tried again are gone already.
    assert len([name for name in gone if name.endswith(".parquet")]) == 2
    assert sorted((row["n"], row["topic"]) for row in read(place, **storage)) == expected


def test_writers_at_once_commit_all_of_theirs(storage: dict[str, str]) -> None:
    place = "s3://lakes/many"
    write(place, numbers(0, 1), options=storage)
    failures: list[BaseException] = []

    def one(at: int) -> None:
        try:
            write(place, numbers(at, 1), options=storage)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(at,)) for at in range(1, 5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    assert [row["n"] for row in read(place, **storage)] == [0, 1, 2, 3, 4]
