"""The options and the result of a run."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.availability import Acknowledgements, RoundAvailability
from tests.chaos.faults import InjectedFault
from tests.chaos.schedule import Round

AFTER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    seed: int
    seconds: float
    folder: Path
    session_seconds: float = 3.0
    brokers: int = 3
    """with four, the administrator also drains brokers"""
    servers: int = 3
    """of ZooKeeper: one or three; 0: all brokers are children of one process, and share a registry in SQLite"""
    rate: float = 300.0
    source_rate: float = 12.0
    queue_rate: float = 25.0
    rest_rate: float = 8.0
    share_rate: float = 20.0
    java_rate: float = 40.0
    spark_rate: float = 30.0
    spark: bool = False
    """whether a Spark query takes part"""
    changing_rate: float = 20.0
    kinds: tuple[str, ...] = ()
    """the kinds of faults to draw from; all possible ones if empty"""
    plan: tuple[Round, ...] = ()
    """the rounds to run once; if empty, they are drawn from the seed until the time is up"""


@dataclass
class RunResult:
    """Everything in the report."""

    options: Options
    impossible: dict[str, str] = field(default_factory=dict)
    """kinds of faults that are not possible here, and why"""
    left_out: dict[str, str] = field(default_factory=dict)
    """clients that are not possible here, and why"""
    began: float = 0.0
    ended: float = 0.0
    rounds: list[list[InjectedFault]] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    acknowledgements: Acknowledgements = field(default_factory=lambda: Acknowledgements([]))
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def availability(self, faults: list[InjectedFault]) -> RoundAvailability:
        """Return the availability in a round, and after it until the next one began."""
        began, ended = span(faults)
        nexts = [span(others)[0] for others in self.rounds if others and span(others)[0] > ended]
        return self.acknowledgements.availability(began, ended, min([ended + AFTER_SECONDS, *nexts]))

    def note(self, what: str) -> None:
        now = time.monotonic()
        self.events.append((now, what))
        sys.stderr.write(f"{now - self.began:8.1f}  {what}\n" if self.began else f"          {what}\n")


def span(faults: list[InjectedFault]) -> tuple[float, float]:
    """Return the time from the first injection to the last healing."""
    return min(fault.began for fault in faults), max(fault.healed or fault.ends for fault in faults)
