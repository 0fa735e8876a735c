"""A rate limiter limits the average rate."""

from __future__ import annotations

from headrace.machines.queues.rate_limiter import RateLimiter


def test_used_tokens_must_be_waited_for() -> None:
    rate = RateLimiter(100)
    assert rate.is_free(0.0)
    rate.take(250, 0.0)
    assert not rate.is_free(2.4)
    assert rate.is_free(2.5)


def test_unused_time_does_not_accumulate() -> None:
    rate = RateLimiter(100)
    rate.take(100, 0.0)
    rate.take(100, 50.0)
    assert not rate.is_free(50.9)


def test_a_limit_can_be_set_and_removed() -> None:
    rate = RateLimiter()
    rate.take(10**9, 0.0)
    assert rate.is_free(0.0)
    rate.per_second = 1
    rate.take(10, 0.0)
    assert not rate.is_free(9.0)
    rate.per_second = None
    assert rate.is_free(0.0)


def test_a_burst_is_followed_by_the_average_rate() -> None:
    rate = RateLimiter(2)
    for _ in range(5):
        assert rate.wait_seconds(10.0, burst=5) == 0
        rate.take(1, 10.0)
    assert rate.wait_seconds(10.0, burst=5) == 0.5
    assert rate.wait_seconds(10.5, burst=5) == 0
    assert RateLimiter().wait_seconds(0.0) == 0
