"""The authorized operations in responses: all operations, since the Kafka listener has no authorization.

A tool that asks and is told nothing (Kafka's lowest int32) believes that the broker is too old to know, or stumbles.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT = (
    1 << operation for operation in range(3, 13)
)
_CONFIGS: Final = _DESCRIBE_CONFIGS | _ALTER_CONFIGS

TOPIC_RIGHTS: Final = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _CONFIGS
GROUP_RIGHTS: Final = _READ | _DELETE | _DESCRIBE | _CONFIGS
CLUSTER_RIGHTS: Final = _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _IDEMPOTENT | _CONFIGS


class DescribedGroup(Protocol):
    error_code: int
    authorized_operations: int


def add_rights(groups: Iterable[DescribedGroup]) -> None:
    for group in groups:
        if not group.error_code:
            group.authorized_operations = GROUP_RIGHTS
