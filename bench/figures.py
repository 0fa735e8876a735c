"""Figures of measurements, and statistics of several: median, spread, ratio within a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of a table. `key` names the figure in samples and in the JSON file."""

    key: str
    title: str
    better: str  # "higher" or "lower"
    digits: int = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one trial of one peer. `point` is the x value if the workload draws a line."""

    peer: str
    round: int
    figures: Mapping[str, float]
    point: int | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, minimum and maximum of several figures."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        assert figures
        return cls(median(figures), min(figures), max(figures))


def spread(samples: Sequence[Sample], peer: str, key: str, point: int | None = None) -> Spread | None:
    figures = [s.figures[key] for s in samples if s.peer == peer and s.point == point and key in s.figures]
    return Spread.of(figures) if figures else None


def ratio(samples: Sequence[Sample], subject: str, peer: str, key: str, point: int | None = None) -> Spread | None:
    """Divide the subject's figure by the peer's in each round, so that drift between rounds cancels out."""

    def by_round(name: str) -> dict[int, float]:
        return {s.round: s.figures[key] for s in samples if s.peer == name and s.point == point and key in s.figures}

    ours, theirs = by_round(subject), by_round(peer)
    ratios = [ours[number] / theirs[number] for number in ours if theirs.get(number)]
    return Spread.of(ratios) if ratios else None
