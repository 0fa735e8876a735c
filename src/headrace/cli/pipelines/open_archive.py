"""Open archives for commands, and turn their errors into one-line failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.cli.failure import CommandFailed, failure_of_error
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.archive import Archive


@contextmanager
def archive_errors() -> Iterator[None]:
    """Turn errors of archives into failures of the command."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise CommandFailed("archives require pyarrow; install it with `pip install headrace[spark]`") from error
    except (HeadraceError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise  # not a failure: see `LazyGroup.invoke`
        raise failure_of_error(error) from error


def open_archive(path: str) -> Archive:
    """Open the archive at a path or URI; raise a Failure if there is none."""
    with archive_errors():
        from headrace.archive import Archive

        archive = Archive(path)
        if not archive.topics():
            raise CommandFailed(f"{path} is not an archive: none of its folders has a manifest")
        return archive
