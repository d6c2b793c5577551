"""Dead letters become alerts: nothing is lost on the way but what is above the limit."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from braidmq.alerts.book import SAMPLES_MAX, Alert, AlertBook, Sample
from braidmq.engine.effects import DeadLettered
from braidmq.engine.envelope import Death


def died(
    webhook: str = "http://a/",
    topic: str = "t",
    reason: str = "rejected",
    count: int = 1,
    at_ms: int = 5,
    error: str = "",
    partition: int = 0,
) -> DeadLettered:
    death = Death(reason, "/", topic, partition, 3, "workers", at_ms, error)
    return DeadLettered(webhook, death, (f"{topic}.dlq",), 7, count)


def test_one_topic_and_reason_are_one_alert() -> None:
    book = AlertBook()
    assert book.add(died(count=2, error="no luck"))
    assert book.add(died(count=3, at_ms=9))
    alert = book.take("http://a/")
    assert (alert.topic, alert.reason, alert.count) == ("t", "rejected", 5)
    assert (alert.first_at_ms, alert.last_at_ms, alert.last_error) == (5, 9, "no luck")
    assert alert.dead_letter_topics == ["t.dlq"]
    assert alert.samples == [Sample(0, 7, 2, 3, "workers"), Sample(0, 7, 3, 3, "workers")]
    assert not len(book)
    assert book.add(died())
    assert book.take("http://a/").id != alert.id


def test_what_was_never_in_the_topic_has_no_offset() -> None:
    book = AlertBook()
    book.add(died(reason="maxlen", partition=-1))
    assert book.take("http://a/").samples == [Sample(-1, -1, 1, 3, "workers")]


def test_more_than_the_limit_is_refused_and_the_rest_goes_on() -> None:
    book = AlertBook(alerts_max=2)
    assert book.add(died(topic="a"))
    assert book.add(died(topic="b"))
    assert not book.add(died(topic="c"))
    assert book.add(died(topic="a"))
    assert book.take("http://a/").count == 2
    assert book.add(died(topic="c"))


@given(
    st.lists(
        st.one_of(
            st.builds(
                died,
                webhook=st.sampled_from(["http://a/", "http://b/"]),
                topic=st.sampled_from("tu"),
                reason=st.sampled_from(["rejected", "expired"]),
                count=st.integers(1, 5),
            ),
            st.sampled_from(["http://a/", "http://b/"]),
        )
    )
)
def test_every_dead_letter_is_told_once_to_its_webhook(steps: list[DeadLettered | str]) -> None:
    """A step is a death, or a webhook that takes what has waited longest."""
    book, wanted, told = AlertBook(), Counter[tuple[str, str, str]](), Counter[tuple[str, ...]]()

    def take(webhook: str) -> None:
        alert: Alert = book.take(webhook)
        told[webhook, alert.topic, alert.reason] += alert.count
        assert sum(each.count for each in alert.samples) <= alert.count
        assert 1 <= len(alert.samples) <= SAMPLES_MAX

    for step in steps:
        if isinstance(step, DeadLettered):
            assert book.add(step)
            wanted[step.webhook, step.death.topic, step.death.reason] += step.count
        elif book.waiting(step):
            take(step)
    for webhook in ("http://a/", "http://b/"):
        while book.waiting(webhook):
            take(webhook)
    assert told == wanted
    assert len(book) == 0
