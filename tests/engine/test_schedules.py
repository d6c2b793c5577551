"""Recurring schedules: each run happens once, whatever happens to the node and its clock."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from engine_worlds import DAY, HOUR, MINUTE, NOW, NS, SECOND, World, crashes
from hypothesis import given
from hypothesis import strategies as st

from braidmq.engine import cron, errors
from braidmq.engine.effects import Level
from braidmq.engine.envelope import decode_headers
from braidmq.engine.schedules import RUNS_PER_TURN, SCHEDULES, RunCounts, ScheduleRecord
from braidmq.engine.topics import Topic

BERLIN = ZoneInfo("Europe/Berlin")


TICK_MS = 10
"""Of the timer wheel."""


def made(world: World, topic: Topic, name: str = "s", **fields: object) -> ScheduleRecord:
    record = ScheduleRecord(NS, topic.name, name, "u", world.now_ms, value=b"v", **fields)  # type: ignore[arg-type]
    return world.engine.schedules.put(record, world.now_ms)


def planned(world: World, topic: str = "t") -> list[int]:
    """When each message that was published was planned for."""
    found = []
    for partition in world.engine.state.topic(NS, topic).partitions:
        for run in partition.runs(0, partition.log.next_offset):
            for index in range(run.first, run.stop):
                headers = dict(decode_headers(run.batch.record(index).envelope))
                assert headers["schedule"] == b"s"
                found.append(int(headers["scheduled-for"]))
    return sorted(found)


def test_an_interval_keeps_its_phase() -> None:
    world = World()
    made(world, world.topic("t"), every_ms=10 * SECOND)
    for _ in range(35):
        world.advance(1 * SECOND)
    assert planned(world) == [NOW + 10 * SECOND, NOW + 20 * SECOND, NOW + 30 * SECOND]
    assert world.engine.schedules.get(NS, "t", "s").runs == 3


def test_missed_runs_happen_once() -> None:
    world = World()
    made(world, world.topic("t"), every_ms=10 * SECOND)
    world = world.reopen(95 * SECOND)
    world.advance(0)
    assert planned(world) == [NOW + 10 * SECOND]
    world.advance(5 * SECOND)
    assert planned(world) == [NOW + 10 * SECOND, NOW + 100 * SECOND]
    assert world.engine.schedules.counts[NS] == RunCounts(runs=2, missed=8)


@pytest.mark.parametrize(("expression", "missed"), [("* * * * *", 1), ("0 0 1 1 *", 0)])
def test_runs_of_cron_that_were_missed_count_as_one(expression: str, missed: int) -> None:
    world = World()
    first = made(world, world.topic("t"), cron=expression).next_ms
    world = world.reopen(first - world.now_ms + 1 * DAY)
    world.advance(0)
    assert planned(world) == [first]
    assert world.engine.schedules.counts[NS] == RunCounts(runs=1, missed=missed)


def test_paused_runs_are_not_made_up_for() -> None:
    world = World()
    made(world, world.topic("t"), every_ms=10 * SECOND)
    schedules = world.engine.schedules
    schedules.pause(NS, "t", "s", paused=True, now_ms=world.now_ms)
    assert schedules.upcoming(schedules.get(NS, "t", "s"), 5) == []
    world.advance(60 * SECOND)
    assert planned(world) == []
    world = world.reopen()
    schedules = world.engine.schedules
    assert schedules.get(NS, "t", "s").paused
    schedules.pause(NS, "t", "s", paused=False, now_ms=world.now_ms)
    world.advance(10 * SECOND)
    assert planned(world) == [NOW + 70 * SECOND]


def test_a_time_zone_that_is_gone_pauses_its_schedule_and_keeps_no_node_down() -> None:
    world = World()
    record = made(world, world.topic("t"), cron="* * * * *", zone="Europe/Berlin")
    broken = msgspec.structs.replace(record, zone="Europe/Atlantis")
    row = (SCHEDULES, f"{NS}\0t\0s", msgspec.msgpack.encode(broken))
    world.engine.store.change([row])
    world = world.reopen(HOUR)
    found = world.engine.schedules.get(NS, "t", "s")
    assert found.paused
    assert "Atlantis" in found.error
    assert world.engine.schedules.upcoming(found, 5) == []
    with pytest.raises(errors.BadSchedule):
        world.engine.schedules.pause(NS, "t", "s", paused=False, now_ms=world.now_ms)
    world.advance(HOUR)
    assert planned(world) == []


def test_deleted_and_replaced_schedules_do_not_run() -> None:
    world = World()
    topic = world.topic("t")
    made(world, topic, every_ms=10 * SECOND)
    made(world, topic, every_ms=60 * SECOND)
    world.advance(30 * SECOND)
    assert planned(world) == []
    world.engine.schedules.delete(NS, "t", "s")
    world = world.reopen()
    world.advance(120 * SECOND)
    assert planned(world) == []
    with pytest.raises(errors.UnknownSchedule):
        world.engine.schedules.get(NS, "t", "s")


def test_a_schedule_goes_with_its_topic() -> None:
    world = World()
    topic = world.topic("t")
    made(world, topic, every_ms=10 * SECOND)
    world.engine.topics.delete(topic)
    assert len(world.engine.schedules) == 0
    world.topic("t")
    world = world.reopen()
    world.advance(60 * SECOND)
    assert planned(world) == []


def test_who_lost_the_right_publishes_nothing() -> None:
    world = World()
    made(world, world.topic("t"), every_ms=10 * SECOND)
    allowed = False
    world.engine.schedules.enforce(lambda *_: allowed)
    world.advance(10 * SECOND)
    found = world.engine.schedules.get(NS, "t", "s")
    assert (found.runs, "may not write" in found.error, planned(world)) == (0, True, [])
    allowed = True
    world.advance(10 * SECOND)
    assert planned(world) == [NOW + 20 * SECOND]
    assert world.engine.schedules.get(NS, "t", "s").error == ""


def test_a_full_topic_is_an_error_and_the_next_run_is_tried() -> None:
    world = World()
    topic = world.topic("t", max_messages=1, retention={"until_acked": True})
    world.consumer(topic)
    made(world, topic, every_ms=10 * SECOND)
    world.advance(10 * SECOND)
    world.advance(10 * SECOND)
    found = world.engine.schedules.get(NS, "t", "s")
    assert (found.runs, bool(found.error)) == (1, True)
    assert world.engine.schedules.counts[NS] == RunCounts(runs=1, failures=1)
    world = world.reopen()
    assert world.engine.schedules.get(NS, "t", "s").runs == 1


def test_a_partition_that_is_named_is_where_it_is_published() -> None:
    world = World()
    topic = world.topic("t", partitions=3, partition_strategy="explicit")
    with pytest.raises(errors.PartitionRequired):
        made(world, topic, every_ms=10 * SECOND)
    with pytest.raises(errors.UnknownPartition):
        made(world, topic, every_ms=10 * SECOND, partition=3)
    made(world, topic, every_ms=10 * SECOND, partition=2)
    world.advance(10 * SECOND)
    assert [each.log.next_offset for each in topic.partitions] == [0, 0, 1]


def test_a_topic_that_wants_partitions_to_be_named_later_is_an_error() -> None:
    world = World()
    topic = world.topic("t", partitions=2)
    made(world, topic, every_ms=10 * SECOND)
    changed = {"partitions": 2, "partition_strategy": "explicit"}
    world.engine.topics.alter(topic, changed, now_ms=world.now_ms)
    world.advance(10 * SECOND)
    assert "partition" in world.engine.schedules.get(NS, "t", "s").error
    assert planned(world) == []


def test_without_a_key_partitions_take_turns() -> None:
    world = World()
    topic = world.topic("t", partitions=3)
    made(world, topic, every_ms=10 * SECOND)
    for _ in range(6):
        world.advance(10 * SECOND)
    assert [each.log.next_offset for each in topic.partitions] == [2, 2, 2]


def test_while_publishers_are_blocked_runs_are_missed() -> None:
    world = World()
    made(world, world.topic("t"), every_ms=10 * SECOND)
    world.engine.pressure.level = Level.BLOCKED
    for _ in range(5):
        world.advance(10 * SECOND)
    assert planned(world) == []
    world.engine.pressure.level = Level.NORMAL
    world.advance(1 * SECOND)
    assert planned(world) == [NOW + 10 * SECOND]
    world.advance(9 * SECOND)
    assert planned(world) == [NOW + 10 * SECOND, NOW + 60 * SECOND]
    assert world.engine.schedules.counts[NS] == RunCounts(runs=2, missed=4)


def test_those_that_are_due_together_do_not_run_in_one_turn() -> None:
    world = World()
    topic = world.topic("t", partitions=1)
    for number in range(RUNS_PER_TURN * 3):
        made(world, topic, f"s{number}", every_ms=10 * SECOND)
    world.now_ms += 10 * SECOND
    for turn in range(3):
        world.engine.advance(world.now_ms + turn * TICK_MS)
        assert topic.partitions[0].log.next_offset == (turn + 1) * RUNS_PER_TURN


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"every_ms": 999},
        {"every_ms": 1000, "cron": "* * * * *"},
        {"cron": "* * * *"},
        {"cron": "60 * * * *"},
        {"cron": "* * * * mon-sun,"},
        {"cron": "0 0 30 2 *"},
        {"cron": "5-1 * * * *"},
        {"cron": "*/0 * * * *"},
        {"cron": "* * * * *", "zone": "Mars/Olympus"},
        {"every_ms": 1000, "headers": (("h", b"x" * 70_000),)},
    ],
)
def test_what_is_no_schedule_is_refused(fields: dict[str, object]) -> None:
    world = World()
    with pytest.raises(errors.BadSchedule):
        made(world, world.topic("t"), **fields)
    assert len(world.engine.schedules) == 0


def test_each_run_happens_once_wherever_a_crash_comes() -> None:
    """After each operation on the disk: no run is there twice, and none is missing in the end."""

    def prepare(world: World) -> None:
        made(world, world.topic("t"), every_ms=10 * SECOND)

    def act(world: World) -> None:
        for _ in range(3):
            world.advance(10 * SECOND)
            world.engine.store.commit()

    count = 0
    for world in crashes(prepare, act):
        count += 1
        world.now_ms = NOW + 35 * SECOND
        world.advance(0)
        found = planned(world)
        assert len(found) == len(set(found))
        assert world.engine.schedules.get(NS, "t", "s").runs == len(found)
        world.advance(5 * SECOND)
        assert planned(world) == [*found, NOW + 40 * SECOND]
    assert count > 3


def test_a_run_whose_message_was_cut_off_is_done_again() -> None:
    """The row is in the journal and the message behind it is not."""
    world = World()
    made(world, world.topic("t"), every_ms=10 * SECOND)
    record = world.engine.schedules.get(NS, "t", "s")
    log = world.find("t").partitions[0].log
    row = msgspec.structs.replace(
        record, next_ms=NOW + 20 * SECOND, last_ms=NOW + 10 * SECOND, placed=(log.id, 0), runs=1
    )
    key = f"{NS}\0t\0s"
    world.engine.store.change([(SCHEDULES, key, msgspec.msgpack.encode(row))])
    world = world.reopen(12 * SECOND)
    assert planned(world) == [NOW + 10 * SECOND]
    world = world.reopen()
    assert planned(world) == [NOW + 10 * SECOND]


def test_a_clock_that_is_set_back_repeats_no_run() -> None:
    world = World()
    made(world, world.topic("t"), cron="*/5 * * * *")
    world.advance(10 * MINUTE)
    before = planned(world)
    assert len(before) == 2
    world.now_ms -= 7 * MINUTE
    world = world.reopen()
    world.advance(6 * MINUTE)
    assert planned(world) == before
    world.advance(15 * MINUTE)
    assert len(set(planned(world))) == len(planned(world)) > 2


# --- cron ---


def at(text: str, zone: ZoneInfo = BERLIN) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


def times(expression: str, start: str, count: int) -> list[str]:
    found, now = [], at(start)
    for _ in range(count):
        following = cron.parse(expression).after(now, BERLIN)
        assert following is not None
        assert following > now
        now = following
        found.append(datetime.fromtimestamp(now / 1000, BERLIN).strftime("%m-%d %H:%M%z"))
    return found


def test_cron_fields() -> None:
    assert times("*/20 9-10 * * mon-fri", "2026-11-20T09:50", 4) == [
        "11-20 10:00+0100", "11-20 10:20+0100", "11-20 10:40+0100", "11-23 09:00+0100",
    ]  # fmt: skip
    assert times("0 0 13 * fri", "2026-02-12T12:00", 2) == ["02-13 00:00+0100", "02-20 00:00+0100"]
    assert times("5 4 29 feb *", "2026-01-01T00:00", 1) == ["02-29 04:05+0100"]
    assert times("0 12 * * 7", "2026-11-18T00:00", 1) == times(
        "0 12 * * sun", "2026-11-18T00:00", 1
    )


def test_cron_when_clocks_go_forward() -> None:
    """2026-03-29, 02:00 becomes 03:00."""
    assert times("30 2 * * *", "2026-03-28T12:00", 2) == ["03-29 03:30+0200", "03-30 02:30+0200"]
    assert times("0 * * * *", "2026-03-29T00:30", 3) == [
        "03-29 01:00+0100", "03-29 03:00+0200", "03-29 04:00+0200",
    ]  # fmt: skip


def test_cron_when_clocks_go_back() -> None:
    """2026-10-25, 03:00 becomes 02:00."""
    assert times("30 2 * * *", "2026-10-24T12:00", 2) == ["10-25 02:30+0200", "10-26 02:30+0100"]
    assert times("0 * * * *", "2026-10-25T01:30", 3) == [
        "10-25 02:00+0200", "10-25 02:00+0100", "10-25 03:00+0100",
    ]  # fmt: skip


@given(st.integers(0, 59), st.integers(0, 23), st.integers(NOW, NOW + 1000 * DAY))
def test_a_daily_cron_comes_once_a_day(minute: int, hour: int, start: int) -> None:
    rule = cron.parse(f"{minute} {hour} * * *")
    first = rule.after(start, BERLIN)
    assert first is not None
    second = rule.after(first, BERLIN)
    assert second is not None
    assert start < first <= start + DAY + HOUR
    assert abs(second - first - DAY) <= HOUR


@given(st.integers(NOW, NOW + 1000 * DAY))
def test_every_quarter_of_an_hour_is_real_time(start: int) -> None:
    following = cron.parse("*/15 * * * *").after(start, BERLIN)
    assert following == (start // (15 * MINUTE) + 1) * 15 * MINUTE


@given(
    st.sampled_from(("* * * * *", "*/7 * * * *", "30 2 * * *", "5,59 0,1,2,3 * * *", "0 */4 1 * *"))
    | st.builds("{} {} * {} {}".format, *(st.integers(1, n) for n in (59, 23, 12, 6))),
    st.sampled_from(("Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns", "UTC")),
    st.integers(NOW, NOW + 1000 * DAY)
    | st.integers(at("2026-10-24T20:00"), at("2026-10-25T08:00"))
    | st.integers(at("2027-03-27T20:00"), at("2027-03-28T08:00")),
)
def test_cron_finds_at_once_what_looking_at_every_minute_finds(
    expression: str, name: str, start: int
) -> None:
    rule, zone = cron.parse(expression), ZoneInfo(name)
    local = datetime.fromtimestamp(start / 1000, zone).replace(tzinfo=None)
    assert rule.after(start, zone) == rule._near_a_shift(local, start, zone)


def test_a_time_of_cron_is_found_without_looking_at_every_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten thousand schedules may be due in one minute."""

    def never(*_: object) -> None:
        raise AssertionError("looked at every minute")

    monkeypatch.setattr(cron.Cron, "_near_a_shift", never)
    rule, now = cron.parse("* * * * *"), at("2026-11-20T09:50")
    assert rule.after(now, BERLIN) == now + MINUTE


FIELDS = st.sampled_from(["*", "*/5", "*/20", "0", "7,23", "2-3", "1-20/7"])
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Havana"])


@given(FIELDS, FIELDS, ZONES, st.integers(0, 365 * 24 * 60))
def test_cron_agrees_with_looking_at_the_clock_every_minute(
    minutes: str, hours: str, zone: str, start: int
) -> None:
    """What it shows in real time, but for times that clocks leave out or show twice."""
    rule, here = cron.parse(f"{minutes} {hours} * * *"), ZoneInfo(zone)
    begin_ms = NOW + start * MINUTE
    found = rule.after(begin_ms, here)
    assert found is not None
    at = begin_ms // MINUTE * MINUTE
    seen = set()
    while True:
        at += MINUTE
        shown = datetime.fromtimestamp(at / 1000, here)
        once = rule.every_hour or not shown.fold
        if shown.minute in rule.minutes and shown.hour in rule.hours and once:
            break
        seen.add(shown.utcoffset())
    assert found == at or (len(seen) > 1 and begin_ms < found < at)


def test_cron_agrees_with_counting_minutes() -> None:
    """In UTC, against a search minute by minute."""
    for expression in ("7,23 */5 * * *", "0 3 1-7 * mon", "*/17 22-23 15 6,12 *"):
        rule = cron.parse(expression)
        moment = datetime(2026, 5, 30, 13, 1, tzinfo=UTC)
        want = rule.after(int(moment.timestamp() * 1000), ZoneInfo("UTC"))
        while True:
            moment += timedelta(minutes=1)
            weekday = moment.isoweekday() % 7
            days = (moment.day in rule.days, weekday in rule.weekdays)
            if (
                moment.minute in rule.minutes
                and moment.hour in rule.hours
                and moment.month in rule.months
                and (any(days) if rule.either_day else all(days))
            ):
                break
        assert want == int(moment.timestamp() * 1000)
