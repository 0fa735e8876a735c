"""Statistics of several samples."""

from __future__ import annotations

from bench.figures import Sample, Spread, ratio, spread


def test_a_spread_is_the_median_between_the_extremes() -> None:
    assert Spread.of([3, 1, 10]) == Spread(3, 1, 10)


def test_a_ratio_is_taken_within_rounds_so_that_drift_cancels_out() -> None:
    samples = [
        Sample("headrace", number, {"speed": 2 * drift}) for number, drift in enumerate((1.0, 5.0, 100.0), 1)
    ] + [Sample("kafka", number, {"speed": drift}) for number, drift in enumerate((1.0, 5.0, 100.0), 1)]
    found = ratio(samples, "headrace", "kafka", "speed")
    assert found == Spread(2, 2, 2)


def test_a_figure_that_was_not_measured_has_no_spread_and_no_ratio() -> None:
    samples = [Sample("headrace", 1, {"speed": 2.0})]
    assert spread(samples, "kafka", "speed") is None
    assert ratio(samples, "headrace", "kafka", "speed") is None


def test_points_of_a_line_are_kept_apart() -> None:
    samples = [Sample("headrace", 1, {"cost": 1.0}, 1), Sample("headrace", 1, {"cost": 9.0}, 10)]
    assert spread(samples, "headrace", "cost", 10) == Spread(9, 9, 9)
