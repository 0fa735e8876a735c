"""Acked messages are never delivered again, and all others are, whatever fails in a cluster."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from tests.simulation.queue_scenario import QueueScenario
from tests.simulation.seeded_runs import assert_no_anomalies
from tests.simulation.test_broker import FIRST

from headrace.broker.queues.subscription_shard import SubscriptionShard
from headrace.testkit.anomalies import Anomaly

SEEDS = int(os.environ.get("HEADRACE_SEEDS", "20"))
SEEDS_OF_THE_CONTROL = range(85, 105)
"""The first one that shows the planted bug is 193."""


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_every_message_is_acked_and_none_is_delivered_again(seed: int) -> None:
    assert_no_anomalies(QueueScenario(seed), seed)


def test_an_ack_that_is_confirmed_before_it_is_durable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = SubscriptionShard.settle

    def settle_and_not_wait(self: SubscriptionShard, *requested: Any) -> tuple[Any, asyncio.Future[None] | None]:
        return settle(self, *requested)[0], None

    monkeypatch.setattr(SubscriptionShard, "settle", settle_and_not_wait)
    assert any("acked message came back" in map(_kind, QueueScenario(seed).run()) for seed in SEEDS_OF_THE_CONTROL)


def _kind(anomaly: Anomaly) -> str:
    return anomaly.kind
