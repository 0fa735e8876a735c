"""Everything that a transaction writes is read as a whole or not at all; so are the records that it acks.

    async for record in stream:                                 group="billing", commit="manual"
        async with client.transaction("payments-1") as tx:
            tx.ack(record)
            await tx.publish("ledger", entry_of(record))

The end commits. An exception aborts, and the streams go back to the first record that the transaction acked: whoever
goes on gets it again. The id is the worker's: the same at every start, and no other's. Whoever uses it last has it, and
ends what another left open.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self

from headrace.client.transactions.transactional_producer import TransactionalProducer
from headrace.sdk.incoming import Record
from headrace.sdk.outgoing import Headers, NewMessage, OutgoingMessage, outgoing_message
from headrace.sdk.streams import AsyncStream, check_transactional, end_offsets, start_offsets
from headrace.sdk.times import Duration, Time

ChoosePartition = Callable[[OutgoingMessage], Awaitable[int | None]]


class AsyncTransaction:
    """One transaction; made by `AsyncClient.transaction`. Others of the same id wait until it is over."""

    def __init__(self, producer: TransactionalProducer, lock: asyncio.Lock, choose_partition: ChoosePartition) -> None:
        self._producer = producer
        self._lock = lock
        self._choose_partition = choose_partition
        self._acked: dict[AsyncStream, list[Record]] = defaultdict(list)

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        repeat: str | None = None,
        priority: int | None = None,
        ttl: Duration | None = None,
        dedup_id: str | None = None,
        tags: Iterable[str] = (),
        partition: int | None = None,
    ) -> None:
        """As `AsyncClient.publish`, but returns when the message is on its way: the commit waits for all of them."""
        message = outgoing_message(
            topic,
            NewMessage(
                value=value,
                key=key,
                headers=headers,
                delay=delay,
                deliver_at=deliver_at,
                repeat=repeat,
                priority=priority,
                ttl=ttl,
                dedup_id=dedup_id,
                tags=tags,
                partition=partition,
            ),
        )
        await self._producer.submit(
            message.topic,
            message.value,
            key=message.key,
            headers=message.headers,
            partition=await self._choose_partition(message),
        )

    def ack(self, *records: Record) -> None:
        """The group of their stream has read them, and all before them, if this is committed. Say it before the work:
        then they come again if that fails."""
        for record in records:
            check_transactional(record)
            self._acked[record.stream].append(record)

    async def __aenter__(self) -> Self:
        await self._lock.acquire()
        try:
            await self._producer.begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._commit()
            else:
                await self._producer.abort_quietly()
                self._rewind_streams()
        finally:
            self._lock.release()

    async def _commit(self) -> None:
        try:
            for stream, records in self._acked.items():
                assert stream.group is not None
                # As whoever read the oldest of them: if the group has moved on since, another may have it by now.
                await self._producer.send_offsets(stream.group, end_offsets(records), records[0].membership)
            await self._producer.commit()
        except BaseException:
            if await self._producer.abort_quietly():
                self._rewind_streams()
            raise

    def _rewind_streams(self) -> None:
        for stream, records in self._acked.items():
            stream.rewind(start_offsets(records))
