"""Run a pipeline: one process, one Spark session, one job, with status, log, lock and stop requests.

    SIGTERM, SIGINT, `headrace pipeline stop`     the job finishes the work in progress and returns
    a second SIGINT                               end at once

- The session starts when the job first uses it. Java writes its output to the log of the work folder, whose descriptor
  also holds the folder's lock: a run after a killed one waits until the Java process of that has ended.
- A job may be killed at any moment; it stores its own progress.
- A thread writes status.json every second with the last reported progress. The job cannot: it may wait for Spark for
  minutes, and `updated` must show that the run is alive.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.model.errors import HeadraceError
from headrace.pipeline.display import Display, display_on
from headrace.pipeline.job import Job, JobProgress, JobResult, find_job
from headrace.pipeline.listing import check_name
from headrace.pipeline.settings import WITHOUT_FILE, Mode, Pipeline
from headrace.pipeline.spark_errors import is_of_spark, readable
from headrace.pipeline.state import PipelineAlreadyRunning, Process, State, Status, WorkFolder
from headrace.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OpenSession = Callable[[Pipeline], AbstractContextManager["SparkSession"]]

STOP_POLL_SECONDS: Final = 0.5
"""How often the runner checks for a stop request."""

STATUS_SECONDS: Final = 1.0
"""How often status.json is written."""

LOCK_WAIT_SECONDS: Final = 20.0
"""How long a run waits for the Java process of the previous run to notice that its runner was killed."""

log = logging.getLogger(__name__)


class RunFailed(HeadraceError):
    """Spark reported an error."""


def make_job(pipeline: Pipeline) -> Job[Any]:
    return find_job(pipeline.job)(pipeline.settings, pipeline.folder)


@contextmanager
def open_session(pipeline: Pipeline) -> Iterator[SparkSession]:
    from headrace.spark.session import session

    spark = session(f"headrace-{pipeline.name}", master=pipeline.master, conf=pipeline.conf)
    yield spark
    spark.stop()  # not after an error: then it ends with this process


def run_pipeline(pipeline: Pipeline, mode: Mode | None = None, *, sessions: OpenSession = open_session) -> JobResult:
    """Run the pipeline until its job ends or a stop is requested."""
    job = make_job(pipeline)
    check_name(pipeline)
    pipeline = msgspec.structs.replace(pipeline, mode=mode or pipeline.mode)
    clock = SystemClock()
    with ExitStack() as stack:
        display = display_on(sys.stderr, pipeline.name, clock)
        stack.callback(display.close)
        descriptor = _lock(WorkFolder(pipeline.work), display, clock)
        stack.callback(os.close, descriptor)
        stack.enter_context(_logging_to(descriptor))
        run = stack.enter_context(PipelineRun(pipeline, descriptor, display, clock, sessions))
        with run.recorded():
            is_endless = pipeline.mode == "continuous"
            return run.end(job.continuously(run, pipeline.trigger_seconds) if is_endless else job.once(run))


def plan_pipeline(pipeline: Pipeline, *, sessions: OpenSession = open_session) -> list[str]:
    """What a run would do now, line by line. Changes nothing, and takes no lock."""
    job = make_job(pipeline)
    check_name(pipeline)
    clock = SystemClock()
    with ExitStack() as stack:
        display = display_on(sys.stderr, pipeline.name, clock)
        stack.callback(display.close)
        descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        run = stack.enter_context(PipelineRun(pipeline, descriptor, display, clock, sessions))
        with _readable_errors(""):
            return list(job.plan(run))


class PipelineRun:
    """The runner's side of `JobRun`. A context manager, which handles signals within."""

    def __init__(
        self, pipeline: Pipeline, descriptor: int, display: Display, clock: Clock, sessions: OpenSession
    ) -> None:
        self.name = pipeline.name
        self.brokers = pipeline.brokers
        self._pipeline = pipeline
        self._descriptor = descriptor
        self._display = display
        self._clock = clock
        self._sessions = sessions
        self._folder = WorkFolder(pipeline.work)
        self.work: Path = self._folder.job
        self._process = Process.own()
        self._stack = ExitStack()
        self._spark: SparkSession | None = None
        self._is_stopping = False
        self._polled_at = clock.monotonic()
        self._status_lock = threading.RLock()
        self._ended = threading.Event()
        self._write_error: OSError | None = None
        # The signal handler writes to this pipe, and `wait` reads it. The interrupted thread could hold a lock.
        self._wakeup, self._waker = os.pipe()
        self._status = Status(
            name=pipeline.name,
            job=pipeline.job,
            mode=pipeline.mode,
            state="running",
            process=self._process,
            started_ms=clock.now_ms(),
            updated_ms=clock.now_ms(),
            file=pipeline.file if pipeline.file == WITHOUT_FILE else str(Path(pipeline.file).absolute()),
            brokers=pipeline.brokers,
            master=pipeline.master,
        )

    def __enter__(self) -> PipelineRun:
        self._stack.callback(os.close, self._wakeup)
        self._stack.callback(os.close, self._waker)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._stack.callback(signal.signal, number, signal.getsignal(number))
        self._handle_signals()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.__exit__(*failure)  # type: ignore[arg-type]

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            note = f"starting Spark on {self._pipeline.master}"
            self._display.write_line(note)
            before = self._status.progress or JobProgress(0)
            self._change_status(progress=msgspec.structs.replace(before, note=note))
            with _output_to(self._descriptor):
                self._spark = self._stack.enter_context(self._sessions(self._pipeline))
            self._change_status(progress=before)
            self._handle_signals()  # Spark has installed its own handler
        return self._spark

    def report_progress(self, progress: JobProgress) -> None:
        if self._write_error is not None:
            raise self._write_error
        self._change_status(progress=progress)
        self._display.progress(progress)

    @property
    def stop_requested(self) -> bool:
        now = self._clock.monotonic()
        if not self._is_stopping and now - self._polled_at >= STOP_POLL_SECONDS:
            self._polled_at = now
            self._is_stopping = self._folder.is_stop_requested(self._process)
        return self._is_stopping

    def wait(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while not self.stop_requested and (left := until - self._clock.monotonic()) > 0:
            select.select([self._wakeup], [], [], min(left, STOP_POLL_SECONDS))

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the outcome of the run in status.json and in the log, also for errors."""
        self._folder.clear_stop()
        self._write_status("running")
        # Without the settings: those of Spark may contain credentials of a storage.
        log.info("run started pipeline=%s pid=%d master=%s", self.name, self._process.pid, self._pipeline.master)
        try:
            with self._status_writer(), _readable_errors(f"; for details see {self._folder.log}"):
                yield
        except BaseException as error:
            is_interrupted = isinstance(error, KeyboardInterrupt)
            self._change_status(summary="interrupted" if is_interrupted else str(error) or type(error).__name__)
            self._write_status("stopped" if is_interrupted else "failed")
            log.error("run failed pipeline=%s", self.name, exc_info=error)
            raise
        finally:
            self._folder.clear_stop()

    def end(self, result: JobResult) -> JobResult:
        self._change_status(summary=result.summary, figures=result.figures)
        self._write_status("failed" if not result.ok else "stopped" if self._is_stopping else "done")
        log.info("run ended pipeline=%s result=%s", self.name, result)
        return result

    @contextmanager
    def _status_writer(self) -> Iterator[None]:
        """Write the status every second in the background. After an error the next report of the job raises it."""

        def write() -> None:
            while not self._ended.wait(STATUS_SECONDS):
                try:
                    with self._status_lock:
                        if self._status.is_active:
                            self._write_status("stopping" if self._is_stopping else "running")
                except OSError as error:
                    self._write_error = error
                    return

        writer = threading.Thread(target=write, name="headrace-status", daemon=True)
        writer.start()
        try:
            yield
        finally:
            self._ended.set()
            writer.join()

    def _change_status(self, **changes: Any) -> None:
        with self._status_lock:
            self._status = msgspec.structs.replace(self._status, **changes)

    def _write_status(self, state: State) -> None:
        with self._status_lock:
            self._change_status(state=state, updated_ms=self._clock.now_ms())
            self._folder.write_status(self._status)

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._is_stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._is_stopping = True
        os.write(self._waker, b".")


@contextmanager
def _readable_errors(hint: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise RunFailed(readable(error) + hint) from error


def _lock(folder: WorkFolder, display: Display, clock: Clock) -> int:
    descriptor, until = folder.lock(), clock.monotonic() + LOCK_WAIT_SECONDS
    is_reported = False
    while descriptor is None:
        status = folder.status()
        if status is not None and status.is_active:
            raise PipelineAlreadyRunning(
                f"{folder.path} is in use by process {status.process.pid}; stop it with `headrace pipeline stop`"
            )
        if clock.monotonic() >= until:
            raise PipelineAlreadyRunning(
                f"{folder.path} is still locked by the Java process of the last run; end that process"
            )
        if not is_reported:
            display.write_line("waiting for the Java process of the last run to end")
            is_reported = True
        select.select([], [], [], STOP_POLL_SECONDS)
        descriptor = folder.lock()
    return descriptor


@contextmanager
def _logging_to(descriptor: int) -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("headrace")
    level = own.level
    with open(os.dup(descriptor), "a", encoding="utf-8") as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        own.setLevel(logging.INFO)
        try:
            yield
        finally:
            own.setLevel(level)
            root.removeHandler(handler)


@contextmanager
def _output_to(descriptor: int) -> Iterator[None]:
    """Redirect stdout and stderr. Processes started within inherit the descriptor and keep it open."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for number, _ in saved:
            os.dup2(descriptor, number)
        yield
    finally:
        for number, before in saved:
            os.dup2(before, number)
            os.close(before)
