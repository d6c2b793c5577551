"""Batch reads by the reader classes, without a JVM: what Spark would call, in its order."""

import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from braid_topics import Topics, rows, wait_until
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, InputPartition, LessThan

from braidmq.model.errors import AccessRefused, NotAuthenticated, NotFound, OffsetOutOfRange
from braidmq.pipeline.errors import BadOption, BrokerUnreachable, DataLoss
from braidmq.pipeline.options import parse_options
from braidmq.pipeline.reading import Ranges, SplitReader
from braidmq.pipeline.source import FilteringReader, SplitPartition
from braidmq.testing.live import free_ports


@pytest.fixture(scope="module")
def filled(topics: Topics) -> str:
    topic = topics.create(partitions=2)
    topics.fill(topic, 6000)
    wait_until(lambda: topics.sealed(topic) > 2)
    topics.fill(topic, 50)  # these are not in a segment yet
    return topic


def expected(topics: Topics, topic: str) -> list[tuple[int, int, str]]:
    """By the broker's own reading, message by message."""
    found = []
    for partition in topics.log(topic)["partitions"]:
        number, at = partition["partition"], partition["start_offset"]
        while at < partition["end_offset"]:
            path = f"/v1/topics/{topic}/partitions/{number}/messages"
            page = topics.api.get(path, params={"start": str(at), "limit": 1000}).json()
            found += [(number, each["offset"], each["value"]) for each in page["messages"]]
            at = page["next_offset"]
    return found


def seen(found: list[dict]) -> list[tuple[int, int, str]]:
    return [(row["partition"], row["offset"], row["value"].decode()) for row in found]


@pytest.mark.parametrize("mode", ["segments", "broker"])
def test_all_of_a_topic_to_the_last_confirmed_record(topics, filled, mode):
    found = topics.read(topic=filled, readMode=mode, splitBytes="100k")
    assert seen(found) == expected(topics, filled)
    assert {row["topic"] for row in found} == {filled}
    assert {row["delivery"]["protocol"] for row in found} == {"native"}


@pytest.mark.parametrize("mode", ["segments", "broker"])
def test_tasks_that_share_partitions_by_key(topics, filled, mode):
    reader = topics.batch_reader(topic=filled, readMode=mode, splitBytes="100k", splitBy="key")
    tasks = [
        [row for each in reader.read(part) for row in each.to_pylist()]
        for part in reader.partitions()
    ]
    assert len(tasks) > 2  # of two partitions
    every = (row for each in tasks for row in each)
    found = sorted(every, key=lambda row: (row["partition"], row["offset"]))
    assert seen(found) == expected(topics, filled)
    for each in tasks:
        assert len({row["partition"] for row in each}) <= 1
        assert [row["offset"] for row in each] == sorted(row["offset"] for row in each)
    keys = [{row["key"] for row in each} for each in tasks]
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_a_little_of_a_partition_is_one_task(topics):
    topic = topics.create(partitions=2)
    topics.publish(topic, [{"value": "v", "key": f"k{at}"} for at in range(50)])
    assert len(topics.batch_reader(topic=topic, splitBy="key").partitions()) == 2


def test_segments_come_over_http_where_their_files_are_not(topics, filled):
    reader = topics.batch_reader(topic=filled, splitBytes="100k")
    parts = [
        SplitPartition(replace(part.value, directory="/nowhere")) for part in reader.partitions()
    ]
    assert any(part.value.segments for part in parts)
    found = rows(batch for part in parts for batch in reader.read(part))
    assert seen(found) == expected(topics, filled)


def test_a_topic_that_is_compressed_comes_as_it_is_on_disk(topics: Topics) -> None:
    """In place and over HTTP: whoever reads it expands it, and the broker does nothing."""
    topic = topics.create(partitions=1, compression="zstd")
    topics.fill(topic, 6000)
    wait_until(lambda: topics.sealed(topic) > 2)
    wanted = seen(topics.read(topic=topic, readMode="broker"))
    assert len(wanted) == 6000
    (part,) = topics.batch_reader(topic=topic).partitions()
    options = parse_options({"url": topics.node.http_url, "topic": topic})
    for directory in (part.value.directory, "/nowhere"):
        split = replace(part.value, directory=directory, lease="")
        reader = SplitReader(split, options)
        assert seen(rows(reader.read())) == wanted
        beyond = split.end - split.segments[-1].end_offset
        assert reader.bytes_read < 6000 * 200 / 4 + beyond * 500


def test_a_file_of_another_broker_is_not_taken_for_the_segment(topics, filled, tmp_path):
    reader = topics.batch_reader(topic=filled)
    parts = reader.partitions()
    for name in {each.name for part in parts for each in part.value.segments}:
        original = Path(parts[0].value.directory) / name
        data = bytearray(original.read_bytes())
        data[64 + 24] ^= 1  # another time in its first record
        (tmp_path / name).write_bytes(data)
    moved = [SplitPartition(replace(part.value, directory=str(tmp_path))) for part in parts]
    found = rows(batch for part in moved for batch in reader.read(part))
    assert seen(found) == expected(topics, filled)


@pytest.fixture(scope="module")
def fanned_out(topics: Topics) -> tuple[str, str]:
    """Two topics that got the same messages, and have their bodies once."""
    exchange, first, second = "fanned-out", topics.create(1), topics.create(1)
    topics.api.put(f"/v1/exchanges/{exchange}", json={"kind": "fanout"}).raise_for_status()
    for topic in (first, second):
        binding = {"source": exchange, "destination": topic}
        topics.api.post("/v1/bindings", json=binding).raise_for_status()
    for start in range(0, 3000, 500):
        messages = [{"value": f"{at}:".ljust(200, "x")} for at in range(start, start + 500)]
        url = f"/v1/exchanges/{exchange}/messages"
        topics.api.post(url, json={"messages": messages}).raise_for_status()
    wait_until(lambda: topics.sealed(first) and topics.sealed(second))
    return first, second


@pytest.mark.parametrize("directory", [None, "/nowhere"])
def test_bodies_that_topics_share(topics, fanned_out, directory):
    """In place, and from the broker where the files are not: one topic's reader does not get to see
    the bodies of others."""
    for topic in fanned_out:
        segments = topics.log(topic)["partitions"][0]["segments"]
        assert all(each["shared_bytes"] > 100 * each["records"] for each in segments)
        reader = topics.batch_reader(topic=topic, splitBytes="100k")
        parts = reader.partitions()
        assert len(parts) > 4
        if directory is not None:
            parts = [SplitPartition(replace(each.value, directory=directory)) for each in parts]
        found = rows(batch for part in parts for batch in reader.read(part))
        assert seen(found) == expected(topics, topic)
        assert len(found) == 3000


def test_splits_are_smaller_than_a_partition_and_travel(topics, filled):
    reader = topics.batch_reader(topic=filled, splitBytes="50k")
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    by_partition = {}
    for part in parts:
        by_partition.setdefault(part.value.partition, []).append(part.value)
    for number, splits in by_partition.items():
        assert len(splits) > 5
        ends = [(split.start, split.end) for split in splits]
        assert all(one[1] == other[0] for one, other in pairwise(ends))
        log = topics.log(filled)["partitions"][number]
        assert (ends[0][0], ends[-1][1]) == (log["start_offset"], log["end_offset"])


def test_ranges_by_offset(topics, filled):
    start = f'{{"{filled}": {{"0": 100, "1": -2}}}}'
    end = f'{{"{filled}": {{"0": 300, "1": 50}}}}'
    found = topics.read(topic=filled, startingOffsets=start, endingOffsets=end)
    wanted = [
        row
        for row in expected(topics, filled)
        if (row[0] == 0 and 100 <= row[1] < 300) or (row[0] == 1 and row[1] < 50)
    ]
    assert seen(found) == wanted
    assert topics.read(topic=filled, startingOffsets="latest") == []


def test_some_of_the_columns(topics, filled):
    source = topics.source(topic=filled, columns="offset, value,delivery")
    schema = source.schema()
    assert schema.fieldNames() == ["offset", "value", "delivery"]
    reader = source.reader(schema)
    found = [
        row
        for part in reader.partitions()
        for each in reader.read(part)
        for row in each.to_pylist()
    ]
    every = topics.read(topic=filled)
    assert sorted(found, key=str) == sorted(
        ({name: row[name] for name in schema.fieldNames()} for row in every), key=str
    )


def test_an_empty_topic_has_no_rows(topics):
    topic = topics.create()
    assert topics.read(topic=topic) == []
    reader = topics.batch_reader(topic=topic)
    # Spark calls this where there are no partitions.
    assert list(reader.read(InputPartition(None))) == []


def test_what_was_cancelled_before_its_time_is_no_row(topics):
    topic = topics.create(partitions=1)
    later = [{"value": f"{at}", "delay_ms": 3_600_000} for at in range(6)]
    topics.publish(topic, later)
    for offset in (0, 3, 4):
        topics.api.delete(f"/v1/topics/{topic}/delayed/0/{offset}").raise_for_status()
    for mode in ("segments", "broker"):
        found = topics.read(topic=topic, readMode=mode)
        assert [row["value"] for row in found] == [b"1", b"2", b"5"]


def test_a_pattern_takes_every_topic_that_matches(topics):
    names = [topics.create(partitions=1) for _ in range(2)]
    for name in names:
        topics.publish(name, [{"value": name}])
    pattern = "|".join(names)
    found = topics.read(topicPattern=pattern)
    assert sorted(row["value"].decode() for row in found) == sorted(names)
    assert topics.read(topicPattern="nothing-.*") == []


# --- time ---


@pytest.fixture(scope="module")
def timed(topics: Topics) -> tuple[str, list[dict]]:
    """A topic whose messages came one after the other, with times that differ."""
    topic = topics.create(partitions=1)
    for _ in range(40):
        topics.fill(topic, 100)
    return topic, topics.read(topic=topic)


def milliseconds(row: dict) -> int:
    return round(row["timestamp"].timestamp() * 1000)


def test_ranges_by_time(topics, timed):
    topic, every = timed
    times = sorted({milliseconds(row) for row in every})
    low, high = times[len(times) // 3], times[len(times) // 2]
    found = topics.read(topic=topic, startingTimestamp=low, endingTimestamp=high)
    assert found == [row for row in every if low <= milliseconds(row) < high]
    text = datetime.fromtimestamp(low / 1000, UTC).isoformat()
    assert topics.read(topic=topic, startingTimestamp=text, endingTimestamp=high) == found
    assert topics.read(topic=topic, startingTimestamp=times[-1] + 1) == []


def filtered(topics: Topics, filters: list, **options: object) -> tuple[list[dict], int]:
    """Rows, and how many bytes were looked at for them."""
    reader = topics.batch_reader(pushFilters="true", **options)
    assert isinstance(reader, FilteringReader)
    assert list(reader.pushFilters(filters)) == filters
    readers = [SplitReader(part.value, reader.options) for part in reader.partitions()]
    found = rows(batch for each in readers for batch in each.read())
    return found, sum(each.bytes_read for each in readers)


def test_filters_on_time_read_little_else(topics, timed):
    topic, every = timed
    size = sum(part["size"] for part in topics.log(topic)["partitions"])
    middle = every[len(every) // 2]["timestamp"]
    filters = [
        GreaterThanOrEqual(("timestamp",), middle),
        LessThan(("timestamp",), middle + timedelta(milliseconds=1)),
    ]
    found, looked_at = filtered(topics, filters, topic=topic)
    assert found == [row for row in every if row["timestamp"] == middle]
    assert looked_at < size / 20


def test_filters_on_offsets_partitions_and_keys(topics, filled):
    every = topics.read(topic=filled)
    size = sum(part["size"] for part in topics.log(filled)["partitions"])
    filters = [
        EqualTo(("partition",), 0),
        GreaterThanOrEqual(("offset",), 700),
        LessThan(("offset",), 720),
    ]
    found, looked_at = filtered(topics, filters, topic=filled)
    assert found == [row for row in every if row["partition"] == 0 and 700 <= row["offset"] < 720]
    assert looked_at < size / 20
    found, _ = filtered(topics, [In(("key",), (b"key-1", b"key-5"))], topic=filled)
    assert found == [row for row in every if row["key"] in (b"key-1", b"key-5")]
    found, looked_at = filtered(topics, [EqualTo(("partition",), 9)], topic=filled)
    assert (found, looked_at) == ([], 0)


@pytest.mark.parametrize("where", ["in place", "over HTTP"])
def test_filters_on_keys_skip_segments_that_have_none_of_them(topics, where):
    topic = topics.create(partitions=1)
    topics.publish(topic, [{"value": "x" * 200, "key": f"early-{at}"} for at in range(3000)])
    topics.publish(topic, [{"value": "rare", "key": "rare"}])
    topics.publish(topic, [{"value": "x" * 200, "key": f"late-{at}"} for at in range(3000)])
    wait_until(lambda: topics.sealed(topic) > 3)
    reader = topics.batch_reader(pushFilters="true", topic=topic)
    reader.pushFilters([In(("key",), (b"rare", b"early-7"))])
    splits = [part.value for part in reader.partitions()]
    (log,) = topics.log(topic)["partitions"]
    sealed = [each["size"] for each in log["segments"] if each["sealed"]]
    if where == "over HTTP":
        splits = [replace(each, directory="/nowhere") for each in splits]
    readers = [SplitReader(each, reader.options) for each in splits]
    found = rows(batch for each in readers for batch in each.read())
    assert [(row["offset"], row["value"]) for row in found] == [
        (7, b"x" * 200),
        (3000, b"rare"),
    ]
    looked_at = sum(each.bytes_read for each in readers)
    # Two of them and what is not sealed; of the others one in a hundred may seem to have a key.
    assert looked_at < log["size"] - min(sealed) / 2
    assert len(sealed) > 3


def test_ranges_over_http_are_asked_for_once():
    data, asked = bytes(range(256)), []

    def ask(at: int, length: int) -> bytes:
        asked.append((at, length))
        return data[at : at + length]

    ranges = Ranges(ask)
    for at, length in ((10, 50), (30, 50), (30, 20), (75, 30), (105, 5), (200, 10), (20, 4)):
        assert ranges.fetch(at, length) == data[at : at + length]
    assert asked == [(10, 50), (60, 20), (80, 25), (105, 5), (200, 10), (20, 4)]


# --- leases ---


def test_a_query_holds_a_lease_until_its_last_split_is_read(topics, filled):
    reader = topics.batch_reader(topic=filled, splitBytes="100k")
    parts = reader.partitions()
    name = parts[0].value.lease
    (lease,) = [each for each in topics.leases() if each["name"] == name]
    assert lease["parts"] == len(parts)
    assert {(at["topic"], at["partition"], at["offset"]) for at in lease["positions"]} == {
        (filled, 0, 0),
        (filled, 1, 0),
    }
    for part in parts[:-1]:
        list(reader.read(part))
    (lease,) = [each for each in topics.leases() if each["name"] == name]
    assert lease["finished"] == len(parts) - 1
    list(reader.read(parts[-1]))
    assert name not in [each["name"] for each in topics.leases()]


def test_retention_waits_for_a_query(topics):
    topic = topics.create(partitions=1, retention={"messages": 100})
    topics.fill(topic, 90)
    reader = topics.batch_reader(topic=topic)
    parts = reader.partitions()
    topics.fill(topic, 5000)
    wait_until(lambda: topics.sealed(topic) > 2)
    assert topics.log(topic)["partitions"][0]["start_offset"] == 0
    assert len(rows(batch for part in parts for batch in reader.read(part))) == 90
    wait_until(lambda: topics.log(topic)["partitions"][0]["start_offset"] >= 4990)


# --- bad input ---


def test_a_topic_that_is_not_there(topics):
    with pytest.raises(NotFound, match="no topic 'missing'"):
        topics.read(topic="missing")


def test_offsets_out_of_range(topics, filled):
    far = f'{{"{filled}": {{"0": 999999}}}}'
    with pytest.raises(OffsetOutOfRange, match="offset 999999 is not between 0 and"):
        topics.read(topic=filled, startingOffsets=far)
    assert [
        row
        for row in topics.read(topic=filled, startingOffsets=far, failOnDataLoss="false")
        if row["partition"] == 0
    ] == []
    with pytest.raises(NotFound, match="no partition 7"):
        topics.read(topic=filled, startingOffsets=f'{{"{filled}": {{"7": 0}}}}')
    with pytest.raises(NotFound, match="'other', which is not read"):
        topics.read(topic=filled, startingOffsets='{"other": {"0": 0}}')


def test_retention_that_overtakes_a_reader_is_loss(topics):
    topic = topics.create(partitions=1, retention={"messages": 100})
    topics.fill(topic, 90)
    reader = topics.batch_reader(topic=topic, readMode="broker")
    parts = reader.partitions()
    topics.api.delete(f"/v1/leases/{parts[0].value.lease}").raise_for_status()
    topics.fill(topic, 5000)
    with pytest.raises(DataLoss, match=r"offsets 0 to \d+ were lost"):
        list(reader.read(parts[0]))
    lenient = topics.batch_reader(topic=topic, failOnDataLoss="false")
    assert list(lenient.read(parts[0])) == []


def test_wrong_credentials(topics, filled):
    with pytest.raises(NotAuthenticated):
        topics.read(topic=filled, password="wrong")
    with pytest.raises(NotAuthenticated):
        topics.read(topic=filled, token="wrong")


def test_a_user_without_permission_reads_nothing(topics, filled):
    topics.api.put("/v1/users/nosy", json={"password": "secret-of-nosy"}).raise_for_status()
    with pytest.raises(AccessRefused):
        topics.read(topic=filled, user="nosy", password="secret-of-nosy")


def test_a_broker_that_is_down(topics):
    (port,) = free_ports(1)
    with pytest.raises(BrokerUnreachable, match=f"no broker answers at http://127.0.0.1:{port}"):
        topics.read(url=f"http://127.0.0.1:{port}", topic="any", retrySeconds=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "one of the options topic, topicPattern"),
        ({"topic": "a", "topicPattern": "b"}, "one of the options topic, topicPattern"),
        ({"topic": "a", "topicc": "b"}, "no option 'topicc'"),
        ({"topic": "a", "readMode": "fast"}, "readMode must be one of segments, broker"),
        ({"topic": "a", "startingOffsets": "begin"}, "startingOffsets: 'begin' can't be read"),
        ({"topic": "a", "startingOffsets": '{"a": {"0": -5}}'}, "-2 (earliest), -1 (latest)"),
        ({"topic": "a", "startingTimestamp": "soon"}, "startingTimestamp: 'soon' is not a time"),
        ({"topic": "a", "maxRecordsPerTrigger": "0"}, "PerTrigger must be a number above 0"),
        ({"topic": "a", "splitBytes": "much"}, "splitBytes must be a number above 0"),
        ({"topic": "a", "splitBy": "value"}, "splitBy must be one of offset, key"),
        (
            {"topic": "a", "splitBy": "key", "maxRecordsPerPartition": "5"},
            "maxRecordsPerPartition can't be promised",
        ),
        ({"topic": "a", "failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        (
            {"topic": "a", "startingOffsets": "latest", "startingTimestamp": "1"},
            "only one of startingOffsets, startingTimestamp",
        ),
        ({"table": "weather"}, "table must be one of depth"),
        ({"topic": "a", "columns": "key,colour"}, "messages have no column 'colour'"),
        ({"topic": "a", "columns": "key,,value"}, "not a list of distinct names"),
        ({"topic": "a", "columns": "key", "format": "json"}, "the schema names them"),
    ],
)
def test_options_that_are_wrong_are_named(topics, options, said):
    with pytest.raises(BadOption) as caught:
        topics.source(**options).schema()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("streams", "options", "said"),
    [
        (False, {"maxRecordsPerTrigger": "5"}, "maxRecordsPerTrigger is for streams"),
        (False, {"maxBytesPerTrigger": "5m"}, "maxBytesPerTrigger is for streams"),
        (False, {"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger is for streams"),
        (False, {"group": "g"}, "group is for streams"),
        (False, {"pollMilliseconds": "5"}, "pollMilliseconds is for streams"),
        (True, {"endingOffsets": "latest"}, "endingOffsets is for what is read at once"),
        (True, {"endingTimestamp": "5"}, "endingTimestamp is for what is read at once"),
        (True, {"endingOffsetsByTimestamp": '{"a": {"0": 1}}'}, "is for what is read at once"),
        (True, {"pushFilters": "true"}, "pushFilters is for what is read at once"),
        (False, {"deadLetterTopic": "d"}, "deadLetterTopic is for values that a format"),
    ],
)
def test_options_that_would_do_nothing_are_refused(topics, streams, options, said):
    source = topics.source(topic="a", **options)
    with pytest.raises(BadOption) as caught:
        (source.streamReader if streams else source.reader)(source.schema())
    assert said in str(caught.value)
