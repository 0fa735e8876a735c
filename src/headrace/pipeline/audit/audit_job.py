"""The job `audit`: verify that nothing was lost, duplicated, reordered or altered, or list what was.

Each check of the settings has a result. The run succeeds if no check has findings. findings.json in the work folder has
the findings, findings.txt the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.client.errors import SubscriptionNotFound
from headrace.model.durations import parse_duration
from headrace.model.errors import UnknownTopicOrPartition
from headrace.model.names import acks_topic, dead_letter_topic
from headrace.pipeline.audit.archive_check import check_archive, check_replay
from headrace.pipeline.audit.findings import (
    ArchiveCheck,
    AuditResult,
    AuditSettings,
    Check,
    LogCheck,
    ReplayCheck,
    SettledCheck,
    problems_of,
    result_of_check,
    results_table,
    write_results,
)
from headrace.pipeline.audit.log_check import LogTask, check_log
from headrace.pipeline.audit.settled_check import (
    AuditedDeadLetter,
    SettledTask,
    check_settled,
    dead_letter_findings,
    read_dead_letters,
)
from headrace.pipeline.job import Job, JobResult, JobRun
from headrace.pipeline.spark_tasks import (
    ArchiveSource,
    RunStopped,
    SourceInspector,
    TopicSource,
    run_by_spark,
    split_range,
)
from headrace.pipeline.topic_selection import location_of


class AuditJob(Job[AuditSettings]):
    settings_type = AuditSettings

    def __init__(
        self, settings: AuditSettings, folder: Path, inspector: Callable[[str], SourceInspector] = SourceInspector
    ) -> None:
        self.settings = settings
        self._folder = folder
        self._inspector = inspector

    def problems(self) -> Sequence[str]:
        return list(problems_of(self.settings))

    def plan(self, run: JobRun) -> Sequence[str]:
        inspector = self._inspector(run.brokers)
        lines = []
        for check in self.settings.checks:
            bounds = inspector.bounds(check.topic)
            offsets = sum(end - start for start, end in bounds.values())
            files = ""
            if archive := getattr(check, "archive", None):
                held = inspector.catalogue(ArchiveSource(location_of(archive, self._folder), check.topic))
                files = f" and {sum(1 for _ in held.all_files)} files of the archive"
            lines.append(f"{check.title}: {offsets} offsets in {len(bounds)} partitions{files}")
        return lines

    def once(self, run: JobRun) -> JobResult:
        inspector = self._inspector(run.brokers)
        results: list[AuditResult] = []
        with suppress(RunStopped):
            for check in self.settings.checks:
                results.append(self._run_check(run, check, inspector))  # noqa: PERF401 - keeps the results before a stop
        path = write_results(run.work, results)
        if len(results) < len(self.settings.checks):
            done = f"stopped after {len(results)} of {len(self.settings.checks)} checks"
            return JobResult(False, f"{done}; the audit is incomplete, run it again")
        found = sum(count for one in results for count in one.counts.values())
        many = "1 finding" if found == 1 else f"{found} findings"
        what = f"{many}: {path}" if found else "nothing was lost, duplicated, reordered or altered"
        figures: dict[str, int | float | str] = {"records": sum(one.records for one in results), "findings": found}
        return JobResult(not found, "\n".join([*results_table(results), what]), figures)

    def _run_check(self, run: JobRun, check: Check, inspector: SourceInspector) -> AuditResult:
        match check:
            case ArchiveCheck():
                return check_archive(run, check, location_of(check.archive, self._folder), inspector)
            case ReplayCheck():
                location = None if check.archive is None else location_of(check.archive, self._folder)
                return check_replay(run, check, location, inspector)
            case SettledCheck():
                return _settled(run, check, inspector)
            case LogCheck():
                return _log(run, check, inspector)


def _settled(run: JobRun, check: SettledCheck, inspector: SourceInspector) -> AuditResult:
    grace_ms = parse_duration(check.grace)
    until_ms = inspector.now_ms() - grace_ms if grace_ms else None
    # Messages that arrive during the check may or may not be settled: only earlier ones are checked, against a later
    # acks log.
    judged = inspector.bounds(check.topic, read_committed=False)
    try:
        acks = inspector.bounds(acks_topic(check.topic))
    except UnknownTopicOrPartition:
        raise SubscriptionNotFound(f"{check.topic} has no subscriptions") from None
    newest = inspector.bounds(check.topic, read_committed=False)
    dead_letters, are_complete = _dead_letters_of(run, check, inspector)
    topic = TopicSource(inspector.brokers, check.topic, read_committed=False)
    tasks = [
        SettledTask(topic, check.subscription, partition, *bounds, newest[partition][1], *acks[partition], until_ms)
        for partition, bounds in judged.items()
    ]
    offsets = {
        one.partition: frozenset(letter.offset for letter in dead_letters if letter.partition == one.partition)
        for one in tasks
    }
    parts = run_by_spark(run, partial(check_settled, inspector.read, offsets), tasks, check.title)
    known = [part for part in parts if part.exists]
    if not known:
        raise SubscriptionNotFound(f"there is no subscription {check.subscription!r} of {check.topic}")
    findings = [finding for part in known for finding in part.findings]
    findings += dead_letter_findings(check.topic, known, dead_letters, are_complete=are_complete)
    notes = [f"{check.topic}[{part.partition}] is not subscribed to" for part in parts if not part.exists]
    if expired := sum(part.expired for part in known):
        notes.append(f"{expired} messages expired before they were settled")
    if not are_complete:
        notes.append("dead letters were removed from the topic, so missing ones are not reported")
    return result_of_check(check.title, sum(part.judged for part in known), findings, notes)


def _dead_letters_of(
    run: JobRun, check: SettledCheck, inspector: SourceInspector
) -> tuple[list[AuditedDeadLetter], bool]:
    """The dead letters of the subscription, and whether none was removed from the topic."""
    name = dead_letter_topic(check.topic)
    try:
        bounds = inspector.bounds(name)
    except UnknownTopicOrPartition:
        return [], True
    tasks = [
        (TopicSource(inspector.brokers, name), range_)
        for partition, (start, end) in bounds.items()
        for range_ in split_range(partition, start, end)
    ]
    read = run_by_spark(
        run, partial(read_dead_letters, inspector.read, check.topic, check.subscription), tasks, "dead letters"
    )
    count = sum(one.records for one in read)
    are_complete = all(start == 0 for start, _ in bounds.values()) and count == sum(end for _, end in bounds.values())
    return [letter for one in read for letter in one.letters], are_complete


def _log(run: JobRun, check: LogCheck, inspector: SourceInspector) -> AuditResult:
    drops_records, drops_duplicates = inspector.drops_records(check.topic), inspector.drops_duplicates(check.topic)
    topic = TopicSource(inspector.brokers, check.topic, read_committed=False)
    bounds = inspector.bounds(check.topic, read_committed=False)
    ranges = [range_ for partition, there in bounds.items() for range_ in split_range(partition, *there)]
    tasks = [LogTask(topic, range_, drops_records, drops_duplicates) for range_ in ranges]
    parts = run_by_spark(run, partial(check_log, inspector.read), tasks, check.title)
    control, thinned = sum(part.control for part in parts), sum(part.thinned for part in parts)
    notes = [f"{control} offsets belong to control records"] if control else []
    if thinned:
        notes.append(
            f"{thinned} offsets are missing, as expected where records are compacted, removed when settled, or dropped "
            "as duplicates"
        )
    findings = [finding for part in parts for finding in part.findings]
    return result_of_check(check.title, sum(part.records for part in parts), findings, notes)
