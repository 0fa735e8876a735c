"""What can be wrong with an archive."""

from __future__ import annotations

from headrace.model.errors import HeadraceError, RetriableError


class NotInArchive(HeadraceError):
    """The archive holds nothing of this topic."""


class ArchiveDamaged(HeadraceError):
    """A file of the archive is missing or is not what the manifest says."""


class ArchiveConflict(RetriableError):
    """Another archiver was faster: plan again from what the manifest says now."""


class ArchiveOfAnotherTopic(HeadraceError):
    """The archive was made of another topic of this name, which was deleted since."""


class ArchiveGap(HeadraceError):
    """Records were removed from the log before they were archived."""


class ArchiveStorageUnusable(HeadraceError):
    """The archive's place cannot be used."""
