"""The archive: Parquet files by topic, partition and offset range, and a manifest that lists the valid files."""

from headrace.archive.catalogue import Archive, ArchiveCatalogue

__all__ = ["Archive", "ArchiveCatalogue"]
