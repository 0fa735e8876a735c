"""Negative controls: the simulation of joint commits finds each planted bug of the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.simulation.joint_commit_scenario import JointCommitScenario

from headrace.broker.partition import Partition
from headrace.broker.transactions.transaction_shard import TransactionShard
from headrace.broker.transactions.transactions_log import StoredTransactions, TransactionsLog
from headrace.machines.transactions.joint_commits import (
    JointCommit,
    JointCommitDecision,
    JointCommitMember,
    JointCommits,
)
from headrace.machines.transactions.transaction_state import ProducerIdAndEpoch, TransactionMetadata
from headrace.machines.transactions.transactions import TransactionStates
from headrace.model.errors import HeadraceError
from headrace.testkit.broker import BrokerFailed
from headrace.testkit.cluster import InvariantViolated

SEEDS = 100

Plant = Callable[[pytest.MonkeyPatch], None]


def store_members_one_by_one(patch: pytest.MonkeyPatch) -> None:
    store = TransactionsLog.store

    def store_each(
        self: TransactionsLog, transactions: Sequence[TransactionMetadata], bundle: JointCommit | None = None
    ) -> int:
        end_offset = 0
        for transaction in transactions:
            end_offset = store(self, [transaction])
        return end_offset if bundle is None else store(self, [], bundle)

    patch.setattr(TransactionsLog, "store", store_each)


def accept_any_sequence(patch: pytest.MonkeyPatch) -> None:
    commit = JointCommits.commit

    def forgetful(
        self: JointCommits, name: str, sequence: int, members: Sequence[JointCommitMember], now_ms: int
    ) -> JointCommitDecision:
        self.forget(name)
        return commit(self, name, sequence, members, now_ms)

    patch.setattr(JointCommits, "commit", forgetful)


def treat_a_sequence_as_committed_for_any_attempt(patch: pytest.MonkeyPatch) -> None:
    commit = JointCommits.commit

    def credulous(
        self: JointCommits, name: str, sequence: int, members: Sequence[JointCommitMember], now_ms: int
    ) -> JointCommitDecision:
        last = self.find(name)
        if last is not None and sequence == last.sequence:
            return JointCommitDecision(is_committed=True)
        return commit(self, name, sequence, members, now_ms)

    patch.setattr(JointCommits, "commit", credulous)


def forget_the_sequence_with_the_leadership(patch: pytest.MonkeyPatch) -> None:
    load = TransactionsLog.load_transactions

    async def load_less(self: TransactionsLog, partition: Partition) -> StoredTransactions:
        return (await load(self, partition))._replace(joint_commits=[])

    patch.setattr(TransactionsLog, "load_transactions", load_less)


def commit_only_the_members_that_can(patch: pytest.MonkeyPatch) -> None:
    committed = JointCommits._committed

    def lenient(self: JointCommits, member: JointCommitMember, now_ms: int) -> TransactionMetadata | None:
        try:
            return committed(self, member, now_ms)
        except HeadraceError:
            return None

    patch.setattr(JointCommits, "_committed", lenient)


def commit_the_current_owner_of_the_id(patch: pytest.MonkeyPatch) -> None:
    present = TransactionStates.present

    def current(self: TransactionStates, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        found = self.find(transactional_id)
        return present(self, transactional_id, producer if found is None else found.producer)

    patch.setattr(TransactionStates, "present", current)


def respond_before_the_decision_is_durable(patch: pytest.MonkeyPatch) -> None:
    async def at_once(*_: object) -> None:
        return

    patch.setattr(TransactionShard, "_settled", at_once)
    patch.setattr(TransactionShard, "_wait_until_ended", at_once)


# Each with a seed that currently shows it, which runs first. Finding another may take a minute.
@pytest.mark.parametrize(
    ("plant", "shown_by"),
    [
        (store_members_one_by_one, 9),
        (accept_any_sequence, 5),
        (treat_a_sequence_as_committed_for_any_attempt, 8),
        (forget_the_sequence_with_the_leadership, 2),
        (commit_only_the_members_that_can, 4),
        (commit_the_current_owner_of_the_id, 12),
        (respond_before_the_decision_is_durable, 27),
    ],
    ids=lambda plant: getattr(plant, "__name__", None),
)
def test_a_planted_bug_is_found(plant: Plant, shown_by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(finds_bug(seed) for seed in [shown_by, *range(1, SEEDS + 1)])


def finds_bug(seed: int) -> bool:
    try:
        return bool(JointCommitScenario(seed).run())
    except (AssertionError, BrokerFailed, ExceptionGroup, InvariantViolated):
        return True
