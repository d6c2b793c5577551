"""Faults come where they are placed, and leave what they say they leave."""

import random
from collections import Counter
from pathlib import Path

import pytest

from braidmq.storage.disk import RealDisk
from braidmq.testing.crash import disks
from braidmq.testing.crash.disks import PowerCutDisk, Trigger, TriggeredDisk
from braidmq.testing.crash.faults import PLACES, Fault, Moment, Operation, draw


class Ended(Exception):
    """Instead of the end of this process."""


def end() -> None:
    raise Ended


def fault_at(
    operation: Operation, directory: str, moment: Moment = "before", nth: int = 1, **fields: bool
) -> Fault:
    power = fields.get("is_power_cut", False)
    in_start = fields.get("in_start", False)
    return Fault(power, 1.0, 1, operation, directory, moment, nth, in_start)


def armed(fault: Fault) -> Trigger:
    trigger = Trigger(fault, end)
    trigger.arm()
    return trigger


def test_the_same_seed_draws_the_same_faults() -> None:
    first, second = random.Random(7), random.Random(7)
    assert [draw(first, 1.5) for _ in range(50)] == [draw(second, 1.5) for _ in range(50)]


def test_all_kinds_of_faults_are_drawn() -> None:
    rng = random.Random(1)
    drawn = [draw(rng, 1.5) for _ in range(2000)]
    places = Counter((each.operation, each.directory) for each in drawn if each.operation)
    assert set(places) == set(PLACES)
    for is_power_cut in (False, True):
        for in_start in (False, True):
            assert any(
                each.is_power_cut == is_power_cut and each.in_start == in_start for each in drawn
            )
        assert any(each.operation is None and each.is_power_cut == is_power_cut for each in drawn)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_is_before_or_after_the_nth_operation_of_its_place(
    tmp_path: Path, moment: Moment
) -> None:
    disk = TriggeredDisk(tmp_path, armed(fault_at("rename", "journal", moment, nth=2)))
    for name in ("journal", "segments"):
        disk.make_directory(name)
    for name in ("a", "b", "c"):
        disk.open(f"journal/{name}.new", create=True).close()
        disk.open(f"segments/{name}.new", create=True).close()
    disk.rename("journal/a.new", "journal/a")
    disk.rename("segments/a.new", "segments/a")
    with pytest.raises(Ended):
        disk.rename("journal/b.new", "journal/b")
    assert disk.exists("journal/b") == (moment == "after")
    disk.rename("journal/c.new", "journal/c")  # only once


def test_a_kill_within_a_write_leaves_half_of_it(tmp_path: Path) -> None:
    disk = TriggeredDisk(tmp_path, armed(fault_at("write", "segments", "during")))
    disk.make_directory("segments")
    file = disk.open("segments/s", create=True)
    with pytest.raises(Ended):
        file.write_all([b"abc", b"defgh"], 0)
    assert RealDisk(tmp_path).open("segments/s").read(100, 0) == b"abcd"


def test_what_is_placed_in_the_work_does_not_come_before_it(tmp_path: Path) -> None:
    trigger = Trigger(fault_at("create", "journal"), end)
    disk = TriggeredDisk(tmp_path, trigger)
    disk.make_directory("journal")
    disk.open("journal/a", create=True).close()
    trigger.arm()
    with pytest.raises(Ended):
        disk.open("journal/b", create=True)


def test_what_is_placed_in_the_start_does_not_come_after_it(tmp_path: Path) -> None:
    trigger = Trigger(fault_at("create", "journal", nth=2, in_start=True), end)
    disk = TriggeredDisk(tmp_path, trigger)
    disk.make_directory("journal")
    disk.open("journal/a", create=True).close()
    trigger.arm()
    disk.open("journal/b", create=True).close()


@pytest.fixture
def cut_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PowerCutDisk:
    monkeypatch.setattr(disks, "kill_self", end)
    root = tmp_path / "data"
    (root / "journal").mkdir(parents=True)
    (root / "journal" / "old").write_bytes(b"was there")
    return PowerCutDisk(root, fault_at("remove", "journal", is_power_cut=True))


def test_a_power_cut_keeps_what_was_synced(cut_disk: PowerCutDisk) -> None:
    synced = cut_disk.open("journal/synced", create=True)
    synced.write_durably([b"kept"], 0)
    cut_disk.sync_directory("journal")
    with pytest.raises(Ended):
        cut_disk.cut()
    assert (cut_disk.root / "journal" / "old").read_bytes() == b"was there"
    assert (cut_disk.root / "journal" / "synced").read_bytes() == b"kept"
    assert cut_disk.root.with_name("data.old").exists()


def test_a_power_cut_loses_what_was_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "kill_self", end)
    left: Counter[bytes] = Counter()
    for seed in range(30):
        root = tmp_path / str(seed)
        (root / "journal").mkdir(parents=True)
        (root / "journal" / "j").write_bytes(bytes(2048))
        disk = PowerCutDisk(root, Fault(True, 1.0, seed))
        disk.open("journal/j").write(b"x" * 2048, 0)
        with pytest.raises(Ended):
            disk.cut()
        data = (root / "journal" / "j").read_bytes()
        assert len(data) == 2048
        # Sectors are whole.
        assert all(
            data[at : at + 512] in (bytes(512), b"x" * 512) for at in range(0, len(data), 512)
        )
        left[data] += 1
    assert {bytes(2048), b"x" * 2048} < set(left)  # nothing, all, and something between


def test_a_power_cut_may_be_placed(cut_disk: PowerCutDisk) -> None:
    cut_disk.trigger.arm()
    with pytest.raises(Ended):
        cut_disk.remove("journal/old")
    assert (cut_disk.root / "journal" / "old").read_bytes() == b"was there"
