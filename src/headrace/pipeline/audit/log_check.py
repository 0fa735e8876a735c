"""Check the order and completeness of one log: offsets ascend, none repeats, and every gap has a reason.

- Gaps come from control records (transaction markers), dedup windows and compaction.
- In a compacted topic, or one from which settled messages are removed, gaps prove nothing.
- Elsewhere the batch headers decide: an offset that neither a record nor a control batch covers is lost. With a dedup
  window, a batch is stored without its duplicates but keeps its offset range, so only offsets outside of all batches
  are lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyroaring import BitMap64

from headrace.pipeline.audit.findings import AuditFinding
from headrace.pipeline.audit.settled_check import runs
from headrace.pipeline.spark_tasks import PartitionRange, ReadSource, TopicSource

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster

_FETCH_BYTES = 4 << 20
_FETCH_VERSION_MAX = 12  # from version 13 on, Fetch identifies topics by id


class LogTask(msgspec.Struct, frozen=True):
    """`drops_records`: settled or outdated records are removed from this log; `drops_duplicates`: duplicates are
    removed from batches."""

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
        for first, last in runs(missing):
            detail = "the log has neither a record nor a control record at these offsets"
            findings.append(AuditFinding("lost", name, range_.partition, first, last, None, last - first + 1, detail))
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
    """Read the headers of all batches of the range."""
    from headrace.columns.scan import sync_cluster
    from headrace.wire.batches.batch import HEADER_SIZE, parse_header

    found = CoveredOffsets(BitMap64(), BitMap64())
    offset = range_.start
    while offset < range_.end:
        data = sync_cluster(topic.brokers).call(partial(_fetch_batches, topic.name, range_.partition, offset))
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


async def _fetch_batches(topic: str, partition: int, offset: int, cluster: Cluster) -> bytes:
    from headrace.client.errors import only_result, raise_for_code
    from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

    requested = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
    request = FetchRequest(max_bytes=_FETCH_BYTES, topics=[FetchTopic(topic=topic, partitions=[requested])])

    async def fetch() -> bytes:
        leader = (await cluster.partition(topic, partition)).leader
        response: FetchResponse = await cluster.call(request, node_id=leader, version_max=_FETCH_VERSION_MAX)
        raise_for_code(response.error_code)
        fetched = only_result(only_result(response.responses).partitions)
        raise_for_code(fetched.error_code)
        assert isinstance(fetched.records, memoryview)
        return bytes(fetched.records)

    return await cluster.call_with_retries(fetch)
