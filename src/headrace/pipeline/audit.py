"""The job `audit`: proves that nothing was lost, duplicated, reordered or altered, or names exactly what was.

Each check of the settings has a verdict. The run is ok if no check found anything; all findings are in findings.json in
the work folder, the first of them in findings.txt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec

from headrace.client.errors import SubscriptionNotFound
from headrace.model.durations import parse_duration
from headrace.model.errors import UnknownTopicOrPartition
from headrace.model.names import acks_topic, dead_letter_topic
from headrace.pipeline.audit_archive import check_archive, check_replay
from headrace.pipeline.audit_checks import (
    ArchiveCheck,
    AuditSettings,
    Check,
    LogCheck,
    ReplayCheck,
    SettledCheck,
    problems_of,
)
from headrace.pipeline.audit_findings import Verdict, table_of, verdict_of, write_verdicts
from headrace.pipeline.audit_log import LogTask, check_log
from headrace.pipeline.audit_settled import Letter, SettledTask, check_settled, judge_letters, read_letters
from headrace.pipeline.audit_sources import Archived, Look, Stopped, Topic, by_spark, cut
from headrace.pipeline.job import Job, Outcome, Run
from headrace.pipeline.topic_choice import location_of


class AuditJob(Job):
    settings_type: ClassVar[type[msgspec.Struct]] = AuditSettings

    def __init__(self, settings: msgspec.Struct, folder: Path, look: Callable[[str], Look] = Look) -> None:
        assert isinstance(settings, AuditSettings)
        self.settings = settings
        self._folder = folder
        self._look = look

    def problems(self) -> Sequence[str]:
        return list(problems_of(self.settings))

    def plan(self, run: Run) -> Sequence[str]:
        look = self._look(run.brokers)
        lines = []
        for check in self.settings.checks:
            bounds = look.bounds(check.topic)
            offsets = sum(end - start for start, end in bounds.values())
            archive = getattr(check, "archive", None)
            held = look.catalogue(Archived(location_of(archive, self._folder), check.topic)) if archive else None
            files = "" if held is None else f" and {sum(1 for _ in held.all_files)} files of the archive"
            lines.append(f"{check.title}: {offsets} offsets in {len(bounds)} partitions{files}")
        return lines

    def once(self, run: Run) -> Outcome:
        look = self._look(run.brokers)
        verdicts: list[Verdict] = []
        with suppress(Stopped):
            for check in self.settings.checks:
                verdicts.append(self._verdict(run, check, look))  # noqa: PERF401, what is done stays after a stop
        path = write_verdicts(run.work, verdicts)
        if len(verdicts) < len(self.settings.checks):
            done = f"stopped after {len(verdicts)} of {len(self.settings.checks)} checks"
            return Outcome(False, f"{done}; this proves nothing, run it again")
        found = sum(count for one in verdicts for count in one.counts.values())
        many = "1 finding" if found == 1 else f"{found} findings"
        what = f"{many}: {path}" if found else "nothing was lost, duplicated, reordered or altered"
        figures: dict[str, int | float | str] = {"records": sum(one.records for one in verdicts), "findings": found}
        return Outcome(not found, "\n".join([*table_of(verdicts), what]), figures)

    def _verdict(self, run: Run, check: Check, look: Look) -> Verdict:
        match check:
            case ArchiveCheck():
                return check_archive(run, check, location_of(check.archive, self._folder), look)
            case ReplayCheck():
                location = None if check.archive is None else location_of(check.archive, self._folder)
                return check_replay(run, check, location, look)
            case SettledCheck():
                return _settled(run, check, look)
            case LogCheck():
                return _log(run, check, look)


def _settled(run: Run, check: SettledCheck, look: Look) -> Verdict:
    grace_ms = parse_duration(check.grace)
    until_ms = look.now_ms() - grace_ms if grace_ms else None
    # What comes meanwhile may be settled or not: judged is what was there before, by what was settled since.
    judged = look.bounds(check.topic, read_committed=False)
    try:
        acks = look.bounds(acks_topic(check.topic))
    except UnknownTopicOrPartition:
        raise SubscriptionNotFound(f"{check.topic} has no subscriptions") from None
    newest = look.bounds(check.topic, read_committed=False)
    letters, are_complete = _letters(run, check, look)
    topic = Topic(look.brokers, check.topic, read_committed=False)
    tasks = [
        SettledTask(topic, check.subscription, partition, *bounds, newest[partition][1], *acks[partition], until_ms)
        for partition, bounds in judged.items()
    ]
    offsets = {one.partition: frozenset(of.offset for of in letters if of.partition == one.partition) for one in tasks}
    parts = by_spark(run, partial(check_settled, look.read, offsets), tasks, check.title)
    known = [part for part in parts if part.exists]
    if not known:
        raise SubscriptionNotFound(f"there is no subscription {check.subscription!r} of {check.topic}")
    findings = [finding for part in known for finding in part.findings]
    findings += judge_letters(check.topic, known, letters, are_complete=are_complete)
    notes = [f"{check.topic}[{part.partition}] is not subscribed to" for part in parts if not part.exists]
    if expired := sum(part.expired for part in known):
        notes.append(f"{expired} messages expired before they were settled")
    if not are_complete:
        notes.append("dead letters were taken out: of those that are gone nobody can tell")
    return verdict_of(check.title, sum(part.judged for part in known), findings, notes)


def _letters(run: Run, check: SettledCheck, look: Look) -> tuple[list[Letter], bool]:
    """The dead letters of the subscription, and whether all that ever came are still there."""
    name = dead_letter_topic(check.topic)
    try:
        bounds = look.bounds(name)
    except UnknownTopicOrPartition:
        return [], True
    tasks = [
        (Topic(look.brokers, name), stretch)
        for partition, (start, end) in bounds.items()
        for stretch in cut(partition, start, end)
    ]
    read = by_spark(run, partial(read_letters, look.read, check.topic, check.subscription), tasks, "dead letters")
    count = sum(one.records for one in read)
    are_complete = all(start == 0 for start, _ in bounds.values()) and count == sum(end for _, end in bounds.values())
    return [letter for one in read for letter in one.letters], are_complete


def _log(run: Run, check: LogCheck, look: Look) -> Verdict:
    thins, dedups = look.thins(check.topic), look.dedups(check.topic)
    topic = Topic(look.brokers, check.topic, read_committed=False)
    bounds = look.bounds(check.topic, read_committed=False)
    stretches = [stretch for partition, there in bounds.items() for stretch in cut(partition, *there)]
    parts = by_spark(
        run,
        partial(check_log, look.read),
        [LogTask(topic, stretch, thins, dedups) for stretch in stretches],
        check.title,
    )
    control, thinned = sum(part.control for part in parts), sum(part.thinned for part in parts)
    notes = [f"{control} offsets are those of control records"] if control else []
    if thinned:
        notes.append(
            f"{thinned} offsets are missing, as they may be where records are compacted, removed when settled, or "
            "left out as duplicates"
        )
    findings = [finding for part in parts for finding in part.findings]
    return verdict_of(check.title, sum(part.records for part in parts), findings, notes)
