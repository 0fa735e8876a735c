"""The refusals of coordinators: of groups, their offsets, and transactions. Import them from `errors`."""

from __future__ import annotations

from headrace.model.refusal import HeadraceError, RetriableError


class OffsetMetadataTooLarge(HeadraceError):
    """The metadata string of an offset commit is too long."""

    code = 12


class CoordinatorLoading(RetriableError):
    """The coordinator is still reading its log."""

    code = 14


class CoordinatorNotAvailable(RetriableError):
    """The coordinator cannot be reached now."""

    code = 15


class NotCoordinator(RetriableError):
    """This broker does not coordinate that group."""

    code = 16


class IllegalGeneration(HeadraceError):
    """The group has moved on to another generation."""

    code = 22


class InconsistentGroupProtocol(HeadraceError):
    """The member's protocols do not fit those of the group."""

    code = 23


class InvalidGroupId(HeadraceError):
    """The group id is empty or not usable."""

    code = 24


class UnknownMemberId(HeadraceError):
    """The group does not know this member."""

    code = 25


class InvalidSessionTimeout(HeadraceError):
    """The session timeout lies outside the broker's limits."""

    code = 26


class RebalanceInProgress(HeadraceError):
    """The group is rebalancing; join again."""

    code = 27


class InvalidTransactionState(HeadraceError):
    """The producer is not in a transaction that allows this."""

    code = 48


class InvalidProducerIdMapping(HeadraceError):
    """The producer id does not belong to this transactional id."""

    code = 49


class InvalidTransactionTimeout(HeadraceError):
    """The transaction timeout is not between 1 ms and the broker's transaction.max.timeout.ms."""

    code = 50


class ConcurrentTransactions(RetriableError):
    """The last transaction of this producer is not quite over; ask again."""

    code = 51


class TransactionCoordinatorFenced(HeadraceError):
    """A newer coordinator has taken over this transaction."""

    code = 52


class TransactionalIdRefused(HeadraceError):
    """The producer may not use this transactional id, or has none."""

    code = 53


class OperationNotAttempted(HeadraceError):
    """Nothing was done for this one, because another one of the same request was refused."""

    code = 55


class GroupNotEmpty(HeadraceError):
    """The group still has members."""

    code = 68


class GroupIdNotFound(HeadraceError):
    """There is no such group."""

    code = 69


class MemberIdRequired(HeadraceError):
    """Join again with the member id that this answer carries."""

    code = 79


class GroupMaxSizeReached(HeadraceError):
    """The group has as many members as it may have."""

    code = 81


class FencedInstanceId(HeadraceError):
    """Another member has taken over this group.instance.id."""

    code = 82


class GroupSubscribedToTopic(HeadraceError):
    """The group is still subscribed to this topic."""

    code = 86


class UnstableOffsetCommit(RetriableError):
    """A transaction that commits offsets for this partition is still open; ask again."""

    code = 88


class ProducerFenced(HeadraceError):
    """A newer producer with the same transactional id has taken over."""

    code = 90


class TransactionalIdNotFound(HeadraceError):
    """There is no such transactional id."""

    code = 105


class FencedMemberEpoch(HeadraceError):
    """The member is not of this epoch any more; join again."""

    code = 110


class UnreleasedInstanceId(HeadraceError):
    """Another member still uses this group.instance.id."""

    code = 111


class UnsupportedAssignor(HeadraceError):
    """No assignor of that name is known here."""

    code = 112


class StaleMemberEpoch(HeadraceError):
    """The member's epoch is behind the one it was given; use the newest."""

    code = 113


class TransactionAbortable(HeadraceError):
    """The transaction cannot go on; abort it."""

    code = 120


class InvalidRegularExpression(HeadraceError):
    """The subscription's regular expression cannot be used."""

    code = 128
