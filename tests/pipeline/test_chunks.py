"""A lake written in chunks: each message once, however often a run is stopped in between."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from braid_topics import Topics
from hypothesis import given
from hypothesis import strategies as st

from braidmq.model.errors import BraidError
from braidmq.pipeline import lake
from braidmq.pipeline.chunks import PLAN, Plan, _joined
from braidmq.pipeline.definition import Definition, find, load
from braidmq.pipeline.lake import table
from braidmq.pipeline.lake.options import Within, parse_lake_options
from braidmq.pipeline.options import BrokerOptions
from braidmq.pipeline.reporting import Progress
from braidmq.pipeline.runner import Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

MESSAGES = 90
SAME = ("partition", "key", "value", "headers", "timestamp")


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50)), min_size=1, max_size=60),
    st.integers(-1000, 1000),
    st.integers(1, 100),
    st.integers(1, 120),
)
def test_chunks_have_every_piece_once(
    gaps: list[tuple[int, int]], least: int, width: int, wanted: int
) -> None:
    at = 0
    pieces = []
    for gap, rows in gaps:
        pieces.append((at, rows))
        at += gap
    found = _joined(pieces, least, width, wanted)
    assert [one.stop for one in found[:-1]] == [other.start for other in found[1:]]
    for part in found:
        inside = [
            (number, rows)
            for number, rows in pieces
            if part.start <= least + number * width < part.stop
        ]
        assert sum(rows for _, rows in inside) == part.rows
        assert part.rows <= wanted or len(inside) == 1
        # The last of a piece belongs to the chunk that has its first.
        assert all(least + (number + 1) * width <= part.stop for number, _ in inside)
    assert sum(part.rows for part in found) == sum(rows for _, rows in pieces)


class Replay:
    """Of one lake to one topic, as often as it takes."""

    def __init__(self, topics: Topics, spark: "SparkSession", archive: Path) -> None:
        self._topics, self._spark = topics, spark
        self.archive = archive
        self.topic = topics.create(partitions=2)

    def definition(self, **values: Any) -> Definition:
        every = {"topic": self.topic, "lake": self.archive, "chunk_rows": 20, **values}
        return load(find("replay"), {name: str(value) for name, value in every.items()})

    def run(self, watch: Callable[[Progress], bool] = lambda _: False, **values: Any) -> Progress:
        broker = BrokerOptions(url=self._topics.node.http_url)
        return Runner(self.definition(**values), self._spark, broker).run(watch)

    @property
    def plan(self) -> Path:
        return Path(self.definition().checkpoint_dir) / PLAN

    def written(self) -> list[list[Any]]:
        return [[row[name] for name in SAME] for row in self._topics.read(topic=self.topic)]


@pytest.fixture(scope="module")
def archived(
    topics: Topics, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[Any]]]:
    """A lake in several files, and what has to come back of it."""
    place = tmp_path_factory.mktemp("archived") / "lake"
    topic = topics.create(partitions=2)
    broker = BrokerOptions(url=topics.node.http_url)
    for first in range(0, MESSAGES, 30):
        sent = [
            {"key": f"k{at % 7}", "value": f"v{at}", "headers": {"n": str(at)}}
            for at in range(first, first + 30)
        ]
        topics.publish(topic, sent)
        values = {"topic": topic, "lake": str(place)}
        Runner(load(find("archive"), values), spark, broker).run(lambda _: False)
    return place, [[row[name] for name in SAME] for row in topics.read(topic=topic)]


@pytest.fixture
def replay(
    topics: Topics,
    spark: "SparkSession",
    archived: tuple[Path, list[list[Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Replay:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Replay(topics, spark, archived[0])


def test_a_run_that_is_stopped_goes_on(replay: Replay, archived: Any) -> None:
    stopped = replay.run(lambda progress: progress.sinks[0].batch >= 2)
    assert stopped.state == "stopped"
    assert replay.plan.exists()
    begun = len(replay.written())
    assert 0 < begun < MESSAGES
    batches: set[int] = set()

    def watch(progress: Progress) -> bool:
        batches.update(each.batch for each in progress.sinks)
        return False

    done = replay.run(watch)
    assert done.state == "finished"
    assert done.rows <= MESSAGES - begun + 20
    assert min(batches - {-1}) >= 2
    assert replay.written() == archived[1]
    assert not replay.plan.exists()


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_chunk_whose_end_was_not_noted_is_not_written_twice(
    replay: Replay, archived: Any, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    save = Plan.save

    def power_cut(plan: Plan, path: Path) -> None:
        if plan.done == chunk:
            raise OSError("power cut")
        save(plan, path)

    with monkeypatch.context() as patch:
        patch.setattr(Plan, "save", power_cut)
        with pytest.raises(OSError, match="power cut"):
            replay.run()
    replay.run()
    assert replay.written() == archived[1]


def test_after_the_last_chunk_a_run_begins_anew(replay: Replay, archived: Any) -> None:
    for _ in range(2):
        replay.run()
    assert len(replay.written()) == 2 * MESSAGES


def test_half_a_run_is_not_finished_with_other_settings(replay: Replay, archived: Any) -> None:
    replay.run(lambda progress: progress.sinks[0].batch >= 1)
    with pytest.raises(BraidError, match="a run with other settings was stopped after"):
        replay.run(where="`offset` > 3")
    replay.run()
    assert replay.written() == archived[1]


def test_a_topic_that_was_created_again_gets_all_of_it(
    replay: Replay, topics: Topics, archived: Any
) -> None:
    replay.run(lambda progress: progress.sinks[0].batch >= 2)
    topics.api.delete(f"/v1/topics/{replay.topic}").raise_for_status()
    with pytest.raises(BraidError, match="there is no topic"):
        replay.run()
    body = {"settings": {"partitions": 2}}
    topics.api.put(f"/v1/topics/{replay.topic}", json=body).raise_for_status()
    replay.run()
    assert replay.written() == archived[1]


def test_what_is_added_meanwhile_is_not_in_it(
    replay: Replay, spark: "SparkSession", archived: Any, tmp_path: Path
) -> None:
    """A run is of the version that it began with."""
    copy = str(tmp_path / "copy")
    lake.write(lake.read(spark, str(archived[0])), copy)
    replay.archive = Path(copy)
    replay.run(lambda progress: progress.sinks[0].batch >= 1)
    lake.write(lake.read(spark, str(archived[0])), copy)
    replay.run()
    assert replay.written() == archived[1]


def test_an_empty_lake(
    replay: Replay, spark: "SparkSession", archived: Any, tmp_path: Path
) -> None:
    replay.archive = tmp_path / "empty"
    lake.write(lake.read(spark, str(archived[0])), str(replay.archive))
    nothing = lake.read(spark, str(archived[0])).where("false")
    lake.write(nothing, str(replay.archive), mode="overwrite")
    assert replay.run().state == "finished"
    assert replay.written() == []


# --- the option range ---


def test_a_range_opens_only_files_that_have_some_of_it(
    spark: "SparkSession", archived: Any, tmp_path: Path
) -> None:
    place = str(archived[0])
    every = lake.read(spark, place)
    within = Within("offset", 30, 40)
    wanted = every.where("`offset` >= 30 AND `offset` < 40").orderBy("partition", "offset")
    for frame in (
        lake.read(spark, place, range=str(within)),
        spark.read.format("braid_lake").option("range", str(within)).load(place),
    ):
        assert frame.orderBy("partition", "offset").collect() == wanted.collect()
    opened = table.open_table(parse_lake_options({"path": place}))
    assert 0 < len(table.active_files(opened, within)) < len(table.active_files(opened))
    assert not table.active_files(opened, Within("offset", 1000, 2000))


@pytest.mark.parametrize(
    ("given", "said"),
    [("offset", "not a range"), ("nothing:0:5", "no column"), ("key:0:5", "not whole numbers")],
)
def test_a_range_that_is_none(spark: "SparkSession", archived: Any, given: str, said: str) -> None:
    with pytest.raises(BraidError, match=said):
        lake.read(spark, str(archived[0]), range=given)
    with pytest.raises(Exception, match=said):
        spark.read.format("braid_lake").option("range", given).load(str(archived[0]))


def test_a_range_is_not_written(spark: "SparkSession", archived: Any, tmp_path: Path) -> None:
    with pytest.raises(BraidError, match="range is for reading"):
        lake.write(lake.read(spark, str(archived[0])), str(tmp_path), range="offset:0:1")
