"""Is a log in order by itself? Offsets ascend, none comes twice, and every hole has a reason.

Holes come from control records, which tell where a transaction ended, from dedup windows and from compaction. Of a
topic that is compacted, or from which settled messages are removed, no hole proves anything. Elsewhere the batches
themselves are asked: what neither a record nor a control batch covers is lost. With a dedup window a batch is stored
without its duplicates and keeps its offsets: there only what no batch covers is lost.
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
_NAMES_UNTIL = 12  # Fetch names topics by id from version 13 on


class LogTask(msgspec.Struct, frozen=True):
    """`drops_records`: settled or outdated records are taken out of this log; `drops_duplicates`: duplicates are taken
    out of batches."""

    topic: TopicSource
    stretch: PartitionRange
    drops_records: bool
    drops_duplicates: bool = False


class LogPart(msgspec.Struct, frozen=True):
    """`control`: offsets that control records have; `thinned`: offsets that are missing for a good reason."""

    records: int
    findings: list[AuditFinding]
    control: int
    thinned: int


def check_log(read: ReadSource, task: LogTask) -> LogPart:
    name, stretch = task.topic.name, task.stretch
    batches = read(task.topic, stretch, ("offset",))
    present, findings = find_disorder(name, stretch.partition, (batch.column(0).to_pylist() for batch in batches))
    missing = BitMap64()
    missing.add_range(stretch.start, stretch.end)
    missing -= present
    records, holes = len(present), len(missing)
    control, thinned = 0, holes if task.drops_records else 0
    if holes and not task.drops_records:
        found = covered_offsets(task.topic, stretch)
        control = len(missing & found.control)
        missing -= found.control
        if task.drops_duplicates:
            thinned = len(missing & found.data)
            missing -= found.data
        for first, last in runs(missing):
            detail = "the log has neither a record nor a control record there"
            findings.append(AuditFinding("lost", name, stretch.partition, first, last, None, last - first + 1, detail))
    return LogPart(records, findings, control, thinned)


def find_disorder(topic: str, partition: int, batches: Iterable[Iterable[int]]) -> tuple[BitMap64, list[AuditFinding]]:
    """The offsets that were read, and those that came again or too late."""
    present = BitMap64()
    findings: list[AuditFinding] = []
    highest = -1
    for offsets in batches:
        for offset in offsets:
            if offset > highest:
                highest = offset
            elif offset in present:
                findings.append(AuditFinding("duplicated", topic, partition, offset, detail="the offset comes again"))
            else:
                findings.append(
                    AuditFinding("reordered", topic, partition, offset, detail=f"it comes behind {highest}")
                )
            present.add(offset)
    return present, findings


class CoveredOffsets(NamedTuple):
    """Offsets that batches claim, whether or not they have a record for each."""

    control: BitMap64
    data: BitMap64


def covered_offsets(topic: TopicSource, stretch: PartitionRange) -> CoveredOffsets:
    """By the headers of all batches of the stretch."""
    from headrace.columns.scan import sync_cluster
    from headrace.wire.batches.batch import HEADER_SIZE, parse_header

    found = CoveredOffsets(BitMap64(), BitMap64())
    offset = stretch.start
    while offset < stretch.end:
        data = sync_cluster(topic.brokers).call(partial(_fetch_batches, topic.name, stretch.partition, offset))
        position, before = 0, offset
        while position + HEADER_SIZE <= len(data):  # the last batch may be cut off behind its header
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

    async def ask() -> bytes:
        leader = (await cluster.partition(topic, partition)).leader
        answer: FetchResponse = await cluster.call(request, node_id=leader, version_max=_NAMES_UNTIL)
        raise_for_code(answer.error_code)
        told = only_result(only_result(answer.responses).partitions)
        raise_for_code(told.error_code)
        assert isinstance(told.records, memoryview)
        return bytes(told.records)

    return await cluster.call_with_retries(ask)
