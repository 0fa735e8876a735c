"""Every refusal that a caller can be told, with its stable code.

The codes are Kafka's numbers, because every client library knows them; our own begin at 10000. An error is
raised with one sentence that says what was wrong and, where there is one, what to do next. `retriable` says
whether the same request may succeed later without being changed.

Bugs of ours are assertions, not errors of this family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class HeadraceError(Exception):
    """The root of all refusals; on the wire an unknown server error."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        return str(self) or (type(self).__doc__ or "").strip()


class RetriableError(HeadraceError):
    """The same request may succeed later."""

    retriable: ClassVar[bool] = True


class RecordRefused(HeadraceError):
    """A refusal of a batch that can name the records that caused it, by their index in it."""

    def __init__(self, message: str = "", records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = records


class OffsetOutOfRange(HeadraceError):
    """The offset lies before the start or behind the end of the log."""

    code = 1


class CorruptMessage(RetriableError):
    """The batch's checksum, length or format does not fit its bytes."""

    code = 2


class UnknownTopicOrPartition(RetriableError):
    """This broker holds no such topic or partition."""

    code = 3


class NotLeader(RetriableError):
    """Another broker leads this partition; refresh the metadata."""

    code = 6


class RequestTimedOut(RetriableError):
    """The request was not done within its time; it may still take effect."""

    code = 7


class MessageTooLarge(HeadraceError):
    """The batch is larger than the topic's max.message.bytes."""

    code = 10


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


class InvalidTopic(HeadraceError):
    """Topic names are 1 to 249 of the characters a-z A-Z 0-9 . _ - and not '.' or '..'."""

    code = 17


class NotEnoughReplicas(RetriableError):
    """The in-sync set is smaller than min.insync.replicas."""

    code = 19


class InvalidRequiredAcks(HeadraceError):
    """acks must be -1 (all), 0 or 1."""

    code = 21


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


class InvalidTimestamp(RecordRefused):
    """A record's timestamp lies outside what the topic accepts."""

    code = 32


class UnsupportedVersion(HeadraceError):
    """This version of the request is not served."""

    code = 35


class TopicAlreadyExists(HeadraceError):
    """A topic of this name exists."""

    code = 36


class InvalidPartitions(HeadraceError):
    """The number of partitions is not acceptable."""

    code = 37


class InvalidReplicationFactor(HeadraceError):
    """The replication factor is below 1 or above the number of brokers."""

    code = 38


class InvalidReplicaAssignment(HeadraceError):
    """The replica assignment is not acceptable."""

    code = 39


class InvalidConfig(HeadraceError):
    """A configuration name or value is not acceptable."""

    code = 40


class InvalidRequest(HeadraceError):
    """The request contradicts itself or the protocol."""

    code = 42


class PolicyViolation(HeadraceError):
    """The request breaks a rule of this broker."""

    code = 44


class OutOfOrderSequence(HeadraceError):
    """The producer's sequence number is not the next one."""

    code = 45


class DuplicateSequence(HeadraceError):
    """The batch was written before, but too long ago to know its offset."""

    code = 46


class InvalidProducerEpoch(HeadraceError):
    """A newer instance of this producer has taken over."""

    code = 47


class InvalidTransactionState(HeadraceError):
    """The producer is not in a transaction that allows this."""

    code = 48


class TransactionalIdRefused(HeadraceError):
    """The producer may not use this transactional id, or has none."""

    code = 53


class StorageFailure(RetriableError):
    """The disk refused a write or a sync; this log takes no more writes until the broker is restarted."""

    code = 56


class UnknownProducerId(HeadraceError):
    """The broker has no state for this producer id."""

    code = 59


class GroupNotEmpty(HeadraceError):
    """The group still has members."""

    code = 68


class GroupIdNotFound(HeadraceError):
    """There is no such group."""

    code = 69


class FetchSessionIdNotFound(RetriableError):
    """The fetch session has been evicted; open a new one."""

    code = 70


class InvalidFetchSessionEpoch(RetriableError):
    """The fetch session has moved on; open a new one."""

    code = 71


class TopicDeletionDisabled(HeadraceError):
    """Topics cannot be deleted while delete.topic.enable is false."""

    code = 73


class FencedLeaderEpoch(RetriableError):
    """The leader epoch in the request is older than the broker's."""

    code = 74


class UnknownLeaderEpoch(RetriableError):
    """The leader epoch in the request is newer than the broker's."""

    code = 75


class UnsupportedCompressionType(HeadraceError):
    """This version of the request cannot carry that compression."""

    code = 76


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


class InvalidRecord(RecordRefused):
    """A record or batch breaks the rules of its topic."""

    code = 87


class ThrottlingQuotaExceeded(RetriableError):
    """The client has used up its quota."""

    code = 89


class UnknownTopicId(RetriableError):
    """This broker holds no topic with this id."""

    code = 100


class InconsistentTopicId(RetriableError):
    """The topic's id differs from the one in the request."""

    code = 103


class FetchSessionTopicIdMismatch(RetriableError):
    """The fetch session names topics by id and the request by name, or the other way round; open a new one."""

    code = 106


class DiskNearlyFull(RetriableError):
    """The disk is nearly full; produce is refused until space is freed. Fetch and delete go on."""

    code = 56


class MalformedFrame(HeadraceError):
    """The bytes are not a request of this protocol; the connection is closed."""

    code = 42
