"""DeleteShareGroupOffsets (92): let a share group without members forget topics."""

from __future__ import annotations

from uuid import UUID

from headrace.wire.schema import INT16, INT32, STRING, UUID16, array, message, part, wire


@part
class DeleteShareGroupOffsetsRequestTopic:
    topic_name: str = wire(STRING)


@message(versions=(0, 0), flexible_since=0)
class DeleteShareGroupOffsetsRequest:
    group_id: str = wire(STRING)
    topics: list[DeleteShareGroupOffsetsRequestTopic] = wire(array(DeleteShareGroupOffsetsRequestTopic))


@part
class DeleteShareGroupOffsetsResponseTopic:
    topic_name: str = wire(STRING)
    topic_id: UUID = wire(UUID16)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(0, 0), flexible_since=0)
class DeleteShareGroupOffsetsResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = wire(array(DeleteShareGroupOffsetsResponseTopic))
