"""TxnOffsetCommit: offsets that count when the transaction does."""

from __future__ import annotations

import pytest
from tests.unit.broker.apart import Apart
from tests.unit.broker.house import House
from tests.unit.broker.members import GROUP, Member, commit, committed, listed
from tests.unit.broker.transacting import NEWER, OLDER, Transactor, back

from headrace.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from headrace.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

both = pytest.mark.parametrize("generation", [OLDER, NEWER])


def request(one: Transactor, offset: int, topic: str = "t") -> TxnOffsetCommitRequest:
    asked = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
    return TxnOffsetCommitRequest(
        transactional_id=one.transactional_id,
        group_id=GROUP,
        producer_id=one.producer_id,
        producer_epoch=one.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[asked])],
    )


async def commit_in(one: Transactor, offset: int, topic: str = "t") -> int:
    """Add the group, if that is not left to the broker, and commit."""
    if one.generation == OLDER:
        add = AddOffsetsToTxnRequest(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            producer_epoch=one.epoch,
            group_id=GROUP,
        )
        assert (await one.house.ask(add, 3)).error_code == 0
    response = await one.house.ask(request(one, offset, topic), 5 if one.generation == NEWER else 3)
    return int(response.topics[0].partitions[0].error_code)


async def transactor(house: House, generation: int = NEWER) -> Transactor:
    await house.make_topic("t")
    one = Transactor(house, generation=generation)
    assert await one.init() == 0
    return one


@both
async def test_offsets_count_when_the_transaction_is_committed(house: House, generation: int) -> None:
    one = await transactor(house, generation)
    assert await commit_in(one, 7) == 0
    assert await committed(house) == (-1, "")
    assert await one.commit() == 0
    assert await committed(house) == (7, "m")
    assert await listed(house) == {GROUP: "Empty"}


@both
async def test_offsets_of_an_aborted_transaction_never_were(house: House, generation: int) -> None:
    one = await transactor(house, generation)
    await commit(house, 3, metadata="plain")
    await commit_in(one, 7)
    await one.abort()
    assert await committed(house) == (3, "plain")


@pytest.mark.parametrize("decides", ["before", "after"])
async def test_offsets_are_known_after_a_crash_before_or_after_the_decision(house: House, decides: str) -> None:
    one = await transactor(house)
    await commit_in(one, 7)
    if decides == "before":
        await one.commit()
    house.kill(keep_page_cache=False)
    await back(house)
    if decides == "after":
        assert await committed(house) == (-1, "")
        await one.commit()
    assert await committed(house) == (7, "m")


async def test_who_wants_stable_offsets_is_told_to_come_again(house: House) -> None:
    one = await transactor(house)
    await commit(house, 3)
    await commit_in(one, 7)

    async def fetch(*, stable: bool) -> tuple[int, int]:
        asked = OffsetFetchRequest(
            group_id=GROUP,
            topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
            require_stable=stable,
        )
        answer = (await house.ask(asked, 7)).topics[0].partitions[0]
        return answer.error_code, answer.committed_offset

    assert await fetch(stable=True) == (88, -1)
    assert await fetch(stable=False) == (0, 3)
    await one.commit()
    assert await fetch(stable=True) == (0, 7)


async def test_the_older_protocol_must_add_the_group_first(house: House) -> None:
    one = await transactor(house, OLDER)
    await commit(house, 3)
    response = await house.ask(request(one, 7), 3)
    assert response.topics[0].partitions[0].error_code == 48


async def test_a_member_of_an_old_generation_commits_nothing(house: House) -> None:
    one = await transactor(house)
    member = Member(house)
    await member.enter()
    asked = request(one, 7)
    asked.member_id, asked.generation_id = member.id, member.generation + 1
    assert (await house.ask(asked, 5)).topics[0].partitions[0].error_code == 22
    asked.generation_id = member.generation
    assert (await house.ask(asked, 5)).topics[0].partitions[0].error_code == 0


async def test_a_producer_that_was_replaced_commits_nothing(house: House) -> None:
    one = await transactor(house)
    await Transactor(house).init()
    assert await commit_in(one, 7) == 47


async def test_partitions_that_do_not_exist_are_refused_alone(house: House) -> None:
    one = await transactor(house)
    assert await commit_in(one, 7, "missing") == 3


@both
async def test_offsets_join_a_transaction_that_another_broker_coordinates(
    house: House, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    apart = await Apart.build(house, monkeypatch)
    one = Transactor(apart, generation=generation)
    assert await one.init() == 0
    for offset, commits in ((7, True), (8, False)):
        assert await commit_in(one, offset) == 0
        assert await committed(house) == (-1 if commits else 7, "" if commits else "m")
        assert await one.end(commit=commits) == 0
        assert await committed(house) == (7, "m")


async def test_offsets_of_a_transaction_that_does_not_hold_the_group_are_refused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = await Apart.build(house, monkeypatch)
    one = Transactor(apart, generation=OLDER)
    assert await one.init() == 0
    response = await apart.ask(request(one, 7), 3)
    assert response.topics[0].partitions[0].error_code == 48
