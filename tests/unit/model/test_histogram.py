"""Seconds are counted into the bucket of their upper bound."""

from __future__ import annotations

import pytest

from headrace.model.histogram import Histogram


def test_seconds_fall_into_the_bucket_of_their_upper_bound() -> None:
    histogram = Histogram()
    for seconds in (0.00005, 0.0001, 0.001, 99.0):
        histogram.observe(seconds)
    assert (histogram.counts[0], histogram.counts[3], histogram.counts[-1], histogram.count) == (2, 1, 1, 4)
    assert histogram.total == pytest.approx(99.00115)


def test_what_took_equally_long_counts_together() -> None:
    histogram = Histogram((1.0, 10.0))
    histogram.observe(0.5, 100)
    histogram.observe(20.0, 3)
    assert (histogram.counts, histogram.count, histogram.total) == ([100, 0, 3], 103, 110.0)
