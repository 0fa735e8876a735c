"""A simulated world from one seed: event loop, hosts, network, and a digest of everything that happened.

    world = World(seed=7)
    world.disk.crash_after(100)
    with suppress(SimulatedPowerCut):
        world.run(serve_and_load(world))
    world.reboot()
    world.run(check(world))

A world has one host, "localhost", whose power cut ends the run; more come by `host`. Their tasks, begun by
`Host.start`, can be crashed while the rest of the world goes on.

The same seed gives the same digest, on any machine and under any PYTHONHASHSEED: a failing seed is a bug report.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.testkit.clock import SimClock
from headrace.testkit.disk import SimDisk, SimulatedPowerCut
from headrace.testkit.entropy import SeededEntropy
from headrace.testkit.loop import HostRun, SimLoop
from headrace.testkit.network import SimNetwork

T = TypeVar("T")

LOCAL = "localhost"
REBOOT_SECONDS = 10.0


class World:
    """The hosts, their network and the event loop of one simulation."""

    def __init__(self, seed: int, *, shuffle: bool = False) -> None:
        self.seed = seed
        self.boots = 0
        self._shuffle = shuffle
        self._past = hashlib.blake2b(digest_size=16)
        self.loop = SimLoop(seed, shuffle=shuffle)
        self.network = SimNetwork(seed, self.loop)
        self.hosts: dict[str, SimHost] = {}
        self.local = self.host(LOCAL)

    @property
    def disk(self) -> SimDisk:
        return self.local.disk

    @property
    def clock(self) -> SimClock:
        return self.local.clock

    @property
    def entropy(self) -> SeededEntropy:
        return self.local.entropy

    def host(self, name: str) -> SimHost:
        """The host with this name; created by the first call."""
        if name not in self.hosts:
            self.hosts[name] = SimHost(self, name)
        return self.hosts[name]

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, in virtual time. Other tasks are suspended until the next run."""
        return self.loop.run_until_complete(main)

    def reboot(self, *, keep_page_cache: bool = False) -> None:
        """Cut the power of all hosts, or kill -9 all processes: tasks and connections are gone, disks keep what
        survives.
        """
        self.note("reboot", self.network.digest)
        for host in self.hosts.values():
            host.lose_disk(keep_page_cache=keep_page_cache)
        self.loop.halt(RuntimeError("the world was rebooted"))
        self.loop.finish()
        self.boots += 1
        seed = self.seed + (self.boots << 32)
        self.loop = SimLoop(seed, shuffle=self._shuffle, start=self.loop.time() + REBOOT_SECONDS)
        self.network = SimNetwork(seed, self.loop)
        for host in self.hosts.values():
            host.boot()

    def close(self) -> None:
        """Cancel the remaining tasks, in order."""
        self.loop.finish()

    def note(self, *event: object) -> None:
        """Add observations of a scenario to the digest."""
        self._past.update(f"{self.loop.time():.9f} {event}\n".encode())

    @property
    def digest(self) -> str:
        whole = self._past.copy()
        disks = [host.disk.digest for host in self.hosts.values()]
        whole.update(f"{self.loop.time():.9f} {disks} {self.network.digest}".encode())
        return whole.hexdigest()


class SimHost:
    """One machine, with its own disk, wall clock, entropy and address."""

    def __init__(self, world: World, name: str) -> None:
        seed = int.from_bytes(hashlib.blake2b(f"{world.seed} {name}".encode(), digest_size=8).digest())
        self.name = name
        self.clock = SimClock(world.loop)
        self.entropy = SeededEntropy(seed)
        self.disk = SimDisk(seed, world.loop)
        self._world = world
        self._connect()

    def start(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine on the host, until it ends or the host crashes."""
        return self._world.loop.begin(self._life, coroutine, f"{self.name} {name}")

    def crash(self, *, keep_page_cache: bool = False, silently: bool = False) -> None:
        """Cut this host's power, or kill its process; other hosts continue. It can be started again at once.

        Peers see their connections reset or, if `silently`, nothing at all.
        """
        self._world.note("crash", self.name, keep_page_cache, silently)
        self._world.loop.end(self._life)
        self._world.network.crash(self.name, silently=silently)
        self.lose_disk(keep_page_cache=keep_page_cache)
        self.boot()

    def pause(self, seconds: float) -> None:
        """Pause the host for some time, as SIGSTOP does. Time continues, and bytes that were sent to it wait."""
        self._world.note("pause", self.name, seconds)
        self._world.loop.pause(self._life, seconds)

    def replace_disk(self) -> None:
        """Replace the disk by an empty one. Nothing may run on the host."""
        old = self.disk
        self._world.note("replace disk", self.name, old.digest)
        self.disk = SimDisk(self.entropy.integer(0, 1 << 60), self._world.loop)
        self.disk.delay_seconds, self.disk.cold_chance = old.delay_seconds, old.cold_chance
        self._connect()

    @property
    def is_paused(self) -> bool:
        return self._world.loop.is_paused(self._life)

    def lose_disk(self, *, keep_page_cache: bool) -> None:
        if self.disk.alive:
            self.disk.crash(keep_page_cache=keep_page_cache)

    def boot(self) -> None:
        self.disk = self.disk.reopen(self._world.loop)
        self.clock.move_to(self._world.loop)
        self._connect()

    def _connect(self) -> None:
        self._life = HostRun()
        self.network = self._world.network.at(self.name)
        if self.name != LOCAL:
            self.disk.on_power_cut = self._power_cut

    def _power_cut(self, _: SimulatedPowerCut) -> None:
        self.crash()
