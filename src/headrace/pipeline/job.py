"""What a job is: it says what is wrong with its settings, what it would do, and does it, once or for ever.

A job keeps its own account of how far it came (a checkpoint, a manifest) in a way that survives a kill at any moment: a
run that was broken off is taken up by the next one, and what was done is not done twice. `work` is a folder of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JobProgress(msgspec.Struct, frozen=True):
    """How far a run came; `total` is None where nobody can know. `lag`: how much of the source is not done yet, where
    that is not what is missing from the total."""

    done: int
    total: int | None = None
    unit: str = "records"
    note: str = ""
    lag: int | None = None

    @property
    def behind(self) -> int | None:
        if self.lag is not None:
            return self.lag
        return None if self.total is None else max(self.total - self.done, 0)


class JobResult(msgspec.Struct, frozen=True):
    """What came of a run; the command ends with status 1 if it is not `ok`."""

    ok: bool
    summary: str
    figures: dict[str, int | float | str] = {}


class JobRun(Protocol):
    """What the runner gives to a job."""

    name: str
    brokers: str
    work: Path

    @property
    def spark(self) -> SparkSession:
        """The session, started when it is first asked for: that takes seconds."""

    def tell(self, progress: JobProgress) -> None:
        """Show it, and keep it for `headrace pipeline status`."""

    @property
    def stop_requested(self) -> bool:
        """Somebody asked for a stop: finish what is under way, and return."""

    def wait(self, seconds: float) -> None:
        """Return after so long, or at once when a stop is asked for."""


class Job(ABC):
    settings_type: ClassVar[type[msgspec.Struct]]

    @abstractmethod
    def __init__(self, settings: msgspec.Struct, folder: Path) -> None:
        """`folder`: where the pipeline's file lies; paths in the settings count from there."""

    def problems(self) -> Sequence[str]:
        """What is wrong with the settings, as far as can be told without brokers and Spark."""
        return ()

    @abstractmethod
    def plan(self, run: JobRun) -> Sequence[str]:
        """What `once` would do now, line by line; asks the brokers, changes nothing, and needs no Spark if it can."""

    @abstractmethod
    def once(self, run: JobRun) -> JobResult:
        """Do all that there is to do now."""

    def continuously(self, run: JobRun, trigger_seconds: float) -> JobResult:
        """Do it again and again until a stop is asked for."""
        while True:
            outcome = self.once(run)
            if run.stop_requested or not outcome.ok:
                return outcome
            run.wait(trigger_seconds)
            if run.stop_requested:
                return outcome
