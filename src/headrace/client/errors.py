"""What can go wrong between a client and its brokers, beyond the refusals of `headrace.model.errors`.

`error_of_code(code)` turns a number from the wire into the class that names it, so callers catch types, never
compare numbers. Codes that only other Kafka-compatible brokers send are declared here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from headrace.model import errors
from headrace.model.errors import HeadraceError, RetriableError

T = TypeVar("T")


class Unreachable(RetriableError):
    """No broker answers at the addresses known."""


class ConnectionLost(RetriableError):
    """The connection broke before the answer came; the request may have taken effect."""


class VersionMismatch(HeadraceError):
    """The broker and this client share no version of a request."""

    code = 35


class MalformedResponse(HeadraceError):
    """The broker's answer is not of this protocol; is this the Kafka port?"""


class DeliveryTimedOut(HeadraceError):
    """A record was not acknowledged within delivery_timeout_seconds; it may still have been written."""

    code = 7


class ProducerClosed(HeadraceError):
    """The producer was closed before this record was acknowledged."""


class CommitInDoubt(HeadraceError):
    """The answer to the commit of a transaction did not come; it may be committed or not."""


class NoCommittedOffset(HeadraceError):
    """The group has committed no offset for a partition and `start` is "none"."""


class SubscriptionNotFound(errors.GroupIdNotFound):
    """There is no such subscription."""


class BrokerNotAvailable(RetriableError):
    """The broker is not available."""

    code = 8


class ReplicaNotAvailable(RetriableError):
    """The replica is not available."""

    code = 9


class NetworkException(RetriableError):
    """The broker lost its own connection while it served the request."""

    code = 13


class RecordListTooLarge(HeadraceError):
    """The batch is larger than a segment may be."""

    code = 18


class NotEnoughReplicasAfterAppend(RetriableError):
    """The batch was written, but to fewer in-sync replicas than required."""

    code = 20


class TopicAuthorizationFailed(HeadraceError):
    """This client may not use the topic."""

    code = 29


class GroupAuthorizationFailed(HeadraceError):
    """This client may not use the group."""

    code = 30


class ClusterAuthorizationFailed(HeadraceError):
    """This client may not administer the cluster."""

    code = 31


class NotController(RetriableError):
    """Another broker is the controller now."""

    code = 41


class UnknownErrorCode(HeadraceError):
    """The broker answered with a code that this client has no name for."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def error_of_code(code: int, message: str | None = None) -> HeadraceError:
    """The error that stands for a wire code; `message` is what the broker said, if it said anything."""
    known = _ERRORS_BY_CODE.get(code)
    if known is None:
        return UnknownErrorCode(code, message or f"the broker answered with error code {code}")
    return known(message) if message else known()


def only_result(answers: Sequence[T]) -> T:
    """The answer to a question about one thing."""
    if len(answers) != 1:
        raise MalformedResponse(f"one answer was due, and {len(answers)} came")
    return answers[0]


def raise_for_code(code: int, message: str | None = None) -> None:
    """Raise the error that stands for `code`; 0 is success."""
    if code != 0:
        raise error_of_code(code, message)


def _subclasses(root: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    for child in root.__subclasses__():
        yield child
        yield from _subclasses(child)


def _errors_by_code() -> dict[int, type[HeadraceError]]:
    # Where two classes share a number, the one with the wider meaning answers to it.
    wider = {errors.StorageFailure, errors.InvalidRequest, errors.UnsupportedVersion, errors.RequestTimedOut}
    named: dict[int, type[HeadraceError]] = {}
    for member in _subclasses(HeadraceError):
        if member.code > 0 and (member.code not in named or member in wider):
            named[member.code] = member
    return named


_ERRORS_BY_CODE = _errors_by_code()
