"""A local copy of the registry's entries beneath some prefixes, updated by watches.

The mirror lags behind the registry but never goes back in time. It reports every changed key, in the order in which it
reads the changes. Decisions that are based on it are safe because they are written by compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from headrace.model.errors import HeadraceError
from headrace.registry.interface import Registry, RegistryEntry, is_beneath, parent

log = logging.getLogger(__name__)

MANY = 8  # if more keys of one parent have changed, read all of its keys at once
RETRY_SECONDS = 0.2


class RegistryMirror:
    """`changed(key, entry)` is called on the event loop, with None for a deleted key."""

    def __init__(
        self, registry: Registry, prefixes: Sequence[str], changed: Callable[[str, RegistryEntry | None], None]
    ) -> None:
        self._registry = registry
        self._prefixes = prefixes
        self._changed = changed
        self._entries: dict[str, RegistryEntry] = {}
        self._dirty: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._reading = asyncio.Lock()
        self._watches = [registry.watch(prefix, self._on_watch) for prefix in prefixes]

    def get(self, key: str) -> RegistryEntry | None:
        return self._entries.get(key)

    def entries_beneath(self, prefix: str) -> list[RegistryEntry]:
        return [entry for key, entry in self._entries.items() if is_beneath(key, prefix)]

    async def open(self) -> None:
        """Read all entries. `run` keeps them up to date."""
        await self.read(self._prefixes)

    async def run(self) -> None:
        """Apply changes until cancelled. While the registry is not available, the entries stay as they are."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            keys, self._dirty = list(self._dirty), {}
            try:
                await self.read(keys)
            except HeadraceError as error:
                log.warning("reading the registry failed error=%s", error)
                self._dirty = {**dict.fromkeys(keys), **self._dirty}
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    def close(self) -> None:
        for end_watch in self._watches:
            end_watch()

    async def read(self, keys: Iterable[str]) -> None:
        """Read these keys (of a prefix, all keys beneath it) and report changes."""
        async with self._reading:
            keys = dict.fromkeys(keys)
            parents = Counter(parent(key) for key in keys)
            read = set[str]()
            # In the order of the changes: a broker that learns of its leadership must already know earlier changes.
            for key in keys:
                above = parent(key)
                if key in self._prefixes:
                    self._apply_all(key, await self._registry.entries(key))
                elif parents[above] > MANY:
                    if above not in read:
                        read.add(above)
                        self._apply_all(above, await self._registry.entries(above))
                    continue
                self._apply(key, await self._registry.get(key))

    def _apply_all(self, prefix: str, entries: Sequence[RegistryEntry]) -> None:
        found = {entry.key for entry in entries}
        for entry in entries:
            self._apply(entry.key, entry)
        for key in [key for key in self._entries if is_beneath(key, prefix) and key not in found]:
            self._apply(key, None)

    def _apply(self, key: str, entry: RegistryEntry | None) -> None:
        if self._entries.get(key) == entry:
            return
        if entry is None:
            del self._entries[key]
        else:
            self._entries[key] = entry
        self._changed(key, entry)

    def _on_watch(self, key: str) -> None:
        self._dirty[key] = None
        self._wake.set()
