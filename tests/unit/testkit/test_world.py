"""One seed decides everything: the same seed gives the same digest, whatever the interpreter's hash seed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from headrace.runtime.network import ByteStream
from headrace.testkit.disk import SimulatedPowerCut
from headrace.testkit.world import World


async def echo_and_log(world: World, stored: list[int]) -> None:
    """A tiny broker with four clients: it stores, syncs and echoes what it receives."""
    world.disk.make_directory("/data")
    file = world.disk.open("/data/log", create=True)
    world.disk.sync_directory("/data")
    tasks: list[asyncio.Task[None]] = []

    def accept(link: ByteStream) -> None:
        def hear() -> None:
            buffer = bytearray(1000)
            count = link.receive_into(buffer)
            tasks.append(world.loop.create_task(store(bytes(buffer[:count]), link)))

        link.when_readable(hear)

    async def store(data: bytes, link: ByteStream) -> None:
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


def test_a_power_cut_ends_the_run_and_a_reboot_continues_with_the_remaining_data() -> None:
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


def test_a_reboot_drops_tasks_without_cleanup() -> None:
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


async def count(world: World, name: str, counted: list[str]) -> None:
    """Counts seconds, and records when it is stopped."""
    host = world.host(name)
    host.disk.make_directory("/data")
    file = host.disk.open("/data/log", create=True)
    try:
        while True:
            await asyncio.sleep(1)
            counted.append(name)
            file.append([b"tick"])
            await host.disk.run(file.sync)
    finally:
        counted.append(f"{name} cleaned up")


def test_a_crashed_host_stops_at_once_and_the_others_continue() -> None:
    async def main(world: World) -> None:
        counted: list[str] = []
        for name in ("a", "b"):
            world.host(name).start(count(world, name, counted), "counting")
        await asyncio.sleep(3.5)
        world.host("a").crash()
        counted.clear()
        await asyncio.sleep(3)
        assert counted == ["b"] * 3
        world.host("a").start(count(world, "a", counted), "counting again")
        await asyncio.sleep(2)
        assert counted.count("a") == 1
        assert "a cleaned up" not in counted

    for seed in range(5):
        world = World(seed)
        world.run(main(world))
        world.close()


def test_a_power_cut_on_one_host_does_not_stop_the_world() -> None:
    async def main(world: World) -> None:
        counted: list[str] = []
        host = world.host("a")
        host.disk.crash_after(10)
        host.start(count(world, "a", counted), "counting")
        await asyncio.sleep(60)
        assert host.disk.alive
        assert 0 < counted.count("a") < 10

    world = World(1)
    world.run(main(world))
    world.close()


def test_a_future_woken_by_the_living_does_not_wake_the_dead() -> None:
    async def main(world: World) -> None:
        woken: list[str] = []
        bell: asyncio.Future[None] = world.loop.create_future()

        async def wait(name: str) -> None:
            await bell
            woken.append(name)

        world.host("a").start(wait("a"), "waiting")
        world.host("b").start(wait("b"), "waiting")
        await asyncio.sleep(1)
        world.host("a").crash()
        bell.set_result(None)
        await asyncio.sleep(1)
        assert woken == ["b"]

    world = World(1)
    world.run(main(world))
    world.close()


@pytest.mark.parametrize("silently", [False, True])
def test_the_peers_of_a_crashed_host_see_a_reset_or_nothing(silently: bool) -> None:
    async def serve(world: World, heard: list[str]) -> None:
        def accept(link: ByteStream) -> None:
            link.when_readable(lambda: heard.append(f"{link.receive_into(bytearray(9))} bytes"))

        await world.host("a").network.listen("a", 9092, accept)

    async def main(world: World) -> None:
        heard: list[str] = []
        world.host("a").start(serve(world, heard), "serving")
        await asyncio.sleep(1)
        link = await world.host("b").network.connect("a", 9092, 5.0)
        link.send([b"hello"], False)
        world.host("a").crash(silently=silently)
        await asyncio.sleep(60)
        assert heard == []
        with pytest.raises(BlockingIOError if silently else ConnectionResetError):
            link.receive_into(bytearray(9))
        with pytest.raises(ConnectionRefusedError):
            await world.host("b").network.connect("a", 9092, 5.0)
        world.host("a").start(serve(world, heard), "serving again")
        await asyncio.sleep(1)
        link = await world.host("b").network.connect("a", 9092, 5.0)
        link.send([b"hello"], False)
        await asyncio.sleep(1)
        assert heard

    world = World(1)
    world.run(main(world))
    world.close()


def test_hosts_have_their_own_randomness_disk_and_clock() -> None:
    world = World(1)
    a, b = world.host("a"), world.host("b")
    assert a.entropy.uuid() != b.entropy.uuid()
    a.disk.make_directory("/data")
    assert not b.disk.exists("/data")
    a.clock.jump(5000)
    assert a.clock.now_ms() - b.clock.now_ms() == 5000
    assert world.host("a") is a
