"""AlterClientQuotas (49): change how much users and clients may do. v1 is flexible."""

from __future__ import annotations

from headrace.wire.messages.describe_client_quotas import EntityData
from headrace.wire.schema import BOOL, FLOAT64, INT16, INT32, STRING, array, message, part, wire


@part
class OpData:
    key: str = wire(STRING)
    value: float = wire(FLOAT64)
    remove: bool = wire(BOOL)


@part
class AlteredEntry:
    entity: list[EntityData] = wire(array(EntityData))
    ops: list[OpData] = wire(array(OpData))


@message(versions=(0, 1), flexible_since=1)
class AlterClientQuotasRequest:
    entries: list[AlteredEntry] = wire(array(AlteredEntry))
    validate_only: bool = wire(BOOL)


@part
class EntryResult:
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    entity: list[EntityData] = wire(array(EntityData))


@message(versions=(0, 1), flexible_since=1)
class AlterClientQuotasResponse:
    throttle_time_ms: int = wire(INT32)
    entries: list[EntryResult] = wire(array(EntryResult))
