"""Was every message of a topic settled for a subscription, and only once? By the acks log, against the topic.

What is in the topic and not settled is lost to the subscription, and so is what retention removed before it was
settled; what was worked on twice is duplicated, what was settled and never there is foreign. A message that died must
lie in the dead letters as it was, unless somebody has taken it from there: dead letters that are settled are removed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from headrace.model.message_headers import OF_THE_DEATH, death_of
from headrace.model.names import DEAD_LETTER_SUFFIX, acks_topic
from headrace.pipeline.audit_acks import Ledger, runs
from headrace.pipeline.audit_compare import Entry, Kind, differing_fields
from headrace.pipeline.audit_digest import Reading, entries
from headrace.pipeline.audit_findings import LISTED_MAX, Finding
from headrace.pipeline.audit_sources import Read, Stretch, Topic
from headrace.wire.acks_records import decode_event

_CONTENT = Reading("offset", timestamps=False)


class SettledTask(msgspec.Struct, frozen=True):
    """`end`: messages before it are judged; `newest`: where the topic ended after the acks log had been looked at.
    Messages that are younger than `until_ms` are not judged."""

    topic: Topic
    subscription: str
    partition: int
    start: int
    end: int
    newest: int
    acks_start: int
    acks_end: int
    until_ms: int | None = None


class Death(msgspec.Struct, frozen=True):
    """A message that died so often by the acks log; `entry` is the message, if it is still there."""

    offset: int
    count: int
    entry: Entry | None


class SettledPart(msgspec.Struct, frozen=True):
    """Of one partition. `worked` tells of offsets that have a dead letter and did not die; `exists`: the log knows the
    subscription; `expired`: how many messages outlived their own time. Events of older brokers do not tell these from
    messages that retention removed."""

    partition: int
    judged: int
    findings: Sequence[Finding]
    deaths: Sequence[Death]
    worked: Mapping[int, str]
    exists: bool
    expired: int = 0


class Letter(msgspec.Struct, frozen=True):
    """A dead letter, and of which message it is the copy; `entry` is without what the death added."""

    partition: int
    offset: int
    found: int
    entry: Entry


class Letters(msgspec.Struct, frozen=True):
    """Of a stretch: those of the subscription, and how many there are of all."""

    letters: Sequence[Letter]
    records: int


def check_settled(read: Read, letters: Mapping[int, frozenset[int]], task: SettledTask) -> SettledPart:
    """`letters`: the offsets of messages that have a dead letter, by partition."""
    ledger = ledger_of(read, task)
    if not ledger.exists:
        return SettledPart(task.partition, 0, (), (), {}, False)
    judged = _present(read, task, max(task.start, ledger.floor))
    findings = capped(_findings(task, ledger, judged))
    deaths = list(_deaths(read, task, ledger))
    own_letters = letters.get(task.partition, frozenset())
    worked = {offset: how for offset in own_letters if (how := _did_not_die(ledger, offset)) is not None}
    return SettledPart(task.partition, len(judged), findings, deaths, worked, True, len(ledger.expired))


def ledger_of(read: Read, task: SettledTask) -> Ledger:
    ledger = Ledger()
    acks = Topic(task.topic.brokers, acks_topic(task.topic.name))
    stretch = Stretch(task.partition, task.acks_start, task.acks_end)
    own = task.subscription.encode()
    for batch in read(acks, stretch, ("key", "value")):
        mine = batch.filter(pc.equal(batch.column("key"), pa.scalar(own, pa.binary())))
        for value in mine.column("value").to_pylist():
            _, event = decode_event(own, value)
            ledger.take(event)
    return ledger


def read_letters(read: Read, topic: str, subscription: str, task: tuple[Topic, Stretch]) -> Letters:
    """Those of one subscription in a stretch of the dead letters."""
    found: list[Letter] = []
    records = 0
    for batch in read(*task, _CONTENT.columns):
        records += len(batch)
        for row, told in enumerate(batch.column("headers").to_pylist()):
            death = death_of([(one["key"], one["value"]) for one in told or ()])
            if death is not None and (death.topic, death.subscription) == (topic, subscription):
                [entry] = entries(batch.slice(row, 1), _CONTENT)
                found.append(Letter(death.partition, death.offset, entry.offset, _as_it_was(entry)))
    return Letters(found, records)


def judge_letters(
    topic: str, parts: Iterable[SettledPart], letters: Iterable[Letter], *, are_complete: bool
) -> Iterator[Finding]:
    """What died against what lies in the dead letters; unless all that ever came there is still there, a letter that is
    missing may have been taken out."""
    held: dict[tuple[int, int], list[Letter]] = defaultdict(list)
    for letter in letters:
        held[letter.partition, letter.offset].append(letter)
    dead_letters = topic + DEAD_LETTER_SUFFIX
    for part in parts:
        for death in part.deaths:
            copies = held.get((part.partition, death.offset), [])
            if not copies and are_complete and death.entry is not None and not topic.endswith(DEAD_LETTER_SUFFIX):
                detail = f"died, and is not in {dead_letters}"
                yield Finding("lost", topic, part.partition, death.offset, detail=detail)
            for copy in copies[death.count :]:
                detail = f"is more than once in {dead_letters}"
                yield Finding("duplicated", topic, part.partition, death.offset, found=copy.found, detail=detail)
            for copy in copies[: death.count]:
                if death.entry is not None and (fields := differing_fields(death.entry, copy.entry)):
                    detail = f"{', '.join(fields)} differ in {dead_letters}"
                    yield Finding("altered", topic, part.partition, death.offset, found=copy.found, detail=detail)
        for offset, how in part.worked.items():
            for copy in held[part.partition, offset]:
                detail = f"is in {dead_letters}, though it was settled by {how}"
                yield Finding("foreign", topic, part.partition, offset, found=copy.found, detail=detail)


def capped(findings: Iterable[Finding]) -> list[Finding]:
    """As many as are listed, and of each kind one more that stands for the rest."""
    kept: list[Finding] = []
    more: Counter[tuple[Kind, str, int]] = Counter()
    for finding in findings:
        if len(kept) < LISTED_MAX:
            kept.append(finding)
        else:
            more[finding.kind, finding.topic, finding.partition] += finding.count
    rest = [
        Finding(kind, topic, partition, count=count, detail="and more of these")
        for (kind, topic, partition), count in more.items()
    ]
    return kept + rest


def _present(read: Read, task: SettledTask, start: int) -> BitMap64:
    """The messages that are judged."""
    found = BitMap64()
    if start >= task.end:
        return found
    columns = ("offset",) if task.until_ms is None else ("offset", "timestamp")
    for batch in read(task.topic, Stretch(task.partition, start, task.end), columns):
        if task.until_ms is not None:
            times = pc.cast(batch.column("timestamp"), pa.int64())
            batch = batch.filter(pc.less(times, task.until_ms * 1000))  # noqa: PLW2901
        found |= BitMap64(batch.column("offset").to_pylist())
    return found


def _findings(task: SettledTask, ledger: Ledger, judged: BitMap64) -> Iterator[Finding]:
    where = task.topic.name, task.partition
    waiting = judged - ledger.settled
    attempts = {
        offset: failed.attempts
        for failed in ledger.failures
        if waiting.range_cardinality(failed.first, failed.last + 1)
        for offset in range(failed.first, failed.last + 1)
    }
    for first, last in runs(waiting):
        failed = max((attempts.get(offset, 0) for offset in range(first, last + 1)), default=0) if attempts else 0
        detail = f"is not settled for {task.subscription}{f'; deliveries that failed: {failed}' if failed else ''}"
        yield Finding("lost", *where, first, last, count=last - first + 1, detail=detail)
    for first, last in runs(_removed(task, ledger)):
        detail = f"was removed by retention before it was settled for {task.subscription}"
        yield Finding("lost", *where, first, last, count=last - first + 1, detail=detail)
    for first, last in runs(ledger.twice):
        detail = f"was settled more than once for {task.subscription}"
        yield Finding("duplicated", *where, first, last, count=last - first + 1, detail=detail)
    for first, last in runs(ledger.settled, task.newest):
        detail = f"was settled for {task.subscription}, and the topic ends at {task.newest}"
        yield Finding("foreign", *where, first, last, count=last - first + 1, detail=detail)


def _removed(task: SettledTask, ledger: Ledger) -> BitMap64:
    """Offsets that the subscription had not settled when they left the topic. Whether one of them was a control record
    cannot be told any more."""
    found = BitMap64()
    found.add_range(ledger.floor, max(ledger.floor, task.start))
    return found - (ledger.settled - ledger.removed)


def _deaths(read: Read, task: SettledTask, ledger: Ledger) -> Iterator[Death]:
    dead = sorted(offset for offset in ledger.deaths if offset < task.end)
    there: dict[int, Entry] = {}
    present = [offset for offset in dead if offset >= task.start]
    if present:
        stretch = Stretch(task.partition, present[0], present[-1] + 1)
        wanted = pa.array(present, pa.int64())
        for batch in read(task.topic, stretch, _CONTENT.columns):
            some = batch.filter(pc.is_in(batch.column("offset"), wanted))
            there |= {entry.offset: _as_it_was(entry) for entry in entries(some, _CONTENT)}
    for offset in dead:
        yield Death(offset, ledger.deaths[offset], there.get(offset))


def _did_not_die(ledger: Ledger, offset: int) -> str | None:
    return None if ledger.deaths[offset] else ledger.worked_otherwise(offset)


def _as_it_was(entry: Entry) -> Entry:
    """Without the headers of its death, among which is the dedup id."""
    headers = tuple((name, value) for name, value in entry.headers if name not in OF_THE_DEATH)
    return msgspec.structs.replace(entry, headers=headers)
