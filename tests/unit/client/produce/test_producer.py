"""Records are written once and in order, or their delivery raises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.client.scripted_cluster import Fault, ScriptedCluster, in_world

from headrace.client.cluster import ClientSettings
from headrace.client.errors import DeliveryTimedOut, ProducerClosed, TopicAuthorizationFailed
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer, ProducerSettings, Receipt
from headrace.client.produce.sender import Sender
from headrace.model.errors import (
    HeadraceError,
    InvalidRecord,
    MessageTooLarge,
    NotLeader,
    OutOfOrderSequence,
    UnknownProducerId,
    UnknownTopicOrPartition,
)
from headrace.testkit.world import World
from headrace.wire import apis
from headrace.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from headrace.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

ORDERS = TopicPartition("orders", 0)


def rejected(code: int, partition: int = 0, message: str | None = None) -> ProduceResponse:
    result = PartitionProduceResponse(index=partition, error_code=code, base_offset=-1, error_message=message)
    return ProduceResponse(responses=[TopicProduceResponse(name="orders", partition_responses=[result])])


def test_a_published_record_is_acknowledged_with_its_partition_and_offset() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            assert await producer.publish("orders", b"a") == Receipt("orders", 0, 0)
            assert await producer.publish("orders", b"b", key=b"k", headers=[("h", b"v")]) == Receipt("orders", 0, 1)
        last = scripted_cluster.records("orders")[-1]
        assert (last.key, last.value, list(last.headers)) == (b"k", b"b", [("h", b"v")])

    in_world(scenario)


def test_records_submitted_together_travel_in_one_batch() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            deliveries = [await producer.submit("orders", b"%d" % number) for number in range(100)]
            assert [(await delivery).offset for delivery in deliveries] == list(range(100))
        assert broker.count(apis.PRODUCE) == 1

    in_world(scenario)


def test_a_batch_lingers_for_more_records_unless_it_is_full_or_flushed() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        rules = ProducerSettings(linger_seconds=5.0, batch_bytes_max=1000)
        async with scripted_cluster.cluster() as cluster, Producer(cluster, rules) as producer:
            await producer.submit("orders", b"first")
            await asyncio.sleep(4)
            assert broker.count(apis.PRODUCE) == 0
            await producer.submit("orders", b"second")
            await asyncio.sleep(2)
            assert scripted_cluster.values("orders") == [b"first", b"second"]
            await producer.submit("orders", b"x" * 900)
            await producer.submit("orders", b"y" * 900)
            await asyncio.sleep(1)
            assert len(scripted_cluster.values("orders")) == 3
            await producer.flush()
            assert len(scripted_cluster.values("orders")) == 4
        assert broker.count(apis.PRODUCE) == 3

    in_world(scenario)


def test_an_error_that_passes_is_waited_out_and_order_is_kept() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.PRODUCE, rejected(NotLeader.code), rejected(NotLeader.code))
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            for number in range(10):
                await producer.submit("orders", b"%d" % number)
                await asyncio.sleep(0.01)
        assert scripted_cluster.values("orders") == [b"%d" % number for number in range(10)]

    in_world(scenario)


def test_a_new_leader_is_found_and_written_to() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker(1)
        second = await scripted_cluster.broker(2)
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            await producer.publish("orders", b"a")
            scripted_cluster.leaders[ORDERS], scripted_cluster.epochs[ORDERS] = 2, 1
            assert (await producer.publish("orders", b"b")).offset == 1
        assert second.count(apis.PRODUCE) == 1

    in_world(scenario)


def test_a_batch_whose_response_was_lost_is_retried_and_written_once() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.PRODUCE, Fault.DONE_THEN_CLOSE)
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            assert (await producer.publish("orders", b"a")).offset == 0
        assert scripted_cluster.values("orders") == [b"a"]
        assert broker.count(apis.PRODUCE) == 2

    in_world(scenario)


@pytest.mark.parametrize("error", [OutOfOrderSequence, UnknownProducerId])
def test_a_broker_that_lost_the_producers_state_is_met_with_a_new_identity(error: type[HeadraceError]) -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            await producer.publish("orders", b"a")
            broker.script(apis.PRODUCE, rejected(error.code))
            assert (await producer.publish("orders", b"b")).offset == 1
            assert (await producer.publish("orders", b"c")).offset == 2
        assert broker.count(apis.INIT_PRODUCER_ID) == 2

    in_world(scenario)


def test_a_batch_in_doubt_is_never_sent_under_a_new_identity() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.PRODUCE, Fault.DONE_THEN_CLOSE, rejected(OutOfOrderSequence.code))
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            with pytest.raises(OutOfOrderSequence):
                await producer.publish("orders", b"a")
            assert (await producer.publish("orders", b"b")).offset == 1
        assert scripted_cluster.values("orders") == [b"a", b"b"]

    in_world(scenario)


@pytest.mark.parametrize("response", [Fault.CLOSE, NotLeader], ids=["lost", "retriable"])
def test_the_sequence_of_a_batch_in_doubt_is_not_used_again_when_the_next_look_up_fails(response: Any) -> None:
    """The next record would count as a duplicate of the first: acknowledged and never stored."""

    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()

        def append(request: ProduceRequest) -> Any:
            broker._produce(request)
            broker.script(apis.METADATA, deny)
            return response if response is Fault.CLOSE else rejected(response.code)

        def deny(request: MetadataRequest) -> MetadataResponse:
            metadata = broker._metadata(request)
            metadata.topics = [MetadataResponseTopic(name="orders", error_code=TopicAuthorizationFailed.code)]
            return metadata

        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            broker.script(apis.PRODUCE, append)
            with pytest.raises(TopicAuthorizationFailed):
                await producer.publish("orders", b"a")
            assert (await producer.publish("orders", b"b")).offset == 1
        assert scripted_cluster.values("orders") == [b"a", b"b"]

    in_world(scenario)


@pytest.mark.parametrize("response", [ProduceResponse(), rejected(-1)], ids=["left out", "unknown error"])
def test_the_sequence_of_a_batch_is_not_used_again_after_an_error_that_is_no_verdict(response: ProduceResponse) -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()

        def append(request: ProduceRequest) -> ProduceResponse:
            broker._produce(request)
            return response

        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            broker.script(apis.PRODUCE, append)
            with pytest.raises(HeadraceError):
                await producer.publish("orders", b"a")
            assert (await producer.publish("orders", b"b")).offset == 1
        assert scripted_cluster.values("orders") == [b"a", b"b"]

    in_world(scenario)


def test_the_sequence_of_a_batch_in_doubt_is_not_used_again_after_its_delivery_timed_out() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        is_silent = True

        def append_in_silence(request: ProduceRequest) -> Any:
            response = broker._produce(request)
            if is_silent:
                broker.script(apis.PRODUCE, append_in_silence)
            return Fault.CLOSE if is_silent else response

        rules = ProducerSettings(delivery_timeout_seconds=5.0)
        async with scripted_cluster.cluster() as cluster, Producer(cluster, rules) as producer:
            broker.script(apis.PRODUCE, append_in_silence)
            with pytest.raises(DeliveryTimedOut):
                await producer.publish("orders", b"a")
            is_silent = False
            assert (await producer.publish("orders", b"b")).offset == 1
        assert scripted_cluster.values("orders") == [b"a", b"b"]

    in_world(scenario)


def test_a_rejected_record_raises_and_the_next_one_takes_its_sequence() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            broker.script(apis.PRODUCE, rejected(InvalidRecord.code, message="a key is needed"))
            with pytest.raises(InvalidRecord, match="a key is needed"):
                await producer.publish("orders", b"a")
            assert (await producer.publish("orders", b"b")).offset == 0
        assert broker.count(apis.INIT_PRODUCER_ID) == 1

    in_world(scenario)


def test_a_batch_that_is_too_large_is_halved_until_it_fits() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.PRODUCE, rejected(MessageTooLarge.code), rejected(MessageTooLarge.code))
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            deliveries = [await producer.submit("orders", b"%d" % number) for number in range(9)]
            assert [(await delivery).offset for delivery in deliveries] == list(range(9))
        assert scripted_cluster.values("orders") == [b"%d" % number for number in range(9)]

    in_world(scenario)


def test_a_single_record_that_is_too_large_raises() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            broker.script(apis.PRODUCE, rejected(MessageTooLarge.code))
            with pytest.raises(MessageTooLarge):
                await producer.publish("orders", b"x" * 1000)
            with pytest.raises(MessageTooLarge, match=r"more than this client sends at once \(67108864\)"):
                await producer.publish("orders", bytes(64 << 20))

    in_world(scenario)


def test_delivery_times_out_and_later_records_are_written() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        rules = ProducerSettings(delivery_timeout_seconds=10.0)
        patience = ClientSettings(request_timeout_seconds=3.0)
        async with scripted_cluster.cluster(patience) as cluster, Producer(cluster, rules) as producer:
            broker.script(apis.PRODUCE, *[Fault.SILENCE] * 6)
            began = world.clock.monotonic()
            with pytest.raises(DeliveryTimedOut, match=r"within 10 s: .* within 3"):
                await producer.publish("orders", b"lost")
            assert world.clock.monotonic() - began < 15.0
            broker._scripts[apis.PRODUCE].clear()
            await producer.publish("orders", b"kept")
        assert scripted_cluster.values("orders") == [b"kept"]

    in_world(scenario)


def test_flush_raises_a_failure_that_was_not_awaited() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            broker.script(apis.PRODUCE, rejected(InvalidRecord.code))
            await producer.submit("orders", b"a")
            with pytest.raises(InvalidRecord):
                await producer.flush()
            await producer.flush()

    in_world(scenario)


def test_memory_is_bounded_by_waiting() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        broker.script(apis.PRODUCE, rejected(NotLeader.code), rejected(NotLeader.code))
        rules = ProducerSettings(buffer_bytes_max=3000, record_bytes_max=2000, batch_bytes_max=1100)
        async with scripted_cluster.cluster() as cluster, Producer(cluster, rules) as producer:
            for number in range(20):
                await producer.submit("orders", b"%d" % number + b"x" * 1000)
                assert producer._buffered_bytes <= 3000
        assert [value[:-1000] for value in scripted_cluster.values("orders") if value] == [b"%d" % n for n in range(20)]
        assert producer._buffered_bytes == 0

    in_world(scenario)


def test_without_acks_nothing_is_awaited() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        broker = await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            async with Producer(cluster, ProducerSettings(acks=0)) as producer:
                assert (await producer.publish("orders", b"a")).offset == -1
            await cluster.refresh()
        assert scripted_cluster.values("orders") == [b"a"]
        assert broker.count(apis.INIT_PRODUCER_ID) == 0

    in_world(scenario)


def test_keys_are_partitioned_as_by_kafkas_clients_and_a_chosen_partition_is_kept() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=7)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            assert (await producer.publish("orders", b"", key=b"21")).partition == 3
            assert (await producer.publish("orders", b"", key=b"21", partition=6)).partition == 6
            with pytest.raises(UnknownTopicOrPartition, match="0 to 6, not 7"):
                await producer.publish("orders", b"", partition=7)

    in_world(scenario)


def test_records_without_a_key_spread_over_all_partitions() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=4)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            receipts = [await producer.publish("orders", b"x") for _ in range(60)]
        assert {receipt.partition for receipt in receipts} == {0, 1, 2, 3}

    in_world(scenario)


def test_a_topic_that_does_not_appear_raises_after_a_while() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            with pytest.raises(UnknownTopicOrPartition):
                await producer.publish("nope", b"x")

    in_world(scenario)


def test_closing_without_a_flush_fails_waiting_records() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            producer = await Producer(cluster, ProducerSettings(linger_seconds=60.0)).__aenter__()
            delivery = await producer.submit("orders", b"x")
            await producer.close(flush=False)
            with pytest.raises(ProducerClosed):
                await delivery
            with pytest.raises(ProducerClosed):
                await producer.submit("orders", b"y")

    in_world(scenario)


def test_invalid_settings_are_rejected_at_once() -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world)
        await scripted_cluster.broker()
        async with scripted_cluster.cluster() as cluster:
            with pytest.raises(ValueError, match="gzip"):
                Producer(cluster, ProducerSettings(compression="rar"))
            with pytest.raises(ValueError, match="buffer_bytes_max"):
                Producer(cluster, ProducerSettings(buffer_bytes_max=10))

    in_world(scenario)


def test_a_bug_in_the_background_ends_the_wait_for_an_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=1)
        await scripted_cluster.broker()
        monkeypatch.setattr(Sender, "_request", broken)
        async with scripted_cluster.cluster() as cluster, Producer(cluster) as producer:
            with pytest.raises(ZeroDivisionError):
                await producer.publish("orders", b"x")

    in_world(scenario)


FAULTS = st.sampled_from(
    [Fault.CLOSE, Fault.DONE_THEN_CLOSE, Fault.SILENCE, "not leader", "too large", None, None, None]
)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 1 << 32),
    faults=st.lists(FAULTS, max_size=25),
    pauses=st.lists(st.integers(0, 300), max_size=40),
)
def test_every_record_is_written_once_and_in_order_under_faults(
    seed: int, faults: list[Fault | str | None], pauses: list[int]
) -> None:
    async def scenario(world: World) -> None:
        scripted_cluster = ScriptedCluster(world, orders=2)
        broker = await scripted_cluster.broker()

        def fault(kind: Fault | str | None) -> object:
            if isinstance(kind, Fault):
                return kind
            if kind is None:
                return broker._behave
            code = NotLeader.code if kind == "not leader" else MessageTooLarge.code
            return lambda request: _refuse_all(request, code)

        broker.script(apis.PRODUCE, *map(fault, faults))
        client = ClientSettings(request_timeout_seconds=2.0)
        rules = ProducerSettings(batch_bytes_max=400, delivery_timeout_seconds=3600.0)
        async with scripted_cluster.cluster(client) as cluster, Producer(cluster, rules) as producer:
            sent: dict[int, list[bytes]] = {0: [], 1: []}
            for number in range(60):
                await producer.submit("orders", b"%d" % number, partition=number % 2)
                sent[number % 2].append(b"%d" % number)
                if number < len(pauses):
                    await asyncio.sleep(pauses[number] / 1000)
            await _flush_despite_single_refusals(producer)
        for partition in (0, 1):
            written = scripted_cluster.values("orders", partition)
            refused_singly = [value for value in sent[partition] if value not in written]
            assert written == [value for value in sent[partition] if value not in refused_singly]
            assert "too large" in faults or not refused_singly

    in_world(scenario, seed)


async def _flush_despite_single_refusals(producer: Producer) -> None:
    while True:
        try:
            await producer.flush()
        except MessageTooLarge:
            continue
        return


def _refuse_all(request: ProduceRequest, code: int) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
