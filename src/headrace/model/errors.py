"""Every error that a broker returns to clients, with its stable code.

The codes are Kafka's, because every client library knows them; Headrace's own begin at 10000. The message of an
error says what was wrong and, if possible, what to do next. Without a message the docstring of the class is the
message. `retriable` says whether the same request may succeed later without changes.

Bugs in Headrace are assertions, not errors of this hierarchy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class HeadraceError(Exception):
    """Unknown server error."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False

    def __str__(self) -> str:
        return super().__str__() or (type(self).__doc__ or "").strip()

    @property
    def message(self) -> str:
        return str(self)


class RetriableError(HeadraceError):
    """The request failed, but the same request may succeed later."""

    retriable: ClassVar[bool] = True


class InvalidRecords(HeadraceError):
    """The broker rejected a batch because of some of its records, which the error lists by their index."""

    def __init__(self, message: str = "", records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = records


# Cluster operations: elections, reassignments, stale brokers


class LeaderNotAvailable(RetriableError):
    """The partition has no leader; an election is in progress, or no eligible replica is available. Retry."""

    code = 5


class StaleBrokerEpoch(HeadraceError):
    """The broker was restarted after it sent this request."""

    code = 77


class OffsetNotAvailable(RetriableError):
    """The new leader has not determined the high watermark yet. Retry."""

    code = 78


class PreferredLeaderNotAvailable(RetriableError):
    """The preferred replica of the partition is not available, is shutting down, or is not in sync."""

    code = 80


class EligibleLeadersNotAvailable(RetriableError):
    """No eligible replica of the partition is available."""

    code = 83


class ElectionNotNeeded(HeadraceError):
    """The partition has a leader, or can elect one without loss of data."""

    code = 84


class NoReassignmentInProgress(HeadraceError):
    """The partition has no reassignment in progress."""

    code = 85


# Group and transaction coordinators


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


# Leases and share sessions


class InvalidRecordState(HeadraceError):
    """The lease has expired or belongs to another member, or the message was already settled."""

    code = 121


class ShareSessionNotFound(RetriableError):
    """The share session does not exist; open a new one with epoch 0."""

    code = 122


class InvalidShareSessionEpoch(RetriableError):
    """The share session epoch is not the expected one; open a new session with epoch 0."""

    code = 123


class ShareSessionLimitReached(RetriableError):
    """The broker has reached its maximum number of share sessions. Retry later."""

    code = 133


# Records, topics, requests


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


# Authentication and authorization, which the Kafka listener does not support


class IllegalSaslState(HeadraceError):
    """This listener does not authenticate clients; connect without SASL."""

    code = 34


class SecurityDisabled(HeadraceError):
    """Authentication and authorization are disabled on this listener; every client has full access."""

    code = 54


class ResourceNotFound(HeadraceError):
    """The resource does not exist."""

    code = 91
