"""The outputs of a transform: convert rows to records, run one streaming query per output, describe the plan.

- Each query has its own checkpoint folder, named after its output; a run continues from there after any failure.
- If one query fails, the others are stopped and the error is raised. Nothing is written twice, because each batch of
  each query commits alone.
- Records: with a column `value`, structs, maps and arrays become JSON, and other types text; the sink ignores columns
  that it does not know. Without one, all columns except the sink's own become one JSON object.
- The sink's own columns are key, headers, partition, delay, deliverAt and priority; topic if the options set none; and
  timestamp if the options keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.columns.offsets import bounds, topics_matching
from headrace.model.errors import HeadraceError
from headrace.pipeline.job import JobProgress, JobRun
from headrace.pipeline.spark_errors import readable
from headrace.spark.offsets import OffsetMap, StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


OWN_COLUMNS: Final = ("key", "headers", "partition", "delay", "deliverat", "priority")


class NoRows(HeadraceError):
    """The query has no column to write."""


def as_records(frame: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Rows as the sink expects them; `options` are those of the sink."""
    from pyspark.sql import functions

    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    named = {name.lower(): name for name in kinds}
    chosen = {name.lower() for name in options}
    own = [*OWN_COLUMNS]
    own += [] if "topic" in chosen else ["topic"]
    own += ["timestamp"] if "keeptimestamp" in chosen else []
    rest = [name for name in kinds if name.lower() not in own]
    columns: list[Column] = [frame[named[name]] for name in own if name in named and name != "key"]
    if "key" in named:
        columns.append(_text(frame[named["key"]], kinds[named["key"]]).alias("key"))
    if "value" in named:
        value = _text(frame[named["value"]], kinds[named["value"]])
    elif rest:
        value = functions.to_json(functions.struct(*(frame[f"`{name}`"] for name in rest)))
    else:
        raise NoRows(f"there is nothing to write: no column value, and only {', '.join(kinds)}")
    return frame.select(value.alias("value"), *columns)


def _text(column: Column, kind: str) -> Column:
    from pyspark.sql import functions

    if kind in ("string", "binary"):
        return column
    return functions.to_json(column) if kind.startswith(("struct", "map", "array")) else column.cast("string")


FORMAT: Final = "headrace"
BROKERS: Final = "kafka.bootstrap.servers"
POLL_SECONDS: Final = 1.0
END_POLL_SECONDS: Final = 1
END_POLLS: Final = 60
"""At a stop, how many times a running batch is polled before it is interrupted."""


class TransformFailed(HeadraceError):
    """A query of a transform has failed."""


class Output(msgspec.Struct, frozen=True):
    """Rows and their sink. `conf`: Spark settings for this query only."""

    name: str
    frame: DataFrame
    format: str
    options: dict[str, str]
    conf: dict[str, str] = {}


def run_queries(
    run: JobRun, outputs: Sequence[Output], checkpoints: str, trigger_seconds: float | None, own_file: str
) -> tuple[int, bool]:
    """Run the queries until everything is read (no trigger) or a stop is requested. Returns the number of rows read,
    and whether everything was read."""
    queries: dict[str, StreamingQuery] = {}
    monitor = _QueryMonitor(own_file, has_end=trigger_seconds is None)
    try:
        for output in outputs:
            queries[output.name] = _start(run, output, f"{checkpoints}/{output.name}", trigger_seconds)
        while any(query.isActive for query in queries.values()) and not run.stop_requested:
            run.report_progress(monitor.update(queries))
            run.wait(POLL_SECONDS)
        is_finished = not run.stop_requested
        _end(queries)
        run.report_progress(monitor.update(queries))
    except Exception:  # not for KeyboardInterrupt, which must not wait for the queries to stop
        for query in queries.values():
            query.stop()
        raise
    return monitor.rows, is_finished


def _start(run: JobRun, output: Output, checkpoint: str, trigger_seconds: float | None) -> StreamingQuery:
    writer = output.frame.writeStream.format(output.format).options(**output.options)
    writer = writer.queryName(f"{run.name}.{output.name}").option("checkpointLocation", checkpoint)
    if trigger_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{int(trigger_seconds * 1000)} milliseconds")
    with _conf(run.spark, output.conf):
        return writer.start()


def _end(queries: Mapping[str, StreamingQuery]) -> None:
    """Stop each query between two batches if the current one ends in time: an interrupted batch is repeated."""
    batches = {name: _batch(query) for name, query in queries.items()}
    for _ in range(END_POLLS):
        for name, query in queries.items():
            if query.isActive and (not query.status["isTriggerActive"] or _batch(query) != batches[name]):
                query.stop()
        if not any(query.isActive for query in queries.values()):
            return
        next(query for query in queries.values() if query.isActive).awaitTermination(END_POLL_SECONDS)
    for query in queries.values():
        query.stop()


def _batch(query: StreamingQuery) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


@contextmanager
def _conf(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Set the conf while a query starts: the query copies the settings then."""
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


class _QueryMonitor:
    """Sums the progress of the queries, and raises if one has failed."""

    def __init__(self, own_file: str, *, has_end: bool) -> None:
        self.rows = 0
        self._own_file = own_file
        self._has_end = has_end
        self._batches: dict[str, int] = {}
        self._lags: dict[str, int] = {}

    def update(self, queries: Mapping[str, StreamingQuery]) -> JobProgress:
        for name, query in queries.items():
            failure = query.exception()
            if failure is not None:
                raise TransformFailed(f"{name}: {readable(failure, self._own_file)}") from failure
            for progress in query.recentProgress:
                self._add(name, progress)
        lag = sum(self._lags.values()) if self._lags else None
        active = [name for name, query in queries.items() if query.isActive]
        total = self.rows + lag if self._has_end and lag is not None else None
        return JobProgress(self.rows, total, note=", ".join(active) if len(queries) > 1 else "", lag=lag)

    def _add(self, name: str, progress: Mapping[str, Any]) -> None:
        batch = int(progress["batchId"])
        if batch > self._batches.get(name, -1):
            self._batches[name] = batch
            self.rows += int(progress["numInputRows"])
        lags = [lag_of(source) for source in progress["sources"]]
        known = [lag for lag in lags if lag is not None]
        if known:
            self._lags[name] = sum(known)


def lag_of(source: Mapping[str, Any]) -> int | None:
    """The records that a source has not read yet; None for a source that does not report it."""
    end, latest = (_offsets(source[key]) for key in ("endOffset", "latestOffset"))
    if end is None or latest is None:
        return None
    return sum(max(offset - end.get(target, offset), 0) for target, offset in latest.items())


def _offsets(value: Any) -> OffsetMap | None:
    """Decode the offsets of our data source; None for those of other sources."""
    try:
        return StreamOffset.from_dict(msgspec.json.decode(value) if isinstance(value, str) else value).offsets
    except (msgspec.MsgspecError, AttributeError, TypeError, ValueError):
        return None


def planned(brokers: str, outputs: Sequence[Output], checkpoints: str) -> list[str]:
    """The plan, line by line: columns, sources, target and checkpoint of each output."""
    existing = topics_matching(brokers, ".*")
    return [line for output in outputs for line in _lines(brokers, output, checkpoints, existing)]


def _lines(brokers: str, output: Output, checkpoints: str, existing: Sequence[str]) -> Iterator[str]:
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in output.frame.schema.fields)
    target = output.options.get("topic") or output.options.get("path") or "the topics of column topic"
    yield f"{output.name}: writes {columns} to {output.format} {target}"
    for topic in topics_read(output.frame):
        if topic not in existing:
            yield f"{output.name}: reads {topic}, which does not exist; create it with `headrace topic create {topic}`"
            continue
        found = bounds(brokers, [topic])
        records = sum(bound.latest - bound.earliest for bound in found.values())
        yield f"{output.name}: reads {topic}, {len(found)} partitions, {records:,} records"
    target_topic = output.options.get("topic")
    if target_topic is not None and target_topic not in existing:
        yield f"{output.name}: {target_topic} does not exist; create it with `headrace topic create {target_topic}`"
    yield f"{output.name}: {_checkpoint_state(checkpoints, output.name)}"


def topics_read(frame: DataFrame) -> list[str]:
    """The topics that the sources name. Those of a pattern are unknown until the query runs."""
    # PySpark does not expose the leaves of a plan and their options.
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    topics: dict[str, None] = {}
    for leaf in (leaves.apply(number) for number in range(leaves.size())):
        if leaf.getClass().getSimpleName() == "StreamingRelationV2":
            named = leaf.extraOptions().get("subscribe") or ""
            topics |= dict.fromkeys(topic.strip() for topic in named.split(",") if topic.strip())
    return list(topics)


def _checkpoint_state(checkpoints: str, name: str) -> str:
    if "://" in checkpoints:
        return f"continues from the checkpoint {checkpoints}/{name}"
    commits = Path(checkpoints, name, "commits")
    batches = [int(file.name) for file in commits.glob("*") if file.name.isdigit()]
    return f"continues after batch {max(batches)}" if batches else "has no checkpoint yet: starts at startingOffsets"
