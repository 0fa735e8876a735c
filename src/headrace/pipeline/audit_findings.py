"""What an audit found: typed findings, counted without end and listed up to a limit; as JSON and as a short table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from headrace.pipeline.audit_compare import KINDS, Difference, Entry, Kind

LISTED_MAX = 1000
"""Findings of one check that are listed; the counts have them all."""

_SHOWN_MAX = 20
_DIGEST_DIGITS = 12


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """`offset` to `last` are offsets of the topic that was expected to have it, `found` is where it was found instead
    or in excess. `count` records in a row that have the same story are one finding."""

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


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one check: how much was looked at, and what was found."""

    check: str
    records: int
    counts: dict[str, int]
    findings: Sequence[Finding]
    notes: Sequence[str] = ()

    @property
    def is_clean(self) -> bool:
        return not self.counts


def verdict_of(check: str, records: int, findings: Iterable[Finding], notes: Sequence[str] = ()) -> Verdict:
    counts: Counter[str] = Counter()
    listed: list[Finding] = []
    for finding in findings:
        counts[finding.kind] += finding.count
        if len(listed) < LISTED_MAX:
            listed.append(finding)
    return Verdict(check, records, {kind: counts[kind] for kind in KINDS if counts[kind]}, listed, notes)


def findings_of(
    topic: str, partition: int, expected: Sequence[Entry], found: Sequence[Entry], differences: Iterable[Difference]
) -> list[Finding]:
    """In the order of the records; neighbours of one kind are one finding, but for those that were altered."""
    findings: list[Finding] = []
    last: Difference | None = None
    for one in sorted(differences, key=_place):
        if last is not None and _goes_on(last, one):
            before = findings[-1]
            offset = before.last if one.expected is None else expected[one.expected].offset
            findings[-1] = msgspec.structs.replace(before, last=offset, count=before.count + 1)
        else:
            findings.append(_finding(topic, partition, expected, found, one))
        last = one
    return findings


def write_verdicts(folder: Path, verdicts: Sequence[Verdict]) -> Path:
    """Writes findings.json and findings.txt; where the former is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "findings.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(verdicts), indent=2) + b"\n")
    (folder / "findings.txt").write_text("\n".join(table_of(verdicts)) + "\n")
    return path


def table_of(verdicts: Sequence[Verdict]) -> list[str]:
    lines: list[str] = []
    for verdict in verdicts:
        what = ", ".join(f"{count} {kind}" for kind, count in verdict.counts.items()) or "ok"
        lines.append(f"{verdict.check}: {what} ({verdict.records} records)")
        lines += [f"  {note}" for note in verdict.notes]
        lines += [f"  {finding.line}" for finding in verdict.findings[:_SHOWN_MAX]]
        if len(verdict.findings) > _SHOWN_MAX:
            lines.append("  ... and more, which findings.json lists")
    return lines


def _finding(topic: str, partition: int, expected: Sequence[Entry], found: Sequence[Entry], one: Difference) -> Finding:
    before = None if one.expected is None else expected[one.expected]
    after = None if one.found is None else found[one.found]
    shown = after or before
    assert shown is not None
    fields = ", ".join(one.fields)
    detail = {
        "lost": "is not there",
        "duplicated": f"is there again{f', with another {fields}' if fields else ''}",
        "reordered": "is not in its place",
        "altered": f"{fields} differ{'' if len(one.fields) > 1 else 's'}",
        "foreign": "is not of the source",
    }[one.kind]
    return Finding(
        one.kind,
        topic,
        partition,
        offset=None if before is None else before.offset,
        found=None if after is None else after.offset,
        detail=detail,
        digest=(shown.value or shown.key or b"").hex()[:_DIGEST_DIGITS],
    )


def _place(one: Difference) -> tuple[int, int]:
    return (-1 if one.expected is None else one.expected), (-1 if one.found is None else one.found)


def _goes_on(last: Difference, one: Difference) -> bool:
    """What was lost, doubled or moved in one piece is one finding."""
    if last.kind != one.kind or one.kind == "altered" or last.fields or one.fields:
        return False
    steps = {
        (None if one.expected is None else one.expected - (last.expected or 0)),
        (None if one.found is None else one.found - (last.found or 0)),
    }
    return steps <= {None, 1}
