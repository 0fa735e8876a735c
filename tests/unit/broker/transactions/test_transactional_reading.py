"""The writes of transactional producers, and the reads of read_committed consumers."""

from __future__ import annotations

import pytest
from tests.unit.broker.broker_requests import (
    batch,
    fetch_request,
    fetched_partitions,
    only_response,
    produce,
    produce_request,
    values,
)
from tests.unit.broker.simulated_broker import FakeConnection, SimulatedBroker
from tests.unit.broker.transactions.transaction_support import ID, NEWER, OLDER, Transactor

from headrace.model.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidTransactionState,
    NotEnoughReplicas,
    TransactionalIdAuthorizationFailed,
)
from headrace.wire.batches.batch import TRANSACTIONAL
from headrace.wire.messages.fetch import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

each_generation = pytest.mark.parametrize("generation", [OLDER, NEWER])


async def fetch_committed(
    simulated_broker: SimulatedBroker, offset: int = 0, *, size: int = 1 << 20
) -> tuple[list[bytes], list[int], int]:
    """Values as they lie in the log, first offsets of aborted transactions, last stable offset."""
    request = fetch_request({("t", 0): offset}, partition_max_bytes=size)
    request.isolation_level = 1
    data = fetched_partitions(await simulated_broker.send(request, 11))["t", 0]
    assert data.error_code == 0
    assert data.aborted_transactions is not None
    return values(data.records), [one.first_offset for one in data.aborted_transactions], data.last_stable_offset


@each_generation
async def test_read_committed_stops_before_an_open_transaction(
    simulated_broker: SimulatedBroker, generation: int
) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"before")
    one = Transactor(simulated_broker, generation=generation)
    await one.init()
    assert await one.send(b"inside") == 0
    await produce(simulated_broker, "t", b"after")
    assert await fetch_committed(simulated_broker) == ([b"before"], [], 1)
    plain = fetched_partitions(await simulated_broker.send(fetch_request({("t", 0): 0}), 11))["t", 0]
    assert values(plain.records) == [b"before", b"inside", b"after"]
    assert (plain.high_watermark, plain.last_stable_offset, plain.aborted_transactions) == (3, 1, None)
    await one.commit()
    assert (await fetch_committed(simulated_broker))[0][:3] == [b"before", b"inside", b"after"]


async def test_aborted_transactions_are_listed_with_their_data_only(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    one = Transactor(simulated_broker)
    await one.init()
    for value, commit in ((b"a", False), (b"b", True), (b"c", False)):
        await one.send(value)
        await one.end(commit=commit)
    assert (await fetch_committed(simulated_broker))[1] == [0, 4]
    assert (await fetch_committed(simulated_broker, size=1))[1] == [0]
    assert (await fetch_committed(simulated_broker, 2, size=1))[1] == []
    assert (await fetch_committed(simulated_broker, 4))[1] == [4]


async def test_a_waiting_read_committed_fetch_is_woken_by_the_marker(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    one = Transactor(simulated_broker)
    await one.init()
    await one.send(b"a")
    request = fetch_request({("t", 0): 0}, max_wait_ms=60_000)
    request.isolation_level = 1
    pending = simulated_broker.begin_send(request, 11)
    await simulated_broker.pass_time(1)
    assert not pending.done()
    await one.commit()
    assert values(fetched_partitions(await pending)["t", 0].records)[0] == b"a"


async def test_the_latest_offset_of_read_committed_is_the_last_stable_offset(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"before")
    one = Transactor(simulated_broker)
    await one.init()
    await one.send(b"inside")

    async def latest(isolation_level: int) -> int:
        requested = ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            isolation_level=isolation_level, topics=[ListOffsetsTopic(name="t", partitions=[requested])]
        )
        response = (await simulated_broker.send(request, 5)).topics[0].partitions[0]
        assert response.error_code == 0
        return int(response.offset)

    assert (await latest(0), await latest(1)) == (2, 1)


async def test_aborted_transactions_are_known_after_a_restart(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    one = Transactor(simulated_broker)
    await one.init()
    await one.send(b"a")
    await one.abort()
    await one.send(b"b")
    before = await fetch_committed(simulated_broker)
    assert before[1:] == ([0], 2)
    for stop in (simulated_broker.restart, simulated_broker.open):
        if stop == simulated_broker.open:
            simulated_broker.kill(keep_page_cache=False)
        await stop()
        await simulated_broker.pass_time(1)
        assert await fetch_committed(simulated_broker) == before


async def test_a_new_partition_blocks_the_connection_until_it_is_part_of_the_transaction(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    one = Transactor(simulated_broker)
    await one.init()
    connection = FakeConnection()
    data = batch(b"a", producer_id=one.producer_id, producer_epoch=one.epoch, base_sequence=0, attributes=TRANSACTIONAL)
    request = produce_request({("t", 0): data})
    request.transactional_id = ID
    assert only_response(await simulated_broker.send(request, 12, connection)).error_code == 0
    assert connection.holds == [True, False]
    connection = FakeConnection()
    assert (
        only_response(await simulated_broker.send(request, 12, connection)).error_code == 0
    )  # the same again: it is part by now
    assert connection.holds == []


async def test_a_producer_of_the_older_protocol_must_add_its_partitions(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    one = Transactor(simulated_broker, generation=OLDER)
    await one.init()
    assert await one.produce(b"a") == InvalidTransactionState.code


@each_generation
async def test_a_fenced_producer_gets_an_error_of_produce(simulated_broker: SimulatedBroker, generation: int) -> None:
    await simulated_broker.create_topic("t")
    one, other = (
        Transactor(simulated_broker, generation=generation),
        Transactor(simulated_broker, generation=generation),
    )
    await one.init()
    await one.send(b"a")
    await other.init()
    assert await one.produce(b"b") == InvalidProducerEpoch.code


async def test_a_transactional_batch_needs_an_id_and_a_producer(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    data = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    assert (
        only_response(await simulated_broker.send(produce_request({("t", 0): data}), 12)).error_code
        == TransactionalIdAuthorizationFailed.code
    )
    request = produce_request({("t", 0): batch(b"a", attributes=TRANSACTIONAL)})
    request.transactional_id = ID
    assert only_response(await simulated_broker.send(request, 12)).error_code == InvalidRecord.code
    request = produce_request({("t", 0): data})
    request.transactional_id = "nobody"
    assert only_response(await simulated_broker.send(request, 12)).error_code == NotEnoughReplicas.code
    await Transactor(simulated_broker).init()
    assert only_response(await simulated_broker.send(request, 12)).error_code == InvalidProducerIdMapping.code


async def test_a_delayed_batch_of_the_newer_protocol_never_joins_the_next_transaction(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t")
    one = Transactor(simulated_broker)
    await one.init()
    delayed = batch(
        b"late", producer_id=one.producer_id, producer_epoch=one.epoch, base_sequence=0, attributes=TRANSACTIONAL
    )
    await one.send(b"a")
    await one.commit()
    await one.send(b"b")
    request = produce_request({("t", 0): delayed})
    request.transactional_id = ID
    assert only_response(await simulated_broker.send(request, 12)).error_code == InvalidProducerEpoch.code
