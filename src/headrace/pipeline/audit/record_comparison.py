"""Compare two copies of a partition, record by record. Pure.

- Every difference is reported once. Applying all of them to the expected sequence yields the found sequence (the tests
  do that).
- Records are compared by identity if both sides have one, else by content. Equal content may occur any number of times.
- `align` matches equal items of two sequences without reordering either. For few differences it keeps as many items as
  possible (Myers' greedy search), so that one change is reported as one change, also among equal items. For many
  differences it pairs equal items by their count, first with first, and keeps the longest ascending run of pairs:
  correct, though not always the shortest result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec

EDITS_MAX = 1000
"""Up to this number of differences the search is exact; its time and memory grow with the square."""

Pair = tuple[int, int]


def align(expected: Sequence[Hashable], found: Sequence[Hashable], edits_max: int = EDITS_MAX) -> list[Pair]:
    """Pairs of indices of equal items, ascending on both sides."""
    start, stop, found_stop = 0, len(expected), len(found)
    while start < stop and start < found_stop and expected[start] == found[start]:
        start += 1
    while stop > start and found_stop > start and expected[stop - 1] == found[found_stop - 1]:
        stop -= 1
        found_stop -= 1
    left, right = expected[start:stop], found[start:found_stop]
    between = _fewest_edits(left, right, edits_max) if left and right else []
    if between is None:
        between = _by_count(left, right)
    head = [(index, index) for index in range(start)]
    tail = zip(range(stop, len(expected)), range(found_stop, len(found)), strict=True)
    return [*head, *((i + start, j + start) for i, j in between), *tail]


def longest_increasing_subsequence(values: Sequence[int]) -> list[int]:
    """Indices of a longest strictly ascending subsequence."""
    ends: list[int] = []  # the smallest value that ends a rise of length n + 1
    end_indices: list[int] = []
    before: list[int] = []
    for index, value in enumerate(values):
        length = bisect_left(ends, value)
        before.append(end_indices[length - 1] if length else -1)
        if length == len(ends):
            ends.append(value)
            end_indices.append(index)
        else:
            ends[length] = value
            end_indices[length] = index
    rise: list[int] = []
    index = end_indices[-1] if end_indices else -1
    while index >= 0:
        rise.append(index)
        index = before[index]
    rise.reverse()
    return rise


def gaps(pairs: Sequence[Pair], expected_count: int, found_count: int) -> Iterable[tuple[range, range]]:
    """The non-empty intervals between pairs, on both sides."""
    for (i, j), (next_i, next_j) in pairwise([(-1, -1), *pairs, (expected_count, found_count)]):
        if next_i - i > 1 or next_j - j > 1:
            yield range(i + 1, next_i), range(j + 1, next_j)


def _fewest_edits(expected: Sequence[Hashable], found: Sequence[Hashable], edits_max: int) -> list[Pair] | None:
    """Myers, "An O(ND) difference algorithm": the furthest point on each diagonal per number of edits; None beyond the
    limit."""
    width, height = len(expected), len(found)
    reach = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(edits_max, width + height) + 1):
        history.append(reach.copy())
        for diagonal in range(-edits, edits + 1, 2):
            goes_down = diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])
            x = reach[diagonal + 1] if goes_down else reach[diagonal - 1] + 1
            y = x - diagonal
            while x < width and y < height and expected[x] == found[y]:
                x += 1
                y += 1
            reach[diagonal] = x
            if x >= width and y >= height:
                return _backtrack(history, width, height)
    return None


def _backtrack(history: Sequence[dict[int, int]], x: int, y: int) -> list[Pair]:
    pairs: list[Pair] = []
    for edits in range(len(history) - 1, -1, -1):
        reach, diagonal = history[edits], x - y
        goes_down = diagonal == -edits or (
            diagonal != edits and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
        )
        before = diagonal + 1 if goes_down else diagonal - 1
        before_x = reach.get(before, 0) if edits else 0
        before_y = before_x - before if edits else 0
        while x > before_x and y > before_y:
            x -= 1
            y -= 1
            pairs.append((x, y))
        x, y = before_x, before_y
    pairs.reverse()
    return pairs


def _by_count(expected: Sequence[Hashable], found: Sequence[Hashable]) -> list[Pair]:
    indices: dict[Hashable, list[int]] = defaultdict(list)
    for index in range(len(expected) - 1, -1, -1):
        indices[expected[index]].append(index)
    pairs = [(indices[item].pop(), j) for j, item in enumerate(found) if indices.get(item)]
    return [pairs[index] for index in longest_increasing_subsequence([i for i, _ in pairs])]


Kind: TypeAlias = Literal["lost", "duplicated", "reordered", "altered", "foreign"]
KINDS: tuple[Kind, ...] = ("lost", "duplicated", "reordered", "altered", "foreign")

_COMPARISONS_MAX = 1 << 20  # pairs of neighbours whose similarity is computed
_OFFSET_WEIGHT = 100  # a pair counts for more than all equal fields together


class RecordDigest(msgspec.Struct, frozen=True, gc=False):
    """A record with digests instead of its bytes. `identity`: the record of the source that it is, if known;
    `timestamp_ms`: None if times are not compared."""

    offset: int
    identity: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None

    @property
    def content(self) -> tuple[object, ...]:
        return self.key, self.value, self.headers, self.timestamp_ms


class Difference(msgspec.Struct, frozen=True, gc=False):
    """`expected` and `found` are indices into the two sequences; None on a side without the record."""

    kind: Kind
    expected: int | None
    found: int | None
    fields: tuple[str, ...] = ()


def differing_fields(expected: RecordDigest, found: RecordDigest) -> tuple[str, ...]:
    fields = [name for name in ("key", "value", "timestamp_ms") if getattr(expected, name) != getattr(found, name)]
    if expected.headers != found.headers:
        names = dict.fromkeys(name for name, _ in (*expected.headers, *found.headers))
        changed = [
            name
            for name in names
            if [value for one, value in expected.headers if one == name]
            != [value for one, value in found.headers if one == name]
        ]
        fields += [f"header {name}" for name in changed] or ["order of headers"]
    return tuple("timestamp" if name == "timestamp_ms" else name for name in fields)


def compare_by_identity(expected: Sequence[RecordDigest], found: Sequence[RecordDigest]) -> list[Difference]:
    """Each identity occurs once on the expected side. A found record with an unknown identity is foreign."""
    indices = {entry.identity: index for index, entry in enumerate(expected)}
    copies: dict[int, list[int]] = defaultdict(list)  # index of the expected record -> indices where it was found
    differences: list[Difference] = []
    for j, entry in enumerate(found):
        if entry.identity is not None and entry.identity in indices:
            copies[indices[entry.identity]].append(j)
        else:
            differences.append(Difference("foreign", None, j))
    # Of several copies, prefer those with equal content, and among them the one in order.
    candidates = sorted((j, i) for i, found_at in copies.items() for j in _equal_copies(expected[i], found, found_at))
    in_order = {
        candidates[index][1]: candidates[index][0]
        for index in longest_increasing_subsequence([i for _, i in candidates])
    }
    for i, entry in enumerate(expected):
        if i not in copies:
            differences.append(Difference("lost", i, None))
            continue
        kept = in_order[i] if i in in_order else _equal_copies(entry, found, copies[i])[0]
        if i not in in_order:
            differences.append(Difference("reordered", i, kept))
        if fields := differing_fields(entry, found[kept]):
            differences.append(Difference("altered", i, kept, fields))
        differences.extend(
            Difference("duplicated", i, j, differing_fields(entry, found[j])) for j in copies[i] if j != kept
        )
    return differences


def compare_by_content(expected: Sequence[RecordDigest], found: Sequence[RecordDigest]) -> list[Difference]:
    """An additional record is a duplicate if the expected side has the same content anywhere, else foreign."""
    expected_contents = [entry.content for entry in expected]
    found_contents = [entry.content for entry in found]
    pairs = align(expected_contents, found_contents)
    missing: dict[object, deque[int]] = defaultdict(deque)
    intervals = list(gaps(pairs, len(expected), len(found)))
    for here, _ in intervals:
        for i in here:
            missing[expected_contents[i]].append(i)
    differences: list[Difference] = []
    moved_from: set[int] = set()
    moved_to: set[int] = set()
    for _, there in intervals:
        for j in there:
            if candidates := missing.get(found_contents[j]):
                i = candidates.popleft()
                moved_from.add(i)
                moved_to.add(j)
                differences.append(Difference("reordered", i, j))
    first_indices = {content: index for index, content in reversed(list(enumerate(expected_contents)))}
    for here, there in intervals:
        gone = [i for i in here if i not in moved_from]
        came = [j for j in there if j not in moved_to]
        altered = dict(_most_similar([expected[i] for i in gone], [found[j] for j in came]))
        for at, i in enumerate(gone):
            if at in altered:
                j = came[altered[at]]
                differences.append(Difference("altered", i, j, differing_fields(expected[i], found[j])))
            else:
                differences.append(Difference("lost", i, None))
        taken = set(altered.values())
        for at, j in enumerate(came):
            if at not in taken:
                original = first_indices.get(found_contents[j])
                differences.append(Difference("foreign" if original is None else "duplicated", original, j))
    return differences


def _equal_copies(entry: RecordDigest, found: Sequence[RecordDigest], copies: Sequence[int]) -> Sequence[int]:
    return [j for j in copies if found[j].content == entry.content] or copies


def _most_similar(gone: Sequence[RecordDigest], came: Sequence[RecordDigest]) -> list[tuple[int, int]]:
    """As many ordered pairs as possible; among these, the pairs with the most equal fields."""
    if len(gone) * len(came) > _COMPARISONS_MAX:
        return list(zip(range(len(gone)), range(len(came)), strict=False))
    width = len(came)
    best = [[0] * (width + 1)]  # best[n][m]: score of the first n of `gone` and the first m of `came`
    for one in gone:
        above, row = best[-1], [0]
        for m, other in enumerate(came):
            row.append(max(above[m] + _OFFSET_WEIGHT + _similarity(one, other), above[m + 1], row[m]))
        best.append(row)
    pairs: list[tuple[int, int]] = []
    n, m = len(gone), width
    while n and m:
        if best[n][m] == best[n - 1][m]:
            n -= 1
        elif best[n][m] == best[n][m - 1]:
            m -= 1
        else:
            n, m = n - 1, m - 1
            pairs.append((n, m))
    pairs.reverse()
    return pairs


def _similarity(one: RecordDigest, other: RecordDigest) -> int:
    """An equal key or value scores higher than a key or value that both lack."""
    return (
        (one.key == other.key) * (1 + 3 * (one.key is not None))
        + (one.value == other.value) * (1 + 4 * (one.value is not None))
        + (one.headers == other.headers) * (1 + bool(one.headers))
        + (one.timestamp_ms == other.timestamp_ms) * (1 + 2 * (one.timestamp_ms is not None))
    )
