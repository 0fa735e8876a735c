"""A message is released once even if its release is interrupted: the topic's log shows whether it has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

import pytest
from tests.unit.broker.broker_requests import produce
from tests.unit.broker.delays import delay_support as delayed
from tests.unit.broker.delays.delay_support import (
    DELAYED,
    TOPIC,
    alter,
    cancel,
    delay,
    events,
    listed,
    message,
    now_ms,
    values,
)
from tests.unit.broker.leadership_changes import become_follower, become_leader
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.delays.delay_target import DelayTarget, EncodedBatch
from headrace.broker.delays.delayed_log import DelayedLog
from headrace.broker.partition import Partition
from headrace.model.errors import NotEnoughReplicas, NotLeader
from headrace.wire.batches.batch import BatchRecord
from headrace.wire.state_records.delayed_records import Released, Releasing

Step = Callable[[Partition], None]


def nothing(_partition: Partition) -> None:
    return


def forget_producers(partition: Partition) -> None:
    """As after a day without a word."""
    partition.state.producers.expire(0.0)
    partition.state.producers.expire(1e9)


class Interrupted:
    """The next append to T is cut short: before anything is written, or right after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, writes: bool, then: Step = nothing) -> None:
        self.count = 0
        self.left = 1
        append = DelayTarget.append

        def interrupted(target: DelayTarget, batch: EncodedBatch, now_ms: int) -> int:
            self.count += 1
            if not self.left:
                return append(target, batch, now_ms)
            self.left -= 1
            if writes:
                append(target, batch, now_ms)
            then(target.partition)
            raise NotLeader("the lead has just ended")

        monkeypatch.setattr(DelayTarget, "append", interrupted)


@pytest.mark.parametrize("then", [nothing, forget_producers])
@pytest.mark.parametrize("writes", [True, False])
async def test_an_interrupted_release_is_completed_once(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, writes: bool, then: Step
) -> None:
    await delayed.make(simulated_broker)
    await produce(simulated_broker, TOPIC, b"before")
    await delay(
        simulated_broker, message(simulated_broker, b"a", delay="1s"), message(simulated_broker, b"b", delay="1s")
    )
    cut = Interrupted(monkeypatch, writes=writes, then=then)
    await simulated_broker.pass_time(0.9)
    await produce(simulated_broker, TOPIC, b"between")

    await simulated_broker.pass_time(5)

    assert cut.count == (1 if writes else 2)
    assert await values(simulated_broker) == [b"before", b"between", b"a", b"b"]
    await simulated_broker.restart()
    await simulated_broker.pass_time(5)
    assert await values(simulated_broker) == [b"before", b"between", b"a", b"b"]
    await delay(simulated_broker, message(simulated_broker, b"c"))
    await simulated_broker.pass_time(1)
    assert (await values(simulated_broker))[4:] == [b"c"]


@pytest.mark.parametrize("then", [nothing, forget_producers])
@pytest.mark.parametrize("writes", [True, False])
async def test_the_next_leadership_completes_an_interrupted_release(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch, writes: bool, then: Step
) -> None:
    await delayed.make(simulated_broker)
    await delay(
        simulated_broker,
        message(simulated_broker, b"a", delay="1s"),
        message(simulated_broker, b"tick", repeat="every 1s"),
    )

    def end_the_lead(partition: Partition) -> None:
        then(partition)
        become_follower(simulated_broker, simulated_broker.partition(DELAYED))

    Interrupted(monkeypatch, writes=writes, then=end_the_lead)
    await simulated_broker.pass_time(1.5)
    assert await values(simulated_broker) == ([b"a", b"tick"] if writes else [])
    local = simulated_broker.broker.catalogue.topic(DELAYED).replicas.get(0)
    assert local is not None
    become_leader(simulated_broker, local)
    await simulated_broker.pass_time(1)
    assert await values(simulated_broker) == [b"a", b"tick", b"tick"]


async def test_nothing_is_released_while_another_broker_leads_the_topic(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    target = simulated_broker.partition(TOPIC)
    await delay(simulated_broker, message(simulated_broker, b"a", delay="1s"))
    become_follower(simulated_broker, target)
    await simulated_broker.pass_time(5)
    assert [type(event) for event in await events(simulated_broker)] == []
    assert (await listed(simulated_broker)).waiting == 1
    become_leader(simulated_broker, target)
    await simulated_broker.pass_time(0.1)
    assert await values(simulated_broker) == [b"a"]


async def test_open_releases_are_checked_again_in_a_new_leadership_of_the_topic(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(simulated_broker)
    target = simulated_broker.partition(TOPIC)

    def end_the_lead(partition: Partition) -> None:
        become_follower(simulated_broker, partition)

    Interrupted(monkeypatch, writes=True, then=end_the_lead)
    await delay(simulated_broker, message(simulated_broker, b"a"))
    await simulated_broker.pass_time(1)
    await target.log.truncate(0)  # as a follower, whose leader did not have it
    become_leader(simulated_broker, target)
    await simulated_broker.pass_time(6)
    assert await values(simulated_broker) == [b"a"]


async def test_open_releases_use_a_new_producer_if_the_topic_lost_the_old_ones_records(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(simulated_broker)
    for value in (b"kept", b"lost"):
        await delay(simulated_broker, message(simulated_broker, value))
        await simulated_broker.pass_time(3)
    target = simulated_broker.partition(TOPIC)

    def lose(partition: Partition) -> None:
        become_follower(simulated_broker, partition)

    Interrupted(monkeypatch, writes=False, then=lose)
    await delay(simulated_broker, message(simulated_broker, b"open", repeat="every 1h", delay="0s"))
    await simulated_broker.pass_time(1)
    await target.log.truncate(1)
    target.on_truncated()
    become_leader(simulated_broker, target)
    await simulated_broker.pass_time(6)
    assert await values(simulated_broker) == [b"kept", b"open"]
    announced = [event for event in await events(simulated_broker) if isinstance(event, Releasing)]
    assert announced[-1].producer != announced[0].producer
    assert (await listed(simulated_broker)).waiting == 1
    await delay(simulated_broker, message(simulated_broker, b"new"))
    await simulated_broker.pass_time(1)
    assert await values(simulated_broker) == [b"kept", b"open", b"new"]
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)
    assert await values(simulated_broker) == [b"kept", b"open", b"new"]


async def test_a_completed_release_is_recorded_without_other_activity(simulated_broker: SimulatedBroker) -> None:
    await delayed.make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"a"))
    await simulated_broker.pass_time(3)
    assert [type(event) for event in await events(simulated_broker)] == [Releasing, Released]


async def test_a_message_that_was_announced_cannot_be_cancelled(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(simulated_broker)
    Interrupted(monkeypatch, writes=False)
    offset = await delay(simulated_broker, message(simulated_broker, b"a", delay="1s"))
    await simulated_broker.pass_time(1.05)
    assert await values(simulated_broker) == []
    assert await cancel(simulated_broker, offset) != 0
    await simulated_broker.pass_time(1)
    assert await values(simulated_broker) == [b"a"]


async def test_a_change_during_a_release_read_takes_effect(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(simulated_broker)
    offset = await delay(
        simulated_broker,
        *[message(simulated_broker, value, delay="1s") for value in (b"moved", b"cancelled", b"comes")],
    )
    requested: list[list[int]] = []
    read = DelayedLog.messages

    async def read_slowly(
        log: DelayedLog, offsets: Iterable[int], size_bytes_max: float = inf
    ) -> dict[int, BatchRecord]:
        if not requested:
            requested.append(
                await alter(simulated_broker, [(offset, now_ms(simulated_broker) + 5000), (offset + 1, -1)])
            )
        return await read(log, offsets, size_bytes_max)

    monkeypatch.setattr(DelayedLog, "messages", read_slowly)
    await simulated_broker.pass_time(2)
    assert requested == [[0, 0]]
    assert await values(simulated_broker) == [b"comes"]
    await simulated_broker.pass_time(10)
    assert await values(simulated_broker) == [b"comes", b"moved"]


async def test_a_release_is_open_until_the_topic_has_committed_it(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(simulated_broker)
    move = Partition.move
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "move", lambda partition: None if partition.topic == TOPIC else move(partition))
        await delay(simulated_broker, message(simulated_broker, b"a"))
        await simulated_broker.pass_time(5)
        await delay(simulated_broker, message(simulated_broker, b"b"))
        await simulated_broker.pass_time(5)
        announced = await events(simulated_broker)
        assert [type(event) for event in announced] == [Releasing, Releasing]
        assert [event.done for event in announced if isinstance(event, Releasing)] == [-1, -1]
    simulated_broker.partition(TOPIC).move()
    await simulated_broker.pass_time(5)
    assert await values(simulated_broker) == [b"a", b"b"]
    assert [type(event) for event in await events(simulated_broker)] == [Releasing, Releasing, Released]


async def test_a_release_that_cannot_be_committed_now_is_retried(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(simulated_broker)

    def refuse(_target: DelayTarget) -> None:
        raise NotEnoughReplicas("too few are in sync")

    with monkeypatch.context() as patch:
        patch.setattr(DelayTarget, "ensure_writable", refuse)
        offset = await delay(simulated_broker, message(simulated_broker, b"a"), message(simulated_broker, b"b"))
        await simulated_broker.pass_time(3)
        assert await values(simulated_broker) == []
        assert await cancel(simulated_broker, offset) == 0
    await simulated_broker.pass_time(6)
    assert await values(simulated_broker) == [b"b"]


async def test_sequences_wrap_around_to_zero(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delayed.make(simulated_broker)
    await delay(simulated_broker, message(simulated_broker, b"first"))
    await simulated_broker.pass_time(3)
    led = simulated_broker.broker.delayed.of(TOPIC, 0)
    led._sequence = 2**31 - 2
    forget_producers(simulated_broker.partition(TOPIC))
    expected = [b"first"]
    for number in range(3):
        if number == 1:
            Interrupted(monkeypatch, writes=False)
        await delay(simulated_broker, *[message(simulated_broker, b"%d.%d" % (number, one)) for one in range(3)])
        await simulated_broker.pass_time(3)
        expected += [b"%d.%d" % (number, one) for one in range(3)]
    assert await values(simulated_broker) == expected
    announced = [event for event in await events(simulated_broker) if isinstance(event, Releasing)]
    assert [event.sequence for event in announced] == [0, 2**31 - 2, 1, 4]
