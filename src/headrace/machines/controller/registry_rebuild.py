"""Rebuild a registry from the logs in the data folders: topics, partitions and leader epochs. Pure.

- The replicas of a partition are the brokers that have a log of it. In sync are those with the most complete log: the
  highest leader epoch, and in that epoch the highest end offset. Such a log has all committed records.
- Leader epochs are raised by a margin above all known ones, because an epoch without records leaves no trace in the
  logs, and clients ignore metadata with a lower epoch than they know.
- A topic is omitted if another topic has its name, or if it is co-located with a missing topic: the controller would
  delete it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.model.registry_records import NO_EPOCH, NO_LEADER, PartitionRecord, TopicRecord

EPOCH_MARGIN = 1_000_000
PRODUCER_ID_MARGIN = 1_000_000

LogKey = tuple[UUID, int]


class LogEnd(NamedTuple):
    """The end of a log. Of two logs of a partition, the one with the greater end is more complete."""

    leader_epoch: int
    offset: int


class RebuildPlan(msgspec.Struct):
    """`created` and `grown` contain the records of the new partitions; `raised` the partitions' new leader epochs."""

    created: list[tuple[TopicRecord, list[PartitionRecord]]] = []
    grown: list[tuple[TopicRecord, int, list[PartitionRecord]]] = []
    raised: dict[LogKey, int] = {}
    problems: list[str] = []

    @property
    def is_empty(self) -> bool:
        return not (self.created or self.grown or self.raised)


def plan_rebuild(
    known: Iterable[TopicRecord],
    places: Mapping[LogKey, PartitionRecord],
    found: Mapping[UUID, TopicRecord],
    logs: Mapping[LogKey, Mapping[int, LogEnd]],
    *,
    epoch_floor: int = 0,
) -> RebuildPlan:
    """`known` and `places` are the registry's topics and partitions, `found` the topic files beside the logs, and
    `logs` the log ends by broker. `epoch_floor` is the highest known epoch, including those in transaction markers."""
    plan = RebuildPlan()
    by_name = {record.name: record for record in known}
    by_id = {record.id: record for record in by_name.values()}
    # Owners before their co-located topics, and the newest of several topics with one name.
    for record in sorted(found.values(), key=lambda one: (one.owner is not None, -one.created_ms, one.name)):
        own_logs = {index: ends for (topic_id, index), ends in logs.items() if topic_id == record.id}
        if not own_logs:
            continue
        total = max(record.partitions, 1 + max(own_logs))
        if record.id in by_id:
            before = by_id[record.id]
            if total > before.partitions:
                new = _new_partitions(plan, before.name, range(before.partitions, total), own_logs, epoch_floor)
                plan.grown.append((before, total, new))
        elif record.name in by_name:
            plan.problems.append(f"topic {record.name} ({record.id}): another topic has this name; adopt it with --as")
        elif record.owner is not None and record.owner not in by_id:
            plan.problems.append(f"topic {record.name} ({record.id}): the topic with which it is co-located is missing")
        else:
            whole = replace(record, partitions=total)
            plan.created.append((whole, _new_partitions(plan, whole.name, range(total), own_logs, epoch_floor)))
            by_name[record.name] = by_id[record.id] = whole
    for topic_id in {topic_id for topic_id, _ in logs} - found.keys() - by_id.keys():
        plan.problems.append(
            f"topic id {topic_id}: it has no topic file, so its name is unknown; adopt it with --as NAME"
        )
    plan.raised = _raised_epochs(plan, places, logs, epoch_floor)
    return plan


def _new_partitions(
    plan: RebuildPlan, topic: str, indexes: range, logs: Mapping[int, Mapping[int, LogEnd]], epoch_floor: int
) -> list[PartitionRecord]:
    everywhere = sorted({node_id for ends in logs.values() for node_id in ends})
    records = []
    for index in indexes:
        ends = logs.get(index, {})
        if not ends:
            plan.problems.append(f"{topic}-{index}: no log was found; the partition is created empty")
        nodes = sorted(ends) or everywhere
        turn = index % len(nodes)
        best = max(ends.values(), default=LogEnd(NO_EPOCH, 0))
        records.append(
            PartitionRecord(
                replicas=(*nodes[turn:], *nodes[:turn]),
                isr=tuple(node_id for node_id in nodes if ends.get(node_id, best) == best),
                leader=NO_LEADER,
                leader_epoch=max(best.leader_epoch, epoch_floor) + EPOCH_MARGIN,
            )
        )
    return records


def _raised_epochs(
    plan: RebuildPlan,
    places: Mapping[LogKey, PartitionRecord],
    logs: Mapping[LogKey, Mapping[int, LogEnd]],
    epoch_floor: int,
) -> dict[LogKey, int]:
    """A registry that lacks topics or epochs is older than the logs, so all epochs in it may have been used."""
    known_epochs = {key: max(end.leader_epoch for end in ends.values()) for key, ends in logs.items() if ends}
    is_older = any(known_epochs.get(key, NO_EPOCH) > record.leader_epoch for key, record in places.items())
    if not (is_older or plan.created or plan.grown):
        return {}
    return {
        key: max(record.leader_epoch, known_epochs.get(key, NO_EPOCH), epoch_floor) + EPOCH_MARGIN
        for key, record in places.items()
    }
