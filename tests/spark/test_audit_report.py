"""Archive, replay, audit and report in a real Spark, with pickling and workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq
from tests.integration.process import BrokerProcess
from tests.unit.pipeline.audit.audit_support import Row, tamper, wait_for_dead_letters
from tests.unit.pipeline.in_process_run import Brokers, InProcessRun, Sent, sent
from tests.unit.pipeline.report.report_page_reader import PageReader

from headrace import Client
from headrace.pipeline.archive_job import ArchiveJob, ArchiveSettings
from headrace.pipeline.audit.audit_job import AuditJob
from headrace.pipeline.audit.findings import AuditResult, AuditSettings
from headrace.pipeline.replay_job import ReplayJob, ReplaySettings
from headrace.pipeline.report.report_job import ReportJob, ReportSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 2000


class SparkRun(InProcessRun):
    def __init__(self, brokers: str, work: Path, session: SparkSession, name: str) -> None:
        super().__init__(brokers, work)
        self.name = name
        self._spark = session

    @property
    def spark(self) -> Any:
        return self._spark


def audit(run: SparkRun, folder: Path, **check: Any) -> tuple[bool, AuditResult]:
    outcome = AuditJob(msgspec.convert({"checks": [check]}, AuditSettings), folder).once(run)
    [verdict] = msgspec.json.decode((run.work / "findings.json").read_bytes(), type=list[AuditResult])
    return outcome.ok, verdict


def named(verdict: AuditResult) -> set[tuple[str, int, int | None]]:
    return {(one.kind, one.partition, one.offset) for one in verdict.findings}


def test_an_archive_and_its_replay_pass_and_each_planted_fault_is_found(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    brokers, run = Brokers(broker.address), SparkRun(broker.address, tmp_path / "work", spark, topic)
    brokers.create(topic, 2)
    for partition in (0, 1):
        brokers.produce(topic, partition, sent(COUNT, partition * COUNT))
    settings = {"topics": [topic], "path": "archive", "file_records": 700}
    ArchiveJob(msgspec.convert(settings, ArchiveSettings), tmp_path).once(run)
    replay = {"topics": [topic], "to": "{topic}.again", "archive": "archive", "create": True, "origin_header": True}
    ReplayJob(msgspec.convert(replay, ReplaySettings), tmp_path).once(run)

    stored = {"kind": "archive", "topic": topic, "archive": "archive"}
    replayed = {"kind": "replay", "topic": topic, "archive": "archive", "target": f"{topic}.again"}
    for check in (stored, replayed):
        ok, verdict = audit(run, tmp_path, **check)
        assert ok, verdict
        assert verdict.records == 2 * COUNT

    # The copy with planted faults has no origins: it is matched by content.
    copies = sent(COUNT)
    moved = copies.pop(1500)
    copies[900] = copies[900]._replace(headers=[("h", b"other")])
    copies.insert(600, copies[4])
    del copies[100]
    brokers.create(f"{topic}.faulty", 2)
    brokers.produce(f"{topic}.faulty", 0, [*copies, moved])
    brokers.produce(f"{topic}.faulty", 1, sent(COUNT, COUNT))
    ok, verdict = audit(run, tmp_path, **replayed | {"target": f"{topic}.faulty"})
    assert not ok
    assert named(verdict) == {("lost", 0, 100), ("duplicated", 0, 4), ("altered", 0, 900), ("reordered", 0, 1500)}

    def change(rows: list[Row]) -> None:
        rows[7]["key"] = b"other"
        del rows[3]

    tamper(tmp_path / "archive", topic, change)
    ok, verdict = audit(run, tmp_path, **stored)
    assert named(verdict) == {("lost", 0, 3), ("altered", 0, 7)}
    # The replay was made before, so it has the records that the archive should have.
    ok, verdict = audit(run, tmp_path, **replayed)
    assert named(verdict) == {("foreign", 0, None), ("altered", 0, 7)}


def test_a_consumed_queue_passes_and_is_reported(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    brokers, run = Brokers(broker.address), SparkRun(broker.address, tmp_path / "work", spark, topic)
    brokers.create(topic)
    brokers.produce(topic, 0, [Sent(b"k%d" % (n % 3), b"v%d" % n) for n in range(30)])
    with Client(broker.address) as client:
        left = 30
        for message in client.subscribe(topic, "billing"):
            number = int((message.value or b"")[1:])
            if number % 10 == 1 and message.attempt == 1:
                message.nack(reason="again")
                continue
            message.reject("no good") if number % 10 == 0 else message.ack()
            left -= 1
            if not left:
                break
    wait_for_dead_letters(broker.address, topic)
    ok, verdict = audit(run, tmp_path, kind="settled", topic=topic, subscription="billing")
    assert ok, verdict
    assert verdict.records == 30

    ReportJob(msgspec.convert({"topics": [topic]}, ReportSettings), tmp_path).once(run)
    page = PageReader((tmp_path / "report.html").read_text("utf-8"))
    tiles = page.tiles["Subscription billing"]
    assert (tiles["acked"], tiles["dead letters"], tiles["backlog now"]) == ("27", "3", "0")
    assert page.tiles[topic]["messages"] == "30"
    assert pq.read_table(run.work / "tables" / "keys.parquet").column("messages").to_pylist() == [10, 10, 10]
