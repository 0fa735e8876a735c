"""The sync twins of messages, streams and transactions: the same words without `await`, for any thread.

Each hands the work to the loop of its client and waits for it. They may be shared between threads: several that iterate
over the same `Messages` share what comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from headrace.sdk.incoming import Received, Record
from headrace.sdk.loop_thread import BlockingPortal
from headrace.sdk.messages import AsyncMessage, AsyncMessages
from headrace.sdk.outgoing import Headers
from headrace.sdk.streams import AsyncStream
from headrace.sdk.times import Duration, Time
from headrace.sdk.transaction import AsyncTransaction


class Message(Received):
    """A leased message. Settle it by `with`, or by one of the methods; see `AsyncMessage`."""

    __slots__ = ("_message", "_portal", "attempt")

    def __init__(self, message: AsyncMessage, portal: BlockingPortal) -> None:
        super().__init__(message.id, message.timestamp_ms, message.raw_key, message.value, message.raw_headers)
        self.attempt = message.attempt
        self._message = message
        self._portal = portal

    @property
    def is_settled(self) -> bool:
        return self._message.is_settled

    def ack(self) -> None:
        """It is done, and never comes back."""
        self._portal.call(self._message.ack())

    def nack(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """It is to come again: after the delay, or after the subscription's back-off."""
        self._portal.call(self._message.nack(delay, reason))

    def reject(self, reason: str | None = None) -> None:
        """Nobody can work on it: it becomes a dead letter."""
        self._portal.call(self._message.reject(reason))

    def extend(self, time: Duration | None = None) -> None:
        """Have it for so long from now on; not needed while it is worked on."""
        self._portal.call(self._message.extend(time))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._portal.call(self._message.__aexit__(kind, error, trace))


class Messages:
    """The messages of a subscription; see `AsyncMessages`."""

    def __init__(self, messages: AsyncMessages, portal: BlockingPortal) -> None:
        self._messages = messages
        self._portal = portal
        self._is_entered = False

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        try:
            while (message := self.take()) is not None:
                yield message
        finally:
            if not self._is_entered:
                self.close()

    def take(self) -> Message | None:
        """The next message; None when the client stops, or this is closed."""
        message = self._portal.call(self._messages.take())
        return None if message is None else Message(message, self._portal)

    def close(self) -> None:
        """Take no more, and give back what nobody has taken."""
        if self._portal.is_open:  # else its client has done it
            self._portal.call(self._messages.close())


class Stream:
    """The records of topics; see `AsyncStream`."""

    def __init__(self, stream: AsyncStream, portal: BlockingPortal) -> None:
        self._stream = stream
        self._portal = portal
        self._is_entered = False

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(in_hand_done=kind is None)

    def __iter__(self) -> Iterator[Record]:
        is_done = False
        try:
            while (record := self._portal.call(self._stream.take())) is not None:
                yield record
            is_done = True
        finally:
            if not self._is_entered:
                self.close(in_hand_done=is_done)

    def batches(self, records_max: int = 500) -> Iterator[list[Record]]:
        """What is there, up to so many at a time: much faster than one by one."""
        is_done = False
        try:
            while records := self._portal.call(self._stream.take_batch(records_max)):
                yield records
            is_done = True
        finally:
            if not self._is_entered:
                self.close(in_hand_done=is_done)

    def commit(self, *records: Record) -> None:
        """Let the group have read all up to these; without any, all that was handed out."""
        self._portal.call(self._stream.commit(*records))

    def close(self, *, in_hand_done: bool = False) -> None:
        """Leave the group; unless it is done, what was handed out last comes again."""
        if self._portal.is_open:  # else its client has done it
            self._portal.call(self._stream.close(in_hand_done=in_hand_done))


class Transaction:
    """One transaction; see `AsyncTransaction`."""

    def __init__(self, transaction: AsyncTransaction, portal: BlockingPortal) -> None:
        self._transaction = transaction
        self._portal = portal

    def publish(
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
        """Returns when the message is on its way: the commit waits for all of them."""
        self._portal.call(
            self._transaction.publish(
                topic,
                value,
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
            )
        )

    def ack(self, *records: Record) -> None:
        """The group of their stream has read them, and all before them, if this is committed."""
        self._transaction.ack(*records)

    def __enter__(self) -> Self:
        self._portal.call(self._transaction.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._transaction.__aexit__(kind, error, trace))
