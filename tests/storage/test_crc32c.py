"""The checksum under every record, entry and file header."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import crc32c as crc32c_by_table
from oracles import crc32c_bitwise

from braidmq.record.crc32c import HARDWARE, copy_and_crc32c, crc32c, crc32c_portable

# Three chains of 168 bytes, three of 2048, and both after one another.
THRESHOLDS = (3 * 168, 3 * 2048, 3 * 168 + 3 * 2048)

KERNELS = pytest.mark.parametrize("checksum", [crc32c, crc32c_portable])


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes without a pattern, the same in every run."""
    out = bytearray()
    while len(out) < size:
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        out += (seed >> 32).to_bytes(4, "little")
    return bytes(out[:size])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        # RFC 3720 B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
@pytest.mark.parametrize("checksum", [crc32c, crc32c_portable, crc32c_bitwise, crc32c_by_table])
def test_known_vectors(checksum, data, expected):
    assert checksum(data) == expected


def test_hardware_is_a_plain_answer():
    assert HARDWARE in (True, False)


@given(st.binary(max_size=64), st.integers(0, 2**32 - 1))
def test_agrees_with_the_definition(data, start):
    expected = crc32c_bitwise(data, start)
    assert crc32c(data, start) == expected
    assert crc32c_portable(data, start) == expected
    assert crc32c_by_table(data, start) == expected


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("around", [-9, -8, -1, 0, 1, 4, 7, 8, 9, 13])
def test_around_the_three_way_thresholds(threshold, around):
    data = noise(threshold + around, seed=threshold)
    expected = crc32c_bitwise(data)
    assert crc32c(data) == expected
    assert crc32c_portable(data) == expected


def test_every_length_up_to_two_short_rounds():
    data = noise(2 * 504 + 16)
    for size in range(len(data) + 1):
        piece = memoryview(data)[:size]
        assert crc32c(piece) == crc32c_portable(piece), size


@settings(deadline=None)
@given(
    st.integers(0, 2**64 - 1),
    st.one_of(
        st.integers(0, 20_000),
        st.builds(
            lambda base, near: base + near, st.sampled_from(THRESHOLDS), st.integers(-16, 16)
        ),
    ),
    st.integers(0, 7),
    st.integers(0, 2**32 - 1),
)
def test_hardware_agrees_with_tables_at_any_alignment(seed, size, shift, start):
    data = memoryview(noise(size + shift, seed))[shift:]
    assert crc32c(data, start) == crc32c_portable(data, start) == crc32c_by_table(data, start)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 14_000), st.floats(0, 1))
def test_continues_from_an_earlier_checksum(seed, size, part):
    data = noise(size, seed)
    cut = int(size * part)
    for checksum in (crc32c, crc32c_portable):
        assert checksum(data[cut:], checksum(data[:cut])) == checksum(data)


@KERNELS
def test_one_flipped_bit_changes_it(checksum):
    data = bytearray(noise(700))
    whole = checksum(data)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert checksum(data) != whole, bit
        data[bit // 8] ^= 1 << bit % 8


@KERNELS
def test_takes_any_contiguous_buffer(checksum):
    data = b"123456789"
    assert checksum(bytearray(data)) == checksum(memoryview(data)) == checksum(data)
    with pytest.raises((BufferError, ValueError)):
        checksum(memoryview(data)[::2])


@KERNELS
@pytest.mark.parametrize("start", [-1, 2**32])
def test_refuses_a_start_wider_than_32_bits(checksum, start):
    with pytest.raises(OverflowError):
        checksum(b"x", start)


@pytest.mark.parametrize("piece", [1, 7, 504, 4096, 10_000])
def test_copy_and_check(piece):
    source = noise(5000)
    target = bytearray(6000)
    assert copy_and_crc32c(target, source, piece) == crc32c(source)
    assert target == source + bytes(1000)


def test_copy_refuses_a_short_target():
    with pytest.raises(AssertionError):
        copy_and_crc32c(bytearray(3), b"four", 8)
