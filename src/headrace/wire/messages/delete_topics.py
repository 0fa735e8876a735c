"""DeleteTopics (20). v4 is flexible, v5 has error messages, v6 names topics by name or id."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import INT16, INT32, STRING, UUID16, array, message, part, wire


@part
class DeleteTopicState:
    name: str | None = wire(STRING, nullable=6, default=None)
    topic_id: UUID = wire(UUID16)


@message(versions=(1, 6), flexible_since=4)
class DeleteTopicsRequest:
    topic_names: list[str] = wire(array(STRING), until=5)
    topics: list[DeleteTopicState] = wire(array(DeleteTopicState), since=6)
    timeout_ms: int = wire(INT32)


@part
class DeletableTopicResult:
    name: str | None = wire(STRING, nullable=6)
    topic_id: UUID = wire(UUID16, since=6)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, since=5, nullable=5, default=None)


@message(versions=(1, 6), flexible_since=4)
class DeleteTopicsResponse:
    throttle_time_ms: int = wire(INT32)
    responses: list[DeletableTopicResult] = wire(array(DeletableTopicResult))
