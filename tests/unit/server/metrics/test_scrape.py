"""A scrape: fresh, shared, and no burden to the loop; and what must be well for the broker to be ready."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.broker.asking import batch, produce, send
from tests.unit.broker.house import House
from tests.unit.server.metrics.reading import Page, in_house, metrics_of, scrape

from headrace.broker.coordinator import Coordinator
from headrace.runtime import cooperative_yield
from headrace.server.metrics.families import FAMILIES

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


@in_house
async def test_the_process_is_told(house: House) -> None:
    page = await scrape(house)
    assert page.value("process_resident_memory_bytes") > 1_000_000
    assert 0 < page.value("process_open_fds") < page.value("process_max_fds")
    assert page.value("process_cpu_seconds_total") > 0
    assert len(page.labels("headrace_build_info")) == 1
    assert page.value("headrace_fsync_seconds_count") == house.broker.store.flusher.rounds


@in_house
async def test_a_page_is_made_once_a_second_however_many_ask(house: House) -> None:
    await house.make_topic("t")
    metrics = metrics_of(house)
    first = await house.host.start(metrics.page(), "scrape")
    await produce(house, "t", b"a")
    assert await house.host.start(metrics.page(), "scrape") is first
    await house.pass_time(1)
    page = Page((await house.host.start(metrics.page(), "scrape")).decode())
    assert page.value("kafka_topic_partition_current_offset", topic="t", partition=0) == 1


@in_house
async def test_who_gives_up_a_scrape_is_not_in_the_way_of_the_next(house: House) -> None:
    await house.make_topic("t", 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooperative_yield, "_TURN_SECONDS", -1.0)
        metrics = metrics_of(house)
        given_up = house.host.start(metrics.page(), "scrape")
        await asyncio.sleep(0)
        given_up.cancel()
        assert b"kafka_topic_partitions" in await house.host.start(metrics.page(), "scrape")


@in_house
async def test_others_have_their_turn_during_a_scrape(house: House) -> None:
    await house.make_topic("t", 50)
    turns = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooperative_yield, "_TURN_SECONDS", -1.0)
        scraping = house.host.start(metrics_of(house).page(), "scrape")
        while not scraping.done():
            turns += 1
            await asyncio.sleep(0)
    assert turns > 50
    Page(scraping.result().decode())


@in_house
async def test_topics_may_go_during_a_scrape(house: House) -> None:
    for number in range(10):
        await house.make_topic(f"t{number}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooperative_yield, "_TURN_SECONDS", -1.0)
        scraping = house.host.start(metrics_of(house).page(), "scrape")
        for number in range(10):
            await house.delete_topic(f"t{number}")
        Page((await scraping).decode())


@in_house
async def test_how_late_the_loop_is_is_told(house: House) -> None:
    metrics = metrics_of(house)
    watching = house.host.start(metrics.loop_lag.run(), "loop lag")
    await house.pass_time(1.05)
    watching.cancel()
    page = Page((await house.host.start(metrics.page(), "scrape")).decode())
    assert page.value("headrace_loop_lag_seconds_count") == 10
    assert page.value("headrace_loop_lag_seconds_bucket", le="0.01") == 10


@in_house
async def test_readiness_names_what_is_wrong(house: House) -> None:
    await house.make_topic("t")
    metrics = metrics_of(house)
    assert metrics.checks() == {"groups": None, "disk": None, "logs": None, "registry": None}
    house.host.disk.capacity_bytes = 1000
    await house.pass_time(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "is_loaded", False)
        checks = metrics.checks()
    assert checks["groups"] == "the group coordinator is still loading"
    assert checks["disk"] is not None


@in_house
async def test_a_log_that_failed_makes_the_broker_unready(house: House) -> None:
    await house.make_topic("t")
    await produce(house, "t", b"a")
    house.host.disk.fail_next("sync", "*.log")
    assert (await send(house, "t", batch(b"b"))).error_code == 56
    assert metrics_of(house).checks()["logs"] == "1 partitions are out of service; see the log"


class StoppedClock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


async def test_a_breath_is_taken_only_when_a_turn_was_long() -> None:
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


def test_the_docs_explain_every_family() -> None:
    text = DOCS.read_text()
    shown = {name for name in FAMILIES if f"`{name}`" in text}
    short = {name for name in FAMILIES if any(f"`...{part}`" in text for part in _endings(name))}
    assert set(FAMILIES) - shown - short == set()


def _endings(name: str) -> list[str]:
    parts = name.split("_")
    return ["_" + "_".join(parts[at:]) for at in range(1, len(parts))]
