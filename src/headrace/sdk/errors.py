"""Exceptions that handlers raise to settle a message, and errors of the SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.client.produce.producer import Receipt
from headrace.model.errors import HeadraceError, InvalidRecord, InvalidRecordState
from headrace.sdk.times import Duration


class Reject(Exception):
    """Raise it in a handler to make the message a dead letter, with this text as the reason."""


class Retry(Exception):
    """Raise it in a handler to have the message redelivered, after `delay` or the subscription's back-off."""

    def __init__(self, reason: str = "", delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class LeaseLost(InvalidRecordState):
    """The message was not settled: its lease has ended, and it is or will be redelivered."""


class ClientClosed(HeadraceError, RuntimeError):
    """This client is closed; create another one."""


class NotEncodable(InvalidRecord):
    """The value is not bytes, text or None, and has no JSON form; or the key is not bytes or text."""


class PublishFailed(HeadraceError):
    """Some messages were not written, or it is unknown whether they were. `receipts` has one entry per message, None
    for a failed one; `failures` maps the index of a failed message to its error."""

    def __init__(self, receipts: Sequence[Receipt | None], failures: Mapping[int, HeadraceError]) -> None:
        first = min(failures)
        super().__init__(
            f"{len(failures)} of {len(receipts)} messages failed, the first of them message {first}: "
            f"{failures[first].message}"
        )
        self.receipts = receipts
        self.failures = failures
