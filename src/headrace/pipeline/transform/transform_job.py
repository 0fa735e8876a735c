"""The job `transform`: streaming queries from topics to topics, exactly once.

A SQL file (`sql_file.py`) or a Python file (`dataflow.py`) defines the queries. Each output is one streaming query with
its own checkpoint folder, from which the next run continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.model.durations import parse_duration
from headrace.model.errors import HeadraceError
from headrace.model.names import check_topic_name
from headrace.pipeline.job import Job, JobResult, JobRun, failed_checks
from headrace.pipeline.settings import conf_text
from headrace.pipeline.transform.outputs import BROKERS, FORMAT, Output, as_records, planned, run_queries
from headrace.pipeline.transform.sql_file import Statement, check_sql, output_names, parse_sql
from headrace.spark import options as source_options
from headrace.spark import sink_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKERS_CONF: Final = "spark.headrace.brokers"
"""Python files read the brokers of the pipeline from it: `spark.conf.get("spark.headrace.brokers")`."""

_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_GROUPS = ("groupId", "groupIdPrefix", "kafka.group.id")
_NO_BROKERS = "127.0.0.1:1"

Value = str | bool | int | float


class InvalidTransform(HeadraceError):
    """The definition of a transform cannot be run."""


class TransformSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`sql` or `python`: the file. `to`: the topic of the last SELECT. `sources`: topics as views, by view name.
    `options`: of the sink. `checkpoints`: a URI, needed if Spark's workers cannot access the work folder."""

    sql: str | None = None
    python: str | None = None
    to: str | None = None
    sources: dict[str, dict[str, Value]] = {}
    options: dict[str, Value] = {}
    checkpoints: str | None = None


class TopicSqlView(msgspec.Struct, frozen=True):
    """A topic as a view, with options of the data source, and an allowed lateness (`watermark`) of a column."""

    name: str
    options: dict[str, str]
    watermark_ms: int | None
    watermark_column: str

    @classmethod
    def of(cls, name: str, table: Mapping[str, Value]) -> TopicSqlView:
        options = {key: conf_text(value) for key, value in table.items()}
        column = options.pop("watermarkColumn", "timestamp")
        watermark = options.pop("watermark", None)
        if "topic" in options:
            options["subscribe"] = options.pop("topic")
        given = {key.lower() for key in options}
        if not any(key.lower() in given for key in _STARTS):
            options["startingOffsets"] = "earliest"
        if "includeheaders" not in given:
            options["includeHeaders"] = "true"
        return cls(name, options, None if watermark is None else parse_duration(watermark), column)

    def make_view(self, spark: SparkSession, brokers: str, group_prefix: str) -> None:
        options = {BROKERS: brokers, **self.options}
        if not any(key.lower() in {name.lower() for name in options} for key in _GROUPS):
            options["groupIdPrefix"] = group_prefix
        frame = spark.readStream.format(FORMAT).options(**options).load()
        if self.watermark_ms is not None:
            frame = frame.withWatermark(self.watermark_column, f"{self.watermark_ms} milliseconds")
        frame.createOrReplaceTempView(self.name)


class TransformJob(Job[TransformSettings]):
    settings_type = TransformSettings

    def __init__(self, settings: TransformSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder

    def problems(self) -> Sequence[str]:
        return list(self._problems())

    def plan(self, run: JobRun) -> Sequence[str]:
        with self._outputs(run) as outputs:
            return planned(run.brokers, outputs, self._checkpoints(run))

    def once(self, run: JobRun) -> JobResult:
        return self._run(run, None)

    def continuously(self, run: JobRun, trigger_seconds: float) -> JobResult:
        return self._run(run, trigger_seconds)

    def _run(self, run: JobRun, trigger_seconds: float | None) -> JobResult:
        with self._outputs(run) as outputs:
            checkpoints = self._checkpoints(run)
            rows, all_read = run_queries(run, outputs, checkpoints, trigger_seconds, str(self._file))
        names = ", ".join(output.name for output in outputs)
        rest = "" if all_read or trigger_seconds is not None else "; stopped before everything was read"
        return JobResult(True, f"{rows:,} records read for {names}{rest}", {"records": rows})

    @property
    def _file(self) -> Path:
        return self._folder / (self._settings.sql or self._settings.python or "")

    def _checkpoints(self, run: JobRun) -> str:
        return self._settings.checkpoints or str(run.work.absolute() / "checkpoints")

    @contextmanager
    def _outputs(self, run: JobRun) -> Iterator[list[Output]]:
        """The outputs; their views are dropped from the session afterwards."""
        spark = run.spark
        spark.conf.set(BROKERS_CONF, run.brokers)
        if self._settings.python is not None:
            from headrace.pipeline.transform.dataflow import load_dataflow

            dataflow = load_dataflow(self._file, spark)
            views, outputs = dataflow.view_names, dataflow.outputs(run.brokers, self._folder)
        else:
            statements = parse_sql(self._file.read_text("utf-8"))
            views = [*self._settings.sources, *(one.target for one in statements if one.kind == "view")]
            outputs = self._sql_outputs(run, statements)
        try:
            yield outputs
        finally:
            for view in views:
                spark.catalog.dropTempView(view)

    def _sql_outputs(self, run: JobRun, statements: Sequence[Statement]) -> list[Output]:
        spark, outputs = run.spark, []
        for name, insert in output_names(statements, self._settings.to or ""):
            # Each output has its own sources, with their own progress and consumer group.
            for source in self._sources():
                source.make_view(spark, run.brokers, f"{run.name}.{name}")
            for statement in statements:
                if statement.kind == "view":
                    spark.sql(f"CREATE OR REPLACE {statement.sql[statement.sql.upper().index('TEMP') :]}")
            frame = spark.sql(insert.sql)
            if not frame.isStreaming:
                raise InvalidTransform(f"{self._file}, line {insert.line}: the SELECT reads no source")
            options = self._sink_options(run.brokers, insert.target or self._settings.to)
            outputs.append(Output(name, as_records(frame, options), FORMAT, options))
        return outputs

    def _sources(self) -> list[TopicSqlView]:
        return [TopicSqlView.of(name, table) for name, table in self._settings.sources.items()]

    def _sink_options(self, brokers: str, topic: str | None) -> dict[str, str]:
        options = {BROKERS: brokers} | {key: conf_text(value) for key, value in self._settings.options.items()}
        return options if topic is None else options | {"topic": topic}

    def _problems(self) -> Iterator[str]:
        settings = self._settings
        if (settings.sql is None) == (settings.python is None):
            yield "set either sql, the name of a SQL file, or python, the name of a Python file"
        elif not self._file.is_file():
            yield f"there is no file {self._file}"
        elif settings.python is not None:
            try:
                compile(self._file.read_bytes(), str(self._file), "exec")
            except (SyntaxError, ValueError) as error:
                yield f"{self._file} is not Python: {error}"
        if settings.sql is not None:
            yield from self._source_problems()
            yield from self._sql_problems()
        elif settings.python is not None:
            for key in ("to", "sources", "options"):
                if getattr(settings, key):
                    yield f"{key} applies to SQL files only; a Python file defines its own sources and sinks"

    def _source_problems(self) -> Iterator[str]:
        if not self._settings.sources and self._settings.python is None:
            yield "there is no source; add a table [transform.sources.NAME] with topic = ..."
        for name, table in self._settings.sources.items():
            options = {key: value for key, value in table.items() if key != "watermark"}
            try:
                TopicSqlView.of(name, table)
            except HeadraceError as error:
                yield f"sources.{name}.watermark: {error.message}"
            source = {BROKERS: _NO_BROKERS, **TopicSqlView.of(name, options).options}
            for problem in source_options.problems_of(source, streaming=True):
                yield f"sources.{name}: {problem}"

    def _sql_problems(self) -> Iterator[str]:
        """The problems of the sinks and of the SQL file."""
        options = self._sink_options(_NO_BROKERS, None)
        yield from (f"options: {problem}" for problem in sink_options.problems_of(options, streaming=True))
        if self._settings.to is not None:
            yield from _topic_problems("to", self._settings.to)
        if not self._file.is_file():
            return
        try:
            statements, problems = check_sql(self._file.read_text("utf-8"))
        except UnicodeDecodeError:
            yield f"{self._file} is not UTF-8"
            return
        yield from (f"{self._file}: {problem}" for problem in problems)
        for statement in statements:
            if statement.kind == "insert":
                yield from _topic_problems(f"{self._file}: line {statement.line}", statement.target)


def _topic_problems(where: str, topic: str) -> Iterator[str]:
    return failed_checks({where: lambda: check_topic_name(topic)})
