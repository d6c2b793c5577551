"""A lake in an object store: moto's, on loopback."""

import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="braidmq[spark] is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")
pytest.importorskip("duckdb", reason="duckdb is not installed")

import duckdb
from deltalake import DeltaTable
from lake_tables import numbers, read, write
from object_store import object_store

from braidmq.pipeline.errors import BadOption, LakeUnreachable, LakeVacuumed, WrongSchema
from braidmq.pipeline.lake import upkeep
from braidmq.pipeline.lake.options import parse_lake_options
from braidmq.pipeline.lake.table import reaching
from braidmq.testing.live import free_ports


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    with object_store("lakes") as found:
        yield {f"storage.{name}": value for name, value in found.items()}


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
    with pytest.raises(LakeVacuumed, match="version 0"):
        read(place, version=0, **storage)
    given = {name.removeprefix("storage."): value for name, value in storage.items()}
    files = DeltaTable(place, storage_options=given).to_pyarrow_dataset()
    theirs = files.to_table(columns=["n", "topic"]).to_pylist()
    assert sorted((row["n"], row["topic"]) for row in theirs) == expected
    with duckdb.connect() as connection:
        connection.register("lake", files)
        assert connection.sql("SELECT n, topic FROM lake ORDER BY ALL").fetchall() == expected


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


def test_a_store_that_does_not_answer_is_said_without_its_secrets(storage: dict[str, str]) -> None:
    (port,) = free_ports(1)
    away = {**storage, "storage.aws_endpoint_url": f"http://127.0.0.1:{port}"}
    soon = {"storage.max_retries": "1", "storage.retry_timeout": "1s"}
    for place, given in (("s3://lakes/x", away), ("s3://no-such-bucket/x", storage)):
        options = parse_lake_options({"path": place, **given, **soon})
        with pytest.raises(LakeUnreachable, match=f"{place} can't be reached") as error:
            upkeep.facts(options)
        assert "not to be shown" not in str(error.value)
        assert "\n" not in str(error.value)
        assert "\x1b" not in str(error.value)
    with pytest.raises(LakeUnreachable, match="red"), reaching(options):  # also in between
        raise OSError("\x1b[31mred\x1b[0m")
    with pytest.raises(BadOption, match="no object store of the kind s4"):
        upkeep.facts(parse_lake_options({"path": "s4://lakes/x"}))
