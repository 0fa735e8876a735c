"""The rules of joint commits, one by one: all members or none, each sequence once, and fenced members stay fenced."""

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


class JointCommitDriver:
    """Runs the state machines as the coordinator does: each event is applied at once."""

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
        """Complete decided transactions, as when every partition has its marker."""
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
def driver() -> JointCommitDriver:
    return JointCommitDriver()


# One commit


def test_all_members_commit_by_one_decision(driver: JointCommitDriver) -> None:
    one, two = driver.begin("0", A), driver.begin("1", A, B)
    decision = driver.joint_commits.commit(NAME, 0, [two, one], driver.now_ms)
    assert [transaction.transactional_id for transaction in decision.transactions] == [
        two.transactional_id,
        one.transactional_id,
    ]
    assert {transaction.status for transaction in decision.transactions} == {TransactionStatus.PREPARE_COMMIT}
    assert decision.bundle == JointCommit(NAME, 0, (one, two), driver.now_ms)
    assert decision.is_committed
    assert driver.status(one) is TransactionStatus.ONGOING, "a question changes nothing"


def test_a_retry_gets_the_same_result_and_changes_nothing(driver: JointCommitDriver) -> None:
    one, two = driver.begin("0", A), driver.begin("1", B)
    assert driver.commit(0, one, two)
    assert driver.joint_commits.commit(NAME, 0, [two, one], driver.now_ms) == JointCommitDecision(is_committed=True)
    driver.finish()
    driver.begin("0", A)
    assert driver.joint_commits.commit(NAME, 0, [one, two], driver.now_ms) == JointCommitDecision(is_committed=True)


def test_an_empty_commit_counts(driver: JointCommitDriver) -> None:
    assert driver.commit(3)
    assert driver.sequence == 3
    assert driver.commit(3)
    assert not driver.commit(3, driver.begin("0", A))


def test_a_member_without_writes_does_not_block_the_commit(driver: JointCommitDriver) -> None:
    idle, busy = driver.begin("0"), driver.begin("1", A)
    assert driver.commit(0, idle, busy)
    assert driver.status(idle) is TransactionStatus.EMPTY
    assert driver.status(busy) is TransactionStatus.PREPARE_COMMIT


def test_other_open_transactions_of_the_bundle_are_aborted(driver: JointCommitDriver) -> None:
    one, straggler = driver.begin("0", A), driver.begin("0.1", A)
    elsewhere = driver.begin("0", A, bundle="other")
    decision = driver.joint_commits.commit(NAME, 0, [one], driver.now_ms)
    assert [(made.transactional_id, made.status) for made in decision.transactions] == [
        (one.transactional_id, TransactionStatus.PREPARE_COMMIT),
        (straggler.transactional_id, TransactionStatus.PREPARE_ABORT),
    ]
    driver.commit(0, one)
    driver.finish()
    with pytest.raises(ProducerFenced):
        driver.commit(1, straggler)
    assert driver.commit(0, elsewhere, name="other")


def test_joint_commits_with_a_common_name_prefix_are_distinct(driver: JointCommitDriver) -> None:
    longer = driver.begin("0", A, bundle=f"{NAME}-2")
    assert driver.commit(0)
    assert driver.status(longer) is TransactionStatus.ONGOING


# The sequence


@pytest.mark.parametrize("sequence", [4, 5])
def test_an_outdated_sequence_is_not_committed_and_its_members_are_aborted(
    driver: JointCommitDriver, sequence: int
) -> None:
    assert driver.commit(5, driver.begin("0", A))
    driver.finish()
    late, other = driver.begin("1", A), driver.begin("2", B)
    assert not driver.commit(sequence, late)
    assert driver.status(late) is TransactionStatus.PREPARE_ABORT
    assert driver.status(other) is TransactionStatus.ONGOING, "it may be part of what comes next"
    assert driver.sequence == 5


def test_fewer_or_more_members_are_others(driver: JointCommitDriver) -> None:
    one, two = driver.begin("0", A), driver.begin("1", B)
    assert driver.commit(0, one, two)
    assert not driver.commit(0, one)
    assert not driver.commit(0, one, two, driver.begin("2"))
    assert driver.commit(0, one, two)
    assert driver.status(one) is TransactionStatus.PREPARE_COMMIT


def test_a_replaced_driver_cannot_commit_the_sequence_of_its_successor(driver: JointCommitDriver) -> None:
    old = driver.begin("0", A)
    new = driver.begin("0", A)
    assert driver.commit(0, new)
    driver.finish()
    assert not driver.commit(0, old)
    assert driver.status(new) is TransactionStatus.COMPLETE_COMMIT


def test_sequences_may_leave_gaps(driver: JointCommitDriver) -> None:
    assert driver.commit(0)
    assert driver.commit(7)
    assert not driver.commit(3)


def test_sequences_begin_at_0(driver: JointCommitDriver) -> None:
    with pytest.raises(InvalidRequest):
        driver.commit(-1)


# Members that cannot be committed


def assert_rejected(driver: JointCommitDriver, error: type[HeadraceError], *members: JointCommitMember) -> None:
    """Assert that the commit is rejected and changes no member."""
    before = [*driver.transactions]
    with pytest.raises(error):
        driver.joint_commits.commit(NAME, 0, members, driver.now_ms)
    assert [*driver.transactions] == before
    assert driver.sequence == -1


def test_a_restarted_member_cannot_be_committed_with_its_old_epoch(driver: JointCommitDriver) -> None:
    one, two = driver.begin("0", A), driver.begin("1", A)
    driver.begin("1", A)
    assert_rejected(driver, ProducerFenced, one, two)


def test_a_member_that_has_timed_out_cannot_be_committed(driver: JointCommitDriver) -> None:
    one, two = driver.begin("0", A), driver.begin("1", A)
    driver.now_ms += 70_000
    for transaction in driver.transactions.timed_out(driver.now_ms):
        if transaction.transactional_id == two.transactional_id:
            driver.transactions.apply(transaction)
    assert_rejected(driver, ProducerFenced, one, two)
    driver.finish()
    assert_rejected(driver, ProducerFenced, one, two)


def test_a_member_that_was_aborted_cannot_be_committed(driver: JointCommitDriver) -> None:
    one, two = driver.begin("0", A), driver.begin("1", A)
    driver.abort(two)
    assert_rejected(driver, ProducerFenced, one, two)
    driver.finish()
    assert_rejected(driver, ProducerFenced, one, two)


def test_a_member_that_has_aborted_by_itself_cannot_be_committed(driver: JointCommitDriver) -> None:
    """In the older protocol it keeps its epoch."""
    one, two = driver.begin("0", A), driver.begin("1", A)
    producer = ProducerIdAndEpoch(two.producer_id, two.epoch)
    end = driver.transactions.end(
        two.transactional_id, producer, None, driver.now_ms, is_commit=False, bumps_epoch=False
    )
    driver.transactions.apply(end)
    assert_rejected(driver, InvalidTransactionState, one, two)
    driver.finish()
    assert_rejected(driver, InvalidTransactionState, one, two)


def test_a_member_of_the_newer_protocol_that_has_aborted_has_nothing_to_commit(driver: JointCommitDriver) -> None:
    """Its next epoch is as good as new."""
    one, two = driver.begin("0", A), driver.begin("1", A)
    producer = ProducerIdAndEpoch(two.producer_id, two.epoch)
    end = driver.transactions.end(
        two.transactional_id, producer, None, driver.now_ms, is_commit=False, bumps_epoch=True
    )
    driver.transactions.apply(end)
    assert_rejected(driver, ProducerFenced, one, two)
    driver.finish()
    assert driver.commit(0, one, JointCommitMember(two.transactional_id, *driver.now(two).producer))


def test_an_unknown_member_cannot_be_committed(driver: JointCommitDriver) -> None:
    one = driver.begin("0", A)
    assert_rejected(driver, InvalidProducerIdMapping, one, JointCommitMember(member_id(NAME, "1"), 7, 0))
    assert_rejected(
        driver, InvalidProducerIdMapping, one, JointCommitMember(driver.begin("1", A).transactional_id, 7, 0)
    )


def test_a_member_is_named_once_and_is_of_this_bundle(driver: JointCommitDriver) -> None:
    one = driver.begin("0", A)
    assert_rejected(driver, InvalidRequest, one, one)
    assert_rejected(
        driver, InvalidRequest, one, JointCommitMember(one.transactional_id, one.producer_id, one.epoch + 1)
    )
    assert_rejected(driver, InvalidRequest, one, JointCommitMember("shop", 1, 0))
    assert_rejected(driver, InvalidRequest, one, driver.begin("0", A, bundle="other"))


def test_the_number_of_members_of_a_commit_is_limited(driver: JointCommitDriver) -> None:
    assert_rejected(
        driver,
        InvalidRequest,
        *(JointCommitMember(member_id(NAME, str(number)), 1, 0) for number in range(MEMBERS_MAX + 1)),
    )


# Late members


@pytest.mark.parametrize("is_commit", [True, False])
def test_decided_producers_are_fenced(driver: JointCommitDriver, is_commit: bool) -> None:
    one = driver.begin("0", A)
    if is_commit:
        driver.commit(0, one)
    else:
        driver.abort(one)
    producer = ProducerIdAndEpoch(one.producer_id, one.epoch)
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            driver.add(one, B)
        for bumps_epoch in (True, False):
            with pytest.raises(ProducerFenced):
                driver.transactions.end(
                    one.transactional_id,
                    producer,
                    None,
                    driver.now_ms,
                    is_commit=not is_commit,
                    bumps_epoch=bumps_epoch,
                )
        with pytest.raises(ProducerFenced):
            driver.transactions.init(one.transactional_id, 60_000, producer, None, driver.now_ms)
        driver.finish()
    again = driver.begin("0", A)
    assert again.epoch > one.epoch
    assert driver.commit(1, again)


def test_an_abort_reverts_no_commit_and_spares_restarted_members(driver: JointCommitDriver) -> None:
    one, two = driver.begin("0", A), driver.begin("1", A)
    driver.commit(0, one, two)
    driver.abort(one, two)
    assert driver.status(one) is TransactionStatus.PREPARE_COMMIT
    driver.finish()
    again = driver.begin("0", B)
    driver.abort(one, two, JointCommitMember(member_id(NAME, "never"), 1, 0))
    assert driver.status(again) is TransactionStatus.ONGOING
    driver.abort(again)
    assert driver.status(again) is TransactionStatus.PREPARE_ABORT


def test_the_last_epoch_of_a_producer_id_can_be_committed_and_a_new_id_follows(driver: JointCommitDriver) -> None:
    one = driver.begin("0", A)
    driver.transactions.apply(
        TransactionMetadata(
            one.transactional_id,
            ProducerIdAndEpoch(one.producer_id, EPOCH_LAST),
            60_000,
            driver.now_ms,
            TransactionStatus.ONGOING,
            frozenset([A]),
            driver.now_ms,
        )
    )
    assert driver.commit(0, JointCommitMember(one.transactional_id, one.producer_id, EPOCH_LAST))
    driver.finish()
    again = driver.begin("0", A)
    assert again.producer_id != one.producer_id
    assert again.epoch == 0


# What is forgotten


def test_an_unused_joint_commit_expires_after_its_members(driver: JointCommitDriver) -> None:
    one = driver.begin("0", A)
    driver.commit(0, one)
    driver.finish()
    driver.now_ms += 8 * DAY_MS
    assert driver.joint_commits.expired(driver.now_ms, 7 * DAY_MS) == [], "its member is still known"
    for transactional_id in driver.transactions.expired(driver.now_ms, 7 * DAY_MS):
        driver.transactions.forget(transactional_id)
    assert driver.joint_commits.expired(driver.now_ms, 9 * DAY_MS) == []
    assert driver.joint_commits.expired(driver.now_ms, 7 * DAY_MS) == [NAME]
    driver.joint_commits.forget(NAME)
    assert driver.sequence == -1


def test_a_clock_that_went_back_extends_no_expiration(driver: JointCommitDriver) -> None:
    driver.joint_commits.restore(JointCommit(NAME, 3, (), 50 * DAY_MS), now_ms=10 * DAY_MS)
    assert driver.sequence == 3
    assert driver.joint_commits.expired(18 * DAY_MS, 7 * DAY_MS) == [NAME]


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
