"""Waiting messages can be listed, cancelled and rescheduled; other offsets are rejected."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.broker.delays import delay_support as delayed
from tests.unit.broker.delays.delay_support import (
    TOPIC,
    alter,
    cancel,
    delay,
    listed,
    message,
    now_ms,
    until_ms,
    values,
)
from tests.unit.broker.leadership_changes import become_follower, become_leader
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.delays.delay_shard import DelayShard
from headrace.model.errors import (
    CoordinatorLoading,
    InvalidRecordState,
    InvalidRequest,
    NotLeader,
    UnknownTopicOrPartition,
)
from headrace.wire.messages.delays import AlterDelayedRequest, DelayedChange


async def test_waiting_messages_are_listed_by_due_time_in_pages(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    sent_ms = now_ms(simulated_broker)
    seconds = [40, 7200, 10, 900_000_000, 50, 7200, 90]
    await delay(
        simulated_broker, *[message(simulated_broker, b"%d" % second, delay=f"{second}s") for second in seconds]
    )
    await simulated_broker.run_ready_tasks()

    found, after = [], (-1, -1)
    while page := (await listed(simulated_broker, after_due_ms=after[0], after_offset=after[1], count_max=2)).messages:
        found += [(one.due_ms - sent_ms) // 1000 for one in page]
        after = page[-1].due_ms, page[-1].offset

    assert found == sorted(seconds)
    first = (await listed(simulated_broker)).messages[0]
    assert (first.offset, first.key, bytes(first.value or b"")) == (2, b"k", b"10")
    assert [(one.name, one.value) for one in first.headers] == [("headrace-delay", b"10s")]
    assert (await listed(simulated_broker)).waiting == len(seconds)


async def test_a_page_of_large_messages_is_shorter_and_has_a_next_page(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    for number in range(60):
        await delay(simulated_broker, message(simulated_broker, b"x" * 100_000, delay=f"{1000 - number}s"))
    await simulated_broker.run_ready_tasks()
    found: list[int] = []
    after, pages = (-1, -1), 0
    while page := (await listed(simulated_broker, after_due_ms=after[0], after_offset=after[1])).messages:
        found += [one.offset for one in page]
        after, pages = (page[-1].due_ms, page[-1].offset), pages + 1
    assert found == list(range(59, -1, -1))
    assert pages > 3


async def test_a_cancelled_message_is_never_released(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    offset = await delay(
        simulated_broker, message(simulated_broker, b"a", delay="2s"), message(simulated_broker, b"b", delay="2s")
    )
    assert await cancel(simulated_broker, offset) == 0
    assert [one.offset for one in (await listed(simulated_broker)).messages] == [offset + 1]
    assert await cancel(simulated_broker, offset) == InvalidRecordState.code

    await simulated_broker.restart()

    await simulated_broker.pass_time(5)
    assert await values(simulated_broker) == [b"b"]


async def test_a_just_accepted_message_can_be_cancelled_once_it_is_indexed(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"first", delay="2s"))
    await simulated_broker.run_ready_tasks()
    read, may_read = DelayShard._take_in, asyncio.Event()

    async def read_later(self: DelayShard, end_offset: int) -> None:
        await may_read.wait()
        await read(self, end_offset)

    monkeypatch.setattr(DelayShard, "_take_in", read_later)
    offset = await delay(simulated_broker, message(simulated_broker, b"second", delay="2s"))
    assert await cancel(simulated_broker, offset) == CoordinatorLoading.code, "not that the message is unknown"
    may_read.set()
    await simulated_broker.run_ready_tasks()
    assert await cancel(simulated_broker, offset) == 0
    assert await cancel(simulated_broker, offset + 10) == InvalidRecordState.code


async def test_a_rescheduled_message_is_released_at_its_new_time_only(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    sent_ms = now_ms(simulated_broker)
    offset = await delay(
        simulated_broker,
        message(simulated_broker, b"earlier", delay="1h"),
        message(simulated_broker, b"later", delay="1s"),
    )
    assert await alter(simulated_broker, [(offset, sent_ms + 3000), (offset + 1, sent_ms + 60_000)]) == [0, 0]
    await until_ms(simulated_broker, sent_ms + 2990)
    assert await values(simulated_broker) == []
    await until_ms(simulated_broker, sent_ms + 3100)
    assert await values(simulated_broker) == [b"earlier"]

    await simulated_broker.restart()

    await until_ms(simulated_broker, sent_ms + 59_990)
    assert await values(simulated_broker) == [b"earlier"]
    await until_ms(simulated_broker, sent_ms + 60_100)
    assert await values(simulated_broker) == [b"earlier", b"later"]


async def test_a_message_may_be_moved_to_and_fro(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    sent_ms = now_ms(simulated_broker)
    offset = await delay(simulated_broker, message(simulated_broker, b"once", delay="5s"))
    for due_ms in (sent_ms + 9000, sent_ms + 5000, sent_ms + 2000, sent_ms + 5000):
        assert await alter(simulated_broker, [(offset, due_ms)]) == [0]
    await until_ms(simulated_broker, sent_ms + 4990)
    assert await values(simulated_broker) == []
    await until_ms(simulated_broker, sent_ms + 12_000)
    assert await values(simulated_broker) == [b"once"]


async def test_messages_that_do_not_wait_cannot_be_changed(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    offset = await delay(simulated_broker, message(simulated_broker, b"gone"))
    await simulated_broker.pass_time(0.1)
    assert await values(simulated_broker) == [b"gone"]
    rejected = InvalidRecordState.code
    assert (
        await alter(simulated_broker, [(offset, -1), (offset + 1, -1), (999, now_ms(simulated_broker)), (-3, -1)])
        == [rejected] * 4
    )


async def test_an_invalid_change_is_rejected(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    offset = await delay(simulated_broker, message(simulated_broker, b"a", delay="1h"))
    assert await alter(simulated_broker, [(offset, -2), (offset, 2**62)]) == [InvalidRequest.code] * 2
    codes = await alter(simulated_broker, [(999, -1)] * 1001)
    assert codes == [InvalidRecordState.code] * 1000 + [InvalidRequest.code]
    for count_max in (0, -1, 1001):
        assert (await listed(simulated_broker, count_max=count_max)).error_code == InvalidRequest.code


async def test_only_the_leader_of_the_delayed_log_responds(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic(TOPIC)
    assert (await listed(simulated_broker, topic="unknown")).error_code == UnknownTopicOrPartition.code
    assert (await listed(simulated_broker)).error_code == UnknownTopicOrPartition.code
    await delayed.colocated_topic(simulated_broker)
    assert (await listed(simulated_broker)).error_code in (0, CoordinatorLoading.code)
    await simulated_broker.run_ready_tasks()
    assert (await listed(simulated_broker)).error_code == 0
    assert (await listed(simulated_broker, partition=1)).error_code == UnknownTopicOrPartition.code

    partition = simulated_broker.partition(delayed.DELAYED)
    become_follower(simulated_broker, partition)
    assert (await listed(simulated_broker)).error_code == NotLeader.code
    assert await cancel(simulated_broker, 0) == NotLeader.code
    become_leader(simulated_broker, partition)
    assert (await listed(simulated_broker)).error_code in (0, CoordinatorLoading.code)


async def test_a_waiting_change_fails_when_the_leadership_ends(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    offset = await delay(simulated_broker, message(simulated_broker, b"a", delay="1h"))
    partition = simulated_broker.partition(delayed.DELAYED)
    request = AlterDelayedRequest(topic=TOPIC, partition=0, changes=[DelayedChange(offset=offset)])
    requested = simulated_broker.begin_send(request, 0)
    become_follower(simulated_broker, partition)
    (result,) = (await requested).results
    assert result.error_code == NotLeader.code
    become_leader(simulated_broker, partition)
