"""The interface between a job and the runner, and the table of all jobs.

- A job checks its settings, lists what it would do, and does it, once or continuously.
- A job stores its own progress (a checkpoint, a manifest) such that a kill at any moment loses none: the next run
  continues an interrupted one, and no work is done twice.
- `find_job` imports only the requested job: some jobs import Arrow or Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec

from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JobProgress(msgspec.Struct, frozen=True):
    """The progress of a run; `total` is None if it is unknown. `lag`: the rest of the source, if that is not the
    difference between `total` and `done`."""

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
    """The result of a run; the command exits with status 1 if it is not `ok`."""

    ok: bool
    summary: str
    figures: dict[str, int | float | str] = {}


class JobRun(Protocol):
    """The interface of the runner for a job. `work`: the folder for the state of the job."""

    name: str
    brokers: str
    work: Path

    @property
    def spark(self) -> SparkSession:
        """The session, started at the first use, which takes seconds."""

    def report_progress(self, progress: JobProgress) -> None:
        """Display the progress; the runner writes it to the status within a second. A continuous job counts over all
        its rounds, and reports also when a round finds nothing to do."""

    @property
    def stop_requested(self) -> bool:
        """A stop was requested: finish the work in progress, and return."""

    def wait(self, seconds: float) -> None:
        """Return after this time, or at once when a stop is requested."""


Settings = TypeVar("Settings", bound=msgspec.Struct)


class Job(ABC, Generic[Settings]):
    settings_type: type[Settings]

    @abstractmethod
    def __init__(self, settings: Settings, folder: Path) -> None:
        """`folder`: the folder of the pipeline's file, against which relative paths are resolved."""

    def problems(self) -> Sequence[str]:
        """The problems in the settings that can be found without brokers and Spark."""
        return ()

    @abstractmethod
    def plan(self, run: JobRun) -> Sequence[str]:
        """What `once` would do now, line by line. Queries the brokers, changes nothing, and avoids starting Spark."""

    @abstractmethod
    def once(self, run: JobRun) -> JobResult:
        """Process everything that is available now."""

    def continuously(self, run: JobRun, trigger_seconds: float) -> JobResult:
        """Repeat `once` until a stop is requested. The result is that of the last time."""
        return repeat(run, trigger_seconds, lambda: self.once(run))


def repeat(run: JobRun, trigger_seconds: float, work: Callable[[], JobResult]) -> JobResult:
    """Repeat `work` until a stop is requested or it fails, and return its last result."""
    while True:
        result = work()
        if run.stop_requested or not result.ok:
            return result
        run.wait(trigger_seconds)
        if run.stop_requested:
            return result


def failed_checks(checks: Mapping[str, Callable[[], object]]) -> Iterator[str]:
    """The names of the checks that raise, each with its error."""
    for name, check in checks.items():
        try:
            check()
        except (ValueError, HeadraceError) as error:
            yield f"{name}: {error}"


JOBS: Final = {
    "archive": ("headrace.pipeline.archive_job", "ArchiveJob", "topics to Parquet files"),
    "replay": ("headrace.pipeline.replay_job", "ReplayJob", "Parquet files back to a topic"),
    "transform": ("headrace.pipeline.transform.transform_job", "TransformJob", "topics to topics, by SQL or Python"),
    "report": ("headrace.pipeline.report.report_job", "ReportJob", "throughput, lag and latency as a page with plots"),
    "audit": (
        "headrace.pipeline.audit.audit_job",
        "AuditJob",
        "checks that nothing was lost, repeated, reordered or altered",
    ),
}


class NotInstalled(HeadraceError):
    """A package that the job needs is not installed."""


def find_job(name: str) -> type[Job[Any]]:
    module, job, _ = JOBS[name]
    try:
        found = getattr(import_module(module), job)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("pyarrow", "pyspark", "py4j"):
            raise
        raise NotInstalled(f"{error.name} is not installed; run `pip install 'headrace[spark]'`") from None
    assert isinstance(found, type)
    assert issubclass(found, Job)
    return found
