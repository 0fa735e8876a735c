"""Check the order and completeness of one log: offsets ascend, none repeats, and every gap has a reason.

- Gaps come from control records (transaction markers), dedup windows and compaction.
- In a compacted topic, or one from which settled messages are removed, gaps prove nothing.
- Elsewhere the batch headers decide: an offset that neither a record nor a control batch covers is lost. With a dedup
  window, a batch is stored without its duplicates but keeps its offset range, so only offsets outside of all batches
  are lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from headrace.client.cluster import Cluster
from headrace.client.metadata import TopicPartition
from headrace.columns.scan import FETCH_BYTES, fetch_partition
from headrace.columns.sync_cluster import sync_cluster
from headrace.pipeline.audit.findings import AuditFinding, range_findings
from headrace.pipeline.audit.settled_check import runs
from headrace.pipeline.spark_tasks import PartitionRange, ReadSource, TopicSource
from headrace.wire.batches.batch import HEADER_SIZE, parse_header
from headrace.wire.messages.fetch import PartitionData


class LogTask(msgspec.Struct, frozen=True):
    """`drops_records`: settled or outdated records are removed; `drops_duplicates`: batches lose their duplicates."""

    topic: TopicSource
    offsets: PartitionRange
    drops_records: bool
    drops_duplicates: bool = False


class LogPart(msgspec.Struct, frozen=True):
    """`control`: offsets of control records; `thinned`: offsets that are missing for a known reason."""

    records: int
    findings: list[AuditFinding]
    control: int
    thinned: int


def check_log(read: ReadSource, task: LogTask) -> LogPart:
    name, range_ = task.topic.name, task.offsets
    batches = read(task.topic, range_, ("offset",))
    present, findings = find_disorder(name, range_.partition, (batch.column(0).to_pylist() for batch in batches))
    missing = BitMap64()
    missing.add_range(range_.start, range_.end)
    missing -= present
    records, holes = len(present), len(missing)
    control, thinned = 0, holes if task.drops_records else 0
    if holes and not task.drops_records:
        found = covered_offsets(task.topic, range_)
        control = len(missing & found.control)
        missing -= found.control
        if task.drops_duplicates:
            thinned = len(missing & found.data)
            missing -= found.data
        detail = "the log has neither a record nor a control record at these offsets"
        findings += range_findings("lost", name, range_.partition, runs(missing), detail)
    return LogPart(records, findings, control, thinned)


def find_disorder(topic: str, partition: int, batches: Iterable[Iterable[int]]) -> tuple[BitMap64, list[AuditFinding]]:
    """The offsets that were read, and findings for those that repeat or are out of order."""
    present = BitMap64()
    findings: list[AuditFinding] = []
    highest = -1
    for offsets in batches:
        for offset in offsets:
            if offset > highest:
                highest = offset
            elif offset in present:
                findings.append(AuditFinding("duplicated", topic, partition, offset, detail="the offset occurs again"))
            else:
                findings.append(
                    AuditFinding("reordered", topic, partition, offset, detail=f"it follows offset {highest}")
                )
            present.add(offset)
    return present, findings


class CoveredOffsets(NamedTuple):
    """The offset ranges of batches, whether or not they have a record for each offset."""

    control: BitMap64
    data: BitMap64


def covered_offsets(topic: TopicSource, range_: PartitionRange) -> CoveredOffsets:
    """Read the headers of all batches of the range: a scan returns no control records."""
    found = CoveredOffsets(BitMap64(), BitMap64())
    offset = range_.start
    while offset < range_.end:
        data = _fetch_batches(topic, range_.partition, offset)
        position, before = 0, offset
        while position + HEADER_SIZE <= len(data):  # the last batch may be truncated behind its header
            header = parse_header(data, position)
            covered = found.control if header.is_control else found.data
            covered.add_range(header.base_offset, header.next_offset)
            offset = max(offset, header.next_offset)
            position += header.size_bytes
        if offset == before:
            break
    return found


def _fetch_batches(topic: TopicSource, partition: int, offset: int) -> memoryview:
    target = TopicPartition(topic.name, partition)

    async def fetch(cluster: Cluster) -> PartitionData:
        return await cluster.call_with_retries(
            lambda: fetch_partition(cluster, target, offset, FETCH_BYTES, read_committed=False)
        )

    records = sync_cluster(topic.brokers).call(fetch).records
    assert isinstance(records, memoryview)
    return records
