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
        held = [key for key in logs if key[0] == record.id]
        if not held:
            continue
        if record.id in by_id:
            _grow(plan, by_id[record.id], record, logs, held, epoch_floor)
        elif record.name in by_name:
            plan.problems.append(f"topic {record.name} ({record.id}): another topic has this name; adopt it with --as")
        elif record.owner is not None and record.owner not in by_id:
            plan.problems.append(f"topic {record.name} ({record.id}): the topic with which it is co-located is missing")
        else:
            count = max(record.partitions, 1 + max(index for _, index in held))
            whole = replace(record, partitions=count)
            plan.created.append((whole, _records(plan, whole, 0, logs, held, epoch_floor)))
            by_name[record.name] = by_id[record.id] = whole
    for topic_id in {topic_id for topic_id, _ in logs} - found.keys() - by_id.keys():
        plan.problems.append(
            f"topic id {topic_id}: it has no topic file, so its name is unknown; adopt it with --as NAME"
        )
    _raise_epochs(plan, places, logs, epoch_floor)
    return plan


def _grow(
    plan: RebuildPlan,
    known: TopicRecord,
    found: TopicRecord,
    logs: Mapping[LogKey, Mapping[int, LogEnd]],
    held: list[LogKey],
    epoch_floor: int,
) -> None:
    total = max(found.partitions, 1 + max(index for _, index in held))
    if total > known.partitions:
        grown = replace(known, partitions=total)
        plan.grown.append((known, total, _records(plan, grown, known.partitions, logs, held, epoch_floor)))


def _records(
    plan: RebuildPlan,
    topic: TopicRecord,
    first: int,
    logs: Mapping[LogKey, Mapping[int, LogEnd]],
    held: list[LogKey],
    epoch_floor: int,
) -> list[PartitionRecord]:
    everywhere = sorted({node_id for key in held for node_id in logs[key]})
    records = []
    for index in range(first, topic.partitions):
        ends = logs.get((topic.id, index), {})
        if not ends:
            plan.problems.append(f"{topic.name}-{index}: no log was found; the partition is created empty")
        nodes = sorted(ends) or everywhere
        turn = index % len(nodes)
        best = max(ends.values(), default=LogEnd(NO_EPOCH, 0))
        in_sync = [node_id for node_id in nodes if ends.get(node_id, best) == best]
        records.append(
            PartitionRecord(
                replicas=(*nodes[turn:], *nodes[:turn]),
                isr=tuple(in_sync),
                leader=NO_LEADER,
                leader_epoch=max(best.leader_epoch, epoch_floor) + EPOCH_MARGIN,
            )
        )
    return records


def _raise_epochs(
    plan: RebuildPlan,
    places: Mapping[LogKey, PartitionRecord],
    logs: Mapping[LogKey, Mapping[int, LogEnd]],
    epoch_floor: int,
) -> None:
    """A registry that lacks topics or epochs is older than the logs, so all epochs in it may have been used."""
    known_epochs = {key: max(end.leader_epoch for end in ends.values()) for key, ends in logs.items() if ends}
    is_older = bool(plan.created or plan.grown) or any(
        epoch > places[key].leader_epoch for key, epoch in known_epochs.items() if key in places
    )
    if is_older:
        plan.raised = {
            key: max(record.leader_epoch, known_epochs.get(key, NO_EPOCH), epoch_floor) + EPOCH_MARGIN
            for key, record in places.items()
        }
