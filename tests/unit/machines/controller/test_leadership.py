"""Leader, in-sync set and eligible leaders as brokers start and stop."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.machines.replication.replication_model import broker_record, brokers_up, without_past

from headrace.machines.controller.leadership import (
    PAST_MAX,
    elect_preferred,
    elect_unclean,
    has_foreign_history,
    raise_leader_epoch,
    remove_from_isr,
    update_leadership,
    with_isr,
    with_leader,
)
from headrace.model.errors import ElectionNotNeeded
from headrace.model.registry_records import NO_EPOCH, NO_LEADER, Leadership, PartitionRecord

ALL = brokers_up(1, 2, 3)


def led(leader: int = 1, isr: tuple[int, ...] = (1, 2, 3), **fields: Any) -> PartitionRecord:
    given_fields = {"replicas": (1, 2, 3), "leader_epoch": 5, "leader_broker_epoch": 1, **fields}
    return PartitionRecord(leader=leader, isr=isr, **given_fields)


def leaderless(isr: tuple[int, ...], **fields: Any) -> PartitionRecord:
    return led(NO_LEADER, isr, leader_broker_epoch=NO_EPOCH, **fields)


def test_a_healthy_partition_is_left_unchanged() -> None:
    assert update_leadership(led(), ALL, 2) is None
    assert update_leadership(led(2), ALL, 2) is None  # being the preferred one does not make it leader


def test_a_new_partition_is_led_by_its_first_replica() -> None:
    assert update_leadership(leaderless((1, 2, 3), leader_epoch=0), ALL, 2) == led(1, leader_epoch=1)


def test_a_dead_leader_is_followed_by_the_first_that_is_in_sync() -> None:
    assert without_past(update_leadership(led(1, (1, 3)), brokers_up(2, 3), 1)) == led(3, (3,), leader_epoch=6)


def test_a_dead_follower_leaves_the_isr_and_the_leader_epoch_stays() -> None:
    assert update_leadership(led(), brokers_up(1, 3), 2) == led(1, (1, 3))


def test_a_restarted_leader_leads_in_a_new_epoch() -> None:
    live = {**ALL, 1: broker_record(1, 2)}
    assert without_past(update_leadership(led(), live, 2)) == led(leader_epoch=6, leader_broker_epoch=2)


def test_the_last_of_the_isr_stays_in_it_when_it_dies() -> None:
    offline = update_leadership(led(1, (1,)), brokers_up(2, 3), 1)
    assert offline is not None
    assert without_past(offline) == leaderless((1,), leader_epoch=6)
    assert update_leadership(offline, brokers_up(2, 3), 1) is None
    back = {**brokers_up(2, 3), 1: broker_record(1, 9)}
    assert without_past(update_leadership(offline, back, 1)) == led(1, (1,), leader_epoch=7, leader_broker_epoch=9)


def test_replicas_that_stop_together_all_remain_eligible() -> None:
    offline = update_leadership(led(1, (1, 2)), {}, 2)
    assert offline is not None
    assert without_past(offline) == leaderless((1, 2), leader_epoch=6)
    assert without_past(update_leadership(offline, brokers_up(2), 2)) == led(2, (2,), elr=(1,), leader_epoch=7)


def test_a_replica_that_leaves_a_too_small_isr_joins_the_elr() -> None:
    assert with_isr(led(), (1, 2), 2) == led(1, (1, 2))
    assert with_isr(led(1, (1, 2)), (1,), 2) == led(1, (1,), elr=(2,))
    assert with_isr(led(), (1,), 2) == led(1, (1,), elr=(2,))
    assert with_isr(led(), (1,), 3) == led(1, (1,), elr=(2, 3))
    assert with_isr(led(1, (1,), elr=(2,)), (1,), 2) == led(1, (1,), elr=(2,))


def test_the_elr_keeps_the_replicas_that_left_last() -> None:
    assert with_isr(led(1, (1, 3), elr=(2,)), (1,), 3) == led(1, (1,), elr=(2, 3))
    assert with_isr(led(1, (1, 3), elr=(2,)), (1,), 2) == led(1, (1,), elr=(3,))


def test_the_elr_is_emptied_when_the_isr_is_large_enough() -> None:
    assert with_isr(led(1, (1,), elr=(2,)), (3, 1), 2) == led(1, (1, 3))
    assert update_leadership(led(1, (1,), elr=(2,)), ALL, 1) == led(1, (1,))  # min.insync.replicas was lowered


def test_a_member_of_the_elr_leads_when_the_isr_is_down() -> None:
    assert without_past(update_leadership(led(1, (1,), elr=(2, 3)), brokers_up(3), 3)) == led(
        3, (3,), elr=(1, 2), leader_epoch=6
    )


def test_the_last_replica_standing_cannot_lead_without_its_disk() -> None:
    # KIP-966: 1 was alone, stopped, and came back with an empty disk. Were it elected, the others would follow it.
    record = led(1, (1,), elr=(2,))
    offline = update_leadership(record, {}, 2)
    assert offline is not None
    struck = remove_from_isr(offline, 1, 2)
    assert struck is not None
    assert without_past(struck) == leaderless((), elr=(2,), leader_epoch=6)
    assert update_leadership(struck, {1: broker_record(1, 2)}, 2) is None
    assert without_past(update_leadership(struck, {1: broker_record(1, 2), 2: broker_record(2)}, 2)) == led(
        2, (2,), leader_epoch=7
    )


def test_a_draining_leader_hands_over_and_stays_in_the_isr() -> None:
    live = {**ALL, 1: broker_record(1, is_draining=True)}
    handed_over = update_leadership(led(), live, 2)
    assert handed_over is not None
    assert without_past(handed_over) == led(2, leader_epoch=6)
    assert update_leadership(handed_over, live, 2) is None


def test_a_draining_leader_stays_if_no_other_replica_is_in_sync() -> None:
    draining = {1: broker_record(1, is_draining=True), 2: broker_record(2, is_draining=True), 3: broker_record(3)}
    assert update_leadership(led(1, (1,)), draining, 1) is None
    assert update_leadership(led(1, (1, 2)), draining, 1) is None
    assert update_leadership(led(1, (1,), elr=(3,)), draining, 2) is None


def test_a_draining_broker_leads_if_no_other_can() -> None:
    draining = {2: broker_record(2, is_draining=True), 3: broker_record(3)}
    assert without_past(update_leadership(led(1, (1, 2)), draining, 1)) == led(2, (2,), leader_epoch=6)


def test_the_preferred_replica_becomes_leader_if_it_can() -> None:
    assert without_past(elect_preferred(led(2), ALL, 2)) == led(1, leader_epoch=6)
    assert elect_preferred(led(1), ALL, 2) is None
    assert elect_preferred(led(2, (2, 3)), ALL, 2) is None
    assert elect_preferred(led(2), brokers_up(2, 3), 2) is None
    assert elect_preferred(led(2), {**ALL, 1: broker_record(1, is_draining=True)}, 2) is None


def test_an_unclean_election_is_marked_in_the_record() -> None:
    offline = leaderless((1,), elr=(2,))
    assert elect_unclean(offline, brokers_up(3)) == led(3, (3,), leader_epoch=6, unclean_epoch=6)
    assert elect_unclean(offline, brokers_up(4)) is None


def test_a_favored_replica_is_elected_uncleanly() -> None:
    offline = leaderless((1,))
    assert elect_unclean(offline, brokers_up(2, 3), favored=(3,)) == led(3, (3,), leader_epoch=6, unclean_epoch=6)


def test_an_unclean_election_is_rejected_if_a_clean_one_is_possible() -> None:
    with pytest.raises(ElectionNotNeeded):
        elect_unclean(led(), ALL)
    with pytest.raises(ElectionNotNeeded):
        elect_unclean(led(), brokers_up(2), favored=(3,))
    with pytest.raises(ElectionNotNeeded):
        elect_unclean(leaderless((1,), elr=(2,)), brokers_up(2, 3), favored=(3,))


def test_a_replica_that_may_have_lost_records_leaves_isr_and_elr() -> None:
    assert remove_from_isr(led(), 2, 2) == led(1, (1, 3))
    assert without_past(remove_from_isr(led(), 1, 2)) == leaderless((2, 3), leader_epoch=6)
    assert remove_from_isr(led(1, (1,), elr=(2,)), 2, 2) == led(1, (1,))
    assert remove_from_isr(led(1, (1, 3)), 2, 2) is None
    assert remove_from_isr(led(1, (1, 3)), 3, 2) == led(1, (1,))  # and not into the elr


def test_a_record_contains_the_previous_leaders() -> None:
    second = update_leadership(led(), brokers_up(2, 3), 1)
    assert second is not None
    offline = update_leadership(second, {}, 1)
    assert offline is not None
    assert second.past == (Leadership(5, 1, 1),)
    assert second.leaderships == offline.past == (Leadership(5, 1, 1), Leadership(6, 2, 1))
    raised = raise_leader_epoch(second, 1000)
    assert (raised.leader_epoch, raised.leader, raised.past) == (1000, NO_LEADER, second.leaderships)


def test_a_record_forgets_the_oldest_leaders() -> None:
    record = led()
    for start in range(2, PAST_MAX + 5):
        record = with_leader(record, broker_record(1, start))
    assert [one.leader_epoch for one in record.past] == list(range(8, 8 + PAST_MAX))


def test_elections_without_restarts_displace_no_leader_from_the_record() -> None:
    record = led()
    for _ in range(PAST_MAX):
        record = with_leader(with_leader(record, broker_record(2)), broker_record(1))
    assert record.past == (Leadership(5, 1, 1), Leadership(6, 2, 1))


def test_a_log_whose_last_epoch_was_also_given_to_an_unknown_leader_is_foreign() -> None:
    record = led(2, leader_epoch=7, past=(Leadership(5, 1, 1), Leadership(6, 3, 4)))

    def is_foreign(latest_epoch: int, *known: int) -> bool:
        return has_foreign_history(record, latest_epoch, lambda one: one.leader_epoch in known)

    assert not is_foreign(7, 5, 6, 7)
    assert not is_foreign(5, 5), "the unknown leaders came after everything in the log"
    assert is_foreign(6, 5)
    assert is_foreign(9, 5, 6), "its epochs are higher: they were given before the registry was set back"
    assert not is_foreign(4), "all are unknown, and none is missing in the record"


def test_a_log_is_foreign_if_the_record_does_not_reach_back_to_a_known_leader() -> None:
    record = led(past=tuple(Leadership(epoch, 2, epoch) for epoch in range(100, 100 + PAST_MAX)), leader_epoch=200)
    assert has_foreign_history(record, 4, lambda _: False)
    assert not has_foreign_history(record, 100, lambda one: one.leader_epoch == 100)


replica_sets = st.sets(st.integers(1, 4)).map(lambda found: tuple(sorted(found)))
min_insyncs = st.integers(1, 4)


@st.composite
def records(draw: st.DrawFn) -> PartitionRecord:
    replicas = tuple(draw(st.permutations([1, 2, 3, 4])))
    isr = draw(st.sets(st.sampled_from(replicas)))
    elr = draw(st.sets(st.sampled_from(replicas))) - isr
    leader = draw(st.sampled_from([NO_LEADER, *sorted(isr)]))
    return PartitionRecord(
        replicas=replicas,
        isr=tuple(node_id for node_id in replicas if node_id in isr),
        elr=tuple(node_id for node_id in replicas if node_id in elr),
        leader=leader,
        leader_broker_epoch=NO_EPOCH if leader == NO_LEADER else 1,
    )


@st.composite
def lives(draw: st.DrawFn) -> dict[int, Any]:
    brokers = st.builds(broker_record, st.just(0), st.integers(1, 2), is_draining=st.booleans())
    return {
        node_id: replace(broker, node_id=node_id)
        for node_id, broker in draw(st.dictionaries(st.integers(1, 4), brokers)).items()
    }


@given(record=records(), live=lives(), min_insync=min_insyncs)
def test_a_settled_partition_is_settled(record: PartitionRecord, live: dict[int, Any], min_insync: int) -> None:
    settled = update_leadership(record, live, min_insync) or record
    assert update_leadership(settled, live, min_insync) is None
    can_lead = any(node_id in live for node_id in record.isr + record.elr)
    assert (settled.leader != NO_LEADER) == can_lead
    if settled.leader != NO_LEADER:
        assert settled.leader_broker_epoch == live[settled.leader].epoch
        assert all(node_id in live for node_id in settled.isr)
    assert {*settled.isr, *settled.elr} <= {*record.isr, *record.elr}  # nobody comes to have everything by it


@given(record=records(), isr=replica_sets, min_insync=min_insyncs)
def test_the_elr_fills_the_gap_to_min_insync_replicas(
    record: PartitionRecord, isr: tuple[int, ...], min_insync: int
) -> None:
    changed = with_isr(record, isr, min_insync)
    assert {*changed.isr} == {*isr}
    assert {*changed.elr} <= {*record.isr, *record.elr} - {*isr}
    complete = {*isr, *record.isr, *record.elr}
    assert len(changed.isr + changed.elr) == max(len(isr), min(min_insync, len(complete)))
