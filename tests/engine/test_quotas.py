"""What namespaces may have, with counts that a test makes up."""

import logging

import pytest

from braidmq.engine.errors import LimitReached
from braidmq.engine.quotas import STORAGE, Quotas


class Counts:
    def __init__(self) -> None:
        self.there: dict[tuple[str, str], int] = {}
        self.asked = 0

    def of(self, quota: str, namespace: str) -> int:
        self.asked += 1
        return self.there.get((quota, namespace), 0)


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def quotas(counts: Counts) -> Quotas:
    made = Quotas()
    for quota in ("max_topics", STORAGE):
        made.count_by(quota, lambda namespace, quota=quota: counts.of(quota, namespace))
    return made


def test_the_last_one_that_fits_is_let_in_and_the_next_is_not(
    quotas: Quotas, counts: Counts
) -> None:
    quotas.set("shop", {"max_topics": 3})
    counts.there["max_topics", "shop"] = 2
    quotas.require("shop", "max_topics")
    counts.there["max_topics", "shop"] = 3
    with pytest.raises(LimitReached, match="'shop' has reached its quota max_topics of 3"):
        quotas.require("shop", "max_topics")
    assert quotas.refused == {("shop", "max_topics"): 1}


def test_nothing_is_counted_for_who_has_no_quota(quotas: Quotas, counts: Counts) -> None:
    quotas.set("shop", {"max_topics": 0})
    quotas.require("yard", "max_topics", 1000)
    quotas.require("shop", STORAGE, 1000)
    quotas.store("shop", 1 << 40)
    assert not quotas.limits_storage
    assert counts.asked == 0


def test_storage_is_added_up_and_counted_again_once_a_look_where_it_seems_full(
    quotas: Quotas, counts: Counts
) -> None:
    quotas.set("shop", {STORAGE: 1000})
    assert quotas.limits_storage
    quotas.store("shop", 600)
    with pytest.raises(LimitReached, match=STORAGE):
        quotas.store("shop", 600)
    quotas.store("shop", 400)
    counts.there[STORAGE, "shop"] = 100  # the rest was consumed
    quotas.look()
    quotas.store("shop", 900)
    asked = counts.asked
    for _ in range(50):
        with pytest.raises(LimitReached):
            quotas.store("shop", 1)
    assert counts.asked == asked, "whoever floods does not have everything counted"


def test_a_quota_that_was_lifted_limits_nothing(quotas: Quotas) -> None:
    quotas.set("shop", {STORAGE: 1})
    quotas.set("shop", {})
    quotas.store("shop", 100)
    assert not quotas.limits_storage
    assert quotas.usage("shop") == []


def test_all_are_looked_at_in_turns_and_warned_of_once(
    quotas: Quotas, counts: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abcde":
        quotas.set(name, {"max_topics": 10})
        counts.there["max_topics", name] = 8
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            quotas.look()
    said = [record.__dict__["namespace"] for record in caplog.records]
    assert sorted(said) == list("abcde")
    assert all(use.is_near for _, use in quotas.all_usage())
    caplog.clear()
    counts.there["max_topics", "c"] = 7
    for _ in range(5):
        quotas.look()
    counts.there["max_topics", "c"] = 9
    for _ in range(5):
        quotas.look()
    assert [record.__dict__["namespace"] for record in caplog.records] == ["c"]
