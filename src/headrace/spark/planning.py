"""Query the brokers when a Spark query is planned: partitions, offsets, and the progress of its consumer group.

A stream's position is in its checkpoint. The consumer group only reports it to lag tools, so a failed commit is logged
and the query continues; only an invalid group is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.groups.offsets import Commit, commit, committed
from headrace.client.metadata import TopicPartition
from headrace.columns.offsets import OffsetBounds, find_bounds, offsets_at, topics_matching
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.errors import (
    HeadraceError,
    InconsistentGroupProtocol,
    InvalidConfig,
    InvalidGroupId,
    UnknownTopicOrPartition,
)
from headrace.model.ids import ZERO_ID, id_to_text
from headrace.spark.offsets import OffsetMap
from headrace.spark.options import EARLIEST, LATEST, OffsetSpec, SourceOptions

DEADLINE_SECONDS = 5.0  # of a commit

log = logging.getLogger(__name__)


class LogView(msgspec.Struct, frozen=True):
    """The partitions that a query reads, at one moment."""

    bounds: Mapping[TopicPartition, OffsetBounds]
    ids: Mapping[str, str]
    missing: tuple[str, ...] = ()  # named topics that do not exist

    def latest(self) -> dict[TopicPartition, int]:
        return {target: bounds.latest for target, bounds in self.bounds.items()}

    def check_complete(self) -> None:
        if self.missing:
            raise UnknownTopicOrPartition(f"there is no topic {self.missing[0]!r}")


def describe_log(options: SourceOptions) -> LogView:
    """Query the brokers; the result includes new topics and partitions."""
    subscription = options.subscription
    if subscription.pattern is not None:
        names = tuple(topics_matching(options.brokers, subscription.pattern))
    else:
        names = subscription.names or ()

    async def describe(cluster: Cluster) -> LogView:
        await cluster.call_with_retries(lambda: cluster.refresh(names))
        topics = {name: cluster.view.topics[name] for name in names if name in cluster.view.topics}
        existing = {
            TopicPartition(name, number) for name, view in topics.items() for number in range(len(view.partitions))
        }
        targets = sorted(existing.intersection(subscription.partitions) if subscription.partitions else existing)
        bounds = await find_bounds(cluster, targets, read_committed=options.read_committed)
        ids = {name: id_to_text(view.topic_id) for name, view in topics.items() if view.topic_id != ZERO_ID}
        return LogView(bounds, ids, tuple(name for name in names if name not in topics))

    view = sync_cluster(options.brokers).call(describe)
    for target in subscription.partitions:
        if target.topic not in view.missing and target not in view.bounds:
            raise UnknownTopicOrPartition(f"there is no partition {target}, which assign names")
    return view


def resolve_offsets(spec: OffsetSpec, view: LogView, options: SourceOptions, *, name: str) -> dict[TopicPartition, int]:
    """The offset of each partition for a spec; `name` is its option, for error messages."""
    match spec.kind:
        case "earliest":
            return {target: bounds.earliest for target, bounds in view.bounds.items()}
        case "latest":
            return view.latest()
        case "group":
            return _committed(view, options)
        case "offsets":
            _check_same(spec.numbers, view.bounds, name)
            return {target: _offset_of(number, view.bounds[target]) for target, number in spec.numbers.items()}
        case "times":
            return _at_times(spec, view, options, name)


def _offset_of(number: int, bounds: OffsetBounds) -> int:
    return {EARLIEST: bounds.earliest, LATEST: bounds.latest}.get(number, number)


def _committed(view: LogView, options: SourceOptions) -> dict[TopicPartition, int]:
    """The committed offsets of the group; the log start for partitions without one, so that nothing is skipped."""
    commits = sync_cluster(options.brokers).call(lambda cluster: committed(cluster, options.group, list(view.bounds)))
    return {
        target: commits[target].offset if target in commits else bounds.earliest
        for target, bounds in view.bounds.items()
    }


def _at_times(spec: OffsetSpec, view: LogView, options: SourceOptions, name: str) -> dict[TopicPartition, int]:
    if spec.time_ms is None:
        _check_same(spec.numbers, view.bounds, name)
        times: OffsetMap = spec.numbers
    else:
        times = dict.fromkeys(view.bounds, spec.time_ms)
    resolved = {}
    for target, offset in offsets_at(options.brokers, times).items():
        if offset is None and not spec.latest_if_none:
            raise InvalidConfig(
                f"{target} has no record at or after {times[target]} ms, the time of {name}; set "
                "startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        resolved[target] = view.bounds[target].latest if offset is None else offset
    return resolved


def _check_same(given: Iterable[TopicPartition], existing: Iterable[TopicPartition], name: str) -> None:
    unknown, left_out = sorted(set(given) - set(existing)), sorted(set(existing) - set(given))
    if unknown:
        raise InvalidConfig(f"{name} names {unknown[0]}, which is not read")
    if left_out:
        raise InvalidConfig(f"{name} must name every partition that is read; {left_out[0]} is missing")


class GroupProgress:
    """Commits the progress of a stream as the offsets of a consumer group."""

    def __init__(self, brokers: str, group: str) -> None:
        self._brokers = brokers
        self._group = group
        self._committed: OffsetMap = {}
        self._has_warned = ""

    def commit(self, offsets: OffsetMap) -> None:
        """Commit these offsets: all records before them are processed."""
        moved = {target: Commit(offset) for target, offset in offsets.items() if self._committed.get(target) != offset}
        try:
            sync_cluster(self._brokers).call(
                lambda cluster: commit(cluster, self._group, moved, deadline_seconds=DEADLINE_SECONDS)
            )
        except (InvalidGroupId, InconsistentGroupProtocol):
            raise
        except HeadraceError as error:
            if error.message != self._has_warned:  # once, not for every batch
                log.warning("committing stream progress failed group=%s error=%r", self._group, error.message)
            self._has_warned = error.message
        else:
            self._committed, self._has_warned = dict(offsets), ""
