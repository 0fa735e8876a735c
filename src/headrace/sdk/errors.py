"""What a handler may raise to say how its message goes on, and what the client tells beyond the refusals of brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.client.produce.producer import Receipt
from headrace.model.errors import HeadraceError, InvalidRecord, InvalidRecordState
from headrace.sdk.times import Duration


class Reject(Exception):
    """Raise it in a handler: nobody can work on this message. It becomes a dead letter, with this as its reason."""


class Retry(Exception):
    """Raise it in a handler: let the message come again, after `delay`, or after the subscription's back-off."""

    def __init__(self, reason: str = "", delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class LeaseLost(InvalidRecordState):
    """The message was not settled: its lease is over, and it is or will be delivered again."""


class NotEncodable(InvalidRecord):
    """A value is bytes, text, None, or something that can be written as JSON."""


class PublishFailed(HeadraceError):
    """Some of many messages were not written, or not known to be. `receipts` are in the order of the messages, None
    for those that failed; `failures` says why, by their index."""

    def __init__(self, receipts: Sequence[Receipt | None], failures: Mapping[int, HeadraceError]) -> None:
        first = min(failures)
        super().__init__(
            f"{len(failures)} of {len(receipts)} messages failed, the first of them message {first}: "
            f"{failures[first].message}"
        )
        self.receipts = receipts
        self.failures = failures
