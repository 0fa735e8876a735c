"""The streaming queries of a transform: started together, watched together, ended together.

Each has a checkpoint folder of its own, named as the output is: there a run goes on where the last one was, whatever
became of it. When one fails, the others are stopped and the failure is told; nothing is written twice by that, since
each batch of each query is committed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.model.errors import HeadraceError
from headrace.pipeline.job import Progress, Run
from headrace.pipeline.spark_errors import readable
from headrace.spark.offsets import OffsetMap, StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT: Final = "headrace"
BROKERS: Final = "kafka.bootstrap.servers"
LOOK_SECONDS: Final = 1.0
END_LOOK_SECONDS: Final = 1
END_LOOKS: Final = 60
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
    run: Run, outputs: Sequence[Output], checkpoints: str, trigger_seconds: float | None, own_file: str
) -> tuple[int, bool]:
    """Run them until all is read (no trigger) or a stop is asked for; the rows read, and whether all was read."""
    queries: dict[str, StreamingQuery] = {}
    watch = _Watch(own_file, has_end=trigger_seconds is None)
    try:
        for output in outputs:
            queries[output.name] = _start(run, output, f"{checkpoints}/{output.name}", trigger_seconds)
        while any(query.isActive for query in queries.values()) and not run.must_stop:
            run.tell(watch.look(queries))
            run.wait(LOOK_SECONDS)
        is_finished = not run.must_stop
        _end(queries)
        run.tell(watch.look(queries))
    except Exception:  # who breaks it off does not want to wait for their stop
        for query in queries.values():
            query.stop()
        raise
    return watch.rows, is_finished


def _start(run: Run, output: Output, checkpoint: str, trigger_seconds: float | None) -> StreamingQuery:
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
    for _ in range(END_LOOKS):
        for name, query in queries.items():
            if query.isActive and (not query.status["isTriggerActive"] or _batch(query) != under_way[name]):
                query.stop()
        if not any(query.isActive for query in queries.values()):
            return
        next(query for query in queries.values() if query.isActive).awaitTermination(END_LOOK_SECONDS)
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


class _Watch:
    """Adds up what the queries tell of their batches; raises when one has failed."""

    def __init__(self, own_file: str, *, has_end: bool) -> None:
        self.rows = 0
        self._own_file = own_file
        self._has_end = has_end
        self._batches: dict[str, int] = {}
        self._lags: dict[str, int] = {}

    def look(self, queries: Mapping[str, StreamingQuery]) -> Progress:
        for name, query in queries.items():
            failure = query.exception()
            if failure is not None:
                raise TransformFailed(f"{name}: {readable(failure, self._own_file)}") from failure
            for progress in query.recentProgress:
                self._add(name, progress)
        lag = sum(self._lags.values()) if self._lags else None
        active = [name for name, query in queries.items() if query.isActive]
        total = self.rows + lag if self._has_end and lag is not None else None
        return Progress(self.rows, total, note=", ".join(active) if len(queries) > 1 else "", lag=lag)

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
