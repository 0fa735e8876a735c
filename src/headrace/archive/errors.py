"""Errors of the archive."""

from __future__ import annotations

from headrace.model.errors import HeadraceError, RetriableError


class NotInArchive(HeadraceError):
    """The archive has no data of this topic."""


class ArchiveDamaged(HeadraceError):
    """A file of the archive is missing or differs from the manifest."""


class ArchiveConflict(RetriableError):
    """Another archiver changed the manifest first: plan again from its current state."""


class ArchiveOfAnotherTopic(HeadraceError):
    """The archive belongs to a deleted topic of the same name."""


class ArchiveGap(HeadraceError):
    """Records were removed from the log before they were archived."""


class ArchiveStorageUnusable(HeadraceError):
    """The storage of the archive cannot be used."""
