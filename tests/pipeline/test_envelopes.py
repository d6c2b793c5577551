"""What is read with its envelope and written again is what it was, byte for byte; and nobody gets a
message into a topic that way which they could not have published."""

import itertools
from collections.abc import Iterator

import pika
import pyarrow as pa
import pytest
from braid_topics import Topics, wait_until
from celery import Celery
from celery.contrib.testing.worker import start_worker
from mixed_topic import in_the_log, mixed

from braidmq.model.errors import BraidError
from braidmq.pipeline.columns import MESSAGE, SCHEMA
from braidmq.pipeline.encoding import check_columns, encode
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.sink import BatchWriter
from braidmq.pipeline.sink_options import SinkOptions, parse_sink_options
from braidmq.wire.amqp.properties import Properties, encode_properties
from braidmq.wire.envelopes import AMQP, MQTT
from braidmq.wire.mqtt.text import write_string

EVERY_COLUMN = ",".join(MESSAGE.names)


def batches(topics: Topics, topic: str, columns: str = EVERY_COLUMN) -> Iterator[pa.RecordBatch]:
    reader = topics.batch_reader(topic=topic, columns=columns)
    return itertools.chain.from_iterable(reader.read(part) for part in reader.partitions())


def write_again(topics: Topics, rows: Iterator[pa.RecordBatch], topic: str) -> None:
    given = {"url": topics.node.http_url, "topic": topic, "keeppartition": "true"}
    writer = BatchWriter(parse_sink_options(given))
    writer.commit([writer.write(rows)])


def test_every_message_is_what_it_was(topics: Topics):
    source = mixed(topics)
    again = topics.create(partitions=2)
    write_again(topics, batches(topics, source), again)
    found = in_the_log(topics, again)
    assert found == in_the_log(topics, source)
    assert {each[4] for part in found for each in part} == {0, 1, 2}
    assert sum(map(len, found)) == 15


def test_without_the_envelope_values_become_text(topics: Topics):
    """What the column is for."""
    source = mixed(topics, 1)
    again = topics.create(partitions=1)
    write_again(topics, batches(topics, source, ",".join(SCHEMA.names)), again)
    assert in_the_log(topics, again) != in_the_log(topics, source)


def test_a_queue_of_celery_goes_on_elsewhere(topics: Topics):
    """Its worker needs null, lists and numbers to be just that."""
    broken, again = "tasks-then", "tasks-again"
    port = topics.node.ports["amqp_port"]
    app = Celery("shop", broker=f"amqp://guest:guest@127.0.0.1:{port}//", set_as_current=False)
    app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False)
    done: list[tuple[int, int, list[int | None]]] = []

    @app.task(name="bill", bind=True, shared=False)
    def bill(self, number: int) -> None:
        done.append((number, self.request.retries, self.request.timelimit))

    for number in range(5):
        bill.apply_async((number,), queue=broken, time_limit=30, retries=2)
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        connection.channel().queue_declare(again, durable=True)
    write_again(topics, batches(topics, broken), again)
    with start_worker(
        app, pool="solo", queues=[again], perform_ping_check=False, shutdown_timeout=60
    ):
        wait_until(lambda: len(done) == 5)
    assert sorted(done) == [(number, 2, [30, None]) for number in range(5)]


# --- headers beside it ---


def rows_of(topics: Topics) -> pa.Table:
    return pa.Table.from_batches(list(batches(topics, mixed(topics, 1)))).combine_chunks()


def test_headers_that_were_changed_are_not_lost_silently(topics: Topics):
    (batch,) = rows_of(topics).to_batches()
    options = SinkOptions(topic="t")
    check_columns(batch.schema.names, options)
    assert sum(each.rows for each in encode([batch], options)) == 15
    assert sum(each.rows for each in encode([batch.slice(3)], options)) == 12
    at = batch.schema.get_field_index("headers")
    none = pa.nulls(batch.num_rows, batch.schema.field(at).type)
    changed = batch.set_column(at, batch.schema.field(at), none)
    with pytest.raises(BadOption, match="not those of its envelope"):
        list(encode([changed], options))
    without = batch.drop_columns(["envelope"])
    assert sum(each.rows for each in encode([without], options)) == 15


def test_an_envelope_needs_a_format():
    batch = pa.RecordBatch.from_pydict({"value": ["a"], "envelope": [b""]})
    with pytest.raises(BadOption, match="format"):
        list(encode([batch], SinkOptions(topic="t")))


# --- what others claim ---


def amqp(exchange: bytes = b"", **given: object) -> bytes:
    raw = encode_properties(Properties(**given))
    return bytes([AMQP, len(exchange)]) + exchange + b"\1q" + raw


def mqtt(topic: str) -> bytes:
    return bytes([MQTT, 0]) + write_string(topic)


def written(topics: Topics, topic: str, envelope: bytes, user: str = "guest") -> None:
    given = {"url": topics.node.http_url, "topic": topic, "user": user, "password": user}
    batch = pa.RecordBatch.from_pydict({"value": [b"v"], "envelope": [envelope]})
    writer = BatchWriter(parse_sink_options({**given, "delivery": "at_least_once"}))
    writer.write(iter([batch]))


@pytest.fixture
def eve(topics: Topics) -> Iterator[str]:
    """May write to her own topics and exchanges, and those of AMQP's default exchange."""
    api = topics.api
    api.put("/v1/users/eve", json={"password": "eve"}).raise_for_status()
    rights = {"configure": "", "write": "^(mine|own/.*|amq\\.default|topic-.*)$", "read": ""}
    api.put("/v1/permissions/%2F/eve", json=rights).raise_for_status()
    yield "eve"
    api.delete("/v1/users/eve").raise_for_status()


@pytest.mark.parametrize(
    ("envelope", "code"),
    [
        (amqp(user_id="guest"), "bad-records"),
        (amqp(b"payments"), "access-refused"),
        (mqtt("plant/1"), "access-refused"),
        (mqtt("$SYS/broker"), "bad-records"),
        (mqtt("$queue/orders"), "access-refused"),
        (amqp()[:-1], "bad-records"),
        (b"\3", "bad-records"),
    ],
)
def test_forged_ones_are_refused(topics: Topics, eve: str, envelope: bytes, code: str):
    topic = topics.create(partitions=1)
    with pytest.raises(BraidError) as caught:
        written(topics, topic, envelope, eve)
    assert caught.value.code == code
    assert topics.read(topic=topic) == []


def test_what_its_publisher_may_say_is_taken(topics: Topics, eve: str):
    topic = topics.create(partitions=1)
    mine = [amqp(user_id="eve"), amqp(b"mine"), mqtt("own/1"), mqtt("$queue/mine")]
    for envelope in mine:
        written(topics, topic, envelope, eve)
    assert [row["envelope"] for row in topics.read(topic=topic, columns=EVERY_COLUMN)] == mine


def test_an_impersonator_may_replay_what_others_published(topics: Topics, eve: str):
    topic = topics.create(partitions=1)
    with pytest.raises(BraidError, match="impersonator"):
        written(topics, topic, amqp(user_id="bob"))
    answer = topics.api.put("/v1/users/eve/tags", json={"tags": ["impersonator"]})
    answer.raise_for_status()
    written(topics, topic, amqp(user_id="bob"), eve)
    (row,) = topics.read(topic=topic)
    assert row["headers"] == [{"key": "user-id", "value": b"bob"}]
