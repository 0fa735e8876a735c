"""Errors of the group and transaction coordinators. Import them from `errors`."""

from __future__ import annotations

from headrace.model.refusal import HeadraceError, RetriableError


class OffsetMetadataTooLarge(HeadraceError):
    """The metadata string of the committed offset is longer than offset.metadata.max.bytes."""

    code = 12


class CoordinatorLoading(RetriableError):
    """The coordinator is still loading its state. Retry."""

    code = 14


class CoordinatorNotAvailable(RetriableError):
    """The coordinator is not available. Retry."""

    code = 15


class NotCoordinator(RetriableError):
    """This broker is not the coordinator; find the coordinator again."""

    code = 16


class IllegalGeneration(HeadraceError):
    """The generation is not the current one of the group; rejoin the group."""

    code = 22


class InconsistentGroupProtocol(HeadraceError):
    """The member's protocols are not compatible with those of the group."""

    code = 23


class InvalidGroupId(HeadraceError):
    """The group id is invalid."""

    code = 24


class UnknownMemberId(HeadraceError):
    """The group has no member with this id; rejoin the group."""

    code = 25


class InvalidSessionTimeout(HeadraceError):
    """The session timeout is outside the limits that the broker is configured with."""

    code = 26


class RebalanceInProgress(HeadraceError):
    """The group is rebalancing; rejoin the group."""

    code = 27


class InvalidTransactionState(HeadraceError):
    """The operation is not valid in the current state of the transaction."""

    code = 48


class InvalidProducerIdMapping(HeadraceError):
    """The producer id is not the current one of this transactional id."""

    code = 49


class InvalidTransactionTimeout(HeadraceError):
    """The transaction timeout is not between 1 ms and transaction.max.timeout.ms."""

    code = 50


class ConcurrentTransactions(RetriableError):
    """The previous transaction of this producer has not completed yet. Retry."""

    code = 51


class TransactionCoordinatorFenced(HeadraceError):
    """A coordinator with a newer epoch has taken over this transaction."""

    code = 52


class TransactionalIdAuthorizationFailed(HeadraceError):
    """The producer has no transactional id, or is not allowed to use it."""

    code = 53


class OperationNotAttempted(HeadraceError):
    """The operation was not attempted because another part of the same request failed."""

    code = 55


class GroupNotEmpty(HeadraceError):
    """The group has active members."""

    code = 68


class GroupIdNotFound(HeadraceError):
    """The group does not exist."""

    code = 69


class MemberIdRequired(HeadraceError):
    """Join again with the member id in this response."""

    code = 79


class GroupMaxSizeReached(HeadraceError):
    """The group has reached its maximum number of members."""

    code = 81


class FencedInstanceId(HeadraceError):
    """Another member with the same group.instance.id has replaced this one."""

    code = 82


class GroupSubscribedToTopic(HeadraceError):
    """A member of the group is subscribed to this topic."""

    code = 86


class UnstableOffsetCommit(RetriableError):
    """A transaction with offsets for this partition is still open. Retry."""

    code = 88


class ProducerFenced(HeadraceError):
    """A newer producer with the same transactional id has fenced this one."""

    code = 90


class TransactionalIdNotFound(HeadraceError):
    """The transactional id does not exist."""

    code = 105


class FencedMemberEpoch(HeadraceError):
    """The coordinator has fenced this member epoch; rejoin the group."""

    code = 110


class UnreleasedInstanceId(HeadraceError):
    """Another member is using this group.instance.id."""

    code = 111


class UnsupportedAssignor(HeadraceError):
    """The coordinator does not support this assignor."""

    code = 112


class StaleMemberEpoch(HeadraceError):
    """The member epoch is stale; retry with the epoch of the last heartbeat response."""

    code = 113


class TransactionAbortable(HeadraceError):
    """The transaction cannot be committed; abort it."""

    code = 120


class InvalidRegularExpression(HeadraceError):
    """The regular expression is invalid."""

    code = 128
