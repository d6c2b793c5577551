"""Files of pipelines: what is read from them, and what is said of wrong ones."""

from pathlib import Path

import pytest

from braidmq.model.errors import NotFound
from braidmq.pipeline.definition import (
    WHOLE_PARTITION,
    BadPipeline,
    SourceSpec,
    find,
    load,
    shipped_names,
)
from braidmq.pipeline.reports import render
from braidmq.pipeline.runner import find_function
from braidmq.pipeline.shipped.skew import EVEN, judge
from braidmq.pipeline.streams import least

GOOD = """
name = "orders"
trigger = "10s"
[parameters]
limit = 100
[[source]]
name = "orders"
topic = "orders"
[[step]]
name = "large"
sql = "SELECT key, value FROM orders WHERE size > ${limit}"
[[sink]]
from = "large"
topic = "large-orders"
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "pipeline.toml"
    path.write_text(text)
    return path


def refused(directory: Path, text: str, **values: str) -> str:
    with pytest.raises(BadPipeline) as error:
        load(written(directory, text), values)
    return str(error.value)


def test_what_a_file_says(tmp_path: Path) -> None:
    found = load(written(tmp_path, GOOD), {"limit": "5"})
    assert (found.name, found.interval, found.streams) == ("orders", "10 seconds", True)
    assert found.steps[0].sql.endswith("size > 5")
    assert (found.sinks[0].kind, found.sinks[0].label) == ("topic", "large-topic")
    assert load(written(tmp_path, GOOD)).steps[0].sql.endswith("size > 100")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "orders"\ntrigger', "trigger", "name"),
        ('trigger = "10s"', 'trigger = "often"', "trigger 'often'"),
        ('trigger = "10s"', 'triger = "10s"', "triger"),
        ('topic = "orders"', "", "needs exactly one of topic, topic_pattern, lake, table"),
        ('topic = "orders"', 'topic = "a"\nlake = "/b"', "needs exactly one of topic"),
        ("sql =", "python =", "module:function"),
        ('name = "large"', 'name = "orders"', "two views are named 'orders'"),
        ('name = "large"', 'name = "lar ge"', "name"),
        ('from = "large"', 'from = "small"', "'small' is not a source or step"),
        ('topic = "large-orders"', 'topic = "x"\nmode = "overwrite"', "only a lake"),
        ('topic = "large-orders"', 'report = "x.html"', "a report needs trigger"),
        ("${limit}", "${most}", "${most} is not a parameter"),
        ("limit = 100", 'limit = ""', "--set limit="),
        ("[[sink]]", "[[sinks]]", "sinks"),
        ("limit = 100", "limit = ", "line"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in refused(tmp_path, GOOD.replace(old, new))


def test_parameters_that_are_not_there(tmp_path: Path) -> None:
    assert "no parameter 'most'; there are: limit" in refused(tmp_path, GOOD, most="1")


@pytest.mark.parametrize(
    ("ordered", "of_a_stream", "at_once"),
    [
        (None, {"splitBytes": WHOLE_PARTITION}, {}),
        (True, {"splitBytes": WHOLE_PARTITION}, {"splitBytes": WHOLE_PARTITION}),
        ("key", {"splitBy": "key"}, {"splitBy": "key"}),
        (False, {}, {}),
    ],
)
def test_how_tasks_share_a_partition(ordered, of_a_stream, at_once) -> None:
    source = SourceSpec(name="s", topic="t", ordered=ordered)
    assert source.split_options(True) == of_a_stream
    assert source.split_options(False) == at_once


def test_pipelines_that_come_with_braidmq_are_right(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    needed = {"topic": "t", "lake": str(tmp_path), "history": str(tmp_path)}
    assert shipped_names() == [
        "archive",
        "clusters",
        "compact",
        "forecast",
        "latency",
        "replay",
        "skew",
        "triage",
        "usage",
    ]
    for name in shipped_names():
        path = find(name)
        text = path.read_text()
        values = {key: value for key, value in needed.items() if f'\n{key} = ""' in text}
        found = load(path, values)
        assert found.name == name
        assert found.description


def test_one_that_is_not_there() -> None:
    with pytest.raises(NotFound, match="archive, clusters, compact"):
        find("nothing")


def test_functions_of_modules_and_files(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def double(x):\n    return 2 * x\n")
    assert find_function("steps.py:double", tmp_path)(4) == 8
    assert find_function("braidmq.pipeline.shipped.skew:judge", tmp_path) is judge
    for wrong in ("steps.py:half", "none.py:x", "no.such.module:x"):
        with pytest.raises(BadPipeline, match="can't be found"):
            find_function(wrong, tmp_path)


def test_what_all_sinks_have_done() -> None:
    slow = {"a": {"0": 5, "1": 9}, "b": {"0": 1}}
    fast = {"a": {"0": 7, "1": 2}}
    # Nobody else reads b: who does is all.
    assert least([slow, fast]) == {"a": {"0": 5, "1": 2}, "b": {"0": 1}}
    assert least([{"a": {"0": 1}}, {"a": {"1": 1}}]) == {"a": {}}
    assert least([fast]) == fast
    assert least([]) == {}


def test_advice_for_even_and_for_hot_keys() -> None:
    even = judge((b"key-%d" % number, 10) for number in range(5000))
    assert even[-1][0] == 64
    assert {row[0]: row[1] for row in even}[8] <= EVEN
    hot = judge([(b"hot", 10_000), *((b"key-%d" % number, 1) for number in range(100))])
    advice = {row[0]: row[4] for row in hot}
    assert advice[1] == "the most that are even"
    assert advice[64] == "a few keys decide"
    assert judge([])[0] == (1, 1.0, 0, 1, "even")


def test_a_report_shows_what_others_wrote_as_text() -> None:
    rows = [("<script>", 5, None), ("b & c", 10, 1.5)]
    page = render("Dead <letters>", ["reason", "messages", "age_s"], rows, "reason,messages")
    assert "<script>" not in page
    assert "Dead &lt;letters&gt;" in page
    assert 'style="width:50.0%"' in page
    with pytest.raises(BadPipeline, match="no column 'x'"):
        render("t", ["a"], [(1,)], "a,x")
