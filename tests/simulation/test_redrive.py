"""Dead letters are redriven to their subscription only, and once, whatever fails in a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from tests.simulation.redrive_scenario import RedriveScenario
from tests.simulation.seeded_runs import assert_no_anomalies
from tests.simulation.test_broker import FIRST

from headrace.machines.queues.acks_replay import AcksReplay
from headrace.machines.queues.subscription import PartitionSubscription
from headrace.wire.state_records.acks_records import AcksEvent, Redriven

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "20"))
SEED_WITH_A_LOST_RESPONSE, SEED_WITH_A_NEW_LEADER = 2, 13


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_redriven_messages_reach_their_subscription_and_no_other(seed: int) -> None:
    assert_no_anomalies(RedriveScenario(seed), seed)


def kinds_of_anomalies(seed: int) -> set[str]:
    return {anomaly.kind for anomaly in RedriveScenario(seed).run()}


def test_a_repeated_request_that_delivers_an_acked_message_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def redrive_always(
        self: PartitionSubscription, messages: Iterable[tuple[int, int]], now_ms: int
    ) -> list[AcksEvent]:
        new = [(offset, count) for offset, count in messages if self.is_settled(offset)]
        return [Redriven(now_ms, new)] if new else []

    monkeypatch.setattr(PartitionSubscription, "redrive", redrive_always)
    assert "acked twice" in kinds_of_anomalies(SEED_WITH_A_LOST_RESPONSE)


def test_a_redrive_that_a_new_leader_does_not_know_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = AcksReplay.take

    def take_others(self: AcksReplay, offset: int, name: str, event: AcksEvent) -> None:
        if not isinstance(event, Redriven):
            take(self, offset, name, event)

    monkeypatch.setattr(AcksReplay, "take", take_others)
    assert "never settled" in kinds_of_anomalies(SEED_WITH_A_NEW_LEADER)
