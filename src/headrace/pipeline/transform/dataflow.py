"""A transform as a Python file in the style of Spark Declarative Pipelines, run in one session.

    @dp.temporary_view          a view; views may use views, in any order
    dp.create_sink              a sink; the format headrace needs a topic, the brokers are preset
    @dp.append_flow(target=)    rows for a sink: one streaming query

Tables and materialized views are rejected: they need a catalogue that outlives the run. The file registers its elements
as in Spark's own runner, so it also runs with `spark-pipelines run`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import Output as Element
from pyspark.pipelines.output import Sink, TemporaryView
from pyspark.sql import DataFrame

from headrace.model.errors import HeadraceError
from headrace.pipeline.settings import near
from headrace.pipeline.spark_errors import location_in, readable
from headrace.pipeline.transform.outputs import BROKERS, FORMAT, Output, as_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class InvalidDataflow(HeadraceError):
    """A Python file defines an element that a transform cannot run."""


class Dataflow(GraphElementRegistry):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._sinks: dict[str, Sink] = {}
        self._views: dict[str, Flow | None] = {}
        self._flows: dict[str, Flow] = {}

    def register_output(self, output: Element) -> None:
        if output.name in self._sinks or output.name in self._views:
            raise InvalidDataflow(f"{output.name} is defined twice; give each sink and view a unique name")
        if isinstance(output, Sink):
            self._sinks[output.name] = output
        elif isinstance(output, TemporaryView):
            self._views[output.name] = None
        else:
            raise InvalidDataflow(
                f"{output.name} is a table, which needs a catalogue that outlives the run; make it a temporary_view, "
                "or write it to a sink, such as create_sink(name, 'parquet', {'path': ...})"
            )

    def register_flow(self, flow: Flow) -> None:
        if flow.target in self._views:
            if self._views[flow.target] is not None or flow.spark_conf:
                raise InvalidDataflow(
                    f"the view {flow.target} takes one query and no spark_conf; set spark_conf on a flow"
                )
            self._views[flow.target] = flow
        elif flow.name in self._flows:
            raise InvalidDataflow(
                f"there are two flows {flow.name}; checkpoints are stored by name, so it must be unique"
            )
        else:
            self._flows[flow.name] = flow

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        raise InvalidDataflow(f"{flow.target} is a table of create_auto_cdc_flow, and a transform has no tables")

    def register_sql(self, sql_text: str, file_path: Path) -> None:  # noqa: ARG002
        raise InvalidDataflow(f"{file_path} is SQL; run it in another pipeline, with [transform] sql")

    def outputs(self, brokers: str, folder: Path) -> list[Output]:
        """Create the views, and return one output per flow."""
        for flow in self._flows.values():
            if flow.target not in self._sinks:
                hint = near(flow.target, self._sinks)
                raise InvalidDataflow(f"the target {flow.target} of flow {flow.name} is not a sink{hint}")
        if not self._flows:
            raise InvalidDataflow("the file writes nothing; add an append_flow to a sink")
        self._make_views()
        return [self._output(flow, brokers, folder) for flow in self._flows.values()]

    @property
    def view_names(self) -> list[str]:
        return list(self._views)

    def _make_views(self) -> None:
        """Create the views; a view that uses one that does not exist yet is retried later."""
        waiting = {name: flow for name, flow in self._views.items() if flow is not None}
        while waiting:
            missing: AnalysisException | None = None
            for name, flow in list(waiting.items()):
                try:
                    self._frame(flow).createOrReplaceTempView(name)
                except AnalysisException as error:
                    if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
                        raise self._failure(flow.name, error) from error
                    missing = missing or error
                else:
                    del waiting[name]
                    break
            else:
                assert missing is not None
                raise self._failure(next(iter(waiting)), missing) from missing

    def _output(self, flow: Flow, brokers: str, folder: Path) -> Output:
        sink = self._sinks[flow.target]
        try:
            frame = self._frame(flow)
        except AnalysisException as error:
            raise self._failure(flow.name, error) from error
        if not frame.isStreaming:
            raise InvalidDataflow(f"the flow {flow.name} does not read a stream; use spark.readStream")
        options = dict(sink.options)
        if sink.format == FORMAT:
            options.setdefault(BROKERS, brokers)
            frame = as_records(frame, options)
        elif "path" in options and "://" not in options["path"]:
            options["path"] = str(folder / options["path"])
        return Output(flow.name, frame, sink.format, options, dict(flow.spark_conf))

    def _frame(self, flow: Flow) -> DataFrame:
        try:
            frame = flow.func()
        except (AnalysisException, HeadraceError):
            raise
        except Exception as error:
            raise self._failure(flow.name, error) from error
        if not isinstance(frame, DataFrame):
            raise InvalidDataflow(f"{flow.name} returns {type(frame).__name__}; it must return a DataFrame")
        return frame

    def _failure(self, name: str, error: Exception) -> InvalidDataflow:
        return InvalidDataflow(f"{name}: {_error_text(error)}{location_in(error, str(self._path))}")


def load_dataflow(path: Path, spark: SparkSession) -> Dataflow:
    """Execute the file, which registers its elements."""
    dataflow = Dataflow(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["spark"] = spark  # as Spark's own runner does
    with graph_element_registration_context(dataflow):
        try:
            spec.loader.exec_module(module)
        except HeadraceError as error:
            raise InvalidDataflow(f"{error.message}{location_in(error, str(path))}") from error
        except Exception as error:
            raise InvalidDataflow(f"{_error_text(error)}{location_in(error, str(path))}") from error
    return dataflow


def _error_text(error: Exception) -> str:
    return readable(error) if isinstance(error, AnalysisException) else f"{type(error).__name__}: {error}"
