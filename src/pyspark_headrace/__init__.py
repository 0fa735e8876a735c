"""The data source `format("headrace")`, which Spark registers from every module named `pyspark_*`.

Spark imports this module in every worker, so the implementation is imported only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

    from headrace.spark.source import BatchReader
    from headrace.spark.stream import StreamReader


class DefaultSource(DataSource):
    """Reads and writes topics as tables and streams. Options and columns are those of Spark's Kafka source and sink;
    see docs/spark.md and docs/spark-sink.md."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        from headrace.spark.source import ddl

        return ddl(self.options)

    def reader(self, schema: StructType) -> BatchReader:
        from headrace.spark.source import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        from headrace.spark.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from headrace.spark.sink import writer

        return writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002, N802
        from headrace.spark.sink import stream_writer

        return stream_writer(self.options, schema)
