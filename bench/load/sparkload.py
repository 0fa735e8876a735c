"""A load generator on Spark: one session on two cores, which executes commands from a socket, one at a time.

    python -m bench.load.sparkload FOLDER BOOTSTRAP SOURCE CLASSES

SOURCE is the Spark source to read with: headrace, kafka, parquet or rate-micro-batch. When the session has started, it
writes its port to FOLDER/spark.port. A command is a line of JSON, `{"do": NAME, ...}` with the arguments of the method
NAME; the response is a line of JSON, which is `{"failure": MESSAGE}` if the command failed.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from headrace.spark import session

if TYPE_CHECKING:
    from headrace.pipeline.job import JobProgress

MASTER = "local[2]"
ROWS_PER_TRIGGER = 4
# The first triggers of a query include compilation.
_TRIGGERS_SKIPPED = 5
_TRIGGER_SECONDS_MAX = 60
_RECORD, _NUMBER = ("key", "value"), ("timestamp", "value")
_WRITTEN = {"headrace": _RECORD, "kafka": _RECORD, "rate-micro-batch": _NUMBER}


class SparkWork:
    """The commands; every method returns its figures."""

    def __init__(self, spark: SparkSession, folder: Path, bootstrap: str, source: str) -> None:
        self._spark = spark
        self._folder = folder
        self._bootstrap = bootstrap
        self._source = source
        self._numbers = itertools.count(1)

    def write_parquet(self, topic: str, compression: str) -> dict[str, Any]:
        """Write a topic to a folder, one file per partition."""
        self._topic(topic, "headrace").write.option("compression", compression).parquet(str(self._parquet(topic)))
        return {}

    def scan(self, topic: str, query: str, columns: str | None = None) -> dict[str, Any]:
        """The query "noop" reads and drops all rows; "sum" adds up the lengths of the values."""
        rows = self._rows(topic, columns)
        began = time.monotonic()
        if query == "noop":
            rows.write.format("noop").mode("overwrite").save()
            return {"wall_s": time.monotonic() - began}
        total = rows.agg(F.sum(F.length("value"))).collect()[0][0]
        return {"wall_s": time.monotonic() - began, "bytes": total}

    def batches(self, topic: str, triggers: int, target: str | None) -> dict[str, Any]:
        """Run many small triggers of a streaming query from the start of the topic to `target`, or to the noop sink;
        return the median duration of a trigger in milliseconds."""
        checkpoint = self._folder / f"checkpoint-{next(self._numbers)}"
        writer = (
            self._stream(topic)
            .select(*_WRITTEN[self._source])
            .writeStream.option("checkpointLocation", str(checkpoint))
        )
        if target is None:
            writer = writer.format("noop")
        else:
            writer = writer.format(self._source).option("kafka.bootstrap.servers", self._bootstrap)
            writer = writer.option("topic", target)
        query = writer.start()
        try:
            _await_triggers(query, triggers)
        finally:
            query.stop()
        progress = [each for each in query.recentProgress if each["numInputRows"]][_TRIGGERS_SKIPPED:triggers]
        shutil.rmtree(checkpoint, ignore_errors=True)
        return {
            "trigger_ms": median(each["durationMs"]["triggerExecution"] for each in progress),
            "triggers": len(progress),
        }

    def archive(self, topic: str) -> dict[str, Any]:
        folder = self._folder / f"archive-{next(self._numbers)}"
        began = time.monotonic()
        figures = _archive_once(self._spark, self._bootstrap, topic, folder)
        wall_s = time.monotonic() - began
        size = sum(file.stat().st_size for file in folder.rglob("*.parquet"))
        shutil.rmtree(folder)
        return {"wall_s": wall_s, "records": figures["records"], "file_bytes": size}

    def _rows(self, topic: str, columns: str | None) -> DataFrame:
        if self._source == "parquet":
            return self._spark.read.parquet(str(self._parquet(topic)))
        return self._topic(topic, self._source, columns)

    def _topic(self, topic: str, source: str, columns: str | None = None) -> DataFrame:
        reader = self._spark.read.format(source).option("kafka.bootstrap.servers", self._bootstrap)
        if columns is not None:
            reader = reader.option("columns", columns)
        return reader.option("subscribe", topic).load()

    def _stream(self, topic: str) -> DataFrame:
        reader: DataStreamReader = self._spark.readStream.format(self._source)
        if self._source == "rate-micro-batch":
            return reader.option("rowsPerBatch", ROWS_PER_TRIGGER).option("numPartitions", ROWS_PER_TRIGGER).load()
        reader = reader.option("kafka.bootstrap.servers", self._bootstrap).option("subscribe", topic)
        reader = reader.option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", ROWS_PER_TRIGGER).load()

    def _parquet(self, topic: str) -> Path:
        return self._folder / f"parquet-{topic}"


class _Run:
    """A minimal pipeline run for the archive job."""

    name = "bench"
    stop_requested = False

    def __init__(self, spark: SparkSession, brokers: str, work: Path) -> None:
        self.spark = spark
        self.brokers = brokers
        self.work = work

    def report_progress(self, progress: JobProgress) -> None:
        """Progress is not displayed."""

    def wait(self, seconds: float) -> None:
        """The job runs once and does not wait."""


def _archive_once(spark: SparkSession, brokers: str, topic: str, folder: Path) -> dict[str, Any]:
    from headrace.pipeline.archive_job import ArchiveJob  # the scans do not need it

    settings = msgspec.convert({"topics": [topic], "path": str(folder)}, ArchiveJob.settings_type)
    outcome = ArchiveJob(settings, folder).once(_Run(spark, brokers, folder / "work"))
    if not outcome.ok:
        raise ValueError(outcome.summary)
    return outcome.figures


def _await_triggers(query: StreamingQuery, triggers: int) -> None:
    deadline = time.monotonic() + _TRIGGER_SECONDS_MAX
    while (progress := query.lastProgress) is None or progress["batchId"] + 1 < triggers:
        if query.exception() is not None:
            query.awaitTermination()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{triggers} triggers took more than {_TRIGGER_SECONDS_MAX} s")
        time.sleep(0.05)


def main(folder: Path, bootstrap: str, source: str, classes: str) -> None:
    conf = {"spark.driver.extraClassPath": classes} if classes else {}
    work = SparkWork(session("bench", master=MASTER, conf=conf), folder, bootstrap, source)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        part = folder / "spark.port.part"
        part.write_text(str(listener.getsockname()[1]))
        part.rename(folder / "spark.port")
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as lines:
                for line in lines:
                    lines.write(json.dumps(response(work, json.loads(line))) + "\n")
                    lines.flush()


def response(work: SparkWork, command: dict[str, Any]) -> dict[str, Any]:
    """Execute a command; a failed command must not end the session, which later rounds need."""
    try:
        figures: dict[str, Any] = getattr(work, command.pop("do"))(**command)
    except Exception as error:  # Spark raises many types; the error is returned to the client
        return {"failure": f"{type(error).__name__}: {str(error)[:2000]}"}
    return figures


if __name__ == "__main__":
    os.environ.pop("JAVA_HOME", None)
    main(Path(sys.argv[1]), *sys.argv[2:])
