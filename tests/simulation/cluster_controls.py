"""Negative controls of the cluster simulation: bugs that a careless change could bring, or that another system has had.

`CONTROLS` notes the first seed that finds each; `python -m tests.simulation.many --controls` searches for it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from headrace.broker.cluster.membership import BrokerRegistration
from headrace.broker.controller.controller import Controller
from headrace.broker.fetch import fetched_partition as readings
from headrace.broker.partition import Partition
from headrace.broker.replication.replica_fetcher import FollowedPartition, ReplicaFetcher
from headrace.machines.controller import leadership
from headrace.machines.controller.leadership import with_isr
from headrace.machines.replication.in_sync import IsrState
from headrace.model.registry_records import BrokerRecord, PartitionRecord
from headrace.registry.interface import SessionState

Plant = Callable[[pytest.MonkeyPatch], None]


def truncate_to_own_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower truncates to its own high watermark, as in Kafka before leader epochs (KIP-101)."""
    copy = ReplicaFetcher._fetch
    seen = set[FollowedPartition]()

    async def cut_and_copy(self: ReplicaFetcher, ready: list[FollowedPartition]) -> None:
        for followed in ready:
            ours, high_watermark = followed.partition.log, followed.partition.high_watermark
            if followed not in seen and ours.start_offset < high_watermark < ours.end_offset:
                await ours.truncate(high_watermark)
            elif followed not in seen and high_watermark <= ours.start_offset < ours.end_offset:
                await ours.reset(ours.start_offset)
            seen.add(followed)
        await copy(self, ready)

    patch.setattr(ReplicaFetcher, "_fetch", cut_and_copy)


def acknowledge_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "_durable_offset", lambda self: self.log.end_offset)


def fetch_without_epoch_checks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(readings, "check_leader_epoch", lambda *_: None)
    patch.setattr(readings, "_diverging_epoch", lambda *_: None)


def stay_controller_while_the_session_is_in_doubt(patch: pytest.MonkeyPatch) -> None:
    def is_still_controller(self: Controller) -> bool:
        return self._catalogue.controller in self._stood

    patch.setattr(Controller, "_is_still_controller", is_still_controller)


def trust_the_session_after_a_pause(patch: pytest.MonkeyPatch) -> None:
    """Trust the session until the registry client reports a doubt, however long the process was paused."""

    def session_valid(self: BrokerRegistration) -> bool:
        return self.state is SessionState.HELD

    patch.setattr(BrokerRegistration, "session_valid", property(session_valid))


def elect_without_a_new_epoch(patch: pytest.MonkeyPatch) -> None:
    def elected(record: PartitionRecord, leader: BrokerRecord) -> PartitionRecord:
        return replace(record, leader=leader.node_id, leader_broker_epoch=leader.epoch)

    patch.setattr(leadership, "with_leader", elected)


def let_lagging_followers_join_the_isr(patch: pytest.MonkeyPatch) -> None:
    def proposal(
        self: IsrState, live: Mapping[int, BrokerRecord], _now: float, _lag: float, _hw: int, min_insync: int
    ) -> PartitionRecord | None:
        near = [node_id for node_id in self._followers if self._may_join(node_id, live)]
        changed = with_isr(self.record, (self._node_id, *near), min_insync)
        return None if changed == self.record or self.proposed is not None else changed

    patch.setattr(IsrState, "proposal", proposal)


CONTROLS: dict[Plant, int] = {
    truncate_to_own_watermark: 29,
    acknowledge_before_the_flush: 480,
    fetch_without_epoch_checks: 5,
    stay_controller_while_the_session_is_in_doubt: 27,
    trust_the_session_after_a_pause: 6,
    elect_without_a_new_epoch: 2,
    let_lagging_followers_join_the_isr: 295,
}
