"""What `braid pipeline check` finds in a file without Spark: in which line, and what to do."""

from pathlib import Path

import pytest

from braidmq.pipeline.definition import BadPipeline, Place, line_of, load

STREAM = """name = "checked"
trigger = "10s"

[spark]
"spark.sql.shuffle.partitions" = 2

[parameters]
topic = "orders"
limit = 5

[[source]]
name = "orders"
topic = "${topic}"
options = { maxRecordsPerTrigger = 100 }

[[step]]
name = "large"
sql = '''
SELECT * FROM orders
-- [[sink]]
WHERE size > ${limit}
'''

[[step]]
name = "scored"
python = "steps.py:score"
inputs = ["large"]
options = { model = "v2" }

[[sink]]
from = "scored"
topic = "scored-orders"

[[sink]]
from = "large"
name = "files"
format = "parquet"
options = { path = "/data/large" }
"""

STEPS = """
from other import imported

def score(frame, model, limit=1):
    return frame

def keep(frame, batch):
    pass
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "steps.py").write_text(STEPS)
    return tmp_path


def check(place: Path, text: str, **values: str):
    path = place / "checked.toml"
    path.write_text(text)
    return load(path, values)


def test_what_is_right(place: Path) -> None:
    assert check(place, STREAM).streams


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ('"10s"', '"continuous 1s"', 2, "no Python data source that way"),
        ('"10s"', '"1 fortnight"', 2, "is not available_now, once or a time"),
        ('"spark.sql.', '"sql.', 5, "is not a setting of Spark"),
        ("maxRecordsPerTrigger", "maxRecordsPerTriger", 14, "'maxrecordspertriger'"),
        ("maxRecordsPerTrigger = 100", "maxRecordsPerTrigger = 0", 14, "above 0"),
        ("maxRecordsPerTrigger = 100", 'endingOffsets = "latest"', 14, "for what is read at once"),
        ("maxRecordsPerTrigger = 100", 'deadLetterTopic = "d"', 14, "for values that a format"),
        ('topic = "scored-orders"', 'lake = "/l"\noptions = { version = 1 }', 33, "this appends"),
        ('topic = "${topic}"', 'format = "jdbc"\nstream = true', 14, "reads jdbc only at once"),
        ('topic = "${topic}"', 'format = "rate"', 13, "only as a stream. Add stream = true"),
        ('topic = "${topic}"', 'format = "json"\nstream = true', 13, "needs a schema"),
        ('topic = "${topic}"', 'format = "csv"\nschema = "a INT"', 15, "needs the option path"),
        ('topic = "${topic}"', 'format = "braid"', 13, "is what topic, table and lake are for"),
        ('topic = "${topic}"', 'lake = "/no/lake"', 14, "there is no option"),
        ('topic = "${topic}"', 'topic = "a"\nstream = true', 14, "only for a format"),
        ("options = { max", "chart = 1\noptions = { max", 14, "unknown field `chart`"),
        (
            "options = { max",
            'watermark = { column = "timestamp", delay = "soon" }\noptions = { max',
            14,
            "delay 'soon' is not a time. Use one such as 10 minutes",
        ),
        ("steps.py:score", "gone.py:score", 26, "there is no"),
        ("steps.py:score", "steps.py:scores", 26, "has no scores"),
        ("steps.py:score", "no.such.module:score", 26, "there is no no.such.module"),
        ("model =", "modle =", 28, "takes no argument 'modle'"),
        ('{ model = "v2" }', "{}", 28, "needs the argument 'model'"),
        ('["large"]', '["large", "orders", "large", "large"]', 26, "takes 3 DataFrames, not 4"),
        ('["large"]', '["larger"]', 27, "'larger' is not an earlier source or step"),
        ("name = \"large\"\nsql = '''", "name = \"large\"\ninputs = []\nsql = '''", 18, "inputs"),
        ('from = "scored"', 'from = "score"', 31, "'score' is not a source or step"),
        ('"scored-orders"', '"t"\noutput_mode = "complete"', 33, "Use update"),
        ('"scored-orders"', '"t"\noutput_mode = "all"', 33, "Invalid enum value 'all'"),
        ('"scored-orders"', '"t"\nmode = "overwrite"', 33, "only a lake or a format"),
        ('"scored-orders"', '"t"\ntitle = "x"', 33, "title is only for reports and console"),
        ('"scored-orders"', '"t"\noptions = { deliver = 1 }', 33, "there is no option 'deliver'"),
        ('name = "files"', 'name = "files"\noutput_mode = "update"', 37, "takes only append"),
        ('name = "files"', 'name = "scored-topic"', 36, "two sinks are named"),
        ('format = "parquet"', 'format = "jdbc"', 37, 'Add query = "name"'),
        ('format = "parquet"', 'python = "steps.py:score"', 38, "takes no argument 'path'"),
        ('{ path = "/data/large" }', "{}", 38, "parquet needs the option path"),
        ('format = "parquet"', 'format = "parquet"\nquery = "files"', 38, "not the name of a sink"),
    ],
)
def test_what_is_wrong(place: Path, old: str, new: str, line: int, said: str) -> None:
    assert old in STREAM
    with pytest.raises(BadPipeline) as error:
        check(place, STREAM.replace(old, new, 1))
    assert str(error.value).startswith(f"{place}/checked.toml:{line}: "), error.value
    assert said in str(error.value)


def test_files_that_are_to_be_read_have_to_be_there(place: Path) -> None:
    text = f"""
name = "files"
trigger = "once"
[[source]]
name = "found"
{{source}}
[[sink]]
from = "found"
format = "parquet"
options = {{{{ path = "{place}/out" }}}}
"""
    csv = f'format = "csv"\noptions = {{ path = "{place}/in/*.csv" }}'
    lake = f'lake = "{place}/in"'
    for source, line, said in ((csv, 7, "there is no file"), (lake, 6, "there is no lake")):
        with pytest.raises(BadPipeline, match=rf":{line}: .*{said}"):
            check(place, text.format(source=source))
        # Behind Spark Connect it is another machine's.
        assert load(place / "checked.toml", data_here=False)
    (place / "in" / "_delta_log").mkdir(parents=True)
    (place / "in" / "a.csv").touch()
    for source in (csv, lake):
        assert not check(place, text.format(source=source)).streams


CHUNKED = """name = "again"
trigger = "once"
checkpoint = "/c"
[[source]]
name = "archived"
lake = "{lake}"
chunk = {{ column = "offset", rows = 5 }}
[[source]]
name = "others"
lake = "{lake}"
[[sink]]
from = "archived"
topic = "t"
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("rows = 5", "rows = 0", 7, "must be 1 or more, not 0"),
        ("rows = 5", 'rows = "many"', 7, "must be 1 or more, not 'many'"),
        ("rows = 5 }", 'rows = 5 }\noptions = { range = "offset:0:1" }', 7, "range is not free"),
        ('"/c"', '"s3://c"', 3, "must be a directory here"),
        ('"/c"', '"/c"\nretries = 2', 4, "only for streams"),
        ('name = "others"', 'name = "b"\nchunk = { column = "a", rows = 1 }', 7, "only one source"),
        ('topic = "t"', "console = true", 13, "only the last chunk"),
        ('topic = "t"', 'lake = "/l"\nmode = "overwrite"', 14, "only the last chunk"),
        (
            'topic = "t"',
            'topic = "t"\noptions = { applicationId = "a" }',
            14,
            "counts its batches itself",
        ),
    ],
)
def test_chunks(place: Path, old: str, new: str, line: int, said: str) -> None:
    (place / "in" / "_delta_log").mkdir(parents=True)
    text = CHUNKED.format(lake=place / "in")
    assert check(place, text).resumes
    with pytest.raises(BadPipeline) as error:
        check(place, text.replace(old, new, 1))
    assert str(error.value).startswith(f"{place}/checked.toml:{line}: "), error.value
    assert said in str(error.value)


def test_chunks_of_a_topic(place: Path) -> None:
    chunk = 'chunk = { column = "offset", rows = 5 }'
    with pytest.raises(BadPipeline, match="chunk is only for lakes"):
        check(place, STREAM.replace("options = { max", f"{chunk}\noptions = {{ max"))


@pytest.mark.parametrize("key", ["retries = 2", 'checkpoint = "/c"'])
def test_settings_of_streams_where_there_is_none(place: Path, key: str) -> None:
    text = STREAM.replace('trigger = "10s"', f'trigger = "once"\n{key}')
    with pytest.raises(BadPipeline, match=r":3: \w+ is only for streams"):
        check(place, text)


def test_sinks_of_one_query_share_what_they_are_from(place: Path) -> None:
    text = STREAM.replace('topic = "scored-orders"', 'topic = "t"\nquery = "q"')
    with pytest.raises(BadPipeline, match=r":38: .*the same from and output_mode"):
        check(place, text.replace('name = "files"', 'name = "files"\nquery = "q"'))


def test_a_run_is_known_by_what_it_reads_and_writes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step does with it may change from run to run; offsets of a topic are its own."""
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    plain, same, other = (
        check(place, STREAM, **values)
        for values in ({}, {"limit": "6", "topic": "orders"}, {"topic": "others"})
    )
    assert plain.known_by == same.known_by == {"topic": "orders"}
    assert other.known_by == {"topic": "others"}
    assert plain.checkpoint_dir == same.checkpoint_dir == "/state/braidmq/pipelines/checked"
    assert other.checkpoint_dir.startswith("/state/braidmq/pipelines/checked@")
    third = check(place, STREAM, topic="third")
    assert len({each.checkpoint_dir for each in (plain, other, third)}) == 3


def test_lines_of_keys() -> None:
    assert line_of(STREAM, Place("sink", 0, "topic")) == 32
    assert line_of(STREAM, Place("sink", 1)) == 34
    assert line_of(STREAM, Place("source", 0, "nothing")) == 11
    assert line_of(STREAM, None) == 1
