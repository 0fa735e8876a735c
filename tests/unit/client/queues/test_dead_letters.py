"""Dead letters are redriven or discarded once, also after interruptions; those that were redriven too often stay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from tests.unit.client.scripted_cluster import in_world
from tests.unit.client.simulated_server import client, start_broker

from headrace.broker.broker import Broker
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.errors import ConnectionLost
from headrace.client.fetch.consumer import Consumer
from headrace.client.fetch.fetched_records import ConsumedRecord
from headrace.client.groups.offsets import END, find_offsets
from headrace.client.metadata import TopicPartition
from headrace.client.produce.producer import Producer
from headrace.client.queues.dead_letters import DeadLetterQueue, DeadLetterSelection
from headrace.client.queues.redrive import (
    DeadLetter,
    PublishingRedriver,
    RedriveOptions,
    RedriveResult,
    redriven_headers,
)
from headrace.machines.queues.filters import compile_filter
from headrace.model.errors import (
    HeadraceError,
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from headrace.model.ids import MessageId
from headrace.model.message_headers import (
    DEDUP_ID,
    REDRIVEN,
    DeadLetterOrigin,
    header_text,
    header_value,
    with_dead_letter_headers,
)
from headrace.runtime.clock import SystemClock
from headrace.testkit.world import World
from headrace.wire.messages.queues import LeaseOffsetsRequest

ALL = DeadLetterSelection()
COPIES = RedriveOptions(to_all=True)


async def die(broker: Broker, cluster: Cluster, *values: bytes, attempts: int = 5) -> None:
    """Write messages and bury them, as a subscription does."""
    async with Producer(cluster) as producer:
        for value in values:
            headers = [("type", value[:1])]
            receipt = await producer.publish("orders", value, key=b"k", headers=headers, partition=0)
            await broker.dead_letters.dead_letter("orders", 0, receipt.offset, "workers", attempts, "boom")


async def stored(cluster: Cluster, topic: str = "orders") -> list[ConsumedRecord]:
    view = await TopicAdmin(cluster).describe(topic)
    targets = [TopicPartition(topic, partition.partition) for partition in view.partitions]
    ends = await find_offsets(cluster, dict.fromkeys(targets, END))
    records: list[ConsumedRecord] = []
    async with Consumer(cluster, partitions=dict.fromkeys(targets, 0)) as consumer:
        while any(consumer.position(target) < ends[target].offset for target in targets):
            records += await consumer.poll(100, 0.1)
    return records


async def values(cluster: Cluster, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in await stored(cluster, topic)]


def with_dead(scenario: Callable[[Broker, Cluster, DeadLetterQueue], Awaitable[None]], *dead: bytes) -> None:
    """The scenario runs against a broker with these dead letters of the topic orders."""

    async def run(world: World) -> None:
        broker = await start_broker(world)
        async with client(world) as cluster:
            await TopicAdmin(cluster).create(NewTopic("orders", 2))
            await die(broker, cluster, *dead)
            await scenario(broker, cluster, DeadLetterQueue(cluster, "orders"))

    in_world(run)


def test_dead_letters_are_listed_with_their_past() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        found = [one async for one in queue.letters()]
        assert [state for _, state in found] == ["ready", "ready"]
        letters = [letter for letter, _ in found]
        assert [letter.record.value for letter in letters] == [b"a", b"b"]
        death = letters[1].death
        assert death is not None
        assert (death.reason, death.attempts, death.subscription) == ("boom", 5, "workers")
        assert str(letters[1].id) == "orders.dlq:0:1"
        assert DeadLetterQueue(cluster, "orders.dlq").name == queue.name

    with_dead(scenario, b"a", b"b")


def test_dead_letters_in_a_partition_that_was_added_through_another_client_are_found() -> None:
    async def scenario(world: World) -> None:
        await start_broker(world)
        async with client(world) as cluster, client(world) as other:
            await TopicAdmin(cluster).create(NewTopic("orders", 1))
            await TopicAdmin(cluster).create(NewTopic("orders.dlq", 1))
            queue = DeadLetterQueue(cluster, "orders")
            assert [one async for one in queue.letters()] == []
            await TopicAdmin(other).add_partitions("orders.dlq", 2)
            async with Producer(other) as producer:
                await producer.publish("orders.dlq", b"a", partition=1)
            assert [letter.record.value async for letter, _ in queue.letters()] == [b"a"]

    in_world(scenario)


def test_a_topic_without_dead_letters_gives_an_error() -> None:
    async def scenario(_: Broker, __: Cluster, queue: DeadLetterQueue) -> None:
        with pytest.raises(UnknownTopicOrPartition, match=r"there is no topic 'orders\.dlq'"):
            await queue.redrive(ALL, COPIES)

    with_dead(scenario)


def test_all_are_sent_back_once() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        outcome = await queue.redrive(ALL, COPIES)
        assert outcome == RedriveResult(chosen=3, settled=3)
        again = await queue.redrive(ALL, COPIES)
        assert again == RedriveResult()
        assert await values(cluster) == [b"a", b"b", b"c", b"a", b"b", b"c"]
        sent = (await stored(cluster))[-1]
        assert (sent.partition, sent.key, sent.headers) == (0, b"k", [("type", b"c"), (REDRIVEN, b"1")])

    with_dead(scenario, b"a", b"b", b"c")


def test_a_dead_letter_is_redriven_by_its_id() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        one = DeadLetterSelection(ids=[MessageId("orders.dlq", 0, 1)])
        assert await queue.redrive(one, COPIES) == RedriveResult(chosen=1, settled=1)
        assert await queue.redrive(one, COPIES) == RedriveResult(chosen=1, settled_before=1)
        assert (await values(cluster))[3:] == [b"b"]
        assert [state async for _, state in queue.letters()] == ["ready", "settled", "ready"]
        assert await queue.redrive(ALL, COPIES) == RedriveResult(chosen=3, settled=2, settled_before=1)

    with_dead(scenario, b"a", b"b", b"c")


def test_an_empty_selection_selects_nothing() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        nothing = DeadLetterSelection(ids=[])
        assert await queue.redrive(nothing) == RedriveResult()
        assert await queue.discard(nothing) == RedriveResult()
        assert [letter async for letter in queue.letters(nothing)] == []
        assert [state async for _, state in queue.letters()] == ["ready", "ready"]

    with_dead(scenario, b"a", b"b")


@pytest.mark.parametrize("text", ["orders.dlq:0:7", "orders.dlq:1:0", "orders:0:0"])
def test_an_id_of_no_dead_letter_is_rejected(text: str) -> None:
    async def scenario(_: Broker, __: Cluster, queue: DeadLetterQueue) -> None:
        topic, partition, offset = text.split(":")
        with pytest.raises(InvalidRequest, match=f"there is no dead letter {text}"):
            await queue.redrive(DeadLetterSelection(ids=[MessageId(topic, int(partition), int(offset))]), COPIES)

    with_dead(scenario, b"a")


def test_a_filter_leaves_the_others_untouched() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        wanted = compile_filter("header.type = 'b' and header.headrace-dead-reason like 'bo%'")
        assert await queue.redrive(DeadLetterSelection(wanted=wanted), COPIES) == RedriveResult(chosen=2, settled=2)
        assert (await values(cluster))[4:] == [b"b1", b"b2"]
        assert await queue.count() == 2

    with_dead(scenario, b"a", b"b1", b"c", b"b2")


def test_a_dry_run_changes_nothing() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        assert await queue.redrive(ALL, COPIES, dry_run=True) == RedriveResult(chosen=2, settled=2)
        assert len(await values(cluster)) == 2
        await queue.redrive(DeadLetterSelection(ids=[MessageId("orders.dlq", 0, 1)]), COPIES)
        assert await queue.discard(ALL, dry_run=True) == RedriveResult(chosen=2, settled=1, settled_before=1)
        assert [state async for _, state in queue.letters()] == ["ready", "settled"]

    with_dead(scenario, b"a", b"b")


def test_discarded_letters_are_not_redriven() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        assert await queue.discard(DeadLetterSelection(ids=[MessageId("orders.dlq", 0, 0)])) == RedriveResult(
            chosen=1, settled=1
        )
        assert await queue.redrive(ALL, COPIES) == RedriveResult(chosen=1, settled=1)
        assert await values(cluster) == [b"a", b"b", b"b"]

    with_dead(scenario, b"a", b"b")


def test_letters_can_be_sent_to_another_topic() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        await TopicAdmin(cluster).create(NewTopic("repair", 1))
        await queue.redrive(ALL, RedriveOptions(to="repair"))
        assert await values(cluster, "repair") == [b"a"]
        assert await values(cluster) == [b"a"]
        with pytest.raises(InvalidTopic, match="where they are"):
            await queue.redrive(ALL, RedriveOptions(to="orders.dlq"))

    with_dead(scenario, b"a")


def test_a_letter_that_came_back_too_often_stays() -> None:
    async def scenario(broker: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        for turn in range(2):
            assert await queue.redrive(ALL, RedriveOptions(to_all=True, max_redrives=2)) == RedriveResult(
                chosen=1, settled=1
            )
            await broker.dead_letters.dead_letter("orders", 0, turn + 1, "workers", 5, "boom again")
        outcome = await queue.redrive(ALL, RedriveOptions(to_all=True, max_redrives=2))
        rejected = [(MessageId("orders.dlq", 0, 2), "it came back 2 times already")]
        assert outcome == RedriveResult(chosen=1, refused=rejected)
        assert await queue.count() == 1
        assert await queue.redrive(ALL, RedriveOptions(to_all=True, max_redrives=3)) == RedriveResult(
            chosen=1, settled=1
        )

    with_dead(scenario, b"a")


def test_messages_that_die_during_a_redrive_wait_for_the_next_one() -> None:
    async def scenario(broker: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        redriving = asyncio.create_task(queue.redrive(ALL, RedriveOptions(to_all=True, rate=2)))
        await asyncio.sleep(2)
        await die(broker, cluster, b"new")
        assert await redriving == RedriveResult(chosen=12, settled=12)
        assert await queue.redrive(ALL, COPIES) == RedriveResult(chosen=1, settled=1)

    with_dead(scenario, *(b"%d" % at for at in range(12)))


async def test_letters_that_were_sent_before_a_failure_count_as_sent() -> None:
    class Failing:
        async def submit(self, _topic: str, value: bytes, **_: object) -> Awaitable[None]:
            async def delivery() -> None:
                if value == b"1":
                    raise RequestTimedOut("the broker is gone")
                if value == b"2":
                    raise InvalidRecord("not like this")

            return delivery()

    async def has_window(_topic: str) -> bool:
        return False

    async def ensure_same_source() -> None: ...

    records = [ConsumedRecord("orders.dlq", 0, at, 0, None, b"%d" % at, ()) for at in range(4)]
    sending = PublishingRedriver(
        cast("Producer", Failing()), RedriveOptions(), SystemClock(), has_window, None, ensure_same_source
    )
    done: set[int] = set()
    outcome = RedriveResult()
    with pytest.raises(RequestTimedOut, match="the broker is gone"):
        await sending.send([DeadLetter.of(record) for record in records], done, outcome)
    assert done == {0, 3}
    assert outcome.refused == [(MessageId("orders.dlq", 0, 2), "not like this")]


def test_a_rate_is_kept() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        began = cluster.clock.monotonic()
        result: list[int] = []
        outcome = await queue.redrive(
            ALL, RedriveOptions(to_all=True, rate=2), report_progress=lambda so_far: result.append(so_far.settled)
        )
        assert outcome.settled == result[-1] == 20
        assert 9.4 <= cluster.clock.monotonic() - began < 12
        assert result[0] < 20

    with_dead(scenario, *(b"%d" % at for at in range(20)))


def test_a_missing_target_topic_loses_no_dead_letter() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        for _attempt in range(7):
            with pytest.raises(UnknownTopicOrPartition):
                await queue.redrive(ALL, RedriveOptions(to="missing"))
        assert await queue.redrive(ALL, COPIES) == RedriveResult(chosen=2, settled=2)
        assert await values(cluster) == [b"a", b"b", b"a", b"b"]

    with_dead(scenario, b"a", b"b")


def test_a_dead_letter_rejected_by_its_topic_stays_and_the_others_are_redriven() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        await TopicAdmin(cluster).alter_configs("orders", set_to={"max.message.bytes": "200"})
        outcome = await queue.redrive(ALL, COPIES)
        assert (outcome.chosen, outcome.settled) == (3, 2)
        ((letter_id, why),) = outcome.refused
        assert letter_id.offset == 1
        assert "max.message.bytes" in why
        assert (await values(cluster))[3:] == [b"a", b"c"]

    with_dead(scenario, b"a", b"b" * 1000, b"c")


def test_an_interrupted_redrive_continues_where_it_stopped() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        first = asyncio.create_task(queue.redrive(ALL, RedriveOptions(to_all=True, rate=2)))
        await asyncio.sleep(9)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        sent = len(await values(cluster)) - 30
        assert 0 < sent < 30
        again = await queue.redrive(ALL, COPIES)
        assert again.settled == 30 - sent
        assert sorted(value or b"" for value in (await values(cluster))[30:]) == sorted(b"%d" % at for at in range(30))

    with_dead(scenario, *(b"%d" % at for at in range(30)))


def test_two_at_a_time_send_each_letter_once() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        other = DeadLetterQueue(cluster, "orders")
        async with asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(one.redrive(ALL, RedriveOptions(to_all=True, rate=50))) for one in (queue, other)]
        assert sum(task.result().settled for task in both) == 40
        assert len(await values(cluster)) == 80

    with_dead(scenario, *(b"%d" % at for at in range(40)))


def test_a_letter_that_was_sent_but_not_settled_is_stored_once_where_ids_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        await TopicAdmin(cluster).alter_configs("orders", set_to={"dedup.window.ms": "600000"})

        async def lost(*_: object) -> None:
            raise HeadraceError("the connection broke")

        with monkeypatch.context() as patched:
            patched.setattr(queue._leases, "_settle", lost)
            with pytest.raises(HeadraceError, match="the connection broke"):
                await queue.redrive(ALL, COPIES)
        await asyncio.sleep(400)  # the lease ends
        outcome = await queue.redrive(ALL, COPIES)
        assert outcome.settled == 2
        assert await values(cluster) == [b"a", b"b", b"a", b"b"]

    with_dead(scenario, b"a", b"b")


def test_dead_letters_leased_by_a_lost_response_are_redriven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        call, is_lost = cluster.call, False

        async def lose_first(request: object, **options: object) -> object:
            nonlocal is_lost
            response = await call(request, **options)  # type: ignore[arg-type]
            if isinstance(request, LeaseOffsetsRequest) and not is_lost:
                is_lost = True
                raise ConnectionLost("the connection was lost before the response came")
            return response

        monkeypatch.setattr(cluster, "call", lose_first)
        assert await queue.redrive(ALL, COPIES) == RedriveResult(chosen=2, settled=2)
        assert await values(cluster) == [b"a", b"b", b"a", b"b"]

    with_dead(scenario, b"a", b"b")


def test_the_dedup_id_of_a_message_is_restored_only_where_it_is_safe() -> None:
    death = DeadLetterOrigin("boom", 5, "workers", "orders", 0, 7, 99)
    headers = [*with_dead_letter_headers([("x", b"1")], death), (DEDUP_ID, b"own"), ("headrace-dead-dedup-id", b"mine")]
    record = ConsumedRecord("orders.dlq", 0, 3, 0, None, b"a", headers)
    letter = DeadLetter.of(record)
    assert redriven_headers(letter, has_window=False) == [("x", b"1"), (DEDUP_ID, b"mine"), (REDRIVEN, b"1")]
    assert header_value(redriven_headers(letter, has_window=True), DEDUP_ID) == b"redrive/orders.dlq:0:3/99"


def test_a_message_written_by_a_client_to_the_dead_letter_topic_is_redriven_to_the_topic_of_its_name() -> None:
    async def scenario(_: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        async with Producer(cluster) as producer:
            await producer.publish("orders.dlq", b"by hand")
        assert await queue.redrive(ALL, COPIES) == RedriveResult(chosen=2, settled=2)
        sent = [record for record in await stored(cluster) if record.value == b"by hand"]
        assert [header_text(record.headers, REDRIVEN) for record in sent] == ["1"]

    with_dead(scenario, b"a")


def test_a_forged_dead_letter_is_sent_nowhere_but_to_the_topic_of_its_queue() -> None:
    async def scenario(_broker: Broker, cluster: Cluster, queue: DeadLetterQueue) -> None:
        await TopicAdmin(cluster).create(NewTopic("ledger", 1))
        forged = with_dead_letter_headers([], DeadLetterOrigin("boom", 5, "workers", "ledger", 0, 0, 1))
        async with Producer(cluster) as producer:
            await producer.publish("orders.dlq", b"forged", headers=forged, partition=0)
        outcome = await queue.redrive(ALL, COPIES)
        assert outcome.settled == 2
        assert await values(cluster, "ledger") == []
        assert sorted(map(str, await values(cluster))) == ["b'a'", "b'a'", "b'forged'"]

    with_dead(scenario, b"a")
