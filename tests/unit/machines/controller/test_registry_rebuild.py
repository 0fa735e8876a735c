"""Missing registry records are rebuilt from logs and topic files."""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from headrace.machines.controller.registry_rebuild import EPOCH_MARGIN, LogEnd, plan_rebuild
from headrace.model.registry_records import NO_LEADER, PartitionRecord, TopicRecord

ID, OTHER = UUID(int=1), UUID(int=2)
ORDERS = TopicRecord(name="orders", id=ID, partitions=1, configs={"retention.ms": "5"}, created_ms=1)
PLACE = PartitionRecord(replicas=(1,), isr=(1,), leader=1, leader_epoch=3, leader_broker_epoch=1)


def test_the_most_complete_log_is_in_sync_and_epochs_are_higher_than_in_any_log() -> None:
    logs = {(ID, 0): {1: LogEnd(7, 100), 2: LogEnd(8, 90), 3: LogEnd(8, 90), 4: LogEnd(8, 80)}}
    plan = plan_rebuild([], {}, {ID: ORDERS}, logs, epoch_floor=12)
    ((record, (place,)),) = plan.created
    assert record == ORDERS
    assert (place.replicas, place.isr, place.leader) == ((1, 2, 3, 4), (2, 3), NO_LEADER)
    assert place.leader_epoch == 12 + EPOCH_MARGIN


def test_a_registry_that_knows_everything_is_left_as_it_is() -> None:
    plan = plan_rebuild([ORDERS], {(ID, 0): PLACE}, {ID: ORDERS}, {(ID, 0): {1: LogEnd(3, 5)}}, epoch_floor=3)
    assert plan.is_empty
    assert plan.problems == []


def test_a_registry_that_is_older_than_the_logs_gets_higher_epochs_once() -> None:
    logs = {(ID, 0): {1: LogEnd(9, 5)}}
    plan = plan_rebuild([ORDERS], {(ID, 0): PLACE}, {ID: ORDERS}, logs, epoch_floor=9)
    assert plan.raised == {(ID, 0): 9 + EPOCH_MARGIN}
    raised = replace(PLACE, leader_epoch=plan.raised[ID, 0])
    assert plan_rebuild([ORDERS], {(ID, 0): raised}, {ID: ORDERS}, logs, epoch_floor=9).is_empty


def test_a_topic_that_was_grown_since_is_grown_again_and_a_partition_without_a_log_begins_empty() -> None:
    found = replace(ORDERS, partitions=3)
    logs = {(ID, 0): {1: LogEnd(3, 5)}, (ID, 1): {1: LogEnd(0, 1)}}
    plan = plan_rebuild([ORDERS], {(ID, 0): PLACE}, {ID: found}, logs)
    ((known, total, places),) = plan.grown
    assert (known, total, [place.replicas for place in places]) == (ORDERS, 3, [(1,), (1,)])
    assert plan.problems == ["orders-2: no log was found; the partition is created empty"]


def test_an_existing_topic_keeps_its_name() -> None:
    namesake = replace(ORDERS, id=OTHER, created_ms=9)
    plan = plan_rebuild([namesake], {}, {ID: ORDERS}, {(ID, 0): {1: LogEnd(0, 1)}})
    assert plan.created == []
    assert "another topic has this name" in plan.problems[0]


def test_the_newer_of_two_topics_gets_the_name() -> None:
    newer = replace(ORDERS, id=OTHER, created_ms=9)
    logs = {(ID, 0): {1: LogEnd(0, 1)}, (OTHER, 0): {1: LogEnd(0, 1)}}
    plan = plan_rebuild([], {}, {ID: ORDERS, OTHER: newer}, logs)
    assert [record.id for record, _ in plan.created] == [OTHER]


def test_a_co_located_topic_is_restored_only_with_its_owner() -> None:
    acks = TopicRecord(name="__acks.orders", id=OTHER, partitions=1, created_ms=0, owner=ID)
    logs = {(ID, 0): {1: LogEnd(0, 1)}, (OTHER, 0): {1: LogEnd(0, 1)}}
    both = plan_rebuild([], {}, {OTHER: acks, ID: ORDERS}, logs)
    assert [record.name for record, _ in both.created] == ["orders", "__acks.orders"]
    alone = plan_rebuild([], {}, {OTHER: acks}, {(OTHER, 0): {1: LogEnd(0, 1)}})
    assert alone.created == []
    assert "is missing" in alone.problems[0]


def test_logs_without_a_topic_file_are_reported() -> None:
    plan = plan_rebuild([], {}, {}, {(ID, 0): {1: LogEnd(0, 1)}})
    assert plan.is_empty
    assert "its name is unknown" in plan.problems[0]
