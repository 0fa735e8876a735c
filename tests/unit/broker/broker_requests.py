"""Short forms of the requests that most tests need, and of the contents of their responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tests.unit.broker.simulated_broker import FakeConnection, SimulatedBroker

from headrace.model.ids import ZERO_ID
from headrace.wire.batches.batch import BatchRecord, build_batch, parse_header, read_records
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from headrace.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

TIMESTAMP_MS = 1_700_000_000_000
SESSIONLESS = -1


def batch(*values: bytes, timestamp_ms: int = TIMESTAMP_MS, key: bytes | None = None, **options: int) -> bytearray:
    records = [BatchRecord(key=key, value=value, timestamp_ms=timestamp_ms + at) for at, value in enumerate(values)]
    return build_batch(records, **options)


def produce_request(
    batches: Mapping[tuple[str, int], bytes | bytearray | None], acks: int = -1, timeout_ms: int = 30_000
) -> ProduceRequest:
    topics: dict[str, list[PartitionProduceData]] = {}
    for (topic, index), data in batches.items():
        records = None if data is None else memoryview(data)
        topics.setdefault(topic, []).append(PartitionProduceData(index=index, records=records))
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, partition_data=data) for topic, data in topics.items()],
    )


async def produce(
    simulated_broker: SimulatedBroker, topic: str, *values: bytes, partition: int = 0, **options: int
) -> int:
    """Produce one batch, wait until it is committed, and return its base offset."""
    response = await send(simulated_broker, topic, batch(*values, key=None, **options), partition=partition)
    assert response.error_code == 0, response
    return response.base_offset


async def send(
    simulated_broker: SimulatedBroker,
    topic: str,
    data: bytes | bytearray | None,
    *,
    partition: int = 0,
    version: int = 9,
    acks: int = -1,
    connection: FakeConnection | None = None,
) -> PartitionProduceResponse:
    return only_response(
        await simulated_broker.send(produce_request({(topic, partition): data}, acks), version, connection)
    )


def only_response(response: ProduceResponse) -> PartitionProduceResponse:
    ((answer,),) = [topic.partition_responses for topic in response.responses]
    return answer


def partition_responses(response: ProduceResponse) -> dict[tuple[str, int], PartitionProduceResponse]:
    return {(topic.name, answer.index): answer for topic in response.responses for answer in topic.partition_responses}


def fetch_request(
    positions: Mapping[tuple[str | UUID, int], int],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    session_id: int = 0,
    session_epoch: int = SESSIONLESS,
    forgotten: Mapping[str | UUID, list[int]] | None = None,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
) -> FetchRequest:
    """`positions`: the offset to read from, by topic (name or id) and partition."""
    topics: dict[str | UUID, list[FetchPartition]] = {}
    for (topic, index), offset in positions.items():
        requested = FetchPartition(
            partition=index,
            current_leader_epoch=current_leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_fetched_epoch,
            partition_max_bytes=partition_max_bytes,
        )
        topics.setdefault(topic, []).append(requested)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(**_named(topic), partitions=requested) for topic, requested in topics.items()],
        forgotten_topics_data=[
            ForgottenTopic(**_named(topic), partitions=indexes) for topic, indexes in (forgotten or {}).items()
        ],
    )


def _named(topic: str | UUID) -> dict[str, Any]:
    return {"topic_id": topic} if isinstance(topic, UUID) else {"topic": topic}


def fetched_partitions(response: Any) -> dict[tuple[str | UUID, int], Any]:
    """The partitions of a fetch response, by topic (id where there is one, else name) and number."""
    return {
        (topic.topic if topic.topic_id == ZERO_ID else topic.topic_id, data.partition_index): data
        for topic in response.responses
        for data in topic.partitions
    }


def values(records: memoryview | bytes | None) -> list[bytes]:
    """The values of all records of a fetch response, whose batches must be whole."""
    return [value for _, value in offsets_and_values(records)]


def offsets_and_values(records: memoryview | bytes | None) -> list[tuple[int, bytes]]:
    view = memoryview(records or b"")
    found: list[tuple[int, bytes]] = []
    while view:
        header = parse_header(view)
        assert header.size_bytes <= len(view), "a batch was cut"
        part = view[: header.size_bytes]
        found += [(record.offset, record.value or b"") for record in read_records(part, header, 1 << 24)]
        view = view[header.size_bytes :]
    return found


async def read_all(simulated_broker: SimulatedBroker, topic: str, partition: int = 0, offset: int = 0) -> list[bytes]:
    response = await simulated_broker.send(fetch_request({(topic, partition): offset}), 11)
    data = fetched_partitions(response)[topic, partition]
    assert data.error_code == 0, data
    return values(data.records)
