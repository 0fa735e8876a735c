"""How long a partition remembers an idempotent producer: by elapsed time on each replica, never by a timestamp."""

from __future__ import annotations

from tests.unit.broker.broker_requests import produce, read_all
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.broker.partition import Partition

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
PRODUCER = {"producer_id": 7, "producer_epoch": 0}


async def backfill(simulated_broker: SimulatedBroker) -> int:
    """One batch of an idempotent producer whose records are a year old; the same again when it is repeated."""
    created_ms = simulated_broker.host.clock.now_ms() // YEAR_MS * YEAR_MS - YEAR_MS
    return await produce(simulated_broker, "t", b"a", b"b", timestamp_ms=created_ms, base_sequence=0, **PRODUCER)


def knows_producer(partition: Partition) -> bool:
    return len(partition.state.producers) == 1


@in_simulated_cluster(2)
async def test_a_retry_after_failover_is_a_duplicate_however_old_its_records_are(
    simulated_cluster: SimulatedCluster,
) -> None:
    await simulated_cluster.create_topic("t")
    assert await backfill(simulated_cluster[1]) == 0
    await simulated_cluster.wait_until_identical("t")
    await simulated_cluster[1].pass_time(5)
    assert knows_producer(simulated_cluster.replica(2, "t"))
    await simulated_cluster.move_leadership("t", 2)
    assert await backfill(simulated_cluster[2]) == 0
    assert await read_all(simulated_cluster[2], "t") == [b"a", b"b"]


async def test_a_jump_of_the_wall_clock_forgets_no_producer(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    assert await produce(simulated_broker, "t", b"a", base_sequence=0, **PRODUCER) == 0
    for jump_ms in (YEAR_MS, -2 * YEAR_MS, YEAR_MS):
        simulated_broker.host.clock.jump(jump_ms)
        await simulated_broker.pass_time(5)
        assert knows_producer(simulated_broker.partition("t"))
    assert await produce(simulated_broker, "t", b"a", base_sequence=0, **PRODUCER) == 0


async def test_a_restart_keeps_all_producers_regardless_of_the_clock(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    assert await backfill(simulated_broker) == 0
    for is_clean in (True, False):
        if is_clean:
            await simulated_broker.close()  # with a checkpoint, from which the producer is restored
        else:
            simulated_broker.kill()
        simulated_broker.host.clock.jump(YEAR_MS)
        await simulated_broker.open()
        await simulated_broker.pass_time(5)
        assert knows_producer(simulated_broker.partition("t"))


async def test_a_producer_idle_across_restarts_expires(simulated_broker: SimulatedBroker) -> None:
    """Its idle time is kept in checkpoints: else a broker that is restarted every day would keep every producer."""
    await simulated_broker.restart(producer_id_expiration_ms="20000")
    await simulated_broker.create_topic("t")
    await backfill(simulated_broker)
    for _ in range(3):
        assert knows_producer(simulated_broker.partition("t"))
        await simulated_broker.pass_time(9)
        await produce(simulated_broker, "t", b"of no producer")
        await simulated_broker.restart()
    await simulated_broker.pass_time(4)
    assert not knows_producer(simulated_broker.partition("t"))


async def test_a_producer_that_writes_now_and_then_is_never_forgotten(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(producer_id_expiration_ms="5000")
    await simulated_broker.create_topic("t")
    for sequence in range(5):
        await produce(simulated_broker, "t", b"a", base_sequence=sequence, **PRODUCER)
        await simulated_broker.pass_time(3)
        assert knows_producer(simulated_broker.partition("t"))
    await simulated_broker.pass_time(4)
    assert not knows_producer(simulated_broker.partition("t"))
