"""The map of a pass: exact about every key, and bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.compaction.offset_map import NO_OFFSET, OffsetMap


@given(st.lists(st.binary(max_size=3), max_size=200), st.sampled_from([1, 300, 1 << 20]))
def test_the_map_knows_what_a_dictionary_knows(keys: list[bytes], size_bytes: int) -> None:
    newest, expected = OffsetMap(size_bytes), dict[bytes, int]()
    for offset, key in enumerate(keys):
        newest.put(key, offset)
        expected[key] = offset
        assert len(newest) == len(expected)
    assert {key: newest.newest(key) for key in expected} == expected
    assert newest.newest(b"a key that nobody put") == NO_OFFSET


def test_a_full_map_takes_no_more_and_an_empty_one_anything() -> None:
    newest = OffsetMap(10 * 36)
    assert newest.has_room(1000)
    for number in range(9):
        newest.put(b"%d" % number, number)
    assert newest.has_room(1)
    assert not newest.has_room(2)


def test_the_memory_stays_within_the_bound() -> None:
    import tracemalloc

    size_bytes = 4 << 20
    tracemalloc.start()
    try:
        newest = OffsetMap(size_bytes)
        for number in range(newest.capacity):
            newest.put(b"key-%d" % number, number)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert newest.capacity > 100_000
    assert used <= size_bytes * 1.05
