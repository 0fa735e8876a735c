"""Map every `HeadraceError` to its HTTP error response: the status, the stable code, and the next step.

This is the only place that knows the status of an error. Codes are for programs and never change. Errors for which a
retry may succeed are mapped to 503 with Retry-After.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.client import errors as client_errors
from headrace.client.produce.publisher import Overloaded
from headrace.http.message import Header
from headrace.http.problems import Problem
from headrace.model import errors
from headrace.model.errors import HeadraceError
from headrace.model.message_headers import DEDUP_ID_REUSED

RETRY_SECONDS = 1
IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
_RETRY_AFTER: tuple[Header, ...] = (("retry-after", str(RETRY_SECONDS)),)


class _ErrorMapping(NamedTuple):
    status: int
    code: str
    next_step: str


def problem_of_error(error: HeadraceError) -> Problem:
    """Return the problem for an error."""
    if isinstance(error, errors.InvalidRecords) and DEDUP_ID_REUSED in error.message:
        return Problem(422, IDEMPOTENCY_KEY_REUSED, error.message, "use another Idempotency-Key for another request")
    for kind in type(error).__mro__:
        entry = _BY_ERROR.get(kind)
        if entry is not None:
            break
    else:
        entry = _UNAVAILABLE if error.retriable else _UNPROCESSABLE
    headers = _RETRY_AFTER if entry.status in (429, 503) else ()
    return Problem(entry.status, entry.code, error.message, entry.next_step, headers)


_UNAVAILABLE = _ErrorMapping(503, "unavailable", "retry after the time in Retry-After")
_UNPROCESSABLE = _ErrorMapping(422, "refused", "correct the request as the message says")

_TOPIC_NOT_FOUND = _ErrorMapping(404, "topic_not_found", "GET /topics lists the topics, POST /topics creates one")
_TOO_LARGE = _ErrorMapping(413, "message_too_large", "send less, or raise the topic's max.message.bytes")
_FORBIDDEN = _ErrorMapping(403, "forbidden", "use a token with the required scope")

_BY_ERROR: dict[type, _ErrorMapping] = {
    # Does not exist
    errors.UnknownTopicOrPartition: _TOPIC_NOT_FOUND,
    errors.UnknownTopicId: _TOPIC_NOT_FOUND,
    errors.GroupIdNotFound: _ErrorMapping(
        404, "subscription_not_found", "POST /topics/{topic}/subscriptions creates one, GET lists them"
    ),
    errors.OffsetOutOfRange: _ErrorMapping(404, "message_not_found", "check the id; the message may have been deleted"),
    # Invalid
    errors.InvalidTopic: _ErrorMapping(
        422, "invalid_topic", "use a name of up to 249 of the characters a-z A-Z 0-9 . _ -"
    ),
    errors.InvalidGroupId: _ErrorMapping(422, "invalid_subscription", "use a name that is not empty"),
    errors.InvalidPartitions: _ErrorMapping(422, "invalid_partitions", "partitions can be added, but not removed"),
    errors.InvalidReplicationFactor: _ErrorMapping(
        422, "invalid_replication_factor", "use a replication factor of at most the number of brokers"
    ),
    errors.InvalidConfig: _ErrorMapping(
        422, "invalid_config", "topics have Kafka's config names, subscriptions those in docs/queues.md"
    ),
    errors.InvalidRequest: _ErrorMapping(422, "invalid_request", "see GET /openapi.json for the schema of the request"),
    errors.InvalidRecords: _ErrorMapping(422, "invalid_message", "change the message and send it again"),
    errors.PolicyViolation: _ErrorMapping(
        422, "policy_violation", "the configuration of this broker does not allow it"
    ),
    errors.MessageTooLarge: _TOO_LARGE,
    client_errors.RecordListTooLarge: _TOO_LARGE,
    # Conflicts with the current state
    errors.TopicAlreadyExists: _ErrorMapping(409, "topic_exists", "PATCH /topics/{topic} changes it"),
    errors.TopicDeletionDisabled: _ErrorMapping(
        409, "topic_deletion_disabled", "set delete.topic.enable=true on the brokers"
    ),
    errors.GroupNotEmpty: _ErrorMapping(409, "subscription_in_use", "stop its members first"),
    errors.InvalidRecordState: _ErrorMapping(
        409, "lease_lost", "the lease has expired: the message has been or will be delivered again"
    ),
    # Not allowed
    client_errors.TopicAuthorizationFailed: _FORBIDDEN,
    client_errors.GroupAuthorizationFailed: _FORBIDDEN,
    client_errors.ClusterAuthorizationFailed: _FORBIDDEN,
    # Temporary
    Overloaded: _ErrorMapping(503, "overloaded", "retry after the time in Retry-After, at a lower rate"),
    client_errors.Unreachable: _ErrorMapping(503, "no_broker", "no broker is reachable now; retry later"),
    client_errors.DeliveryTimedOut: _ErrorMapping(
        503, "delivery_timed_out", "the message may have been written: retry with the same Idempotency-Key"
    ),
    client_errors.ProducerClosed: _ErrorMapping(503, "stopping", "this server is stopping; use another one"),
    errors.StorageFailure: _ErrorMapping(
        503, "storage_failed", "the disk of the broker is full or failed; see its log"
    ),
    errors.NotEnoughReplicas: _ErrorMapping(503, "not_enough_replicas", "retry when more replicas are in sync"),
    errors.ThrottlingQuotaExceeded: _ErrorMapping(429, "too_many_requests", "retry after the time in Retry-After"),
}
