"""The audit log of a node: floods, a full disk, a slow one, and the search."""

import errno
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq import logs
from braidmq.audit import thinning, trail
from braidmq.audit.events import KINDS, AuditEvent, make_event
from braidmq.audit.files import LineWriter
from braidmq.audit.settings import AuditSettings
from braidmq.audit.thinning import OF_ALL_MAX, OF_ONE_MAX, WINDOW_MS, Thinning, host_of
from braidmq.audit.trail import AuditFilter, AuditTrail

NOW_MS = 1_800_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def audit(tmp_path: Path, clock: Clock) -> Iterator[AuditTrail]:
    made = AuditTrail(tmp_path, AuditSettings(), clock)
    made.start()
    yield made
    made.stop()


def written(audit: AuditTrail, wanted: AuditFilter | None = None) -> list[AuditEvent]:
    audit.stop()
    return audit.find(wanted or AuditFilter(), 10_000).events


def refuse(audit: AuditTrail, peer: str, user: str = "x") -> None:
    audit.hear("refused", "log in", {"protocol": "amqp", "user": user, "peer": peer})


# --- floods ---


def test_a_flood_from_one_address_hides_nobody_else(audit: AuditTrail) -> None:
    for number in range(5000):
        refuse(audit, f"10.0.0.1:{number}")
    refuse(audit, "10.0.0.2:1", "other")
    audit.hear("login", "log in", {"protocol": "amqp", "user": "ann", "peer": "10.0.0.1:9"})
    audit.hear("administration", "delete a user", {"object": "bob"})
    found = written(audit)
    by = Counter((each.kind, each.user) for each in found)
    assert by["refused", "x"] == OF_ONE_MAX
    assert by["refused", "other"] == by["login", "ann"] == by["administration", ""] == 1
    (rest,) = [each for each in found if each.operation == "more log-ins"]
    assert (rest.peer, rest.count) == ("10.0.0.1", 5000 - OF_ONE_MAX)


def test_nor_does_one_from_everywhere(audit: AuditTrail) -> None:
    for number in range(5000):
        refuse(audit, f"10.0.{number // 250}.{number % 250}:7")
    for number in range(20):
        audit.hear("login", "log in", {"user": f"u{number}", "peer": "10.0.0.1:9"})
    found = written(audit)
    assert sum(each.kind == "login" for each in found) == 20
    refused = [each for each in found if each.kind == "refused"]
    assert len(refused) == OF_ALL_MAX + 1
    assert sum(each.count for each in refused) == 5000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["login", "refused"]),
            st.sampled_from(["a", "b", "c"]),
            st.integers(0, 5),
            st.integers(0, WINDOW_MS),
        ),
        max_size=200,
    )
)
@settings(deadline=None)
def test_every_log_in_is_kept_or_counted(steps: list[tuple[Any, str, int, int]]) -> None:
    thin, now_ms = Thinning(), NOW_MS
    given_, kept = Counter[str](), Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thinning, "OF_ONE_MAX", 2)
        patch.setattr(thinning, "OF_ALL_MAX", 5)
        for kind, user, host, wait_ms in steps:
            now_ms += wait_ms // 50
            given_[kind] += 1
            facts = {"user": user, "peer": f"10.0.0.{host}:1"}
            for each in thin.take(make_event(now_ms, kind, "log in", facts)):
                kept[each.kind] += each.count
        for each in thin.rest(now_ms):
            kept[each.kind] += each.count
    assert kept == given_


def test_requests_of_one_user_from_one_address_are_one_log_in(
    audit: AuditTrail, clock: Clock
) -> None:
    for number in range(100):
        clock.ms += 1000
        audit.hear("login", "log in", {"protocol": "http", "user": "ann", "peer": "10.0.0.1"})
        if number == 50:
            audit.hear("login", "log in", {"protocol": "http", "user": "ann", "peer": "10.0.0.2"})
    clock.ms += thinning.HTTP_QUIET_MS
    audit.hear("login", "log in", {"protocol": "http", "user": "ann", "peer": "10.0.0.1"})
    assert [each.peer for each in written(audit)] == ["10.0.0.1", "10.0.0.2", "10.0.0.1"]


def test_the_host_of_a_peer() -> None:
    assert [host_of(each) for each in ("10.0.0.1:5", "[::1]:5", "::1", "10.0.0.1", "?")] == [
        "10.0.0.1",
        "[::1]",
        "::1",
        "10.0.0.1",
        "?",
    ]


def test_what_a_stranger_chooses_is_cut(audit: AuditTrail) -> None:
    facts: dict[str, object] = {f"f{number}": "x" * 9999 for number in range(100)}
    audit.hear("object", "o" * 9999, facts | {"user": "u" * 9999, "list": ["y" * 9999] * 999})
    audit.stop()
    assert audit.written == 1
    (file,) = audit_files(audit)
    assert file.stat().st_size < 40_000


def test_what_no_text_can_have_is_written_all_the_same(audit: AuditTrail) -> None:
    audit.hear("object", "do", {"user": "a\ud800b", "object": "x\ny", "why": ["\udfff"]})
    (found,) = written(audit)
    assert (found.user, found.object) == ("a\\ud800b", "x\ny")


def audit_files(audit: AuditTrail) -> list[Path]:
    assert audit._directory is not None
    return sorted(audit._directory.iterdir())


# --- a disk that does not take it ---


def test_a_full_disk_is_counted_and_said_and_waited_for_by_nobody(
    audit: AuditTrail, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LineWriter, "write", full)
        for _ in range(100):
            audit.hear("object", "make a topic", {})
        audit.stop()
    assert (audit.lost, audit.written) == (100, 0)
    said = [str(each.__dict__.get("reason")) for each in caplog.records]
    assert any("No space left on device" in each for each in said)


def test_a_disk_that_hangs_holds_nobody_up_and_memory_is_bounded(
    audit: AuditTrail, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        hangs.set()
        goes_on.wait(60)

    monkeypatch.setattr(LineWriter, "write", hang)
    monkeypatch.setattr(trail, "QUEUE_MAX", 50)
    audit.hear("object", "first", {})
    assert hangs.wait(60)
    for _ in range(200):
        audit.hear("object", "more", {})
    assert len(audit._queue) == 50
    assert audit.lost == 150
    goes_on.set()
    audit.stop()
    assert audit.written == 51


def test_without_a_directory_nothing_is_kept(clock: Clock) -> None:
    audit = AuditTrail(None, AuditSettings(), clock)
    audit.start()
    audit.stop()
    assert audit.find(AuditFilter(), 10) == ([], None)


def test_changes_and_log_ins_come_by_the_one_place(audit: AuditTrail) -> None:
    logs.log_change("amqp", "queue.delete", "q", messages=3)
    logs.log_login("mqtt", "ann", "10.0.0.1:5", "password")
    found = {each.kind: each for each in written(audit)}
    assert (found["object"].operation, found["object"].facts) == ("queue.delete", {"messages": 3})
    assert (found["login"].user, found["login"].facts) == ("ann", {"by": "password"})


# --- the search ---

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(["amqp", "mqtt"]),
        st.sampled_from(["topic-a", "topic-b"]),
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(1, 7), st.integers(1, 9), st.data())
@settings(deadline=None, max_examples=60)
def test_pages_are_what_was_written_the_newest_first(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[Any, str, str, str, int]],
    limit: int,
    scan: int,
    data: st.DataObject,
) -> None:
    clock = Clock()
    audit = AuditTrail(
        tmp_path_factory.mktemp("audit"), AuditSettings(file_bytes_max=4096, files_max=99), clock
    )
    audit.start()
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thinning, "OF_ONE_MAX", 1000)
        patch.setattr(trail, "SCAN_MAX", scan)
        for kind, user, protocol, name, wait_ms in steps:
            clock.ms += wait_ms + 1
            facts: dict[str, object] = {"user": user, "protocol": protocol, "object": name}
            audit.hear(kind, "do", facts)
            made.append(make_event(clock.ms, kind, "do", facts))
        audit.stop()
        wanted = AuditFilter(
            data.draw(st.sampled_from([None, *KINDS])),
            data.draw(st.sampled_from([None, "ann"])),
            data.draw(st.sampled_from([None, "mqtt"])),
            None,
            data.draw(st.sampled_from(["", "topic-a", "nothing"])),
            data.draw(st.sampled_from([0, NOW_MS + 20])),
            data.draw(st.sampled_from([NOW_MS + 60, 1 << 53])),
        )
        found: list[AuditEvent] = []
        places = None
        while True:
            page = audit.find(wanted, limit, places)
            assert len(page.events) <= limit
            found += page.events
            if (places := page.places) is None:
                break
    assert found == [
        each
        for each in made[::-1]
        if (wanted.kind in (None, each.kind)) and wanted.user in (None, each.user)
        if wanted.protocol in (None, each.protocol) and wanted.text in each.object
        if wanted.from_ms <= each.at_ms < wanted.to_ms
    ]
