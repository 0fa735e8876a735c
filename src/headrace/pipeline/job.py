"""The interface between a job and the runner, and the table of all jobs.

- A job checks its settings, lists what it would do, and does it, once or continuously.
- A job stores its own progress (a checkpoint, a manifest) such that a kill at any moment loses none: the next run
  continues an interrupted one, and no work is done twice.
- `find_job` imports only the requested job: some jobs import Arrow or Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from importlib import import_module
from typing import Final

from headrace.model.errors import HeadraceError


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


JOBS: Final = {
    "archive": ("headrace.pipeline.archive_job", "ArchiveJob", "topics to Parquet files"),
    "replay": ("headrace.pipeline.replay_job", "ReplayJob", "Parquet files back to a topic"),
    "transform": ("headrace.pipeline.transform.transform_job", "TransformJob", "topics to topics, by SQL or Python"),
    "report": ("headrace.pipeline.report.report_job", "ReportJob", "throughput, lag and latency as a page with plots"),
    "audit": (
        "headrace.pipeline.audit.audit_job",
        "AuditJob",
        "proves that nothing was lost, repeated, reordered or altered",
    ),
}


class NotInstalled(HeadraceError):
    """What jobs need is not there."""


def find_job(name: str) -> type[Job]:
    """The job of a name that is among `JOBS`."""
    module, job, _ = JOBS[name]
    try:
        found = getattr(import_module(module), job)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("pyarrow", "pyspark", "py4j"):
            raise
        raise NotInstalled(f"{error.name} is not installed; `pip install 'headrace[spark]'` brings it") from None
    assert isinstance(found, type)
    assert issubclass(found, Job)
    return found
