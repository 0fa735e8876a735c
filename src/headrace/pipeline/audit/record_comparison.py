"""Compare two copies of a partition, aligned by offset.

Pure.

Every difference is named once, and all of them together turn the expected sequence into the one that was found (the
tests do just that). Records are compared by identity where both sides say which record is which, else by content;
equal content may occur any number of times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec

# Which items of two sequences belong together, without changing the order of either. Pure.
#
# While the two differ in little, as many items are kept as can be (Myers' greedy search), so that one change shows as
# one change, also among equal items. Where they differ in much, equal items are paired by their count, the first with
# the first, and the longest run of pairs that is in order is kept: still right, though perhaps not the shortest
# account.


EDITS_MAX = 1000
"""Up to so many differences the search is exact; its time and its memory grow with their square."""

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
    """What lies between the pairs, wherever at least one side has something there."""
    for (i, j), (next_i, next_j) in pairwise([(-1, -1), *pairs, (expected_count, found_count)]):
        if next_i - i > 1 or next_j - j > 1:
            yield range(i + 1, next_i), range(j + 1, next_j)


def _fewest_edits(expected: Sequence[Hashable], found: Sequence[Hashable], edits_max: int) -> list[Pair] | None:
    """Myers, "An O(ND) difference algorithm": how far each diagonal gets with so many edits; None beyond the limit."""
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
    places: dict[Hashable, list[int]] = defaultdict(list)
    for index in range(len(expected) - 1, -1, -1):
        places[expected[index]].append(index)
    pairs = [(places[item].pop(), j) for j, item in enumerate(found) if places.get(item)]
    return [pairs[index] for index in longest_increasing_subsequence([i for i, _ in pairs])]


Kind: TypeAlias = Literal["lost", "duplicated", "reordered", "altered", "foreign"]
KINDS: tuple[Kind, ...] = ("lost", "duplicated", "reordered", "altered", "foreign")

_COMPARISONS_MAX = 1 << 20  # pairs of neighbours whose likeness is weighed
_OFFSET_WEIGHT = 100  # being in the same place counts for more than all fields together


class RecordDigest(msgspec.Struct, frozen=True, gc=False):
    """A record with digests in place of its bytes. `identity` says which record of the source it is, if it says so;
    `timestamp_ms` is None where times are not compared."""

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
    """`expected` and `found` are indices of the two sequences; None on the side that does not have it."""

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
    """Each identity is on the expected side once; whatever says that it is a record that is not there is foreign."""
    places = {entry.identity: index for index, entry in enumerate(expected)}
    copies: dict[int, list[int]] = defaultdict(list)  # of the record at this place: where it was found
    differences: list[Difference] = []
    for j, entry in enumerate(found):
        if entry.identity is not None and entry.identity in places:
            copies[places[entry.identity]].append(j)
        else:
            differences.append(Difference("foreign", None, j))
    # Of several copies, those that are as they should be come into question first, and then the one in its place.
    candidates = sorted((j, i) for i, found_at in copies.items() for j in _faithful(expected[i], found, found_at))
    in_place = {
        candidates[index][1]: candidates[index][0]
        for index in longest_increasing_subsequence([i for _, i in candidates])
    }
    for i, entry in enumerate(expected):
        if i not in copies:
            differences.append(Difference("lost", i, None))
            continue
        kept = in_place[i] if i in in_place else _faithful(entry, found, copies[i])[0]
        if i not in in_place:
            differences.append(Difference("reordered", i, kept))
        if fields := differing_fields(entry, found[kept]):
            differences.append(Difference("altered", i, kept, fields))
        differences.extend(
            Difference("duplicated", i, j, differing_fields(entry, found[j])) for j in copies[i] if j != kept
        )
    return differences


def compare_by_content(expected: Sequence[RecordDigest], found: Sequence[RecordDigest]) -> list[Difference]:
    """What came in excess counts as duplicated if the expected side has its like anywhere."""
    expected_contents = [entry.content for entry in expected]
    found_contents = [entry.content for entry in found]
    pairs = align(expected_contents, found_contents)
    missing: dict[object, deque[int]] = defaultdict(deque)
    holes = list(gaps(pairs, len(expected), len(found)))
    for here, _ in holes:
        for i in here:
            missing[expected_contents[i]].append(i)
    differences: list[Difference] = []
    moved_from: set[int] = set()
    moved_to: set[int] = set()
    for _, there in holes:
        for j in there:
            if places := missing.get(found_contents[j]):
                i = places.popleft()
                moved_from.add(i)
                moved_to.add(j)
                differences.append(Difference("reordered", i, j))
    first_places = {content: index for index, content in reversed(list(enumerate(expected_contents)))}
    for here, there in holes:
        gone = [i for i in here if i not in moved_from]
        came = [j for j in there if j not in moved_to]
        altered = dict(_most_alike([expected[i] for i in gone], [found[j] for j in came]))
        for at, i in enumerate(gone):
            if at in altered:
                j = came[altered[at]]
                differences.append(Difference("altered", i, j, differing_fields(expected[i], found[j])))
            else:
                differences.append(Difference("lost", i, None))
        taken = set(altered.values())
        for at, j in enumerate(came):
            if at not in taken:
                place = first_places.get(found_contents[j])
                differences.append(Difference("foreign" if place is None else "duplicated", place, j))
    return differences


def _faithful(entry: RecordDigest, found: Sequence[RecordDigest], copies: Sequence[int]) -> Sequence[int]:
    return [j for j in copies if found[j].content == entry.content] or copies


def _most_alike(gone: Sequence[RecordDigest], came: Sequence[RecordDigest]) -> list[tuple[int, int]]:
    """Pairs in order, as many as there can be; among those, the ones that have the most in common."""
    if len(gone) * len(came) > _COMPARISONS_MAX:
        return list(zip(range(len(gone)), range(len(came)), strict=False))
    width = len(came)
    best = [[0] * (width + 1)]  # of the first n that are gone and the first m that came
    for one in gone:
        above, row = best[-1], [0]
        for m, other in enumerate(came):
            row.append(max(above[m] + _OFFSET_WEIGHT + _likeness(one, other), above[m + 1], row[m]))
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


def _likeness(one: RecordDigest, other: RecordDigest) -> int:
    """A key or value that both have tells more than that both have none."""
    return (
        (one.key == other.key) * (1 + 3 * (one.key is not None))
        + (one.value == other.value) * (1 + 4 * (one.value is not None))
        + (one.headers == other.headers) * (1 + bool(one.headers))
        + (one.timestamp_ms == other.timestamp_ms) * (1 + 2 * (one.timestamp_ms is not None))
    )
