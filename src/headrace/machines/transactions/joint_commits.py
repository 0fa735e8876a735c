"""Joint commits: transactions of several producers that commit as one, each commit with a sequence number. Pure.

The wire protocol calls the set of producers a bundle. Its members are transactional ids
`headrace-bundle:<bundle>#<member>`. All members and the bundle's own record are in one partition of
`__transaction_state`, so one append decides all of them. A decision consists of the next values of some transactions
and, for a commit, the bundle's next record; they are appended together.

- A sequence is committed once. A retry by the same members gets the same result. For other members, or an older
  sequence, nothing is committed, and the open transactions of these members are aborted.
- A commit includes all its members or none: if one was aborted, has timed out, or has begun again, nothing happens.
- Other open transactions of the bundle are aborted by a commit: they belong to producers that were abandoned.
- Every outcome fences the writers. So a producer id and epoch identify one transaction forever, and a late producer can
  neither add to a decided transaction nor end it differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headrace.machines.transactions.transaction_state import ProducerIdAndEpoch, TransactionMetadata, TransactionStatus
from headrace.machines.transactions.transactions import TransactionStates
from headrace.model.errors import InvalidRequest, InvalidTransactionState

NO_SEQUENCE = -1
NAME_LENGTH_MAX = 249  # of the names of bundles and members, as for topics
MEMBERS_MAX = 10_000
DIGEST_LENGTH_MAX = 128

_PREFIX = "headrace-bundle:"
_SEPARATOR = "#"


class JointCommitMember(msgspec.Struct, frozen=True, order=True, gc=False):
    """One transaction of a bundle. A producer begins one transaction in each of its epochs."""

    transactional_id: str
    producer_id: int
    epoch: int


class JointCommit(msgspec.Struct, frozen=True):
    """The last joint commit of a bundle."""

    name: str
    sequence: int
    members: tuple[JointCommitMember, ...]  # sorted
    updated_ms: int
    digest: str = ""  # of the committed content, as given by the client


class JointCommitDecision(NamedTuple):
    """The values to store in one append; empty if nothing changes. `bundle` is set only if it changes."""

    transactions: Sequence[TransactionMetadata] = ()
    bundle: JointCommit | None = None
    is_committed: bool = False


class JointCommits:
    def __init__(self, transactions: TransactionStates) -> None:
        self._transactions = transactions
        self._by_name: dict[str, JointCommit] = {}

    def __iter__(self) -> Iterator[JointCommit]:
        return iter(self._by_name.values())

    def find(self, name: str) -> JointCommit | None:
        return self._by_name.get(name)

    # Questions

    def commit(
        self, name: str, sequence: int, members: Sequence[JointCommitMember], now_ms: int, digest: str = ""
    ) -> JointCommitDecision:
        """Commit all members, or abort them if the sequence cannot be committed any more (not `is_committed`)."""
        _check_members(name, members)
        if sequence < 0:
            raise InvalidRequest(f"the sequence of a joint commit must be 0 or greater, not {sequence}")
        if len(digest) > DIGEST_LENGTH_MAX:
            raise InvalidRequest(f"a digest may have at most {DIGEST_LENGTH_MAX} characters, not {len(digest)}")
        last = self._by_name.get(name)
        if last is not None and sequence <= last.sequence:
            if sequence == last.sequence and last.members == tuple(sorted(members)):
                return JointCommitDecision(is_committed=True)
            return self._aborted(members, now_ms)
        committed = [self._committed(member, now_ms) for member in members]
        theirs = {member.transactional_id for member in members}
        left_behind = [
            transaction.fenced(now_ms)
            for transaction in self.open_in(name)
            if transaction.transactional_id not in theirs
        ]
        return JointCommitDecision(
            [*filter(None, committed), *left_behind],
            JointCommit(name, sequence, tuple(sorted(members)), now_ms, digest),
            is_committed=True,
        )

    def abort(self, name: str, members: Sequence[JointCommitMember], now_ms: int) -> JointCommitDecision:
        """Abort the open transactions of these members; decided ones keep their outcome."""
        _check_members(name, members)
        return self._aborted(members, now_ms)

    def open_in(self, name: str) -> Iterator[TransactionMetadata]:
        beginning = joint_commit_owner_id(name)
        for transaction in self._transactions:
            if transaction.status is TransactionStatus.ONGOING and transaction.transactional_id.startswith(beginning):
                yield transaction

    def expired(self, now_ms: int, expiration_ms: int) -> list[str]:
        """Return the bundles without a commit for this long and without any known member."""
        old = {bundle.name for bundle in self if now_ms - bundle.updated_ms > expiration_ms}
        if old:
            old.difference_update(joint_commit_of(known.transactional_id) or "" for known in self._transactions)
        return sorted(old)

    # Changes

    def apply(self, bundle: JointCommit) -> None:
        self._by_name[bundle.name] = bundle

    def forget(self, name: str) -> None:
        self._by_name.pop(name, None)

    def restore(self, bundle: JointCommit, now_ms: int) -> None:
        """Apply a stored record after a restart. If the clock went back since, the record must not live longer."""
        self.apply(replace(bundle, updated_ms=min(bundle.updated_ms, now_ms)))

    def _committed(self, member: JointCommitMember, now_ms: int) -> TransactionMetadata | None:
        """Return the committing transaction of the member, or None if it has written nothing."""
        producer = ProducerIdAndEpoch(member.producer_id, member.epoch)
        transaction = self._transactions.present(member.transactional_id, producer)
        if transaction.status is TransactionStatus.ONGOING:
            return transaction.fenced(now_ms, is_commit=True)
        # A producer whose epoch was bumped by its own abort begins again with that epoch.
        if transaction.status is TransactionStatus.EMPTY or (not transaction.is_open and transaction.previous):
            return None
        raise InvalidTransactionState(
            f"the transaction of {member.transactional_id} is in state {transaction.status}: it cannot be committed"
        )

    def _aborted(self, members: Sequence[JointCommitMember], now_ms: int) -> JointCommitDecision:
        found = ((self._transactions.find(member.transactional_id), member) for member in members)
        return JointCommitDecision(
            [
                transaction.fenced(now_ms)
                for transaction, member in found
                if transaction is not None
                and transaction.status is TransactionStatus.ONGOING
                and transaction.producer == ProducerIdAndEpoch(member.producer_id, member.epoch)
            ]
        )


# Names


def member_id(bundle: str, member: str) -> str:
    """Return the transactional id of a member, or raise `InvalidRequest`."""
    check_joint_commit_name(bundle)
    if not 0 < len(member) <= NAME_LENGTH_MAX:
        raise InvalidRequest(f"the name of a member must have 1 to {NAME_LENGTH_MAX} characters, not {len(member)}")
    return f"{joint_commit_owner_id(bundle)}{member}"


def check_joint_commit_name(bundle: str) -> None:
    if not 0 < len(bundle) <= NAME_LENGTH_MAX:
        raise InvalidRequest(f"the name of a bundle must have 1 to {NAME_LENGTH_MAX} characters, not {len(bundle)}")
    if _SEPARATOR in bundle:
        raise InvalidRequest(f"the name of a bundle must not contain {_SEPARATOR!r}: {bundle!r}")


def joint_commit_owner_id(bundle: str) -> str:
    """Return the id that stands for the bundle itself: the prefix of its members' ids."""
    return f"{_PREFIX}{bundle}{_SEPARATOR}"


def joint_commit_of(transactional_id: str) -> str | None:
    """Return the bundle of which this id is a member, or None."""
    if not transactional_id.startswith(_PREFIX):
        return None
    return transactional_id[len(_PREFIX) :].partition(_SEPARATOR)[0]


def check_transactional_id(transactional_id: str) -> None:
    """Raise `InvalidRequest` for an id with the prefix of members that is not a valid member id."""
    if not transactional_id:
        raise InvalidRequest("the transactional id is empty; set transactional.id")
    bundle = joint_commit_of(transactional_id)
    if bundle is not None:
        member_id(bundle, transactional_id[len(joint_commit_owner_id(bundle)) :])


def partitioning_id(transactional_id: str) -> str:
    """Return the text whose hash selects the partition: the same for all members of a bundle."""
    if not transactional_id.startswith(_PREFIX):
        return transactional_id
    return transactional_id.partition(_SEPARATOR)[0]


def _check_members(name: str, members: Iterable[JointCommitMember]) -> None:
    check_joint_commit_name(name)
    seen: set[str] = set()
    for member in members:
        check_transactional_id(member.transactional_id)
        if joint_commit_of(member.transactional_id) != name:
            raise InvalidRequest(f"{member.transactional_id} is not a member of bundle {name}")
        if member.transactional_id in seen:
            raise InvalidRequest(f"{member.transactional_id} is listed more than once")
        seen.add(member.transactional_id)
    if len(seen) > MEMBERS_MAX:
        raise InvalidRequest(f"a joint commit may have at most {MEMBERS_MAX} members, not {len(seen)}")
