"""Bundles: transactions of several producers that commit as one, each commit with a sequence number of its own.

The members of a bundle are transactional ids `headrace-bundle:<bundle>#<member>`. All of them, and the bundle's own
record, lie in one partition of `__transaction_state`, so that one append decides about them all. A decision is the next
values of some transactions and, of a commit, the bundle's next record: they are appended together or not at all.

- A sequence is committed once. Asked again by the same members, the answer is the same; by others, or for one that lies
  behind, nothing is committed, and what these members have open is aborted.
- A commit takes all its members or none: if one was aborted, has timed out, or has begun anew, nothing happens.
- What else is open in the bundle when it commits is aborted with it: it was left behind by somebody who is given up.
- Who has written is shut out by every outcome. So a producer's id and epoch name one transaction, for ever: who is late
  can neither add to what was decided nor end it otherwise.
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
NAME_LENGTH_MAX = 249  # of a bundle and of a member, as of topics
MEMBERS_MAX = 10_000
DIGEST_LENGTH_MAX = 128

_PREFIX = "headrace-bundle:"
_SEPARATOR = "#"


class JointCommitMember(msgspec.Struct, frozen=True, order=True, gc=False):
    """One transaction of a bundle: a producer begins one under each of its epochs."""

    transactional_id: str
    producer_id: int
    epoch: int


class JointCommit(msgspec.Struct, frozen=True):
    """What a bundle has committed last."""

    name: str
    sequence: int
    members: tuple[JointCommitMember, ...]  # in order
    updated_ms: int
    digest: str = ""  # of what was committed, as the client gave it


class JointCommitDecision(NamedTuple):
    """What is to be stored, in one append: nothing, if the present state says it all. `bundle` only if it changes."""

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
        """All of the members commit; False if the sequence is not to be had any more, and then they are aborted."""
        _check_members(name, members)
        if sequence < 0:
            raise InvalidRequest(f"a bundle commits sequences from 0 on, not {sequence}")
        if len(digest) > DIGEST_LENGTH_MAX:
            raise InvalidRequest(f"a digest has at most {DIGEST_LENGTH_MAX} characters, not {len(digest)}")
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
        """Whatever these members have open is aborted; what they have open no longer stays as it was decided."""
        _check_members(name, members)
        return self._aborted(members, now_ms)

    def open_in(self, name: str) -> Iterator[TransactionMetadata]:
        """The transactions of the bundle that nobody has decided about yet."""
        beginning = joint_commit_owner_id(name)
        for transaction in self._transactions:
            if transaction.status is TransactionStatus.ONGOING and transaction.transactional_id.startswith(beginning):
                yield transaction

    def expired(self, now_ms: int, expiration_ms: int) -> list[str]:
        """The bundles that have committed nothing for so long, and of whose members none is known any more."""
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
        """Apply what was stored before the start. A clock that went back since must not make it live longer."""
        self.apply(replace(bundle, updated_ms=min(bundle.updated_ms, now_ms)))

    def _committed(self, member: JointCommitMember, now_ms: int) -> TransactionMetadata | None:
        """The member's transaction as it commits; None if it has written nothing."""
        producer = ProducerIdAndEpoch(member.producer_id, member.epoch)
        transaction = self._transactions.present(member.transactional_id, producer)
        if transaction.status is TransactionStatus.ONGOING:
            return transaction.fenced(now_ms, is_commit=True)
        # Who was bumped by its own abort begins anew with that epoch, too.
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
    """The transactional id of a member, or `InvalidRequest`."""
    check_joint_commit_name(bundle)
    if not 0 < len(member) <= NAME_LENGTH_MAX:
        raise InvalidRequest(f"the name of a member has 1 to {NAME_LENGTH_MAX} characters, not {len(member)}")
    return f"{joint_commit_owner_id(bundle)}{member}"


def check_joint_commit_name(bundle: str) -> None:
    if not 0 < len(bundle) <= NAME_LENGTH_MAX:
        raise InvalidRequest(f"the name of a bundle has 1 to {NAME_LENGTH_MAX} characters, not {len(bundle)}")
    if _SEPARATOR in bundle:
        raise InvalidRequest(f"the name of a bundle must not contain {_SEPARATOR!r}: {bundle!r}")


def joint_commit_owner_id(bundle: str) -> str:
    """What the ids of all members begin with, and no member's id: it stands for the bundle itself."""
    return f"{_PREFIX}{bundle}{_SEPARATOR}"


def joint_commit_of(transactional_id: str) -> str | None:
    """The bundle that this id is a member of; None for an id that stands for itself."""
    if not transactional_id.startswith(_PREFIX):
        return None
    return transactional_id[len(_PREFIX) :].partition(_SEPARATOR)[0]


def check_transactional_id(transactional_id: str) -> None:
    """Raise `InvalidRequest` for one that looks like a member's and is none; any other text will do."""
    if not transactional_id:
        raise InvalidRequest("the transactional id is empty; set transactional.id")
    bundle = joint_commit_of(transactional_id)
    if bundle is not None:
        member_id(bundle, transactional_id[len(joint_commit_owner_id(bundle)) :])


def partitioning_id(transactional_id: str) -> str:
    """The text whose hash chooses the partition: one for all members of a bundle."""
    if not transactional_id.startswith(_PREFIX):
        return transactional_id
    return transactional_id.partition(_SEPARATOR)[0]


def _check_members(name: str, members: Iterable[JointCommitMember]) -> None:
    check_joint_commit_name(name)
    seen: set[str] = set()
    for member in members:
        check_transactional_id(member.transactional_id)
        if joint_commit_of(member.transactional_id) != name:
            raise InvalidRequest(f"{member.transactional_id} is no member of bundle {name}")
        if member.transactional_id in seen:
            raise InvalidRequest(f"{member.transactional_id} is named more than once")
        seen.add(member.transactional_id)
    if len(seen) > MEMBERS_MAX:
        raise InvalidRequest(f"a bundle commits up to {MEMBERS_MAX} transactions at once, not {len(seen)}")
