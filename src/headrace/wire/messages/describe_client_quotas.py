"""DescribeClientQuotas (48): how much users and clients may do. v1 is flexible."""

from __future__ import annotations

from headrace.wire.schema import BOOL, FLOAT64, INT8, INT16, INT32, STRING, array, message, part, wire


@part
class ComponentData:
    entity_type: str = wire(STRING)
    match_type: int = wire(INT8)
    match: str | None = wire(STRING, nullable=0, default=None)


@message(versions=(0, 1), flexible_since=1)
class DescribeClientQuotasRequest:
    components: list[ComponentData] = wire(array(ComponentData))
    strict: bool = wire(BOOL)


@part
class EntityData:
    entity_type: str = wire(STRING)
    entity_name: str | None = wire(STRING, nullable=0, default=None)


@part
class ValueData:
    key: str = wire(STRING)
    value: float = wire(FLOAT64)


@part
class EntryData:
    entity: list[EntityData] = wire(array(EntityData))
    values: list[ValueData] = wire(array(ValueData))


@message(versions=(0, 1), flexible_since=1)
class DescribeClientQuotasResponse:
    throttle_time_ms: int = wire(INT32)
    error_code: int = wire(INT16)
    error_message: str | None = wire(STRING, nullable=0, default=None)
    entries: list[EntryData] | None = wire(array(EntryData), nullable=0)
