"""Journal entries against their byte diagram, and against cuts and flipped bits."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    ENTRY_HEADER_BYTES,
    MARK,
    MARK_BYTES,
    ROLL,
    aligned,
    boundaries,
    crc32c,
    encode_entry,
    encode_mark,
    flip,
    takes_lsn,
)

from braidmq.record.batch import RecordBatch
from braidmq.storage.journal_entry import (
    ENTRY_HEADER_SIZE,
    ENTRY_VERSION,
    KIND_OF_MARK,
    KIND_OF_ROLL,
    MARK_SIZE,
    EntryBuffer,
    first_lsn,
    inspect_tail,
    scan_entries,
)

EPOCH = 0x1122334455667788
ROOM = 1 << 20

kinds = st.integers(2, 255)
metas = st.one_of(st.binary(max_size=20), st.sampled_from([b"", b"7bytes!", b"8 bytes!"]))
payloads = st.one_of(
    st.just(b""), st.integers(1, 6).flatmap(lambda n: st.binary(min_size=8 * n, max_size=8 * n))
)
entries = st.tuples(kinds, metas, payloads)
marks = st.integers(0, 2**64 - 1)
groups = st.lists(st.one_of(entries, entries, marks), min_size=1, max_size=10)
epochs = st.integers(0, 2**64 - 1)
lsns = st.integers(1, 2**63)
versions = st.sampled_from([1, 2])


def numbers(written, lsn: int, version: int = 2) -> list[int]:
    """The LSN of each entry or mark, and the one after them."""
    found = [lsn]
    for one in written:
        kind = MARK if isinstance(one, int) else one[0]
        found.append(found[-1] + takes_lsn(kind, version))
    return found


def pieces_of(written, epoch: int, lsn: int, version: int = 2) -> list[bytes]:
    """The oracle's bytes of each entry or mark."""
    return [
        encode_mark(one, epoch, number, version)
        if isinstance(one, int)
        else encode_entry(*one, epoch, number, version)
        for one, number in zip(written, numbers(written, lsn, version), strict=False)
    ]


def found_in(written, lsn: int, starts: list[int], version: int = 2) -> list[tuple[int, ...]]:
    """What a scan of the same says, marks left out."""
    return [
        (
            one[0],
            version,
            number,
            starts[i],
            starts[i] + ENTRY_HEADER_BYTES,
            starts[i] + ENTRY_HEADER_BYTES + len(one[1]),
            starts[i + 1],
        )
        for i, (one, number) in enumerate(
            zip(written, numbers(written, lsn, version), strict=False)
        )
        if not isinstance(one, int)
    ]


def written_by(buffer: EntryBuffer) -> bytes:
    return b"".join(buffer.pieces())


def fill(buffer: EntryBuffer, written) -> None:
    for one in written:
        if isinstance(one, int):
            assert buffer.mark(one)
        else:
            before = buffer.next_lsn
            assert buffer.append(*one) == before


def test_sizes():
    assert (ENTRY_HEADER_SIZE, MARK_SIZE) == (ENTRY_HEADER_BYTES, MARK_BYTES)
    assert (KIND_OF_MARK, KIND_OF_ROLL) == (MARK, ROLL)
    assert ENTRY_VERSION == 2


# --- writing ---


def test_one_entry_byte_by_byte():
    buffer = EntryBuffer(7, 42, ROOM)
    assert buffer.append(3, b"meta!", b"8 bytes!") == 42
    data = written_by(buffer)
    assert data[4:8] == struct.pack("<I", 48)
    assert data[8:12] == b"BJ\x03\x02"
    assert data[12:32] == struct.pack("<IQQ", 5, 7, 42)
    assert data[32:] == b"meta!\0\0\0" + b"8 bytes!"
    assert data == encode_entry(3, b"meta!", b"8 bytes!", 7, 42)


def test_only_what_is_said_takes_a_number():
    """Groups and files are this journal's own affair: another that has the same entries in other
    groups gives them the same numbers."""
    buffer = EntryBuffer(7, 42, ROOM)
    assert buffer.mark(0)
    assert buffer.append(3, b"a") == 42
    assert buffer.mark(0)
    assert buffer.append(ROLL, b"following") == 43
    assert buffer.append(3, b"b") == 43
    assert buffer.next_lsn == 44


@given(groups, epochs, lsns)
def test_writes_what_the_diagram_says(written, epoch, lsn):
    buffer = EntryBuffer(epoch, lsn, ROOM)
    fill(buffer, written)
    expected = b"".join(pieces_of(written, epoch, lsn))
    assert written_by(buffer) == expected
    assert buffer.size == len(buffer) == len(expected)
    assert (buffer.epoch, buffer.next_lsn, buffer.room) == (
        epoch,
        numbers(written, lsn)[-1],
        ROOM,
    )


@given(groups, groups, st.none() | marks)
def test_what_is_taken_and_what_follows(before, after, durable):
    buffer = EntryBuffer(EPOCH, 1, ROOM, 4096)
    fill(buffer, before)
    taken = buffer.take(durable)
    marked = before if durable is None else [*before, durable]
    expected = b"".join(pieces_of(marked, EPOCH, 1))
    assert taken is not None
    assert (written_by(taken), taken.size, taken.position) == (expected, len(expected), 4096)
    assert taken.next_lsn == buffer.next_lsn == numbers(marked, 1)[-1]
    assert (buffer.size, buffer.position) == (0, 4096 + len(expected))
    assert buffer.room == ROOM - len(expected)
    following = buffer.next_lsn
    fill(buffer, after)
    assert written_by(buffer) == b"".join(pieces_of(after, EPOCH, following))
    assert written_by(taken) == expected


def test_nothing_is_taken_of_nothing():
    buffer = EntryBuffer(EPOCH, 1, MARK_BYTES)
    assert buffer.take() is None
    marked = buffer.take(0)
    assert marked is not None
    assert written_by(marked) == encode_mark(0, EPOCH, 1)
    assert buffer.take(0) is None, "there is no room for another mark"


def test_an_idle_mark_stands_alone():
    buffer = EntryBuffer(EPOCH, 1, ROOM)
    buffer.append(2, b"m")
    assert buffer.take_idle(0) is None
    buffer.take()
    marked = buffer.take_idle(1)
    assert marked is not None
    assert written_by(marked) == encode_mark(1, EPOCH, 2)
    assert EntryBuffer(EPOCH, 1, MARK_BYTES - 1).take_idle(0) is None


def test_large_payloads_stay_where_they_are():
    """Between what is laid out, and held in place until they are written."""
    batch = RecordBatch()
    batch.extend_values([bytes(100)] * 500, 1)
    small = bytes(64)
    buffer = EntryBuffer(EPOCH, 1, ROOM)
    for payload in (batch, small, batch):
        assert buffer.append(2, b"meta", payload)
    pieces = buffer.pieces()
    assert [piece.obj is batch for piece in pieces] == [False, True, False, True, False]
    assert b"".join(pieces) == b"".join(
        encode_entry(2, b"meta", bytes(payload), EPOCH, 1 + at)
        for at, payload in enumerate((batch, small, batch))
    )
    with pytest.raises(BufferError):
        batch.append(b"while it waits")
    del buffer, pieces
    batch.append(b"not held any more")


@pytest.mark.parametrize("size", [16 * 1024 - 8, 16 * 1024, 5 << 20])
def test_payloads_around_the_limit_of_what_is_copied(size):
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    buffer = EntryBuffer(EPOCH, 1, 1 << 30)
    assert buffer.append(2, b"m", payload) == 1
    assert buffer.append(3, b"", payload) == 2
    data = written_by(buffer)
    assert data == encode_entry(2, b"m", payload, EPOCH, 1) + encode_entry(
        3, b"", payload, EPOCH, 2
    )
    assert buffer.size == len(data)


def test_a_batch_is_a_payload():
    batch = RecordBatch()
    batch.append(b"value", key=b"key")
    buffer = EntryBuffer(EPOCH, 1, ROOM)
    assert buffer.append(2, b"", batch) == 1
    assert buffer.append(2, b"", RecordBatch()) == 2
    assert buffer.append(2, b"", None) == 3
    assert written_by(buffer) == b"".join(
        encode_entry(2, b"", payload, EPOCH, 1 + i)
        for i, payload in enumerate([bytes(batch), b"", b""])
    )
    batch.append(b"not held any more")


@given(groups, st.integers(0, 700))
def test_without_room_nothing_changes(written, room):
    buffer = EntryBuffer(EPOCH, 1, room)
    kept = []
    for one in written:
        before = (written_by(buffer), buffer.next_lsn)
        if isinstance(one, int):
            fits = len(before[0]) + MARK_BYTES <= room
            assert buffer.mark(one) is fits
        else:
            # An entry must leave room for the mark that closes its group.
            length = ENTRY_HEADER_BYTES + aligned(len(one[1])) + len(one[2])
            fits = len(before[0]) + length + MARK_BYTES <= room
            assert buffer.append(*one) == (before[1] if fits else 0)
        if fits:
            kept.append(one)
        else:
            assert (written_by(buffer), buffer.next_lsn) == before
    assert written_by(buffer) == b"".join(pieces_of(kept, EPOCH, 1))
    assert len(buffer) <= room


def test_room_to_the_byte():
    needed = ENTRY_HEADER_BYTES + 8 + 16 + MARK_BYTES
    assert EntryBuffer(EPOCH, 1, needed - 1).append(2, b"m", bytes(16)) == 0
    buffer = EntryBuffer(EPOCH, 1, needed)
    assert buffer.append(2, b"m", bytes(16)) == 1
    assert buffer.append(2, b"", b"") == 0
    assert buffer.mark(0) is True
    assert buffer.mark(0) is False
    assert len(buffer) == needed


def test_payloads_are_whole_words():
    buffer = EntryBuffer(EPOCH, 1, ROOM)
    with pytest.raises(AssertionError):
        buffer.append(2, b"", b"7 bytes")
    assert (written_by(buffer), buffer.next_lsn) == (b"", 1)


def test_the_memory_stays_in_place_while_it_is_looked_at():
    buffer = EntryBuffer(EPOCH, 1, ROOM)
    buffer.append(2, b"m")
    with memoryview(buffer) as view:
        assert view.readonly
        for change in (
            lambda: buffer.append(2, b"m"),
            lambda: buffer.mark(0),
            lambda: buffer.append(2, b"m", buffer),
        ):
            with pytest.raises(AssertionError):
                change()
    assert buffer.append(2, b"m") == 2
    assert written_by(buffer) == b"".join(pieces_of([(2, b"m", b"")] * 2, EPOCH, 1))


# --- reading ---


@given(groups, epochs, lsns, st.integers(0, 5), st.binary(max_size=48), versions)
def test_scan_returns_what_was_appended(written, epoch, lsn, before, after, version):
    pieces = pieces_of(written, epoch, lsn, version)
    starts = [8 * before + at for at in boundaries(pieces)]
    data = bytes(8 * before) + b"".join(pieces) + after
    found, position, next_lsn = scan_entries(data, 8 * before, epoch, lsn)
    assert found == found_in(written, lsn, starts, version)
    assert (position, next_lsn) == (starts[-1], numbers(written, lsn, version)[-1])
    appended = [one for one in written if not isinstance(one, int)]
    for (kind, _, _, _, meta_start, meta_end, end), one in zip(found, appended, strict=True):
        payload_start = meta_start + aligned(meta_end - meta_start)
        assert (kind, data[meta_start:meta_end], data[payload_start:end]) == one


@settings(deadline=None)
@given(groups, lsns)
def test_any_cut(written, lsn):
    pieces = pieces_of(written, EPOCH, lsn)
    starts, data = boundaries(pieces), b"".join(pieces)
    for cut in range(len(data)):
        whole = sum(1 for end in starts[1:] if end <= cut)
        found, position, next_lsn = scan_entries(data[:cut], 0, EPOCH, lsn)
        assert found == found_in(written[:whole], lsn, starts)
        assert (position, next_lsn) == (starts[whole], numbers(written, lsn)[whole])


@given(groups, lsns, st.data())
def test_any_flipped_bit(written, lsn, data):
    pieces = pieces_of(written, EPOCH, lsn)
    starts, intact = boundaries(pieces), b"".join(pieces)
    bit = data.draw(st.integers(0, 8 * len(intact) - 1))
    hurt = sum(1 for end in starts[1:] if end <= bit // 8)
    damaged = flip(intact, bit)
    found, position, next_lsn = scan_entries(damaged, 0, EPOCH, lsn)
    assert found == found_in(written[:hurt], lsn, starts)
    assert (position, next_lsn) == (starts[hurt], numbers(written, lsn)[hurt])
    assert first_lsn(damaged, starts[hurt], EPOCH) == 0


def test_every_flipped_bit_of_one_entry():
    written = [(2, b"first", b""), (9, b"meta", b"payload!" * 2), (2, b"last", b"")]
    pieces = pieces_of(written, EPOCH, 5)
    starts, intact = boundaries(pieces), b"".join(pieces)
    for bit in range(8 * starts[1], 8 * starts[2]):
        found, position, next_lsn = scan_entries(flip(intact, bit), 0, EPOCH, 5)
        assert found == found_in(written[:1], 5, starts), bit
        assert (position, next_lsn) == (starts[1], 6)


@given(groups, epochs, epochs, lsns)
def test_another_epoch_is_refused(written, epoch, other, lsn):
    data = b"".join(pieces_of(written, epoch, lsn))
    if epoch == other:
        other ^= 1
    assert scan_entries(data, 0, other, lsn) == ([], 0, lsn)
    assert first_lsn(data, 0, other) == 0
    assert inspect_tail(data, 0, other, 0) == (False, 0)


def test_what_an_earlier_use_left_behind():
    old = b"".join(pieces_of([(2, b"old", b"")] * 4, EPOCH, 1))
    new = b"".join(pieces_of([(2, b"new", b""), 3], EPOCH + 1, 1))
    data = new + old[len(new) :]
    found, position, next_lsn = scan_entries(data, 0, EPOCH + 1, 1)
    assert [entry[2] for entry in found] == [1]
    assert (position, next_lsn) == (len(new), 2)


@given(groups, groups, lsns, st.integers(-5, 5).filter(bool))
def test_a_gap_in_the_lsns_stops_the_scan(written, more, lsn, gap):
    starts = boundaries(pieces_of(written, EPOCH, lsn))
    end = numbers(written, lsn)[-1]
    follows = max(end + gap, 0)
    if follows == end:
        follows += 1
    data = b"".join(pieces_of(written, EPOCH, lsn) + pieces_of(more, EPOCH, follows))
    found, position, next_lsn = scan_entries(data, 0, EPOCH, lsn)
    assert found == found_in(written, lsn, starts)
    assert (position, next_lsn) == (starts[-1], end)
    assert scan_entries(data, 0, EPOCH, lsn + 1) == ([], 0, lsn + 1)


@given(groups, lsns, st.integers(1, 4))
def test_limit_pages_through(written, lsn, limit):
    pieces = pieces_of(written, EPOCH, lsn)
    data = b"".join(pieces)
    at, next_lsn, pages = 0, lsn, []
    while True:
        found, at, next_lsn = scan_entries(data, at, EPOCH, next_lsn, limit)
        pages += found
        assert len(found) <= limit
        if len(found) < limit:
            break
    assert pages == found_in(written, lsn, boundaries(pieces))
    assert (at, next_lsn) == (len(data), numbers(written, lsn)[-1])


def test_marks_do_not_count_towards_the_limit():
    written = [1, 2, 3, (2, b"a", b""), 4, (2, b"b", b"")]
    pieces = pieces_of(written, EPOCH, 1)
    starts, data = boundaries(pieces), b"".join(pieces)
    found, position, next_lsn = scan_entries(data, 0, EPOCH, 1, 1)
    assert found == found_in(written[:4], 1, starts)
    assert (position, next_lsn) == (starts[4], 2)
    assert scan_entries(data, 0, EPOCH, 1, 0) == ([], 0, 1)


def sealed(length: int, meta_length: int, total: int, magic: bytes = b"BJ") -> bytes:
    """An entry whose checksum is right and whose lengths need not be."""
    entry = bytearray(total)
    struct.pack_into("<I2sBBIQQ", entry, 4, length, magic, 2, 1, meta_length, EPOCH, 1)
    covered = bytes(entry[4 : max(length, 4)])
    entry[:4] = struct.pack("<I", crc32c(covered))
    return bytes(entry)


@pytest.mark.parametrize(
    "data",
    [
        sealed(24, 0, 40),
        sealed(36, 0, 40),
        sealed(0, 0, 40),
        sealed(48, 0, 40),
        sealed(40, 9, 40),
        sealed(40, 2**32 - 1, 40),
        sealed(2**31, 0, 40),
        sealed(2**32 - 8, 0, 40),
        sealed(40, 0, 40, magic=b"JB"),
    ],
)
def test_impossible_lengths_are_no_entry(data):
    assert scan_entries(data, 0, EPOCH, 1) == ([], 0, 1)
    assert first_lsn(data, 0, EPOCH) == 0


def test_possible_lengths_are_an_entry():
    assert len(scan_entries(sealed(40, 8, 40), 0, EPOCH, 1)[0]) == 1


def test_another_version_is_reported_not_refused():
    data = bytearray(encode_entry(2, b"m", b"", EPOCH, 1))
    data[11] = 9
    data[:4] = struct.pack("<I", crc32c(bytes(data[4:])))
    assert scan_entries(data, 0, EPOCH, 1)[0][0][:3] == (2, 9, 1)


@given(st.binary(max_size=200), st.integers(0, 220))
def test_garbage_is_no_entry(data, at):
    assert scan_entries(data, at, EPOCH, 1) == ([], at, 1)
    assert first_lsn(data, at, EPOCH) == 0
    assert inspect_tail(data, at, EPOCH, 1) == (False, 0)


# --- the tail ---


def tail_of(data: bytes, at: int, epoch: int, next_lsn: int) -> tuple[bool, int]:
    """Every eighth byte is tried, as a damaged length says nothing about where the next begins."""
    was_durable, end = False, at
    for start in range(at, len(data) - ENTRY_HEADER_BYTES + 1, 8):
        crc, length, magic, kind, version, meta_length, its_epoch, _ = struct.unpack_from(
            "<II2sBBIQQ", data, start
        )
        if magic != b"BJ" or its_epoch != epoch:
            continue
        end = max(end, min(len(data), start + max(length, ENTRY_HEADER_BYTES)))
        entry = data[start : start + length]
        if kind == MARK and (length, meta_length) == (MARK_BYTES, 8) and crc == crc32c(entry[4:]):
            said = struct.unpack_from("<Q", data, start + ENTRY_HEADER_BYTES)[0]
            was_durable |= said >= next_lsn if version == 1 else said > at
    return was_durable, end - at


def says_durable(marks: list[int], at: int, next_lsn: int, version: int) -> bool:
    return any(said >= next_lsn if version == 1 else said > at for said in marks)


@given(groups, lsns, st.sampled_from([0, 8, 64, 72]), versions, st.data())
def test_the_tail_behind_damage(written, lsn, zeros, version, data):
    written = [one % 600 if isinstance(one, int) else one for one in written]
    pieces = pieces_of(written, EPOCH, lsn, version)
    starts, intact = boundaries(pieces), b"".join(pieces)
    at = 8 * data.draw(st.integers(0, len(intact) // 8), label="at word")
    next_lsn = data.draw(st.integers(0, 600), label="next LSN")
    hurt = data.draw(st.integers(0, len(written) - 1), label="damaged entry")
    bit = data.draw(st.integers(8 * starts[hurt], 8 * starts[hurt + 1] - 1), label="bit")
    standing = {i: one for i, one in enumerate(written) if isinstance(one, int) and starts[i] >= at}
    was_durable, torn = inspect_tail(intact + bytes(zeros), at, EPOCH, next_lsn)
    assert was_durable == says_durable(list(standing.values()), at, next_lsn, version)
    assert torn == (len(intact) - at if starts[-2] >= at else 0)
    standing.pop(hurt, None)
    damaged = bytes(flip(intact, bit)) + bytes(zeros)
    found = inspect_tail(damaged, at, EPOCH, next_lsn)
    assert found[0] == says_durable(list(standing.values()), at, next_lsn, version)
    assert found == tail_of(damaged, at, EPOCH, next_lsn)


@settings(deadline=None)
@given(groups, lsns)
def test_the_tail_behind_a_cut(written, lsn):
    """In a file that is given its size ahead, a cut is followed by zeros."""
    pieces = pieces_of(written, EPOCH, lsn)
    intact = b"".join(pieces)
    for cut in range(0, len(intact), 8):
        data = intact[:cut] + bytes(len(intact) - cut)
        _, position, next_lsn = scan_entries(data, 0, EPOCH, lsn)
        found = inspect_tail(data, position, EPOCH, next_lsn)
        assert found == tail_of(data, position, EPOCH, next_lsn)
        if cut - position >= ENTRY_HEADER_BYTES:
            assert found[1] >= cut - position


def test_nothing_is_torn_behind_the_last_entry():
    data = b"".join(pieces_of([(2, b"a", b""), 0], EPOCH, 1))
    old = b"".join(pieces_of([(2, b"old", b""), 9], EPOCH - 1, 1))
    for rest in (b"", bytes(8), bytes(4096), old):
        assert inspect_tail(data + rest, len(data), EPOCH, 2) == (False, 0)
    assert inspect_tail(data, len(data) + 8, EPOCH, 2) == (False, 0)


@pytest.mark.parametrize("hurt", [0, 1, 2, 3])
def test_a_mark_tells_damage_from_a_torn_tail(hurt):
    """The first entry and its mark were on disk before the second group was written; whether that
    ever was, nothing says."""
    group = [(2, b"a", b""), 0]
    written = [*group, (2, b"b", b""), len(b"".join(pieces_of(group, EPOCH, 1)))]
    pieces = pieces_of(written, EPOCH, 1)
    starts, data = boundaries(pieces), b"".join(pieces)
    damaged = flip(data, 8 * starts[hurt] + 8)
    _, position, next_lsn = scan_entries(damaged, 0, EPOCH, 1)
    assert position == starts[hurt]
    assert inspect_tail(damaged, position, EPOCH, next_lsn)[0] == (hurt < 2)


def test_a_mark_of_version_1_tells_it_by_its_lsn():
    written = [(2, b"a", b""), 0, (2, b"b", b""), 2]
    pieces = pieces_of(written, EPOCH, 1, 1)
    starts, data = boundaries(pieces), b"".join(pieces)
    for hurt in range(4):
        damaged = flip(data, 8 * starts[hurt] + 8)
        _, position, next_lsn = scan_entries(damaged, 0, EPOCH, 1)
        assert (position, next_lsn) == (starts[hurt], 1 + hurt)
        assert inspect_tail(damaged, position, EPOCH, next_lsn)[0] == (hurt < 2)


def test_a_mark_at_the_very_end_and_one_cut():
    data = bytes(64) + encode_mark(9, EPOCH, 1)
    assert inspect_tail(data, 0, EPOCH, 1) == (True, len(data))
    assert inspect_tail(data, 16, EPOCH, 1) == (False, len(data) - 16)
    assert inspect_tail(data[:-1], 0, EPOCH, 1) == (False, len(data) - 1)
    assert inspect_tail(data, 72, EPOCH, 1) == (False, 0)
    assert inspect_tail(b"", 0, EPOCH, 1) == (False, 0)


def test_a_mark_too_short_to_say_anything():
    """Its eight bytes would be read from what stands behind it, or behind the end of the data."""
    short = encode_entry(MARK, b"", b"", EPOCH, 1)
    assert len(short) == ENTRY_HEADER_BYTES
    assert not inspect_tail(short + b"\xff" * 8, 0, EPOCH, 1)[0]


# --- first_lsn ---


@given(groups, epochs, lsns, versions)
def test_first_lsn(written, epoch, lsn, version):
    pieces = pieces_of(written, epoch, lsn, version)
    starts, data = boundaries(pieces), b"".join(pieces)
    said = numbers(written, lsn, version)
    for start, number in zip(starts[:-1], said, strict=False):
        assert first_lsn(data, start, epoch) == number
        assert first_lsn(data, start + 8, epoch) == 0
    assert first_lsn(data, len(data), epoch) == 0
    assert first_lsn(data, len(data) + 8, epoch) == 0
    assert first_lsn(b"", 0, epoch) == 0
