"""A simulated broker stops and crashes in every way and restarts; its own bugs end the run."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.broker.produce.produce import ProduceHandler
from headrace.client.cluster import ClientSettings, Cluster
from headrace.client.connections.address import parse_addresses
from headrace.client.connections.tcp import TcpDialer
from headrace.client.fetch.consumer import Consumer
from headrace.client.produce.producer import Producer, ProducerSettings
from headrace.storage.segments.segment import Segment
from headrace.testkit.broker import BrokerFailed, SimBroker
from headrace.testkit.world import World

SETTINGS = ClientSettings(request_timeout_seconds=1.0)


def in_world(main: Callable[[World, SimBroker, Producer], Coroutine[Any, Any, None]]) -> None:
    world = World(1)
    broker = SimBroker(world, world.host("broker"))
    client = world.host("client")

    async def run() -> None:
        dialer = TcpDialer(client.network, client.name)
        assert await broker.start()
        async with (
            Cluster(parse_addresses(broker.address), dialer, client.clock, client.entropy, SETTINGS) as cluster,
            Producer(cluster, ProducerSettings(delivery_timeout_seconds=60.0)) as producer,
        ):
            await producer.publish("orders", b"first", partition=0)
            await main(world, broker, producer)

    try:
        world.run(run())
    finally:
        world.close()


def kill(broker: SimBroker) -> None:
    broker.kill()


def cut_power(broker: SimBroker) -> None:
    broker.cut_power()


def vanish(broker: SimBroker) -> None:
    broker.cut_power(silently=True)


@pytest.mark.parametrize("go_down", [kill, cut_power, vanish])
def test_clients_continue_after_a_crash(go_down: Callable[[SimBroker], None]) -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        go_down(broker)
        assert not broker.is_up
        delivery = await producer.submit("orders", b"second", partition=0)
        await asyncio.sleep(5)
        assert await broker.start()
        assert (await delivery).offset == 1

    in_world(main)


def test_a_clean_stop_leaves_the_marker_of_one() -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        await broker.stop()
        broker.cut_power()
        assert await broker.start()
        assert broker.broker is not None
        assert broker.broker.store.broker_epoch is not None
        broker.kill()
        assert await broker.start()
        assert broker.broker is not None
        assert broker.broker.store.broker_epoch is None

    in_world(main)


def test_a_broker_with_a_full_disk_can_stop() -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        broker.host.disk.capacity_bytes = 0
        await broker.stop()
        broker.host.disk.capacity_bytes = 1 << 40
        assert await broker.start()
        assert (await producer.publish("orders", b"second", partition=0)).offset == 1

    in_world(main)


def test_a_failed_sync_disables_one_log_until_a_restart() -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        broker.fail_next_sync("*.log")
        delivery = await producer.submit("orders", b"second", partition=0)
        await asyncio.sleep(1)
        broker.kill()
        assert await broker.start()
        assert (await delivery).offset == 1

    in_world(main)


def test_the_power_may_be_cut_during_a_start_and_a_stop() -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        broker.host.disk.crash_after(1)
        await broker.stop()
        assert not broker.is_up
        broker.host.disk.crash_after(1)
        assert not await broker.start()
        assert await broker.start()
        assert (await producer.publish("orders", b"second", partition=0)).offset == 1

    in_world(main)


def test_a_power_cut_at_a_disk_operation_is_noticed() -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        broker.host.disk.crash_after(0)
        delivery = await producer.submit("orders", b"second", partition=0)
        await broker.down()
        assert not broker.is_up
        assert await broker.start()
        assert (await delivery).offset == 1

    in_world(main)


def test_a_handler_that_raises_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        monkeypatch.setattr(ProduceHandler, "_append_all", lambda *_: 1 / 0)
        delivery = await producer.submit("orders", b"second", partition=0)
        await asyncio.sleep(1)
        broker.kill()
        await delivery

    with pytest.raises(BrokerFailed, match="requests failed by an exception"):
        in_world(main)


def test_a_background_task_that_dies_ends_the_run() -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        assert broker.broker is not None
        broker.broker.catalogue.expire = lambda: 1 / 0  # type: ignore[assignment]
        await asyncio.sleep(5)

    with pytest.raises(BrokerFailed, match="housekeeping"):
        in_world(main)


def test_unexplained_damage_ends_the_run() -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        assert broker.broker is not None
        (log,) = (log for log in broker.broker.store.logs.values() if log.end_offset)
        path = log.active.path
        broker.kill()
        broker.host.disk.flip_bit(path, 70)
        await broker.start()

    with pytest.raises(BrokerFailed, match="CRC"):
        in_world(main)


def test_injected_damage_quarantines_only_the_log() -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        path = path_of_a_log(broker)
        broker.kill()
        broker.flip_bit(path, 70, 0)
        assert await broker.start()
        assert broker.broker is not None
        assert [log.active.path for log in broker.broker.store.logs.values() if log.quarantined] == [path]

    in_world(main)


def test_a_log_that_was_lost_is_quarantined() -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        path = path_of_a_log(broker)
        folder = posixpath.dirname(path)
        broker.kill()
        broker.lose_log(folder)
        assert await broker.start()
        assert broker.broker is not None
        assert [log.folder for log in broker.broker.store.logs.values() if log.quarantined] == [folder]

    in_world(main)


def test_a_broker_that_hands_out_damage_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World, broker: SimBroker, producer: Producer) -> None:
        path = path_of_a_log(broker)
        await broker.stop()
        broker.flip_bit(path, 70, 0)
        assert await broker.start()
        monkeypatch.setattr(Segment, "trusts", lambda *_: True)
        broker.host.disk.cold_chance = 0.0
        client = world.host("reader")
        dialer = TcpDialer(client.network, client.name)
        async with (
            Cluster(parse_addresses(broker.address), dialer, client.clock, client.entropy, SETTINGS) as cluster,
            Consumer(cluster, ["orders"]) as consumer,
        ):
            await consumer.poll(timeout_seconds=5.0)

    with pytest.raises(BrokerFailed, match="serves byte 70"):
        in_world(main)


def path_of_a_log(broker: SimBroker) -> str:
    assert broker.broker is not None
    (log,) = (log for log in broker.broker.store.logs.values() if log.end_offset)
    return log.active.path
