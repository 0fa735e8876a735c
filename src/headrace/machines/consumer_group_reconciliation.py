"""How a member moves from what it holds to what it shall hold: one step for each of its heartbeats.

A partition is given to a member only when nobody else holds it, and it is held until its holder says that it has given
it up, leaves, or is fenced. So no partition ever has two owners (I18). The member reaches the epoch of the target when
it has given up all that it must; what others still hold it gets later, at that same epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from headrace.machines.assignors import TopicPartition
from headrace.machines.consumer_group_state import Holding, MemberState


def reconciled(
    holding: Holding,
    target_epoch: int,
    target: frozenset[TopicPartition],
    owned: Collection[TopicPartition] | None,
    held_by_others: Collection[TopicPartition],
) -> Holding:
    """The member's next step; `owned` is what it says that it owns, None when it said nothing."""
    if holding.is_reconciled(target_epoch):
        return holding
    if holding.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(owned, holding.revoking):
        return holding
    kept = {partition: since for partition, since in holding.assigned.items() if partition in target}
    surplus = {partition: since for partition, since in holding.assigned.items() if partition not in target}
    if surplus and _still_owns(owned, surplus):
        return replace(holding, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=surplus)
    wanted = target - kept.keys()
    free = wanted.difference(held_by_others)
    return Holding(
        epoch=target_epoch,
        previous_epoch=holding.epoch if holding.epoch != target_epoch else holding.previous_epoch,
        state=MemberState.STABLE if free == wanted else MemberState.UNRELEASED_PARTITIONS,
        assigned=kept | dict.fromkeys(free, target_epoch),
    )


def _still_owns(owned: Collection[TopicPartition] | None, partitions: Mapping[TopicPartition, int]) -> bool:
    """A member that says nothing of what it owns has given up nothing."""
    return owned is None or any(partition in partitions for partition in owned)
