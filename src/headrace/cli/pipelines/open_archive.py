"""Open archives for commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.failure import CommandFailed

if TYPE_CHECKING:
    from headrace.archive import Archive


def open_archive(path: str) -> Archive:
    """Open the archive at a path or URI; the command fails if there is none."""
    try:
        from headrace.archive import Archive
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise CommandFailed("archives require pyarrow; install it with `pip install headrace[spark]`") from error
    archive = Archive(path)
    if not archive.topics():
        raise CommandFailed(f"{path} is not an archive: none of its folders has a manifest")
    return archive
