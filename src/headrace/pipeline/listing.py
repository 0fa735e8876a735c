"""List the pipelines of a folder: those with a file there, and those with a work folder there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.model.errors import HeadraceError
from headrace.pipeline.job import JOBS
from headrace.pipeline.settings import (
    WITHOUT_FILE,
    WORK_FOLDERS,
    InvalidPipeline,
    Pipeline,
    PipelineTable,
    near,
    read_tables,
    work_folder,
)
from headrace.pipeline.state import StateUnreadable, Status, WorkFolder


class NoSuchPipeline(HeadraceError):
    """No file and no work folder has this name."""


class PipelineNameTaken(HeadraceError):
    """The work folder of the pipeline belongs to another pipeline of the same name."""


class ListedPipeline(msgspec.Struct, frozen=True):
    """`status`: None if it never ran. `file`: empty if it was run without one."""

    name: str
    job: str
    mode: str
    file: str
    work: Path
    status: Status | None


def pipelines_in(folder: Path) -> list[ListedPipeline]:
    """The pipelines, by name; other TOML files are ignored."""
    listed = [found for path in sorted(folder.glob("*.toml")) if (found := _of_file(path)) is not None]
    known = {one.work.absolute() for one in listed}
    listed += [found for found in _of_work_folders(folder) if found.work.absolute() not in known]
    return sorted(listed, key=lambda one: one.name)


def find_pipeline(target: str, folder: Path) -> ListedPipeline:
    """The pipeline with this file, or with this name in the folder."""
    path = Path(target)
    if path.is_file():
        found = _of_file(path)
        if found is None:
            raise NoSuchPipeline(f"{target} is not a pipeline file: it needs [pipeline] with name and job")
        return found
    listed = pipelines_in(folder)
    named = [one for one in listed if one.name == target]
    if not named:
        hint = near(target, [one.name for one in listed])
        raise NoSuchPipeline(f"there is no pipeline {target} here{hint}; see `headrace pipeline list DIR`")
    if len(named) > 1:
        files = ", ".join(one.file for one in named)
        raise NoSuchPipeline(f"{target} is the name of several pipelines: {files}; name the file instead")
    return named[0]


def check_name(pipeline: Pipeline) -> None:
    """Raise PipelineNameTaken if another file has the pipeline's work folder, or the last run there had no file.

    A work folder has one status and one state of a job: two pipelines would overwrite each other's. A file that was
    renamed or moved with its work folder keeps it, because its old path no longer exists.
    """
    work = pipeline.work.resolve()
    own = None if pipeline.file == WITHOUT_FILE else Path(pipeline.file).resolve()
    last = _last_file(work)
    for path in (*sorted(pipeline.folder.glob("*.toml")), Path(last)):
        table = None if path.resolve() == own else _pipeline_table(path)
        if table is not None and _work_of(path, table).resolve() == work:
            raise PipelineNameTaken(
                f"the work folder {pipeline.work} belongs to the pipeline in {path}; {_rename(pipeline)}"
            )
    if last == WITHOUT_FILE != pipeline.file:
        raise PipelineNameTaken(
            f"the work folder {pipeline.work} belongs to a pipeline without a file, which ran with --set; "
            f"{_rename(pipeline)}, or remove {WorkFolder(work).status_file} to continue its work with this file"
        )


def _last_file(work: Path) -> str:
    """The file of the last run; empty if it is unknown."""
    try:
        status = WorkFolder(work).status()
    except StateUnreadable:  # the next run writes it again
        return ""
    return "" if status is None else status.file


def _rename(pipeline: Pipeline) -> str:
    is_file = pipeline.file != WITHOUT_FILE
    return f"set another name in [pipeline] of {pipeline.file}" if is_file else "add --set pipeline.name=NAME"


def _of_file(path: Path) -> ListedPipeline | None:
    table = _pipeline_table(path)
    if table is None:
        return None
    work = _work_of(path, table)
    return ListedPipeline(table.name, table.job, table.mode, str(path), work, WorkFolder(work).status())


def _pipeline_table(path: Path) -> PipelineTable | None:
    """The table [pipeline] of a file; None if it is not the file of a pipeline."""
    try:
        table = msgspec.convert(read_tables(path).get("pipeline"), PipelineTable)
    except (InvalidPipeline, msgspec.ValidationError):
        return None
    return table if table.job in JOBS else None


def _work_of(path: Path, table: PipelineTable) -> Path:
    return work_folder(path.absolute().parent, table.name, table.work)


def _of_work_folders(folder: Path) -> Iterator[ListedPipeline]:
    for path in sorted(folder.joinpath(WORK_FOLDERS).glob("*/status.json")):
        status = WorkFolder(path.parent).status()
        if status is not None:
            yield ListedPipeline(status.name, status.job, status.mode, "", path.parent, status)
