"""The brokers that are up, which of them decides, and which are to hold nothing: `/live`, `/controller`, `/drained`."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from headrace.model.registry_records import BrokerRecord, ControllerRecord
from headrace.registry.interface import Create, Delete, KeyExists, NoKey, Registry, RegistryDamaged, RegistryEntry, Set

BROKERS_KEY = "/brokers"
LIVE_KEY = "/live"
DRAINED_KEY = "/drained"
CONTROLLER_KEY = "/controller"
CONTROLLER_EPOCH_KEY = "/controller-epoch"

T = TypeVar("T")


def live_key(node_id: int) -> str:
    return f"{LIVE_KEY}/{node_id}"


def drained_key(node_id: int) -> str:
    return f"{DRAINED_KEY}/{node_id}"


def epoch_key(node_id: int) -> str:
    """Counts the starts of a broker."""
    return f"{BROKERS_KEY}/{node_id}/epoch"


def decode_broker(entry: RegistryEntry) -> BrokerRecord:
    return _decode_json(entry, BrokerRecord)


def decode_controller(entry: RegistryEntry) -> ControllerRecord:
    return _decode_json(entry, ControllerRecord)


def decode_number(entry: RegistryEntry | None) -> int:
    """A counter; one that is not there yet stands at 0."""
    if entry is None:
        return 0
    if not entry.value.isdigit():
        raise RegistryDamaged(f"The registry's key {entry.key} is not a number: {entry.value!r}")
    return int(entry.value)


def advance_operation(key: str, entry: RegistryEntry | None, number: int) -> Create | Set:
    """What moves a counter from where it was read to `number`."""
    value = str(number).encode()
    return Create(key, value) if entry is None else Set(key, value, entry.version)


async def drain(registry: Registry, node_id: int, *, is_drained: bool) -> None:
    """An operator wants this broker to hold nothing, or to be used again."""
    key = drained_key(node_id)
    try:
        if is_drained:
            await registry.commit([Create(key, b"")])
            return
        entry = await registry.get(key)
        if entry is not None:
            await registry.commit([Delete(key, entry.version)])
    except (KeyExists, NoKey):
        return  # it is so already


def _decode_json(entry: RegistryEntry, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(entry.value, type=kind)
    except msgspec.MsgspecError as error:
        raise RegistryDamaged(f"The registry's key {entry.key} cannot be read: {error}") from error
