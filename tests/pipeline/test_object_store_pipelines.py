"""Pipelines whose lakes are in an object store: archive and replay, wholly."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("moto.server", reason="moto[server] is not installed")

from braid_topics import Topics
from lake_tables import numbers, write
from mixed_topic import in_the_log, mixed
from object_store import KEYS, object_store

from braidmq.cli.app import main
from braidmq.pipeline.chunks import Chunks
from braidmq.pipeline.definition import BadPipeline, find, load
from braidmq.pipeline.lake.options import parse_lake_options
from braidmq.pipeline.lake.table import find_table
from braidmq.testing.live import free_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

ARCHIVE = ("--set", "topic=orders", "--set", "lake=s3://lakes/orders")


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    with object_store("lakes") as found:
        yield found


@pytest.fixture
def braid(
    topics: Topics,
    storage: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """The command, with --storage for each option of the store: what it says."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("BRAID_URL", topics.node.http_url)

    def run(*words: str, failing: bool = False, **other: str) -> str:
        given = [f"--storage={name}={value}" for name, value in (storage | other).items()]
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*words, *given])
        assert bool(ended.value.code) == failing
        said = capsys.readouterr()
        assert KEYS["aws_secret_access_key"] not in said.out + said.err
        return said.out + said.err

    return run


def test_archive_upkeep_and_replay(
    spark: "SparkSession",
    topics: Topics,
    storage: dict[str, str],
    braid: Callable[..., str],
    tmp_path: Path,
) -> None:
    topic, again = mixed(topics), topics.create(partitions=2)
    place = f"s3://lakes/{topic}"
    archive = ("archive", "--set", f"topic={topic}", "--set", f"lake={place}")
    partitioned = ("--set", "partition_by=date,topic")
    checkpoint = f"checkpoint: {tmp_path}/state/braidmq/pipelines/archive@"
    assert checkpoint in braid("pipeline", "check", *archive, *partitioned)
    count = len(topics.read(topic=topic))
    assert f"finished: {count} rows" in braid("pipeline", "run", *archive, *partitioned)
    topics.fill(topic, 10)
    # How much is read at once is no other archive.
    more = ("--set", "batch_records=3")
    assert "finished: 10 rows" in braid("pipeline", "run", *archive, *more)
    assert "finished: 0 rows" in braid("pipeline", "run", *archive)
    other = ("--set", "partition_by=topic")
    assert "partitioned by date, topic" in braid("pipeline", "run", *archive, *other, failing=True)
    known = topics.api.get("/v1/pipelines").text
    assert topic in known
    assert "not to be shown" not in known
    assert str(count + 10) in braid("lake", "info", place)
    assert "became" in braid("lake", "optimize", place)
    gone = braid("lake", "vacuum", place, "--retention", "0", "--short", "--yes").splitlines()
    assert len(gone) > 1
    assert "finished: 0 rows" in braid("pipeline", "run", *archive)
    sizes = ("--set", "chunk_rows=8", "--set", f"topic={again}", "--set", f"lake={place}")
    assert f"finished: {count + 10} rows" in braid("pipeline", "run", "replay", *sizes)
    assert in_the_log(topics, again) == in_the_log(topics, topic)
    assert "finished" in braid("pipeline", "run", "compact", "--set", f"lake={place}")
    options = {f"storage.{name}": value for name, value in storage.items()}
    opened = find_table(parse_lake_options({"path": place, **options}))
    assert opened is not None
    keyed = [row["key"] for row in opened.to_pyarrow_table(columns=["key"]).to_pylist()]
    assert len(keyed) < count + 10


def test_what_is_wrong_is_said_before_a_session_starts(
    braid: Callable[..., str], storage: dict[str, str], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    away = {"aws_endpoint_url": f"http://127.0.0.1:{port}"}
    for command in ("check", "run"):
        said = braid("pipeline", command, "archive", *ARCHIVE, failing=True, **away)
        assert "sink 'lake': s3://lakes/orders can't be reached" in said
        replay = ("--set", "topic=orders", "--set", "lake=s3://lakes/nothing")
        said = braid("pipeline", command, "replay", *replay, failing=True)
        assert "source 'archived': there is no lake at s3://lakes/nothing" in said
        local = ("--set", "topic=orders", "--set", f"lake={tmp_path}/lake")
        said = braid("pipeline", command, "archive", *local, failing=True)
        assert "no lake of the pipeline is in one" in said


def test_columns_of_a_lake_are_checked_with_plan(
    spark: "SparkSession", topics: Topics, storage: dict[str, str], braid: Callable[..., str]
) -> None:
    place = "s3://lakes/planned"
    options = {f"storage.{name}": value for name, value in storage.items()}
    write(place, numbers(0, 1, topic=7), options=options)
    given = ("--set", f"topic={topics.create()}", "--set", f"lake={place}", "--plan")
    said = braid("pipeline", "check", "archive", *given, failing=True)
    assert "column 'topic' is BIGINT in the lake, and STRING is written" in said


def test_secrets_are_not_what_a_run_is_known_by(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(
        """
name = "known"
[parameters]
secret = "s"
where = "s3://lakes/known"
[[source]]
name = "a"
topic = "a"
[[sink]]
from = "a"
lake = "${where}"
options = { "storage.aws_secret_access_key" = "${secret}" }
"""
    )
    found = load(file, {"secret": "other"})
    assert found.known_by == {"where": "s3://lakes/known"}
    assert found.differs_by == {}


def test_where_an_archive_keeps_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the lake; elsewhere than in an object store, where Spark gets with jars only."""
    monkeypatch.setenv("XDG_STATE_HOME", "/state")

    def place(**values: str) -> str:
        return load(find("archive"), {"topic": "t", **values}).checkpoint_dir

    assert place(lake="/l") == "/l/_braid_checkpoint/t"
    found = place(lake="s3://b/l")
    assert found.startswith("/state/braidmq/pipelines/archive@")
    assert found == place(lake="s3://b/l", batch_records="5", partition_by="topic")
    assert found != place(lake="s3://b/l", topic="u")
    assert place(lake="s3://b/l", checkpoint="/c") == "/c"
    assert place(lake="s3://b/l", checkpoint="s3a://b/l/c") == "s3a://b/l/c"
    with pytest.raises(BadPipeline, match="parameter 'lake' needs a value"):
        place()
    file = tmp_path / "round.toml"
    file.write_text('name = "${a}"\n[parameters]\na = "${b}"\nb = "${a}"\n')
    with pytest.raises(BadPipeline, match="parameter 'a' is made of itself"):
        load(file)


def test_a_run_that_was_stopped_goes_on_with_other_keys() -> None:
    """They are changed now and then; what is read and written is still the same."""

    def settings(secret: str, **values: str) -> str:
        lake = "s3://lakes/orders"
        keys = {"aws_secret_access_key": secret, "aws_region": "us-east-1"}
        given = {"lake": lake, "topic": "again", **values}
        runner: Any = SimpleNamespace(definition=load(find("replay"), given, storage=keys))
        return Chunks(runner, lambda _: False)._settings

    assert settings("old") == settings("new")
    assert settings("old") != settings("old", where="partition = 0")
