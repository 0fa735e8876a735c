"""The runner: one run at a time, with status, stop requests and a recorded result."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.process import wait_until
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


def test_a_run_records_its_result(pipeline: Pipeline, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = run_pipeline(pipeline)
    assert outcome == JobResult(True, "all done", {"records": 3})
    status = status_of(pipeline)
    assert (status.state, status.summary, status.figures) == ("done", "all done", {"records": 3})
    assert status.progress == JobProgress(1, 4)
    assert (status.process.pid, status.brokers, status.file) == (os.getpid(), "10.0.0.1:9092", pipeline.file)
    assert "run ended pipeline=orders" in (pipeline.work / "log").read_text()
    assert capfd.readouterr().err == "orders: 1/4 records  lag 3\n"


def test_the_job_gets_its_folder_and_its_progress_is_visible_during_the_run(
    pipeline: Pipeline, does: Callable[[Work], None]
) -> None:
    def work(run: JobRun) -> JobResult:
        assert (run.name, run.brokers, run.work) == ("orders", "10.0.0.1:9092", pipeline.work / "job")
        assert run.work.is_dir()
        assert status_of(pipeline).state == "running"
        return DONE

    does(work)
    run_pipeline(pipeline)


def test_a_job_with_findings_fails(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
    does(lambda run: JobResult(False, "one record is lost"))
    assert not run_pipeline(pipeline).ok
    assert (status_of(pipeline).state, status_of(pipeline).summary) == ("failed", "one record is lost")


def test_an_error_is_recorded_and_raised(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
    def work(run: JobRun) -> JobResult:
        raise UnknownTopicOrPartition("there is no topic orders")

    does(work)
    with pytest.raises(UnknownTopicOrPartition):
        run_pipeline(pipeline)
    assert (status_of(pipeline).state, status_of(pipeline).summary) == ("failed", "there is no topic orders")
    assert "Traceback" in (pipeline.work / "log").read_text()


def test_a_spark_error_is_summarized_in_a_line_and_logged_in_full(
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


def test_settings_that_the_job_rejects_are_reported_before_anything_is_created(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeJob, "wrong", ["no such thing"])
    with pytest.raises(InvalidPipeline, match=r"orders.toml: \[fake\]: no such thing"):
        run_pipeline(read_pipeline(Path(pipeline.file)))
    assert not pipeline.work.exists()


def test_a_pipeline_does_not_run_twice_at_the_same_time(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
    def work(run: JobRun) -> JobResult:
        with pytest.raises(PipelineAlreadyRunning, match=f"is in use by process {os.getpid()}"):
            run_pipeline(pipeline)
        assert status_of(pipeline).state == "running"
        return DONE

    does(work)
    assert run_pipeline(pipeline) == DONE


def test_a_run_waits_for_the_java_process_of_a_killed_run(
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


def test_the_wait_for_a_java_process_ends_at_a_timeout(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOCK_WAIT_SECONDS", 0.0)
    left_behind = WorkFolder(pipeline.work).lock()
    assert left_behind is not None
    with pytest.raises(PipelineAlreadyRunning, match="is still locked by the Java process of the last run"):
        run_pipeline(pipeline)
    os.close(left_behind)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_job_finish_its_current_work(
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


def test_a_second_ctrl_c_ends_the_run_at_once(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
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


def test_a_stop_request_is_detected(
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


def test_a_stop_request_for_an_earlier_run_has_no_effect(
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


def test_a_continuous_run_repeats_the_job_until_a_stop(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
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


def test_spark_starts_at_the_first_use_and_ends_with_the_run(
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


def test_spark_processes_write_to_the_log_and_hold_the_lock(pipeline: Pipeline, does: Callable[[Work], None]) -> None:
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


def test_signal_handlers_are_restored_after_the_start_of_spark(
    pipeline: Pipeline, does: Callable[[Work], None]
) -> None:
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


def test_a_plan_changes_nothing_and_takes_no_lock(pipeline: Pipeline) -> None:
    assert plan_pipeline(pipeline) == ["would read orders of 10.0.0.1:9092"]
    assert not pipeline.work.exists()


def test_the_status_stays_current_while_the_job_reports_nothing(
    pipeline: Pipeline, does: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STATUS_SECONDS", 0.001)

    def work(run: JobRun) -> JobResult:
        run.report_progress(JobProgress(7, None, note="busy", lag=2))
        wait_until(lambda: status_of(pipeline).progress == JobProgress(7, None, note="busy", lag=2), "it is written")
        before = status_of(pipeline).updated_ms
        wait_until(lambda: status_of(pipeline).updated_ms > before, "it is written again")
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: status_of(pipeline).state == "stopping", "the stop is visible")
        return DONE

    does(work)
    run_pipeline(pipeline)
    assert status_of(pipeline).state == "stopped"


def test_the_status_says_that_spark_starts(
    pipeline: Pipeline, does: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STATUS_SECONDS", 0.001)
    starting = JobProgress(1, 4, note="starting Spark on local[*]")

    class Slow(FakeSpark):
        def open(self, pipeline: Pipeline) -> Any:
            wait_until(lambda: status_of(pipeline).progress == starting, "it is written")
            return super().open(pipeline)

    def work(run: JobRun) -> JobResult:
        assert run.spark is not None
        wait_until(lambda: status_of(pipeline).progress == JobProgress(1, 4), "Spark has started")
        return DONE

    does(work)
    run_pipeline(pipeline, sessions=Slow().open)


def test_a_run_whose_status_cannot_be_written_fails(
    pipeline: Pipeline, does: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STATUS_SECONDS", 0.001)
    written: list[Status] = []
    write = WorkFolder.write_status

    def full(folder: WorkFolder, status: Status) -> None:
        written.append(status)
        if threading.current_thread() is not threading.main_thread():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(folder, status)

    monkeypatch.setattr(WorkFolder, "write_status", full)

    def work(run: JobRun) -> JobResult:
        wait_until(lambda: len(written) > 1, "the status was written again")
        while True:
            run.report_progress(JobProgress(1))

    does(work)
    with pytest.raises(OSError, match="No space left on device"):
        run_pipeline(pipeline)
    assert status_of(pipeline).state == "failed"
