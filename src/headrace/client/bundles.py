"""Bundles: transactions of several producers, in several processes, that commit as one.

    # Each worker, on its own:
    transaction = MemberTransaction(cluster, "nightly", worker, timeout_seconds=600)
    member = await transaction.begin()
    await transaction.enlist(targets)              # then write there, as (member.producer_id, member.epoch)

    # Who leads them, when all are done; `number` grows from commit to commit:
    if not await commit_bundle(cluster, "nightly", number, members):
        ...                                        # somebody else has committed this number, or a later one

The commit takes all members or none, through crashes of whoever asks or answers. Ask again when in doubt: the same
members and number get the same answer. What a member has written is ended by its bundle only, never by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace.client.cluster import Cluster
from headrace.client.errors import CommitInDoubt, raise_for
from headrace.client.metadata import TopicPartition
from headrace.client.outbox import ProducerIdentity
from headrace.client.transaction_admin import transaction_coordinator
from headrace.client.transaction_calls import TransactionCalls
from headrace.machines.bundles import NO_SEQUENCE, Member, check_bundle_name, member_id, owner_id
from headrace.model.errors import HeadraceError, InvalidTransactionState
from headrace.wire.messages.describe_bundle import DescribeBundleRequest, DescribeBundleResponse
from headrace.wire.messages.end_bundle import BundleMember, EndBundleRequest, EndBundleResponse

__all__ = [
    "BundleView",
    "Member",
    "MemberTransaction",
    "abort_bundle",
    "commit_bundle",
    "committed_sequence",
    "describe_bundle",
    "member_id",
]


class MemberTransaction:
    """One transaction of a bundle, from its begin until it is handed over."""

    def __init__(self, cluster: Cluster, bundle: str, member: str, timeout_seconds: float) -> None:
        self.transactional_id = member_id(bundle, member)
        self.identity = ProducerIdentity()
        self._cluster = cluster
        self._calls = TransactionCalls(cluster, self.transactional_id, timeout_seconds)
        self._enlisted: set[TopicPartition] = set()

    async def begin(self) -> Member:
        """Take the member over: what it has open is aborted, and all that an older attempt still does is refused."""
        self.identity = await self._calls.init(ProducerIdentity())
        self._enlisted.clear()
        return Member(self.transactional_id, *self.identity)

    async def enlist(self, targets: Iterable[TopicPartition]) -> None:
        """Return when the partitions are part of it, durably: only then may its batches come there."""
        if self.identity == ProducerIdentity():
            raise InvalidTransactionState(f"no transaction of {self.transactional_id!r} is open; begin one")
        fresh = sorted(set(targets) - self._enlisted)
        if fresh:
            await self._cluster.persist(lambda: self._calls.add_partitions(self.identity, fresh))
            self._enlisted.update(fresh)


class BundleView(msgspec.Struct, frozen=True):
    """What a bundle has committed last; sequence -1 and nobody if nothing is known of it."""

    sequence: int
    members: tuple[Member, ...]
    digest: str = ""


async def describe_bundle(cluster: Cluster, bundle: str) -> BundleView:
    check_bundle_name(bundle)
    answer: DescribeBundleResponse = await _ask(cluster, bundle, DescribeBundleRequest(bundle))
    members = (Member(told.transactional_id, told.producer_id, told.producer_epoch) for told in answer.members)
    return BundleView(answer.sequence, tuple(members), answer.digest)


async def committed_sequence(cluster: Cluster, bundle: str) -> int:
    """The last sequence that the bundle has committed; -1 if there is none."""
    return (await describe_bundle(cluster, bundle)).sequence


async def commit_bundle(
    cluster: Cluster, bundle: str, sequence: int, members: Sequence[Member], digest: str = ""
) -> bool:
    """Commit what all members have written, as one. False: this sequence or a later one was committed before, by
    others as far as is known; whatever these members still had open is aborted. `digest` names what is committed, for
    whoever finds this sequence committed (`describe_bundle`).

    Raises what refused it: nothing is committed if one of them is fenced, has timed out or was aborted. After
    `CommitInDoubt` it may be committed: ask again.
    """
    try:
        answer = await _end(cluster, bundle, sequence, members, is_commit=True, digest=digest)
    except HeadraceError as error:
        if not error.retriable:
            raise
        raise CommitInDoubt(
            f"the commit of sequence {sequence} of bundle {bundle!r} was not answered ({error.message}); it may have "
            "been committed: ask again with the same members"
        ) from error
    return answer.is_committed


async def abort_bundle(cluster: Cluster, bundle: str, members: Sequence[Member]) -> None:
    """Abort what these members have open. What is committed stays so."""
    if members:
        await _end(cluster, bundle, NO_SEQUENCE, members, is_commit=False)


async def _end(
    cluster: Cluster, bundle: str, sequence: int, members: Sequence[Member], *, is_commit: bool, digest: str = ""
) -> EndBundleResponse:
    check_bundle_name(bundle)
    named = [BundleMember(member.transactional_id, member.producer_id, member.epoch) for member in members]
    request = EndBundleRequest(bundle, sequence, is_commit, named, digest)
    answer: EndBundleResponse = await _ask(cluster, bundle, request)
    return answer


async def _ask(cluster: Cluster, bundle: str, request: Any) -> Any:
    async def attempt() -> Any:
        node_id = await transaction_coordinator(cluster, owner_id(bundle))
        answer = await cluster.call(request, node_id=node_id)
        raise_for(answer.error_code, answer.error_message)
        return answer

    return await cluster.persist(attempt)
