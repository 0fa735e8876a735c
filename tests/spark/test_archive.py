"""Archive and replay with real Spark tasks; any Parquet reader reads the archive."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.integration.process import BrokerProcess
from tests.unit.pipeline.in_process_run import Brokers, InProcessRun, sent

from headrace.archive import Archive
from headrace.client.metadata import TopicPartition
from headrace.pipeline.archive_job import ArchiveJob, ArchiveSettings
from headrace.pipeline.replay_job import ReplayJob, ReplaySettings
from headrace.pipeline.replay_task import ReplayAccount

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def brokers(broker: BrokerProcess) -> Brokers:
    return Brokers(broker.address)


@pytest.fixture
def run(spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path) -> InProcessRun:
    found = InProcessRun(broker.address, tmp_path / "work")
    found.name = topic
    found.session = spark  # type: ignore[assignment]
    return found


def archive_job(topic: str, folder: Path, **settings: Any) -> ArchiveJob:
    tables = {"topics": [topic], "path": "archive", "file_records": 300} | settings
    return ArchiveJob(msgspec.convert(tables, ArchiveSettings), folder)


def replay_job(topic: str, folder: Path, **settings: Any) -> ReplayJob:
    tables = {"topics": [topic], "to": "{topic}.again", "archive": "archive", "create": True, "chunk_records": 200}
    return ReplayJob(msgspec.convert(tables | settings, ReplaySettings), folder)


def test_archived_and_deleted_records_are_replayed_byte_for_byte_through_failed_runs(
    spark: SparkSession,
    brokers: Brokers,
    run: InProcessRun,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers.create(topic, 2)
    brokers.produce(topic, 0, sent(1000))
    brokers.produce(topic, 1, sent(500, 5000))
    tables = []

    with monkeypatch.context() as patch:
        patch.setattr("headrace.archive.catalogue.ArchiveCatalogue._move_to_final_names", _dying(3))
        with pytest.raises(KeyboardInterrupt):
            archive_job(topic, tmp_path).once(run)
    assert archive_job(topic, tmp_path).once(run).ok
    assert brokers.committed(f"archive-{topic}") == {TopicPartition(topic, 0): 1000, TopicPartition(topic, 1): 500}

    catalogue = Archive(str(tmp_path / "archive")).open(topic)
    for partition in (0, 1):
        tables.append(pa.Table.from_batches(catalogue.read(partition, 0, 10**9)))
        brokers.trim(topic, partition, -1)
    whole = pa.concat_tables(tables).combine_chunks()
    folder = str(tmp_path / "archive" / topic)
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert ds.dataset(folder, format="parquet").to_table().sort_by(order).combine_chunks().equals(whole)
    plain = spark.read.parquet(folder).orderBy("partition", "offset").toArrow()
    assert plain.cast(whole.schema).combine_chunks().equals(whole)

    with monkeypatch.context() as patch:
        patch.setattr(ReplayAccount, "commit", _dying(3, ReplayAccount.commit))
        with pytest.raises(KeyboardInterrupt):
            replay_job(topic, tmp_path).once(run)
    assert replay_job(topic, tmp_path, chunk_records=170).once(run).ok
    assert brokers.records(f"{topic}.again", 0) == sent(1000)
    assert brokers.records(f"{topic}.again", 1) == sent(500, 5000)


def test_a_filter_is_sql_and_keeps_the_order(brokers: Brokers, run: InProcessRun, topic: str, tmp_path: Path) -> None:
    brokers.create(topic, 2)
    brokers.produce(topic, 0, sent(300))
    brokers.produce(topic, 1, sent(300, 1000))
    archive_job(topic, tmp_path, compact=True).once(run)
    wanted = "key IS NOT NULL AND offset % 4 = 1 AND size(headers) < 2"
    outcome = replay_job(topic, tmp_path, filter=wanted, chunk_records=130).once(run)
    for partition, first in ((0, 0), (1, 1000)):
        kept = [
            record
            for offset, record in enumerate(sent(300, first))
            if record.key is not None and offset % 4 == 1 and len(record.headers) < 2
        ]
        assert len(kept) > 20
        assert brokers.records(f"{topic}.again", partition) == kept
    assert outcome.figures["records"] == 2 * len(kept)


def _dying(call: int, inner: Any = None) -> Any:
    """Return a method that raises KeyboardInterrupt after the given call has finished; it is thread-safe."""
    calls = itertools.count(1)

    def method(*arguments: Any, **named: Any) -> Any:
        this_call = next(calls)
        result = None if inner is None else inner(*arguments, **named)
        if this_call == call:
            raise KeyboardInterrupt
        return result

    return method
