"""The transaction coordinator: its guarantees, its recovery, and its behaviour when logs are full."""

from __future__ import annotations

import asyncio
import errno

import pytest
from tests.unit.broker.broker_requests import read_all
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.transaction_support import (
    ID,
    NEWER,
    OLDER,
    Transactor,
    described,
    partition_contents,
    restarted,
    state,
)

from headrace.broker.coordination.state_log import java_hash
from headrace.broker.partition import Partition
from headrace.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeader,
    ProducerFenced,
    TransactionalIdNotFound,
)
from headrace.model.names import TRANSACTION_STATE

each_generation = pytest.mark.parametrize("generation", [OLDER, NEWER])


async def ready(
    simulated_broker: SimulatedBroker, generation: int = NEWER, transactional_id: str = ID, timeout_ms: int = 60_000
) -> Transactor:
    """A producer that may begin, and a topic of two partitions."""
    if simulated_broker.broker.catalogue.find("t") is None:
        await simulated_broker.create_topic("t", 2)
    producer = Transactor(simulated_broker, transactional_id, generation=generation)
    assert await producer.init(timeout_ms=timeout_ms) == 0
    return producer


def fail(
    simulated_broker: SimulatedBroker,
    operation: str,
    topic: str,
    partition: int,
    number: int = errno.EIO,
    times: int = 1,
) -> None:
    topic_id = simulated_broker.broker.catalogue.topic(topic).id
    for _ in range(times):
        simulated_broker.host.disk.fail_next(operation, f"*{topic_id.hex}-{partition}*.log", number)  # type: ignore[arg-type]


def home(simulated_broker: SimulatedBroker, transactional_id: str = ID) -> int:
    """The partition of the log in which this id lies."""
    return java_hash(transactional_id) % simulated_broker.broker.catalogue.topic(TRANSACTION_STATE).partition_count


# Its life


@each_generation
async def test_all_partitions_get_the_same_outcome(simulated_broker: SimulatedBroker, generation: int) -> None:
    producer = await ready(simulated_broker, generation)
    for number, commit in enumerate([True, False, True]):
        for partition in (0, 1):
            assert await producer.send(b"%d" % number, partition=partition) == 0
        assert await state(simulated_broker) == "Ongoing"
        assert await producer.end(commit=commit) == 0
    for partition in (0, 1):
        result = await partition_contents(simulated_broker, partition=partition)
        assert result == ([b"0", b"2"], [b"1"], [], 3)
        assert (
            simulated_broker.partition("t", partition).last_stable_offset
            == simulated_broker.partition("t", partition).high_watermark
        )
    assert producer.epoch == (3 if generation == NEWER else 0)
    assert await state(simulated_broker) == "CompleteCommit"


@each_generation
async def test_an_end_is_acknowledged_when_consumers_can_read_it(
    simulated_broker: SimulatedBroker, generation: int
) -> None:
    producer = await ready(simulated_broker, generation)
    await producer.send(b"x")
    simulated_broker.host.disk.delay_seconds = (0.5, 0.5)
    ending = producer.begin_end()
    await simulated_broker.pass_time(0.6)
    assert not ending.done(), "it is decided, but its marker is not on disk"
    assert producer.hear(await ending) == 0
    assert simulated_broker.partition("t").last_stable_offset == simulated_broker.partition("t").log.end_offset == 2


@each_generation
async def test_an_end_may_be_repeated(simulated_broker: SimulatedBroker, generation: int) -> None:
    producer = await ready(simulated_broker, generation)
    await producer.send(b"x")
    again = Transactor(simulated_broker, generation=generation)
    again.producer_id, again.epoch = producer.producer_id, producer.epoch
    assert await producer.commit() == 0
    assert await again.abort() == InvalidTransactionState.code
    assert await again.commit() == 0
    assert again.epoch == producer.epoch
    assert (await partition_contents(simulated_broker)).markers == 1


async def test_a_marker_is_on_disk_even_where_the_topic_does_not_wait_for_it(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2, flush_messages="1000")
    producer = await ready(simulated_broker)
    await producer.send(b"x")
    assert await producer.commit() == 0
    simulated_broker.kill(keep_page_cache=False)
    await restarted(simulated_broker)
    assert (await partition_contents(simulated_broker)).committed == [b"x"]


@each_generation
async def test_a_new_producer_aborts_the_open_transaction(simulated_broker: SimulatedBroker, generation: int) -> None:
    old = await ready(simulated_broker, generation)
    await old.send(b"lost")
    new = Transactor(simulated_broker, generation=generation)
    assert await new.init() == 0
    assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 2)
    assert (await partition_contents(simulated_broker)).aborted == [b"lost"]
    assert await old.produce(b"late") == InvalidProducerEpoch.code
    assert await old.commit() == ProducerFenced.code
    assert await new.send(b"kept") == 0
    assert await new.commit() == 0
    assert await partition_contents(simulated_broker) == ([b"kept"], [b"lost"], [], 2)


async def test_a_producer_that_continues_after_an_error_keeps_its_id(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"lost")
    before = producer.producer_id, producer.epoch
    assert await producer.init(claims=True) == 0
    assert (producer.producer_id, producer.epoch) == (before[0], before[1] + 1)
    assert (await partition_contents(simulated_broker)).aborted == [b"lost"]
    other = Transactor(simulated_broker)
    other.producer_id, other.epoch = before
    assert await other.init(claims=True) == 0, "a retry after a lost response"
    assert other.epoch == producer.epoch


async def test_only_one_of_many_concurrent_producers_stays(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 2)
    newcomers = [Transactor(simulated_broker) for _ in range(5)]
    beginnings = [simulated_broker.host.start(one.init(), "init") for one in newcomers]
    assert [await beginning for beginning in beginnings] == [0] * 5
    assert sorted(one.epoch for one in newcomers) == [0, 1, 2, 3, 4]
    assert len({one.producer_id for one in newcomers}) == 1
    assert [await one.send(b"x") for one in sorted(newcomers, key=lambda one: one.epoch)] == [
        InvalidProducerEpoch.code,
        InvalidProducerEpoch.code,
        InvalidProducerEpoch.code,
        InvalidProducerEpoch.code,
        0,
    ]


async def test_a_batch_outside_of_the_transaction_is_rejected(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker, OLDER)
    assert await producer.produce(b"x") == InvalidTransactionState.code
    await producer.add("t", 0)
    assert await producer.produce(b"x") == 0
    assert await producer.produce(b"x", partition=1) == InvalidTransactionState.code
    await producer.commit()
    assert await producer.produce(b"y") == InvalidTransactionState.code


async def test_a_partition_may_be_written_to_only_when_it_is_durably_part_of_the_transaction(
    simulated_broker: SimulatedBroker,
) -> None:
    producer = await ready(simulated_broker, OLDER)
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    adding = simulated_broker.begin_send(producer.add_request("t", 0), 3)
    await simulated_broker.run_ready_tasks()
    assert await producer.produce(b"x") == NotEnoughReplicas.code
    await adding
    assert await producer.produce(b"x") == 0


async def test_partitions_of_the_transaction_do_not_wait_for_joining_ones(
    simulated_broker: SimulatedBroker,
) -> None:
    producer = await ready(simulated_broker, OLDER)
    await producer.add("t", 0)
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    adding = simulated_broker.begin_send(producer.add_request("t", 1), 3)
    await simulated_broker.run_ready_tasks()
    assert await producer.produce(b"x") == 0
    assert await producer.produce(b"x", partition=1) in (0, NotEnoughReplicas.code)
    await adding


async def test_an_error_waits_until_the_state_it_is_based_on_is_committed(simulated_broker: SimulatedBroker) -> None:
    """Otherwise a crash could revert the new producer, and with it the reason why the old one was fenced."""
    old, new = await ready(simulated_broker, OLDER), Transactor(simulated_broker)
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    beginning = simulated_broker.host.start(new.init(), "init")
    await simulated_broker.run_ready_tasks()
    pending = [
        simulated_broker.begin_send(old.add_request("t", 0), 3),
        old.begin_end(),
        simulated_broker.host.start(old.init(claims=True), "claim"),
    ]
    await simulated_broker.pass_time(0.5)
    assert not beginning.done()
    assert not any(one.done() for one in pending)
    assert await beginning == 0
    added, ended, claimed = [await one for one in pending]
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == ProducerFenced.code
    assert (ended.error_code, claimed) == (ProducerFenced.code, ProducerFenced.code)


async def test_many_transactions_can_be_open_at_once(simulated_broker: SimulatedBroker) -> None:
    producers = [await ready(simulated_broker, transactional_id=f"shop {number}") for number in range(20)]
    for number, producer in enumerate(producers):
        assert await producer.send(b"%d" % number, partition=number % 2) == 0
    endings = [producer.begin_end(commit=number % 3 > 0) for number, producer in enumerate(producers)]
    assert [(await ending).error_code for ending in endings] == [0] * 20
    result = [await partition_contents(simulated_broker, partition=partition) for partition in (0, 1)]
    assert {int(value) for one in result for value in one.aborted} == {*range(0, 20, 3)}
    assert sum(len(one.committed) for one in result) == 20 - 7
    assert not any(transaction.is_open for transaction in simulated_broker.broker.transactions.transactions())


# Coming back


@each_generation
@pytest.mark.parametrize("how", ["stop", "kill", "power cut"])
async def test_an_open_transaction_survives_every_kind_of_restart(
    simulated_broker: SimulatedBroker, generation: int, how: str
) -> None:
    producer = await ready(simulated_broker, generation)
    await producer.send(b"x")
    if how == "stop":
        await simulated_broker.close()
    else:
        simulated_broker.kill(keep_page_cache=how == "kill")
    await restarted(simulated_broker)
    assert await state(simulated_broker) == "Ongoing"
    assert await producer.send(b"y") == 0
    assert await producer.commit() == 0
    assert (await partition_contents(simulated_broker)).committed == [b"x", b"y"]


@each_generation
@pytest.mark.parametrize("commit", [True, False])
async def test_decided_transactions_get_their_markers_after_a_crash(
    simulated_broker: SimulatedBroker, generation: int, commit: bool
) -> None:
    producer = await ready(simulated_broker, generation)
    for partition in (0, 1):
        await producer.send(b"x", partition=partition)
    fail(simulated_broker, "append", "t", 1, errno.ENOSPC, times=100)
    ending = producer.begin_end(commit=commit)
    await simulated_broker.pass_time(1)
    assert (await state(simulated_broker)).startswith("Prepare")
    assert not ending.done()
    simulated_broker.kill(keep_page_cache=False)
    await restarted(simulated_broker)
    for partition in (0, 1):
        result = await partition_contents(simulated_broker, partition=partition)
        assert result[:2] == (([b"x"], []) if commit else ([], [b"x"]))
        assert result.markers == 1, "each partition gets one marker"
    assert await producer.end(commit=not commit) == InvalidTransactionState.code
    assert await producer.end(commit=commit) == 0
    assert await producer.send(b"next") == 0


async def test_requests_get_a_loading_error_until_the_log_is_loaded(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker, OLDER)
    await producer.add("t", 0)
    await simulated_broker.close()
    simulated_broker.host.disk.delay_seconds = (1.0, 1.0)
    await simulated_broker.open()
    assert await producer.init() == CoordinatorLoading.code
    assert await producer.add("t", 1) == CoordinatorLoading.code
    assert await producer.produce(b"x") == NotEnoughReplicas.code
    assert await producer.commit() == CoordinatorLoading.code
    assert (await described(simulated_broker)).error_code == CoordinatorLoading.code
    await simulated_broker.pass_time(30)
    assert await producer.produce(b"x") == 0


async def test_the_records_have_kafkas_format_and_are_in_the_partition_of_the_id(
    simulated_broker: SimulatedBroker,
) -> None:
    producer = await ready(simulated_broker)
    index = home(simulated_broker)
    assert len(await read_all(simulated_broker, TRANSACTION_STATE, index)) == 1
    await producer.send(b"x")
    await producer.commit()
    await simulated_broker.pass_time(1)
    assert len(await read_all(simulated_broker, TRANSACTION_STATE, index)) == 4
    topic = simulated_broker.broker.catalogue.topic(TRANSACTION_STATE)
    assert sum(partition.log.end_offset for partition in topic.led.values()) == 4
    assert dict(topic.record.configs)["cleanup.policy"] == "compact"


async def test_damage_puts_only_the_ids_of_its_partition_out_of_service(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    index = home(simulated_broker)
    name = next(name for name in map(str, range(99)) if home(simulated_broker, name) != index)
    healthy = await ready(simulated_broker, transactional_id=name)
    for one in (producer, healthy):
        await one.send(b"x")
    topic_id = simulated_broker.broker.catalogue.topic(TRANSACTION_STATE).id
    await simulated_broker.close()
    simulated_broker.host.disk.flip_bit(f"/data/logs/{topic_id.hex}-{index}/{0:020d}.log", 70)
    await restarted(simulated_broker)
    assert await healthy.commit() == 0
    assert await producer.init() == CoordinatorNotAvailable.code
    assert await producer.commit() == CoordinatorNotAvailable.code
    assert await producer.produce(b"x") == NotEnoughReplicas.code
    assert (await described(simulated_broker)).error_code == CoordinatorNotAvailable.code
    await simulated_broker.pass_time(100)
    assert (await partition_contents(simulated_broker)).open == [b"x"], "the decision is not known yet"


# Time


@each_generation
async def test_a_timed_out_transaction_is_aborted_and_its_producer_fenced(
    simulated_broker: SimulatedBroker, generation: int
) -> None:
    producer = await ready(simulated_broker, generation, timeout_ms=5_000)
    await producer.send(b"x")
    await simulated_broker.pass_time(4)
    assert await state(simulated_broker) == "Ongoing"
    await simulated_broker.pass_time(15)
    assert await state(simulated_broker) == "CompleteAbort"
    assert (await partition_contents(simulated_broker)).aborted == [b"x"]
    assert await producer.produce(b"late") == InvalidProducerEpoch.code
    assert await producer.commit() == ProducerFenced.code
    assert await producer.init() == 0
    assert await producer.send(b"y") == 0
    assert await producer.commit() == 0


async def test_time_that_passed_before_a_restart_counts(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker, timeout_ms=30_000)
    await producer.send(b"x")
    await simulated_broker.pass_time(25)
    await simulated_broker.restart()
    await simulated_broker.pass_time(20)
    assert (await partition_contents(simulated_broker)).aborted == [b"x"]


async def test_a_jump_of_the_wall_clock_aborts_nothing(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"x")
    simulated_broker.host.clock.jump(86_400_000)
    await simulated_broker.pass_time(20)
    assert await state(simulated_broker) == "Ongoing"
    assert await producer.commit() == 0


async def test_unused_ids_expire(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(transactional_id_expiration_ms="60000")
    producer = await ready(simulated_broker)
    busy = await ready(simulated_broker, transactional_id="busy", timeout_ms=900_000)
    await busy.send(b"x")
    await simulated_broker.pass_time(50)
    assert await state(simulated_broker) == "Empty"
    await simulated_broker.pass_time(30)
    assert (await described(simulated_broker)).error_code == TransactionalIdNotFound.code
    assert await producer.send(b"x") == InvalidProducerIdMapping.code
    assert await state(simulated_broker, "busy") == "Ongoing"
    simulated_broker.kill(keep_page_cache=False)
    await restarted(simulated_broker)
    assert (await described(simulated_broker)).error_code == TransactionalIdNotFound.code
    before = producer.producer_id
    assert await producer.init() == 0
    assert (producer.producer_id != before, producer.epoch) == (True, 0)


# What takes no writes


@each_generation
async def test_a_partition_on_a_full_disk_gets_its_marker_later(
    simulated_broker: SimulatedBroker, generation: int
) -> None:
    producer = await ready(simulated_broker, generation)
    for partition in (0, 1):
        await producer.send(b"x", partition=partition)
    fail(simulated_broker, "append", "t", 0, errno.ENOSPC, times=3)
    ending = producer.begin_end()
    await simulated_broker.pass_time(0.15)
    assert (await partition_contents(simulated_broker, partition=1)).committed == [b"x"]
    assert (await partition_contents(simulated_broker, partition=0)).open == [b"x"]
    assert await Transactor(simulated_broker).init() == ConcurrentTransactions.code
    assert producer.hear(await ending) == 0
    assert (await partition_contents(simulated_broker, partition=0)).committed == [b"x"]


async def test_a_partition_out_of_service_keeps_the_transaction_open_but_no_other_one(
    simulated_broker: SimulatedBroker,
) -> None:
    producer, other = await ready(simulated_broker), await ready(simulated_broker, transactional_id="other")
    await simulated_broker.create_topic("u", 1)
    await producer.send(b"x", "u")
    await producer.send(b"x")
    await other.send(b"y")
    fail(simulated_broker, "sync", "u", 0)
    assert await producer.commit() == ConcurrentTransactions.code
    assert await other.commit() == 0
    assert (await partition_contents(simulated_broker)).committed == [b"x", b"y"]
    assert await state(simulated_broker) == "PrepareCommit"
    assert await producer.commit() == ConcurrentTransactions.code
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert await state(simulated_broker) == "CompleteCommit"
    assert await producer.commit() == 0


async def test_a_deleted_topic_is_left_out(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    await simulated_broker.create_topic("u", 1)
    for topic in ("t", "u"):
        await producer.send(b"x", topic)
    await simulated_broker.delete_topic("u")
    assert await producer.commit() == 0
    assert (await partition_contents(simulated_broker)).committed == [b"x"]


async def test_the_deletion_of_a_topic_ends_the_wait_for_its_marker(
    simulated_broker: SimulatedBroker,
) -> None:
    producer = await ready(simulated_broker)
    await simulated_broker.create_topic("u", 1)
    for topic in ("t", "u"):
        await producer.send(b"x", topic)
    fail(simulated_broker, "append", "u", 0, errno.ENOSPC, times=100)
    ending = producer.begin_end()
    await simulated_broker.pass_time(1)
    await simulated_broker.delete_topic("u")
    assert producer.hear(await ending) == 0


@pytest.mark.parametrize("operation", ["append", "sync"])
async def test_a_decision_that_could_not_be_stored_writes_no_markers(
    simulated_broker: SimulatedBroker, operation: str
) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"x")
    fail(simulated_broker, operation, TRANSACTION_STATE, home(simulated_broker))
    assert await producer.commit() == CoordinatorNotAvailable.code
    await simulated_broker.pass_time(100)
    assert await producer.abort() == CoordinatorNotAvailable.code
    assert (await partition_contents(simulated_broker)).open == [b"x"]
    simulated_broker.kill(keep_page_cache=False)
    await restarted(simulated_broker)
    assert await state(simulated_broker) in ("Ongoing", "PrepareCommit", "CompleteCommit")
    assert await producer.commit() == 0
    assert (await partition_contents(simulated_broker)).committed == [b"x"]


async def test_a_change_succeeds_after_one_was_rejected_by_a_full_log(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"x")
    fail(simulated_broker, "append", TRANSACTION_STATE, home(simulated_broker), errno.ENOSPC)
    assert await producer.commit() == CoordinatorNotAvailable.code
    assert await state(simulated_broker) == "Ongoing"
    assert await producer.commit() == 0


async def test_a_decided_transaction_is_completed_when_a_leadership_in_doubt_continues(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"x")
    decisions = simulated_broker.partition(TRANSACTION_STATE, home(simulated_broker))
    committed = Partition.committed
    doubts = iter([NotLeader("nobody leads it for now")] * 2)  # for the request, and for the end that it has begun

    def in_doubt(partition: Partition, end_offset: int, deadline: float) -> asyncio.Future[None] | None:
        if partition is decisions and (doubt := next(doubts, None)) is not None:
            raise doubt
        return committed(partition, end_offset, deadline)

    monkeypatch.setattr(Partition, "committed", in_doubt)
    assert await producer.commit() == NotCoordinator.code
    await simulated_broker.pass_time(20)
    assert await state(simulated_broker) == "CompleteCommit"
    assert (await partition_contents(simulated_broker)).committed == [b"x"]


async def test_the_completion_is_stored_later_if_the_disk_is_full(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"x")
    simulated_broker.host.disk.delay_seconds = (0.2, 0.2)
    ending = producer.begin_end()
    await simulated_broker.pass_time(0.3)
    fail(simulated_broker, "append", TRANSACTION_STATE, home(simulated_broker), errno.ENOSPC)
    await ending
    await simulated_broker.pass_time(20)
    assert await state(simulated_broker) == "CompleteCommit"
    assert await producer.commit() == 0


async def test_the_first_producer_can_retry_after_a_full_disk(simulated_broker: SimulatedBroker) -> None:
    simulated_broker.host.disk.fail_next("make", "/data/logs/*", errno.ENOSPC)
    producer = Transactor(simulated_broker)
    assert await producer.init() == CoordinatorNotAvailable.code
    assert await producer.init() == 0


async def test_an_id_that_times_out_while_its_log_is_full_is_aborted_later(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker, timeout_ms=1_000)
    await producer.send(b"x")
    fail(simulated_broker, "append", TRANSACTION_STATE, home(simulated_broker), errno.ENOSPC)
    await simulated_broker.pass_time(30)
    assert (await partition_contents(simulated_broker)).aborted == [b"x"]


# Going down


async def test_waiting_requests_get_a_response_when_the_broker_stops(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"x")
    fail(simulated_broker, "append", "t", 0, errno.ENOSPC, times=100)
    ending = producer.begin_end()
    await simulated_broker.pass_time(1)
    simulated_broker.broker.complete_waiting_requests()
    assert (await ending).error_code == CoordinatorNotAvailable.code
    assert await producer.init() == CoordinatorNotAvailable.code
    assert await producer.send(b"y") == NotEnoughReplicas.code
