"""Runs a pipeline: one process, one session, one job; and sees to it that others can watch and stop it.

    SIGTERM, SIGINT, `headrace pipeline stop`     the job finishes what is under way and returns
    a second SIGINT                               now

The session is started when the job first asks for it. What Java prints goes to the log, and Java holds the lock of the
work folder with it: a run that follows a killed one waits until the other's Java is gone. A job may be killed at any
moment; how far it came is the job's own account.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.model.errors import HeadraceError
from headrace.pipeline.display import Display, display_on
from headrace.pipeline.job import Job, JobProgress, JobResult, find_job
from headrace.pipeline.settings import InvalidPipeline, Mode, Pipeline, SettingsProblem
from headrace.pipeline.spark_errors import is_of_spark, readable
from headrace.pipeline.state import PipelineAlreadyRunning, Process, State, Status, WorkFolder
from headrace.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OpenSession = Callable[[Pipeline], AbstractContextManager["SparkSession"]]

LOOK_SECONDS: Final = 0.5
"""How long a request to stop may lie before it is seen."""

KEEP_SECONDS: Final = 1.0
"""How old status.json may be."""

LEFT_BEHIND_SECONDS: Final = 20.0
"""For the Java of the last run, which has to end, or to notice that nobody is there any more."""

log = logging.getLogger(__name__)


class RunFailed(HeadraceError):
    """Spark gave up."""


def make_job(pipeline: Pipeline) -> Job:
    """The job, with settings that make sense to it."""
    try:
        job = find_job(pipeline.job)(pipeline.settings, pipeline.folder)
        problems = [SettingsProblem(pipeline.file, pipeline.job, "", what) for what in job.problems()]
    except (HeadraceError, ValueError) as error:
        problems = [SettingsProblem(pipeline.file, pipeline.job, "", str(error))]
    if problems:
        raise InvalidPipeline(problems)
    return job


@contextmanager
def open_session(pipeline: Pipeline) -> Iterator[SparkSession]:
    from headrace.spark.session import session

    spark = session(f"headrace-{pipeline.name}", master=pipeline.master, conf=pipeline.conf)
    yield spark
    spark.stop()  # after an error it ends with this process


def run_pipeline(pipeline: Pipeline, mode: Mode | None = None, *, sessions: OpenSession = open_session) -> JobResult:
    """Run it to its end, or until somebody asks for a stop."""
    job = make_job(pipeline)
    pipeline = msgspec.structs.replace(pipeline, mode=mode or pipeline.mode)
    clock = SystemClock()
    with ExitStack() as open_things:
        display = display_on(sys.stderr, pipeline.name, clock)
        open_things.callback(display.close)
        descriptor = _lock(WorkFolder(pipeline.work), display, clock)
        open_things.callback(os.close, descriptor)
        open_things.enter_context(_logging_to(descriptor))
        run = open_things.enter_context(PipelineRun(pipeline, descriptor, display, clock, sessions))
        with run.recorded():
            return run.end(_work(job, run, pipeline))


def plan_pipeline(pipeline: Pipeline, *, sessions: OpenSession = open_session) -> list[str]:
    """What a run would do now; changes nothing, and does not hinder a run."""
    job = make_job(pipeline)
    clock = SystemClock()
    with ExitStack() as open_things:
        display = display_on(sys.stderr, pipeline.name, clock)
        open_things.callback(display.close)
        descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        open_things.callback(os.close, descriptor)
        run = open_things.enter_context(PipelineRun(pipeline, descriptor, display, clock, sessions))
        with _readable_errors(""):
            return list(job.plan(run))


class PipelineRun:
    """What the job sees of the runner. Use it as a context: signals are its own meanwhile."""

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
        self._open_things = ExitStack()
        self._spark: SparkSession | None = None
        self._is_asked = False
        self._looked = self._kept = clock.monotonic()
        # What a signal handler writes to and `wait` reads from: a lock could be held by the very thread it interrupts.
        self._wakeup, self._waker = os.pipe()
        self._status = Status(
            name=pipeline.name,
            job=pipeline.job,
            mode=pipeline.mode,
            state="running",
            process=self._process,
            started_ms=clock.now_ms(),
            updated_ms=clock.now_ms(),
            file=pipeline.file,
            brokers=pipeline.brokers,
            master=pipeline.master,
        )

    def __enter__(self) -> PipelineRun:
        self._open_things.callback(os.close, self._wakeup)
        self._open_things.callback(os.close, self._waker)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._open_things.callback(signal.signal, number, signal.getsignal(number))
        self._take_signals()
        return self

    def __exit__(self, *failure: object) -> None:
        self._open_things.__exit__(*failure)  # type: ignore[arg-type]

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            self._display.say(f"starting Spark on {self._pipeline.master}")
            with _output_to(self._descriptor):
                self._spark = self._open_things.enter_context(self._sessions(self._pipeline))
            self._take_signals()  # Spark has put a handler of its own in place
        return self._spark

    def tell(self, progress: JobProgress) -> None:
        self._status = msgspec.structs.replace(self._status, progress=progress)
        self._display.progress(progress)
        if self._clock.monotonic() - self._kept >= KEEP_SECONDS:
            self._keep("stopping" if self._is_asked else "running")

    @property
    def stop_requested(self) -> bool:
        now = self._clock.monotonic()
        if not self._is_asked and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._is_asked = self._folder.is_stop_requested(self._process)
        return self._is_asked

    def wait(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while not self.stop_requested and (left := until - self._clock.monotonic()) > 0:
            select.select([self._wakeup], [], [], min(left, LOOK_SECONDS))

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """What becomes of the run is in status.json and in the log, whatever it is."""
        self._folder.clear_stop()
        self._keep("running")
        # Not the settings: among Spark's there may be keys to somebody's storage.
        log.info("run of %s by process %d on %s", self.name, self._process.pid, self._pipeline.master)
        try:
            with _readable_errors(f"; {self._folder.log} has the whole story"):
                yield
        except BaseException as error:
            broken_off = isinstance(error, KeyboardInterrupt)
            self._status = msgspec.structs.replace(
                self._status, summary="broken off" if broken_off else str(error) or type(error).__name__
            )
            self._keep("stopped" if broken_off else "failed")
            log.error("run of %s failed", self.name, exc_info=error)
            raise
        finally:
            self._folder.clear_stop()

    def end(self, outcome: JobResult) -> JobResult:
        self._status = msgspec.structs.replace(self._status, summary=outcome.summary, figures=outcome.figures)
        self._keep("failed" if not outcome.ok else "stopped" if self._is_asked else "done")
        log.info("run of %s ended: %s", self.name, outcome)
        return outcome

    def _keep(self, state: State) -> None:
        self._kept = self._clock.monotonic()
        self._status = msgspec.structs.replace(self._status, state=state, updated_ms=self._clock.now_ms())
        self._folder.keep(self._status)

    def _take_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._is_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._is_asked = True
        os.write(self._waker, b".")


def _work(job: Job, run: PipelineRun, pipeline: Pipeline) -> JobResult:
    if pipeline.mode == "continuous":
        return job.continuously(run, pipeline.trigger_seconds)
    return job.once(run)


@contextmanager
def _readable_errors(where_more: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise RunFailed(readable(error) + where_more) from error


def _lock(folder: WorkFolder, display: Display, clock: Clock) -> int:
    descriptor, until = folder.lock(), clock.monotonic() + LEFT_BEHIND_SECONDS
    is_told = False
    while descriptor is None:
        status = folder.status()
        if status is not None and status.is_active:
            raise PipelineAlreadyRunning(
                f"{folder.path} is run by process {status.process.pid}; `headrace pipeline stop` ends it in order"
            )
        if clock.monotonic() >= until:
            raise PipelineAlreadyRunning(
                f"{folder.path} is still held by what the last run has left behind; end its Java"
            )
        if not is_told:
            display.say("waiting for what the last run has left behind")
            is_told = True
        select.select([], [], [], LOOK_SECONDS)
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
    """What is started meanwhile prints there, and holds it open."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for number, _ in kept:
            os.dup2(descriptor, number)
        yield
    finally:
        for number, before in kept:
            os.dup2(before, number)
            os.close(before)
