"""What tests of delayed messages say and see."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.unit.broker.asking import fetch_request, fetched, send
from tests.unit.broker.house import House

from headrace.machines.delays_replay import batches
from headrace.model.names import DELAYED_PREFIX, delayed_topic
from headrace.wire.batch import Record, build_batch, read_records
from headrace.wire.delayed_records import DELAYED_ID, Event, is_event, read_event
from headrace.wire.messages.alter_delayed import CANCEL, AlterDelayedRequest, DelayedChange
from headrace.wire.messages.list_delayed import ListDelayedRequest, ListDelayedResponse

TOPIC = "t"
DELAYED = delayed_topic(TOPIC)


class Seen(NamedTuple):
    """A message as it lies in T."""

    value: bytes
    offset: int
    timestamp_ms: int
    key: bytes | None
    headers: dict[str, bytes | None]


async def make(house: House, topic: str = TOPIC, partitions: int = 1, **configs: str) -> None:
    await house.make_topic(topic, partitions, **configs)
    await companion(house, topic)


async def companion(house: House, topic: str = TOPIC) -> None:
    await house.host.start(house.broker.catalogue.ensure_companion(topic, DELAYED_PREFIX), "companion")


def now_ms(house: House) -> int:
    return house.host.clock.now_ms()


def message(house: House, value: bytes, key: bytes | None = b"k", **headers: str) -> Record:
    """Headers by their names without our prefix, with underscores."""
    named = [(f"headrace-{name.replace('_', '-')}", text.encode()) for name, text in headers.items()]
    return Record(key=key, value=value, headers=named, timestamp_ms=now_ms(house))


async def delay(house: House, *records: Record, topic: str = TOPIC, partition: int = 0, **options: int) -> int:
    """The offset of the first in the delayed log, once they are committed."""
    answer = await send(house, delayed_topic(topic), build_batch(records, **options), partition=partition)
    assert answer.error_code == 0, answer
    return answer.base_offset


async def seen(house: House, topic: str = TOPIC, partition: int = 0) -> list[Seen]:
    """All that is committed in the topic."""
    return [
        Seen(record.value or b"", record.offset, record.timestamp_ms, record.key, dict(record.headers))
        for record in records(await stored(house, topic, partition))
    ]


async def stored(house: House, topic: str, partition: int) -> bytes:
    """Its batches."""
    log = house.partition(topic, partition).log
    offset, found = log.start_offset, b""
    while offset < log.end_offset:
        response = await house.ask(fetch_request({(topic, partition): offset}, partition_max_bytes=1 << 26), 11)
        data = fetched(response)[topic, partition]
        assert data.error_code == 0, data
        if not data.records:
            break
        found += bytes(data.records)
        offset = [header.next_offset for _, header in batches(bytes(data.records))][-1]
    return found


async def values(house: House, topic: str = TOPIC, partition: int = 0) -> list[bytes]:
    return [one.value for one in await seen(house, topic, partition)]


def origin(one: Seen) -> bytes | None:
    return one.headers[DELAYED_ID]


def records(data: bytes) -> list[Record]:
    return [record for batch, header in batches(data) for record in read_records(batch, header, 1 << 26)]


async def events(house: House, topic: str = TOPIC, partition: int = 0) -> list[Event]:
    data = await stored(house, delayed_topic(topic), partition)
    return [read_event(batch, header) for batch, header in batches(data) if is_event(header)]


async def listed(house: House, topic: str = TOPIC, partition: int = 0, **fields: Any) -> ListDelayedResponse:
    response: ListDelayedResponse = await house.ask(ListDelayedRequest(topic=topic, partition=partition, **fields), 0)
    return response


async def alter(house: House, changes: Sequence[tuple[int, int]], topic: str = TOPIC) -> list[int]:
    """Offsets and when they are due from now on; the error codes."""
    asked = [DelayedChange(offset=offset, due_ms=due_ms) for offset, due_ms in changes]
    response = await house.ask(AlterDelayedRequest(topic=topic, partition=0, changes=asked), 0)
    return [result.error_code for result in response.results]


async def cancel(house: House, offset: int) -> int:
    (code,) = await alter(house, [(offset, CANCEL)])
    return code


async def until_ms(house: House, due_ms: int) -> None:
    await asyncio.sleep((due_ms - now_ms(house)) / 1000)
