"""Numbers that only grow: epochs, blocks of ids. A number that was handed out is never handed out again."""

from __future__ import annotations

from headrace.registry.interface import BadVersion, Create, KeyExists, NoKey, Registry, RegistryDamaged, Set


async def advance(registry: Registry, key: str, step: int = 1, at_least: int = 0) -> int:
    """Add `step` to the counter and return what it was before; a counter begins at 0. One that is lower than
    `at_least` counts from there.

    The growth is durable before the number is used. A crash in between leaves a gap, never a repetition.
    """
    while True:
        entry = await registry.get(key)
        before = max(at_least, 0 if entry is None else _decode(key, entry.value))
        value = str(before + step).encode()
        try:
            await registry.commit([Set(key, value, entry.version) if entry else Create(key, value)])
        except (BadVersion, KeyExists, NoKey):
            continue
        return before


def _decode(key: str, value: bytes) -> int:
    if not value.isdigit():
        raise RegistryDamaged(f"The registry's key {key} is not a number: {value!r}")
    return int(value)
