"""The schedule of faults: what is injected, when and for how long, from a seed. Pure.

- Every kind occurs once before any is repeated, so that a short run covers as many as possible; likewise roles.
- Kinds that affect the whole cluster, or whose healing is a procedure, occur alone; others one to three at a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

QUIET = "quiet"
PAUSES = (0.5, 1.5, 3.0)
"""How long a process is paused, in session timeouts: not noticed, noticed, long expired."""

NEED_NETWORK = (
    *("cut off", "cut from cluster", "cut from brokers", "cut from registry", "deaf", "mute", "packet loss"),
    *("majority ring", "zookeeper cut off"),
)
NEED_DISKS = ("frozen disk", "full disk", "power cut", "cluster power cut")
NEED_STRACE = ("slow disk", "failing fsync")
NEED_CLOCKS = ("clock jump", "client clock jump")
NEED_ENSEMBLE = ("zookeeper kill", "zookeeper pause", "zookeeper cut off")
OF_NO_NODE = (QUIET, "client clock jump")
OF_ALL_BROKERS = ("rolling restart", "cluster kill", "cluster power cut")
OF_ALL = ("majority ring", *OF_ALL_BROKERS, QUIET)
ALONE = (*OF_ALL, "corrupted file")
KINDS = (
    "kill",
    "pause",
    "corrupted file",
    *OF_ALL_BROKERS[:2],
    QUIET,
    *NEED_NETWORK,
    *NEED_DISKS,
    *NEED_STRACE,
    *NEED_CLOCKS,
    *NEED_ENSEMBLE[:2],
)

ON_ONE_HOST = (
    *("kill", "pause", QUIET, "cluster kill", "cluster power cut", "full disk", "frozen disk"),
    *NEED_CLOCKS,
)
"""The kinds for brokers that are children of one process, and share a disk and a registry in SQLite."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault: its kind, its target, and the time from the beginning of its round to its healing."""

    kind: str
    role: str
    lasts_seconds: float

    @property
    def is_of_zookeeper(self) -> bool:
        return self.kind in NEED_ENSEMBLE


@dataclass(frozen=True, slots=True)
class Round:
    faults: tuple[PlannedFault, ...]
    quiet_seconds: float
    waits_for_in_sync: bool
    """the next round begins only when all replicas are in sync again"""


def rounds(
    chance: random.Random, kinds: Sequence[str], roles: Sequence[str], session_seconds: float
) -> Iterator[Round]:
    """Yield rounds endlessly; the harness runs as many as there is time for."""
    kind_bag, role_bag = _Bag(chance, kinds), _Bag(chance, roles)
    while True:
        # Long enough for another broker to take over, which needs up to two session timeouts, and to work for a
        # while.
        hold = chance.uniform(4 * session_seconds, 20.0)
        chosen = [kind_bag.draw()]
        if chosen[0] not in ALONE:
            for _ in range(chance.choice((0, 0, 0, 1, 2))):
                another = kind_bag.peek()
                if another not in (*ALONE, *chosen):
                    chosen.append(kind_bag.draw())
        faults = tuple(
            PlannedFault(kind, _role(kind) or role_bag.draw(), _lasts(kind, hold, session_seconds, chance))
            for kind in chosen
        )
        yield Round(faults, chance.uniform(2.0, 8.0), waits_for_in_sync=chance.random() < 0.6)


def _role(kind: str) -> str:
    """Return the fixed target of a kind; otherwise the roles of brokers take turns."""
    if kind in NEED_ENSEMBLE:
        return "leader of ZooKeeper"
    if kind == "client clock jump":
        return "some clients"
    return "all" if kind in OF_ALL else ""


def _lasts(kind: str, hold: float, session_seconds: float, chance: random.Random) -> float:
    if kind.endswith("pause"):
        return chance.choice(PAUSES) * session_seconds
    if kind.endswith(("kill", "power cut")) or kind == "corrupted file":
        return chance.choice((0.0, hold / 2, hold))  # restarted at once, which others may not even notice, or later
    if kind == "frozen disk":
        return chance.uniform(1.0, 3.0) * session_seconds
    return hold


class _Bag:
    """Draws items in random order, each once before any is repeated."""

    def __init__(self, chance: random.Random, items: Sequence[str]) -> None:
        self._chance, self._items = chance, list(items)
        self._left: list[str] = []

    def peek(self) -> str:
        if not self._left:
            self._left = self._chance.sample(self._items, len(self._items))
        return self._left[-1]

    def draw(self) -> str:
        self.peek()
        return self._left.pop()
