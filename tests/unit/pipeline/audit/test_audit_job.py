"""The audit job against a broker: correct copies pass, and each planted fault is found."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.pipeline.audit.audit_support import Row, tamper, wait_for_dead_letters
from tests.unit.pipeline.in_process_run import Brokers, InProcessRun, Sent, sent

from headrace import Client
from headrace.archive.errors import ArchiveOfAnotherTopic, NotInArchive
from headrace.archive.manifest import ArchivedFile
from headrace.client.admin.topic_admin import NewTopic, TopicAdmin
from headrace.client.cluster import Cluster
from headrace.client.errors import SubscriptionNotFound
from headrace.client.produce.producer import Producer
from headrace.columns.sync_cluster import sync_cluster
from headrace.model.errors import InvalidRequest
from headrace.model.message_headers import DEDUP_ID
from headrace.pipeline.archive_job import ArchiveJob, ArchiveSettings
from headrace.pipeline.audit.archive_check import _gap_findings
from headrace.pipeline.audit.audit_job import AuditJob
from headrace.pipeline.audit.findings import AuditResult, AuditSettings
from headrace.pipeline.job import JobResult
from headrace.pipeline.replay_job import ReplayJob, ReplaySettings
from headrace.pipeline.spark_tasks import SourceInspector

COUNT = 40
Named = tuple[str, int, int | None, int | None]


def audit(run: InProcessRun, folder: Path, *checks: dict[str, Any]) -> tuple[JobResult, list[AuditResult]]:
    job = AuditJob(msgspec.convert({"checks": checks}, AuditSettings), folder)
    assert job.problems() == []
    outcome = job.once(run)
    verdicts = msgspec.json.decode((run.work / "findings.json").read_bytes(), type=list[AuditResult])
    assert outcome.ok == (not any(verdict.counts for verdict in verdicts))
    return outcome, verdicts


def named(verdict: AuditResult) -> list[Named]:
    return [(one.kind, one.partition, one.offset, one.found) for one in verdict.findings]


def archived(topic: str, run: InProcessRun, folder: Path) -> None:
    settings = {"topics": [topic], "path": "archive", "file_records": 15}
    ArchiveJob(msgspec.convert(settings, ArchiveSettings), folder).once(run)


def filled(brokers: Brokers, topic: str) -> None:
    brokers.create(topic, 2)
    brokers.produce(topic, 0, sent(COUNT))
    brokers.produce(topic, 1, sent(COUNT, 100))


# Archive


def test_a_faithful_archive_passes(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    filled(brokers, topic)
    archived(topic, run, tmp_path)
    brokers.produce(topic, 0, sent(3))
    outcome, [verdict] = audit(run, tmp_path, {"kind": "archive", "topic": topic, "archive": "archive"})
    assert outcome.ok
    assert outcome.figures == {"records": 2 * COUNT, "findings": 0}
    assert verdict.notes == [f"{topic}[0]: the last 3 offsets are not archived yet"]
    assert "nothing was lost" in outcome.summary


def alter(rows: list[Row]) -> None:
    rows[7]["value"] = b"other"


def alter_header(rows: list[Row]) -> None:
    rows[7]["headers"] = [{"key": "h", "value": b"other"}]


def lose(rows: list[Row]) -> None:
    del rows[7]


def double(rows: list[Row]) -> None:
    rows.insert(9, rows[7])


def move(rows: list[Row]) -> None:
    rows.insert(12, rows.pop(7))


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (alter, ("altered", 0, 7, 7)),
        (alter_header, ("altered", 0, 7, 7)),
        (lose, ("lost", 0, 7, None)),
        (double, ("duplicated", 0, 7, 7)),
        (move, ("reordered", 0, 7, 7)),
    ],
)
def test_changes_of_an_archive_file_are_found(
    brokers: Brokers,
    run: InProcessRun,
    topic: str,
    tmp_path: Path,
    change: Callable[[list[Row]], None],
    finding: Named,
) -> None:
    filled(brokers, topic)
    archived(topic, run, tmp_path)
    tamper(tmp_path / "archive", topic, change)
    outcome, [verdict] = audit(run, tmp_path, {"kind": "archive", "topic": topic, "archive": "archive"})
    assert not outcome.ok
    assert named(verdict) == [finding]


def test_a_replaced_file_is_found_also_without_the_topic(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    filled(brokers, topic)
    archived(topic, run, tmp_path)
    brokers.trim(topic, 0, -1)
    tamper(tmp_path / "archive", topic, alter, quietly=False)
    _, [verdict] = audit(run, tmp_path, {"kind": "archive", "topic": topic, "archive": "archive"})
    [finding] = verdict.findings
    assert (finding.kind, finding.partition, finding.offset) == ("altered", 0, 0)
    assert "checksum" in finding.detail


def test_a_duplicate_row_in_a_file_is_found_also_without_the_topic(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    filled(brokers, topic)
    archived(topic, run, tmp_path)
    brokers.trim(topic, 0, -1)
    tamper(tmp_path / "archive", topic, double)
    _, [verdict] = audit(run, tmp_path, {"kind": "archive", "topic": topic, "archive": "archive"})
    assert named(verdict) == [("duplicated", 0, 7, None)]


def test_a_missing_file_is_lost_and_the_others_are_compared(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    filled(brokers, topic)
    archived(topic, run, tmp_path)
    min((tmp_path / "archive" / topic).glob("*.parquet")).unlink()
    _, [verdict] = audit(run, tmp_path, {"kind": "archive", "topic": topic, "archive": "archive"})
    [finding] = verdict.findings
    assert (finding.kind, finding.offset, finding.count) == ("lost", 0, (finding.last or 0) + 1)
    assert "is missing" in finding.detail


def test_records_removed_before_they_were_archived_are_lost(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    filled(brokers, topic)
    archived(topic, run, tmp_path)
    brokers.produce(topic, 0, sent(10))
    brokers.trim(topic, 0, COUNT + 4)
    _, [verdict] = audit(run, tmp_path, {"kind": "archive", "topic": topic, "archive": "archive"})
    [finding] = verdict.findings
    assert (finding.kind, finding.offset, finding.last, finding.count) == ("lost", COUNT, COUNT + 3, 4)


def test_records_missing_in_the_archive_are_not_lost_while_the_topic_has_them() -> None:
    def file(first: int, last: int) -> ArchivedFile:
        return ArchivedFile("x", 0, first, last, 1, 1, "", None, None, "")

    files = [file(5, 9), file(20, 29)]
    assert [(one.offset, one.last) for one in _gap_findings("orders", files, 0)] == []
    assert [(one.offset, one.last) for one in _gap_findings("orders", files, 13)] == [(10, 12)]
    assert [(one.offset, one.last) for one in _gap_findings("orders", files, 33)] == [(10, 19), (30, 32)]


def test_archived_records_above_the_end_of_the_topic_are_lost(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    filled(brokers, topic)
    archived(topic, run, tmp_path)

    class Cut(SourceInspector):
        """Partition 0 has lost its last 10 offsets, as after an unclean election."""

        def bounds(self, topic: str, *, read_committed: bool = True) -> dict[int, tuple[int, int]]:
            return super().bounds(topic, read_committed=read_committed) | {0: (0, COUNT - 10)}

    check = {"kind": "archive", "topic": topic, "archive": "archive"}
    outcome = AuditJob(msgspec.convert({"checks": [check]}, AuditSettings), tmp_path, Cut).once(run)
    assert not outcome.ok
    [verdict] = msgspec.json.decode((run.work / "findings.json").read_bytes(), type=list[AuditResult])
    assert {(one.kind, one.partition) for one in verdict.findings} == {("lost", 0)}
    assert sum(one.count for one in verdict.findings) == 10
    assert "but the topic ends at offset 30" in verdict.findings[0].detail


def test_an_archive_of_another_topic_with_this_name_is_rejected(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    filled(brokers, topic)
    archived(topic, run, tmp_path)
    brokers.delete(topic)
    filled(brokers, topic)
    with pytest.raises(ArchiveOfAnotherTopic):
        audit(run, tmp_path, {"kind": "archive", "topic": topic, "archive": "archive"})
    with pytest.raises(NotInArchive):
        audit(run, tmp_path, {"kind": "archive", "topic": topic, "archive": "elsewhere"})


# Replay


@pytest.mark.parametrize("origin", [True, False])
def test_a_faithful_replay_passes(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path, origin: bool
) -> None:
    filled(brokers, topic)
    archived(topic, run, tmp_path)
    settings = {"topics": [topic], "to": "{topic}.again", "archive": "archive", "create": True, "chunk_records": 10}
    ReplayJob(msgspec.convert(settings | {"origin_header": origin}, ReplaySettings), tmp_path).once(run)
    check = {"kind": "replay", "topic": topic, "target": f"{topic}.again", "timestamps": True}
    outcome, verdicts = audit(run, tmp_path, check | {"archive": "archive"}, check)
    assert outcome.ok
    assert {verdict.records for verdict in verdicts} == {2 * COUNT}
    how = "their origin headers" if origin else "their content"
    assert verdicts[0].notes == [f"records were matched by {how}"]


def test_each_fault_of_a_copy_is_named(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    filled(brokers, topic)
    copies = sent(COUNT)
    moved = copies.pop(30)
    copies[20] = copies[20]._replace(value=b"other")
    copies.insert(12, copies[4])
    del copies[1]
    copies.append(moved)
    brokers.create(f"{topic}.again", 2)
    brokers.produce(f"{topic}.again", 0, copies)
    brokers.produce(f"{topic}.again", 1, [*sent(COUNT, 100), Sent(b"new", b"new")])
    _, [verdict] = audit(run, tmp_path, {"kind": "replay", "topic": topic, "target": f"{topic}.again"})
    assert set(named(verdict)) == {
        ("lost", 0, 1, None),
        ("duplicated", 0, 4, 11),
        ("altered", 0, 20, 20),
        ("reordered", 0, 30, 39),
        ("foreign", 1, None, 40),
    }


def test_records_outside_of_the_replayed_range_are_not_reported(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(COUNT))
    brokers.create(f"{topic}.again")
    brokers.produce(f"{topic}.again", 0, sent(COUNT)[5:30])
    check = {"kind": "replay", "topic": topic, "target": f"{topic}.again", "from_offset": 5}
    assert audit(run, tmp_path, check | {"to_offset": 30})[0].ok
    assert audit(run, tmp_path, check | {"to_time": str(1_700_000_000_030)})[0].ok
    assert not audit(run, tmp_path, check | {"from_time": str(1_700_000_000_006)})[0].ok


def test_a_target_with_fewer_partitions_is_rejected(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    filled(brokers, topic)
    brokers.create(f"{topic}.again", 1)
    with pytest.raises(InvalidRequest, match="the target needs at least as many"):
        audit(run, tmp_path, {"kind": "replay", "topic": topic, "target": f"{topic}.again"})


# Settled and log


def worked(address: str, topic: str, subscription: str, count: int) -> None:
    """One message is rejected, one is delivered twice, the others are acked."""
    with Client(address) as client:
        for message in client.subscribe(topic, subscription):
            value = message.value
            if value == b"v3" and message.attempt == 1:
                message.nack(reason="again")
                continue
            message.reject("no good") if value == b"v5" else message.ack()
            count -= 1
            if not count:
                break
    wait_for_dead_letters(address, topic)


def test_unsettled_messages_are_reported(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(10))
    worked(brokers.address, topic, "billing", 10)
    check = {"kind": "settled", "topic": topic, "subscription": "billing"}
    outcome, [verdict] = audit(run, tmp_path, check)
    assert outcome.ok, outcome.summary
    assert verdict.records == 10
    brokers.produce(topic, 0, sent(2))
    outcome, [verdict] = audit(run, tmp_path, check)
    [finding] = verdict.findings
    assert (finding.kind, finding.offset, finding.last, finding.count) == ("lost", 10, 11, 2)
    assert finding.detail == "is not settled for billing"


def test_messages_removed_by_retention_before_they_were_settled_are_lost(
    brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path
) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(10))
    worked(brokers.address, topic, "billing", 10)
    brokers.produce(topic, 0, sent(6))
    brokers.trim(topic, 0, 13)
    check = {"kind": "settled", "topic": topic, "subscription": "billing"}
    _, [verdict] = audit(run, tmp_path, check)
    assert [(one.kind, one.offset, one.last) for one in verdict.findings] == [("lost", 13, 15), ("lost", 10, 12)]
    with Client(brokers.address) as client:
        for message in client.subscribe(topic, "billing"):
            message.ack()
            if message.id.offset == 15:
                break
    _, [verdict] = audit(run, tmp_path, check)
    [finding] = verdict.findings
    assert (finding.kind, finding.offset, finding.last, finding.count) == ("lost", 10, 12, 3)
    assert finding.detail == "was removed by retention before it was settled for billing"


def test_an_unknown_subscription_is_rejected(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    brokers.produce(topic, 0, sent(2))
    check = {"kind": "settled", "topic": topic, "subscription": "billing"}
    with pytest.raises(SubscriptionNotFound):
        audit(run, tmp_path, check)
    worked(brokers.address, topic, "shipping", 2)
    with pytest.raises(SubscriptionNotFound):
        audit(run, tmp_path, check)


def test_gaps_of_control_records_are_not_lost(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic)
    for commits in (True, False, True):
        brokers.transact(topic, sent(3), commits=commits)
    outcome, [verdict] = audit(run, tmp_path, {"kind": "log", "topic": topic})
    assert outcome.ok
    assert (verdict.records, verdict.notes) == (9, ["3 offsets belong to control records"])


def test_gaps_of_a_dedup_window_are_not_lost(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    async def create(cluster: Cluster) -> None:
        await TopicAdmin(cluster).create(NewTopic(topic, 1, configs={"dedup.window.ms": "60000"}))
        async with Producer(cluster) as producer:
            for first in (0, 2):  # the second batch begins with a duplicate
                for at in range(first, first + 4):
                    await producer.submit(topic, b"%d" % at, partition=0, headers=[(DEDUP_ID, b"%d" % at)])
                await producer.flush()

    sync_cluster(brokers.address).call(create)
    (start, end) = SourceInspector(brokers.address).bounds(topic)[0]
    outcome, [verdict] = audit(run, tmp_path, {"kind": "log", "topic": topic})
    assert verdict.records < end - start, "there are holes"
    assert outcome.ok, outcome.summary


# The job


def test_the_plan_shows_the_amount_to_read(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    filled(brokers, topic)
    archived(topic, run, tmp_path)
    checks = [{"kind": "log", "topic": topic}, {"kind": "archive", "topic": topic, "archive": "archive"}]
    job = AuditJob(msgspec.convert({"checks": checks}, AuditSettings), tmp_path)
    sessions = run.sessions
    lines = job.plan(run)
    assert lines[0] == f"log of {topic}: 80 offsets in 2 partitions"
    assert re.fullmatch(f"archive of {topic}: 80 offsets in 2 partitions and [0-9]+ files of the archive", lines[1])
    assert run.sessions == sessions


def test_a_stop_keeps_the_results_so_far(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    filled(brokers, topic)
    run.stop_was_requested = True
    job = AuditJob(msgspec.convert({"checks": [{"kind": "log", "topic": topic}]}, AuditSettings), tmp_path)
    outcome = job.once(run)
    assert outcome.summary == "stopped after 0 of 1 checks; the audit is incomplete, run it again"
    assert not outcome.ok, "nothing was checked, so nothing was found to be well"


@pytest.mark.parametrize(
    ("checks", "problem"),
    [
        ([], "name at least one"),
        ([{"kind": "log", "topic": "a b"}], "checks[1].topic: Topic name is invalid"),
        ([{"kind": "replay", "topic": "a", "target": "a"}], "compares a with itself"),
        (
            [{"kind": "replay", "topic": "a", "target": "b", "to_time": "noon"}],
            "checks[1].to_time: 'noon' is not a",
        ),
        (
            [{"kind": "settled", "topic": "a", "subscription": "s", "grace": "soon"}],
            "checks[1].grace: 'soon' is not a",
        ),
    ],
)
def test_invalid_settings_are_reported(checks: Sequence[dict[str, Any]], problem: str, tmp_path: Path) -> None:
    [found] = AuditJob(msgspec.convert({"checks": checks}, AuditSettings), tmp_path).problems()
    assert problem in found
