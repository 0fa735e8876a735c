"""Clocks and chance, real and simulated."""

from __future__ import annotations

import re

import pytest

from headrace.runtime.clock import Clock, SystemClock
from headrace.runtime.entropy import Entropy, SystemEntropy
from headrace.testkit.clock import SimClock
from headrace.testkit.entropy import SeededEntropy
from headrace.testkit.loop import SimLoop


@pytest.fixture(params=["system", "simulated"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return SystemClock() if request.param == "system" else SimClock(SimLoop(1))


@pytest.fixture(params=["system", "seeded"])
def entropy(request: pytest.FixtureRequest) -> Entropy:
    return SystemEntropy() if request.param == "system" else SeededEntropy(1)


def test_time_does_not_run_backwards(clock: Clock) -> None:
    times = [clock.monotonic() for _ in range(100)]
    assert times == sorted(times)


def test_the_wall_clock_counts_milliseconds_since_1970(clock: Clock) -> None:
    assert 1_600_000_000_000 < clock.now_ms() < 4_000_000_000_000


def test_identifiers_are_random_and_of_version_four(entropy: Entropy) -> None:
    drawn = {entropy.uuid() for _ in range(100)}
    assert len(drawn) == 100
    assert {identifier.version for identifier in drawn} == {4}


def test_tokens_are_safe_in_a_url_and_differ(entropy: Entropy) -> None:
    drawn = {entropy.token(16) for _ in range(100)}
    assert len(drawn) == 100
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}", token) for token in drawn)


def test_numbers_stay_within_their_bounds_and_reach_them(entropy: Entropy) -> None:
    assert {entropy.integer(3, 5) for _ in range(200)} == {3, 4, 5}
    assert all(0.5 <= entropy.uniform(0.5, 2.0) <= 2.0 for _ in range(200))


def test_the_same_seed_gives_the_same_chance() -> None:
    def draw(seed: int) -> list[object]:
        entropy = SeededEntropy(seed)
        return [entropy.uuid(), entropy.token(8), entropy.integer(0, 9), entropy.uniform(0, 1)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_the_simulated_wall_clock_jumps_and_the_monotonic_one_does_not() -> None:
    loop = SimLoop(1)
    clock = SimClock(loop)
    before_ms, before = clock.now_ms(), clock.monotonic()
    clock.jump(-5000)
    assert clock.now_ms() == before_ms - 5000
    assert clock.monotonic() == before
