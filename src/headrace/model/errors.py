"""Every refusal that a caller can be told, with its stable code.

The codes are Kafka's numbers, because every client library knows them; our own begin at 10000. An error is
raised with one sentence that says what was wrong and, where there is one, what to do next. `retriable` says
whether the same request may succeed later without being changed.

Bugs of ours are assertions, not errors of this family.
"""

from __future__ import annotations

from headrace.model.cluster_errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    LeaderNotAvailable,
    NoReassignmentInProgress,
    OffsetNotAvailable,
    PreferredLeaderNotAvailable,
    StaleBrokerEpoch,
)
from headrace.model.coordinator_errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    GroupNotEmpty,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidProducerIdMapping,
    InvalidRegularExpression,
    InvalidSessionTimeout,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    MemberIdRequired,
    NotCoordinator,
    OffsetMetadataTooLarge,
    OperationNotAttempted,
    ProducerFenced,
    RebalanceInProgress,
    StaleMemberEpoch,
    TransactionAbortable,
    TransactionalIdNotFound,
    TransactionalIdRefused,
    TransactionCoordinatorFenced,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnstableOffsetCommit,
    UnsupportedAssignor,
)
from headrace.model.refusal import HeadraceError, RecordRefused, RetriableError
from headrace.model.share_errors import (
    InvalidRecordState,
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)

__all__ = [
    "ConcurrentTransactions",
    "CoordinatorLoading",
    "CoordinatorNotAvailable",
    "CorruptMessage",
    "DiskNearlyFull",
    "DuplicateSequence",
    "ElectionNotNeeded",
    "EligibleLeadersNotAvailable",
    "FencedInstanceId",
    "FencedLeaderEpoch",
    "FencedMemberEpoch",
    "FetchSessionIdNotFound",
    "FetchSessionTopicIdMismatch",
    "GroupIdNotFound",
    "GroupMaxSizeReached",
    "GroupNotEmpty",
    "GroupSubscribedToTopic",
    "HeadraceError",
    "IllegalGeneration",
    "InconsistentGroupProtocol",
    "InconsistentTopicId",
    "InvalidConfig",
    "InvalidFetchSessionEpoch",
    "InvalidGroupId",
    "InvalidPartitions",
    "InvalidProducerEpoch",
    "InvalidProducerIdMapping",
    "InvalidRecord",
    "InvalidRecordState",
    "InvalidRegularExpression",
    "InvalidReplicaAssignment",
    "InvalidReplicationFactor",
    "InvalidRequest",
    "InvalidRequiredAcks",
    "InvalidSessionTimeout",
    "InvalidShareSessionEpoch",
    "InvalidTimestamp",
    "InvalidTopic",
    "InvalidTransactionState",
    "InvalidTransactionTimeout",
    "InvalidUpdateVersion",
    "LeaderNotAvailable",
    "MalformedFrame",
    "MemberIdRequired",
    "MessageTooLarge",
    "NoReassignmentInProgress",
    "NotCoordinator",
    "NotEnoughReplicas",
    "NotLeader",
    "OffsetMetadataTooLarge",
    "OffsetNotAvailable",
    "OffsetOutOfRange",
    "OperationNotAttempted",
    "OutOfOrderSequence",
    "PolicyViolation",
    "PreferredLeaderNotAvailable",
    "ProducerFenced",
    "RebalanceInProgress",
    "RecordRefused",
    "RequestTimedOut",
    "RetriableError",
    "ShareSessionLimitReached",
    "ShareSessionNotFound",
    "StaleBrokerEpoch",
    "StaleMemberEpoch",
    "StorageFailure",
    "ThrottlingQuotaExceeded",
    "TopicAlreadyExists",
    "TopicDeletionDisabled",
    "TransactionAbortable",
    "TransactionCoordinatorFenced",
    "TransactionalIdNotFound",
    "TransactionalIdRefused",
    "UnknownLeaderEpoch",
    "UnknownMemberId",
    "UnknownProducerId",
    "UnknownTopicId",
    "UnknownTopicOrPartition",
    "UnreleasedInstanceId",
    "UnstableOffsetCommit",
    "UnsupportedAssignor",
    "UnsupportedCompressionType",
    "UnsupportedVersion",
]


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


class InvalidTopic(HeadraceError):
    """Topic names are 1 to 249 of the characters a-z A-Z 0-9 . _ - and not '.' or '..'."""

    code = 17


class NotEnoughReplicas(RetriableError):
    """The in-sync set is smaller than min.insync.replicas."""

    code = 19


class InvalidRequiredAcks(HeadraceError):
    """acks must be -1 (all), 0 or 1."""

    code = 21


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


class InvalidUpdateVersion(HeadraceError):
    """A feature cannot have the level that was asked for."""

    code = 95


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


class StorageFailure(RetriableError):
    """The disk refused a write or a sync; this log takes no more writes until the broker is restarted."""

    code = 56


class UnknownProducerId(HeadraceError):
    """The broker has no state for this producer id."""

    code = 59


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
