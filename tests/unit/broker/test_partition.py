"""A partition: the advance of the high watermark, its notifications, and the end of waits."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.unit.broker.broker_requests import batch, produce
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.partition import Partition
from headrace.model.errors import (
    NotEnoughReplicas,
    NotLeader,
    RequestTimedOut,
    StorageFailure,
    UnknownTopicOrPartition,
)
from headrace.model.registry_records import PartitionRecord
from headrace.wire.batches.batch import parse_header


class Watching:
    def __init__(self) -> None:
        self.moves: list[int] = []
        self.commits = 0

    def on_data_available(self, new_bytes: int) -> None:
        self.moves.append(new_bytes)

    def on_high_watermark(self) -> None:
        self.commits += 1


async def a_partition(simulated_broker: SimulatedBroker, **configs: str) -> Partition:
    await simulated_broker.create_topic("t", 1, **configs)
    return simulated_broker.partition("t")


def append(partition: Partition, *values: bytes, now_ms: int = 0) -> int:
    data = memoryview(batch(*(values or (b"value",))))
    return partition.append(data, parse_header(data), now_ms).end_offset


def waiting(partition: Partition, end_offset: int, deadline: float = 1e9) -> asyncio.Future[None]:
    wait = partition.committed(end_offset, deadline)
    assert wait is not None
    return wait


async def test_the_high_watermark_follows_the_flush_and_not_the_append(simulated_broker: SimulatedBroker) -> None:
    partition = await a_partition(simulated_broker)
    end = append(partition, b"a", b"b")
    assert (end, partition.log.end_offset, partition.high_watermark) == (2, 2, 0)
    await waiting(partition, end)
    assert partition.high_watermark == 2
    assert partition.committed(2, 0.0) is None


async def test_after_a_restart_the_whole_remaining_log_is_committed(simulated_broker: SimulatedBroker) -> None:
    partition = await a_partition(simulated_broker)
    await waiting(partition, append(partition))
    simulated_broker.kill()
    await simulated_broker.open()
    assert simulated_broker.partition("t").high_watermark == 1


async def test_waits_end_in_the_order_of_their_offsets(simulated_broker: SimulatedBroker) -> None:
    partition = await a_partition(simulated_broker)
    ended: list[int] = []
    for number in range(5):
        wait = waiting(partition, append(partition))
        wait.add_done_callback(lambda _, number=number: ended.append(number))  # type: ignore[misc]
    await simulated_broker.pass_time(0.1)
    assert ended == [0, 1, 2, 3, 4]


async def test_a_watcher_is_notified_of_every_advance_until_it_unsubscribes(simulated_broker: SimulatedBroker) -> None:
    partition, watcher = await a_partition(simulated_broker), Watching()
    partition.watch(watcher)
    partition.watch(watcher)
    size = len(batch(b"value"))
    await waiting(partition, append(partition))
    assert watcher.moves == [size]
    partition.unwatch(watcher)
    partition.unwatch(watcher)
    await waiting(partition, append(partition))
    assert watcher.moves == [size]


async def test_a_watcher_is_never_notified_of_too_few_bytes(simulated_broker: SimulatedBroker) -> None:
    """Else a reader that waits for many bytes would stand still though they are there."""
    partition, watcher = await a_partition(simulated_broker), Watching()
    simulated_broker.host.disk.delay_seconds = (0.5, 0.5)
    first = waiting(partition, append(partition))
    await simulated_broker.run_ready_tasks()  # its flush has begun
    second = waiting(partition, append(partition, b"x" * 1000))
    await first
    partition.watch(watcher)
    await simulated_broker.run_ready_tasks()  # so has the next, and this comes too late for it
    third = waiting(partition, append(partition))
    await second
    assert not third.done()
    (result,) = watcher.moves
    assert len(batch(b"x" * 1000)) <= result <= partition.log.size_bytes
    await third
    assert watcher.moves[1] >= len(batch(b"value"))


async def test_retention_does_not_reduce_the_reported_new_bytes(simulated_broker: SimulatedBroker) -> None:
    partition = await a_partition(simulated_broker, segment_bytes="200", retention_ms="1000")
    watcher = Watching()
    for _ in range(20):
        await waiting(partition, append(partition, now_ms=simulated_broker.host.clock.now_ms()))
    partition.watch(watcher)
    size_before = partition.log.size_bytes
    await simulated_broker.pass_time(10)
    assert await simulated_broker.broker.store.enforce_retention(simulated_broker.host.clock.now_ms() + 10**6) > 0
    assert partition.log.size_bytes < size_before
    await waiting(partition, append(partition))
    assert watcher.moves[-1] >= len(batch(b"value"))


async def test_readers_are_notified_of_a_commit_before_its_producers(simulated_broker: SimulatedBroker) -> None:
    partition = await a_partition(simulated_broker)
    wait = waiting(partition, append(partition))

    class Reading(Watching):
        def on_data_available(self, new_bytes: int) -> None:
            super().on_data_available(new_bytes)
            assert not wait.done()
            assert partition.high_watermark == 1

    watcher = Reading()
    partition.watch(watcher)
    await wait
    assert len(watcher.moves) == 1


async def test_a_timeout_ends_only_its_own_wait(simulated_broker: SimulatedBroker) -> None:
    partition = await a_partition(simulated_broker)
    end = append(partition)
    soon, late = waiting(partition, end, deadline=5.0), waiting(partition, end, deadline=50.0)
    partition.expire(4.9)
    assert not soon.done()
    partition.expire(5.0)
    with pytest.raises(RequestTimedOut):
        await soon
    await late
    partition.expire(100.0)


async def test_without_flush_on_commit_an_append_is_committed_at_once(
    simulated_broker: SimulatedBroker,
) -> None:
    partition = await a_partition(simulated_broker, flush_messages="1000")
    end = append(partition)
    assert partition.high_watermark == 1
    assert partition.committed(end, 0.0) is None
    await simulated_broker.pass_time(60)
    assert partition.log.flushed_offset == 0


async def test_flush_messages_bounds_how_many_records_the_disk_may_be_behind(simulated_broker: SimulatedBroker) -> None:
    partition = await a_partition(simulated_broker, flush_messages="3")
    append(partition)
    append(partition)
    await simulated_broker.pass_time(1)
    assert partition.log.flushed_offset == 0
    append(partition)
    await simulated_broker.pass_time(1)
    assert partition.log.flushed_offset == 3


async def test_flush_ms_bounds_how_long_the_disk_may_be_behind(simulated_broker: SimulatedBroker) -> None:
    partition = await a_partition(simulated_broker, flush_messages="1000", flush_ms="5000")
    append(partition)
    await simulated_broker.pass_time(4)
    append(partition)
    assert partition.log.flushed_offset == 0
    await simulated_broker.pass_time(2)
    assert partition.log.flushed_offset == 2
    append(partition)
    await simulated_broker.pass_time(6)
    assert partition.log.flushed_offset == 3


async def test_flush_messages_may_change_at_runtime(simulated_broker: SimulatedBroker) -> None:
    partition = await a_partition(simulated_broker, flush_messages="1000")
    append(partition)
    catalogue = simulated_broker.broker.catalogue
    await catalogue.change_configs("t", lambda _: {})
    assert partition.high_watermark == 1
    await waiting(partition, append(partition))
    assert partition.log.flushed_offset == partition.high_watermark == 2
    await catalogue.change_configs("t", lambda _: {"flush.messages": "10"})
    await simulated_broker.pass_time(0.1)  # until the topic file is written
    append(partition)
    assert partition.high_watermark == 3


async def test_a_failed_log_ends_all_waits(simulated_broker: SimulatedBroker) -> None:
    partition, watcher = await a_partition(simulated_broker), Watching()
    partition.watch(watcher)
    simulated_broker.host.disk.fail_next("sync", "*.log")
    waits = [waiting(partition, append(partition)) for _ in range(3)]
    for wait in waits:
        with pytest.raises(StorageFailure):
            await wait
    assert watcher.moves[-1] == 0
    with pytest.raises(StorageFailure):
        append(partition)
    with pytest.raises(StorageFailure):
        partition.committed(1, 1e9)


async def test_retiring_a_partition_ends_all_waits_and_wakes_its_readers(simulated_broker: SimulatedBroker) -> None:
    partition, watcher = await a_partition(simulated_broker), Watching()
    partition.watch(watcher)
    wait = waiting(partition, append(partition))
    await simulated_broker.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartition):
        await wait
    assert watcher.moves == [0]
    with pytest.raises(UnknownTopicOrPartition):
        append(partition)
    with pytest.raises(UnknownTopicOrPartition):
        partition.committed(5, 1e9)


@pytest.mark.parametrize("is_retired", [False, True])
async def test_the_flush_timer_of_a_retired_partition_flushes_nothing(
    simulated_broker: SimulatedBroker, is_retired: bool
) -> None:
    partition = await a_partition(simulated_broker, flush_messages="1000", flush_ms="1000")
    append(partition)
    if is_retired:
        partition.retire()  # its log is still open: without the check, the timer would flush it
    await simulated_broker.pass_time(5)
    assert partition.log.flushed_offset == (0 if is_retired else 1)


async def test_inactive_producers_expire(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(producer_id_expiration_ms="5000")
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    partition = simulated_broker.partition("t")
    await simulated_broker.pass_time(3)
    assert len(partition.state.producers) == 1
    await simulated_broker.pass_time(4)
    assert len(partition.state.producers) == 0


# With followers: what the records say is given by hand, and the followers are


LED = PartitionRecord(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=5, leader_broker_epoch=1)


async def a_led_partition(simulated_broker: SimulatedBroker, **configs: str) -> Partition:
    """In epoch 5, with brokers 2 and 3 in sync as far as the registry knows."""
    partition = await a_partition(simulated_broker, **configs)
    partition.lead(1, LED, 0.0)
    return partition


def fetches(partition: Partition, node_id: int, offset: int, start_offset: int = 0) -> None:
    partition.record_follower_fetch(node_id, 1, offset, start_offset, 0.0)


async def test_the_high_watermark_waits_for_every_follower_in_sync(simulated_broker: SimulatedBroker) -> None:
    partition = await a_led_partition(simulated_broker)
    wait = waiting(partition, append(partition, b"a"))
    await simulated_broker.pass_time(1)
    assert (partition.log.flushed_offset, partition.high_watermark) == (1, 0)
    fetches(partition, 2, 1)
    assert partition.high_watermark == 0
    fetches(partition, 3, 1)
    assert partition.high_watermark == 1
    await wait


async def test_a_follower_that_is_faster_than_the_leaders_disk_does_not_commit_for_it(
    simulated_broker: SimulatedBroker,
) -> None:
    partition = await a_led_partition(simulated_broker)
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    append(partition, b"a")
    for node_id in (2, 3):
        fetches(partition, node_id, 1)
    assert partition.high_watermark == 0
    await simulated_broker.pass_time(3)
    assert partition.high_watermark == 1


async def test_consumers_are_notified_of_commits_and_followers_of_appends(simulated_broker: SimulatedBroker) -> None:
    partition = await a_led_partition(simulated_broker)
    reader, copier = Watching(), Watching()
    partition.watch(reader)
    partition.watch(copier, is_follower=True)
    append(partition, b"a")
    assert (reader.moves, len(copier.moves), copier.commits) == ([], 1, 0)
    await simulated_broker.pass_time(1)
    for node_id in (2, 3):
        fetches(partition, node_id, 1)
    assert (len(reader.moves), len(copier.moves), copier.commits) == (1, 1, 1)
    partition.notify_followers()
    assert (len(reader.moves), copier.commits) == (1, 2)


async def test_follower_state_is_reset_when_the_replicas_change(simulated_broker: SimulatedBroker) -> None:
    """A leader that regains its partition before it learned of the loss sends no notification."""
    partition = await a_led_partition(simulated_broker)
    copier = Watching()
    partition.watch(copier, is_follower=True)
    partition.update(replace(LED, replicas=(1, 2), isr=(1, 2)))
    partition.update(replace(LED, isr=(1, 2)))
    assert copier.commits == 2


async def test_acks_1_waits_only_for_the_leaders_flush(simulated_broker: SimulatedBroker) -> None:
    partition = await a_led_partition(simulated_broker)
    end = append(partition, b"a")
    here = partition.durable(end, 1e9)
    assert here is not None
    await here
    assert (partition.high_watermark, partition.durable(end, 1e9)) == (0, None)


async def test_a_smaller_in_sync_set_lets_the_high_watermark_advance(simulated_broker: SimulatedBroker) -> None:
    partition = await a_led_partition(simulated_broker, min_insync_replicas="2")
    append(partition, b"a")
    await simulated_broker.pass_time(1)
    fetches(partition, 2, 1)
    partition.update(replace(LED, isr=(1, 2)))
    assert partition.high_watermark == 1
    append(partition, b"b")
    await simulated_broker.pass_time(1)
    for eligible in ((2,), ()):
        partition.update(replace(LED, isr=(1,), elr=eligible))
        assert partition.high_watermark == 1, "too few are left to commit anything"
    with pytest.raises(NotEnoughReplicas, match=r"t-0 has 1 in-sync replicas, fewer than min.insync.replicas=2"):
        partition.ensure_min_isr()


async def test_a_leader_epoch_begins_once(simulated_broker: SimulatedBroker) -> None:
    partition = await a_led_partition(simulated_broker)
    partition.follow(6)
    with pytest.raises(AssertionError):
        partition.lead(1, LED, 0.0)
    with pytest.raises(AssertionError):
        partition.follow(5)
    partition.lead(1, replace(LED, leader_epoch=7), 0.0)
    with pytest.raises(AssertionError, match="I11"):
        partition.lead(1, replace(LED, leader_epoch=7), 0.0)


@pytest.mark.parametrize("ending", ["follow", "lead again", "retire"])
async def test_the_end_of_a_leadership_ends_all_waits_and_wakes_all_watchers(
    simulated_broker: SimulatedBroker, ending: str
) -> None:
    partition = await a_led_partition(simulated_broker)
    reader, copier = Watching(), Watching()
    partition.watch(reader)
    partition.watch(copier, is_follower=True)
    end = append(partition, b"a")
    waits = [waiting(partition, end), partition.durable(end, 1e9)]
    if ending == "follow":
        partition.follow(6)
    elif ending == "retire":
        partition.retire()
    else:
        partition.lead(1, replace(LED, leader_epoch=6), 0.0)
    for wait in waits:
        assert wait is not None
        with pytest.raises(UnknownTopicOrPartition if ending == "retire" else NotLeader):
            wait.result()
    assert (reader.moves, copier.moves[-1]) == ([0], 0)
    if ending != "lead again":
        with pytest.raises(UnknownTopicOrPartition if ending == "retire" else NotLeader):
            append(partition, b"b")
        with pytest.raises(UnknownTopicOrPartition if ending == "retire" else NotLeader):
            partition.committed(end, 1e9)


async def test_a_new_leader_term_counts_only_its_own_fetches(simulated_broker: SimulatedBroker) -> None:
    partition = await a_led_partition(simulated_broker)
    append(partition, b"a")
    await simulated_broker.pass_time(1)
    fetches(partition, 2, 1)
    partition.lead(1, replace(LED, leader_epoch=6), 0.0)
    fetches(partition, 3, 1)
    assert (partition.high_watermark, partition.knows_high_watermark) == (0, False)
    fetches(partition, 2, 1)
    assert (partition.high_watermark, partition.knows_high_watermark) == (1, True)


async def test_a_follower_applies_the_leaders_high_watermark_up_to_its_flushed_offset(
    simulated_broker: SimulatedBroker,
) -> None:
    partition = await a_led_partition(simulated_broker)
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    append(partition, b"a")
    partition.follow(6)
    partition.follow_high_watermark(5)
    assert partition.high_watermark == 0
    await simulated_broker.pass_time(3)
    assert partition.high_watermark == 1, "the flush advances it to the leader's high watermark"
    partition.follow_high_watermark(0)
    assert partition.high_watermark == 1, "it never goes back"


async def test_a_high_watermark_of_an_earlier_leader_does_not_apply_in_a_new_epoch(
    simulated_broker: SimulatedBroker,
) -> None:
    partition = await a_led_partition(simulated_broker)
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    append(partition, b"a")
    partition.follow(6)
    partition.follow_high_watermark(1)
    partition.follow(7)
    await simulated_broker.pass_time(3)
    assert partition.high_watermark == 0


async def test_a_truncation_lowers_the_high_watermark(simulated_broker: SimulatedBroker) -> None:
    partition = await a_led_partition(simulated_broker)
    append(partition, b"a")
    append(partition, b"b")
    await simulated_broker.pass_time(1)
    for node_id in (2, 3):
        fetches(partition, node_id, 2)
    partition.follow(6)
    await partition.log.truncate(1)
    partition.on_truncated()
    assert partition.high_watermark == 1
