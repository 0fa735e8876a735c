"""The archive: records as Parquet files per (topic, partition, offset range), and the manifest that says which count."""
