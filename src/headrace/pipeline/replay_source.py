"""A stretch of a replay as a table of Spark's, for the sake of a filter in SQL: read here, filtered there, written.

One partition in, one out, so the order of the rows stays. The task's transaction is left open, as it is without Spark's
help; what the writer knows of it goes to the job that waits, by a file in the job's own folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.columns.schema import SPARK_DDL
from headrace.pipeline.replay_task import Stretch, Target, Written, read_rows, write_rows

_NAME = "headrace_replay"


def replay_filtered(spark: SparkSession, stretch: Stretch, target: Target, condition: str, work: Path) -> Written:
    """Replay what the condition, an expression of Spark's SQL, is true for."""
    spark.dataSource.register(ReplaySource)
    # A writer's source is looked for in the session that is active in this thread, which this makes ours.
    spark.createDataFrame([], SPARK_DDL)
    work.mkdir(parents=True, exist_ok=True)
    result = work / f"{target.bundle}.written"
    options = {"stretch": _text(stretch), "target": _text(target), "result": str(result)}
    rows = spark.read.format(_NAME).options(**options).load().where(condition)
    rows.write.format(_NAME).options(**options).mode("append").save()
    written = msgspec.json.decode(result.read_bytes(), type=Written)
    result.unlink()
    return written


class ReplaySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return _NAME

    def schema(self) -> str:
        return SPARK_DDL

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return _Reader(msgspec.json.decode(self.options["stretch"], type=Stretch))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return _Writer(
            msgspec.json.decode(self.options["stretch"], type=Stretch),
            msgspec.json.decode(self.options["target"], type=Target),
            Path(self.options["result"]),
        )


class _Reader(DataSourceReader):
    def __init__(self, stretch: Stretch) -> None:
        self._stretch = stretch

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        return read_rows(self._stretch)


class _Message(WriterCommitMessage):
    def __init__(self, written: Written) -> None:
        self.written = written


class _Writer(DataSourceArrowWriter):
    def __init__(self, stretch: Stretch, target: Target, result: Path) -> None:
        self._stretch = stretch
        self._target = target
        self._result = result

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _Message(write_rows(self._stretch, self._target, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # Spark leaves out a task that can have no rows.
        told = [message.written for message in messages if isinstance(message, _Message)]
        draft = self._result.with_suffix(".tmp")
        draft.write_bytes(msgspec.json.encode(told[0] if told else Written(0, None)))
        os.replace(draft, self._result)


def _text(value: msgspec.Struct) -> str:
    return msgspec.json.encode(value).decode()
