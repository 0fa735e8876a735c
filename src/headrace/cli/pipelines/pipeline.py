"""`headrace pipeline ...`: Spark jobs over topics, each configured by a TOML file."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.failure import FAILED, CommandFailed
from headrace.cli.options import SERVER_DEFAULT, option_group, usage_errors
from headrace.cli.output import (
    counted,
    echo,
    local_time,
    output_option,
    print_json,
    print_rows,
    print_status,
    print_table,
    to_json,
    wants_json,
)
from headrace.model.errors import HeadraceError, InvalidConfig

if TYPE_CHECKING:
    from headrace.pipeline.job import JobResult
    from headrace.pipeline.listing import ListedPipeline
    from headrace.pipeline.settings import Mode, Pipeline, SettingsProblem

_POLL_SECONDS = 0.5
_LIST_COLUMNS = ("name", "job", "mode", "state", "done", "lag", "updated", "note")
_BAD_STATES = ("failed", "died")


class InvalidSettings(CommandFailed):
    """The pipeline's settings are invalid."""

    exit_code = 2


class PipelineGroup(click.Group):
    """Explains errors in the settings of pipelines."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidConfig as error:  # an option of the Spark source or sink, not a topic config
            raise CommandFailed(error.message) from error
        except HeadraceError as error:
            from headrace.pipeline.settings import InvalidPipeline

            if isinstance(error, InvalidPipeline):
                raise InvalidSettings(error.message) from error
            raise


@click.group(cls=PipelineGroup)
def pipeline() -> None:
    """Archive, replay, transform, report and audit topics with Spark.

    \b
    headrace pipeline init archive orders.toml        create a commented example
    headrace pipeline run orders.toml                 process the available data
    headrace pipeline run orders.toml --continuous    run until stopped
    headrace pipeline status orders.toml
    """


settings_options = option_group(
    click.option("--set", "changes", multiple=True, metavar="TABLE.KEY=VALUE", help="Override a key; repeatable."),
    click.option("--master", metavar="URL", help="The Spark master, such as local[4] or spark://HOST:7077."),
    click.option(
        "--brokers", "--server", "--bootstrap-server", metavar="HOST:PORT", help="Override the brokers of the file."
    ),
)


@pipeline.command()
@click.argument("job")
@click.argument("file")
def init(job: str, file: str) -> None:
    """Create FILE, a commented example of JOB: archive, replay, transform, report or audit."""
    from headrace.pipeline.samples import write_sample

    written = write_sample(job, Path(file))
    print_status(f"{', '.join(written)} written; `headrace pipeline lint {file}` checks it")


@pipeline.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@output_option
def lint(files: Sequence[str], output: str | None) -> int:
    """Report all errors of the files, without brokers and Spark; the exit code is 1 if there are any."""
    from headrace.pipeline.settings import InvalidPipeline, read_pipeline

    problems: list[SettingsProblem] = []
    for file in files:
        try:
            read_pipeline(Path(file))
        except InvalidPipeline as error:
            problems += error.problems
    if wants_json(output):
        print_json([{"file": p.file, "table": p.table, "key": p.key, "problem": p.what} for p in problems])
    else:
        for problem in problems:
            echo(problem.line)
    print_status(
        f"{counted(len(files), 'file')} checked, {counted(len(problems), 'problem') if problems else 'no problems'}"
    )
    return FAILED if problems else 0


@pipeline.command("dry-run")
@click.argument("target", metavar="FILE|JOB")
@settings_options
def dry_run(target: str, changes: Sequence[str], master: str | None, brokers: str | None) -> None:
    """Show what a run would do now, without changing anything."""
    from headrace.pipeline.runner import plan_pipeline

    for line in plan_pipeline(_read(target, changes, master, brokers)):
        echo(line)


@pipeline.command()
@click.argument("target", metavar="FILE|JOB")
@click.option("--once", "mode", flag_value="once", help="Process the available data and exit; overrides the file.")
@click.option("--continuous", "mode", flag_value="continuous", help="Run until SIGTERM, Ctrl-C or `stop`.")
@settings_options
@output_option
def run(
    target: str,
    *,
    mode: Mode | None,
    changes: Sequence[str],
    master: str | None,
    brokers: str | None,
    output: str | None,
) -> int:
    """Run the pipeline in FILE, or JOB without a file and configured with --set.

    Without a file, the name of the pipeline is JOB; --set pipeline.name=NAME gives it a status and a state of its own.
    SIGTERM or Ctrl-C completes the work in progress and stops; a second Ctrl-C stops immediately. The next run resumes
    where this one stopped. The exit code is 1 if the run failed, or if an audit has findings.
    """
    from headrace.pipeline.runner import run_pipeline

    pipeline_settings = _read(target, changes, master, brokers)
    result = run_pipeline(pipeline_settings, mode)
    _print_result(pipeline_settings.name, result, output)
    return 0 if result.ok else FAILED


@pipeline.command("list")
@click.argument("folder", default=".", metavar="[DIR]")
@output_option
def list_pipelines(folder: str, output: str | None) -> None:
    """List the pipelines of a folder with their state, progress and remaining work."""
    from headrace.pipeline.listing import pipelines_in

    rows = [_row(listed) for listed in pipelines_in(Path(folder))]
    print_rows(rows, _LIST_COLUMNS, output)


@pipeline.command()
@click.argument("target", metavar="NAME|FILE")
@click.option("--json", "output", flag_value="json", help="The same as -o json.")
@output_option
def status(target: str, output: str | None) -> int:
    """Show the state of a pipeline; the exit code is 1 if its last run failed or crashed."""
    from headrace.pipeline.listing import find_pipeline

    listed = find_pipeline(target, Path())
    row = _row(listed)
    if wants_json(output):
        echo(to_json(row))
    else:
        print_table([{"key": key.replace("_", " "), "value": value} for key, value in row.items()], ("key", "value"))
    return FAILED if row["state"] in _BAD_STATES else 0


@pipeline.command()
@click.argument("target", metavar="NAME|FILE")
@click.option("--wait", is_flag=True, help="Wait until it has stopped.")
def stop(target: str, wait: bool) -> int:
    """Request a pipeline to complete the work in progress and stop."""
    from headrace.pipeline.listing import find_pipeline
    from headrace.pipeline.state import WorkFolder

    listed = find_pipeline(target, Path())
    folder = WorkFolder(listed.work)
    if listed.status is None or not listed.status.is_active:
        print_status(f"{listed.name} is not running")
        return 0
    folder.request_stop_of(listed.status.process)
    print_status(f"{listed.name} was requested to stop")
    while wait and (now := folder.status()) is not None and now.is_active:
        threading.Event().wait(_POLL_SECONDS)
    if wait and now is not None:
        print_status(f"{listed.name} {now.state}: {now.summary}")
        return FAILED if now.state in _BAD_STATES else 0
    return 0


@pipeline.command()
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="The number of workers.")
@click.option("--cores", type=click.IntRange(1), default=1, show_default=True, help="Cores per worker.")
@click.option("--memory", default="1g", show_default=True, metavar="SIZE", help="Memory per worker, for example 512m.")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:7077", show_default=True, help="The master's address."
)
@click.option("--data", metavar="DIR", default="spark-cluster", show_default=True, help="For logs and work files.")
def cluster(*, workers: int, cores: int, memory: str, listen: str, data: str) -> int:
    """Start a Spark cluster on this host for development and tests.

    Prints `ready spark://HOST:PORT` when all workers have joined; pass that URL to `run --master`. SIGTERM or Ctrl-C
    shuts it down gracefully.
    """
    from headrace.server.settings import parse_address
    from headrace.spark.standalone import StandaloneSettings, run_standalone

    with usage_errors():
        settings = StandaloneSettings(data, parse_address(listen, "--listen"), workers, cores, memory)
        settings.check()
    return run_standalone(settings)


def _read(target: str, changes: Sequence[str], master: str | None, brokers: str | None) -> Pipeline:
    from headrace.pipeline.job import JOBS
    from headrace.pipeline.settings import pipeline_of_job, read_pipeline

    overrides = [("spark.master", master), ("pipeline.brokers", brokers)]
    changes = [*changes, *(f"{key}={value}" for key, value in overrides if value is not None)]
    default = os.environ.get("HEADRACE_SERVER") or SERVER_DEFAULT
    if target in JOBS and not Path(target).is_file():
        return pipeline_of_job(target, changes, brokers=default)
    if not Path(target).is_file():
        raise click.UsageError(f"{target} is neither a file nor a job; the jobs are {', '.join(JOBS)}")
    return read_pipeline(Path(target), changes, brokers=default)


def _row(listed: ListedPipeline) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": listed.name,
        "job": listed.job,
        "mode": listed.mode,
        "state": "new",
        "file": listed.file or None,
        "work": str(listed.work),
    }
    status = listed.status
    if status is None:
        return row
    progress = status.progress
    return row | {
        "mode": status.mode,
        "state": status.state,
        "done": progress.done if progress else None,
        "total": progress.total if progress else None,
        "unit": progress.unit if progress else None,
        "lag": progress.behind if progress else None,
        # The last line is the summary; a table may precede it.
        "note": status.summary.strip().rpartition("\n")[2] or (progress.note if progress else "") or None,
        "started": local_time(status.started_ms),
        "updated": local_time(status.updated_ms),
        "brokers": status.brokers,
        "master": status.master,
        "host": status.process.host,
        "pid": status.process.pid if status.is_active else None,
        "log": str(listed.work / "log"),
        **status.figures,
    }


def _print_result(name: str, result: JobResult, output: str | None) -> None:
    if wants_json(output):
        print_json([{"pipeline": name, "ok": result.ok, "summary": result.summary, **result.figures}])
        return
    echo(*f"{name}: {result.summary}".split("\n"))
    if result.figures:
        print_table([{"figure": key, "value": value} for key, value in result.figures.items()], ("figure", "value"))
