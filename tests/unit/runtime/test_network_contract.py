"""What every network promises: real TCP on asyncio and on uvloop, and the simulated one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headrace.runtime.disk import File, SystemDisk
from headrace.runtime.network import ByteStream, Listener, Network, SystemNetwork
from headrace.testkit.disk import SimDisk
from headrace.testkit.loop import run as run_simulated
from headrace.testkit.network import SimNetwork

HOST = "127.0.0.1"
DEADLINE_SECONDS = 10.0

Main = Callable[[Network], Coroutine[Any, Any, None]]
Run = Callable[[Main], None]


@pytest.fixture(params=["asyncio", "uvloop", "simulated"])
def run(request: pytest.FixtureRequest) -> Run:
    async def limited(main: Main, network: Network) -> None:
        async with asyncio.timeout(60):
            await main(network)

    def on_asyncio(main: Main) -> None:
        asyncio.run(limited(main, SystemNetwork()))

    def on_uvloop(main: Main) -> None:
        uvloop.run(limited(main, SystemNetwork()))

    def simulated(main: Main) -> None:
        for seed in range(5):
            run_simulated(seed, lambda loop, seed=seed: limited(main, SimNetwork(seed, loop)))  # type: ignore[misc]

    return {"asyncio": on_asyncio, "uvloop": on_uvloop, "simulated": simulated}[request.param]


@pytest.fixture
def file(run: Run, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[File]:
    """A file of a disk that fits the network."""
    if "simulated" in request.node.name:
        simulated = SimDisk(1)
        simulated.make_directory("/data")
        yield simulated.open("/data/log", create=True)
    else:
        disk = SystemDisk()
        file = disk.open(str(tmp_path / "log"), create=True)
        yield file
        file.close()
        disk.close()


async def pair(network: Network) -> tuple[ByteStream, ByteStream, Listener]:
    """A caller's link, the called one's, and the listener."""
    accepted: asyncio.Future[ByteStream] = asyncio.get_running_loop().create_future()
    listener = await network.listen(HOST, 0, accepted.set_result)
    caller = await network.connect(HOST, listener.address[1], DEADLINE_SECONDS)
    return caller, await accepted, listener


async def ready(watch: Callable[[Callable[[], None] | None], None]) -> None:
    event = asyncio.Event()
    watch(event.set)
    await event.wait()
    watch(None)


async def receive(link: ByteStream, size: int) -> bytes:
    """Exactly `size` bytes, or fewer if the peer closes."""
    received, buffer = bytearray(), bytearray(65536)
    while len(received) < size:
        try:
            count = link.receive_into(memoryview(buffer)[: size - len(received)])
        except BlockingIOError:
            await ready(link.when_readable)
            continue
        if count == 0:
            break
        received += buffer[:count]
    return bytes(received)


async def send(link: ByteStream, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[link.send([rest], False) :]
        except BlockingIOError:
            await ready(link.when_writable)


async def send_until_blocked(link: ByteStream) -> None:
    while True:
        await send(link, b"anybody there?")
        await ready(link.when_readable)


def fill(link: ByteStream) -> int:
    """Send until the link takes no more; how many bytes it took."""
    sent = 0
    while True:
        try:
            sent += link.send([bytes(65536)], False)
        except BlockingIOError:
            return sent


def close(*things: ByteStream | Listener) -> None:
    for thing in things:
        thing.close()


def test_bytes_arrive_in_order_both_ways(run: Run) -> None:
    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        assert caller.send([b"one", bytearray(b"two"), memoryview(b"three")], True) == 11
        assert caller.send([b"four"], False) == 4
        assert await receive(called, 15) == b"onetwothreefour"
        await send(called, b"answer")
        assert await receive(caller, 6) == b"answer"
        close(caller, called, listener)

    run(main)


def test_peers_know_each_other_by_host_and_port(run: Run) -> None:
    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        host, port = listener.address
        assert caller.peer == f"{host}:{port}"
        assert called.peer.startswith(f"{host}:")
        assert called.peer != caller.peer
        close(caller, called, listener)

    run(main)


def test_nothing_to_receive_blocks_instead_of_waiting(run: Run) -> None:
    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        with pytest.raises(BlockingIOError):
            caller.receive_into(bytearray(10))
        close(caller, called, listener)

    run(main)


def test_a_reader_that_does_not_read_stops_the_writer(run: Run) -> None:
    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        sent = fill(caller)
        assert sent > 0
        assert len(await receive(called, sent)) == sent
        await ready(caller.when_writable)
        assert caller.send([b"more"], False) == 4
        assert await receive(called, 4) == b"more"
        close(caller, called, listener)

    run(main)


def test_megabytes_pass_unharmed_while_both_sides_work(run: Run) -> None:
    data = bytes(range(256)) * 8192

    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        async with asyncio.TaskGroup() as group:
            group.create_task(send(caller, data))
            received = group.create_task(receive(called, len(data)))
        assert received.result() == data
        close(caller, called, listener)

    run(main)


def test_more_chunks_than_one_system_call_takes_are_taken_in_part(run: Run) -> None:
    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        taken = caller.send([b"x"] * 5000, False)
        assert 1000 <= taken <= 5000
        assert await receive(called, taken) == b"x" * taken
        close(caller, called, listener)

    run(main)


def test_a_file_is_sent_from_any_position(run: Run, file: File) -> None:
    file.append([bytes(range(256)) * 400])

    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        position, end = 100, 100 + 90_000
        receiving = asyncio.ensure_future(receive(called, end - position))
        while position < end:
            try:
                position += caller.send_file(file, position, end - position)
            except BlockingIOError:
                await ready(caller.when_writable)
        assert await receiving == file.pread(90_000, 100)
        assert caller.send_file(file, file.size(), 10) == 0
        close(caller, called, listener)

    run(main)


def test_a_closed_link_delivers_what_was_sent_and_then_the_end(run: Run) -> None:
    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        caller.send([b"last words"], False)
        caller.close()
        caller.close()
        assert await receive(called, 99) == b"last words"
        assert called.receive_into(bytearray(1)) == 0
        with pytest.raises(OSError, match=r"[Bb]ad file descriptor"):
            caller.receive_into(bytearray(1))
        close(called, listener)

    run(main)


def test_an_aborted_link_resets_its_peer(run: Run) -> None:
    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        caller.abort()
        caller.abort()
        with pytest.raises(ConnectionResetError):
            await receive(called, 1)
        close(called, listener)

    run(main)


def test_sending_to_a_peer_that_is_gone_fails_in_the_end(run: Run) -> None:
    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        called.close()
        with pytest.raises(ConnectionError):
            await send_until_blocked(caller)
        close(caller, listener)

    run(main)


def test_a_readable_link_calls_again_until_it_was_read_or_told_to_stop(run: Run) -> None:
    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        calls, enough = 0, asyncio.Event()

        def count() -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                called.when_readable(None)
                enough.set()

        called.when_readable(count)
        caller.send([b"x"], False)
        await enough.wait()
        caller.send([b"y"], False)
        assert await receive(called, 2) == b"xy"
        assert calls == 3
        close(caller, called, listener)

    run(main)


def test_a_callback_can_be_replaced_and_the_other_direction_is_not_disturbed(run: Run) -> None:
    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)
        first, second, writable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        called.when_readable(first.set)
        called.when_readable(second.set)
        called.when_writable(writable.set)
        await writable.wait()
        called.when_writable(None)
        caller.send([b"x"], False)
        await second.wait()
        assert not first.is_set()
        close(caller, called, listener)

    run(main)


def test_no_callback_runs_after_close(run: Run) -> None:
    async def main(network: Network) -> None:
        caller, called, listener = await pair(network)

        def unwanted() -> None:
            raise AssertionError("called back after close")

        called.when_readable(unwanted)
        called.when_writable(unwanted)
        called.close()
        with pytest.raises(ConnectionError):
            await send_until_blocked(caller)
        close(caller, listener)

    run(main)


def test_a_port_without_a_listener_refuses_connections(run: Run) -> None:
    async def main(network: Network) -> None:
        listener = await network.listen(HOST, 0, lambda link: link.close())
        port = listener.address[1]
        listener.close()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(HOST, port, DEADLINE_SECONDS)

    run(main)


def test_a_port_is_given_to_one_listener_only(run: Run) -> None:
    async def main(network: Network) -> None:
        listener = await network.listen(HOST, 0, lambda link: link.close())
        with pytest.raises(OSError, match="in use"):
            await network.listen(HOST, listener.address[1], lambda link: link.close())
        listener.close()

    run(main)


def test_a_paused_listener_leaves_callers_waiting_until_it_resumes(run: Run) -> None:
    async def main(network: Network) -> None:
        accepted: list[ByteStream] = []
        arrived = asyncio.Event()

        def accept(link: ByteStream) -> None:
            accepted.append(link)
            arrived.set()

        listener = await network.listen(HOST, 0, accept)
        listener.pause()
        caller = await network.connect(HOST, listener.address[1], DEADLINE_SECONDS)
        caller.send([b"early"], False)
        await asyncio.sleep(0.01)  # would be enough for an accept
        assert not accepted
        listener.resume()
        await arrived.wait()
        assert await receive(accepted[0], 5) == b"early"
        close(caller, accepted[0], listener)

    run(main)


def test_many_callers_at_once_are_all_accepted(run: Run) -> None:
    async def main(network: Network) -> None:
        accepted: list[ByteStream] = []
        everyone = asyncio.Event()

        def accept(link: ByteStream) -> None:
            accepted.append(link)
            if len(accepted) == 200:
                everyone.set()

        listener = await network.listen(HOST, 0, accept)
        async with asyncio.TaskGroup() as group:
            callers = [
                group.create_task(network.connect(HOST, listener.address[1], DEADLINE_SECONDS)) for _ in range(200)
            ]
        await everyone.wait()
        assert len({link.peer for link in accepted}) == 200
        close(*(caller.result() for caller in callers), *accepted, listener)

    run(main)
