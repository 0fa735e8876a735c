"""Transactions: readers see all writes and acked records of a transaction, or none.

    async for record in stream:                                 group="billing", commit="manual"
        async with client.transaction("payments-1") as tx:
            tx.ack(record)
            await tx.publish("ledger", entry_of(record))

- The end of the block commits. An exception aborts, and rewinds the streams to the first record that the transaction
  acked, so that it is delivered again.
- The transactional id belongs to one worker, at every start the same. A producer that uses an id fences the previous
  user of the id and aborts its open transaction.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self

from headrace.client.transactions.transactional_producer import TransactionalProducer
from headrace.sdk.outgoing import Headers, NewMessage, OutgoingMessage, outgoing_message
from headrace.sdk.streams import AsyncStream, Record, check_transactional, end_offsets, start_offsets
from headrace.sdk.times import Duration, Time

Submit = Callable[[TransactionalProducer, OutgoingMessage], Awaitable[object]]


class AsyncTransaction:
    """One transaction, created by `AsyncClient.transaction`. Transactions of the same id run one at a time."""

    def __init__(self, producer: TransactionalProducer, lock: asyncio.Lock, submit: Submit) -> None:
        self._producer = producer
        self._lock = lock
        self._submit = submit
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
        """As `AsyncClient.publish`, but returns when the message is enqueued; the commit waits for all messages."""
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
        await self._submit(self._producer, message)

    def ack(self, *records: Record) -> None:
        """If this is committed, the group of their stream has read these records and all before them. Call it before
        the work: if the work fails, they are delivered again."""
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
                # As the member that read the oldest record: after a rebalance another member may own the partition,
                # and the coordinator then rejects the commit.
                await self._producer.send_offsets(stream.group, end_offsets(records), records[0].membership)
            await self._producer.commit()
        except BaseException:
            if await self._producer.abort_quietly():
                self._rewind_streams()
            raise

    def _rewind_streams(self) -> None:
        for stream, records in self._acked.items():
            stream.rewind(start_offsets(records))
