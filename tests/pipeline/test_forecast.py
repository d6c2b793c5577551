"""Trends of lag, without Spark."""

from datetime import UTC, datetime, timedelta

import pytest

from braidmq.pipeline.shipped.clusters import Template, clusters
from braidmq.pipeline.shipped.forecast import Look, judge, slope

BEGIN = datetime(2026, 5, 1, tzinfo=UTC)


def looks(*lags: int) -> list[Look]:
    """A minute apart."""
    return [Look(BEGIN + timedelta(minutes=at), lag, 0, 0) for at, lag in enumerate(lags)]


def test_when_it_is_drained_or_reaches_its_limit() -> None:
    falling = judge("s", looks(1000, 940, 880, 820))
    assert (falling.verdict, falling.trend_per_s) == ("drained at", -1.0)
    assert falling.at == BEGIN + timedelta(minutes=3, seconds=820)
    rising = judge("s", looks(0, 60, 120), limit=240)
    assert (rising.verdict, rising.at) == ("limit at", BEGIN + timedelta(minutes=4))
    assert rising.expected[-1] == (BEGIN + timedelta(minutes=2, seconds=30), 150.0)


def test_what_has_no_time() -> None:
    assert judge("s", looks(5)).verdict == "one look"
    assert judge("s", looks(5, 0)).verdict == "drained"
    assert judge("s", looks(5, 10)).verdict == "growing"
    assert judge("s", looks(10, 10, 10)).verdict == "steady"
    assert judge("s", looks(10, 20, 30), limit=25).verdict == "over the limit"


def test_one_burst_does_not_turn_a_trend() -> None:
    lags = [1000 - 10 * at for at in range(20)]
    lags[7] = 50_000
    assert slope([60.0 * at for at in range(20)], lags) == pytest.approx(-1 / 6)


def test_far_away_is_no_time_of_a_calendar() -> None:
    many = looks(10**15, 10**15 - 10**13)
    assert judge("s", many).at is not None
    slow = [Look(BEGIN, 10**17, 0, 0), Look(BEGIN + timedelta(days=300), 10**17 - 10**9, 0, 0)]
    assert judge("s", slow).verdict == "steady"


def test_texts_that_differ_in_few_words_are_one_cluster() -> None:
    found = clusters(
        [
            Template("can not write to disk alpha of the node", 5),
            Template("can not write to disk beta of the node", 3),
            Template("can not parse", 2),
            Template("", 1),
        ]
    )
    assert found == {
        "can not write to disk alpha of the node": "can not write to disk <any> of the node",
        "can not write to disk beta of the node": "can not write to disk <any> of the node",
        "can not parse": "can not parse",
        "": "",
    }
