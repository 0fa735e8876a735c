"""`headrace pipeline`: create, check, run, list and stop pipelines, without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.integration.process import wait_until
from tests.unit.pipeline import fakes
from tests.unit.pipeline.fakes import TOML, FakeJob

from headrace.cli.main import main
from headrace.model.errors import UnknownTopicOrPartition
from headrace.pipeline import job as jobs
from headrace.pipeline.job import JobProgress, JobResult, JobRun
from headrace.pipeline.state import Process, Status, WorkFolder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(jobs.JOBS, "fake", (fakes.__name__, "FakeJob", "does nothing"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_SERVER", raising=False)
    (tmp_path / "orders.toml").write_text(TOML)
    return tmp_path


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def died(name: str = "orders") -> None:
    work = WorkFolder(Path("headrace-pipelines", name))
    work.path.mkdir(parents=True)
    work.write_status(Status(name, "fake", "once", "running", Process.own(), 1, 2, progress=JobProgress(1, 4)))
    gone = json.loads((work.path / "status.json").read_text())
    gone["process"]["boot"] = "an earlier one"
    (work.path / "status.json").write_text(json.dumps(gone))


def test_help_needs_neither_spark_nor_arrow() -> None:
    script = (
        "import sys; from headrace.cli.main import main; main(['pipeline', 'run', '--help']);"
        "print([m for m in sys.modules if m.startswith(('pyspark', 'pyarrow', 'py4j'))])"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[-1] == "[]"


def test_init_writes_a_file_that_passes_lint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "init", "transform", "big.toml"]) == 0
    assert Path("big.sql").is_file()
    assert main(["pipeline", "lint", "big.toml", "orders.toml"]) == 0
    assert "2 files checked, no problems" in capsys.readouterr().err
    assert main(["pipeline", "init", "transform", "big.toml"]) == 1
    assert "big.toml exists already" in capsys.readouterr().err


def test_lint_reports_all_problems_of_all_files(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.toml").write_text(TOML + "limt = 3\nkeep = 'yes'\n")
    assert main(["pipeline", "lint", "bad.toml", "gone.toml", "orders.toml"]) == 1
    captured = capsys.readouterr()
    assert [(row["file"], row["key"]) for row in lines(captured.out)] == [
        ("bad.toml", "limt"),
        ("bad.toml", "keep"),
        ("gone.toml", ""),
    ]
    assert captured.err == "3 files checked, 3 problems\n"
    assert main(["pipeline", "lint", "bad.toml", "-o", "table"]) == 1
    assert "bad.toml: [fake] limt: there is no such key (did you mean limit?)" in capsys.readouterr().out


def test_lint_reports_the_problems_of_all_stages_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("big.toml").write_text("""
[pipeline]
name = "big"
job = "archive"
trigger = "soon"
[archive]
topics = ["a("]
file_bytes = "much"
compresion = "zstd"
file_records = "many"
""")
    assert main(["pipeline", "lint", "big.toml", "-o", "table"]) == 1
    starts = [line.partition(": ")[2].partition(": ")[0:3:2] for line in capsys.readouterr().out.splitlines()]
    assert [(where, what.partition(" ")[0]) for where, what in starts] == [
        ("[archive] compresion", "there"),
        ("[archive] path", "is"),
        ("[archive] file_records", "takes"),
        ("[pipeline] trigger", "'soon'"),
        ("[archive]", "topics:"),
        ("[archive]", "file_bytes:"),
    ]


def test_lint_reports_problems_found_by_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeJob, "wrong", ["no such file", "no such topic"])
    assert main(["pipeline", "lint", "orders.toml"]) == 1
    assert [row["problem"] for row in lines(capsys.readouterr().out)] == ["no such file", "no such topic"]


def test_dry_run_reports_what_a_run_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "dry-run", "orders.toml", "--set", "fake.topics=a,b"]) == 0
    assert capsys.readouterr().out == "would read a of 10.0.0.1:9092\nwould read b of 10.0.0.1:9092\n"
    assert not Path("headrace-pipelines").exists()


def test_a_run_reports_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "run", "orders.toml"]) == 0
    assert lines(capsys.readouterr().out) == [{"pipeline": "orders", "ok": True, "summary": "all done", "records": 3}]
    assert main(["pipeline", "run", "orders.toml", "-o", "table"]) == 0
    assert capsys.readouterr().out == "orders: all done\nFIGURE   VALUE\nrecords      3\n"


def test_a_job_with_findings_exits_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(FakeJob, "work", staticmethod(lambda run: JobResult(False, "2 findings")))
    assert main(["pipeline", "run", "orders.toml"]) == 1
    assert lines(capsys.readouterr().out)[0]["ok"] is False
    assert main(["pipeline", "status", "orders"]) == 1


def test_a_job_runs_without_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    runs: list[JobRun] = []

    def work(run: JobRun) -> JobResult:
        runs.append(run)
        return JobResult(True, "done")

    monkeypatch.setattr(FakeJob, "work", staticmethod(work))
    monkeypatch.setenv("HEADRACE_SERVER", "env:1")
    assert main(["pipeline", "run", "fake", "--set", "fake.topics=a", "--set", "pipeline.name=adhoc"]) == 0
    assert main(["pipeline", "run", "fake", "--set", "fake.topics=a", "--brokers", "said:1"]) == 0
    assert main(["pipeline", "run", "orders.toml"]) == 0
    assert [(run.name, run.brokers) for run in runs] == [
        ("adhoc", "env:1"),
        ("fake", "said:1"),
        ("orders", "10.0.0.1:9092"),
    ]
    assert Path("headrace-pipelines/adhoc/status.json").is_file()
    capsys.readouterr()
    assert main(["pipeline", "status", "adhoc"]) == 0
    assert lines(capsys.readouterr().out)[0]["state"] == "done"


def test_a_run_without_a_file_does_not_overwrite_the_status_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("orders.toml").write_text(TOML.replace('"orders"', '"fake"', 1))
    assert main(["pipeline", "run", "orders.toml"]) == 0
    before = Path("headrace-pipelines/fake/status.json").read_text()
    capsys.readouterr()
    assert main(["pipeline", "run", "fake", "--set", "fake.topics=a"]) == 1
    error = capsys.readouterr().err
    assert "belongs to the pipeline in " in error
    assert error.endswith("orders.toml; add --set pipeline.name=NAME\n")
    assert Path("headrace-pipelines/fake/status.json").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "exit_code", "why"),
    [
        (["run", "gone.toml"], 2, "gone.toml is neither a file nor a job"),
        (["run", "orders.toml", "--set", "fake.limt=3"], 2, "[fake] limt: there is no such key"),
        (["run", "orders.toml", "--set", "limit=3"], 2, "write TABLE.KEY=VALUE"),
        (["run", "fake"], 2, "--set: [fake] topics: is missing"),
        (["run", "orders.toml", "--brokers", "nowhere:port"], 2, "[pipeline] brokers"),
        (["init", "nonsense", "x.toml"], 1, "there is no job 'nonsense'"),
        (["status", "gone"], 1, "there is no pipeline gone here"),
        (["stop", "gone"], 1, "there is no pipeline gone here"),
        (["cluster", "--listen", "0.0.0.0:7077"], 2, "whose users could run programs here"),
        (["cluster", "--listen", "127.0.0.1:0"], 2, "--listen must name a port"),
        (["cluster", "--memory", "much"], 2, "--memory must be as 512m or 2g"),
    ],
)
def test_invalid_settings_are_a_one_line_error(
    arguments: list[str], exit_code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", *arguments]) == exit_code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert why in error
    assert error.count("\n") == 1


def test_a_failure_is_a_one_line_error_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(run: JobRun) -> JobResult:
        raise UnknownTopicOrPartition("there is no topic orders")

    monkeypatch.setattr(FakeJob, "work", staticmethod(work))
    assert main(["pipeline", "run", "orders.toml"]) == 1
    assert capsys.readouterr().err.endswith("error: there is no topic orders; `headrace topic list` shows all topics\n")


def test_list_shows_the_state_of_the_pipelines_of_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    died("gone")
    assert main(["pipeline", "list", "-o", "table"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.split() == ["NAME", "JOB", "MODE", "STATE", "DONE", "LAG", "UPDATED", "NOTE"]
    assert second.split()[:6] == ["gone", "fake", "once", "died", "1", "3"]
    assert third.split()[:6] == ["orders", "fake", "once", "new", "-", "-"]
    assert main(["pipeline", "list", "elsewhere"]) == 0
    assert capsys.readouterr().out == ""


def test_the_status_of_a_crashed_run_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    died()
    assert main(["pipeline", "status", "orders.toml", "--json"]) == 1
    (row,) = lines(capsys.readouterr().out)
    assert (row["state"], row["done"], row["total"], row["lag"], row["pid"]) == ("died", 1, 4, 3, None)
    assert main(["pipeline", "status", "orders", "-o", "table"]) == 1
    assert "state    died" in capsys.readouterr().out


def test_the_last_line_of_a_summary_with_a_table_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeJob, "work", staticmethod(lambda run: JobResult(True, "CHECK  FOUND\nlog  0\nall is well")))
    main(["pipeline", "run", "orders.toml"])
    capsys.readouterr()
    main(["pipeline", "list"])
    assert lines(capsys.readouterr().out)[0]["note"] == "all is well"


def test_stop_waits_until_the_run_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = threading.Event()
    exit_codes: list[int] = []

    def work(run: JobRun) -> JobResult:
        started.set()
        wait_until(lambda: run.stop_requested, "a stop is asked for")
        return JobResult(True, "as far as it came")

    def stop() -> None:
        started.wait()
        exit_codes.append(main(["pipeline", "stop", "orders", "--wait"]))

    monkeypatch.setattr(FakeJob, "work", staticmethod(work))
    stopper = threading.Thread(target=stop)
    stopper.start()
    assert main(["pipeline", "run", "orders.toml"]) == 0
    stopper.join()
    assert exit_codes == [0]
    error = capsys.readouterr().err
    assert "orders was requested to stop" in error
    assert "orders stopped: as far as it came" in error
    assert main(["pipeline", "stop", "orders"]) == 0
    assert capsys.readouterr().err == "orders is not running\n"


def test_the_options_reach_the_spark_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.spark import standalone
    from headrace.spark.standalone import StandaloneSettings

    received: list[StandaloneSettings] = []

    def run(settings: StandaloneSettings) -> int:
        received.append(settings)
        return 0

    monkeypatch.setattr(standalone, "run_standalone", run)
    assert main(["pipeline", "cluster"]) == 0
    arguments = ["--workers", "3", "--cores", "2", "--memory", "512m", "--listen", "localhost:1", "--data", "d"]
    assert main(["pipeline", "cluster", *arguments]) == 0
    assert received == [
        StandaloneSettings("spark-cluster", ("127.0.0.1", 7077), 2, 1, "1g"),
        StandaloneSettings("d", ("localhost", 1), 3, 2, "512m"),
    ]


def test_a_running_pipeline_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(run: JobRun) -> JobResult:
        assert main(["pipeline", "run", "orders.toml"]) == 1
        assert f"is in use by process {os.getpid()}" in capsys.readouterr().err
        return JobResult(True, "done")

    monkeypatch.setattr(FakeJob, "work", staticmethod(work))
    assert main(["pipeline", "run", "orders.toml"]) == 0
