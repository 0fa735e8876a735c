"""Which answer a refusal becomes: its status, its stable code, and what to do next.

Codes are for programs and never change. What may help by itself when it is tried again is a 503 with Retry-After.
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
    """The answer to a request that was refused so."""
    if isinstance(error, errors.RecordRefused) and DEDUP_ID_REUSED in error.message:
        return Problem(422, IDEMPOTENCY_KEY_REUSED, error.message, "send it with another Idempotency-Key")
    for kind in type(error).__mro__:
        entry = _BY_KIND.get(kind)
        if entry is not None:
            break
    else:
        entry = _AGAIN if error.retriable else _REFUSED
    headers = _RETRY_AFTER if entry.status in (429, 503) else ()
    return Problem(entry.status, entry.code, error.message, entry.next_step, headers)


_AGAIN = _Entry(503, "unavailable", "try again in a moment")
_REFUSED = _Entry(422, "refused", "the message says what is wrong with it")

_BY_KIND: dict[type, _Entry] = {
    # Not there
    errors.UnknownTopicOrPartition: _Entry(
        404, "topic_not_found", "GET /topics lists the topics, POST /topics makes one"
    ),
    errors.UnknownTopicId: _Entry(404, "topic_not_found", "GET /topics lists the topics, POST /topics makes one"),
    errors.GroupIdNotFound: _Entry(
        404, "subscription_not_found", "POST /topics/{topic}/subscriptions makes one, GET lists them"
    ),
    errors.OffsetOutOfRange: _Entry(404, "message_not_found", "it was deleted, or it was never there"),
    # Not so
    errors.InvalidTopic: _Entry(422, "invalid_topic", "name it by up to 249 of the characters a-z A-Z 0-9 . _ -"),
    errors.InvalidGroupId: _Entry(422, "invalid_subscription", "give the subscription a name"),
    errors.InvalidPartitions: _Entry(422, "invalid_partitions", "partitions can be added, but not taken away"),
    errors.InvalidReplicationFactor: _Entry(
        422, "invalid_replication_factor", "ask for as many replicas as there are brokers, or fewer"
    ),
    errors.InvalidConfig: _Entry(
        422, "invalid_config", "topics take Kafka's names, subscriptions those of docs/queues.md"
    ),
    errors.InvalidRequest: _Entry(422, "invalid_request", "see GET /openapi.json for what is expected"),
    errors.RecordRefused: _Entry(422, "invalid_message", "change the message and send it again"),
    errors.PolicyViolation: _Entry(422, "policy_violation", "this broker is not configured to do that"),
    errors.MessageTooLarge: _Entry(413, "message_too_large", "send less, or raise the topic's max.message.bytes"),
    client_errors.RecordListTooLarge: _Entry(
        413, "message_too_large", "send less, or raise the topic's max.message.bytes"
    ),
    # At odds with what is
    errors.TopicAlreadyExists: _Entry(409, "topic_exists", "PATCH /topics/{topic} changes it"),
    errors.TopicDeletionDisabled: _Entry(409, "topic_deletion_disabled", "the broker's delete.topic.enable forbids it"),
    errors.GroupNotEmpty: _Entry(409, "subscription_in_use", "stop its members first"),
    errors.InvalidRecordState: _Entry(
        409, "lease_lost", "the lease is over: the message is somebody else's by now, or will be delivered again"
    ),
    # Not allowed
    client_errors.TopicAuthorizationFailed: _Entry(403, "forbidden", "ask for a token with that right"),
    client_errors.GroupAuthorizationFailed: _Entry(403, "forbidden", "ask for a token with that right"),
    client_errors.ClusterAuthorizationFailed: _Entry(403, "forbidden", "ask for a token with that right"),
    # Not now
    Overloaded: _Entry(503, "overloaded", "send it again when the time in Retry-After has passed, and more slowly"),
    client_errors.Unreachable: _Entry(503, "no_broker", "no broker can be reached at present; try again"),
    client_errors.DeliveryTimedOut: _Entry(
        503, "delivery_timed_out", "it may yet have been written: send it again with the same Idempotency-Key"
    ),
    client_errors.ProducerClosed: _Entry(503, "stopping", "this server is stopping; send it to another one"),
    errors.StorageFailure: _Entry(503, "storage_failed", "the broker's disk is full or broken; see its log"),
    errors.NotEnoughReplicas: _Entry(503, "not_enough_replicas", "try again when more brokers are in sync"),
    errors.ThrottlingQuotaExceeded: _Entry(429, "too_many_requests", "wait as Retry-After says"),
}
