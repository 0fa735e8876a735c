"""The plan of a transform: its queries and the rows between them.

Each has a checkpoint folder of its own, named as the output is: there a run goes on where the last one was, whatever
became of it. When one fails, the others are stopped and the failure is told; nothing is written twice by that, since
each batch of each query is committed by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.pipeline.job import JobProgress, JobRun
from headrace.pipeline.spark_errors import readable
from headrace.spark.offsets import OffsetMap, StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.columns.offsets import bounds, topics_matching

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# What a transform makes, as the sink takes it: a value and a key of bytes or text, and the sink's own columns.
#
#     there is a column `value`      structs, maps and arrays become JSON, numbers and the like text; other columns that
#                                    the sink does not know are left out by it
#     there is none                  all columns but the sink's own become one JSON object
#
# The sink's own are key, headers, partition, delay, deliverAt and priority; topic where none is set for all rows, and
# timestamp where the sink is told to keep it.


OWN_COLUMNS: Final = ("key", "headers", "partition", "delay", "deliverat", "priority")


class NoRows(HeadraceError):
    """Nothing is left to write."""


def as_records(frame: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """`options` are the sink's."""
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
        raise NoRows(f"there is nothing to write: no column value, and none but {', '.join(kinds)}")
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
"""How often a batch that is under way is looked at before it is broken off, at a stop."""


class TransformFailed(HeadraceError):
    """A query of a transform has failed."""


class Output(msgspec.Struct, frozen=True):
    """Rows and where they go. `conf`: Spark's settings for this one alone."""

    name: str
    frame: DataFrame
    format: str
    options: dict[str, str]
    conf: dict[str, str] = {}


def run_queries(
    run: JobRun, outputs: Sequence[Output], checkpoints: str, trigger_seconds: float | None, own_file: str
) -> tuple[int, bool]:
    """Run them until all is read (no trigger) or a stop is asked for; the rows read, and whether all was read."""
    queries: dict[str, StreamingQuery] = {}
    monitor = _QueryMonitor(own_file, has_end=trigger_seconds is None)
    try:
        for output in outputs:
            queries[output.name] = _start(run, output, f"{checkpoints}/{output.name}", trigger_seconds)
        while any(query.isActive for query in queries.values()) and not run.stop_requested:
            run.tell(monitor.update(queries))
            run.wait(POLL_SECONDS)
        is_finished = not run.stop_requested
        _end(queries)
        run.tell(monitor.update(queries))
    except Exception:  # who breaks it off does not want to wait for their stop
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
    """Between two batches, if one comes to its end in time: a batch that is broken off has to be done again."""
    under_way = {name: _batch(query) for name, query in queries.items()}
    for _ in range(END_POLLS):
        for name, query in queries.items():
            if query.isActive and (not query.status["isTriggerActive"] or _batch(query) != under_way[name]):
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
    """A query takes a copy of the settings when it starts."""
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
    """Adds up what the queries tell of their batches; raises when one has failed."""

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
    """Records between where a source was read to and where it ends; None for a source that does not tell."""
    end, latest = (_offsets(source[key]) for key in ("endOffset", "latestOffset"))
    if end is None or latest is None:
        return None
    return sum(max(offset - end.get(target, offset), 0) for target, offset in latest.items())


def _offsets(value: Any) -> OffsetMap | None:
    """Offsets of topics, as our source writes them; None for those of any other."""
    try:
        return StreamOffset.from_dict(msgspec.json.decode(value) if isinstance(value, str) else value).offsets
    except (msgspec.MsgspecError, AttributeError, TypeError, ValueError):
        return None


# What a transform would do, in lines: each output with its columns, where it is read from and where it goes.
#
# Spark has analysed the queries by then, so that what is wrong with them was told already.


def planned(brokers: str, outputs: Sequence[Output], checkpoints: str) -> list[str]:
    there = topics_matching(brokers, ".*")
    return [line for output in outputs for line in _lines(brokers, output, checkpoints, there)]


def _lines(brokers: str, output: Output, checkpoints: str, there: Sequence[str]) -> Iterator[str]:
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in output.frame.schema.fields)
    target = output.options.get("topic") or output.options.get("path") or "the topics of column topic"
    yield f"{output.name}: writes {columns} to {output.format} {target}"
    for topic in topics_read(output.frame):
        if topic not in there:
            yield f"{output.name}: reads {topic}, which is missing; `headrace topic create {topic}` makes it"
            continue
        found = bounds(brokers, [topic])
        records = sum(bound.latest - bound.earliest for bound in found.values())
        yield f"{output.name}: reads {topic}, {len(found)} partitions, {records:,} records"
    target_topic = output.options.get("topic")
    if target_topic is not None and target_topic not in there:
        yield f"{output.name}: {target_topic} is missing; `headrace topic create {target_topic}` makes it"
    yield f"{output.name}: {_checkpoint_state(checkpoints, output.name)}"


def topics_read(frame: DataFrame) -> list[str]:
    """The topics that its sources name; those of a pattern are not known before the query runs."""
    # The leaves of a plan and their options are not among what PySpark shows of it.
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    topics: dict[str, None] = {}
    for leaf in (leaves.apply(number) for number in range(leaves.size())):
        if leaf.getClass().getSimpleName() == "StreamingRelationV2":
            named = leaf.extraOptions().get("subscribe") or ""
            topics |= dict.fromkeys(topic.strip() for topic in named.split(",") if topic.strip())
    return list(topics)


def _checkpoint_state(checkpoints: str, name: str) -> str:
    if "://" in checkpoints:
        return f"goes on as {checkpoints}/{name} says"
    commits = Path(checkpoints, name, "commits")
    batches = [int(file.name) for file in commits.glob("*") if file.name.isdigit()]
    return f"goes on after batch {max(batches)}" if batches else "begins as its sources say: it has no checkpoint yet"
