"""One seed decides everything: the same seed gives the same digest, whatever the interpreter's hashes are."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from headrace.runtime.network import Link
from headrace.testkit.disk import SimulatedPowerCut
from headrace.testkit.world import World


async def echo_and_log(world: World, stored: list[int]) -> None:
    """A tiny broker with four clients: it stores what it hears, syncs it, and echoes it."""
    world.disk.make_directory("/data")
    file = world.disk.open("/data/log", create=True)
    world.disk.sync_directory("/data")
    tasks: list[asyncio.Task[None]] = []

    def accept(link: Link) -> None:
        def hear() -> None:
            buffer = bytearray(1000)
            count = link.receive_into(buffer)
            tasks.append(world.loop.create_task(store(bytes(buffer[:count]), link)))

        link.when_readable(hear)

    async def store(data: bytes, link: Link) -> None:
        end = file.append([data]) + len(data)
        await world.disk.run(file.sync)
        stored.append(end)
        with suppress(BlockingIOError):
            link.send([data], False)

    listener = await world.network.listen("localhost", 9092, accept)

    async def client(name: str) -> None:
        link = await world.network.connect("localhost", listener.address[1], 5.0)
        for _ in range(10):
            link.send([name.encode() * world.entropy.integer(1, 500)], False)
            await asyncio.sleep(world.entropy.uniform(0.0, 0.01))
        world.note("client done", name, world.clock.now_ms())

    async with asyncio.TaskGroup() as group:
        for name in ("alpha", "beta", "gamma", "delta"):
            group.create_task(client(name))
    await asyncio.sleep(1)


def digest_of_a_run(seed: int) -> str:
    world = World(seed, shuffle=seed % 2 == 0)
    world.disk.crash_after(40)
    stored: list[int] = [0]
    with suppress(SimulatedPowerCut):
        world.run(echo_and_log(world, stored))
    world.reboot()
    assert world.disk.open("/data/log").size() >= max(stored)
    world.run(echo_and_log(world, stored))
    world.close()
    return world.digest


def test_the_same_seed_gives_the_same_digest() -> None:
    digests = [digest_of_a_run(seed) for seed in range(6)]
    assert digests == [digest_of_a_run(seed) for seed in range(6)]
    assert len(set(digests)) == 6


def test_the_digest_does_not_depend_on_the_interpreters_hashes() -> None:
    program = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import test_world\n"
    program += "print(test_world.digest_of_a_run(2), test_world.digest_of_a_run(3))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "4711")
    }
    assert printed == {f"{digest_of_a_run(2)} {digest_of_a_run(3)}\n"}


def test_a_power_cut_ends_the_run_and_a_reboot_goes_on_with_what_is_left() -> None:
    async def write(world: World) -> None:
        world.disk.make_directory("/data")
        file = world.disk.open("/data/log", create=True)
        world.disk.sync_directory("/data")
        file.append([b"synced"])
        await world.disk.run(file.sync)
        file.append([b"lost?"])
        await asyncio.sleep(10)
        file.append([b"never"])

    async def read(world: World) -> bytes:
        return await world.disk.run(world.disk.read, "/data/log")

    world = World(1)
    world.disk.crash_after(6)
    with pytest.raises(SimulatedPowerCut):
        world.run(write(world))
    before, before_ms = world.clock.monotonic(), world.clock.now_ms()
    world.reboot()
    survived = world.run(read(world))
    assert survived[:6] == b"synced"
    assert world.clock.monotonic() > before
    assert world.clock.now_ms() > before_ms
    assert world.disk.alive


def test_a_kill_keeps_every_write() -> None:
    async def write(world: World) -> None:
        world.disk.make_directory("/data")
        world.disk.open("/data/log", create=True).append([b"page cache"])

    for seed in range(20):
        world = World(seed)
        world.run(write(world))
        world.reboot(keep_page_cache=True)
        assert world.disk.read("/data/log") == b"page cache"


def test_a_reboot_drops_tasks_without_letting_them_clean_up() -> None:
    world = World(1)

    async def background() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            world.disk.write_atomically("/marker", b"cleaned up")

    async def main() -> None:
        world.loop.create_task(background())
        await asyncio.sleep(1)

    world.run(main())
    world.reboot()
    world.run(asyncio.sleep(2000))
    assert not world.disk.exists("/marker")
