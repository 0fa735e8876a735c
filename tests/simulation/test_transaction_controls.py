"""Negative controls: the simulation of transactions finds each planted bug."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.test_transactions import TransactionScenario

from headrace.broker.coordination.state_log import StateLog, StoredRecord
from headrace.broker.partition import Partition, PartitionState
from headrace.broker.transactions.transaction_markers import TransactionMarkers
from headrace.broker.transactions.transaction_shard import TransactionShard
from headrace.broker.transactions.transaction_verification import TransactionVerification
from headrace.machines.transactions.partition_transactions import PartitionTransactions
from headrace.machines.transactions.transaction_state import TransactionMetadata
from headrace.testkit.broker import BrokerFailed

SEEDS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


def respond_before_the_markers_are_written(patch: pytest.MonkeyPatch) -> None:
    async def at_once(*_: object) -> None:
        return

    patch.setattr(TransactionShard, "_wait_until_ended", at_once)


def accept_batches_without_verification(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionVerification, "verify", lambda *_: None)


def end_without_an_epoch_bump(patch: pytest.MonkeyPatch) -> None:
    def ending(self: TransactionMetadata, _new_id: int | None, now_ms: int, *, is_commit: bool) -> TransactionMetadata:
        return self.ending(now_ms, is_commit=is_commit)

    patch.setattr(TransactionMetadata, "ending_bumped", ending)


def forget_open_transactions_at_the_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionState, "replay", lambda *_: None)


def list_no_aborted_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionTransactions, "aborted", lambda *_: [])


def use_the_high_watermark_as_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "last_stable_offset", property(lambda self: self.high_watermark))


def do_not_complete_decided_transactions_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    async def write_none(*_: object) -> None:
        return

    patch.setattr(TransactionMarkers, "write_all", write_none)


def treat_pending_transactional_offsets_as_committed(patch: pytest.MonkeyPatch) -> None:
    load = StateLog.load

    async def load_plainly(self: StateLog, partition: Partition) -> Any:
        async for stored in load(self, partition):
            yield stored._replace(transaction=None) if isinstance(stored, StoredRecord) else stored

    patch.setattr(StateLog, "load", load_plainly)


@pytest.mark.parametrize(
    "plant",
    [
        respond_before_the_markers_are_written,
        accept_batches_without_verification,
        end_without_an_epoch_bump,
        forget_open_transactions_at_the_start,
        list_no_aborted_transactions,
        use_the_high_watermark_as_last_stable_offset,
        do_not_complete_decided_transactions_after_a_crash,
        treat_pending_transactional_offsets_as_committed,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(finds_bug(seed) for seed in range(1, SEEDS + 1))


def finds_bug(seed: int) -> bool:
    try:
        TransactionScenario(seed).run()
    except (AssertionError, BrokerFailed, ExceptionGroup):
        return True
    return False
