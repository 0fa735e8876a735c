"""Times at which something is over: leases, waits, lives of messages. Pure.

An alarm that no longer holds is not looked for when that happens; it is thrown away when its turn comes, or when
such alarms have become the majority. So setting one costs a push, and the heap stays within a constant factor of
those that hold.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

_SLACK = 1024


class Alarms:
    """`at_of` says when the alarm of a key is due at present, or None if it has none."""

    __slots__ = ("_at_of", "_heap", "_size_max")

    def __init__(self, at_of: Callable[[int], int | None]) -> None:
        self._at_of = at_of
        self._heap: list[tuple[int, int]] = []
        self._size_max = _SLACK

    def set(self, at_ms: int, key: int) -> None:
        """To be called whenever `at_of` a key becomes this."""
        heappush(self._heap, (at_ms, key))
        if len(self._heap) > self._size_max:
            at_of = self._at_of
            self._heap = [entry for entry in set(self._heap) if at_of(entry[1]) == entry[0]]
            heapify(self._heap)
            self._size_max = 2 * len(self._heap) + _SLACK

    def next_ms(self) -> int | None:
        heap = self._heap
        while heap:
            at_ms, key = heap[0]
            if self._at_of(key) == at_ms:
                return at_ms
            heappop(heap)
        return None

    def over(self, now_ms: int) -> list[int]:
        """The keys whose time has come, earliest first. Their alarms stay until they do not hold any more."""
        over: dict[int, int] = {}
        while (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            over[heappop(self._heap)[1]] = at_ms
        for key, at_ms in over.items():
            heappush(self._heap, (at_ms, key))
        return list(over)
