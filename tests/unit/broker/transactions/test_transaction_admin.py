"""Operators can describe transactions and end one that hangs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.broker.transactions.transaction_support import ID, Transactor, described, partition_contents

from headrace.model.errors import (
    InvalidProducerEpoch,
    InvalidRegularExpression,
    InvalidRequest,
    InvalidTopic,
    InvalidTransactionState,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from headrace.model.names import TRANSACTION_STATE
from headrace.wire.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersTopic,
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)


async def ready(simulated_broker: SimulatedBroker, transactional_id: str = ID) -> Transactor:
    if simulated_broker.broker.catalogue.find("t") is None:
        await simulated_broker.create_topic("t", 2)
    producer = Transactor(simulated_broker, transactional_id)
    assert await producer.init() == 0
    return producer


# Describing and listing


async def test_a_transaction_is_described(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"x", partition=1)
    await producer.send(b"x", partition=0)
    response = await described(simulated_broker)
    assert (response.error_code, response.transaction_state, response.transaction_timeout_ms) == (0, "Ongoing", 60_000)
    assert (response.producer_id, response.producer_epoch) == (producer.producer_id, producer.epoch)
    assert response.transaction_start_time_ms > 0
    assert [(topic.topic, topic.partitions) for topic in response.topics] == [("t", [0, 1])]
    await producer.commit()
    ended = await described(simulated_broker)
    assert (ended.transaction_state, ended.topics) == ("CompleteCommit", [])
    assert ended.transaction_start_time_ms == response.transaction_start_time_ms, "as kafka-transactions shows it"


async def test_an_unknown_id_is_not_described(simulated_broker: SimulatedBroker) -> None:
    await ready(simulated_broker)
    assert (await described(simulated_broker, "unknown")).error_code == TransactionalIdNotFound.code
    assert (await described(simulated_broker, "")).error_code == InvalidRequest.code


async def listed(simulated_broker: SimulatedBroker, version: int = 2, **filters: Any) -> dict[str, str]:
    response = await simulated_broker.send(ListTransactionsRequest(**filters), version)
    assert response.error_code == 0
    return {one.transactional_id: one.transaction_state for one in response.transaction_states}


async def test_transactions_are_listed_by_filters(simulated_broker: SimulatedBroker) -> None:
    busy, idle = await ready(simulated_broker, "busy"), await ready(simulated_broker, "idle")
    await busy.send(b"x")
    await simulated_broker.pass_time(5)
    assert await listed(simulated_broker, 0) == {"busy": "Ongoing", "idle": "Empty"}
    assert await listed(simulated_broker, state_filters=["Ongoing", "CompleteCommit"]) == {"busy": "Ongoing"}
    assert await listed(simulated_broker, producer_id_filters=[idle.producer_id]) == {"idle": "Empty"}
    assert await listed(simulated_broker, duration_filter=4_000, state_filters=["Ongoing"]) == {"busy": "Ongoing"}
    assert await listed(simulated_broker, duration_filter=6_000) == {"idle": "Empty"}, (
        "Kafka counts an id without a start as old"
    )
    assert await listed(simulated_broker, transactional_id_pattern="i.*") == {"idle": "Empty"}
    assert await listed(simulated_broker, transactional_id_pattern="dle") == {}
    assert await listed(simulated_broker, transactional_id_pattern="") == {"busy": "Ongoing", "idle": "Empty"}


async def test_states_that_do_not_exist_are_named(simulated_broker: SimulatedBroker) -> None:
    await ready(simulated_broker)
    request = ListTransactionsRequest(state_filters=["Dead", "Sleeping", "ongoing"])
    response = await simulated_broker.send(request, 0)
    assert (response.unknown_state_filters, response.transaction_states) == (["Sleeping", "ongoing"], [])


@pytest.mark.parametrize("pattern", ["(", "*", "x{9999}", "x" * 1025])
async def test_an_invalid_pattern_is_rejected(simulated_broker: SimulatedBroker, pattern: str) -> None:
    response = await simulated_broker.send(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
    assert response.error_code == InvalidRegularExpression.code


# Producers, and the end of what hangs


async def producers(simulated_broker: SimulatedBroker, partition: int = 0) -> Any:
    request = DescribeProducersRequest(topics=[DescribeProducersTopic(name="t", partition_indexes=[partition])])
    ((response,),) = [topic.partitions for topic in (await simulated_broker.send(request, 0)).topics]
    return response


async def test_the_producers_of_a_partition_are_described(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    await produce(simulated_broker, "t", b"before", producer_id=77, producer_epoch=0, base_sequence=0)
    await producer.send(b"x")
    response = await producers(simulated_broker)
    assert response.error_code == 0
    starts = {known.producer_id: known.current_txn_start_offset for known in response.active_producers}
    assert starts == {77: -1, producer.producer_id: 1}
    (known,) = [known for known in response.active_producers if known.producer_id != 77]
    assert (known.producer_epoch, known.last_sequence, known.coordinator_epoch) == (producer.epoch, 0, -1)
    await producer.commit()
    (known,) = [known for known in (await producers(simulated_broker)).active_producers if known.producer_id != 77]
    assert known.current_txn_start_offset == -1
    assert known.coordinator_epoch >= 0


async def test_a_partition_that_does_not_exist_has_no_producers(simulated_broker: SimulatedBroker) -> None:
    assert (await producers(simulated_broker)).error_code == UnknownTopicOrPartition.code


async def mark(
    simulated_broker: SimulatedBroker, producer_id: int, epoch: int, *, topic: str = "t", partition: int = 0
) -> int:
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=-1,
    )
    response = await simulated_broker.send(WriteTxnMarkersRequest(markers=[marker]), 1)
    (result,) = response.markers
    assert result.producer_id == producer_id
    ((marked,),) = [topic.partitions for topic in result.topics]
    return int(marked.error_code)


async def test_a_transaction_that_hangs_can_be_ended_where_it_hangs(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"x")
    simulated_broker.broker.transactions.of(ID).transactions.forget(ID)
    assert simulated_broker.partition("t").last_stable_offset == 0
    assert await mark(simulated_broker, producer.producer_id, producer.epoch) == 0
    assert (await partition_contents(simulated_broker)).aborted == [b"x"]
    assert simulated_broker.partition("t").last_stable_offset == 2


async def test_a_transaction_that_has_a_coordinator_is_ended_there(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"x")
    assert await mark(simulated_broker, producer.producer_id, producer.epoch) == InvalidTransactionState.code
    assert await producer.commit() == 0
    assert (await partition_contents(simulated_broker)).committed == [b"x"]


async def test_invalid_markers_are_rejected(simulated_broker: SimulatedBroker) -> None:
    producer = await ready(simulated_broker)
    await producer.send(b"x")
    await producer.commit()
    assert await mark(simulated_broker, producer.producer_id, producer.epoch - 1) == InvalidProducerEpoch.code
    assert await mark(simulated_broker, -1, 0) == InvalidRequest.code
    assert await mark(simulated_broker, 1, -1) == InvalidRequest.code
    assert await mark(simulated_broker, 1, 0, partition=9) == UnknownTopicOrPartition.code
    assert await mark(simulated_broker, 1, 0, topic=TRANSACTION_STATE) == InvalidTopic.code
