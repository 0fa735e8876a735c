"""The archive: records as Parquet files per topic, partition and offset range, and the manifest of those that count."""

from headrace.archive.catalogue import Archive, ArchiveCatalogue

__all__ = ["Archive", "ArchiveCatalogue"]
