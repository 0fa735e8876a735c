"""Which items of two sequences belong together, without changing the order of either. Pure.

While the two differ in little, as many items are kept as can be (Myers' greedy search), so that one change shows as one
change, also among equal items. Where they differ in much, equal items are paired by their count, the first with the
first, and the longest run of pairs that is in order is kept: still right, though perhaps not the shortest account.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise

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


def longest_rise(values: Sequence[int]) -> list[int]:
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
                return _way_back(history, width, height)
    return None


def _way_back(history: Sequence[dict[int, int]], x: int, y: int) -> list[Pair]:
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
    return [pairs[index] for index in longest_rise([i for i, _ in pairs])]
