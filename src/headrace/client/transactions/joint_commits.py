"""Joint commits (bundles): transactions of several producers, in several processes, that commit atomically.

    # Each worker, on its own:
    transaction = MemberTransaction(cluster, "nightly", worker, timeout_seconds=600)
    member = await transaction.begin()
    await transaction.enlist(targets)              # then write there, as (member.producer_id, member.epoch)

    # The driver, when all workers are done; `number` increases with every commit:
    if not await commit_jointly(cluster, "nightly", number, members):
        ...                                        # this number or a later one was committed before

- The commit includes all members or none, also if clients or brokers crash. It can be repeated when in doubt: the same
  members and number get the same result.
- The transaction of a member is ended by its bundle only, never by the member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

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
    """The transaction of one member of a bundle, until it is handed over to the driver."""

    def __init__(self, cluster: Cluster, bundle: str, member: str, timeout_seconds: float) -> None:
        self.transactional_id = member_id(bundle, member)
        self.identity = ProducerIdentity()
        self._cluster = cluster
        self._coordinator_client = TransactionCoordinatorClient(cluster, self.transactional_id, timeout_seconds)
        self._enlisted: set[TopicPartition] = set()

    async def begin(self) -> JointCommitMember:
        """Begin a transaction; aborts an open one of the same member and fences earlier attempts."""
        self.identity = await self._coordinator_client.init(ProducerIdentity())
        self._enlisted.clear()
        return JointCommitMember(self.transactional_id, *self.identity)

    async def enlist(self, targets: Iterable[TopicPartition]) -> None:
        """Return when the partitions are durably part of the transaction; batches may be sent only then."""
        if self.identity == ProducerIdentity():
            raise InvalidTransactionState(f"no transaction of {self.transactional_id!r} is open; begin one")
        fresh = sorted(set(targets) - self._enlisted)
        if fresh:
            await self._cluster.call_with_retries(lambda: self._coordinator_client.add_partitions(self.identity, fresh))
            self._enlisted.update(fresh)


class JointCommitView(msgspec.Struct, frozen=True):
    """The last commit of a bundle; sequence -1 and no members if there is none."""

    sequence: int
    members: tuple[JointCommitMember, ...]
    digest: str = ""


async def describe_joint_commit(cluster: Cluster, bundle: str) -> JointCommitView:
    check_joint_commit_name(bundle)
    response: DescribeBundleResponse = await _call_coordinator(cluster, bundle, DescribeBundleRequest(bundle))
    members = (
        JointCommitMember(member.transactional_id, member.producer_id, member.producer_epoch)
        for member in response.members
    )
    return JointCommitView(response.sequence, tuple(members), response.digest)


async def committed_sequence(cluster: Cluster, bundle: str) -> int:
    """The sequence of the last commit of the bundle; -1 if there is none."""
    return (await describe_joint_commit(cluster, bundle)).sequence


async def commit_jointly(
    cluster: Cluster, bundle: str, sequence: int, members: Sequence[JointCommitMember], digest: str = ""
) -> bool:
    """Commit the transactions of all members atomically. Returns False if this sequence or a later one was committed
    before, possibly by others; open transactions of these members are aborted then. `digest` identifies the content of
    the commit, for readers of `describe_joint_commit`.

    Raises if a member is fenced, has timed out or was aborted; nothing is committed then. After `CommitInDoubt` it may
    be committed: call again.
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
    """Abort the open transactions of these members. A commit is not reverted."""
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
        node_id = await cluster.transaction_coordinator(joint_commit_owner_id(bundle))
        response = await cluster.call(request, node_id=node_id)
        raise_for_code(response.error_code, response.error_message)
        return response

    return await cluster.call_with_retries(attempt)
