"""A dedup id is found exactly as long as it is within the window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.machines.produce.dedup_window import WITHIN_BATCH, DedupWindow, _IdSlice, hash_dedup_id

WINDOW_MS = 100
X, Y = hash_dedup_id(b"x"), hash_dedup_id(b"y")
IDS = [hash_dedup_id(b"%d" % number) for number in range(8)]
LOOKALIKES = [bytes(zeros) + b"\1" * (16 - zeros) for zeros in range(17)] + [b"\1" + b"\0" * 15]


def one_bucket() -> _IdSlice:
    made = _IdSlice(1024)
    made._mask = 0
    return made


def test_an_id_is_found_until_the_window_ends() -> None:
    window = DedupWindow(WINDOW_MS)
    window.add(X, 40, 1000)
    assert window.find([X], 1000 + WINDOW_MS - 1) == [40]
    assert window.find([X], 1000 + WINDOW_MS) == [None]
    assert len(window) == 0


def test_a_message_without_an_id_is_always_new() -> None:
    assert DedupWindow(WINDOW_MS).find([None, None], 0) == [None, None]


def test_the_second_of_two_in_a_batch_is_no_news() -> None:
    window = DedupWindow(WINDOW_MS)
    window.add(X, 5, 0)
    assert window.find([Y, Y, X, None, Y], 0) == [None, WITHIN_BATCH, 5, None, WITHIN_BATCH]


def test_an_expired_id_can_be_used_again() -> None:
    window = DedupWindow(WINDOW_MS)
    window.add(X, 5, 0)
    window.add(Y, 6, 50)
    assert window.find([X, Y], WINDOW_MS) == [None, 6]
    window.add(X, 7, WINDOW_MS)
    assert window.find([X, Y], WINDOW_MS + 1) == [7, 6]


def test_a_window_that_changes_counts_at_once() -> None:
    window = DedupWindow(WINDOW_MS)
    window.add(X, 5, 0)
    window.window_ms = 10 * WINDOW_MS
    assert window.find([X], 9 * WINDOW_MS) == [5]
    window.window_ms = WINDOW_MS
    assert window.find([X], 9 * WINDOW_MS) == [None]


def test_a_clock_that_goes_back_keeps_the_order_of_expirations() -> None:
    window = DedupWindow(WINDOW_MS)
    window.add(X, 5, 1000)
    window.add(Y, 6, 500)
    assert window.find([X, Y], 1000 + WINDOW_MS - 1) == [5, 6]
    assert window.find([X, Y], 1000 + WINDOW_MS) == [None, None]


def test_expired_ids_take_no_memory() -> None:
    window = DedupWindow(WINDOW_MS)
    for at in range(20_000):
        window.expire(at)
        window.add(hash_dedup_id(b"%d" % at), at, at)
    assert len(window) <= 2 * 1024 + WINDOW_MS


def test_many_ids_make_few_slices_and_all_are_found() -> None:
    window = DedupWindow(1 << 60)
    ids = [hash_dedup_id(b"%d" % at) for at in range(100_000)]
    for at, dedup_id in enumerate(ids):
        window.add(dedup_id, at, at)
    assert len(window) == len(ids)
    assert len(window._slices) < 15
    assert window.find(ids[::97], 100_000) == list(range(0, 100_000, 97))


@given(st.lists(st.sampled_from(LOOKALIKES), min_size=1, max_size=40))
def test_a_match_across_two_entries_is_no_id(noted: list[bytes]) -> None:
    """All in one bucket, where the end of one entry and the beginning of the next may look like a third."""
    window = DedupWindow(WINDOW_MS)
    window._slices.append(one_bucket())
    first: dict[bytes, int] = {}
    for at, dedup_id in enumerate(noted):
        if window.find([dedup_id], 0) == [None]:
            window.add(dedup_id, at, 0)
        first.setdefault(dedup_id, at)
    assert window.find(LOOKALIKES, 0) == [first.get(one) for one in LOOKALIKES]


def test_hashes_differ_where_ids_do() -> None:
    assert len({hash_dedup_id(b"%d" % number) for number in range(10_000)}) == 10_000
    assert hash_dedup_id(b"a") == hash_dedup_id(b"a")


class WindowAndAList(RuleBasedStateMachine):
    """The window, beside a list of everything that was ever noted."""

    def __init__(self) -> None:
        super().__init__()
        self.window = DedupWindow(WINDOW_MS)
        self.noted: list[tuple[bytes, int, int]] = []
        self.now_ms = 1000
        self.end_offset = 0

    @rule(ids=st.lists(st.none() | st.sampled_from(IDS), min_size=1, max_size=6))
    def append(self, ids: list[bytes | None]) -> None:
        found = self.window.find(ids, self.now_ms)
        assert found == [self.expected(ids[:at], one) for at, one in enumerate(ids)]
        for at, (dedup_id, offset) in enumerate(zip(ids, found, strict=True)):
            if dedup_id is not None and offset is None:
                self.window.add(dedup_id, self.end_offset + at, self.now_ms)
                self.noted.append((dedup_id, self.end_offset + at, self.now_ms))
        self.end_offset += len(ids)

    @rule(elapsed_ms=st.sampled_from([1, 10, WINDOW_MS - 1, WINDOW_MS, 3 * WINDOW_MS]))
    def wait(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms

    @rule()
    def expire(self) -> None:
        self.window.expire(self.now_ms)
        assert bool(self.window) == bool(self.current())

    @invariant()
    def window_holds_exactly_the_current_ids(self) -> None:
        assert len(self.current()) <= len(self.window) <= len(self.noted)

    def current(self) -> dict[bytes, int]:
        return {dedup_id: offset for dedup_id, offset, at_ms in self.noted if self.now_ms - at_ms < WINDOW_MS}

    def expected(self, earlier: list[bytes | None], dedup_id: bytes | None) -> int | None:
        if dedup_id is None:
            return None
        if dedup_id in self.current():
            return self.current()[dedup_id]
        return WITHIN_BATCH if dedup_id in earlier else None


TestWindowAndAList = WindowAndAList.TestCase
