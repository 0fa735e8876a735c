"""A mirror: what it tells, in which order, and that it misses nothing."""

from __future__ import annotations

import asyncio

from headrace.registry.interface import Create, Delete, RegistryEntry, Set
from headrace.registry.mirror import MANY, RETRY_SECONDS, RegistryMirror
from headrace.testkit.loop import SimLoop, run
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble


class MirrorHarness:
    """A mirror of `/a` and `/b`, and another client that changes them. `descriptions` are the keys with their new
    values."""

    def __init__(self) -> None:
        state = SimRegistryEnsemble()
        self.other = SimRegistry(state)
        self.registry = SimRegistry(state)
        self.told: list[tuple[str, bytes | None]] = []
        self.mirror = RegistryMirror(self.registry, ("/a", "/b"), self._changed)

    async def follow(self) -> None:
        """From here on by itself."""
        self._running = asyncio.get_running_loop().create_task(self.mirror.run())
        await self.pass_time()

    async def pass_time(self, seconds: float = 0.01) -> None:
        await asyncio.sleep(seconds)

    def _changed(self, key: str, entry: RegistryEntry | None) -> None:
        self.told.append((key, None if entry is None else entry.value))


def scene_runs(scene_of: object) -> None:
    async def main(_: SimLoop) -> None:
        await scene_of()  # type: ignore[operator]

    run(1, main)


def test_opening_tells_of_everything_in_the_order_of_the_prefixes() -> None:
    async def play() -> None:
        scene = MirrorHarness()
        await scene.other.commit([Create("/b/1", b"x"), Create("/a/2", b"y"), Create("/a", b"z"), Create("/c/1", b"")])
        await scene.mirror.open()
        assert scene.told == [("/a/2", b"y"), ("/a", b"z"), ("/b/1", b"x")]
        assert [entry.key for entry in scene.mirror.entries_beneath("/a")] == ["/a/2"]
        await scene.mirror.open()
        assert len(scene.told) == 3, "it tells of changes only"

    scene_runs(play)


def test_it_follows_what_is_made_changed_and_removed() -> None:
    async def play() -> None:
        scene = MirrorHarness()
        await scene.mirror.open()
        await scene.follow()
        await scene.other.commit([Create("/a/1", b"1"), Create("/c/1", b"not mirrored")])
        await scene.pass_time()
        await scene.other.commit([Set("/a/1", b"2", 0)])
        await scene.pass_time()
        assert scene.mirror.get("/a/1") == RegistryEntry("/a/1", b"2", 1)
        await scene.other.commit([Delete("/a/1", 1)])
        await scene.pass_time()
        assert scene.told == [("/a/1", b"1"), ("/a/1", b"2"), ("/a/1", None)]
        assert scene.mirror.get("/a/1") is None

    scene_runs(play)


def test_a_key_that_was_removed_and_made_again_is_told_although_its_version_is_the_same() -> None:
    async def play() -> None:
        scene = MirrorHarness()
        await scene.other.commit([Create("/a/1", b"first")])
        await scene.mirror.open()
        await scene.follow()
        await scene.other.commit([Delete("/a/1", 0)])
        await scene.other.commit([Create("/a/1", b"second")])
        await scene.pass_time()
        assert scene.told == [("/a/1", b"first"), ("/a/1", b"second")]

    scene_runs(play)


def test_many_keys_of_one_parent_are_read_in_one_go_and_the_missing_ones_are_told() -> None:
    async def play() -> None:
        scene = MirrorHarness()
        keys = [f"/a/x/{number}" for number in range(MANY + 2)]
        await scene.other.commit([Create(key, b"") for key in keys])
        await scene.mirror.open()
        await scene.follow()
        scene.told.clear()
        await scene.other.commit([Delete(key, 0) for key in keys[1:]])
        await scene.other.commit([Set(keys[0], b"left", 0)])
        await scene.pass_time()
        assert sorted(scene.told) == sorted([(keys[0], b"left"), *((key, None) for key in keys[1:])])

    scene_runs(play)


def test_what_changed_while_the_connection_was_lost_is_read_when_it_is_back() -> None:
    async def play() -> None:
        scene = MirrorHarness()
        await scene.other.commit([Create("/a/1", b"1"), Create("/a/2", b"1")])
        await scene.mirror.open()
        await scene.follow()
        scene.registry.disconnect()
        await scene.other.commit([Set("/a/1", b"2", 0), Delete("/a/2", 0), Create("/b/3", b"3")])
        await scene.pass_time(1)
        assert scene.mirror.get("/a/1") == RegistryEntry("/a/1", b"1", 0), "what was seen last stays"
        scene.registry.reconnect()
        await scene.pass_time()
        assert (scene.mirror.get("/a/2"), scene.mirror.get("/b/3")) == (None, RegistryEntry("/b/3", b"3", 0))
        assert scene.mirror.get("/a/1") == RegistryEntry("/a/1", b"2", 1)

    scene_runs(play)


def test_a_read_that_fails_is_made_again() -> None:
    async def play() -> None:
        scene = MirrorHarness()
        await scene.mirror.open()
        await scene.follow()
        scene.registry.unavailable = True
        await scene.other.commit([Create("/a/1", b"1")])
        await scene.pass_time()
        assert scene.told == []
        scene.registry.unavailable = False
        await scene.pass_time(2 * RETRY_SECONDS)
        assert scene.told == [("/a/1", b"1")]

    scene_runs(play)


def test_a_closed_mirror_hears_nothing_more() -> None:
    async def play() -> None:
        scene = MirrorHarness()
        await scene.mirror.open()
        await scene.follow()
        scene.mirror.close()
        await scene.other.commit([Create("/a/1", b"1")])
        await scene.pass_time()
        assert scene.told == []

    scene_runs(play)
