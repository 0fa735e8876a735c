"""The settings of an audit, and its findings as JSON and text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from headrace.model.durations import parse_duration, parse_time
from headrace.model.names import check_topic_name
from headrace.pipeline.audit.record_comparison import KINDS, Difference, Kind, RecordDigest
from headrace.pipeline.job import failed_checks

LISTED_MAX = 1000
"""The listed findings of one check; the counts include all."""

_SHOWN_MAX = 20
_DIGEST_DIGITS = 12


class AuditFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """`offset` to `last`: offsets in the expected topic; `found`: the offset of the misplaced or additional copy.
    Consecutive records with the same kind of difference are one finding with a `count`."""

    kind: Kind
    topic: str
    partition: int
    offset: int | None = None
    last: int | None = None
    found: int | None = None
    count: int = 1
    detail: str = ""
    digest: str = ""

    @property
    def line(self) -> str:
        where = f"{self.topic}[{self.partition}]"
        if self.offset is not None:
            until = "" if self.last in (None, self.offset) else f"-{self.last}"
            where += f" {self.offset}{until}"
        if self.found is not None:
            where += f" at {self.found}" if self.offset is None else f" -> {self.found}"
        many = f" ({self.count} records)" if self.count != 1 else ""
        return f"{self.kind:<10}  {where}{many}  {self.detail}".rstrip()


def range_findings(
    kind: Kind, topic: str, partition: int, ranges: Iterable[tuple[int, int]], detail: str
) -> Iterator[AuditFinding]:
    """One finding for each non-empty range [first, last]."""
    for first, last in ranges:
        if first <= last:
            yield AuditFinding(kind, topic, partition, first, last, count=last - first + 1, detail=detail)


class AuditResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one check: the number of compared records, and the findings."""

    check: str
    records: int
    counts: dict[str, int]
    findings: Sequence[AuditFinding]
    notes: Sequence[str] = ()


def result_of_check(
    check: str, records: int, findings: Iterable[AuditFinding], notes: Sequence[str] = ()
) -> AuditResult:
    counts: Counter[str] = Counter()
    listed: list[AuditFinding] = []
    for finding in findings:
        counts[finding.kind] += finding.count
        if len(listed) < LISTED_MAX:
            listed.append(finding)
    return AuditResult(check, records, {kind: counts[kind] for kind in KINDS if counts[kind]}, listed, notes)


def findings_of(
    topic: str,
    partition: int,
    expected: Sequence[RecordDigest],
    found: Sequence[RecordDigest],
    differences: Iterable[Difference],
) -> list[AuditFinding]:
    """The findings in record order. Neighbours of one kind are one finding, except altered records."""
    findings: list[AuditFinding] = []
    last: Difference | None = None
    for difference in sorted(differences, key=lambda one: [-1 if i is None else i for i in (one.expected, one.found)]):
        if last is not None and _is_continuation(last, difference):
            before = findings[-1]
            offset = before.last if difference.expected is None else expected[difference.expected].offset
            findings[-1] = msgspec.structs.replace(before, last=offset, count=before.count + 1)
        else:
            findings.append(_finding(topic, partition, expected, found, difference))
        last = difference
    return findings


def write_results(folder: Path, results: Sequence[AuditResult]) -> Path:
    """Write findings.json and findings.txt; returns the path of the former."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "findings.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    (folder / "findings.txt").write_text("\n".join(results_table(results)) + "\n")
    return path


def results_table(results: Sequence[AuditResult]) -> list[str]:
    lines: list[str] = []
    for result in results:
        what = ", ".join(f"{count} {kind}" for kind, count in result.counts.items()) or "ok"
        lines.append(f"{result.check}: {what} ({result.records} records)")
        lines += [f"  {note}" for note in result.notes]
        lines += [f"  {finding.line}" for finding in result.findings[:_SHOWN_MAX]]
        if len(result.findings) > _SHOWN_MAX:
            lines.append("  ... and more, which findings.json lists")
    return lines


def _finding(
    topic: str, partition: int, expected: Sequence[RecordDigest], found: Sequence[RecordDigest], difference: Difference
) -> AuditFinding:
    before = None if difference.expected is None else expected[difference.expected]
    after = None if difference.found is None else found[difference.found]
    shown = after or before
    assert shown is not None
    fields = ", ".join(difference.fields)
    detail = {
        "lost": "is missing",
        "duplicated": f"occurs again{f', with another {fields}' if fields else ''}",
        "reordered": "is out of order",
        "altered": f"{fields} differ{'' if len(difference.fields) > 1 else 's'}",
        "foreign": "does not come from the source",
    }[difference.kind]
    return AuditFinding(
        difference.kind,
        topic,
        partition,
        offset=None if before is None else before.offset,
        found=None if after is None else after.offset,
        detail=detail,
        digest=(shown.value or shown.key or b"").hex()[:_DIGEST_DIGITS],
    )


def _is_continuation(last: Difference, difference: Difference) -> bool:
    """Whether a difference extends the previous one: the next record was lost, duplicated or moved, too."""
    if last.kind != difference.kind or difference.kind == "altered" or last.fields or difference.fields:
        return False
    steps = {
        (None if difference.expected is None else difference.expected - (last.expected or 0)),
        (None if difference.found is None else difference.found - (last.found or 0)),
    }
    return steps <= {None, 1}


class _Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    topic: str


class ArchiveCheck(_Check, frozen=True, tag="archive"):
    """A topic against its archive, and the archive against its manifest."""

    archive: str

    @property
    def title(self) -> str:
        return f"archive of {self.topic}"


class ReplayCheck(_Check, frozen=True, tag="replay"):
    """A topic, or its archive, against another topic that should have the same records, or those of [from, to).
    `match`: identify records by their origin headers or by content."""

    target: str
    archive: str | None = None
    match: Literal["auto", "origin", "content"] = "auto"
    timestamps: bool = False
    from_time: str | None = None
    to_time: str | None = None
    from_offset: int = 0
    to_offset: int | None = None

    @property
    def title(self) -> str:
        return f"replay of {self.topic} to {self.target}"


class SettledCheck(_Check, frozen=True, tag="settled"):
    """A subscription against its topic; messages younger than `grace` are not checked."""

    subscription: str
    grace: str = "0s"

    @property
    def title(self) -> str:
        return f"{self.subscription} of {self.topic}"


class LogCheck(_Check, frozen=True, tag="log"):
    """The order and completeness of one topic."""

    @property
    def title(self) -> str:
        return f"log of {self.topic}"


Check: TypeAlias = ArchiveCheck | ReplayCheck | SettledCheck | LogCheck


class AuditSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    checks: list[Check]


def problems_of(settings: AuditSettings) -> Iterator[str]:
    if not settings.checks:
        yield "checks: name at least one, such as {kind = 'log', topic = 'orders'}"
    for number, check in enumerate(settings.checks, 1):
        for problem in _problems_of_check(check):
            yield f"checks[{number}].{problem}"


def _problems_of_check(check: Check) -> Iterator[str]:
    checks: dict[str, Callable[[], object]] = {"topic": lambda: check_topic_name(check.topic)}
    if isinstance(check, ReplayCheck):
        replay = check
        checks["target"] = lambda: check_topic_name(replay.target)
        checks["from_time"] = lambda: parse_time(replay.from_time or "0")
        checks["to_time"] = lambda: parse_time(replay.to_time or "0")
        if check.target == check.topic and check.archive is None:
            yield f"target: compares {check.topic} with itself; set another topic, or the archive"
    if isinstance(check, SettledCheck):
        settled = check
        checks["grace"] = lambda: parse_duration(settled.grace)
    yield from failed_checks(checks)
