"""The leader's view of its followers: the high watermark, and changes of the in-sync set."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.machines.replication.replication_model import World, broker_record, brokers_up

from headrace.machines.controller.leadership import remove_from_isr, update_leadership
from headrace.machines.replication.in_sync import IsrState
from headrace.model.errors import StaleBrokerEpoch, UnknownLeaderEpoch
from headrace.model.registry_records import PartitionRecord

LAG = 10.0
ALL = brokers_up(1, 2, 3)


def lead(isr: tuple[int, ...] = (1, 2, 3), end_offset: int = 0, **fields: Any) -> IsrState:
    """That of broker 1, since the time 100."""
    record = PartitionRecord(replicas=(1, 2, 3), isr=isr, leader=1, leader_epoch=5, leader_broker_epoch=1, **fields)
    return IsrState(1, record, end_offset, 100.0)


def fetch(
    in_sync: IsrState, node_id: int, offset: int, end_offset: int = 100, now: float = 101.0, epoch: int = 1
) -> bool:
    return in_sync.record_follower_fetch(node_id, epoch, offset, 0, end_offset, now)


def propose(
    in_sync: IsrState, high_watermark: int = 0, now: float = 101.0, min_insync: int = 2
) -> PartitionRecord | None:
    return in_sync.proposal(ALL, now, LAG, high_watermark, min_insync)


def test_with_the_leader_alone_in_the_isr_flushed_records_are_committed() -> None:
    in_sync = lead((1,))
    assert in_sync.high_watermark(7, 3, 1) == 7
    assert in_sync.high_watermark(7, 9, 1) == 9  # never back


def test_the_high_watermark_is_the_lowest_flushed_offset_of_the_isr() -> None:
    in_sync = lead()
    fetch(in_sync, 2, 8)
    fetch(in_sync, 3, 6)
    assert in_sync.high_watermark(10, 0, 2) == 6
    assert in_sync.high_watermark(5, 0, 2) == 5  # our own flush counts too
    assert in_sync.lag() == {2: 8, 3: 6}


def test_the_high_watermark_stays_until_all_of_the_isr_have_fetched_in_this_lead() -> None:
    in_sync = lead()
    assert not fetch(in_sync, 2, 8)
    assert in_sync.high_watermark(10, 4, 2) == 4
    assert fetch(in_sync, 3, 8)
    assert in_sync.high_watermark(10, 4, 2) == 8


def test_a_fetch_moves_the_high_watermark_only_if_the_slowest_of_the_isr_got_on() -> None:
    in_sync = lead((1, 2))
    assert fetch(in_sync, 2, 8)
    assert not fetch(in_sync, 2, 8)
    assert not fetch(in_sync, 3, 9)
    assert fetch(in_sync, 2, 9)


def test_nothing_is_committed_while_the_isr_is_too_small() -> None:
    in_sync = lead((1, 2))
    fetch(in_sync, 2, 10)
    assert not in_sync.has_min_isr(3)
    assert in_sync.high_watermark(10, 4, 3) == 4
    assert in_sync.has_min_isr(2)


def test_nothing_is_committed_while_the_elr_has_members() -> None:
    # min.insync.replicas was lowered to 1; broker 2 may still be elected, and is not waited for.
    in_sync = lead((1,), elr=(2,))
    assert not in_sync.has_min_isr(1)
    assert in_sync.high_watermark(10, 4, 1) == 4
    emptied = propose(in_sync, min_insync=1)
    assert emptied == replace(in_sync.record, elr=())
    in_sync.propose(emptied)
    assert in_sync.high_watermark(10, 4, 1) == 4
    in_sync.update_record(emptied)
    assert in_sync.high_watermark(10, 4, 1) == 10


def test_a_leaving_replica_is_waited_for_until_the_registry_was_read() -> None:
    in_sync = lead()
    fetch(in_sync, 2, 100, now=111.0)
    smaller = propose(in_sync, now=111.0)
    assert smaller == replace(in_sync.record, isr=(1, 2))
    in_sync.propose(smaller)
    assert in_sync.maximal_isr == {1, 2, 3}
    assert in_sync.high_watermark(100, 0, 2) == 0
    assert propose(in_sync, now=120.0) is None  # one at a time
    in_sync.update_record(smaller)
    assert in_sync.proposed is None
    assert in_sync.high_watermark(100, 0, 2) == 100


def test_a_joining_replica_is_waited_for_even_if_the_proposal_failed() -> None:
    in_sync = lead((1, 2))
    fetch(in_sync, 2, 100)
    fetch(in_sync, 3, 100)
    larger = propose(in_sync, 100)
    assert larger == replace(in_sync.record, isr=(1, 2, 3))
    in_sync.propose(larger)
    fetch(in_sync, 2, 200, end_offset=200)
    assert in_sync.high_watermark(200, 100, 2) == 100
    in_sync.update_record(in_sync.record)  # another's change came first
    assert in_sync.maximal_isr == {1, 2}
    assert in_sync.high_watermark(200, 100, 2) == 100  # it still is about to join
    assert in_sync.proposal(brokers_up(1, 2), 101.0, LAG, 100, 2) is None
    assert in_sync.high_watermark(200, 100, 2) == 200


def test_a_proposal_that_makes_the_isr_too_small_stops_commits_at_once() -> None:
    in_sync = lead((1, 2))
    fetch(in_sync, 2, 50)
    smaller = propose(in_sync, now=111.0)
    assert smaller == replace(in_sync.record, isr=(1,), elr=(2,))
    in_sync.propose(smaller)
    assert not in_sync.has_min_isr(2)


def test_a_follower_joins_at_the_high_watermark() -> None:
    in_sync = lead((1, 2))
    fetch(in_sync, 3, 99, end_offset=99)
    assert propose(in_sync, 100) is None
    fetch(in_sync, 3, 100)
    assert propose(in_sync, 100) == replace(in_sync.record, isr=(1, 2, 3))


def test_a_follower_does_not_join_below_the_start_of_the_epoch() -> None:
    # Our high watermark may be out of date: all that we had when this lead began may be committed.
    in_sync = lead((1, 2), end_offset=100)
    fetch(in_sync, 3, 60, end_offset=60)
    assert propose(in_sync, 50) is None
    fetch(in_sync, 3, 100)
    assert propose(in_sync, 50) is not None


def test_a_leader_that_cannot_commit_alone_lets_others_join() -> None:
    in_sync = lead((1,), end_offset=100, elr=(2,))
    assert in_sync.high_watermark(100, 50, 2) == 50
    fetch(in_sync, 3, 100)
    joined = propose(in_sync, 50)
    assert joined == replace(in_sync.record, isr=(1, 3), elr=())
    in_sync.update_record(joined)
    assert in_sync.high_watermark(100, 50, 2) == 100


def test_several_join_and_leave_in_one_change() -> None:
    in_sync = lead((1, 2))
    fetch(in_sync, 3, 100, now=111.0)
    assert propose(in_sync, 100, now=111.0) == replace(in_sync.record, isr=(1, 3))


@pytest.mark.parametrize(
    "broker", [None, broker_record(3, 2), broker_record(3, is_draining=True)], ids=["down", "started again", "draining"]
)
def test_a_follower_that_may_not_stay_does_not_join(broker: Any) -> None:
    in_sync = lead((1, 2))
    fetch(in_sync, 3, 100)
    live = brokers_up(1, 2) | ({} if broker is None else {3: broker})
    assert in_sync.proposal(live, 101.0, LAG, 100, 2) is None


def test_a_draining_follower_stays_in_the_isr() -> None:
    in_sync = lead((1, 2))
    fetch(in_sync, 2, 100)
    assert in_sync.proposal({1: broker_record(1), 2: broker_record(2, is_draining=True)}, 101.0, LAG, 100, 2) is None


def test_a_follower_that_always_is_one_fetch_behind_stays_in_the_isr() -> None:
    in_sync = lead((1, 2))
    for second in range(1, 60):
        fetch(in_sync, 2, offset=second * 100, end_offset=(second + 1) * 100, now=100.0 + second)
    assert propose(in_sync, now=160.0) is None


def test_a_follower_that_falls_further_behind_leaves_the_isr() -> None:
    in_sync = lead((1, 2))
    for second in range(1, 12):
        fetch(in_sync, 2, offset=second * 50, end_offset=(second + 1) * 100, now=100.0 + second)
    assert propose(in_sync, now=110.0) is None
    assert propose(in_sync, now=110.5) == replace(in_sync.record, isr=(1,), elr=(2,))


def test_a_follower_that_has_everything_need_not_fetch_to_stay_in_the_isr() -> None:
    in_sync = lead((1, 2))
    fetch(in_sync, 2, 100)
    in_sync.record_caught_up(100, 150.0)
    assert propose(in_sync, now=155.0) is None
    in_sync.record_caught_up(101, 155.0)
    assert propose(in_sync, now=161.0) == replace(in_sync.record, isr=(1,), elr=(2,))


def test_a_leader_whose_disk_failed_proposes_to_leave_the_isr() -> None:
    in_sync = lead((1, 2))
    fetch(in_sync, 2, 100)
    struck = remove_from_isr(in_sync.record, 1, 2)
    assert struck is not None
    in_sync.propose(struck)
    assert in_sync.maximal_isr == {1, 2}
    assert in_sync.high_watermark(100, 50, 2) == 50


def test_a_busy_partition_waits_for_a_joining_replica() -> None:
    in_sync = lead((1,))
    fetch(in_sync, 3, 90, end_offset=100, now=101.0)
    fetch(in_sync, 3, 100, end_offset=110, now=102.0)
    assert propose(in_sync, 110, now=102.0, min_insync=1) is None
    assert in_sync.high_watermark(120, 110, 1) == 110  # waits
    assert fetch(in_sync, 3, 115, end_offset=120, now=103.0)
    assert in_sync.high_watermark(120, 110, 1) == 115
    assert propose(in_sync, 115, now=103.0, min_insync=1) == replace(in_sync.record, isr=(1, 3))


def test_a_replica_that_does_not_join_in_time_is_no_longer_waited_for() -> None:
    in_sync = lead((1,))
    fetch(in_sync, 3, 100)
    assert propose(in_sync, 110, min_insync=1) is None
    assert in_sync.high_watermark(120, 110, 1) == 110
    assert propose(in_sync, 110, now=112.0, min_insync=1) is None
    assert in_sync.high_watermark(120, 110, 1) == 120


def test_unknown_replicas_and_old_broker_epochs_are_rejected() -> None:
    in_sync = lead()
    with pytest.raises(UnknownLeaderEpoch):
        fetch(in_sync, 4, 10)
    fetch(in_sync, 2, 10, epoch=3)
    with pytest.raises(StaleBrokerEpoch):
        fetch(in_sync, 2, 20, epoch=2)
    assert in_sync.lag()[2] == 10
    assert in_sync.broker_epoch(2) == 3


def test_an_empty_log_counts_only_if_its_broker_is_in_sync_or_agreed_before_in_this_leader_epoch() -> None:
    in_sync = lead((1, 2))
    assert in_sync.shares_history(2)
    assert not in_sync.shares_history(3)
    fetch(in_sync, 3, 4)
    assert in_sync.shares_history(3)
    assert lead((1,), elr=(2,)).shares_history(2)


def test_an_added_replica_counts_once_the_registry_lists_it() -> None:
    in_sync = lead((1, 2))
    in_sync.update_record(replace(in_sync.record, replicas=(1, 2, 4), adding=(4,)))
    fetch(in_sync, 4, 100)
    with pytest.raises(UnknownLeaderEpoch):
        fetch(in_sync, 3, 100)


def test_the_low_watermark_is_the_smallest_log_start_of_the_isr() -> None:
    in_sync = lead((1, 2))
    assert in_sync.low_watermark(9, ALL) == -1
    in_sync.record_follower_fetch(2, 1, 10, 4, 10, 101.0)
    in_sync.record_follower_fetch(3, 1, 10, 2, 10, 101.0)
    assert in_sync.low_watermark(9, ALL) == 4
    assert in_sync.low_watermark(3, ALL) == 3
    assert in_sync.low_watermark(9, brokers_up(1, 3)) == 9


def test_a_replica_without_its_disk_does_not_get_in_by_an_old_proposal() -> None:
    # KIP-903: it was about to join, lost its disk and was started again, before the proposal arrived.
    world = World(3, (1, 2, 3))
    world.record = replace(world.record, isr=(1, 2))
    world.change(lambda record: update_leadership(record, world.live, 2))
    leader, follower, newcomer = world.brokers.values()
    for broker in world.brokers.values():
        world.mirror_registry(broker)
    world.append(leader)
    world.flush(leader, 2)
    for _ in range(2):
        world.fetch(follower, 2)
        world.fetch(newcomer, 2)
    assert leader.high_watermark == 1
    world.propose(leader, world.live, 2)
    [proposal] = world.under_way
    assert proposal.record.isr == (1, 2, 3)
    world.stop(newcomer)
    world.lose_disk(newcomer)
    world.start(newcomer)
    world.change(lambda record: remove_from_isr(record, newcomer.node_id, 2))
    newcomer.has_lost_disk = False
    world.arrive(proposal)
    world.check()
    assert world.record.isr == (1, 2)
