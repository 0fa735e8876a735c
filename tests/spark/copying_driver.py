"""A driver that copies a topic through a shuffle, with tasks that fail randomly, until it is done or killed.

    python -m tests.spark.copying_driver BROKERS SOURCE TARGET FOLDER ROWS-PER-BATCH

Ends with status 0 when all records that were in the source at its start are copied. About one in six of its tasks
fails: before the first write, halfway, or after all writes and before it reports them.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from headrace.spark import session, writing
from headrace.spark.sink import StreamSink
from headrace.spark.sink_options import parse
from pyspark_headrace import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

SEED = os.environ.get("HEADRACE_SEED", "1")
TASKS = 3
ATTEMPTS = 6


class Unlucky(Exception):
    """The failure of a task."""


class UnluckySink(StreamSink):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> writing.TaskCommitMessage:
        writing.WINDOW_BYTES = 1  # type: ignore[misc]  # each few rows are sent at once: so there is a half-way
        task = TaskContext.get()
        assert task is not None
        place = (task.getLocalProperty("streaming.sql.batchId"), task.partitionId(), task.attemptNumber())
        chance = random.Random(f"{SEED} {place}")
        fate = chance.choice(["fails"] + ["succeeds"] * 5)
        rows_until = chance.randrange(200)

        def rows() -> Iterator[pa.RecordBatch]:
            passed = 0
            for batch in iterator:
                yield batch
                passed += len(batch)
                if fate == "fails" and passed >= rows_until:
                    raise Unlucky(f"half-way, {place}")

        written = super().write(rows())
        if fate == "fails":
            raise Unlucky(f"when all is written, {place}")
        return written


class UnluckySource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "unlucky"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return UnluckySink(parse(self.options, streaming=True), schema)


def copy(brokers: str, source: str, target: str, folder: str, rows_per_batch: str) -> None:
    spark = session("copy", master=f"local[2,{ATTEMPTS}]", conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "20"})
    spark.dataSource.register(UnluckySource)
    rows = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_per_batch)
        .load()
    )
    query = (
        rows.selectExpr("key", "concat('copy of ', cast(value as string)) as value")
        .repartition(TASKS)
        .writeStream.format("unlucky")
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", target)
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    copy(*sys.argv[1:])
