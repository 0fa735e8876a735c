"""A group changes its protocol while it has members, in a whole broker: requests, records, restarts and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from tests.unit.broker.groups.classic_members import GROUP, ClassicMember, committed, describe, listed
from tests.unit.broker.groups.consumer_members import ConsumerMember, describe_consumers
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.broker.coordination.state_log import KeyValue
from headrace.broker.groups.consumer_group_records import StoredConsumerGroupEvent
from headrace.broker.groups.group_records import StoredGroup, read_record
from headrace.broker.groups.offsets_log import OffsetsLog
from headrace.model.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from headrace.wire.state_records.consumer_protocol import (
    ConsumerProtocolAssignment,
    NamedTopicPartitions,
    decode_assignment,
    encode_assignment,
)

PARTITIONS = 4
CLASSIC_SESSION_SECONDS = 10.0


class Reader(ClassicMember):
    """A classic member that gives up all its partitions before it joins."""

    def __init__(self, simulated_broker: SimulatedBroker, *topics: str, **more: Any) -> None:
        super().__init__(simulated_broker, *(topics or ("t",)), **more)
        self.indexes: list[int] = []

    async def follow(self) -> None:
        """Send a heartbeat; rejoin and sync when the response requires it."""
        error_code = await self.heartbeat() if self.generation >= 0 else RebalanceInProgress.code
        if error_code == 0:
            return
        if error_code in (UnknownMemberId.code, IllegalGeneration.code):
            self.id, self.generation = "" if error_code == UnknownMemberId.code else self.id, -1
        self.indexes = []
        assert (await self.join()).error_code == 0
        await self.take()

    async def take(self, assignments: dict[str, bytes] | None = None) -> None:
        response = await self.sync(assignments)
        if response.error_code == 0:
            assigned = decode_assignment(response.assignment).assigned_partitions
            self.indexes = sorted(index for one in assigned for index in one.partitions)
        else:
            assert response.error_code == RebalanceInProgress.code


def assignment(*indexes: int) -> bytes:
    return encode_assignment(
        ConsumerProtocolAssignment(assigned_partitions=[NamedTopicPartitions(topic="t", partitions=list(indexes))])
    )


async def classic_group(simulated_broker: SimulatedBroker, **more: Any) -> tuple[Reader, Reader]:
    """Two members that share the partitions of a topic."""
    await simulated_broker.create_topic("t", PARTITIONS)
    one, two = Reader(simulated_broker, **more), Reader(simulated_broker)
    assert (await one.join()).error_code == 0
    await one.take({one.id: assignment(*range(PARTITIONS))})
    first = await two.begin_join()
    assert first.error_code == MemberIdRequired.code
    two.id = first.member_id
    next_producer = two.begin_join()
    await simulated_broker.pass_time(0.1)
    assert await one.heartbeat() == RebalanceInProgress.code
    assert (await one.join()).error_code == 0
    assert two.apply_response(await next_producer).error_code == 0
    taking = two.begin_sync()
    await one.take({one.id: assignment(0, 1), two.id: assignment(2, 3)})
    two.indexes = decode_assignment((await taking).assignment).assigned_partitions[0].partitions
    return one, two


async def rounds(simulated_broker: SimulatedBroker, *members: Reader | ConsumerMember) -> None:
    """Everybody reports until nothing moves any more."""
    for _ in range(6):
        for member in members:
            if isinstance(member, Reader):
                await member.follow()
            else:
                assert (await member.beat()).error_code == 0


def shared(*members: Reader | ConsumerMember) -> list[int]:
    return sorted(index for member in members for index in indexes_of(member))


def indexes_of(member: Reader | ConsumerMember) -> Iterable[int]:
    return member.indexes


async def restart(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart()
    await simulated_broker.pass_time(1)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_group_migrates_member_by_member_and_back(simulated_broker: SimulatedBroker, restarts: bool) -> None:
    async def pause() -> None:
        if restarts:
            await restart(simulated_broker)

    one, two = await classic_group(simulated_broker)
    assert await one.commit(5) == 0
    new = ConsumerMember(simulated_broker, "m1", "t")
    assert (await new.beat()).error_code == 0
    assert (
        await listed(simulated_broker, types_filter=["consumer"])
        == {GROUP: "Reconciling"}
        == await listed(simulated_broker)
    )
    await pause()
    await rounds(simulated_broker, one, two, new)
    assert shared(one, two, new) == list(range(PARTITIONS))
    assert await listed(simulated_broker, types_filter=["consumer"]) == {GROUP: "Stable"}
    assert await committed(simulated_broker) == (5, "")
    await pause()
    assert await two.leave() == 0
    newer = ConsumerMember(simulated_broker, "m2", "t")
    await rounds(simulated_broker, one, new, newer)
    assert shared(one, new, newer) == list(range(PARTITIONS))
    assert await one.leave() == 0
    await pause()
    await rounds(simulated_broker, new, newer)
    assert shared(new, newer) == list(range(PARTITIONS))
    # And back.
    old = Reader(simulated_broker)
    await rounds(simulated_broker, new, newer, old)
    assert shared(new, newer, old) == list(range(PARTITIONS))
    assert await newer.leave() == 0
    await rounds(simulated_broker, new, old)
    assert await new.leave() == 0
    await pause()
    assert (await listed(simulated_broker, types_filter=["classic"])).keys() == {GROUP}
    assert await old.heartbeat() == RebalanceInProgress.code
    assert (await old.join()).error_code == 0
    assert old.leads
    await old.take({old.id: assignment(*range(PARTITIONS))})
    assert shared(old) == list(range(PARTITIONS))
    await pause()
    assert await old.heartbeat() == 0
    assert (
        await listed(simulated_broker, types_filter=["classic"]) == {GROUP: "Stable"} == await listed(simulated_broker)
    )
    assert await committed(simulated_broker) == (5, "")


async def test_a_conversion_is_one_batch_of_records(
    simulated_broker: SimulatedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[list[type]] = []
    append = OffsetsLog.append

    def noting(offsets_log: OffsetsLog, group_id: str, records: Sequence[KeyValue]) -> int:
        events = [read_record(key, value) for key, value in records]
        batches.append([type(event) for event in events])
        return append(offsets_log, group_id, records)

    one, two = await classic_group(simulated_broker)
    monkeypatch.setattr(OffsetsLog, "append", noting)
    new = ConsumerMember(simulated_broker, "m1", "t")
    assert (await new.beat()).error_code == 0
    ((first, *others),) = batches
    assert first is StoredGroup
    assert set(others) == {StoredConsumerGroupEvent}
    await rounds(simulated_broker, one, two, new)
    batches.clear()
    assert await new.leave() == 0
    ((*others, last),) = batches
    assert last is StoredGroup
    assert set(others) == {StoredConsumerGroupEvent}


async def test_a_group_whose_policy_is_disabled_stays_classic(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.restart(group_consumer_migration_policy="disabled")
    one, two = await classic_group(simulated_broker)
    rejected = await ConsumerMember(simulated_broker, "m1", "t").beat()
    assert rejected.error_code == GroupIdNotFound.code
    assert (
        rejected.error_message
        == f"Cannot upgrade classic group {GROUP} to consumer group because online upgrade is disabled."
    )
    assert await one.heartbeat() == await two.heartbeat() == 0
    assert (
        await listed(simulated_broker, types_filter=["classic"]) == {GROUP: "Stable"} == await listed(simulated_broker)
    )


@pytest.mark.parametrize(("policy", "kind"), [("Downgrade", "classic"), ("upgrade", "consumer")])
async def test_the_policy_decides_the_protocol_of_a_group_with_only_classic_members(
    simulated_broker: SimulatedBroker, policy: str, kind: str
) -> None:
    await simulated_broker.restart(group_consumer_migration_policy=policy)
    await simulated_broker.create_topic("t", PARTITIONS)
    new, old = ConsumerMember(simulated_broker, "m1", "t"), Reader(simulated_broker)
    await rounds(simulated_broker, new, old)
    assert await new.leave() == 0
    assert (await listed(simulated_broker, types_filter=[kind])).keys() == {GROUP}
    await old.join()
    await old.take({old.id: assignment(*range(PARTITIONS))})
    assert shared(old) == list(range(PARTITIONS))
    await restart(simulated_broker)
    assert (await listed(simulated_broker, types_filter=[kind])).keys() == {GROUP}
    assert await old.heartbeat() == 0


async def test_an_expired_consumer_member_leaves_a_classic_group(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", PARTITIONS)
    new, old = ConsumerMember(simulated_broker, "m1", "t"), Reader(simulated_broker)
    await rounds(simulated_broker, new, old)
    for _ in range(9):
        await simulated_broker.pass_time(5.0)
        await old.heartbeat()
    await simulated_broker.pass_time(0.5)
    assert (await listed(simulated_broker, types_filter=["classic"])).keys() == {GROUP}
    assert (await new.beat()).error_code == GroupIdNotFound.code


async def test_a_classic_member_expires(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", PARTITIONS)
    new, old = ConsumerMember(simulated_broker, "m1", "t"), Reader(simulated_broker)
    await rounds(simulated_broker, new, old)
    await simulated_broker.pass_time(CLASSIC_SESSION_SECONDS + 0.1)
    await rounds(simulated_broker, new)
    assert shared(new) == list(range(PARTITIONS))
    assert await old.heartbeat() == UnknownMemberId.code


async def test_waiting_members_rejoin_when_their_group_is_upgraded(simulated_broker: SimulatedBroker) -> None:
    one, two = await classic_group(simulated_broker)
    three = Reader(simulated_broker)
    three.id = (await three.begin_join()).member_id
    waiting = three.begin_join()
    await simulated_broker.pass_time(0.1)
    new = ConsumerMember(simulated_broker, "m1", "t")
    assert (await new.beat()).error_code == 0
    assert (await waiting).error_code == RebalanceInProgress.code
    await rounds(simulated_broker, one, two, three, new)
    assert shared(one, two, three, new) == list(range(PARTITIONS))
    assert {len(member.indexes) for member in (one, two, three, new)} == {1}


async def test_a_static_member_changes_the_protocol_and_keeps_its_partitions(simulated_broker: SimulatedBroker) -> None:
    one, two = await classic_group(simulated_broker, instance_id="i")
    before = one.indexes
    new = ConsumerMember(simulated_broker, "m1", "t", instance_id="i")
    assert (await new.beat()).error_code == 0
    assert new.indexes == before
    assert await one.heartbeat() == FencedInstanceId.code
    await rounds(simulated_broker, two, new)
    assert shared(two, new) == list(range(PARTITIONS))
    before = new.indexes
    again = Reader(simulated_broker, instance_id="i")
    assert (await again.join()).error_code == 0
    await again.take()
    assert again.indexes == before, "the group is as it was: nobody has to join again"
    assert (
        await listed(simulated_broker, types_filter=["classic"]) == {GROUP: "Stable"} == await listed(simulated_broker)
    )
    assert await again.heartbeat() == await two.heartbeat() == 0
    assert (await new.beat()).error_code == GroupIdNotFound.code
    await restart(simulated_broker)
    assert await again.heartbeat() == await two.heartbeat() == 0


async def test_a_static_member_that_returns_with_other_topics_triggers_a_rebalance(
    simulated_broker: SimulatedBroker,
) -> None:
    _, two = await classic_group(simulated_broker)
    await simulated_broker.create_topic("u")
    new = ConsumerMember(simulated_broker, "m1", "t", instance_id="i")
    await rounds(simulated_broker, two, new)
    again = Reader(simulated_broker, "t", "u", instance_id="i")
    assert (await again.join()).error_code == 0
    assert (await again.sync()).error_code == RebalanceInProgress.code
    assert (await listed(simulated_broker, types_filter=["classic"])) == {GROUP: "PreparingRebalance"}


async def test_a_mixed_group_is_described_as_a_consumer_group(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", PARTITIONS)
    new, old = ConsumerMember(simulated_broker, "m1", "t"), Reader(simulated_broker)
    await rounds(simulated_broker, new, old)
    described = await describe_consumers(simulated_broker)
    assert {member.member_id: member.member_type for member in described.members} == {"m1": 1, old.id: 0}
    assert [member.member_epoch for member in described.members] == [new.epoch, old.generation]
    seen = await describe(simulated_broker)
    assert (seen.error_code, seen.group_state) == (GroupIdNotFound.code, "Dead")


async def test_classic_members_of_a_mixed_group_commit_with_their_generation(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", PARTITIONS)
    new, old = ConsumerMember(simulated_broker, "m1", "t"), Reader(simulated_broker)
    await rounds(simulated_broker, new, old)
    assert await old.commit(7) == 0
    old.generation += 1
    assert await old.commit(8) == IllegalGeneration.code
    assert await new.commit(9) == 0
    assert await committed(simulated_broker) == (9, "")


async def test_a_group_with_invalid_subscriptions_stays_classic(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await ClassicMember(simulated_broker, "t").enter()
    rejected = await ConsumerMember(simulated_broker, "m1", "t").beat()
    assert rejected.error_code == GroupIdNotFound.code
    assert "the embedded consumer protocol is malformed" in rejected.error_message


async def test_a_rejected_member_does_not_change_a_classic_group(simulated_broker: SimulatedBroker) -> None:
    one, two = await classic_group(simulated_broker)
    rejected = await ConsumerMember(simulated_broker, "m1", "t").beat(subscribed_topic_regex="(")
    assert rejected.error_code != 0
    assert await listed(simulated_broker, types_filter=["classic"]) == {GROUP: "Stable"}
    assert await one.heartbeat() == await two.heartbeat() == 0


async def test_members_without_a_common_protocol_do_not_join(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await rounds(simulated_broker, ConsumerMember(simulated_broker, "m1", "t"), Reader(simulated_broker))
    other = Reader(simulated_broker)
    other.protocol = "sticky"
    assert (await other.begin_join()).error_code == InconsistentGroupProtocol.code
