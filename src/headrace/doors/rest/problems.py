"""Map errors to problems: the HTTP status, the stable code, and the next step.

Codes are for programs and never change. Errors for which a retry may succeed are mapped to 503 with Retry-After.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.client import errors as client_errors
from headrace.client.publisher import Overloaded
from headrace.http.message import Header
from headrace.http.problem import Problem
from headrace.model import errors
from headrace.model.errors import HeadraceError
from headrace.model.message_headers import DEDUP_ID_REUSED

RETRY_SECONDS = 1
IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
_RETRY_AFTER: tuple[Header, ...] = (("retry-after", str(RETRY_SECONDS)),)


class _Entry(NamedTuple):
    status: int
    code: str
    next_step: str


def problem_of(error: HeadraceError) -> Problem:
    """Return the problem for an error."""
    if isinstance(error, errors.RecordRefused) and DEDUP_ID_REUSED in error.message:
        return Problem(422, IDEMPOTENCY_KEY_REUSED, error.message, "use another Idempotency-Key for another request")
    for kind in type(error).__mro__:
        entry = _BY_KIND.get(kind)
        if entry is not None:
            break
    else:
        entry = _AGAIN if error.retriable else _REFUSED
    headers = _RETRY_AFTER if entry.status in (429, 503) else ()
    return Problem(entry.status, entry.code, error.message, entry.next_step, headers)


_AGAIN = _Entry(503, "unavailable", "retry after the time in Retry-After")
_REFUSED = _Entry(422, "refused", "correct the request as the message says")

_BY_KIND: dict[type, _Entry] = {
    # Does not exist
    errors.UnknownTopicOrPartition: _Entry(
        404, "topic_not_found", "GET /topics lists the topics, POST /topics creates one"
    ),
    errors.UnknownTopicId: _Entry(404, "topic_not_found", "GET /topics lists the topics, POST /topics creates one"),
    errors.GroupIdNotFound: _Entry(
        404, "subscription_not_found", "POST /topics/{topic}/subscriptions creates one, GET lists them"
    ),
    errors.OffsetOutOfRange: _Entry(404, "message_not_found", "check the id; the message may have been deleted"),
    # Invalid
    errors.InvalidTopic: _Entry(422, "invalid_topic", "use a name of up to 249 of the characters a-z A-Z 0-9 . _ -"),
    errors.InvalidGroupId: _Entry(422, "invalid_subscription", "use a name that is not empty"),
    errors.InvalidPartitions: _Entry(422, "invalid_partitions", "partitions can be added, but not removed"),
    errors.InvalidReplicationFactor: _Entry(
        422, "invalid_replication_factor", "use a replication factor of at most the number of brokers"
    ),
    errors.InvalidConfig: _Entry(
        422, "invalid_config", "topics have Kafka's config names, subscriptions those in docs/queues.md"
    ),
    errors.InvalidRequest: _Entry(422, "invalid_request", "see GET /openapi.json for the schema of the request"),
    errors.RecordRefused: _Entry(422, "invalid_message", "change the message and send it again"),
    errors.PolicyViolation: _Entry(422, "policy_violation", "the configuration of this broker does not allow it"),
    errors.MessageTooLarge: _Entry(413, "message_too_large", "send less, or raise the topic's max.message.bytes"),
    client_errors.RecordListTooLarge: _Entry(
        413, "message_too_large", "send less, or raise the topic's max.message.bytes"
    ),
    # Conflicts with the current state
    errors.TopicAlreadyExists: _Entry(409, "topic_exists", "PATCH /topics/{topic} changes it"),
    errors.TopicDeletionDisabled: _Entry(409, "topic_deletion_disabled", "set delete.topic.enable=true on the brokers"),
    errors.GroupNotEmpty: _Entry(409, "subscription_in_use", "stop its members first"),
    errors.InvalidRecordState: _Entry(
        409, "lease_lost", "the lease has expired: the message has been or will be delivered again"
    ),
    # Not allowed
    client_errors.TopicAuthorizationFailed: _Entry(403, "forbidden", "use a token with the required scope"),
    client_errors.GroupAuthorizationFailed: _Entry(403, "forbidden", "use a token with the required scope"),
    client_errors.ClusterAuthorizationFailed: _Entry(403, "forbidden", "use a token with the required scope"),
    # Temporary
    Overloaded: _Entry(503, "overloaded", "retry after the time in Retry-After, at a lower rate"),
    client_errors.Unreachable: _Entry(503, "no_broker", "no broker is reachable now; retry later"),
    client_errors.DeliveryTimedOut: _Entry(
        503, "delivery_timed_out", "the message may have been written: retry with the same Idempotency-Key"
    ),
    client_errors.ProducerClosed: _Entry(503, "stopping", "this server is stopping; use another one"),
    errors.StorageFailure: _Entry(503, "storage_failed", "the disk of the broker is full or failed; see its log"),
    errors.NotEnoughReplicas: _Entry(503, "not_enough_replicas", "retry when more replicas are in sync"),
    errors.ThrottlingQuotaExceeded: _Entry(429, "too_many_requests", "retry after the time in Retry-After"),
}
