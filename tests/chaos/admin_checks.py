"""Check that confirmed administrative operations are in effect, and nothing else is. Pure.

- An unconfirmed operation may take effect at any later time, even after operations that began after it, because its
  request may wait at a paused broker. The same holds for a confirmed operation that took so long that its client may
  have repeated the request.
- So each rule accepts the result of the last confirmed operation and those of all operations in doubt. The operations
  on a topic count from its last confirmed creation on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.admin_client import REPEATED_NS
from tests.chaos.names import SCRATCH


@dataclass(slots=True)
class AdminOperation:
    kind: str
    arguments: dict[str, Any]
    is_confirmed: bool = False
    in_doubt: bool = True
    """a request of the operation may still take effect"""

    @property
    def topic(self) -> str | None:
        topic: str | None = self.arguments.get("topic")
        return topic


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as one broker describes it, and its records."""

    replicas: Mapping[int, tuple[int, ...]]
    configs: Mapping[str, str] = field(default_factory=dict)
    log_starts: Mapping[int, int] = field(default_factory=dict)
    values: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster as the broker `described_by` describes it."""

    described_by: str
    topics: Mapping[str, TopicState]
    drained: frozenset[int] = frozenset()
    moving: tuple[str, ...] = ()
    """partitions whose reassignment is not complete"""


def admin_operations(entries: Iterable[list[Any]]) -> list[AdminOperation]:
    operations: dict[int, AdminOperation] = {}
    moments: dict[int, int] = {}
    for entry in entries:
        match entry:
            case ["do", number, began, kind, arguments]:
                operations[number], moments[number] = AdminOperation(kind, arguments), began
            case ["done", number, ended]:
                operations[number].is_confirmed = True
                operations[number].in_doubt = ended - moments[number] >= REPEATED_NS
    return list(operations.values())


def check_administration(operations: Sequence[AdminOperation], state: ClusterState) -> list[str]:
    """Apply all rules; each sentence names the broker whose description it is about."""
    return [f"{state.described_by}: {sentence}" for rule in RULES for sentence in rule(operations, state)]


def deleted_offsets(operations: Iterable[AdminOperation], topic: str) -> dict[int, int]:
    """Return, by partition, the offset below which records of the topic may have been deleted."""
    deleted: dict[int, int] = {}
    for one in operations:
        if one.kind == "trim" and one.topic == topic:
            partition, offset = one.arguments["partition"], one.arguments["offset"]
            deleted[partition] = max(offset, deleted.get(partition, 0))
    return deleted


def topics_exist_or_not(operations: Sequence[AdminOperation], state: ClusterState) -> list[str]:
    found = list[str]()
    for name, history in _by_topic(operations).items():
        changes = [one for one in history if one.kind in ("create", "delete")]
        possible = {one.kind == "create" for one in _possible(changes)}
        if not any(one.is_confirmed for one in changes):
            possible.add(not name.startswith(SCRATCH))
        exists = name in state.topics
        if exists not in possible:
            found.append(f"topic {name!r} {'exists' if exists else 'does not exist'} after {_show(changes)}")
    created = {one.topic for one in operations if one.kind == "create"}
    found += [
        f"topic {name!r} exists, but its creation was not requested"
        for name in state.topics
        if name.startswith(SCRATCH) and name not in created
    ]
    return found


def partition_counts(operations: Sequence[AdminOperation], state: ClusterState) -> list[str]:
    found = list[str]()
    for name, history in _of_present_topics(operations, state):
        counts = [one for one in history if "partitions" in one.arguments]
        confirmed = [one.arguments["partitions"] for one in counts if one.is_confirmed]
        begun = [one.arguments["partitions"] for one in counts]
        actual = len(state.topics[name].replicas)
        if confirmed and not max(confirmed) <= actual <= max(begun):
            found.append(f"topic {name!r} has {actual} partitions after {_show(counts)}")
    return found


def config_values(operations: Sequence[AdminOperation], state: ClusterState) -> list[str]:
    found = list[str]()
    for name, history in _of_present_topics(operations, state):
        changes = defaultdict[str, list[AdminOperation]](list)
        for one in history:
            if one.kind == "config":
                changes[one.arguments["name"]].append(one)
            for config in one.arguments.get("configs", ()):
                changes[config].append(one)
        for config, requested in changes.items():
            possible = {
                one.arguments["value"] if one.kind == "config" else one.arguments["configs"][config]
                for one in _possible(requested)
            }
            actual = state.topics[name].configs.get(config)
            if any(one.is_confirmed for one in requested) and actual not in possible:
                found.append(f"{config} of topic {name!r} is {actual}; it can only be one of {sorted(possible)}")
    return found


def replica_placements(operations: Sequence[AdminOperation], state: ClusterState) -> list[str]:
    """A drain moves replicas too: a reassignment counts only if no drain began after it."""
    found = [f"the reassignment of {partition} is not complete" for partition in state.moving]
    last_drain = max((at for at, one in enumerate(operations) if one.kind == "drain"), default=-1)
    for name, history in _of_present_topics(operations, state):
        moves = defaultdict[int, list[AdminOperation]](list)
        for one in history:
            if one.kind == "reassign":
                moves[one.arguments["partition"]].append(one)
        for partition, requested in moves.items():
            confirmed = [one for one in requested if one.is_confirmed]
            if not confirmed or _position(operations, confirmed[-1]) < last_drain:
                continue
            possible = {tuple(one.arguments["replicas"]) for one in _possible(requested)}
            actual = state.topics[name].replicas.get(partition)
            if actual not in possible:
                found.append(f"{name}[{partition}] is on {actual}; it can only be on one of {sorted(possible)}")
    return found


def log_starts(operations: Sequence[AdminOperation], state: ClusterState) -> list[str]:
    """A log starts where DeleteRecords was confirmed, and no log starts above every requested offset."""
    found = list[str]()
    for name, topic in state.topics.items():
        trims = [one for one in operations if one.kind == "trim" and one.topic == name]
        for partition, start in topic.log_starts.items():
            requested = [one for one in trims if one.arguments["partition"] == partition]
            lowest = max((one.arguments["offset"] for one in requested if one.is_confirmed), default=0)
            highest = max((one.arguments["offset"] for one in requested), default=0)
            if start < lowest:
                found.append(f"{name}[{partition}] starts at {start} although records below {lowest} were deleted")
            if start > highest:
                found.append(f"{name}[{partition}] starts at {start}; no request deleted records above {highest}")
    return found


def drained_brokers(operations: Sequence[AdminOperation], state: ClusterState) -> list[str]:
    by_broker = defaultdict[int, list[AdminOperation]](list)
    for one in operations:
        if one.kind == "drain":
            by_broker[one.arguments["broker"]].append(one)
    found = [f"broker {broker} is drained, but no drain was requested" for broker in state.drained - by_broker.keys()]
    for broker, requested in by_broker.items():
        possible = {one.arguments["drained"] for one in _possible(requested)}
        is_drained = broker in state.drained
        if any(one.is_confirmed for one in requested) and is_drained not in possible:
            found.append(f"broker {broker} is {'drained' if is_drained else 'not drained'} after {_show(requested)}")
    return found


def scratch_records(operations: Sequence[AdminOperation], state: ClusterState) -> list[str]:
    """Every confirmed record is in the topic once; no record of a deleted topic of the same name is."""
    found = list[str]()
    for name, history in _of_present_topics(operations, state):
        writes = {one.arguments["value"]: one for one in history if one.kind == "write"}
        times = Counter(state.topics[name].values)
        found += [
            f"lost: {value!r} was acknowledged and is not in topic {name!r}"
            for value, one in writes.items()
            if one.is_confirmed and not times[value]
        ]
        found += [f"doubled: {value!r} is {count} times in {name!r}" for value, count in times.items() if count > 1]
        if name.startswith(SCRATCH):
            found += [
                f"record of a deleted topic: {value!r} is in topic {name!r}, which was created after it was written"
                for value in times
                if value not in writes
            ]
    return found


def _by_topic(operations: Iterable[AdminOperation]) -> dict[str, list[AdminOperation]]:
    by_topic = defaultdict[str, list[AdminOperation]](list)
    for one in operations:
        if one.topic is not None:
            by_topic[one.topic].append(one)
    return by_topic


def _of_present_topics(
    operations: Iterable[AdminOperation], state: ClusterState
) -> Iterable[tuple[str, list[AdminOperation]]]:
    """Return the operations on each existing topic, from its last confirmed creation on. If its deletion was confirmed
    since, a creation in doubt created it again, and only operations requested after that deletion count."""
    for name, history in _by_topic(operations).items():
        first = 0
        for at, one in enumerate(history):
            if one.is_confirmed and one.kind in ("create", "delete"):
                first = at if one.kind == "create" else at + 1
        if name in state.topics:
            yield name, history[first:]


def _possible(operations: Sequence[AdminOperation]) -> list[AdminOperation]:
    """Return the operations whose result may be in effect: the last confirmed one, and all in doubt."""
    confirmed = [one for one in operations if one.is_confirmed]
    return [*confirmed[-1:], *(one for one in operations if one.in_doubt)]


def _position(operations: Sequence[AdminOperation], wanted: AdminOperation) -> int:
    return next(at for at, one in enumerate(operations) if one is wanted)


def _show(operations: Iterable[AdminOperation]) -> str:
    return ", ".join(
        f"{one.kind} {one.arguments}{'' if one.is_confirmed else ' (not confirmed)'}" for one in operations
    )


RULES: tuple[Callable[[Sequence[AdminOperation], ClusterState], list[str]], ...] = (
    topics_exist_or_not,
    partition_counts,
    config_values,
    replica_placements,
    log_starts,
    drained_brokers,
    scratch_records,
)
