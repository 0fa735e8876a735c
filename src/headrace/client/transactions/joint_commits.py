"""Bundles: transactions of several producers, in several processes, that commit as one.

    # Each worker, on its own:
    transaction = MemberTransaction(cluster, "nightly", worker, timeout_seconds=600)
    member = await transaction.begin()
    await transaction.enlist(targets)              # then write there, as (member.producer_id, member.epoch)

    # Who leads them, when all are done; `number` grows from commit to commit:
    if not await commit_jointly(cluster, "nightly", number, members):
        ...                                        # somebody else has committed this number, or a later one

The commit takes all members or none, through crashes of whoever asks or answers. Ask again when in doubt: the same
members and number get the same answer. What a member has written is ended by its bundle only, never by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace.client.admin.transaction_admin import transaction_coordinator
from headrace.client.cluster import Cluster
from headrace.client.errors import CommitInDoubt, raise_for_code
from headrace.client.metadata import TopicPartition
from headrace.client.produce.pending_batches import ProducerIdentity
from headrace.client.transactions.transactional_producer import TransactionCoordinatorClient
from headrace.machines.transactions.joint_commits import (
    NO_SEQUENCE,
    JointCommitMember,
    check_joint_commit_name,
    joint_commit_owner_id,
    member_id,
)
from headrace.model.errors import HeadraceError, InvalidTransactionState
from headrace.wire.messages.transactions import (
    BundleMember,
    DescribeBundleRequest,
    DescribeBundleResponse,
    EndBundleRequest,
    EndBundleResponse,
)

__all__ = [
    "JointCommitMember",
    "JointCommitView",
    "MemberTransaction",
    "abort_joint_commit",
    "commit_jointly",
    "committed_sequence",
    "describe_joint_commit",
    "member_id",
]


class MemberTransaction:
    """One transaction of a bundle, from its begin until it is handed over."""

    def __init__(self, cluster: Cluster, bundle: str, member: str, timeout_seconds: float) -> None:
        self.transactional_id = member_id(bundle, member)
        self.identity = ProducerIdentity()
        self._cluster = cluster
        self._coordinator_client = TransactionCoordinatorClient(cluster, self.transactional_id, timeout_seconds)
        self._enlisted: set[TopicPartition] = set()

    async def begin(self) -> JointCommitMember:
        """Take the member over: what it has open is aborted, and all that an older attempt still does is refused."""
        self.identity = await self._coordinator_client.init(ProducerIdentity())
        self._enlisted.clear()
        return JointCommitMember(self.transactional_id, *self.identity)

    async def enlist(self, targets: Iterable[TopicPartition]) -> None:
        """Return when the partitions are part of it, durably: only then may its batches come there."""
        if self.identity == ProducerIdentity():
            raise InvalidTransactionState(f"no transaction of {self.transactional_id!r} is open; begin one")
        fresh = sorted(set(targets) - self._enlisted)
        if fresh:
            await self._cluster.call_with_retries(lambda: self._coordinator_client.add_partitions(self.identity, fresh))
            self._enlisted.update(fresh)


class JointCommitView(msgspec.Struct, frozen=True):
    """What a bundle has committed last; sequence -1 and nobody if nothing is known of it."""

    sequence: int
    members: tuple[JointCommitMember, ...]
    digest: str = ""


async def describe_joint_commit(cluster: Cluster, bundle: str) -> JointCommitView:
    check_joint_commit_name(bundle)
    response: DescribeBundleResponse = await _call_coordinator(cluster, bundle, DescribeBundleRequest(bundle))
    members = (
        JointCommitMember(told.transactional_id, told.producer_id, told.producer_epoch) for told in response.members
    )
    return JointCommitView(response.sequence, tuple(members), response.digest)


async def committed_sequence(cluster: Cluster, bundle: str) -> int:
    """The last sequence that the bundle has committed; -1 if there is none."""
    return (await describe_joint_commit(cluster, bundle)).sequence


async def commit_jointly(
    cluster: Cluster, bundle: str, sequence: int, members: Sequence[JointCommitMember], digest: str = ""
) -> bool:
    """Commit what all members have written, as one. False: this sequence or a later one was committed before, by
    others as far as is known; whatever these members still had open is aborted. `digest` names what is committed, for
    whoever finds this sequence committed (`describe_joint_commit`).

    Raises what refused it: nothing is committed if one of them is fenced, has timed out or was aborted. After
    `CommitInDoubt` it may be committed: ask again.
    """
    try:
        response = await _end(cluster, bundle, sequence, members, is_commit=True, digest=digest)
    except HeadraceError as error:
        if not error.retriable:
            raise
        raise CommitInDoubt(
            f"the commit of sequence {sequence} of bundle {bundle!r} was not answered ({error.message}); it may have "
            "been committed: ask again with the same members"
        ) from error
    return response.is_committed


async def abort_joint_commit(cluster: Cluster, bundle: str, members: Sequence[JointCommitMember]) -> None:
    """Abort what these members have open. What is committed stays so."""
    if members:
        await _end(cluster, bundle, NO_SEQUENCE, members, is_commit=False)


async def _end(
    cluster: Cluster,
    bundle: str,
    sequence: int,
    members: Sequence[JointCommitMember],
    *,
    is_commit: bool,
    digest: str = "",
) -> EndBundleResponse:
    check_joint_commit_name(bundle)
    named = [BundleMember(member.transactional_id, member.producer_id, member.epoch) for member in members]
    request = EndBundleRequest(bundle, sequence, is_commit, named, digest)
    response: EndBundleResponse = await _call_coordinator(cluster, bundle, request)
    return response


async def _call_coordinator(cluster: Cluster, bundle: str, request: Any) -> Any:
    async def attempt() -> Any:
        node_id = await transaction_coordinator(cluster, joint_commit_owner_id(bundle))
        response = await cluster.call(request, node_id=node_id)
        raise_for_code(response.error_code, response.error_message)
        return response

    return await cluster.call_with_retries(attempt)
