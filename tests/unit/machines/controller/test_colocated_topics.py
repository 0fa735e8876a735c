"""Co-located topics keep the replicas and the leader of their owner."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.machines.replication.replication_model import broker_record, brokers_up, without_past

from headrace.machines.controller.colocated_topics import ConfiguredPartition, colocated_record, update_colocated
from headrace.machines.controller.leadership import LiveBrokers
from headrace.machines.controller.reassignment import begin_reassignment, cancel_reassignment, is_reassigning
from headrace.model.registry_records import NO_EPOCH, NO_LEADER, PartitionRecord

ALL = brokers_up(1, 2, 3)
NODES = (1, 2, 3, 4)


def led(leader: int = 1, isr: tuple[int, ...] = (1, 2, 3), **fields: Any) -> PartitionRecord:
    given_fields = {"replicas": (1, 2, 3), "leader_epoch": 5, "leader_broker_epoch": 1, **fields}
    return PartitionRecord(leader=leader, isr=isr, **given_fields)


def settled(
    owner: PartitionRecord, *colocated_topics: PartitionRecord, live: LiveBrokers = ALL, prefers: bool = False
) -> list[PartitionRecord]:
    """The records after one pass of the controller."""
    before = [owner, *colocated_topics]
    kept = [ConfiguredPartition(record, 1) for record in before]
    changed = update_colocated(kept[0], kept[1:], live, prefers=prefers)
    return [new or old for new, old in zip(changed, before, strict=True)]


def leaders(records: list[PartitionRecord]) -> list[int]:
    return [record.leader for record in records]


def test_a_healthy_partition_is_left_unchanged() -> None:
    assert settled(led(2), led(2), led(2)) == [led(2)] * 3


def test_a_companion_is_led_by_its_owners_leader_at_once() -> None:
    found = settled(led(2), led(1), led(2))
    assert list(map(without_past, found)) == [led(2), led(2, leader_epoch=6), led(2)]


def test_a_colocated_partition_waits_until_the_owners_leader_can_lead_it_without_loss() -> None:
    apart = settled(led(2, (2,)), led(1, (1, 3)))
    assert leaders(apart) == [2, 1]
    assert leaders(settled(led(2, (2,)), led(1, (1, 2, 3)))) == [2, 2]


def test_the_owner_moves_to_its_colocated_partitions_if_only_that_reunites_them() -> None:
    assert leaders(settled(led(2), led(1, (1, 3)))) == [1, 1]
    assert leaders(settled(led(2), led(1, (1, 3)), led(3, (3,)))) == [3, 3, 3]


def test_when_all_lose_their_leader_the_same_replica_follows() -> None:
    live = brokers_up(2, 3)
    assert leaders(settled(led(), led(1, (1, 3)), live=live)) == [3, 3]
    assert leaders(settled(led(1, (1, 2)), led(1, (1, 3)), live=live)) == [2, 3], "nobody has everything of both"


def test_a_draining_leader_transfers_colocated_partitions_together() -> None:
    live = {**ALL, 1: broker_record(1, is_draining=True)}
    assert leaders(settled(led(), led(), led(1, (1, 3)), live=live)) == [3, 3, 3]
    assert leaders(settled(led(1, (1,)), led(), live=live)) == [1, 2], "what can be handed over is"


def test_the_preferred_replica_leads_again_only_if_it_can_lead_all_colocated_partitions() -> None:
    assert leaders(settled(led(2), led(2), prefers=True)) == [1, 1]
    assert leaders(settled(led(2), led(2, (2, 3)), prefers=True)) == [2, 2]
    assert leaders(settled(led(2), prefers=True)) == [1], "without companions nobody is asked"


def test_a_reassignment_includes_colocated_partitions_and_ends_when_all_are_in_sync() -> None:
    live = brokers_up(1, 2, 3, 4)
    moving = begin_reassignment(led(), (4, 2, 3))
    owner, colocated_topic = settled(moving, led(), live=live)
    assert owner == moving
    assert (colocated_topic.replicas, colocated_topic.adding, colocated_topic.removing) == ((4, 2, 3, 1), (4,), (1,))
    owner = replace(owner, isr=(4, 2, 3, 1))
    assert settled(owner, colocated_topic, live=live) == [owner, colocated_topic], "one has not arrived"
    colocated_topic = replace(colocated_topic, isr=(4, 2, 3, 1))
    assert settled(moving, colocated_topic, live=live) == [moving, colocated_topic], "nor does it go before its owner"
    moved = settled(owner, colocated_topic, live=live)
    assert [(one.replicas, one.leader, is_reassigning(one)) for one in moved] == [((4, 2, 3), 4, False)] * 2


def test_a_move_that_is_cancelled_brings_the_companions_back() -> None:
    moving = begin_reassignment(led(), (4, 2, 3))
    owner, colocated_topic = settled(moving, led(), live=brokers_up(1, 2, 3, 4))
    assert settled(cancel_reassignment(owner), colocated_topic) == [cancel_reassignment(owner)] * 2


def test_a_new_replica_order_applies_to_colocated_partitions() -> None:
    assert [one.replicas for one in settled(begin_reassignment(led(), (3, 2, 1)), led())] == [(3, 2, 1)] * 2


def test_the_last_copy_of_a_colocated_partition_stays_until_another_is_in_sync() -> None:
    owner, colocated_topic = led(2, (2, 3), replicas=(2, 3)), led(1, (1,), replicas=(1, 2), adding=(2,))
    assert settled(owner, colocated_topic) == [
        owner,
        replace(colocated_topic, replicas=(2, 3, 1), adding=(2, 3), removing=(1,)),
    ]
    stuck = led(1, (1,), replicas=(1, 2), adding=(1,))
    assert settled(owner, stuck) == [owner, stuck]


def test_a_new_companion_is_where_its_owner_is() -> None:
    assert colocated_record(led(2), ALL) == led(2, leader_epoch=0)
    assert colocated_record(led(2, (2,)), brokers_up(2, 3)) == led(2, (2, 3), leader_epoch=0)
    moving = begin_reassignment(led(2), (4, 2, 3))
    assert colocated_record(moving, ALL) == replace(moving, isr=(2, 3, 1), leader_epoch=0)
    restarted = {**ALL, 2: broker_record(2, 9)}
    assert colocated_record(led(2), restarted) == led(1, leader_epoch=0), "what led it is not that broker any more"
    nobody = colocated_record(led(2), {})
    assert (nobody.leader, nobody.leader_broker_epoch, nobody.isr) == (NO_LEADER, NO_EPOCH, (1, 2, 3))


@st.composite
def records(draw: st.DrawFn) -> PartitionRecord:
    replicas = tuple(draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True)))
    isr = tuple(draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True)))
    leader = draw(st.sampled_from((NO_LEADER, *isr)))
    record = led(leader, tuple(node_id for node_id in replicas if node_id in isr), replicas=replicas)
    if draw(st.booleans()):
        record = begin_reassignment(record, tuple(draw(st.lists(st.sampled_from(NODES), min_size=1, unique=True))))
    return record


def caught_up(record: PartitionRecord, live: LiveBrokers) -> PartitionRecord:
    """All that are up follow the leader, if there is one, until they have everything."""
    if record.leader == NO_LEADER:
        return record
    return replace(record, isr=tuple(node for node in record.replicas if node in live or node in record.isr))


@given(records(), st.lists(records(), max_size=2), st.sets(st.sampled_from(NODES)), st.sets(st.sampled_from(NODES)))
def test_colocated_partitions_converge_to_one_leader_when_all_brokers_are_up(
    owner: PartitionRecord, colocated_topics: list[PartitionRecord], up: set[int], draining: set[int]
) -> None:
    together = [owner, *colocated_topics]
    for live in (
        {node_id: broker_record(node_id, is_draining=node_id in draining) for node_id in up},
        brokers_up(*NODES),
    ):
        for _ in range(5):  # nobody catches up meanwhile: there is nothing to go back and forth about
            before, together = together, settled(*together, live=live)
        assert together == before
    for _ in range(5):
        together = settled(*(caught_up(record, live) for record in together), live=live)
    assert {(one.replicas, one.isr, one.leader, is_reassigning(one)) for one in together} == {
        (together[0].replicas, together[0].replicas, together[0].leader, False)
    }
    assert together[0].leader != NO_LEADER
