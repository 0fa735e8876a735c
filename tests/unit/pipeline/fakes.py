"""Fake jobs and sessions for tests of the runner, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec

from headrace.pipeline.job import Job, JobProgress, JobResult, JobRun
from headrace.pipeline.settings import Pipeline


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int
    note: str = ""


class Lines(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="lines"):
    count: int


class Pages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="pages"):
    title: str = ""


class FakeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topics: list[str]
    since: str | None = None
    limit: int = 10
    keep: bool = False
    parts: dict[str, Part] = {}
    options: dict[str, str] = {}
    shown: list[Lines | Pages] = []


class FakeJob(Job[FakeSettings]):
    """Runs the function that the test puts into `work`."""

    settings_type = FakeSettings
    work: Callable[[JobRun], JobResult] = staticmethod(lambda run: JobResult(True, "all done", {"records": 3}))
    wrong: Sequence[str] = ()

    def __init__(self, settings: FakeSettings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder

    def problems(self) -> Sequence[str]:
        return self.wrong

    def plan(self, run: JobRun) -> Sequence[str]:
        return [f"would read {topic} of {run.brokers}" for topic in self.settings.topics]

    def once(self, run: JobRun) -> JobResult:
        run.report_progress(JobProgress(1, 4))
        return type(self).work(run)


class FakeSpark:
    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0

    def open(self, pipeline: Pipeline) -> AbstractContextManager[Any]:
        @contextmanager
        def opened() -> Iterator[Any]:
            self.opened += 1
            yield cast("Any", self)
            self.closed += 1

        return opened()


TOML = """
[pipeline]
name = "orders"
job = "fake"
brokers = "10.0.0.1:9092"

[fake]
topics = ["orders"]
"""
