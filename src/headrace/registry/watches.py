"""Who wants to hear of which keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from headrace.registry.interface import is_beneath


class RegisteredWatches:
    """The watches of one registry object. Used on the loop only."""

    def __init__(self) -> None:
        # A dict and not a set: watches are told in the order in which they were set, in every run.
        self._watches: dict[RegisteredWatch, None] = {}

    def add(self, prefix: str, changed: Callable[[str], None]) -> RegisteredWatch:
        watch = RegisteredWatch(prefix, changed, self)
        self._watches[watch] = None
        return watch

    def forget(self, watch: RegisteredWatch) -> None:
        self._watches.pop(watch, None)

    def tell(self, keys: Iterable[str]) -> None:
        for key in keys:
            for watch in list(self._watches):
                # A watch may be cancelled by one that was called before it.
                if watch in self._watches and (key == watch.prefix or is_beneath(key, watch.prefix)):
                    watch.changed(key)

    def tell_all(self) -> None:
        """Anything may have changed."""
        for watch in list(self._watches):
            if watch in self._watches:
                watch.changed(watch.prefix)


class RegisteredWatch(msgspec.Struct, eq=False):
    prefix: str
    changed: Callable[[str], None]
    watches: RegisteredWatches

    def cancel(self) -> None:
        self.watches.forget(self)
