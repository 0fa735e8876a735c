"""The archive: records as Parquet files per topic, partition and offset range, and the manifest of those that count."""

from headrace.archive.catalogue import Archive, Catalogue

__all__ = ["Archive", "Catalogue"]
