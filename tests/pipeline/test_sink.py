"""The sink without a JVM: its writers are plain classes, the node is a real one."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from braid_topics import Topics
from pyspark.sql.types import StructType

from braidmq.api.resources.bulk_publishing import RECORDS_BYTES_MAX
from braidmq.pipeline.broker import Broker
from braidmq.pipeline.encoding import check_columns, encode
from braidmq.pipeline.errors import BadOption, BatchGivenUp, RowTooLarge, StaleCheckpoint, TopicFull
from braidmq.pipeline.sink import BatchWriter, Sink, StreamWriter
from braidmq.pipeline.sink_options import RECORD_BYTES_MAX, parse_sink_options
from braidmq.pipeline.source import BraidDataSource
from braidmq.pipeline.transactions import Stage, Step, Transactions

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
THEN = datetime(2021, 3, 4, 5, 6, 7, 89_000, tzinfo=UTC)


def writer(topics: Topics, **options: object) -> BatchWriter:
    texts = {name.lower(): str(value) for name, value in options.items()}
    return BatchWriter(parse_sink_options({"url": topics.node.http_url, **texts}))


def messages() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"a", None, b""], pa.binary()),
            "value": pa.array(["one", "zwö", None], pa.string()),
            "headers": pa.array(
                [[{"key": "x", "value": b"1"}, {"key": "é", "value": None}], None, []], HEADERS
            ),
            "timestamp": pa.array([THEN, None, THEN], pa.timestamp("us", "UTC")),
            "priority": pa.array([7, None, 0], pa.int32()),
        }
    )


class TestAtLeastOnce:
    def test_all_that_a_row_says_is_in_the_message(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        written = writer(topics, topic=topic, delivery="at_least_once").write(iter([messages()]))
        assert written.rows == 3
        first, second, third = topics.read(topic=topic)
        assert (first["key"], first["value"], first["priority"]) == (b"a", b"one", 7)
        assert first["headers"] == [{"key": "x", "value": b"1"}, {"key": "é", "value": b""}]
        assert first["timestamp"] == THEN
        assert (second["key"], second["value"]) == (None, "zwö".encode())
        assert datetime.now(UTC) - second["timestamp"] < timedelta(minutes=5)
        assert (third["key"], third["value"], third["headers"]) == (b"", None, None)

    def test_sliced_arrays_are_read_where_they_begin(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        writer(topics, topic=topic, delivery="at_least_once").write(iter([messages().slice(1)]))
        assert [row["value"] for row in topics.read(topic=topic)] == ["zwö".encode(), None]

    def test_headers_may_be_a_map(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        maps = pa.array([[("a", "1"), ("b", "2")], []], pa.map_(pa.string(), pa.string()))
        batch = pa.RecordBatch.from_pydict({"value": ["x", "y"], "headers": maps})
        writer(topics, topic=topic, delivery="at_least_once").write(iter([batch]))
        found = topics.read(topic=topic)
        assert found[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}]

    def test_rows_go_to_the_topic_and_partition_they_name(self, topics: Topics) -> None:
        first, second = topics.create(partitions=2), topics.create(partitions=2)
        batch = pa.RecordBatch.from_pydict(
            {
                "value": ["a", "b", "c", "d"],
                "topic": [first, second, first, second],
                "partition": pa.array([0, 1, 1, 1], pa.int32()),
            }
        )
        options = {"delivery": "at_least_once", "keepPartition": "true"}
        writer(topics, **options).write(iter([batch]))
        found = {
            (row["topic"], row["partition"], row["value"])
            for topic in (first, second)
            for row in topics.read(topic=topic)
        }
        assert found == {
            (first, 0, b"a"),
            (second, 1, b"b"),
            (first, 1, b"c"),
            (second, 1, b"d"),
        }

    def test_keys_keep_their_order_over_many_requests(self, topics: Topics) -> None:
        topic = topics.create(partitions=3)
        rows = [(f"k{at % 5}", f"{at:05}") for at in range(5000)]
        batches = [
            pa.RecordBatch.from_pydict({"key": [k for k, _ in part], "value": [v for _, v in part]})
            for part in (rows[at : at + 250] for at in range(0, 5000, 250))
        ]
        writer(topics, topic=topic, delivery="at_least_once", requestBytes="10k").write(
            iter(batches)
        )
        found = topics.read(topic=topic)
        assert len(found) == 5000
        for key in {row["key"] for row in found}:
            values = [row["value"] for row in found if row["key"] == key]
            assert values == sorted(values)

    def test_a_topic_that_is_full_fails_the_task(self, topics: Topics) -> None:
        topic = topics.create(partitions=1, max_messages=2, overflow="reject")
        topics.api.put(f"/v1/topics/{topic}/subscriptions/s", json={}).raise_for_status()
        with pytest.raises(TopicFull, match="took 2 of 3"):
            writer(topics, topic=topic, delivery="at_least_once").write(iter([messages()]))


class TestExactlyOnce:
    def values(self, topics: Topics, topic: str) -> list[bytes]:
        return [row["value"] for row in topics.read(topic=topic)]

    def rows(self, *values: str) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": list(values)})

    def test_nothing_is_seen_before_the_commit(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        sink = writer(topics, topic=topic)
        staged = [sink.write(iter([self.rows("a", "b")])), sink.write(iter([]))]
        assert self.values(topics, topic) == []
        sink.commit(staged)
        assert self.values(topics, topic) == [b"a", b"b"]
        sink.commit(staged)
        assert self.values(topics, topic) == [b"a", b"b"]

    def test_only_winning_attempts_count(self, topics: Topics) -> None:
        topic = topics.create(partitions=2)
        sink = writer(topics, topic=topic)
        sink.write(iter([self.rows("lost")]))
        sink.commit([sink.write(iter([self.rows("won")])), None])
        assert self.values(topics, topic) == [b"won"]

    def test_an_abort_discards(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        sink = writer(topics, topic=topic)
        sink.abort([sink.write(iter([self.rows("a")])), None])
        writer(topics, topic=topic, delivery="at_least_once").write(iter([self.rows("b")]))
        assert self.values(topics, topic) == [b"b"]

    def test_an_abort_after_a_commit_that_took_effect_discards_nothing(
        self, topics: Topics
    ) -> None:
        topic = topics.create(partitions=1)
        sink = writer(topics, topic=topic)
        staged = [sink.write(iter([self.rows("a")]))]
        sink.commit(staged)
        sink.abort(staged)
        assert self.values(topics, topic) == [b"a"]

    def test_a_batch_done_again_writes_nothing(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        for _ in range(3):
            sink = writer(topics, topic=topic, applicationId=f"app-{topic}", batchId=4)
            staged = [sink.write(iter([self.rows("a", "b")]))]
            sink.commit(staged)
        assert self.values(topics, topic) == [b"a", b"b"]

    def test_a_driver_that_takes_over_leaves_out_what_the_other_staged(
        self, topics: Topics
    ) -> None:
        topic = topics.create(partitions=1)
        application = {"applicationId": f"app-{topic}", "batchId": 0}
        dead = writer(topics, topic=topic, **application)
        dead.write(iter([self.rows("a")]))
        sink = writer(topics, topic=topic, **application)
        staged = [sink.write(iter([self.rows("a")]))]
        dead.write(iter([self.rows("a")]))
        sink.commit(staged)
        assert self.values(topics, topic) == [b"a"]

    def test_numbers_that_begin_again_are_refused(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        name = f"app-{topic}"
        sink = writer(topics, topic=topic, applicationId=name, batchId=7)
        sink.commit([sink.write(iter([self.rows("a")]))])
        with pytest.raises(StaleCheckpoint, match="batch 7"):
            writer(topics, topic=topic, applicationId=name, batchId=0).write(iter([self.rows("b")]))
        new = writer(topics, topic=topic, applicationId=name, applicationEpoch=1, batchId=0)
        new.commit([new.write(iter([self.rows("c")]))])
        assert self.values(topics, topic) == [b"a", b"c"]

    def test_a_request_sent_twice_counts_once(self, topics: Topics) -> None:
        topic = topics.create(partitions=3)
        options = parse_sink_options({"url": topics.node.http_url, "topic": topic})
        (chunk,) = encode([self.rows("a", "b", "c", "d")], options)
        with Broker(options) as broker:
            transactions = Transactions(broker, options)
            number = transactions.begin(f"twice-{topic}", None)
            for _ in range(2):
                Stage(broker, f"twice-{topic}", number, "one").publish(chunk)
            transactions.commit(f"twice-{topic}", number, ["one"], None)
        assert sorted(self.values(topics, topic)) == [b"a", b"b", b"c", b"d"]


class TestWhoIsGone:
    """What a job that fails, dies or begins again leaves behind."""

    def rows(self, *values: str) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": list(values)})

    def open_ones(self, topics: Topics) -> list[str]:
        return [each["name"] for each in topics.api.get("/v1/transactions").json()]

    def test_who_reads_the_topic_waits_for_no_task(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        sink = writer(topics, topic=topic)
        sink.write(iter([self.rows("staged")]))
        writer(topics, topic=topic, delivery="at_least_once").write(iter([self.rows("plain")]))
        assert [row["value"] for row in topics.read(topic=topic)] == [b"plain"]
        listed = topics.api.get("/v1/topics").json()
        assert "staging" not in str(listed)
        sink.abort([None])

    def test_a_batch_is_aborted_though_no_task_told_of_it(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        sink = writer(topics, topic=topic)

        def failing() -> Iterator[pa.RecordBatch]:
            yield self.rows("a")
            raise ValueError("of a task")

        options = {"topic": topic, "requestBytes": 1}
        for each in (sink, writer(topics, applicationId=f"a-{topic}", batchId=3, **options)):
            each.options = replace(each.options, request_bytes=1)
            with pytest.raises(ValueError, match="of a task"):
                each.write(failing())
            assert each._transaction in self.open_ones(topics)
            each.abort([None, None])
            assert each._transaction not in self.open_ones(topics)

    def test_a_stream_finds_the_name_of_its_batch(self, topics: Topics, tmp_path: Path) -> None:
        (tmp_path / "metadata").write_text('{"id":"0b1c"}')
        topic = topics.create(partitions=1)
        for given, application in (
            ({"checkpointLocation": f"file:{tmp_path}"}, "spark-0b1c"),
            ({"applicationId": f"own-{topic}"}, f"own-{topic}"),
        ):
            options = parse_sink_options({"url": topics.node.http_url, "topic": topic, **given})
            sink = Sink(options)
            sink.stage(iter([self.rows("a")]), f"{application}/0/4", Step(application, 0, 4))
            assert f"{application}/0/4" in self.open_ones(topics)
            StreamWriter(options).abort([None], 4)
            assert f"{application}/0/4" not in self.open_ones(topics)

    def test_a_task_that_computes_for_long_keeps_its_batch(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        sink = writer(topics, topic=topic, sessionSeconds=1)
        early = sink.write(iter([self.rows("early")]))

        def slowly() -> Iterator[pa.RecordBatch]:
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:
                assert sink._transaction in self.open_ones(topics)
            yield self.rows("late")

        sink.commit([early, sink.write(slowly())])
        assert sorted(row["value"] for row in topics.read(topic=topic)) == [b"early", b"late"]

    def test_what_nobody_speaks_for_is_given_up_and_not_committed_in_part(
        self, topics: Topics
    ) -> None:
        topic = topics.create(partitions=1)
        sink = writer(topics, topic=topic, sessionSeconds=1)
        gone = sink.write(iter([self.rows("gone")]))
        while sink._transaction in self.open_ones(topics):
            pass
        late = sink.write(iter([self.rows("late")]))
        with pytest.raises(BatchGivenUp, match="sessionSeconds"):
            sink.commit([gone, late])
        sink.abort([gone, late])
        assert topics.read(topic=topic) == []

    def test_unless_told_otherwise_that_is_after_15_seconds(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        sink = writer(topics, topic=topic)
        sink.write(iter([self.rows("a")]))
        open_ones = topics.api.get("/v1/transactions").json()
        (mine,) = (each for each in open_ones if each["name"] == sink._transaction)
        assert mine["session_ms"] == 15_000
        sink.abort([None])

    def test_a_new_checkpoint_under_an_old_application_is_refused(self, topics: Topics) -> None:
        topic = topics.create(partitions=1)
        options = parse_sink_options({"url": topics.node.http_url, "topic": topic})
        sink, name = Sink(options), f"app-{topic}"

        def batch(query: str, epoch: int, value: str) -> None:
            step = Step(name, epoch, 0, query)
            sink.commit([sink.stage(iter([self.rows(value)]), f"{name}/{epoch}/0", step)])

        batch("old", 0, "a")
        batch("old", 0, "a")
        with pytest.raises(StaleCheckpoint, match="applicationEpoch"):
            batch("new", 0, "b")
        batch("new", 1, "c")
        assert [row["value"] for row in topics.read(topic=topic)] == [b"a", b"c"]

    @pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
    def test_a_value_that_no_request_can_take(self, topics: Topics, delivery: str) -> None:
        topic = topics.create(partitions=1)
        sink = writer(topics, topic=topic, delivery=delivery)
        with pytest.raises(RowTooLarge, match=rf"{topic}.* 1700\d\d\d\d bytes.*16777216"):
            sink.write(iter([self.rows("x" * 17_000_000)]))
        assert RECORD_BYTES_MAX == RECORDS_BYTES_MAX


class TestBadInput:
    def refused(self, batch: pa.RecordBatch) -> str:
        with pytest.raises(BadOption) as refused:
            list(encode([batch], parse_sink_options({"topic": "t"})))
        return str(refused.value)

    def test_columns_that_are_no_part_of_a_message(self) -> None:
        options = parse_sink_options({"topic": "t"})
        with pytest.raises(BadOption, match="'amount'"):
            check_columns(["value", "amount"], options)
        with pytest.raises(BadOption, match="value is needed"):
            check_columns(["key"], options)
        with pytest.raises(BadOption, match="topic"):
            check_columns(["value"], parse_sink_options({}))

    def test_types_that_are_none_of_a_message(self) -> None:
        assert "value is int64" in self.refused(pa.RecordBatch.from_pydict({"value": [1]}))
        both = {"value": ["x"], "priority": [256]}
        assert "from 0 to 255" in self.refused(pa.RecordBatch.from_pydict(both))
        both = {"value": ["x"], "headers": ["y"]}
        assert "headers is string" in self.refused(pa.RecordBatch.from_pydict(both))
        both = {"value": ["x"], "key": ["k" * 70_000]}
        assert "at most 65535 bytes" in self.refused(pa.RecordBatch.from_pydict(both))

    def test_options(self) -> None:
        for given in ({"delivery": "twice"}, {"topics": "x"}):
            with pytest.raises(BadOption):
                parse_sink_options(given)
        for name in ("applicationId", "applicationEpoch", "sessionSeconds", "transactionSeconds"):
            with pytest.raises(BadOption, match=f"{name} is for exactly_once"):
                parse_sink_options({"delivery": "at_least_once", name: "7"})
        schema = StructType().add("value", "string")
        with pytest.raises(BadOption, match="batchId is nothing without applicationId"):
            BraidDataSource({"topic": "t", "batchId": "1"}).writer(schema, False)
        batch = {"topic": "t", "applicationId": "a", "batchId": "1"}
        with pytest.raises(BadOption, match="batchId is for"):
            BraidDataSource(batch).streamWriter(schema, False)
