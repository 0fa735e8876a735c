"""How long a partition remembers an idempotent producer: by elapsed time on each replica, never by a timestamp."""

from __future__ import annotations

from tests.unit.broker.asking import produce, read_all
from tests.unit.broker.house import House
from tests.unit.broker.town import Town, in_town

from headrace.broker.partition import Partition

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
PRODUCER = {"producer_id": 7, "producer_epoch": 0}


async def backfill(house: House) -> int:
    """One batch of an idempotent producer whose records are a year old; the same again when it is repeated."""
    created_ms = house.host.clock.now_ms() // YEAR_MS * YEAR_MS - YEAR_MS
    return await produce(house, "t", b"a", b"b", timestamp_ms=created_ms, base_sequence=0, **PRODUCER)


def knows_producer(partition: Partition) -> bool:
    return len(partition.state.producers) == 1


@in_town(2)
async def test_a_retry_after_failover_is_a_duplicate_however_old_its_records_are(town: Town) -> None:
    await town.make_topic("t")
    assert await backfill(town[1]) == 0
    await town.until_alike("t")
    await town[1].pass_time(5)
    assert knows_producer(town.replica(2, "t"))
    await town.move_lead("t", 2)
    assert await backfill(town[2]) == 0
    assert await read_all(town[2], "t") == [b"a", b"b"]


async def test_a_jump_of_the_wall_clock_forgets_no_producer(house: House) -> None:
    await house.make_topic("t")
    assert await produce(house, "t", b"a", base_sequence=0, **PRODUCER) == 0
    for jump_ms in (YEAR_MS, -2 * YEAR_MS, YEAR_MS):
        house.host.clock.jump(jump_ms)
        await house.pass_time(5)
        assert knows_producer(house.partition("t"))
    assert await produce(house, "t", b"a", base_sequence=0, **PRODUCER) == 0


async def test_a_restart_forgets_no_producer_whatever_the_clock_says_then(house: House) -> None:
    await house.make_topic("t")
    assert await backfill(house) == 0
    for is_clean in (True, False):
        if is_clean:
            await house.close()  # with a checkpoint, from which the producer is restored
        else:
            house.kill()
        house.host.clock.jump(YEAR_MS)
        await house.open()
        await house.pass_time(5)
        assert knows_producer(house.partition("t"))


async def test_a_producer_that_is_idle_over_restarts_is_forgotten_at_last(house: House) -> None:
    """Its idle time is kept in checkpoints: else a broker that is restarted every day would keep every producer."""
    await house.restart(producer_id_expiration_ms="20000")
    await house.make_topic("t")
    await backfill(house)
    for _ in range(3):
        assert knows_producer(house.partition("t"))
        await house.pass_time(9)
        await produce(house, "t", b"of no producer")
        await house.restart()
    await house.pass_time(4)
    assert not knows_producer(house.partition("t"))


async def test_a_producer_that_writes_now_and_then_is_never_forgotten(house: House) -> None:
    await house.restart(producer_id_expiration_ms="5000")
    await house.make_topic("t")
    for sequence in range(5):
        await produce(house, "t", b"a", base_sequence=sequence, **PRODUCER)
        await house.pass_time(3)
        assert knows_producer(house.partition("t"))
    await house.pass_time(4)
    assert not knows_producer(house.partition("t"))
