"""The runner: one run at a time, watched and stopped from outside, and always a true word about how it ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pipeline.fakes import TOML, FakeJob, FakeSpark

from headrace.model.errors import UnknownTopicOrPartition
from headrace.pipeline import runner
from headrace.pipeline.job import JobProgress, JobResult, JobRun
from headrace.pipeline.runner import RunFailed, plan_pipeline, run_pipeline
from headrace.pipeline.settings import InvalidPipeline, Pipeline, read_pipeline
from headrace.pipeline.state import PipelineAlreadyRunning, Process, Status, WorkFolder

Work = Callable[[JobRun], JobResult]
DONE = JobResult(True, "done")


@pytest.fixture
def pipeline(written: Callable[[str], Path]) -> Pipeline:
    return read_pipeline(written(TOML))


@pytest.fixture
def does(monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], None]:
    return lambda work: monkeypatch.setattr(FakeJob, "work", staticmethod(work))


def status_of(pipeline: Pipeline) -> Status:
    status = WorkFolder(pipeline.work).status()
    assert status is not None
    return status


def test_a_run_leaves_word_of_what_it_did(pipeline: Pipeline, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = run_pipeline(pipeline)
    assert outcome == JobResult(True, "all done", {"records": 3})
    status = status_of(pipeline)
    assert (status.state, status.summary, status.figures) == ("done", "all done", {"records": 3})
    assert status.progress == JobProgress(1, 4)
    assert (status.process.pid, status.brokers, status.file) == (os.getpid(), "10.0.0.1:9092", pipeline.file)
    assert "run of orders ended" in (pipeline.work / "log").read_text()
    assert capfd.readouterr().err == "orders: 1/4 records  lag 3\n"


def test_the_job_sees_its_own_folder_and_how_it_stands_is_seen_meanwhile(
    pipeline: Pipeline, does: Callable[[Work], None]
) -> None:
    def work(run: JobRun) -> JobResult:
        assert (run.name, run.brokers, run.work) == ("orders", "10.0.0.1:9092", pipeline.work / "job")
        assert run.work.is_dir()
        assert status_of(pipeline).state == "running"
        return DONE

    does(work)
    run_pipeline(pipeline)


def test_what_the_job_finds_wrong_ends_in_no(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
    does(lambda run: JobResult(False, "one record is lost"))
    assert not run_pipeline(pipeline).ok
    assert (status_of(pipeline).state, status_of(pipeline).summary) == ("failed", "one record is lost")


def test_a_refusal_is_kept_and_told(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
    def work(run: JobRun) -> JobResult:
        raise UnknownTopicOrPartition("there is no topic orders")

    does(work)
    with pytest.raises(UnknownTopicOrPartition):
        run_pipeline(pipeline)
    assert (status_of(pipeline).state, status_of(pipeline).summary) == ("failed", "there is no topic orders")
    assert "Traceback" in (pipeline.work / "log").read_text()


def test_an_error_of_spark_is_told_in_a_line_and_the_log_has_the_rest(
    pipeline: Pipeline, does: Callable[[Work], None]
) -> None:
    from pyspark.errors import PySparkException

    def work(run: JobRun) -> JobResult:
        raise PySparkException(
            "[STREAM_FAILED] Query x:\nTraceback (most recent call last):\nValueError: bad\n\tat java"
        )

    does(work)
    with pytest.raises(RunFailed, match=f"ValueError: bad; for details see {pipeline.work / 'log'}"):
        run_pipeline(pipeline)
    assert "at java" in (pipeline.work / "log").read_text()


def test_settings_that_the_job_refuses_are_told_before_anything_is_made(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeJob, "wrong", ["no such thing"])
    with pytest.raises(InvalidPipeline, match=r"orders.toml: \[fake\]: no such thing"):
        run_pipeline(pipeline)
    assert not pipeline.work.exists()


def test_a_pipeline_is_not_run_twice_at_once(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
    def work(run: JobRun) -> JobResult:
        with pytest.raises(PipelineAlreadyRunning, match=f"is in use by process {os.getpid()}"):
            run_pipeline(pipeline)
        assert status_of(pipeline).state == "running"
        return DONE

    does(work)
    assert run_pipeline(pipeline) == DONE


def test_a_run_waits_for_what_a_killed_one_left_behind(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = WorkFolder(pipeline.work)
    left_behind = folder.lock()
    assert left_behind is not None

    def pause(*_: object) -> tuple[list[int], ...]:
        os.close(left_behind)  # Java has noticed
        return [], [], []

    monkeypatch.setattr("headrace.pipeline.runner.select.select", pause)
    assert run_pipeline(pipeline).ok
    assert "waiting for the Java process of the last run to end" in capfd.readouterr().err


def test_a_run_does_not_wait_for_ever_for_what_is_left_behind(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LOCK_WAIT_SECONDS", 0.0)
    left_behind = WorkFolder(pipeline.work).lock()
    assert left_behind is not None
    with pytest.raises(PipelineAlreadyRunning, match="is still locked by the Java process of the last run"):
        run_pipeline(pipeline)
    os.close(left_behind)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_job_finish_what_is_under_way(
    pipeline: Pipeline, does: Callable[[Work], None], number: signal.Signals
) -> None:
    before = signal.getsignal(number)

    def work(run: JobRun) -> JobResult:
        assert not run.stop_requested
        os.kill(os.getpid(), number)
        run.wait(1000)
        assert run.stop_requested
        return JobResult(True, "as far as it came")

    does(work)
    assert run_pipeline(pipeline).ok
    assert (status_of(pipeline).state, status_of(pipeline).summary) == ("stopped", "as far as it came")
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_ends_it_now(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
    reached: list[str] = []

    def work(run: JobRun) -> JobResult:
        os.kill(os.getpid(), signal.SIGINT)
        assert run.stop_requested
        os.kill(os.getpid(), signal.SIGTERM)  # which says the same as the first, and no more
        reached.append("the second")
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("the end")
        return DONE

    does(work)
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(pipeline)
    assert reached == ["the second"]
    assert (status_of(pipeline).state, status_of(pipeline).summary) == ("stopped", "interrupted")


def test_a_request_to_stop_is_seen(
    pipeline: Pipeline, does: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STOP_POLL_SECONDS", 0.001)
    folder = WorkFolder(pipeline.work)

    def work(run: JobRun) -> JobResult:
        folder.request_stop_of(status_of(pipeline).process)
        run.wait(1000)
        assert run.stop_requested
        return DONE

    does(work)
    run_pipeline(pipeline)
    assert status_of(pipeline).state == "stopped"
    assert not folder.is_stop_requested(Process.own())


def test_a_request_to_stop_an_earlier_run_is_void(
    pipeline: Pipeline, does: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STOP_POLL_SECONDS", 0.0)
    pipeline.work.mkdir(parents=True)
    WorkFolder(pipeline.work).request_stop_of(Process.own())
    seen: list[bool] = []

    def work(run: JobRun) -> JobResult:
        seen.append(run.stop_requested)
        return DONE

    does(work)
    run_pipeline(pipeline)
    assert seen == [False]


def test_a_continuous_run_does_it_again_until_a_stop(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
    times: list[int] = []

    def work(run: JobRun) -> JobResult:
        times.append(1)
        if len(times) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return JobResult(True, f"{len(times)} times")

    does(work)
    quick = read_pipeline(Path(pipeline.file), ["pipeline.trigger=1ms"])
    assert run_pipeline(quick, "continuous").summary == "3 times"
    assert (status_of(pipeline).state, status_of(pipeline).mode) == ("stopped", "continuous")


def test_spark_is_started_when_it_is_asked_for_and_ended_with_the_run(
    pipeline: Pipeline, does: Callable[[Work], None], capfd: pytest.CaptureFixture[str]
) -> None:
    spark = FakeSpark()
    run_pipeline(pipeline, sessions=spark.open)
    assert spark.opened == 0

    def work(run: JobRun) -> JobResult:
        first: Any = run.spark
        assert first is run.spark
        assert (spark.opened, spark.closed) == (1, 0)
        return DONE

    does(work)
    run_pipeline(pipeline, sessions=spark.open)
    assert (spark.opened, spark.closed) == (1, 1)
    assert "orders: starting Spark on local[*]" in capfd.readouterr().err


def test_what_starts_with_spark_prints_to_the_log_and_holds_the_lock(
    pipeline: Pipeline, does: Callable[[Work], None]
) -> None:
    java: list[int] = []

    class Noisy(FakeSpark):
        def open(self, pipeline: Pipeline) -> Any:
            os.write(1, b"hello from java\n")
            os.write(2, b"trouble in java\n")
            java.append(os.dup(2))
            return super().open(pipeline)

    def work(run: JobRun) -> JobResult:
        assert run.spark is not None
        return DONE

    does(work)
    run_pipeline(pipeline, sessions=Noisy().open)
    assert "hello from java\ntrouble in java" in (pipeline.work / "log").read_text()
    assert WorkFolder(pipeline.work).lock() is None
    os.close(java[0])


def test_our_signals_are_taken_back_from_spark(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
    class Grabbing(FakeSpark):
        def open(self, pipeline: Pipeline) -> Any:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return super().open(pipeline)

    def work(run: JobRun) -> JobResult:
        assert run.spark is not None
        os.kill(os.getpid(), signal.SIGINT)
        assert run.stop_requested
        return DONE

    does(work)
    run_pipeline(pipeline, sessions=Grabbing().open)


def test_a_plan_changes_nothing_and_hinders_nobody(pipeline: Pipeline) -> None:
    assert plan_pipeline(pipeline) == ["would read orders of 10.0.0.1:9092"]
    assert not pipeline.work.exists()
