"""A partition: when the high watermark moves, who is told, and how waiting ends."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.asking import batch, produce
from tests.unit.broker.house import House

from headrace.broker.partition import Partition
from headrace.model.errors import RequestTimedOut, StorageFailure, UnknownTopicOrPartition
from headrace.wire.batch import parse_header


class Watching:
    def __init__(self) -> None:
        self.moves: list[int] = []

    def on_moved(self, new_bytes: int) -> None:
        self.moves.append(new_bytes)


async def a_partition(house: House, **configs: str) -> Partition:
    await house.make_topic("t", 1, **configs)
    return house.partition("t")


def append(partition: Partition, *values: bytes, now_ms: int = 0) -> int:
    data = memoryview(batch(*(values or (b"value",))))
    return partition.append(data, parse_header(data), now_ms).end_offset


def waiting(partition: Partition, end_offset: int, deadline: float = 1e9) -> asyncio.Future[None]:
    wait = partition.committed(end_offset, deadline)
    assert wait is not None
    return wait


async def test_the_high_watermark_follows_the_flush_and_not_the_append(house: House) -> None:
    partition = await a_partition(house)
    end = append(partition, b"a", b"b")
    assert (end, partition.log.end_offset, partition.high_watermark) == (2, 2, 0)
    await waiting(partition, end)
    assert partition.high_watermark == 2
    assert partition.committed(2, 0.0) is None


async def test_after_a_restart_everything_that_is_left_is_committed(house: House) -> None:
    partition = await a_partition(house)
    await waiting(partition, append(partition))
    house.kill()
    await house.open()
    assert house.partition("t").high_watermark == 1


async def test_waits_end_in_the_order_of_their_offsets(house: House) -> None:
    partition = await a_partition(house)
    ended: list[int] = []
    for number in range(5):
        wait = waiting(partition, append(partition))
        wait.add_done_callback(lambda _, number=number: ended.append(number))  # type: ignore[misc]
    await house.pass_time(0.1)
    assert ended == [0, 1, 2, 3, 4]


async def test_a_watcher_hears_of_every_move_until_it_looks_away(house: House) -> None:
    partition, watcher = await a_partition(house), Watching()
    partition.watch(watcher)
    partition.watch(watcher)
    size = len(batch(b"value"))
    await waiting(partition, append(partition))
    assert watcher.moves == [size]
    partition.unwatch(watcher)
    partition.unwatch(watcher)
    await waiting(partition, append(partition))
    assert watcher.moves == [size]


async def test_a_watcher_is_never_told_of_too_few_bytes(house: House) -> None:
    """Else a reader that waits for many bytes would stand still though they are there."""
    partition, watcher = await a_partition(house), Watching()
    house.host.disk.delay_seconds = (0.5, 0.5)
    first = waiting(partition, append(partition))
    await house.turn()  # its flush has begun
    second = waiting(partition, append(partition, b"x" * 1000))
    await first
    partition.watch(watcher)
    await house.turn()  # so has the next, and this comes too late for it
    third = waiting(partition, append(partition))
    await second
    assert not third.done()
    (told,) = watcher.moves
    assert len(batch(b"x" * 1000)) <= told <= partition.log.size_bytes
    await third
    assert watcher.moves[1] >= len(batch(b"value"))


async def test_retention_does_not_make_new_bytes_look_like_fewer(house: House) -> None:
    partition = await a_partition(house, segment_bytes="200", retention_ms="1000")
    watcher = Watching()
    for _ in range(20):
        await waiting(partition, append(partition, now_ms=house.host.clock.now_ms()))
    partition.watch(watcher)
    size_before = partition.log.size_bytes
    await house.pass_time(10)
    assert await house.broker.store.enforce_retention(house.host.clock.now_ms() + 10**6) > 0
    assert partition.log.size_bytes < size_before
    await waiting(partition, append(partition))
    assert watcher.moves[-1] >= len(batch(b"value"))


async def test_time_that_is_up_ends_only_that_wait(house: House) -> None:
    partition = await a_partition(house)
    end = append(partition)
    soon, late = waiting(partition, end, deadline=5.0), waiting(partition, end, deadline=50.0)
    partition.expire(4.9)
    assert not soon.done()
    partition.expire(5.0)
    with pytest.raises(RequestTimedOut):
        await soon
    await late
    partition.expire(100.0)


async def test_where_the_topic_does_not_wait_for_the_disk_an_append_is_committed_at_once(house: House) -> None:
    partition = await a_partition(house, flush_messages="1000")
    end = append(partition)
    assert partition.high_watermark == 1
    assert partition.committed(end, 0.0) is None
    await house.pass_time(60)
    assert partition.log.flushed_offset == 0


async def test_flush_messages_bounds_how_many_records_the_disk_may_be_behind(house: House) -> None:
    partition = await a_partition(house, flush_messages="3")
    append(partition)
    append(partition)
    await house.pass_time(1)
    assert partition.log.flushed_offset == 0
    append(partition)
    await house.pass_time(1)
    assert partition.log.flushed_offset == 3


async def test_flush_ms_bounds_how_long_the_disk_may_be_behind(house: House) -> None:
    partition = await a_partition(house, flush_messages="1000", flush_ms="5000")
    append(partition)
    await house.pass_time(4)
    append(partition)
    assert partition.log.flushed_offset == 0
    await house.pass_time(2)
    assert partition.log.flushed_offset == 2
    append(partition)
    await house.pass_time(6)
    assert partition.log.flushed_offset == 3


async def test_a_topic_may_change_its_mind_about_the_disk(house: House) -> None:
    partition = await a_partition(house, flush_messages="1000")
    append(partition)
    catalogue = house.broker.catalogue
    await catalogue.change_configs("t", lambda _: {})
    assert partition.high_watermark == 1
    await waiting(partition, append(partition))
    assert partition.log.flushed_offset == partition.high_watermark == 2
    await catalogue.change_configs("t", lambda _: {"flush.messages": "10"})
    append(partition)
    assert partition.high_watermark == 3


async def test_a_log_that_fails_ends_all_waits(house: House) -> None:
    partition, watcher = await a_partition(house), Watching()
    partition.watch(watcher)
    house.host.disk.fail_next("sync", "*.log")
    waits = [waiting(partition, append(partition)) for _ in range(3)]
    for wait in waits:
        with pytest.raises(StorageFailure):
            await wait
    assert watcher.moves[-1] == 0
    with pytest.raises(StorageFailure):
        append(partition)
    with pytest.raises(StorageFailure):
        partition.committed(1, 1e9)


async def test_a_partition_that_retires_ends_all_waits_and_wakes_its_readers(house: House) -> None:
    partition, watcher = await a_partition(house), Watching()
    partition.watch(watcher)
    wait = waiting(partition, append(partition))
    await house.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartition):
        await wait
    assert watcher.moves == [0]
    with pytest.raises(UnknownTopicOrPartition):
        append(partition)
    with pytest.raises(UnknownTopicOrPartition):
        partition.committed(5, 1e9)


async def test_a_retired_partition_does_not_flush_any_more(house: House) -> None:
    partition = await a_partition(house, flush_messages="1000", flush_ms="1000")
    append(partition)
    await house.delete_topic("t")
    await house.pass_time(5)


async def test_producers_that_are_silent_for_long_are_forgotten(house: House) -> None:
    await house.restart(producer_id_expiration_ms="5000")
    await house.make_topic("t")
    await produce(house, "t", b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    partition = house.partition("t")
    await house.pass_time(3)
    assert len(partition.state.producers) == 1
    await house.pass_time(4)
    assert len(partition.state.producers) == 0
