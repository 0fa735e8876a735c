"""Read and check the TOML file of a pipeline, with the settings that the command line overrides.

    [pipeline]  name, job, brokers, mode, trigger, work      [spark]  master, conf      [<job>]  the job's own settings

- All problems are reported at once. Each names the file, the table and the key, the allowed values and, for an unknown
  key, the most similar known one.
- Relative paths are resolved against the folder of the file.
- A settings type is a msgspec.Struct. Tables within tables are Structs too, or dicts or lists of Structs, or of a
  tagged union of Structs.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec import inspect, structs

from headrace.client.connections.address import parse_addresses
from headrace.model.durations import InvalidDuration, parse_duration
from headrace.model.errors import HeadraceError
from headrace.pipeline.job import JOBS, find_job

_SIZES = {"": 1, "b": 1, "kb": 1000, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def parse_size(text: str) -> int:
    """The bytes of 128MB, 1GiB, 512 kB or 4096; raises ValueError with a message for the user."""
    number = text.rstrip("BKMGTIbkmgti ")
    unit = text[len(number) :].strip().lower()
    if not number.isascii() or not number.isdigit() or unit not in _SIZES:
        raise ValueError(f"{text!r} is not a size; write 4096, 512kB, 128MB or 1GiB")
    return int(number) * _SIZES[unit]


def near(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def problems_in(value: Any, kind: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The problems of a value: path and message."""
    if _is_struct(kind):
        yield from _problems_in_table(value, kind, path)
    elif tagged := _tagged(kind):
        yield from _problems_in_tagged(value, tagged, path)
    elif get_origin(kind) is dict and isinstance(value, dict):
        for name, inner in value.items():
            yield from problems_in(inner, get_args(kind)[1], (*path, name))
    elif get_origin(kind) is list and isinstance(value, list) and path:
        for number, inner in enumerate(value, 1):
            yield from problems_in(inner, get_args(kind)[0], (*path[:-1], f"{path[-1]}[{number}]"))
    else:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            reason = "" if str(error).startswith(("Expected `", "Invalid enum")) else f": {error}"
            yield path, f"takes {shown(kind)}, not {_shown_value(value)}{reason}"


def _problems_in_table(value: Any, kind: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if not isinstance(value, dict):
        yield path, f"must be a table, not {_shown_value(value)}"
        return
    fields = {field.encode_name: field for field in structs.fields(kind)}
    for name in value:
        if name not in fields:
            what = f"there is no such key{near(name, fields)}; there are {', '.join(fields)}"
            yield (*path, name), what if fields else "there is no such key, and no other in this table"
    for name, field in fields.items():
        if name in value:
            yield from problems_in(value[name], field.type, (*path, name))
        elif field.required:
            yield (*path, name), f"is missing; it takes {shown(field.type)}"


def _problems_in_tagged(
    value: Any, kinds: dict[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    tag_field = next(iter(kinds.values())).__struct_config__.tag_field
    tag = value.get(tag_field) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        yield path, f"must be a table, not {_shown_value(value)}"
    elif not isinstance(tag, str) or tag not in kinds:
        was = "is missing; it" if tag is None else f"is {_shown_value(tag)}, but"
        yield (*path, tag_field), f"{was} takes one of {', '.join(kinds)}"
    else:
        rest = {name: inner for name, inner in value.items() if name != tag_field}
        yield from _problems_in_table(rest, kinds[tag], path)


def repaired(value: Any, kind: Any) -> Any:
    """The value with what `problems_in` reports left out or replaced by a valid value, so that a job can check the
    rest."""
    if tagged := _tagged(kind):
        given = value if isinstance(value, dict) else {}
        tag_field = next(iter(tagged.values())).__struct_config__.tag_field
        tag = given.get(tag_field)
        tag = tag if isinstance(tag, str) and tag in tagged else next(iter(tagged))
        return {tag_field: tag, **repaired(given, tagged[tag])}
    if _is_struct(kind):
        given = value if isinstance(value, dict) else {}
        fields = structs.fields(kind)
        names = {field.encode_name: field for field in fields if field.required or _is_kept(given, field)}
        return {name: repaired(given.get(name), field.type) for name, field in names.items()}
    if get_origin(kind) is dict:
        inner = get_args(kind)[1]
        given = value if isinstance(value, dict) else {}
        return {name: repaired(one, inner) for name, one in given.items() if _is_nested(inner) or _is_valid(one, inner)}
    if get_origin(kind) is list:
        return [repaired(one, get_args(kind)[0]) for one in (value if isinstance(value, list) else [None])]
    choices = get_args(kind) if get_origin(kind) is Literal else ("x", 1, True, {}, [])
    return next(one for one in (value, *choices) if _is_valid(one, kind))


def _is_kept(given: Mapping[str, Any], field: structs.FieldInfo) -> bool:
    name = field.encode_name
    return name in given and (_is_nested(field.type) or _is_valid(given[name], field.type))


def _is_nested(kind: Any) -> bool:
    return _is_struct(kind) or bool(_tagged(kind)) or get_origin(kind) in (dict, list)


def _is_valid(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def value_of(kind: Any, key: str, text: str) -> tuple[list[str], Any]:
    """The names in a dotted key, and the value in the type of the key. `problems_in` reports unknown names."""
    names = []
    while True:
        if _is_struct(kind):
            name, _, key = key.partition(".")
            names.append(name)
            kind = next((field.type for field in structs.fields(kind) if field.encode_name == name), str)
        elif get_origin(kind) is dict and key:
            inner = get_args(kind)[1]
            # In a table of plain values, such as the settings of Spark, dots are part of the name.
            name, _, key = key.partition(".") if _is_struct(inner) or get_origin(inner) is dict else (key, "", "")
            names.append(name)
            kind = inner
        else:
            return ([*names, key] if key else names), _read(kind, text)


def shown(kind: Any) -> str:
    return _shown_type(inspect.type_info(kind))


def _shown_type(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.LiteralType):
        return "one of " + ", ".join(map(str, kind.values))
    if isinstance(kind, inspect.UnionType):
        inner = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return " or ".join(dict.fromkeys(_shown_type(one) for one in inner))
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType):
        return f"a list of {_shown_type(kind.item_type)}"
    names = {
        inspect.StrType: "text",
        inspect.IntType: "a whole number",
        inspect.FloatType: "a number",
        inspect.BoolType: "true or false",
    }
    return names.get(type(kind), "a table")


def _shown_value(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _read(kind: Any, text: str) -> Any:
    """Convert text to the expected type. What does not fit stays text, which `problems_in` then reports."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if text[:1] not in ("[", "{"):
        if str in kinds:
            return text
        if any(get_origin(one) in (list, tuple) or one in (list, tuple) for one in kinds):
            return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _tagged(kind: Any) -> dict[str, Any]:
    """The Structs of a tagged union, by tag; none for any other type."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    if not kinds or not all(_is_struct(one) for one in kinds):
        return {}
    return {str(one.__struct_config__.tag): one for one in kinds}


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


BROKERS_DEFAULT: Final = "127.0.0.1:9092"
WORK_FOLDERS: Final = "headrace-pipelines"
"""Next to the file: contains one work folder per pipeline, with its name."""

WITHOUT_FILE: Final = "--set"
"""In place of the file, for a pipeline that is defined on the command line."""

Mode = Literal["once", "continuous"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class PipelineTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    job: str
    brokers: str | None = None
    mode: Mode = "once"
    trigger: str = "10s"
    work: str | None = None


class SparkTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[spark]`; `conf` maps the names of Spark's settings to values."""

    master: str = "local[*]"
    conf: dict[str, str | bool | int | float] = {}


class SettingsProblem(msgspec.Struct, frozen=True):
    """One problem; `table` and `key` are empty if it concerns the whole file."""

    file: str
    table: str
    key: str
    what: str

    @property
    def path(self) -> str:
        """The key with its subtables, without the table."""
        return ".".join(part for part in (self.table.partition(".")[2], self.key) if part)

    @property
    def line(self) -> str:
        where = f"[{self.table}] {self.key}".rstrip() if self.table else self.key
        return f"{self.file}: {where}: {self.what}" if where else f"{self.file}: {self.what}"


class InvalidPipeline(HeadraceError):
    """The settings of a pipeline cannot be used."""

    def __init__(self, problems: Sequence[SettingsProblem]) -> None:
        more = len(problems) - 1
        rest = f"; and {more} more, which `headrace pipeline lint` shows" if more else ""
        super().__init__(problems[0].line + rest)
        self.problems = problems


class Pipeline(msgspec.Struct, frozen=True):
    """A pipeline that its job has checked. `folder`: resolves relative paths; `work`: its state between runs."""

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
    """The pipeline of a file, changed by `changes` (`table.key=value`). `brokers`: used if the file names none."""
    return _pipeline(str(path), path.absolute().parent, read_tables(path), changes, brokers)


def pipeline_of_job(
    job: str, changes: Sequence[str], *, folder: Path | None = None, brokers: str = BROKERS_DEFAULT
) -> Pipeline:
    """A pipeline without a file: it has the name of its job and the settings of `changes`."""
    tables: dict[str, Any] = {"pipeline": {"name": job, "job": job}}
    return _pipeline(WITHOUT_FILE, folder or Path.cwd(), tables, changes, brokers)


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of the file, unchecked."""
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
    job = _job_of(tables, changes)
    kinds: dict[str, type[msgspec.Struct]] = {"pipeline": PipelineTable, "spark": SparkTable}
    if job in JOBS:
        kinds[job] = find_job(job).settings_type
    _change(tables, [text for text in changes if job in JOBS or text.partition(".")[0] in kinds], kinds)
    problems = list(_problems(file, tables, kinds, job))
    settings = None
    if job in JOBS:
        settings = msgspec.convert(repaired(tables.get(job, {}), kinds[job]), kinds[job])
        reported = {problem.path for problem in problems if problem.table.partition(".")[0] == job}
        problems += _job_problems(file, job, settings, folder, reported)
    if problems or settings is None:
        raise InvalidPipeline(problems)
    pipeline = msgspec.convert(tables["pipeline"], PipelineTable)
    spark = msgspec.convert(tables.get("spark", {}), SparkTable)
    return Pipeline(
        name=pipeline.name,
        job=pipeline.job,
        brokers=pipeline.brokers or brokers,
        mode=pipeline.mode,
        trigger_seconds=parse_duration(pipeline.trigger) / 1000,
        work=work_folder(folder, pipeline.name, pipeline.work),
        master=spark.master,
        conf={name: conf_text(value) for name, value in spark.conf.items()},
        settings=settings,
        folder=folder,
        file=file,
    )


def _job_of(tables: Mapping[str, Any], changes: Sequence[str]) -> str:
    """The name of the job; empty if there is none."""
    pipeline = tables.get("pipeline")
    job = pipeline.get("job") if isinstance(pipeline, dict) else None
    job = next((text.partition("=")[2] for text in reversed(changes) if text.startswith("pipeline.job=")), job)
    return job if isinstance(job, str) else ""


def _job_problems(
    file: str, job: str, settings: msgspec.Struct, folder: Path, reported: Iterable[str]
) -> Iterator[SettingsProblem]:
    """What the job finds, except for keys that have a problem already: for those it has got another value."""
    try:
        found = find_job(job)(settings, folder).problems()
    except (HeadraceError, ValueError) as error:
        found = [str(error)]
    for text in found:
        key = text.partition(":")[0]
        if not any(key == path or key.startswith((f"{path}.", f"{path}[")) for path in reported):
            yield SettingsProblem(file, job, "", text)


def _change(tables: dict[str, Any], changes: Sequence[str], kinds: Mapping[str, type[msgspec.Struct]]) -> None:
    for text in changes:
        path, separator, value = text.partition("=")
        table, _, key = path.strip().partition(".")
        if not separator or not key:
            raise InvalidPipeline(
                [SettingsProblem(WITHOUT_FILE, "", text, "write TABLE.KEY=VALUE, such as pipeline.mode=once")]
            )
        if table not in kinds:
            what = f"there is no such table{near(table, kinds)}; there are {', '.join(kinds)}"
            raise InvalidPipeline([SettingsProblem(WITHOUT_FILE, table, key, what)])
        inner = tables.setdefault(table, {})
        names, found = value_of(kinds[table], key, value.strip())
        for name in names[:-1]:
            inner = inner.setdefault(name, {}) if isinstance(inner, dict) else {}
        if isinstance(inner, dict):
            inner[names[-1]] = found


def _problems(
    file: str, tables: Mapping[str, Any], kinds: Mapping[str, type[msgspec.Struct]], job: str
) -> Iterator[SettingsProblem]:
    if job not in JOBS:
        what = f"there is no job {job!r}{near(job, JOBS)}; there are" if job else "is missing; it takes one of"
        yield SettingsProblem(file, "pipeline", "job", f"{what} {', '.join(JOBS)}")
    for table in tables:
        if table not in kinds and (job in JOBS or table not in JOBS):
            yield SettingsProblem(file, table, "", _why_unknown(table, list(kinds)))
    for table, kind in kinds.items():
        for path, what in problems_in(tables.get(table, {}), kind, ()):
            if (table, *path) != ("pipeline", "job"):
                yield SettingsProblem(file, ".".join((table, *path[:-1])), path[-1] if path else "", what)
    pipeline = tables.get("pipeline")
    pipeline = pipeline if isinstance(pipeline, dict) else {}
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
    """Convert unquoted TOML dates and times to text, which jobs expect."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value.isoformat() if isinstance(value, date | time) else value


def conf_text(value: str | bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
