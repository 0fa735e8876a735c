"""Spark as a load: one session on two cores that does one thing after another as it is told, over a socket.

    python -m bench.load.sparkload FOLDER BOOTSTRAP SOURCE CLASSES

SOURCE is what it reads by: headrace, kafka, parquet or rate-micro-batch. When the session stands, the port at which it
listens is in FOLDER/spark.port. A command is a line of JSON, `{"do": NAME, ...}` with what the method of that name
takes, and is answered by one; what fails is answered by `{"failure": WORDS}`.
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
from pyspark.sql import functions as F  # noqa: N812, as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from headrace.spark import session

if TYPE_CHECKING:
    from headrace.pipeline.job import JobProgress

MASTER = "local[2]"
ROWS_PER_TRIGGER = 4
# A query's first triggers compile what the others run.
_TRIGGERS_LEFT_OUT = 5
_TRIGGER_SECONDS_MAX = 60
_RECORD, _NUMBER = ("key", "value"), ("timestamp", "value")
_WRITTEN = {"headrace": _RECORD, "kafka": _RECORD, "rate-micro-batch": _NUMBER}


class SparkWork:
    """What it can be told; every method returns its figures."""

    def __init__(self, spark: SparkSession, folder: Path, bootstrap: str, source: str) -> None:
        self._spark = spark
        self._folder = folder
        self._bootstrap = bootstrap
        self._source = source
        self._numbers = itertools.count(1)

    def write_parquet(self, topic: str, compression: str) -> dict[str, Any]:
        """All of a topic into one folder of files, a file for each partition."""
        self._topic(topic, "headrace").write.option("compression", compression).parquet(str(self._parquet(topic)))
        return {}

    def scan(self, topic: str, query: str, columns: str | None = None) -> dict[str, Any]:
        """Query "noop" makes every column of every row and drops it, "sum" adds up the lengths of the values."""
        rows = self._rows(topic, columns)
        began = time.monotonic()
        if query == "noop":
            rows.write.format("noop").mode("overwrite").save()
            return {"wall_s": time.monotonic() - began}
        total = rows.agg(F.sum(F.length("value"))).collect()[0][0]
        return {"wall_s": time.monotonic() - began, "bytes": total}

    def batches(self, topic: str, triggers: int, target: str | None) -> dict[str, Any]:
        """Many small triggers of a streaming query, from the topic's beginning to `target` or to nowhere; the median in
        milliseconds of the whole of one."""
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
        progress = [each for each in query.recentProgress if each["numInputRows"]][_TRIGGERS_LEFT_OUT:triggers]
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
    """What a pipeline's runner would give to a job."""

    name = "bench"
    stop_requested = False

    def __init__(self, spark: SparkSession, brokers: str, work: Path) -> None:
        self.spark = spark
        self.brokers = brokers
        self.work = work

    def report_progress(self, progress: JobProgress) -> None:
        """Nobody looks."""

    def wait(self, seconds: float) -> None:
        """It runs once."""


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
                    lines.write(json.dumps(answer(work, json.loads(line))) + "\n")
                    lines.flush()


def answer(work: SparkWork, command: dict[str, Any]) -> dict[str, Any]:
    """One failed command must not end the session, which the next rounds need."""
    try:
        figures: dict[str, Any] = getattr(work, command.pop("do"))(**command)
    except Exception as error:  # whatever Spark raises is told to who asked
        return {"failure": f"{type(error).__name__}: {str(error)[:2000]}"}
    return figures


if __name__ == "__main__":
    os.environ.pop("JAVA_HOME", None)
    main(Path(sys.argv[1]), *sys.argv[2:])
