"""A message whose dedup id is in the window is stored once, across producers, batches and leaders."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
from tests.unit.broker.broker_requests import (
    fetch_request,
    fetched_partitions,
    offsets_and_values,
    only_response,
    produce_request,
    send,
)
from tests.unit.broker.simulated_broker import FakeConnection, SimulatedBroker
from tests.unit.broker.simulated_cluster import SimulatedCluster, in_simulated_cluster

from headrace.model.configs import AlterOperation
from headrace.model.errors import InvalidRecord, NotEnoughReplicas, OutOfOrderSequence
from headrace.model.message_headers import DEDUP_DIGEST, DEDUP_ID
from headrace.wire.batches.batch import TRANSACTIONAL, BatchRecord, build_batch
from headrace.wire.batches.compression import NONE, ZSTD
from headrace.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

MINUTE_MS = 60_000
WINDOW = str(5 * MINUTE_MS)


def marked(simulated_broker: SimulatedBroker, *messages: bytes, **options: int) -> bytearray:
    """Each message is its id and its value, with a colon between them; without one it has no id."""
    records = []
    for message in messages:
        dedup_id, colon, value = message.rpartition(b":")
        headers = [(DEDUP_ID, dedup_id)] if colon else []
        records.append(BatchRecord(None, value, headers, simulated_broker.host.clock.now_ms()))
    return build_batch(records, **options)


def bound(simulated_broker: SimulatedBroker, dedup_id: bytes, value: bytes, digest: bytes) -> bytearray:
    """With a digest of its content, as REST sends it."""
    headers = [(DEDUP_ID, dedup_id), (DEDUP_DIGEST, digest)]
    return build_batch([BatchRecord(None, value, headers, simulated_broker.host.clock.now_ms())])


def numbered(simulated_broker: SimulatedBroker, sequence: int, *messages: bytes, **options: int) -> bytearray:
    return marked(simulated_broker, *messages, producer_id=7, producer_epoch=0, base_sequence=sequence, **options)


async def put(simulated_broker: SimulatedBroker, data: bytearray, **options: Any) -> int:
    response = await send(simulated_broker, "t", data, **options)
    assert response.error_code == 0, response
    return response.base_offset


async def stored(simulated_broker: SimulatedBroker, topic: str = "t") -> list[tuple[int, bytes]]:
    response = await simulated_broker.send(fetch_request({(topic, 0): 0}), 11)
    return offsets_and_values(fetched_partitions(response)[topic, 0].records)


async def until_read(simulated_broker: SimulatedBroker) -> None:
    """Until all ids of the logs are known."""
    while not all(led.is_loaded for led in simulated_broker.broker.dedup._shards.values()):
        await simulated_broker.pass_time(0.01)


async def test_a_duplicate_gets_the_offset_of_the_first_message(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    assert await put(simulated_broker, marked(simulated_broker, b"x:first")) == 0
    assert await put(simulated_broker, marked(simulated_broker, b"y:other")) == 1
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 0
    assert await stored(simulated_broker) == [(0, b"first"), (1, b"other")]


async def test_an_id_that_is_bound_to_its_content_is_rejected_with_another_also_after_a_restart(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    await put(simulated_broker, bound(simulated_broker, b"x", b"one", b"d1"))
    for _ in range(2):
        assert await put(simulated_broker, bound(simulated_broker, b"x", b"one", b"d1")) == 0
        rejected = await send(simulated_broker, "t", bound(simulated_broker, b"x", b"two", b"d2"))
        assert (rejected.error_code, [one.batch_index for one in rejected.record_errors]) == (InvalidRecord.code, [0])
        assert await put(simulated_broker, marked(simulated_broker, b"x:without a digest")) == 0
        await simulated_broker.restart()
        await until_read(simulated_broker)
    assert await stored(simulated_broker) == [(0, b"one")]


async def test_messages_without_an_id_are_all_stored(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    for _ in range(2):
        await put(simulated_broker, marked(simulated_broker, b"same", b"same"))
    assert len(await stored(simulated_broker)) == 4


async def test_a_topic_without_a_window_stores_everything(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    assert [await put(simulated_broker, marked(simulated_broker, b"x:a")) for _ in range(2)] == [0, 1]


async def test_an_id_can_be_used_again_after_the_window(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms="1000")
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    await simulated_broker.pass_time(0.9)
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 0
    await simulated_broker.pass_time(0.2)
    assert await put(simulated_broker, marked(simulated_broker, b"x:late")) == 1


@pytest.mark.parametrize("compression", [NONE, ZSTD])
async def test_a_batch_loses_its_duplicates_and_keeps_its_offsets(
    simulated_broker: SimulatedBroker, compression: int
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    data = marked(simulated_broker, b"x:no", b"y:yes", b"plain", b"y:no", b"z:yes", compression=compression)
    assert await put(simulated_broker, data) == 1
    assert await stored(simulated_broker) == [(0, b"first"), (2, b"yes"), (3, b"plain"), (5, b"yes")]
    assert simulated_broker.partition("t").log.end_offset == 6


async def test_duplicates_are_removed_from_a_large_compressed_batch_too(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    await put(simulated_broker, marked(simulated_broker, b"id-7:first"))
    noise = [hashlib.sha512(b"%d" % at).hexdigest().encode() for at in range(100)]
    data = marked(simulated_broker, *(b"id-%d:" % at + one for at, one in enumerate(noise)), compression=ZSTD)
    assert len(data) > 4096
    await put(simulated_broker, data)
    assert len(await stored(simulated_broker)) == 100


async def test_a_large_batch_is_decoded_in_a_worker_thread_and_keeps_its_order(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    noise = [b"id-%d:" % at + b"x" * 1000 for at in range(100)]
    connection = FakeConnection()
    assert await put(simulated_broker, marked(simulated_broker, *noise, *noise[:10]), connection=connection) == 0
    assert connection.holds == [True, False]
    assert len(await stored(simulated_broker)) == 100


async def test_the_sequence_of_a_producer_continues_after_duplicates(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    await put(simulated_broker, marked(simulated_broker, b"x:first", b"y:first"))
    assert await put(simulated_broker, numbered(simulated_broker, 0, b"y:no")) == 1
    assert await put(simulated_broker, numbered(simulated_broker, 1, b"x:no", b"z:yes", b"y:no")) == 3
    assert await put(simulated_broker, numbered(simulated_broker, 4, b"w:yes")) == 6
    assert await stored(simulated_broker) == [(0, b"first"), (1, b"first"), (4, b"yes"), (6, b"yes")]


@pytest.mark.parametrize("clean", [True, False])
async def test_the_sequence_continues_after_every_kind_of_restart(
    simulated_broker: SimulatedBroker, clean: bool
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    await put(simulated_broker, numbered(simulated_broker, 0, b"x:no", b"y:yes"))
    await put(simulated_broker, numbered(simulated_broker, 2, b"x:no", b"y:no", b"x:no"))
    if clean:
        await simulated_broker.close()
    else:
        simulated_broker.kill(keep_page_cache=False)
    await simulated_broker.open()
    await until_read(simulated_broker)
    assert await put(simulated_broker, numbered(simulated_broker, 5, b"z:yes")) == 6
    assert await stored(simulated_broker) == [(0, b"first"), (2, b"yes"), (6, b"yes")]


async def test_a_retried_batch_gets_the_same_response(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    batches = {0: [b"a:1", b"b:2"], 2: [b"x:no", b"c:3"], 4: [b"x:no", b"x:no"], 6: [b"plain"]}
    responses = [
        await put(simulated_broker, numbered(simulated_broker, sequence, *one)) for sequence, one in batches.items()
    ]
    again = [
        await put(simulated_broker, numbered(simulated_broker, sequence, *one)) for sequence, one in batches.items()
    ]
    assert again == responses == [1, 3, 0, 7]
    assert [value for _, value in await stored(simulated_broker)] == [b"first", b"1", b"2", b"3", b"plain"]


async def test_a_sequence_gap_is_rejected_even_for_duplicates(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    await put(simulated_broker, numbered(simulated_broker, 0, b"x:first"))
    response = await send(simulated_broker, "t", numbered(simulated_broker, 5, b"x:no"))
    assert response.error_code == OutOfOrderSequence.code


@pytest.mark.parametrize("keep_page_cache", [True, False])
async def test_ids_are_known_after_a_crash(simulated_broker: SimulatedBroker, keep_page_cache: bool) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    for at in range(20):
        await put(simulated_broker, marked(simulated_broker, b"id-%d:first" % at, b"plain"))
    simulated_broker.kill(keep_page_cache=keep_page_cache)
    await simulated_broker.open()
    await until_read(simulated_broker)
    assert [await put(simulated_broker, marked(simulated_broker, b"id-%d:again" % at)) for at in range(20)] == list(
        range(0, 40, 2)
    )
    assert len(await stored(simulated_broker)) == 40


async def test_producers_get_a_retriable_error_until_the_ids_are_loaded(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    dedup = simulated_broker.broker.dedup
    tasks, dedup._tasks = dedup._tasks, None
    dedup.begin(simulated_broker.partition("t"))
    response = await send(simulated_broker, "t", marked(simulated_broker, b"x:again"))
    assert (response.error_code, response.error_message) == (
        NotEnoughReplicas.code,
        "t-0 is still loading its deduplication window; retry",
    )
    assert await put(simulated_broker, marked(simulated_broker, b"plain")) == 1
    dedup._tasks = tasks
    dedup.begin(simulated_broker.partition("t"))
    await until_read(simulated_broker)
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 0


async def test_a_window_can_be_added_and_removed_at_any_time(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    await set_window(simulated_broker, WINDOW)
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 0
    await set_window(simulated_broker, "0")
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 1
    assert len(simulated_broker.broker.dedup._shards) == 0


async def test_a_shorter_window_applies_at_once_and_a_longer_one_loads_old_ids(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms="60000")
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    await simulated_broker.pass_time(2)
    await set_window(simulated_broker, "1000")
    await simulated_broker.pass_time(2)
    await set_window(simulated_broker, "60000")
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 0
    await simulated_broker.pass_time(2)
    await set_window(simulated_broker, "1000")
    assert await put(simulated_broker, marked(simulated_broker, b"x:again")) == 1


async def test_dedup_ids_in_a_transaction_are_rejected(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    data = numbered(simulated_broker, 0, b"plain", b"x:first", attributes=TRANSACTIONAL)
    request = produce_request({("t", 0): data})
    request.transactional_id = "some"
    response = (await simulated_broker.send(request, 9)).responses[0].partition_responses[0]
    assert response.error_code == InvalidRecord.code
    assert [one.batch_index for one in response.record_errors] == [1]
    assert "cannot have the header headrace-dedup-id" in response.error_message


async def test_expired_ids_are_removed_without_requests(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms="1000")
    await put(simulated_broker, marked(simulated_broker, b"x:first"))
    (led,) = simulated_broker.broker.dedup._shards.values()
    assert len(led.window) == 1
    await simulated_broker.pass_time(3)
    assert len(led.window) == 0


async def test_a_duplicate_waits_until_the_first_message_is_committed(
    simulated_broker: SimulatedBroker,
) -> None:
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    first = simulated_broker.begin_send(produce_request({("t", 0): marked(simulated_broker, b"x:first")}), 9)
    again = simulated_broker.begin_send(produce_request({("t", 0): marked(simulated_broker, b"x:again")}), 9)
    await simulated_broker.run_ready_tasks()
    assert not first.done()
    assert not again.done()
    await again
    assert simulated_broker.partition("t").high_watermark == 1


@pytest.mark.parametrize("seed", range(12))
async def test_each_id_is_stored_once_under_crashes(simulated_broker: SimulatedBroker, seed: int) -> None:
    """Producers retry messages without a response in other batches, some with a sequence; the broker crashes often."""
    chance = random.Random(seed)
    await simulated_broker.create_topic("t", dedup_window_ms=WINDOW)
    unanswered = {b"%d" % number for number in range(60)}
    producer_id = 100
    sequence = 0
    while unanswered:
        ids = chance.sample(sorted(unanswered), min(len(unanswered), chance.randint(1, 8)))
        ids += chance.choices(ids, k=chance.randint(0, 3))
        messages = [one + b":" + one for one in ids]
        if chance.random() < 0.5:
            data = marked(simulated_broker, *messages)
        else:
            data = marked(
                simulated_broker, *messages, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
            )
            sequence += len(ids)
        pending = simulated_broker.begin_send(produce_request({("t", 0): data}), 9)
        if chance.random() < 0.4:
            for _ in range(chance.randint(0, 12)):
                await simulated_broker.run_ready_tasks(1)
            simulated_broker.kill(keep_page_cache=chance.random() < 0.5)
            is_answered = pending.done() and not pending.cancelled() and only_response(pending.result()).error_code == 0
            await simulated_broker.open()
            await until_read(simulated_broker)
            producer_id, sequence = producer_id + 1, 0
        else:
            assert only_response(await pending).error_code == 0
            is_answered = True
        if is_answered:
            unanswered -= set(ids)
    values = [value for _, value in await stored(simulated_broker)]
    assert sorted(values, key=int) == [b"%d" % number for number in range(60)]


async def set_window(simulated_broker: SimulatedBroker, value: str) -> None:
    change = IncrementalAlterableConfig(name="dedup.window.ms", config_operation=AlterOperation.SET, value=value)
    resource = IncrementalAlterConfigsResource(resource_type=2, resource_name="t", configs=[change])
    response = await simulated_broker.send(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert response.responses[0].error_code == 0
    await until_read(simulated_broker)


@in_simulated_cluster()
async def test_the_next_leader_knows_the_ids_and_the_sequences(simulated_cluster: SimulatedCluster) -> None:
    await simulated_cluster.create_topic("t", dedup_window_ms=WINDOW)
    await simulated_cluster.wait_until_in_sync("t")
    leader = simulated_cluster.leader("t")
    await put(leader, marked(leader, b"x:first"))
    await put(leader, numbered(leader, 0, b"x:no", b"y:yes"))
    await put(leader, numbered(leader, 2, b"x:no"))
    follower = next(simulated_broker for simulated_broker in simulated_cluster.up if simulated_broker is not leader)
    leader = await simulated_cluster.move_leadership("t", follower.node_id)
    await simulated_cluster.wait_until(lambda: leader.broker.dedup._shards[leader.partition("t")].is_loaded)
    assert await put(leader, marked(leader, b"y:again")) == 2
    assert await put(leader, numbered(leader, 3, b"x:no")) == 0
    assert await put(leader, numbered(leader, 4, b"z:yes")) == 5
    assert await stored(leader) == [(0, b"first"), (2, b"yes"), (5, b"yes")]
    await simulated_cluster.wait_until_identical("t")
