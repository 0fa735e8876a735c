"""The faults of the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from headrace.testkit.loop import run
from headrace.testkit.network import SimByteStream, SimListener, SimNetwork

T = TypeVar("T")


def in_network(main: Callable[[SimNetwork], Coroutine[Any, Any, T]], seed: int = 1) -> T:
    return run(seed, lambda loop: main(SimNetwork(seed, loop)))


async def pair(network: SimNetwork) -> tuple[SimByteStream, SimByteStream, SimListener]:
    """A link from host a, its other end at host b, and b's listener."""
    accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    listener = await network.at("b").listen("0.0.0.0", 9092, accepted.set_result)
    caller = await network.at("a").connect("b", 9092, 5.0)
    return caller, await accepted, listener


def received(link: SimByteStream) -> bytes:
    """All that has arrived."""
    buffer, data = bytearray(1 << 20), b""
    while True:
        try:
            count = link.receive_into(buffer)
        except BlockingIOError:
            return data
        if count == 0:
            return data + b"<end>"
        data += buffer[:count]


def test_hosts_are_known_by_their_names() -> None:
    async def main(network: SimNetwork) -> None:
        caller, called, listener = await pair(network)
        assert listener.address == ("b", 9092)
        assert caller.peer == "b:9092"
        assert called.peer.startswith("a:")
        with pytest.raises(ConnectionRefusedError):
            await network.at("b").connect("a", 9092, 5.0)
        with pytest.raises(OSError, match="assign"):
            await network.at("b").listen("a", 9093, lambda link: link.close())

    in_network(main)


def test_writes_arrive_in_pieces_and_late() -> None:
    async def main(network: SimNetwork) -> list[int]:
        caller, called, _ = await pair(network)
        pieces: list[int] = []
        buffer = bytearray(1 << 20)
        called.when_readable(lambda: pieces.append(called.receive_into(buffer)))
        caller.send([bytes(100_000)], False)
        assert received(called) == b""
        await asyncio.sleep(1)
        assert sum(pieces) == 100_000
        return pieces

    assert max(len(in_network(main, seed)) for seed in range(20)) > 3
    assert in_network(main, 7) == in_network(main, 7)


def test_a_cut_path_holds_bytes_until_it_heals_and_then_delivers_them_in_order() -> None:
    async def main(network: SimNetwork) -> None:
        caller, called, _ = await pair(network)
        caller.send([b"before "], False)
        network.cut("a", "b")
        caller.send([b"during "], False)
        await asyncio.sleep(60)
        assert received(called) == b""
        network.heal()
        caller.send([b"after"], False)
        await asyncio.sleep(1)
        assert received(called) == b"before during after"

    for seed in range(20):
        in_network(main, seed)


def test_bytes_stay_in_order_when_a_path_heals_while_others_are_under_way() -> None:
    async def main(network: SimNetwork) -> None:
        caller, called, _ = await pair(network)
        network.delay_seconds = (1.0, 1.0)
        caller.send([b"first "], False)
        network.cut("a", "b")
        await asyncio.sleep(1.5)
        caller.send([b"second "], False)
        await asyncio.sleep(0.5)
        network.heal()
        caller.send([b"third"], False)
        await asyncio.sleep(5)
        assert received(called) == b"first second third"

    for seed in range(10):
        in_network(main, seed)


def test_a_one_way_cut_leaves_the_other_direction() -> None:
    async def main(network: SimNetwork) -> None:
        caller, called, _ = await pair(network)
        network.cut("a", "b", one_way=True)
        caller.send([b"lost"], False)
        called.send([b"heard"], False)
        await asyncio.sleep(60)
        assert received(called) == b""
        assert received(caller) == b"heard"
        network.heal("b", "a")
        await asyncio.sleep(1)
        assert received(called) == b"lost"

    in_network(main)


def test_healing_one_path_leaves_the_others_cut() -> None:
    async def main(network: SimNetwork) -> None:
        caller, called, _ = await pair(network)
        network.cut("a", "b")
        network.cut("a", "c")
        network.heal("a", "c")
        caller.send([b"x"], False)
        await asyncio.sleep(60)
        assert received(called) == b""

    in_network(main)


@pytest.mark.parametrize("one_way", [False, True])
def test_a_connection_over_a_cut_path_waits_for_its_deadline(one_way: bool) -> None:
    async def main(network: SimNetwork) -> float:
        await pair(network)
        network.cut("b", "a", one_way=one_way)
        start = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await network.at("a").connect("b", 9092, 3.0)
        return asyncio.get_running_loop().time() - start

    assert in_network(main) == pytest.approx(3.0, abs=0.01)


def test_a_connection_gets_through_when_the_path_heals_in_time() -> None:
    async def main(network: SimNetwork) -> None:
        await network.at("b").listen("b", 9092, lambda _: None)
        network.cut("a", "b")
        asyncio.get_running_loop().call_later(1.0, network.heal)
        await network.at("a").connect("b", 9092, 3.0)

    in_network(main)


def test_a_reset_breaks_both_ends() -> None:
    async def main(network: SimNetwork) -> None:
        caller, called, _ = await pair(network)
        caller.send([b"x"], False)
        woken = asyncio.Event()
        called.when_readable(woken.set)
        network.reset("b", "a")
        await woken.wait()
        for link in (caller, called):
            with pytest.raises(ConnectionResetError):
                link.receive_into(bytearray(1))
            with pytest.raises(ConnectionResetError):
                link.send([b"x"], False)

    in_network(main)


def test_a_crashed_host_resets_its_peers_and_listens_no_more() -> None:
    async def main(network: SimNetwork) -> None:
        caller, _, _ = await pair(network)
        network.crash("b")
        await asyncio.sleep(1)
        with pytest.raises(ConnectionResetError):
            caller.receive_into(bytearray(1))
        with pytest.raises(ConnectionRefusedError):
            await network.at("a").connect("b", 9092, 3.0)

    in_network(main)


def test_a_host_that_vanishes_leaves_its_peers_half_open() -> None:
    async def main(network: SimNetwork) -> None:
        caller, _, _ = await pair(network)
        network.crash("b", silently=True)
        await asyncio.sleep(3600)
        with pytest.raises(BlockingIOError):
            caller.receive_into(bytearray(1))
        taken = caller.send([bytes(1 << 20)], False)
        assert taken == network.window_bytes
        await asyncio.sleep(3600)
        with pytest.raises(BlockingIOError):
            caller.send([b"x"], False)

    in_network(main)


def test_bytes_sent_by_a_crashed_host_may_still_arrive() -> None:
    async def main(network: SimNetwork) -> bytes:
        caller, called, _ = await pair(network)
        network.cut("a", "b", one_way=True)
        caller.send([b"late"], False)
        caller.close()
        await asyncio.sleep(60)
        network.heal()
        await asyncio.sleep(1)
        return received(called)

    assert in_network(main) == b"late<end>"


def test_closing_with_bytes_unread_resets_the_peer() -> None:
    async def main(network: SimNetwork) -> None:
        caller, called, _ = await pair(network)
        caller.send([b"never read"], False)
        await asyncio.sleep(1)
        called.close()
        await asyncio.sleep(1)
        with pytest.raises(ConnectionResetError):
            caller.receive_into(bytearray(1))

    in_network(main)


def test_a_slow_path_delays_bytes() -> None:
    async def main(network: SimNetwork) -> None:
        caller, called, _ = await pair(network)
        network.slow("a", "b", bytes_per_second=1000)
        caller.send([bytes(10_000)], False)
        await asyncio.sleep(5)
        assert len(received(called)) < 7000
        await asyncio.sleep(10)
        called.send([b"x"], False)
        await asyncio.sleep(1)
        assert received(caller) == b"x"
        received(called)
        network.speed_up()
        caller.send([bytes(10_000)], False)
        await asyncio.sleep(1)
        assert len(received(called)) == 10_000

    in_network(main)


def test_bytes_held_by_a_cut_may_arrive_after_later_bytes_of_another_connection() -> None:
    async def main(network: SimNetwork) -> None:
        network.retry_seconds = 10.0
        accepted: list[Any] = []
        await network.at("b").listen("b", 9092, accepted.append)
        first = await network.at("a").connect("b", 9092, 1.0)
        network.cut("a", "b")
        first.send([b"first"], False)
        await asyncio.sleep(1)
        first.close()
        network.heal()
        second = await network.at("a").connect("b", 9092, 1.0)
        second.send([b"second"], False)
        await asyncio.sleep(0.1)
        assert [received(link) for link in accepted] == [b"", b"second"]
        await asyncio.sleep(10)
        assert received(accepted[0]) == b"first<end>"

    in_network(main)


def test_a_full_backlog_blocks_callers_until_there_is_space() -> None:
    async def main(network: SimNetwork) -> None:
        accepted: list[Any] = []
        listener = await network.at("b").listen("b", 9092, accepted.append, backlog=2)
        listener.pause()
        for _ in range(2):
            await network.at("a").connect("b", 9092, 1.0)
        with pytest.raises(TimeoutError):
            await network.at("a").connect("b", 9092, 1.0)
        asyncio.get_running_loop().call_later(1.0, listener.resume)
        await network.at("a").connect("b", 9092, 3.0)
        assert len(accepted) == 3
        listener.pause()
        for _ in range(2):
            await network.at("a").connect("b", 9092, 1.0)
        asyncio.get_running_loop().call_later(1.0, listener.close)
        with pytest.raises(ConnectionRefusedError):
            await network.at("a").connect("b", 9092, 3.0)

    in_network(main)


def test_a_caller_that_gave_up_causes_a_reset() -> None:
    async def main(network: SimNetwork) -> None:
        accepted: list[SimByteStream] = []
        await network.at("b").listen("b", 9092, accepted.append)  # type: ignore[arg-type]
        network.delay_seconds = (1.0, 1.0)
        with pytest.raises(TimeoutError):
            await network.at("a").connect("b", 9092, 1.5)
        await asyncio.sleep(5)
        with pytest.raises(ConnectionResetError):
            accepted[0].receive_into(bytearray(1))

    in_network(main)


def test_the_digest_covers_what_happened_and_when() -> None:
    async def main(network: SimNetwork) -> str:
        caller, _, _ = await pair(network)
        caller.send([bytes(10_000)], False)
        await asyncio.sleep(1)
        return network.digest

    assert in_network(main, 1) == in_network(main, 1)
    assert in_network(main, 1) != in_network(main, 2)


def test_a_lost_response_breaks_the_connection_after_the_request_has_arrived() -> None:
    async def main(network: SimNetwork) -> None:
        caller, called, _ = await pair(network)
        network.lose_responses("b", 1.0)
        caller.send([b"request"], False)
        await asyncio.sleep(1)
        assert received(called) == b"request"
        called.send([b"answer"], False)
        await asyncio.sleep(1)
        with pytest.raises(ConnectionResetError):
            received(caller)

    in_network(main)
