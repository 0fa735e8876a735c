"""Sample the state of the cluster for `headrace top`, over the wire protocol and, if available, from metrics.

A failure of one part does not fail the sample: the part is missing, and `troubles` contains the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.cli.top_metrics import Samples, scrape
from headrace.client.cluster import Cluster
from headrace.client.errors import VersionMismatch
from headrace.client.group_admin import GroupAdmin, ListedGroup
from headrace.client.metadata import ClusterView, TopicPartition
from headrace.client.offsets import END, committed, find_offsets
from headrace.client.subscription_admin import PartitionBacklog, SubscriptionAdmin
from headrace.model.errors import HeadraceError
from headrace.model.names import is_internal

GROUPS_MAX = 200  # the maximum number of groups to describe, which takes two requests each
_ASKED_AT_ONCE = 16
_PATIENCE_SECONDS = 3.0
_SHARE = "share"


@dataclass(frozen=True, slots=True)
class GroupSeen:
    state: str
    members: int
    commits: Mapping[TopicPartition, int]


@dataclass(slots=True)
class Look:
    """`at` is a monotonic time in seconds, `now_ms` the wall clock."""

    at: float
    now_ms: int
    view: ClusterView = field(default_factory=ClusterView)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    groups: dict[str, GroupSeen] = field(default_factory=dict)
    groups_left_out: int = 0
    backlogs: Sequence[PartitionBacklog] = ()
    metrics: dict[str, Samples] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)


async def look(cluster: Cluster, http: Sequence[str] = ()) -> Look:
    """Take a sample; raise only if the cluster is not reachable at all."""
    view = await cluster.persist(cluster.refresh, deadline_seconds=_PATIENCE_SECONDS)
    seen = Look(cluster.clock.monotonic(), cluster.clock.now_ms(), view)
    parts = {
        "offsets": _see_ends(cluster, seen),
        "groups": _see_groups(cluster, seen),
        "subscriptions": _see_subscriptions(cluster, seen),
        **{f"metrics of {address}": _see_metrics(address, seen) for address in http},
    }
    async with asyncio.TaskGroup() as tasks:
        for name, part in parts.items():
            tasks.create_task(_see(name, part, seen))
    return seen


async def _see(name: str, part: Coroutine[Any, Any, None], seen: Look) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await part
    except TimeoutError:
        seen.troubles.append(f"{name}: no response within {_PATIENCE_SECONDS:.0f} s")
    except VersionMismatch:
        return  # a broker of another kind, which does not support the request
    except OSError as error:
        seen.troubles.append(f"{name}: {error.strerror or error}")
    except (HeadraceError, ValueError) as error:
        seen.troubles.append(f"{name}: {error.message if isinstance(error, HeadraceError) else error}")


async def _see_ends(cluster: Cluster, seen: Look) -> None:
    targets = [
        TopicPartition(topic.name, partition.partition)
        for topic in seen.view.topics.values()
        if not is_internal(topic.name)
        for partition in topic.partitions
        if partition.leader_id >= 0
    ]
    found = await find_offsets(cluster, dict.fromkeys(targets, END))
    seen.ends = {target: one.offset for target, one in found.items()}


async def _see_groups(cluster: Cluster, seen: Look) -> None:
    admin = GroupAdmin(cluster)
    # The backlog of share groups is shown with their subscriptions.
    listed = [group for group in await admin.list() if group.kind.lower() != _SHARE]
    seen.groups_left_out = max(len(listed) - GROUPS_MAX, 0)
    places = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def see(group: ListedGroup) -> None:
        async with places:
            try:
                members = (await admin.describe(group.group)).members
                commits = await committed(cluster, group.group)
            except HeadraceError:
                return  # it has just ended, or its coordinator moves
        offsets = {target: commit.offset for target, commit in commits.items()}
        seen.groups[group.group] = GroupSeen(group.state, len(members), offsets)

    async with asyncio.TaskGroup() as tasks:
        for group in listed[:GROUPS_MAX]:
            tasks.create_task(see(group))


async def _see_subscriptions(cluster: Cluster, seen: Look) -> None:
    seen.backlogs = await SubscriptionAdmin(cluster).list()


async def _see_metrics(address: str, seen: Look) -> None:
    seen.metrics[address] = await scrape(address)
