"""The synchronous forms of messages, streams and transactions.

Each method runs on the event loop of its client and waits for the result. The objects may be shared between threads:
several threads that iterate over the same `Messages` share its messages.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Self, TypeVar, overload

from headrace.sdk.incoming import Received
from headrace.sdk.loop_thread import BlockingPortal, blocking
from headrace.sdk.messages import AsyncMessage, AsyncMessages
from headrace.sdk.streams import AsyncStream, Record
from headrace.sdk.times import Duration
from headrace.sdk.transaction import AsyncTransaction

T = TypeVar("T")


class Message(Received):
    """A leased message. Settle it with `with`, or by one of the methods; see `AsyncMessage`."""

    __slots__ = ("_inner", "_portal", "attempt")

    def __init__(self, message: AsyncMessage, portal: BlockingPortal) -> None:
        super().__init__(message.id, message.timestamp_ms, message.raw_key, message.value, message.raw_headers)
        self.attempt = message.attempt
        self._inner = message
        self._portal = portal

    @property
    def is_settled(self) -> bool:
        return self._inner.is_settled

    ack = blocking(AsyncMessage.ack)
    nack = blocking(AsyncMessage.nack)
    reject = blocking(AsyncMessage.reject)
    extend = blocking(AsyncMessage.extend)

    def __enter__(self) -> Self:
        return self

    __exit__ = blocking(AsyncMessage.__aexit__)


class Messages:
    """The messages of a subscription; see `AsyncMessages`."""

    def __init__(self, messages: AsyncMessages, portal: BlockingPortal) -> None:
        self._inner = messages
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

    @overload
    def take(self, count: None = None, timeout: Duration | None = None) -> Message | None: ...
    @overload
    def take(self, count: int, timeout: Duration | None = None) -> list[Message]: ...
    def take(self, count: int | None = None, timeout: Duration | None = None) -> Message | list[Message] | None:
        """The next message; with `count` a list of up to so many. Waits for the first one, at most for `timeout`.

        After the timeout, and when the client stops, it returns None, or an empty list.
        """
        if count is not None:
            return [Message(one, self._portal) for one in self._portal.call(self._inner.take(count, timeout))]
        message = self._portal.call(self._inner.take(None, timeout))
        return None if message is None else Message(message, self._portal)

    def close(self) -> None:
        """Lease no more messages, and release those that were not delivered to the application."""
        if self._portal.is_open:  # a closed client has closed this already
            self._portal.call(self._inner.close())


class Stream:
    """The records of topics; see `AsyncStream`."""

    def __init__(self, stream: AsyncStream, portal: BlockingPortal) -> None:
        self._inner = stream
        self._portal = portal
        self._is_entered = False

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(in_hand_done=kind is None)

    def __iter__(self) -> Iterator[Record]:
        return self._iterate(self._inner.take)

    def batches(self, records_max: int = 500) -> Iterator[list[Record]]:
        """Up to `records_max` records at a time, as they are available: much faster than one by one."""
        return self._iterate(lambda: self._inner.take_batch(records_max))

    def _iterate(self, take: Callable[[], Coroutine[Any, Any, T | None]]) -> Iterator[T]:
        is_done = False
        try:
            while taken := self._portal.call(take()):
                yield taken
            is_done = True
        finally:
            if not self._is_entered:
                self.close(in_hand_done=is_done)

    commit = blocking(AsyncStream.commit)

    def close(self, *, in_hand_done: bool = False) -> None:
        """Leave the group. Unless `in_hand_done`, the records that were delivered last are delivered again."""
        if self._portal.is_open:  # a closed client has closed this already
            self._portal.call(self._inner.close(in_hand_done=in_hand_done))


class Transaction:
    """One transaction; see `AsyncTransaction`."""

    def __init__(self, transaction: AsyncTransaction, portal: BlockingPortal) -> None:
        self._inner = transaction
        self._portal = portal

    publish = blocking(AsyncTransaction.publish)

    def ack(self, *records: Record) -> None:
        """If this is committed, the group of their stream has read these records and all before them. Call it before
        the work: if the work fails, they are delivered again."""
        self._inner.ack(*records)

    def __enter__(self) -> Self:
        self._portal.call(self._inner.__aenter__())
        return self

    __exit__ = blocking(AsyncTransaction.__aexit__)
