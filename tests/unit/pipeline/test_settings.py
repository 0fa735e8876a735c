"""A pipeline file is parsed, and problems are reported with location and allowed values."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.unit.pipeline.fakes import TOML, FakeJob, FakeSettings, Lines, Part

from headrace.pipeline.settings import InvalidPipeline, pipeline_of_job, read_pipeline, repaired

Write = Callable[[str], Path]


def problems_of(path: Path, *changes: str) -> list[str]:
    with pytest.raises(InvalidPipeline) as caught:
        read_pipeline(path, changes)
    return [problem.line.removeprefix(f"{path}: ") for problem in caught.value.problems]


def test_missing_settings_have_defaults(written: Write) -> None:
    path = written('[pipeline]\nname = "orders"\njob = "fake"\n[fake]\ntopics = ["a"]\n')
    pipeline = read_pipeline(path)
    assert (pipeline.name, pipeline.job, pipeline.mode, pipeline.trigger_seconds) == ("orders", "fake", "once", 10.0)
    assert (pipeline.brokers, pipeline.master, pipeline.conf) == ("127.0.0.1:9092", "local[*]", {})
    assert pipeline.work == path.parent / "headrace-pipelines" / "orders"
    assert pipeline.folder == path.parent
    assert pipeline.settings == FakeSettings(["a"])


def test_given_settings_are_used(written: Write) -> None:
    path = written(
        TOML.replace("[fake]", 'mode = "continuous"\ntrigger = "1m30s"\nwork = "w"\n[fake]\nlimit = 3\nkeep = true')
        + '[fake.parts.a]\nsize = 1\n[spark]\nmaster = "local[2]"\n'
        + 'conf = {"spark.ui.enabled" = false, "spark.cores.max" = 2}\n'
    )
    pipeline = read_pipeline(path, brokers="never:1")
    assert (pipeline.mode, pipeline.trigger_seconds, pipeline.work) == ("continuous", 90.0, path.parent / "w")
    assert pipeline.brokers == "10.0.0.1:9092"
    assert (pipeline.master, pipeline.conf) == ("local[2]", {"spark.ui.enabled": "false", "spark.cores.max": "2"})
    assert pipeline.settings == FakeSettings(["orders"], limit=3, keep=True, parts={"a": Part(1)})


def test_an_unquoted_time_is_text_for_the_job(written: Write) -> None:
    settings = read_pipeline(written(TOML + "since = 2026-01-01T00:00:00Z\n")).settings
    assert settings == FakeSettings(["orders"], since="2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '[pipeline]\nname = "a"\njob = "archve"\n',
            "[pipeline] job: there is no job 'archve' (did you mean archive?)",
        ),
        (TOML + "limt = 3\n", "[fake] limt: there is no such key (did you mean limit?); there are topics, since, "),
        (TOML + "limit = 'many'\n", "[fake] limit: takes a whole number, not 'many'"),
        (TOML + "keep = 1\n", "[fake] keep: takes true or false, not 1"),
        (TOML + "[fake.parts.a]\nsize = 'x'\n", "[fake.parts.a] size: takes a whole number, not 'x'"),
        (TOML + "[fake.parts.a]\nnote = 'x'\n", "[fake.parts.a] size: is missing; it takes a whole number"),
        (TOML + "[fake.parts]\na = 3\n", "[fake.parts] a: must be a table, not 3"),
        (TOML.replace('topics = ["orders"]', ""), "[fake] topics: is missing; it takes a list of text"),
        (TOML.replace('["orders"]', '"orders"'), "[fake] topics: takes a list of text, not 'orders'"),
        (TOML.replace('name = "orders"', 'name = "../x"'), "[pipeline] name: '../x' names no folder"),
        (TOML.replace("9092", "port"), "[pipeline] brokers: "),
        (TOML.replace("[fake]", 'trigger = "soon"\n[fake]'), "[pipeline] trigger: 'soon' is not a duration"),
        (
            TOML.replace("[fake]", 'mode = "often"\n[fake]'),
            "[pipeline] mode: takes one of continuous, once, not 'often'",
        ),
        (TOML + "[sprak]\n", "[sprak]: there is no such table (did you mean spark?); there are pipeline, spark, fake"),
        (TOML + "[archive]\n", "[archive]: this is the table of the job archive, but the job of this pipeline is fake"),
        (TOML + "[spark]\nconf = 3\n", "[spark] conf: takes a table, not 3"),
        (TOML + "[[fake.parts]]\n", "[fake] parts: takes a table, not a list"),
        (TOML + "[[fake.shown]]\nkind = 'lines'\n", "[fake.shown[1]] count: is missing; it takes a whole number"),
        (TOML + "[[fake.shown]]\nkind = 'pages'\ncount = 1\n", "[fake.shown[1]] count: there is no such key"),
        (TOML + "[[fake.shown]]\nkind = 'line'\n", "[fake.shown[1]] kind: is 'line', but takes one of lines, pages"),
        (TOML + "[[fake.shown]]\n", "[fake.shown[1]] kind: is missing; it takes one of lines, pages"),
        (TOML + "shown = [3]\n", "[fake] shown[1]: must be a table, not 3"),
        (TOML + "shown = 3\n", "[fake] shown: takes a list of a table, not 3"),
        (TOML.replace('["orders"]', '["orders", 3]'), "[fake] topics[2]: takes text, not 3"),
        ("[pipeline", "is not TOML: "),
    ],
)
def test_a_problem_is_reported_with_its_location_and_the_allowed_values(
    written: Write, text: str, problem: str
) -> None:
    (found,) = problems_of(written(text))
    assert found.startswith(problem)


def test_all_problems_are_reported_at_once(written: Write) -> None:
    path = written(TOML + "limt = 3\nkeep = 1\n")
    assert len(problems_of(path)) == 2
    with pytest.raises(InvalidPipeline, match=r"limt: .*; and 1 more, which `headrace pipeline lint` shows"):
        read_pipeline(path)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["[pipeline] job: is missing; it takes one of archive, ", "[pipeline] name: is missing"]),
        ('pipeline = "x"', ["[pipeline] job: is missing", "[pipeline]: must be a table, not 'x'"]),
        (
            TOML.replace('"fake"', '"fke"').replace("9092", "port") + "[sprak]\n[spark]\nmaster = 3\n",
            [
                "[pipeline] job: there is no job 'fke' (did you mean fake?)",
                "[sprak]: there is no such table",
                "[spark] master: takes text, not 3",
                "[pipeline] brokers: ",
            ],
        ),
        (
            TOML.replace('["orders"]', '["orders", 3]') + "limt = 3\n[[fake.shown]]\nkind = 'line'\n",
            [
                "[fake] limt: ",
                "[fake] topics[2]: ",
                "[fake.shown[1]] kind: ",
                "[fake]: topics: found by the job",
                "[fake]: found by the job, too",
            ],
        ),
    ],
)
def test_a_problem_does_not_hide_others(
    written: Write, text: str, problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found_by_job = ["topics: found by the job", "limt: known", "shown[1].kind: known", "found by the job, too"]
    if "limt" in text:
        monkeypatch.setattr(FakeJob, "wrong", found_by_job)
    found = problems_of(written(text))
    assert [line[: len(start)] for line, start in zip(found, problems, strict=True)] == problems


@pytest.mark.parametrize(
    ("text", "repaired_settings"),
    [
        ("topics = 3", FakeSettings(["x"])),
        ("topics = ['a']\nlimit = 'x'\nnone = 1", FakeSettings(["a"])),
        ("topics = ['a', 3]\nkeep = true", FakeSettings(["a", "x"], keep=True)),
        (
            "topics = []\n[parts.a]\nnote = 'n'\n[parts.b]\nsize = 2",
            FakeSettings([], parts={"a": Part(1, "n"), "b": Part(2)}),
        ),
        ("topics = []\n[options]\na = 1\nb = 'c'", FakeSettings([], options={"b": "c"})),
        (
            "topics = []\nshown = [{kind = 'page', title = 't'}, {kind = 'lines'}, 3]",
            FakeSettings([], shown=[Lines(1), Lines(1), Lines(1)]),
        ),
        ("topics = []\nshown = [{kind = ['x']}]", FakeSettings([], shown=[Lines(1)])),
    ],
)
def test_the_rest_of_invalid_settings_is_valid(text: str, repaired_settings: FakeSettings) -> None:
    found = msgspec.convert(repaired(tomllib.loads(text), FakeSettings), FakeSettings)
    assert found == repaired_settings


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match=r"nowhere\.toml: cannot be read: No such file"):
        read_pipeline(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        ("fake.topics=a, b", FakeSettings(["a", "b"])),
        ('fake.topics=["a,b"]', FakeSettings(["a,b"])),
        ("fake.limit=3", FakeSettings(["orders"], limit=3)),
        ("fake.since=2026", FakeSettings(["orders"], since="2026")),
        ("fake.keep=true", FakeSettings(["orders"], keep=True)),
        ("fake.parts.a.size=3", FakeSettings(["orders"], parts={"a": Part(3)})),
        ("fake.parts={a = {size = 1}}", FakeSettings(["orders"], parts={"a": Part(1)})),
        ("fake.shown=[{kind = 'lines', count = 2}]", FakeSettings(["orders"], shown=[Lines(2)])),
        ("fake.options.a.b.c=3", FakeSettings(["orders"], options={"a.b.c": "3"})),
    ],
)
def test_the_command_line_overrides_the_file(written: Write, change: str, settings: FakeSettings) -> None:
    assert read_pipeline(written(TOML), [change]).settings == settings


def test_names_of_spark_settings_keep_their_dots(written: Write) -> None:
    changes = ["spark.conf.spark.sql.shuffle.partitions=2", "spark.master=local", "pipeline.trigger=1s"]
    pipeline = read_pipeline(written(TOML), changes)
    assert (pipeline.conf, pipeline.master) == ({"spark.sql.shuffle.partitions": "2"}, "local")
    assert pipeline.trigger_seconds == 1.0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("limit=3", "--set: limit=3: write TABLE.KEY=VALUE"),
        ("fake.limit", "--set: fake.limit: write TABLE.KEY=VALUE"),
        ("fke.limit=3", "--set: [fke] limit: there is no such table (did you mean fake?); "),
        ("fake.limt=3", "[fake] limt: there is no such key (did you mean limit?)"),
        ("fake.limit=many", "[fake] limit: takes a whole number, not 'many'"),
        ("fake.limit.much=3", "[fake] limit: takes a whole number, not a table"),
        ("pipeline.job=fke", "[pipeline] job: there is no job 'fke' (did you mean fake?)"),
    ],
)
def test_problems_on_the_command_line_are_named(written: Write, change: str, problem: str) -> None:
    (found,) = problems_of(written(TOML), change)
    assert found.startswith(problem)


def test_a_job_without_a_file_takes_all_settings_from_the_command_line(tmp_path: Path) -> None:
    pipeline = pipeline_of_job("fake", ["fake.topics=a"], folder=tmp_path, brokers="b:1")
    assert (pipeline.name, pipeline.brokers) == ("fake", "b:1")
    assert pipeline.work == tmp_path / "headrace-pipelines" / "fake"
    assert pipeline.settings == FakeSettings(["a"])
    with pytest.raises(InvalidPipeline, match=r"--set: \[fake\] topics: is missing"):
        pipeline_of_job("fake", [])
