"""The rules of bundles, one by one: all members or none, each sequence once, and nobody comes back."""

from __future__ import annotations

import pytest

from headrace.machines.transactions.joint_commits import (
    MEMBERS_MAX,
    NAME_LENGTH_MAX,
    JointCommit,
    JointCommitDecision,
    JointCommitMember,
    JointCommits,
    check_transactional_id,
    joint_commit_of,
    joint_commit_owner_id,
    member_id,
    partitioning_id,
)
from headrace.machines.transactions.transaction_state import (
    EPOCH_LAST,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionStatus,
)
from headrace.machines.transactions.transactions import TransactionStates
from headrace.model.errors import (
    HeadraceError,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionState,
    ProducerFenced,
)

NAME = "nightly"
A, B = ("a", 0), ("b", 1)
DAY_MS = 86_400_000


class Desk:
    """Asks the machines and applies what they say, as the coordinator does."""

    def __init__(self) -> None:
        self.transactions = TransactionStates(timeout_max_ms=900_000)
        self.joint_commits = JointCommits(self.transactions)
        self.now_ms = 1_000
        self.producer_ids = 100

    def begin(self, name: str, *partitions: tuple[str, int], bundle: str = NAME) -> JointCommitMember:
        transactional_id = member_id(bundle, name)
        transaction = self._init(transactional_id)
        if transaction.is_ending:
            self.finish()
            transaction = self._init(transactional_id)
        member = JointCommitMember(transactional_id, *transaction.producer)
        if partitions:
            self.add(member, *partitions)
        return member

    def _init(self, transactional_id: str) -> TransactionMetadata:
        self.producer_ids += 1
        transaction = self.transactions.init(transactional_id, 60_000, None, self.producer_ids, self.now_ms)
        self.transactions.apply(transaction)
        return transaction

    def add(self, member: JointCommitMember, *partitions: tuple[str, int]) -> None:
        producer = ProducerIdAndEpoch(member.producer_id, member.epoch)
        self.transactions.apply(self.transactions.add(member.transactional_id, producer, partitions, self.now_ms))

    def commit(self, sequence: int, *members: JointCommitMember, name: str = NAME) -> bool:
        return self._do(self.joint_commits.commit(name, sequence, members, self.now_ms))

    def abort(self, *members: JointCommitMember, name: str = NAME) -> None:
        assert not self._do(self.joint_commits.abort(name, members, self.now_ms))

    def finish(self) -> None:
        """Every partition was told of what is decided."""
        for transaction in [*self.transactions]:
            if transaction.is_ending:
                self.transactions.apply(self.transactions.ended(transaction.transactional_id, self.now_ms))

    def status(self, member: JointCommitMember) -> TransactionStatus:
        return self.now(member).status

    def now(self, member: JointCommitMember) -> TransactionMetadata:
        transaction = self.transactions.find(member.transactional_id)
        assert transaction is not None
        return transaction

    @property
    def sequence(self) -> int:
        bundle = self.joint_commits.find(NAME)
        return -1 if bundle is None else bundle.sequence

    def _do(self, decision: JointCommitDecision) -> bool:
        for transaction in decision.transactions:
            self.transactions.apply(transaction)
        if decision.bundle is not None:
            self.joint_commits.apply(decision.bundle)
        return decision.is_committed


@pytest.fixture
def desk() -> Desk:
    return Desk()


# One commit


def test_all_members_commit_by_one_decision(desk: Desk) -> None:
    one, two = desk.begin("0", A), desk.begin("1", A, B)
    decision = desk.joint_commits.commit(NAME, 0, [two, one], desk.now_ms)
    assert [transaction.transactional_id for transaction in decision.transactions] == [
        two.transactional_id,
        one.transactional_id,
    ]
    assert {transaction.status for transaction in decision.transactions} == {TransactionStatus.PREPARE_COMMIT}
    assert decision.bundle == JointCommit(NAME, 0, (one, two), desk.now_ms)
    assert decision.is_committed
    assert desk.status(one) is TransactionStatus.ONGOING, "a question changes nothing"


def test_a_retry_gets_the_same_result_and_changes_nothing(desk: Desk) -> None:
    one, two = desk.begin("0", A), desk.begin("1", B)
    assert desk.commit(0, one, two)
    assert desk.joint_commits.commit(NAME, 0, [two, one], desk.now_ms) == JointCommitDecision(is_committed=True)
    desk.finish()
    desk.begin("0", A)
    assert desk.joint_commits.commit(NAME, 0, [one, two], desk.now_ms) == JointCommitDecision(is_committed=True)


def test_an_empty_commit_counts(desk: Desk) -> None:
    assert desk.commit(3)
    assert desk.sequence == 3
    assert desk.commit(3)
    assert not desk.commit(3, desk.begin("0", A))


def test_a_member_without_writes_does_not_block_the_commit(desk: Desk) -> None:
    idle, busy = desk.begin("0"), desk.begin("1", A)
    assert desk.commit(0, idle, busy)
    assert desk.status(idle) is TransactionStatus.EMPTY
    assert desk.status(busy) is TransactionStatus.PREPARE_COMMIT


def test_other_open_transactions_of_the_bundle_are_aborted(desk: Desk) -> None:
    one, straggler = desk.begin("0", A), desk.begin("0.1", A)
    elsewhere = desk.begin("0", A, bundle="other")
    decision = desk.joint_commits.commit(NAME, 0, [one], desk.now_ms)
    assert [(made.transactional_id, made.status) for made in decision.transactions] == [
        (one.transactional_id, TransactionStatus.PREPARE_COMMIT),
        (straggler.transactional_id, TransactionStatus.PREPARE_ABORT),
    ]
    desk.commit(0, one)
    desk.finish()
    with pytest.raises(ProducerFenced):
        desk.commit(1, straggler)
    assert desk.commit(0, elsewhere, name="other")


def test_joint_commits_with_a_common_name_prefix_are_distinct(desk: Desk) -> None:
    longer = desk.begin("0", A, bundle=f"{NAME}-2")
    assert desk.commit(0)
    assert desk.status(longer) is TransactionStatus.ONGOING


# The sequence


@pytest.mark.parametrize("sequence", [4, 5])
def test_an_outdated_sequence_is_not_committed_and_its_members_are_aborted(desk: Desk, sequence: int) -> None:
    assert desk.commit(5, desk.begin("0", A))
    desk.finish()
    late, other = desk.begin("1", A), desk.begin("2", B)
    assert not desk.commit(sequence, late)
    assert desk.status(late) is TransactionStatus.PREPARE_ABORT
    assert desk.status(other) is TransactionStatus.ONGOING, "it may be part of what comes next"
    assert desk.sequence == 5


def test_fewer_or_more_members_are_others(desk: Desk) -> None:
    one, two = desk.begin("0", A), desk.begin("1", B)
    assert desk.commit(0, one, two)
    assert not desk.commit(0, one)
    assert not desk.commit(0, one, two, desk.begin("2"))
    assert desk.commit(0, one, two)
    assert desk.status(one) is TransactionStatus.PREPARE_COMMIT


def test_a_replaced_driver_cannot_commit_the_sequence_of_its_successor(desk: Desk) -> None:
    old = desk.begin("0", A)
    new = desk.begin("0", A)
    assert desk.commit(0, new)
    desk.finish()
    assert not desk.commit(0, old)
    assert desk.status(new) is TransactionStatus.COMPLETE_COMMIT


def test_sequences_may_leave_gaps(desk: Desk) -> None:
    assert desk.commit(0)
    assert desk.commit(7)
    assert not desk.commit(3)


def test_sequences_begin_at_0(desk: Desk) -> None:
    with pytest.raises(InvalidRequest):
        desk.commit(-1)


# Members that cannot be committed


def refuses(desk: Desk, error: type[HeadraceError], *members: JointCommitMember) -> None:
    """Nothing at all happens, to those neither that could have been committed."""
    before = [*desk.transactions]
    with pytest.raises(error):
        desk.joint_commits.commit(NAME, 0, members, desk.now_ms)
    assert [*desk.transactions] == before
    assert desk.sequence == -1


def test_a_restarted_member_cannot_be_committed_with_its_old_epoch(desk: Desk) -> None:
    one, two = desk.begin("0", A), desk.begin("1", A)
    desk.begin("1", A)
    refuses(desk, ProducerFenced, one, two)


def test_a_member_that_has_timed_out_cannot_be_committed(desk: Desk) -> None:
    one, two = desk.begin("0", A), desk.begin("1", A)
    desk.now_ms += 70_000
    for transaction in desk.transactions.timed_out(desk.now_ms):
        if transaction.transactional_id == two.transactional_id:
            desk.transactions.apply(transaction)
    refuses(desk, ProducerFenced, one, two)
    desk.finish()
    refuses(desk, ProducerFenced, one, two)


def test_a_member_that_was_aborted_cannot_be_committed(desk: Desk) -> None:
    one, two = desk.begin("0", A), desk.begin("1", A)
    desk.abort(two)
    refuses(desk, ProducerFenced, one, two)
    desk.finish()
    refuses(desk, ProducerFenced, one, two)


def test_a_member_that_has_aborted_by_itself_cannot_be_committed(desk: Desk) -> None:
    """In the older protocol it keeps its epoch."""
    one, two = desk.begin("0", A), desk.begin("1", A)
    producer = ProducerIdAndEpoch(two.producer_id, two.epoch)
    end = desk.transactions.end(two.transactional_id, producer, None, desk.now_ms, is_commit=False, bumps_epoch=False)
    desk.transactions.apply(end)
    refuses(desk, InvalidTransactionState, one, two)
    desk.finish()
    refuses(desk, InvalidTransactionState, one, two)


def test_a_member_of_the_newer_protocol_that_has_aborted_has_nothing_to_commit(desk: Desk) -> None:
    """Its next epoch is as good as new."""
    one, two = desk.begin("0", A), desk.begin("1", A)
    producer = ProducerIdAndEpoch(two.producer_id, two.epoch)
    end = desk.transactions.end(two.transactional_id, producer, None, desk.now_ms, is_commit=False, bumps_epoch=True)
    desk.transactions.apply(end)
    refuses(desk, ProducerFenced, one, two)
    desk.finish()
    assert desk.commit(0, one, JointCommitMember(two.transactional_id, *desk.now(two).producer))


def test_an_unknown_member_cannot_be_committed(desk: Desk) -> None:
    one = desk.begin("0", A)
    refuses(desk, InvalidProducerIdMapping, one, JointCommitMember(member_id(NAME, "1"), 7, 0))
    refuses(desk, InvalidProducerIdMapping, one, JointCommitMember(desk.begin("1", A).transactional_id, 7, 0))


def test_a_member_is_named_once_and_is_of_this_bundle(desk: Desk) -> None:
    one = desk.begin("0", A)
    refuses(desk, InvalidRequest, one, one)
    refuses(desk, InvalidRequest, one, JointCommitMember(one.transactional_id, one.producer_id, one.epoch + 1))
    refuses(desk, InvalidRequest, one, JointCommitMember("shop", 1, 0))
    refuses(desk, InvalidRequest, one, desk.begin("0", A, bundle="other"))


def test_the_number_of_members_of_a_commit_is_limited(desk: Desk) -> None:
    refuses(
        desk,
        InvalidRequest,
        *(JointCommitMember(member_id(NAME, str(number)), 1, 0) for number in range(MEMBERS_MAX + 1)),
    )


# Who is late


@pytest.mark.parametrize("is_commit", [True, False])
def test_decided_producers_are_fenced(desk: Desk, is_commit: bool) -> None:
    one = desk.begin("0", A)
    if is_commit:
        desk.commit(0, one)
    else:
        desk.abort(one)
    producer = ProducerIdAndEpoch(one.producer_id, one.epoch)
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            desk.add(one, B)
        for bumps_epoch in (True, False):
            with pytest.raises(ProducerFenced):
                desk.transactions.end(
                    one.transactional_id, producer, None, desk.now_ms, is_commit=not is_commit, bumps_epoch=bumps_epoch
                )
        with pytest.raises(ProducerFenced):
            desk.transactions.init(one.transactional_id, 60_000, producer, None, desk.now_ms)
        desk.finish()
    again = desk.begin("0", A)
    assert again.epoch > one.epoch
    assert desk.commit(1, again)


def test_an_abort_reverts_no_commit_and_spares_restarted_members(desk: Desk) -> None:
    one, two = desk.begin("0", A), desk.begin("1", A)
    desk.commit(0, one, two)
    desk.abort(one, two)
    assert desk.status(one) is TransactionStatus.PREPARE_COMMIT
    desk.finish()
    again = desk.begin("0", B)
    desk.abort(one, two, JointCommitMember(member_id(NAME, "never"), 1, 0))
    assert desk.status(again) is TransactionStatus.ONGOING
    desk.abort(again)
    assert desk.status(again) is TransactionStatus.PREPARE_ABORT


def test_the_last_epoch_of_a_producer_id_can_be_committed_and_a_new_id_follows(desk: Desk) -> None:
    one = desk.begin("0", A)
    desk.transactions.apply(
        TransactionMetadata(
            one.transactional_id,
            ProducerIdAndEpoch(one.producer_id, EPOCH_LAST),
            60_000,
            desk.now_ms,
            TransactionStatus.ONGOING,
            frozenset([A]),
            desk.now_ms,
        )
    )
    assert desk.commit(0, JointCommitMember(one.transactional_id, one.producer_id, EPOCH_LAST))
    desk.finish()
    again = desk.begin("0", A)
    assert again.producer_id != one.producer_id
    assert again.epoch == 0


# What is forgotten


def test_an_unused_joint_commit_expires_after_its_members(desk: Desk) -> None:
    one = desk.begin("0", A)
    desk.commit(0, one)
    desk.finish()
    desk.now_ms += 8 * DAY_MS
    assert desk.joint_commits.expired(desk.now_ms, 7 * DAY_MS) == [], "its member is still known"
    for transactional_id in desk.transactions.expired(desk.now_ms, 7 * DAY_MS):
        desk.transactions.forget(transactional_id)
    assert desk.joint_commits.expired(desk.now_ms, 9 * DAY_MS) == []
    assert desk.joint_commits.expired(desk.now_ms, 7 * DAY_MS) == [NAME]
    desk.joint_commits.forget(NAME)
    assert desk.sequence == -1


def test_a_clock_that_went_back_extends_no_expiration(desk: Desk) -> None:
    desk.joint_commits.restore(JointCommit(NAME, 3, (), 50 * DAY_MS), now_ms=10 * DAY_MS)
    assert desk.sequence == 3
    assert desk.joint_commits.expired(18 * DAY_MS, 7 * DAY_MS) == [NAME]


# Names


def test_the_id_of_a_member_names_its_bundle() -> None:
    transactional_id = member_id("spark-1", "17.2")
    assert transactional_id == "headrace-bundle:spark-1#17.2"
    assert joint_commit_of(transactional_id) == "spark-1"
    assert joint_commit_of(member_id("b", "odd#one")) == "b"
    assert joint_commit_of("shop") is None
    check_transactional_id(transactional_id)


def test_all_members_of_a_joint_commit_share_one_partitioning_id() -> None:
    texts = {partitioning_id(one) for one in (member_id("b", "0"), member_id("b", "1#2"), joint_commit_owner_id("b"))}
    assert texts == {"headrace-bundle:b"}
    for ordinary in ("shop", "shop#1", "bundle:x#y", "", "Headrace-bundle:b#1"):
        assert partitioning_id(ordinary) == ordinary


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "headrace-bundle:",
        "headrace-bundle:b",
        "headrace-bundle:b#",
        "headrace-bundle:#m",
        f"headrace-bundle:{'b' * (NAME_LENGTH_MAX + 1)}#m",
        f"headrace-bundle:b#{'m' * (NAME_LENGTH_MAX + 1)}",
    ],
)
def test_an_invalid_member_id_is_rejected(broken: str) -> None:
    with pytest.raises(InvalidRequest):
        check_transactional_id(broken)


@pytest.mark.parametrize(("bundle", "member"), [("a#b", "0"), ("", "0"), ("b", ""), ("b" * 250, "0"), ("b", "m" * 250)])
def test_an_ambiguous_name_is_rejected(bundle: str, member: str) -> None:
    with pytest.raises(InvalidRequest):
        member_id(bundle, member)
