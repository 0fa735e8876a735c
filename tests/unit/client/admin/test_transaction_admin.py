"""Transaction administration calls the right brokers, and ends only hanging transactions in their partition."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.unit.client.scripted_cluster import ScriptedBroker, ScriptedCluster, in_world

from headrace.client.admin.transaction_admin import TransactionAdmin
from headrace.client.errors import VersionMismatch
from headrace.client.metadata import TopicPartition
from headrace.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    InvalidRequest,
    InvalidTransactionState,
    NotCoordinator,
    NotLeader,
    ProducerFenced,
    TransactionalIdNotFound,
)
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.messages import transactions as described
from headrace.wire.messages import transactions as listed
from headrace.wire.messages import transactions as producers
from headrace.wire.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.messages.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

ORDERS = TopicPartition("orders", 0)
HOUR_MS = 3_600_000

Scene = Callable[[TransactionAdmin, ScriptedBroker, ScriptedBroker], Coroutine[Any, Any, None]]


def play(scene: Scene) -> None:
    """Two brokers: the first leads partition 0 of orders, the second partition 1 and every transaction."""

    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=2)
        first, second = await scripted_cluster.broker(1), await scripted_cluster.broker(2)
        scripted_cluster.leaders[TopicPartition("orders", 1)] = 2
        async with scripted_cluster.cluster() as cluster:
            await scene(TransactionAdmin(cluster), first, second)

    in_world(scenario)


def coordinated_by(node_id: int) -> Callable[[FindCoordinatorRequest], FindCoordinatorResponse]:
    def response(request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        assert request.key_type == 1
        (key,) = request.coordinator_keys
        return FindCoordinatorResponse(coordinators=[Coordinator(key=key, node_id=node_id, host="x", port=1)])

    return response


def transaction(
    state: str = "Ongoing", *partitions: int, error_code: int = 0
) -> described.DescribeTransactionsResponse:
    topics = [described.DescribeTransactionsTopic(topic="orders", partitions=[*partitions])] if partitions else []
    result = described.DescribedTransactionState(
        error_code=error_code,
        transactional_id="tx",
        transaction_state=state,
        transaction_timeout_ms=1234,
        transaction_start_time_ms=99,
        producer_id=7,
        producer_epoch=3,
        topics=topics,
    )
    return described.DescribeTransactionsResponse(transaction_states=[result])


def listing(*names: str, **fields: Any) -> listed.ListTransactionsResponse:
    states = [
        listed.ListedTransactionState(transactional_id=n, producer_id=7, transaction_state="Ongoing") for n in names
    ]
    return listed.ListTransactionsResponse(transaction_states=states, **fields)


def open_at(offset: int, *, partition: int = 0, error_code: int = 0, written_ms: int = 0) -> Any:
    state = producers.ProducerState(
        producer_id=7,
        producer_epoch=3,
        coordinator_epoch=-1,
        current_txn_start_offset=offset,
        last_timestamp=written_ms,
    )
    result = producers.DescribeProducersPartitionResponse(
        partition_index=partition, error_code=error_code, active_producers=[state]
    )
    return producers.DescribeProducersResponse(
        topics=[producers.DescribeProducersTopicResponse(name="orders", partitions=[result])]
    )


def markers_written(error_code: int = 0) -> WriteTxnMarkersResponse:
    partition = WritableTxnMarkerPartitionResult(partition_index=0, error_code=error_code)
    topic = WritableTxnMarkerTopicResult(name="orders", partitions=[partition])
    return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7, topics=[topic])])


def requests(broker: ScriptedBroker, api_key: int) -> list[Any]:
    return [request for key, _, request in broker.requests if key == api_key]


def test_every_broker_lists_its_transactions() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        first.script(apis.LIST_TRANSACTIONS, listing(error_code=CoordinatorLoading.code), listing("b", "z"))
        second.script(apis.LIST_TRANSACTIONS, listing("a"))
        found = await admin.list(states=["Ongoing"], producer_ids=[7], older_than_ms=500)
        assert [(one.transactional_id, one.coordinator) for one in found] == [("a", 2), ("b", 1), ("z", 1)]
        (request,) = requests(second, apis.LIST_TRANSACTIONS)
        assert (request.state_filters, request.producer_id_filters) == (["Ongoing"], [7])
        assert request.duration_filter == 500

    play(scene)


def test_a_filter_by_age_alone_lists_open_transactions() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        first.script(apis.LIST_TRANSACTIONS, listing())
        second.script(apis.LIST_TRANSACTIONS, listing())
        await admin.list(older_than_ms=500)
        (request,) = requests(second, apis.LIST_TRANSACTIONS)
        assert request.state_filters == ["Ongoing", "PrepareCommit", "PrepareAbort"]

    play(scene)


def test_a_broker_without_age_filter_gets_no_age_filter() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        for broker in (first, second):
            broker.versions[apis.LIST_TRANSACTIONS] = (0, 0)
        with pytest.raises(VersionMismatch, match="age"):
            await admin.list(older_than_ms=1)
        first.script(apis.LIST_TRANSACTIONS, listing("a"))
        second.script(apis.LIST_TRANSACTIONS, listing())
        assert len(await admin.list()) == 1

    play(scene)


def test_a_state_that_the_broker_does_not_know_is_no_empty_list() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, _: ScriptedBroker) -> None:
        first.script(apis.LIST_TRANSACTIONS, listing(unknown_state_filters=["Odd"]))
        with pytest.raises(InvalidRequest, match="Odd"):
            await admin.list(states=["Odd"])

    play(scene)


def test_a_transaction_is_described_by_its_coordinator_also_after_that_has_moved() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        first.script(apis.FIND_COORDINATOR, coordinated_by(1))
        second.script(
            apis.FIND_COORDINATOR, coordinated_by(2)
        )  # a broker that named a wrong coordinator is not used again
        first.script(apis.DESCRIBE_TRANSACTIONS, transaction(error_code=NotCoordinator.code))
        second.script(apis.DESCRIBE_TRANSACTIONS, transaction("Ongoing", 1, 0))
        view = await admin.describe("tx")
        assert (view.state, view.coordinator, view.producer_id, view.timeout_ms) == ("Ongoing", 2, 7, 1234)
        assert view.partitions == [ORDERS, TopicPartition("orders", 1)]

    play(scene)


def test_an_abort_fences_with_the_same_timeout_until_it_succeeds() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        for broker in (first, second):
            broker.script(apis.FIND_COORDINATOR, *[coordinated_by(2)] * 4)
        second.script(apis.DESCRIBE_TRANSACTIONS, transaction("Ongoing", 0))
        busy = InitProducerIdResponse(error_code=ConcurrentTransactions.code)
        second.script(apis.INIT_PRODUCER_ID, busy, busy, InitProducerIdResponse(producer_id=7, producer_epoch=4))
        assert (await admin.abort("tx")).state == "Ongoing"
        requested: list[InitProducerIdRequest] = requests(second, apis.INIT_PRODUCER_ID)
        assert len(requested) == 3
        assert {(one.transactional_id, one.transaction_timeout_ms, one.producer_id) for one in requested} == {
            ("tx", 1234, -1)
        }

    play(scene)


def test_aborting_an_unknown_id_does_not_create_it() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        first.script(apis.FIND_COORDINATOR, coordinated_by(2))
        second.script(apis.DESCRIBE_TRANSACTIONS, transaction(error_code=TransactionalIdNotFound.code))
        with pytest.raises(TransactionalIdNotFound):
            await admin.abort("tx")
        assert second.count(apis.INIT_PRODUCER_ID) == 0

    play(scene)


def test_open_transactions_are_read_from_the_leaders_without_idle_producers() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        first.script(apis.DESCRIBE_PRODUCERS, open_at(12))
        second.script(
            apis.DESCRIBE_PRODUCERS, open_at(5, partition=1, error_code=NotLeader.code), open_at(-1, partition=1)
        )
        (found,) = await admin.find_open([TopicPartition("orders", 1), ORDERS])
        assert (found.target, found.start_offset, found.producer_id) == (ORDERS, 12, 7)
        assert first.count(apis.DESCRIBE_PRODUCERS) == 1

    play(scene)


@pytest.mark.parametrize(
    ("names", "state", "partitions", "hangs"),
    [
        ((), "", (), True),  # the coordinator does not know the producer
        (("tx",), "Ongoing", (0,), False),
        (("tx",), "PrepareAbort", (0, 1), False),
        (("tx",), "Ongoing", (1,), True),  # it is open, but not in this partition
        (("tx",), "CompleteCommit", (), True),
    ],
)
def test_a_transaction_hangs_unless_its_coordinator_lists_the_partition(
    names: tuple[str, ...], state: str, partitions: tuple[int, ...], hangs: bool
) -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        first.script(apis.DESCRIBE_PRODUCERS, open_at(12))
        first.script(apis.LIST_TRANSACTIONS, listing(*names), listing(*names))
        second.script(apis.LIST_TRANSACTIONS, listing(), listing())
        first.script(apis.FIND_COORDINATOR, *[coordinated_by(2)] * 2)
        second.script(apis.DESCRIBE_TRANSACTIONS, *[transaction(state, *partitions)] * 2)
        first.script(apis.WRITE_TXN_MARKERS, markers_written())
        found = await admin.find_hanging([ORDERS], HOUR_MS)
        assert [one.start_offset for one in found] == ([12] if hangs else [])
        if hangs:
            await admin.end_hanging(found[0])
        assert first.count(apis.WRITE_TXN_MARKERS) == hangs

    play(scene)


def test_a_transaction_that_was_written_to_recently_does_not_count_as_hanging() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        written_ms = first.cast.world.clock.now_ms() - HOUR_MS + 60_000
        first.script(apis.DESCRIBE_PRODUCERS, open_at(12, written_ms=written_ms))
        assert await admin.find_hanging([ORDERS], HOUR_MS) == []
        assert second.count(apis.LIST_TRANSACTIONS) == 0

    play(scene)


def test_a_hanging_transaction_is_ended_by_an_abort_marker_in_its_partition() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        first.script(apis.DESCRIBE_PRODUCERS, open_at(12))
        (hanging,) = await admin.find_open([ORDERS])
        for broker in (first, second):
            broker.script(apis.LIST_TRANSACTIONS, listing())
        first.script(apis.WRITE_TXN_MARKERS, markers_written(NotLeader.code), markers_written())
        await admin.end_hanging(hanging)
        request: WriteTxnMarkersRequest = requests(first, apis.WRITE_TXN_MARKERS)[-1]
        (marker,) = request.markers
        assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, 3, False)
        assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("orders", [0])]
        assert marker.coordinator_epoch == 0

    play(scene)


def test_a_transaction_known_to_its_coordinator_gets_no_manual_marker() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        first.script(apis.DESCRIBE_PRODUCERS, open_at(12))
        (open_one,) = await admin.find_open([ORDERS])
        first.script(apis.LIST_TRANSACTIONS, listing("tx"))
        second.script(apis.LIST_TRANSACTIONS, listing())
        first.script(apis.FIND_COORDINATOR, coordinated_by(2))
        second.script(apis.DESCRIBE_TRANSACTIONS, transaction("Ongoing", 0))
        with pytest.raises(InvalidTransactionState, match="'tx'"):
            await admin.end_hanging(open_one)
        assert first.count(apis.WRITE_TXN_MARKERS) == 0

    play(scene)


def test_a_rejected_marker_is_an_error() -> None:
    async def scene(admin: TransactionAdmin, first: ScriptedBroker, second: ScriptedBroker) -> None:
        first.script(apis.DESCRIBE_PRODUCERS, open_at(12))
        (hanging,) = await admin.find_open([ORDERS])
        for broker in (first, second):
            broker.script(apis.LIST_TRANSACTIONS, listing())
        first.script(apis.WRITE_TXN_MARKERS, markers_written(ProducerFenced.code))
        with pytest.raises(ProducerFenced):
            await admin.end_hanging(hanging)

    play(scene)
