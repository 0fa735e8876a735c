"""Every error that a broker returns to clients, with its stable code.

The codes are Kafka's, because every client library knows them; Headrace's own begin at 10000. The message of an
error says what was wrong and, if possible, what to do next. Without a message the docstring of the class is the
message. `retriable` says whether the same request may succeed later without changes.

Bugs in Headrace are assertions, not errors of this hierarchy.
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
    TransactionalIdAuthorizationFailed,
    TransactionalIdNotFound,
    TransactionCoordinatorFenced,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnstableOffsetCommit,
    UnsupportedAssignor,
)
from headrace.model.refusal import HeadraceError, InvalidRecords, RetriableError
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
    "InvalidRecords",
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
    "TransactionalIdAuthorizationFailed",
    "TransactionalIdNotFound",
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
    """The offset is before the start or after the end of the log."""

    code = 1


class CorruptMessage(RetriableError):
    """The record batch is corrupt: its checksum, length or format is wrong."""

    code = 2


class UnknownTopicOrPartition(RetriableError):
    """The topic or partition does not exist on this broker."""

    code = 3


class NotLeader(RetriableError):
    """This broker is not the leader of the partition; refresh the metadata."""

    code = 6


class RequestTimedOut(RetriableError):
    """The request timed out; it may still take effect."""

    code = 7


class MessageTooLarge(HeadraceError):
    """The record batch is larger than max.message.bytes of the topic."""

    code = 10


class InvalidTopic(HeadraceError):
    """The topic name is invalid; use 1 to 249 of the characters a-z A-Z 0-9 . _ -, but not '.' or '..'."""

    code = 17


class NotEnoughReplicas(RetriableError):
    """The partition has fewer in-sync replicas than min.insync.replicas. Retry."""

    code = 19


class InvalidRequiredAcks(HeadraceError):
    """The value of acks is invalid; it must be -1 (all), 0 or 1."""

    code = 21


class InvalidTimestamp(InvalidRecords):
    """The timestamp of a record is outside the range that the topic accepts."""

    code = 32


class UnsupportedVersion(HeadraceError):
    """The broker does not support this version of the request."""

    code = 35


class TopicAlreadyExists(HeadraceError):
    """A topic with this name already exists."""

    code = 36


class InvalidPartitions(HeadraceError):
    """The number of partitions is invalid."""

    code = 37


class InvalidReplicationFactor(HeadraceError):
    """The replication factor is less than 1 or greater than the number of brokers."""

    code = 38


class InvalidReplicaAssignment(HeadraceError):
    """The replica assignment is invalid."""

    code = 39


class InvalidUpdateVersion(HeadraceError):
    """The feature does not support the requested version level."""

    code = 95


class InvalidConfig(HeadraceError):
    """The name or value of a config is invalid."""

    code = 40


class InvalidRequest(HeadraceError):
    """The request is invalid."""

    code = 42


class PolicyViolation(HeadraceError):
    """The request violates a policy of the broker."""

    code = 44


class OutOfOrderSequence(HeadraceError):
    """The sequence number of the batch is not the next one of the producer."""

    code = 45


class DuplicateSequence(HeadraceError):
    """The batch is a duplicate, and the broker no longer knows the offset of the original."""

    code = 46


class InvalidProducerEpoch(HeadraceError):
    """The producer epoch is old: a newer instance of this producer has fenced it."""

    code = 47


class StorageFailure(RetriableError):
    """A write to the disk failed; the log rejects writes until the broker is restarted."""

    code = 56


class UnknownProducerId(HeadraceError):
    """The broker has no state of this producer id."""

    code = 59


class FetchSessionIdNotFound(RetriableError):
    """The fetch session does not exist or was evicted; open a new one."""

    code = 70


class InvalidFetchSessionEpoch(RetriableError):
    """The fetch session epoch is not the expected one; open a new session."""

    code = 71


class TopicDeletionDisabled(HeadraceError):
    """Topic deletion is disabled; set delete.topic.enable=true to enable it."""

    code = 73


class FencedLeaderEpoch(RetriableError):
    """The leader epoch of the request is older than that of the partition; refresh the metadata."""

    code = 74


class UnknownLeaderEpoch(RetriableError):
    """The leader epoch of the request is newer than the one this broker knows. Retry."""

    code = 75


class UnsupportedCompressionType(HeadraceError):
    """This version of the request does not support the compression type."""

    code = 76


class InvalidRecord(InvalidRecords):
    """A record or batch violates the rules of the topic."""

    code = 87


class ThrottlingQuotaExceeded(RetriableError):
    """The client has exceeded its quota. Retry later."""

    code = 89


class UnknownTopicId(RetriableError):
    """No topic with this id exists on this broker."""

    code = 100


class InconsistentTopicId(RetriableError):
    """The topic id of the request differs from the current id of the topic."""

    code = 103


class FetchSessionTopicIdMismatch(RetriableError):
    """The request identifies topics by name and its fetch session by id, or vice versa; open a new session."""

    code = 106


class DiskNearlyFull(RetriableError):
    """The disk is nearly full; the broker rejects writes until space is freed, but still serves reads and deletes."""

    code = 56


class MalformedFrame(HeadraceError):
    """The bytes are not a valid request of this protocol; the broker closes the connection."""

    code = 42
