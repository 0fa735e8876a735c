"""What a power cut does to a file's bytes.

The model that the tests compare with is written apart from the code: for every byte, the values that it had
since the last sync.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.testkit.file_tree import PAGE, SECTOR, FileNode

SEEDS = range(200)
sizes = st.integers(0, 3 * PAGE)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), sizes),
        st.tuples(st.just("overwrite"), sizes),
        st.tuples(st.just("truncate"), sizes),
        st.tuples(st.just("sync"), st.none()),
    ),
    max_size=12,
)


class ByteModel:
    """Knows nothing of pages: which values may a byte have, and which sizes may the file have?"""

    def __init__(self) -> None:
        self.current = bytearray()
        self.possible: list[set[int]] = []
        self.sizes_min_max = (0, 0)

    def write(self, data: bytes, position: int) -> None:
        self.current[position : position + len(data)] = data
        self._seen()

    def truncate(self, size: int) -> None:
        del self.current[size:]
        self.current = self.current.ljust(size, b"\0")
        self._seen()

    def sync(self) -> None:
        self.possible = [{value} for value in self.current]
        self.sizes_min_max = (len(self.current), len(self.current))

    def _seen(self) -> None:
        low, high = self.sizes_min_max
        self.sizes_min_max = (min(low, len(self.current)), max(high, len(self.current)))
        for position, value in enumerate(self.current.ljust(len(self.possible), b"\0")):
            if position < len(self.possible):
                self.possible[position].add(value)
            else:
                self.possible.append({0, value})  # zeros show where the size ran ahead of the data


@given(operations, st.integers(0, 999), st.sampled_from([0.0, 0.3, 0.7, 1.0]))
def test_after_a_power_cut_every_byte_was_written_and_synced_ones_are_kept(
    script: list[tuple[str, int | None]], seed: int, keep_chance: float
) -> None:
    node, model = FileNode(), ByteModel()
    for number, (action, size) in enumerate(script):
        if action == "sync":
            node.sync()
            model.sync()
        elif action == "truncate":
            assert size is not None
            node.truncate(size)
            model.truncate(size)
        else:
            assert size is not None
            position = len(node.content) if action == "append" else min(len(node.content), size) // 2
            data = bytes([number + 1]) * size
            node.write(data, position)
            model.write(data, position)
        assert node.content == model.current
    node.lose_power(Random(seed), keep_chance)
    low, high = model.sizes_min_max
    assert low <= len(node.content) <= high
    for position, value in enumerate(node.content):
        assert value in model.possible[position]


@given(operations, st.integers(0, 999))
def test_the_last_synced_bytes_survive_every_power_cut(script: list[tuple[str, int | None]], seed: int) -> None:
    node = FileNode()
    for number, (action, size) in enumerate(script):
        if action == "truncate":
            node.truncate(size or 0)
        elif action != "sync":
            node.write(bytes([number + 1]) * (size or 0), len(node.content) // 2)
        else:
            node.sync()
    node.sync()
    synced = bytes(node.content)
    node.lose_power(Random(seed), 0.0)
    assert node.content == synced
    node.lose_power(Random(seed + 1), 0.5)
    assert node.content == synced


def crashed(seed: int, keep_chance: float = 0.5) -> bytearray:
    """One synced page of A, then three pages of B that are not, then a power cut."""
    node = FileNode()
    node.write(b"A" * PAGE, 0)
    node.sync()
    node.write(b"B" * (3 * PAGE), PAGE)
    node.lose_power(Random(seed), keep_chance)
    return node.content


def test_unsynced_pages_are_kept_or_lost_independently() -> None:
    patterns = set()
    for seed in SEEDS:
        content = crashed(seed)
        if len(content) == 4 * PAGE:
            patterns.add(tuple(content[page * PAGE : (page + 1) * PAGE] == b"B" * PAGE for page in (1, 2, 3)))
    assert len(patterns) == 8


def test_an_unsynced_page_can_be_torn_at_a_sector_and_nowhere_else() -> None:
    torn_at = set()
    for seed in SEEDS:
        page = crashed(seed)[PAGE : 2 * PAGE]
        if 0 < page.count(b"B") < len(page):
            assert page == b"B" * page.count(b"B") + bytes(page.count(b"\0"))
            torn_at.add(page.count(b"B"))
    assert torn_at
    assert all(position % SECTOR == 0 for position in torn_at)


def test_the_size_can_lag_behind_the_data_and_run_ahead_of_it() -> None:
    contents = [crashed(seed) for seed in SEEDS]
    assert any(len(content) == PAGE for content in contents)
    assert any(len(content) % PAGE for content in contents), "a long write gets its size in steps"
    assert any(len(content) == 4 * PAGE and not content.count(b"B") for content in contents)


def test_a_power_cut_may_lose_everything_unsynced_and_may_lose_nothing() -> None:
    assert any(len(crashed(seed, 0.0)) == PAGE for seed in SEEDS)
    assert all(len(crashed(seed, 1.0)) == 4 * PAGE for seed in SEEDS)
    assert any(crashed(seed, 1.0).count(b"B") == 3 * PAGE for seed in SEEDS)


def test_a_page_written_twice_may_show_its_first_state() -> None:
    states = set()
    for seed in SEEDS:
        node = FileNode()
        node.write(b"0" * 100, 0)
        node.sync()
        node.write(b"1" * 100, 0)
        node.write(b"2" * 100, 0)
        node.lose_power(Random(seed), 0.4)
        states.add(bytes(node.content[:1]))
    assert states == {b"0", b"1", b"2"}


def test_appending_to_a_synced_page_never_damages_its_synced_bytes() -> None:
    for seed in SEEDS:
        node = FileNode()
        node.write(b"A" * 700, 0)  # ends inside a sector
        node.sync()
        node.write(b"B" * 5000, 700)
        node.lose_power(Random(seed), 0.5)
        assert node.content[:700] == b"A" * 700


def test_truncated_bytes_may_return_until_the_truncation_is_synced() -> None:
    def survived(seed: int, synced: bool) -> bytes:
        node = FileNode()
        node.write(b"A" * (3 * PAGE), 0)
        node.sync()
        node.truncate(100)
        if synced:
            node.sync()
        node.write(b"B" * (3 * PAGE), 100)
        node.lose_power(Random(seed), 0.5)
        return bytes(node.content[100:])

    assert any(b"A" in survived(seed, synced=False) for seed in SEEDS)
    assert not any(b"A" in survived(seed, synced=True) for seed in SEEDS)


def test_a_truncation_alone_leaves_the_old_bytes_or_the_new_size() -> None:
    seen = set()
    for seed in SEEDS:
        node = FileNode()
        node.write(b"A" * (3 * PAGE), 0)
        node.sync()
        node.truncate(PAGE)
        node.lose_power(Random(seed), 0.5)
        seen.add(bytes(node.content))
    assert seen == {b"A" * PAGE, b"A" * (3 * PAGE)}


def test_a_failed_sync_is_not_repaired_by_the_next_one() -> None:
    lost = 0
    for seed in SEEDS:
        node = FileNode()
        node.write(b"A" * PAGE, 0)
        node.sync()
        node.write(b"B" * PAGE, PAGE)
        node.fail_sync()
        assert node.content == b"A" * PAGE + b"B" * PAGE, "the page cache still shows it"
        node.sync()
        node.lose_power(Random(seed), 0.5)
        assert node.content[:PAGE] == b"A" * PAGE
        lost += node.content[PAGE:] != b"B" * PAGE
    assert lost > len(SEEDS) // 4


def test_a_page_written_again_after_a_failed_sync_is_saved_by_the_next_one() -> None:
    for seed in SEEDS:
        node = FileNode()
        node.write(b"A" * 100, 0)
        node.fail_sync()
        node.write(b"B" * 100, 100)
        node.sync()
        node.lose_power(Random(seed), 0.0)
        assert node.content == b"A" * 100 + b"B" * 100


@pytest.mark.parametrize("position", [0, PAGE, 2 * PAGE - 1])
def test_a_flipped_bit_stays_flipped(position: int) -> None:
    node = FileNode()
    node.write(bytes(2 * PAGE), 0)
    node.sync()
    node.flip_bit(position, 3)
    assert node.content[position] == 8
    node.lose_power(Random(1), 0.0)
    assert node.content[position] == 8
    assert node.content.count(0) == 2 * PAGE - 1
