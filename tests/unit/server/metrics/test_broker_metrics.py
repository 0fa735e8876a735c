"""Scrapes: cached, shared, and in short steps; and the checks for readiness."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.broker.broker_requests import batch, produce, send
from tests.unit.broker.simulated_broker import SimulatedBroker
from tests.unit.server.metrics.metrics_page import MetricsPage, metrics_of, scrape, with_simulated_broker

from headrace.broker.groups.group_coordinator import GroupCoordinator
from headrace.runtime import tasks as cooperative_yield
from headrace.server.metrics.exposition import FAMILIES

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


@with_simulated_broker
async def test_process_metrics_are_reported(simulated_broker: SimulatedBroker) -> None:
    page = await scrape(simulated_broker)
    assert page.value("process_resident_memory_bytes") > 1_000_000
    assert 0 < page.value("process_open_fds") < page.value("process_max_fds")
    assert page.value("process_cpu_seconds_total") > 0
    assert len(page.labels("headrace_build_info")) == 1
    assert page.value("headrace_fsync_seconds_count") == simulated_broker.broker.store.flusher.rounds


@with_simulated_broker
async def test_metrics_are_collected_at_most_once_a_second(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    metrics = metrics_of(simulated_broker)
    first = await simulated_broker.host.start(metrics.page(), "scrape")
    await produce(simulated_broker, "t", b"a")
    assert await simulated_broker.host.start(metrics.page(), "scrape") is first
    await simulated_broker.pass_time(1)
    page = MetricsPage((await simulated_broker.host.start(metrics.page(), "scrape")).decode())
    assert page.value("kafka_topic_partition_current_offset", topic="t", partition=0) == 1


@with_simulated_broker
async def test_a_cancelled_scrape_does_not_block_the_next(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooperative_yield, "_TURN_SECONDS", -1.0)
        metrics = metrics_of(simulated_broker)
        given_up = simulated_broker.host.start(metrics.page(), "scrape")
        await asyncio.sleep(0)
        given_up.cancel()
        assert b"kafka_topic_partitions" in await simulated_broker.host.start(metrics.page(), "scrape")


@with_simulated_broker
async def test_a_scrape_yields_to_other_tasks(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t", 50)
    turns = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooperative_yield, "_TURN_SECONDS", -1.0)
        scraping = simulated_broker.host.start(metrics_of(simulated_broker).page(), "scrape")
        while not scraping.done():
            turns += 1
            await asyncio.sleep(0)
    assert turns > 50
    MetricsPage(scraping.result().decode())


@with_simulated_broker
async def test_topics_may_be_deleted_during_a_scrape(simulated_broker: SimulatedBroker) -> None:
    for number in range(10):
        await simulated_broker.create_topic(f"t{number}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooperative_yield, "_TURN_SECONDS", -1.0)
        scraping = simulated_broker.host.start(metrics_of(simulated_broker).page(), "scrape")
        for number in range(10):
            await simulated_broker.delete_topic(f"t{number}")
        MetricsPage((await scraping).decode())


@with_simulated_broker
async def test_the_lag_of_the_event_loop_is_measured(simulated_broker: SimulatedBroker) -> None:
    metrics = metrics_of(simulated_broker)
    watching = simulated_broker.host.start(metrics.loop_lag.run(), "loop lag")
    await simulated_broker.pass_time(1.05)
    watching.cancel()
    page = MetricsPage((await simulated_broker.host.start(metrics.page(), "scrape")).decode())
    assert page.value("headrace_loop_lag_seconds_count") == 10
    assert page.value("headrace_loop_lag_seconds_bucket", le="0.01") == 10


@with_simulated_broker
async def test_readiness_names_the_failed_checks(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    metrics = metrics_of(simulated_broker)
    assert metrics.checks() == {"groups": None, "disk": None, "logs": None, "registry": None}
    simulated_broker.host.disk.capacity_bytes = 1000
    await simulated_broker.pass_time(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupCoordinator, "is_loaded", False)
        checks = metrics.checks()
    assert checks["groups"] == "the group coordinator is still loading"
    assert checks["disk"] is not None


@with_simulated_broker
async def test_a_failed_log_makes_the_broker_unready(simulated_broker: SimulatedBroker) -> None:
    await simulated_broker.create_topic("t")
    await produce(simulated_broker, "t", b"a")
    simulated_broker.host.disk.fail_next("sync", "*.log")
    assert (await send(simulated_broker, "t", batch(b"b"))).error_code == 56
    assert metrics_of(simulated_broker).checks()["logs"] == "1 partitions are out of service; see the log"


class StoppedClock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


async def test_a_scrape_yields_only_after_a_long_step() -> None:
    clock, turns = StoppedClock(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1

    yield_turn = cooperative_yield.CooperativeYield(clock)
    asyncio.get_running_loop().call_soon(turn)
    await yield_turn()
    assert turns == 0
    clock.seconds = 0.006
    await yield_turn()
    assert turns == 1
    asyncio.get_running_loop().call_soon(turn)
    await yield_turn()
    assert turns == 1


def test_the_docs_describe_every_family() -> None:
    text = DOCS.read_text()
    shown = {name for name in FAMILIES if f"`{name}`" in text}
    short = {name for name in FAMILIES if any(f"`...{part}`" in text for part in _endings(name))}
    assert set(FAMILIES) - shown - short == set()


def _endings(name: str) -> list[str]:
    parts = name.split("_")
    return ["_" + "_".join(parts[at:]) for at in range(1, len(parts))]
