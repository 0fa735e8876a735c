"""The jobs by their names. Only the one that is asked for gets imported: some of them bring Arrow or Spark along."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from headrace.model.errors import HeadraceError
from headrace.pipeline.job import Job

JOBS: Final = {
    "archive": ("headrace.pipeline.archiving", "ArchiveJob", "topics to Parquet files"),
    "replay": ("headrace.pipeline.replay", "ReplayJob", "Parquet files back to a topic"),
    "transform": ("headrace.pipeline.transform", "TransformJob", "topics to topics, by SQL or Python"),
    "report": ("headrace.pipeline.report", "ReportJob", "throughput, lag and latency as a page with plots"),
    "audit": ("headrace.pipeline.audit", "AuditJob", "proves that nothing was lost, repeated, reordered or altered"),
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
