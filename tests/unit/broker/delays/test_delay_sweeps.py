"""A message that waits for a long time does not keep completed messages on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from tests.unit.broker.delays import delay_support as delayed
from tests.unit.broker.delays.delay_support import (
    DELAYED,
    TOPIC,
    cancel,
    colocated_topic,
    delay,
    listed,
    message,
    values,
)
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.broker.delays.delayed_log import DelayedLog
from headrace.machines.queues.settled_offsets import new_bitmap
from headrace.storage.compaction.cleaner import CleaningPlan, SegmentToClean
from headrace.storage.compaction.compaction import SettledBitmap
from headrace.storage.log.log import Log

COUNT = 200
FILL = b"." * 300


@pytest.fixture(autouse=True)
def _small_logs() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr("headrace.broker.delays.delayed_log.SWEEP_BYTES_MIN", 5000)
    patch.setattr("headrace.broker.controller.colocated_topics._SEGMENT_BYTES", 4000)
    yield
    patch.undo()


async def load(simulated_broker: SimulatedBroker) -> None:
    """One that waits for long at the beginning, one in the middle, and many that come soon."""
    await delay(simulated_broker, message(simulated_broker, b"long", delay="1h"))
    for number in range(COUNT):
        if number == COUNT // 2:
            await delay(simulated_broker, message(simulated_broker, b"tick", repeat="every 1h", delay="0s"))
        await delay(simulated_broker, message(simulated_broker, b"%d" % number + FILL, delay="1s"))


def stored(simulated_broker: SimulatedBroker) -> Log:
    found = simulated_broker.broker.catalogue.topic(DELAYED).replicas.get(0)
    assert found is not None
    return found.log


def check(found: list[bytes]) -> None:
    assert Counter(found) == Counter([b"tick", *(b"%d" % number + FILL for number in range(COUNT))])


async def test_completed_messages_are_removed_and_waiting_ones_released(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    await load(simulated_broker)
    before_bytes = stored(simulated_broker).size_bytes
    await simulated_broker.pass_time(130)
    check(await values(simulated_broker))
    assert stored(simulated_broker).size_bytes < before_bytes / 2
    assert stored(simulated_broker).start_offset == 0
    for _ in range(2):
        assert (await listed(simulated_broker)).waiting == 2
        assert [bytes(one.value or b"") for one in (await listed(simulated_broker)).messages] == [b"long", b"tick"]
        check(await values(simulated_broker))
        await simulated_broker.restart()
        await simulated_broker.pass_time(5)
    await delay(simulated_broker, message(simulated_broker, b"new", delay="1s"))
    await simulated_broker.pass_time(3600)
    assert Counter(await values(simulated_broker))[b"tick"] == 2
    assert {b"long", b"new"} <= set(await values(simulated_broker))


async def test_completed_messages_do_not_return_from_an_uncleaned_segment(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.broker.delays.delay_shard._TRIM_SECONDS", 10_000.0)
    await delayed.make(simulated_broker)
    expected = [b"%d" % number + FILL for number in range(COUNT)]
    for value in expected:
        await delay(simulated_broker, message(simulated_broker, value))
    before_bytes = stored(simulated_broker).size_bytes
    await simulated_broker.pass_time(130)
    assert stored(simulated_broker).size_bytes < before_bytes
    simulated_broker.kill()
    await simulated_broker.open()
    await simulated_broker.pass_time(5)
    assert await values(simulated_broker) == expected


async def test_cancelled_and_undecided_messages_keep_their_state(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"long", delay="1h"))
    offset = await delay(simulated_broker, message(simulated_broker, b"never", delay="3m"))
    assert await cancel(simulated_broker, offset) == 0
    await load(simulated_broker)
    await simulated_broker.pass_time(130)
    await simulated_broker.restart()
    await simulated_broker.pass_time(200)
    assert b"never" not in await values(simulated_broker)


@in_simulated_cluster()
async def test_followers_clean_up_for_themselves_and_can_take_over(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic(TOPIC)
    leader = await simulated_cluster.wait_for_leader(TOPIC)
    await colocated_topic(leader)
    await simulated_cluster.wait_until_in_sync(DELAYED)
    await load(leader)
    before_bytes = stored(leader).size_bytes
    await leader.pass_time(130)
    for simulated_broker in simulated_cluster.up:
        assert stored(simulated_broker).size_bytes < before_bytes / 2
    leader.kill()
    following = await simulated_cluster.wait_for_leader(TOPIC)
    await simulated_cluster.wait_for_leader(DELAYED)
    await following.pass_time(20)
    check(await values(following))
    assert (await listed(following)).waiting == 2


async def test_messages_removed_up_to_the_high_watermark_are_skipped(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap can reach to the high watermark when followers lag behind: what lies there is gone, and not unreadable."""
    await delayed.make(simulated_broker)
    for value in (b"a", b"b", b"c"):
        await delay(simulated_broker, message(simulated_broker, value, delay="1h"))
    partition = simulated_broker.partition(DELAYED)
    partition.log.roll()
    await delay(simulated_broker, message(simulated_broker, b"d", delay="1h"))
    removed = new_bitmap()
    removed.update({1, 2})
    (segment, following) = partition.log.segments
    plan = CleaningPlan(
        [SegmentToClean(segment, following.base_offset, segment.size)], settled=SettledBitmap(0, removed.serialize())
    )
    await simulated_broker.host.start(
        simulated_broker.broker.store.cleaner.carry_out(partition.log, lambda _: plan), "clean"
    )
    for high_watermark, expected in ((3, [0]), (4, [0, 3])):
        monkeypatch.setattr(partition, "high_watermark", high_watermark)
        reading = DelayedLog(partition, simulated_broker.host.clock).messages(range(high_watermark))
        assert sorted(await simulated_broker.host.start(reading, "read")) == expected
