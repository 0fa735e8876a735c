"""What the commands that read archives share: opening one, and saying what is wrong with it in a line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.cli.failure import Failure, failure_of
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.archive import Archive


@contextmanager
def archive_failures() -> Iterator[None]:
    """Errors of archives become failures of the command."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise Failure("archives are Parquet, which needs pyarrow; `pip install headrace[spark]` brings it") from error
    except (HeadraceError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise  # no failure: see `main`
        raise failure_of(error) from error


def open_archive(path: str) -> Archive:
    """The archive at a path or URI; a Failure if there is none."""
    with archive_failures():
        from headrace.archive import Archive

        archive = Archive(path)
        if not archive.topics():
            raise Failure(f"{path} is no archive: no folder in it has a manifest")
        return archive
