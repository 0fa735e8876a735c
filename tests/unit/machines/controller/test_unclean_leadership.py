"""With `unclean.leader.election.enable`, a replica that may lack records leads if no other replica can."""

from __future__ import annotations

from tests.unit.machines.replication.replication_model import brokers_up, without_past

from headrace.machines.controller.colocated_topics import ConfiguredPartition, update_colocated
from headrace.machines.controller.leadership import update_leadership
from headrace.model.registry_records import NO_LEADER, PartitionRecord

LED = PartitionRecord(replicas=(1, 2, 3), isr=(1,), leader=1, leader_broker_epoch=1, leader_epoch=5)


def updated(record: PartitionRecord, *live: int, allows_unclean: bool = True) -> PartitionRecord:
    changed = without_past(update_leadership(record, brokers_up(*live), 1, allows_unclean=allows_unclean))
    return changed or record


def test_the_first_live_replica_leads_when_no_in_sync_replica_is_live() -> None:
    record = updated(LED, 2, 3)
    assert (record.leader, record.isr, record.leader_epoch, record.unclean_epoch) == (2, (2,), 6, 6)


def test_without_the_setting_the_partition_waits_for_an_in_sync_replica() -> None:
    record = updated(LED, 2, 3, allows_unclean=False)
    assert (record.leader, record.isr, record.unclean_epoch) == (NO_LEADER, (1,), -1)


def test_a_replica_that_has_all_records_goes_first() -> None:
    in_sync = PartitionRecord(replicas=(1, 2, 3), isr=(1, 3), leader=1, leader_broker_epoch=1, leader_epoch=5)
    record = updated(in_sync, 2, 3)
    assert (record.leader, record.unclean_epoch) == (3, -1)
    eligible = PartitionRecord(replicas=(1, 2, 3), isr=(1,), elr=(3,), leader=1, leader_broker_epoch=1, leader_epoch=5)
    assert updated(eligible, 2, 3).leader == 3


def test_the_partition_stays_without_a_leader_when_no_replica_is_live() -> None:
    record = updated(LED, 4)
    assert (record.leader, record.isr, record.unclean_epoch) == (NO_LEADER, (1,), -1)


def test_a_partition_that_already_has_no_leader_gets_one_when_the_setting_is_turned_on() -> None:
    waiting = updated(LED, 2, 3, allows_unclean=False)
    assert updated(waiting, 2, 3).leader == 2


def test_a_co_located_partition_follows_the_unclean_leader_of_its_topic() -> None:
    acks = PartitionRecord(replicas=(1, 2, 3), isr=(1,), leader=1, leader_broker_epoch=1, leader_epoch=7)
    configured = [ConfiguredPartition(record, 1, allows_unclean=True) for record in (LED, acks)]
    changed = update_colocated(configured[0], configured[1:], brokers_up(3, 2), prefers=False)
    assert [record and (record.leader, record.isr) for record in changed] == [(2, (2,)), (2, (2,))]


def test_a_co_located_partition_that_can_lead_without_loss_does_so() -> None:
    acks = PartitionRecord(replicas=(1, 2, 3), isr=(1, 3), leader=1, leader_broker_epoch=1, leader_epoch=7)
    configured = [ConfiguredPartition(record, 1, allows_unclean=True) for record in (LED, acks)]
    _, changed = update_colocated(configured[0], configured[1:], brokers_up(2, 3), prefers=False)
    assert changed is not None
    assert (changed.leader, changed.unclean_epoch) == (3, -1)
