"""The job `report`: messages received, settled and left over time, as one HTML page and Parquet tables.

Spark tasks read the topics and their acks logs and return sums per window. The brokers report the current state of
subscriptions and consumer groups. Each run replaces the page atomically.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from headrace.client.admin.group_admin import GroupAdmin, PartitionLag
from headrace.client.admin.subscription_admin import SubscriptionAdmin
from headrace.client.cluster import Cluster
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.durations import InvalidDuration, parse_duration, parse_time
from headrace.model.names import acks_topic
from headrace.pipeline.job import Job, JobResult, JobRun, failed_checks
from headrace.pipeline.report.figures import (
    GroupPartitionLag,
    Report,
    SubscriptionBacklog,
    TopicFacts,
    build_report,
    write_tables,
)
from headrace.pipeline.report.page import render_report_page
from headrace.pipeline.report.tasks import AcksTask, ReportPeriod, TopicTask, read_acks, read_topic, window_for
from headrace.pipeline.spark_tasks import (
    PartitionRange,
    RunStopped,
    SourceInspector,
    TopicSource,
    run_by_spark,
    split_range,
)
from headrace.pipeline.topic_selection import location_of, topic_names, wrong_topics

_END_OF_TIME_MS = 1 << 53
_TAIL = 50  # the last offsets of a log may be control records
_FINE_POINTS = 240  # windows of the tasks: twice as many as the page shows
_AUTO = "auto"


class ReportSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[report]`. `topics` are names or patterns; without `subscriptions` all are reported. `since` and `until` are
    points in time, or durations before now: "24h"."""

    topics: list[str]
    subscriptions: list[str] = []
    since: str | None = None
    until: str | None = None
    window: str = _AUTO
    html: str = "report.html"
    parquet: str | None = None
    title: str = "Headrace report"


class ReportInspector(SourceInspector):
    """Queries of a report: topics, and the current state of subscriptions and consumer groups."""

    def topics(self, texts: Sequence[str]) -> list[str]:
        return topic_names(self.brokers, texts)

    def backlogs(self, topic: str, subscriptions: Sequence[str]) -> list[SubscriptionBacklog]:
        """The backlogs of these subscriptions of the topic, or of all."""
        sums: dict[str, Counter[str]] = {}
        for one in sync_cluster(self.brokers).call(lambda cluster: SubscriptionAdmin(cluster).describe(topics=[topic])):
            if subscriptions and one.subscription not in subscriptions:
                continue
            counts = {"backlog": one.backlog, "leased": one.leased, "waiting": one.waiting, "dying": one.dying}
            sums.setdefault(one.subscription, Counter()).update(counts)
        return [SubscriptionBacklog(name, **own) for name, own in sums.items()]

    def lags(self, topic: str) -> list[GroupPartitionLag]:
        """The lags of all consumer groups that have committed offsets in the topic."""

        async def ask(cluster: Cluster) -> list[tuple[str, PartitionLag]]:
            admin = GroupAdmin(cluster)
            groups = [listed.group for listed in await admin.list()]
            return [(group, one) for group in groups for one in await admin.positions(group)]

        found = [(group, one) for group, one in sync_cluster(self.brokers).call(ask) if one.target.topic == topic]
        return [GroupPartitionLag(group, one.target.partition, one.committed, one.end, one.lag) for group, one in found]


class ReportJob(Job[ReportSettings]):
    settings_type = ReportSettings

    def __init__(
        self, settings: ReportSettings, folder: Path, inspector: Callable[[str], ReportInspector] = ReportInspector
    ) -> None:
        self.settings = settings
        self._html = Path(location_of(settings.html, folder))
        self._parquet = None if settings.parquet is None else location_of(settings.parquet, folder)
        self._inspector = inspector

    def problems(self) -> Sequence[str]:
        settings = self.settings
        checks = {
            "since": lambda: _parse_moment(settings.since, 0, _END_OF_TIME_MS),
            "until": lambda: _parse_moment(settings.until, 0, _END_OF_TIME_MS),
            "window": self._window_ms,
        }
        found = [*wrong_topics(settings.topics), *failed_checks(checks)]
        if "://" in settings.html:
            found.append("html: must be a local path; only the tables can be written to a URI")
        return found

    def plan(self, run: JobRun) -> Sequence[str]:
        inspector = self._inspector(run.brokers)
        lines = []
        for topic in inspector.topics(self.settings.topics):
            offsets = sum(end - start for start, end in inspector.bounds(topic).values())
            names = [one.subscription for one in inspector.backlogs(topic, self.settings.subscriptions)]
            lines.append(f"{topic}: {offsets} offsets; subscriptions: {', '.join(names) or 'none'}")
        return [*lines, f"page: {self._html}", f"tables: {self._tables(run)}"]

    def once(self, run: JobRun) -> JobResult:
        inspector = self._inspector(run.brokers)
        try:
            report = self._report(run, inspector)
        except RunStopped:
            return JobResult(True, "stopped; the page is unchanged")
        write_tables(report, self._tables(run))
        self._html.parent.mkdir(parents=True, exist_ok=True)
        draft = self._html.with_name(f".{self._html.name}.new")
        draft.write_text(render_report_page(report), "utf-8")
        os.replace(draft, self._html)
        messages = sum(topic.total.messages for topic in report.topics)
        figures: dict[str, int | float | str] = {"topics": len(report.topics), "messages": messages}
        many = "1 topic" if len(report.topics) == 1 else f"{len(report.topics)} topics"
        return JobResult(True, f"{messages} messages of {many}: {self._html}", figures)

    def _report(self, run: JobRun, inspector: ReportInspector) -> Report:
        now_ms = inspector.now_ms()
        since_ms = _parse_moment(self.settings.since, now_ms, 0)
        until_ms = _parse_moment(self.settings.until, now_ms, _END_OF_TIME_MS)
        topics = inspector.topics(self.settings.topics)
        window_ms = self._window_ms() or _fine_window_ms(inspector, topics, since_ms, until_ms)
        span = ReportPeriod(window_ms, since_ms, until_ms)
        facts = [self._collect(run, inspector, topic, span) for topic in topics]
        return build_report(self.settings.title, now_ms, facts, self._window_ms())

    def _collect(self, run: JobRun, inspector: ReportInspector, topic: str, span: ReportPeriod) -> TopicFacts:
        # Directly after one another: the backlog is counted back from the events up to these bounds.
        bounds = inspector.bounds(topic, read_committed=False)
        backlogs = inspector.backlogs(topic, self.settings.subscriptions)
        names = frozenset(one.subscription for one in backlogs)
        acks_bounds = inspector.bounds(acks_topic(topic)) if names else {}
        side = TopicSource(inspector.brokers, topic, read_committed=False)
        ranges = [range_ for partition, there in bounds.items() for range_ in split_range(partition, *there)]
        tasks = [TopicTask(side, range_, span) for range_ in ranges]
        parts = run_by_spark(run, partial(read_topic, inspector.read), tasks, topic)
        acks_tasks = [
            AcksTask(
                side, PartitionRange(partition, *bounds[partition]), PartitionRange(partition, *there), names, span
            )
            for partition, there in acks_bounds.items()
        ]
        acks = run_by_spark(run, partial(read_acks, inspector.read), acks_tasks, f"acks of {topic}")
        return TopicFacts(topic, len(bounds), parts, acks, backlogs, inspector.lags(topic))

    def _window_ms(self) -> int | None:
        """None: chosen automatically."""
        if self.settings.window == _AUTO:
            return None
        found = parse_duration(self.settings.window)
        if not found:
            raise InvalidDuration("a window must be longer than 0; write for example 1m, or auto")
        return found

    def _tables(self, run: JobRun) -> str:
        return self._parquet or str(run.work / "tables")


def _parse_moment(text: str | None, now_ms: int, default: int) -> int:
    """A point in time, or a duration before now."""
    if text is None:
        return default
    try:
        return now_ms - parse_duration(text)
    except InvalidDuration:
        return parse_time(text)


def _fine_window_ms(inspector: ReportInspector, topics: Sequence[str], since_ms: int, until_ms: int) -> int:
    """The window of the tasks, estimated from the first and last records; the report uses all records for its own."""
    times = [time for topic in topics for time in _ends(inspector, topic)]
    first, last = max(min(times, default=0), since_ms), min(max(times, default=0), until_ms)
    return window_for(max(last - first, 0), _FINE_POINTS)


def _ends(inspector: ReportInspector, topic: str) -> Iterator[int]:
    side = TopicSource(inspector.brokers, topic)
    for partition, (start, end) in inspector.bounds(topic).items():
        for range_ in (
            PartitionRange(partition, start, min(start + _TAIL, end)),
            PartitionRange(partition, max(start, end - _TAIL), end),
        ):
            for batch in inspector.read(side, range_, ("timestamp",)):
                yield from (int(time.timestamp() * 1000) for time in batch.column(0).to_pylist() if time is not None)
