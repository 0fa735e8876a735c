"""One seed, one world: loop, clock, disk, network and chance, and a digest of all that happened in them.

    world = World(seed=7)
    world.disk.crash_after(100)
    with suppress(SimulatedPowerCut):
        world.run(serve_and_load(world))
    world.reboot()
    world.run(check(world))

The same seed gives the same digest, on any machine and under any PYTHONHASHSEED: a failing seed is a bug
report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.testkit.clock import SimClock
from headrace.testkit.disk import SimDisk
from headrace.testkit.entropy import SeededEntropy
from headrace.testkit.loop import SimLoop
from headrace.testkit.network import SimNetwork

T = TypeVar("T")

REBOOT_SECONDS = 10.0


class World:
    def __init__(self, seed: int, *, shuffle: bool = False) -> None:
        self.seed = seed
        self.boots = 0
        self._shuffle = shuffle
        self._past = hashlib.blake2b(digest_size=16)
        self.loop = SimLoop(seed, shuffle=shuffle)
        self.clock = SimClock(self.loop)
        self.entropy = SeededEntropy(seed)
        self.disk = SimDisk(seed, self.loop)
        self.network = SimNetwork(seed, self.loop)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run this to its end, in virtual time; other tasks stay as they are until the next run."""
        return self.loop.run_until_complete(main)

    def reboot(self, *, keep_page_cache: bool = False) -> None:
        """Cut the power, or kill -9: tasks and connections are gone, and the disk is as that leaves it."""
        if self.disk.alive:
            self.disk.crash(keep_page_cache=keep_page_cache)
        self.note("reboot", self.network.digest)
        self.loop.halt(RuntimeError("the world was rebooted"))
        self.loop.finish()
        self.boots += 1
        seed = self.seed + (self.boots << 32)
        self.loop = SimLoop(seed, shuffle=self._shuffle, start=self.loop.time() + REBOOT_SECONDS)
        self.clock.move_to(self.loop)
        self.disk = self.disk.reopen(self.loop)
        self.network = SimNetwork(seed, self.loop)

    def close(self) -> None:
        """End what still runs, in order."""
        self.loop.finish()

    def note(self, *event: object) -> None:
        """Let the digest cover what a scenario saw."""
        self._past.update(f"{self.loop.time():.9f} {event}\n".encode())

    @property
    def digest(self) -> str:
        whole = self._past.copy()
        whole.update(f"{self.loop.time():.9f} {self.disk.digest} {self.network.digest}".encode())
        return whole.hexdigest()
