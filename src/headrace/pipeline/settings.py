"""What a pipeline is told: one TOML file, and what the command line sets over it.

    [pipeline]  name, job, brokers, mode, trigger, work      [spark]  master, conf      [<job>]  the job's own settings

Whatever is wrong is found at once, all of it, and each problem names file, table and key, what is allowed there and,
for a key that nobody knows, the nearest one that is known. Paths count from the folder in which the file lies.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from headrace.client.connections.address import parse_addresses
from headrace.model.durations import InvalidDuration, parse_duration
from headrace.model.errors import HeadraceError
from headrace.pipeline.jobs import JOBS, find_job
from headrace.pipeline.setting_types import near, problems_in, value_of

BROKERS_DEFAULT: Final = "127.0.0.1:9092"
WORK_FOLDERS: Final = "headrace-pipelines"
"""Beside the file: one folder for each pipeline, named as it is."""

Mode = Literal["once", "continuous"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class PipelineTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[pipeline]`."""

    name: str
    job: str
    brokers: str | None = None
    mode: Mode = "once"
    trigger: str = "10s"
    work: str | None = None


class SparkTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[spark]`; `conf` holds Spark's own settings by their names."""

    master: str = "local[*]"
    conf: dict[str, str | bool | int | float] = {}


class SettingsProblem(msgspec.Struct, frozen=True):
    """One thing that is wrong; `table` and `key` are empty where it concerns the whole."""

    file: str
    table: str
    key: str
    what: str

    @property
    def line(self) -> str:
        place = f"[{self.table}] {self.key}".rstrip() if self.table else self.key
        return f"{self.file}: {place}: {self.what}" if place else f"{self.file}: {self.what}"


class InvalidPipeline(HeadraceError):
    """The settings of a pipeline cannot be used."""

    def __init__(self, problems: Sequence[SettingsProblem]) -> None:
        more = len(problems) - 1
        rest = f"; and {more} more, which `headrace pipeline lint` shows" if more else ""
        super().__init__(problems[0].line + rest)
        self.problems = problems


class Pipeline(msgspec.Struct, frozen=True):
    """One pipeline, ready to run. `folder`: from where paths count; `work`: what it keeps between runs."""

    name: str
    job: str
    brokers: str
    mode: Mode
    trigger_seconds: float
    work: Path
    master: str
    conf: dict[str, str]
    settings: msgspec.Struct
    folder: Path
    file: str


def read_pipeline(path: Path, changes: Sequence[str] = (), *, brokers: str = BROKERS_DEFAULT) -> Pipeline:
    """The pipeline of a file; `changes` are `table.key=value`, `brokers` those to ask where the file names none."""
    return _pipeline(str(path), path.absolute().parent, read_tables(path), changes, brokers)


def pipeline_of_job(
    job: str, changes: Sequence[str], *, folder: Path | None = None, brokers: str = BROKERS_DEFAULT
) -> Pipeline:
    """A pipeline without a file: it is named as its job, and all else is said by `changes`."""
    tables: dict[str, Any] = {"pipeline": {"name": job, "job": job}}
    return _pipeline("--set", folder or Path.cwd(), tables, changes, brokers)


def read_tables(path: Path) -> dict[str, Any]:
    """What stands in the file, unchecked."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidPipeline([SettingsProblem(str(path), "", "", f"cannot be read: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidPipeline([SettingsProblem(str(path), "", "", f"is not TOML: {error}")]) from None


def work_folder(folder: Path, name: str, work: str | None) -> Path:
    return folder / work if work is not None else folder / WORK_FOLDERS / name


def _pipeline(file: str, folder: Path, tables: dict[str, Any], changes: Sequence[str], brokers: str) -> Pipeline:
    tables = _plain(tables)
    kinds = _kinds(file, tables, changes)
    _change(tables, changes, kinds)
    problems = list(_problems(file, tables, kinds))
    if problems:
        raise InvalidPipeline(problems)
    pipeline = msgspec.convert(tables["pipeline"], PipelineTable)
    spark = msgspec.convert(tables.get("spark", {}), SparkTable)
    try:
        settings = msgspec.convert(tables.get(pipeline.job, {}), kinds[pipeline.job])
    except msgspec.ValidationError as error:  # what the settings' own check refuses
        raise InvalidPipeline([SettingsProblem(file, pipeline.job, "", str(error))]) from None
    return Pipeline(
        name=pipeline.name,
        job=pipeline.job,
        brokers=pipeline.brokers or brokers,
        mode=pipeline.mode,
        trigger_seconds=parse_duration(pipeline.trigger) / 1000,
        work=work_folder(folder, pipeline.name, pipeline.work),
        master=spark.master,
        conf={name: _conf_text(value) for name, value in spark.conf.items()},
        settings=settings,
        folder=folder,
        file=file,
    )


def _kinds(file: str, tables: Mapping[str, Any], changes: Sequence[str]) -> dict[str, type[msgspec.Struct]]:
    """The tables that may be there, which depends on the job."""
    pipeline = tables.get("pipeline")
    job = pipeline.get("job") if isinstance(pipeline, dict) else None
    job = next((text.partition("=")[2] for text in reversed(changes) if text.startswith("pipeline.job=")), job)
    if not isinstance(job, str):
        what = f"is missing; it takes one of {', '.join(JOBS)}"
        raise InvalidPipeline([SettingsProblem(file, "pipeline", "job", what)])
    if job not in JOBS:
        what = f"there is no job {job!r}{near(job, JOBS)}; there are {', '.join(JOBS)}"
        raise InvalidPipeline([SettingsProblem(file, "pipeline", "job", what)])
    return {"pipeline": PipelineTable, "spark": SparkTable, job: find_job(job).settings_type}


def _change(tables: dict[str, Any], changes: Sequence[str], kinds: Mapping[str, type[msgspec.Struct]]) -> None:
    for text in changes:
        path, separator, value = text.partition("=")
        table, _, key = path.strip().partition(".")
        if not separator or not key:
            raise InvalidPipeline(
                [SettingsProblem("--set", "", text, "write TABLE.KEY=VALUE, such as pipeline.mode=once")]
            )
        if table not in kinds:
            what = f"there is no such table{near(table, kinds)}; there are {', '.join(kinds)}"
            raise InvalidPipeline([SettingsProblem("--set", table, key, what)])
        inner = tables.setdefault(table, {})
        names, found = value_of(kinds[table], key, value.strip())
        for name in names[:-1]:
            inner = inner.setdefault(name, {}) if isinstance(inner, dict) else {}
        if isinstance(inner, dict):
            inner[names[-1]] = found


def _problems(
    file: str, tables: Mapping[str, Any], kinds: Mapping[str, type[msgspec.Struct]]
) -> Iterator[SettingsProblem]:
    for table in tables:
        if table not in kinds:
            yield SettingsProblem(file, table, "", _why_unknown(table, list(kinds)))
    for table, kind in kinds.items():
        for path, what in problems_in(tables.get(table, {}), kind, ()):
            yield SettingsProblem(file, ".".join((table, *path[:-1])), path[-1] if path else "", what)
    pipeline = tables["pipeline"]
    name, brokers, trigger = (pipeline.get(key) for key in ("name", "brokers", "trigger"))
    if isinstance(name, str) and _NAME.fullmatch(name) is None:
        yield SettingsProblem(
            file, "pipeline", "name", f"{name!r} names no folder; letters, digits, dots, dashes and _ do"
        )
    if isinstance(brokers, str):
        try:
            parse_addresses(brokers)
        except ValueError as error:
            yield SettingsProblem(file, "pipeline", "brokers", str(error))
    if isinstance(trigger, str):
        try:
            parse_duration(trigger)
        except InvalidDuration as error:
            yield SettingsProblem(file, "pipeline", "trigger", error.message)


def _why_unknown(table: str, known: Sequence[str]) -> str:
    if table in JOBS:
        return f"this is the table of the job {table}, but the job of this pipeline is {known[-1]}"
    return f"there is no such table{near(table, known)}; there are {', '.join(known)}"


def _plain(value: Any) -> Any:
    """Times as text, which is how jobs take them: TOML has a type of its own for those without quotes."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value.isoformat() if isinstance(value, date | time) else value


def _conf_text(value: str | bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
