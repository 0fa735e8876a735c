"""Requests and reads that tests of delayed messages need."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.unit.broker.broker_requests import fetch_request, fetched_partitions, send
from tests.unit.broker.simulated_broker import SimulatedBroker

from headrace.model.names import DELAYED_PREFIX, delayed_topic
from headrace.wire.batches.batch import BatchRecord, build_batch, read_records, split_batches
from headrace.wire.messages.delays import (
    CANCEL,
    AlterDelayedRequest,
    DelayedChange,
    ListDelayedRequest,
    ListDelayedResponse,
)
from headrace.wire.state_records.delayed_records import DELAYED_ID, DelayedEvent, is_event, read_event

TOPIC = "t"
DELAYED = delayed_topic(TOPIC)


class DeliveredMessage(NamedTuple):
    """A message as it lies in T."""

    value: bytes
    offset: int
    timestamp_ms: int
    key: bytes | None
    headers: dict[str, bytes | None]


async def make(simulated_broker: SimulatedBroker, topic: str = TOPIC, partitions: int = 1, **configs: str) -> None:
    await simulated_broker.create_topic(topic, partitions, **configs)
    await colocated_topic(simulated_broker, topic)


async def colocated_topic(simulated_broker: SimulatedBroker, topic: str = TOPIC) -> None:
    await simulated_broker.host.start(
        simulated_broker.broker.catalogue.ensure_colocated_topic(topic, DELAYED_PREFIX), "companion"
    )


def now_ms(simulated_broker: SimulatedBroker) -> int:
    return simulated_broker.host.clock.now_ms()


def message(simulated_broker: SimulatedBroker, value: bytes, key: bytes | None = b"k", **headers: str) -> BatchRecord:
    """Headers by their names without our prefix, with underscores."""
    named = [(f"headrace-{name.replace('_', '-')}", text.encode()) for name, text in headers.items()]
    return BatchRecord(key=key, value=value, headers=named, timestamp_ms=now_ms(simulated_broker))


async def delay(
    simulated_broker: SimulatedBroker, *records: BatchRecord, topic: str = TOPIC, partition: int = 0, **options: int
) -> int:
    """The offset of the first in the delayed log, once they are committed."""
    response = await send(simulated_broker, delayed_topic(topic), build_batch(records, **options), partition=partition)
    assert response.error_code == 0, response
    return response.base_offset


async def seen(simulated_broker: SimulatedBroker, topic: str = TOPIC, partition: int = 0) -> list[DeliveredMessage]:
    """All that is committed in the topic."""
    return [
        DeliveredMessage(record.value or b"", record.offset, record.timestamp_ms, record.key, dict(record.headers))
        for record in records(await stored(simulated_broker, topic, partition))
    ]


async def stored(simulated_broker: SimulatedBroker, topic: str, partition: int) -> bytes:
    """Its batches."""
    log = simulated_broker.partition(topic, partition).log
    offset, found = log.start_offset, b""
    while offset < log.end_offset:
        response = await simulated_broker.send(
            fetch_request({(topic, partition): offset}, partition_max_bytes=1 << 26), 11
        )
        data = fetched_partitions(response)[topic, partition]
        assert data.error_code == 0, data
        if not data.records:
            break
        found += bytes(data.records)
        offset = [header.next_offset for _, header in split_batches(bytes(data.records))][-1]
    return found


async def values(simulated_broker: SimulatedBroker, topic: str = TOPIC, partition: int = 0) -> list[bytes]:
    return [one.value for one in await seen(simulated_broker, topic, partition)]


def origin(one: DeliveredMessage) -> bytes | None:
    return one.headers[DELAYED_ID]


def records(data: bytes) -> list[BatchRecord]:
    return [record for batch, header in split_batches(data) for record in read_records(batch, header, 1 << 26)]


async def events(simulated_broker: SimulatedBroker, topic: str = TOPIC, partition: int = 0) -> list[DelayedEvent]:
    data = await stored(simulated_broker, delayed_topic(topic), partition)
    return [read_event(batch, header) for batch, header in split_batches(data) if is_event(header)]


async def listed(
    simulated_broker: SimulatedBroker, topic: str = TOPIC, partition: int = 0, **fields: Any
) -> ListDelayedResponse:
    response: ListDelayedResponse = await simulated_broker.send(
        ListDelayedRequest(topic=topic, partition=partition, **fields), 0
    )
    return response


async def alter(simulated_broker: SimulatedBroker, changes: Sequence[tuple[int, int]], topic: str = TOPIC) -> list[int]:
    """Offsets and when they are due from now on; the error codes."""
    requested = [DelayedChange(offset=offset, due_ms=due_ms) for offset, due_ms in changes]
    response = await simulated_broker.send(AlterDelayedRequest(topic=topic, partition=0, changes=requested), 0)
    return [result.error_code for result in response.results]


async def cancel(simulated_broker: SimulatedBroker, offset: int) -> int:
    (code,) = await alter(simulated_broker, [(offset, CANCEL)])
    return code


async def until_ms(simulated_broker: SimulatedBroker, due_ms: int) -> None:
    await asyncio.sleep((due_ms - now_ms(simulated_broker)) / 1000)
