"""What was published and delivered, by namespace, protocol and hour, and what survives of it."""

from collections.abc import Iterator

import pytest

from braidmq.runtime.usage import DROPPED_MAX, HOUR_MS, ROLL_MS, Usage, UsageRow, UsageSettings
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.store import Store

NOW = 500_000 * HOUR_MS


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store.open(MemoryDisk())
    yield store
    store.close()


def test_hours_are_kept_apart_and_added_up(store: Store) -> None:
    usage = Usage(store, NOW)
    meter = usage.meter("/", "amqp")
    meter.took(10, 1000)
    assert usage.roll(NOW + ROLL_MS)
    meter.took(5, 50)
    meter.gave(3, 30)
    assert usage.roll(NOW + 2 * ROLL_MS)
    meter.gave(1, 7)
    # Counted before the hour was over, seen to right after.
    assert usage.roll(NOW + HOUR_MS + 400)
    meter.took(1, 1)
    usage.meter("shop", "mqtt").took(2, 20)
    assert list(usage.rows()) == [
        UsageRow(NOW, "/", "amqp", 15, 1050, 4, 37),
        UsageRow(NOW + HOUR_MS, "/", "amqp", 1, 1, 0, 0),
        UsageRow(NOW + HOUR_MS, "shop", "mqtt", 2, 20, 0, 0),
    ]


def test_a_roll_is_one_entry_a_minute_and_none_when_nothing_happened(store: Store) -> None:
    usage = Usage(store, NOW)
    for name in ("a", "b", "c"):
        usage.meter(name, "http").took(1, 1)
    before = store.journal.last_lsn
    assert not usage.roll(NOW + ROLL_MS - 1)
    assert store.journal.last_lsn == before
    assert usage.roll(NOW + ROLL_MS)
    assert store.journal.last_lsn == before + 1
    assert not usage.roll(NOW + 2 * ROLL_MS)
    assert store.journal.last_lsn == before + 1


def test_a_restart_goes_on_where_the_last_roll_was() -> None:
    disk = MemoryDisk()
    store = Store.open(disk)
    usage = Usage(store, NOW)
    usage.meter("/", "amqp").took(10, 100)
    usage.roll(NOW + 1, at_once=True)
    usage.meter("/", "amqp").took(99, 99)  # nobody rolls it: that is what a crash costs
    store.close()
    store = Store.open(disk)
    usage = Usage(store, NOW + 5)
    usage.meter("/", "amqp").gave(1, 2)
    assert list(usage.rows()) == [UsageRow(NOW, "/", "amqp", 10, 100, 1, 2)]
    usage.roll(NOW + 6, at_once=True)
    assert list(usage.rows()) == [UsageRow(NOW, "/", "amqp", 10, 100, 1, 2)]
    store.close()


def test_old_hours_leave(store: Store) -> None:
    usage = Usage(store, NOW, UsageSettings(days=1))
    meter = usage.meter("/", "amqp")
    for hour in range(30):
        meter.took(1, 1)
        usage.roll(NOW + (hour + 1) * HOUR_MS)
    assert [row.start_ms for row in usage.rows()] == [NOW + n * HOUR_MS for n in range(6, 30)]


def test_rows_are_bounded_and_leave_in_slices(store: Store) -> None:
    usage = Usage(store, NOW, UsageSettings(rows_max=100))
    for number in range(2 * DROPPED_MAX):
        usage.meter(f"n{number}", "http").took(1, 1)
    usage.roll(NOW + ROLL_MS)
    assert len(list(usage.rows())) == 2 * DROPPED_MAX
    left = []
    for minute in range(2, 5):
        usage.roll(NOW + minute * ROLL_MS)
        left.append(len(list(usage.rows())))
    assert left == [DROPPED_MAX, 100, 100]


def test_a_clock_that_is_set_back_loses_nothing(store: Store) -> None:
    usage = Usage(store, NOW)
    usage.meter("/", "amqp").took(1, 1)
    assert usage.roll(NOW - 5 * HOUR_MS)
    usage.meter("/", "amqp").took(1, 1)
    assert usage.roll(NOW - 5 * HOUR_MS + ROLL_MS)
    assert [(row.start_ms, row.published) for row in usage.rows()] == [
        (NOW - 5 * HOUR_MS, 1),
        (NOW, 1),
    ]


def test_the_end_of_an_hour_does_not_wait_for_the_minute(store: Store) -> None:
    usage = Usage(store, NOW + HOUR_MS - 100)
    meter = usage.meter("/", "amqp")
    meter.took(1, 1)
    assert usage.roll(NOW + HOUR_MS + 400)
    meter.took(2, 2)
    assert [(row.start_ms, row.published) for row in usage.rows()] == [
        (NOW, 1),
        (NOW + HOUR_MS, 2),
    ]
