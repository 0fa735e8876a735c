"""List the pipelines of a folder: those with a file there, and those with a work folder there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from headrace.model.errors import HeadraceError
from headrace.pipeline.job import JOBS
from headrace.pipeline.settings import WORK_FOLDERS, InvalidPipeline, PipelineTable, near, read_tables, work_folder
from headrace.pipeline.state import Status, WorkFolder


class NoSuchPipeline(HeadraceError):
    """No file and no work folder has this name."""


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


def _of_file(path: Path) -> ListedPipeline | None:
    try:
        table = msgspec.convert(read_tables(path).get("pipeline"), PipelineTable)
    except (InvalidPipeline, msgspec.ValidationError):
        return None
    if table.job not in JOBS:
        return None
    work = work_folder(path.absolute().parent, table.name, table.work)
    return ListedPipeline(table.name, table.job, table.mode, str(path), work, WorkFolder(work).status())


def _of_work_folders(folder: Path) -> Iterator[ListedPipeline]:
    for path in sorted(folder.joinpath(WORK_FOLDERS).glob("*/status.json")):
        status = WorkFolder(path.parent).status()
        if status is not None:
            yield ListedPipeline(status.name, status.job, status.mode, "", path.parent, status)
