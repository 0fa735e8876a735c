"""The registry on ZooKeeper, for brokers on many hosts. Import it only where it is used, because kazoo is slow to
import.

- A registry session is a node, `<root>/sessions/<id>`, that is ephemeral in ZooKeeper's session. Every commit checks
  that the node exists. kazoo opens a new ZooKeeper session when one has expired; without the check, a commit of an
  earlier registry session could take effect in it.
- While the connection is down, `commit` fails at once; reads wait for the connection for a limited time.
- Any ZooKeeper server may serve a read, and it may lag behind. After a conflict and after a reconnect, the server
  catches up before the next read.
- `entries` is not atomic: keys may change between its reads. Watches report these changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, UnimplementedError
from kazoo.protocol.states import KazooState

from headrace.registry.interface import (
    VALID_SHARE,
    BadVersion,
    Create,
    Delete,
    HeldSession,
    KeyExists,
    KeyNotEmpty,
    NoKey,
    RegisteredWatches,
    RegistryConflict,
    RegistryEntry,
    RegistryOperation,
    RegistryUnavailable,
    Session,
    SessionLost,
    SessionState,
    check_key,
    parent,
)
from headrace.registry.zookeeper_connection import ZooKeeperConnection
from headrace.registry.zookeeper_plan import ZooKeeperPaths, ZooKeeperStep, plan_transaction, prefixes
from headrace.runtime.clock import Clock

SESSION_TIMEOUT_SECONDS = 10.0
ATTEMPTS_MAX = 20


class _ZooKeeperSession(HeldSession, eq=False, kw_only=True):
    path: str


class ZooKeeperRegistry:
    """Implements `Registry`. Open it with `await ZooKeeperRegistry.open(*parse_registry_url(text), clock)`."""

    def __init__(self, hosts: str, root: str, clock: Clock, session_timeout_seconds: float) -> None:
        self._paths = ZooKeeperPaths(root)
        self._watches = RegisteredWatches()
        self._watch_set: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held: _ZooKeeperSession | None = None
        self._is_over = False
        self._connection = ZooKeeperConnection(
            hosts, session_timeout_seconds, self._on_connection_state, self._on_change, clock
        )

    @classmethod
    async def open(
        cls, hosts: str, root: str, clock: Clock, session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS
    ) -> ZooKeeperRegistry:
        """Connect, and create the cluster's root if it does not exist. Raises `RegistryUnavailable`."""
        registry = cls(hosts, root, clock, session_timeout_seconds)
        try:
            registry._connection.start()
            await registry._connection.until_connected()
            await registry._connection.make([*prefixes(registry._paths.keys), registry._paths.sessions])
            await registry._connection.until(registry._watch_set)
        except BaseException:
            await registry.close()
            raise
        return registry

    @property
    def session_timeout_seconds(self) -> float:
        """The negotiated timeout: the servers limit it."""
        return self._connection.session_timeout_seconds

    @property
    def session_valid_until(self) -> float:
        if self._held is None:
            return float("-inf")
        return (
            self._connection.last_confirmed(self._held.session.id)
            + VALID_SHARE * self._connection.session_timeout_seconds
        )

    async def get(self, key: str) -> RegistryEntry | None:
        check_key(key)
        await self._connection.catch_up()
        (entry,) = await self._read([key])
        return entry

    async def entries(self, prefix: str) -> Sequence[RegistryEntry]:
        check_key(prefix)
        await self._connection.catch_up()
        _, keys = await self._walk(prefix)
        return [entry for entry in await self._read(sorted(keys)) if entry is not None]

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        held = self._check_session(operations)
        session = None if held is None else held.path
        folders: dict[str, list[str]] = {}
        for _ in range(ATTEMPTS_MAX):
            failed = await self._connection.transact(plan_transaction(self._paths, operations, session, folders))
            if failed is None:
                deleted = (parent(operation.key) for operation in operations if isinstance(operation, Delete))
                self._connection.remove_if_empty(self._paths.folder(key) for key in dict.fromkeys(deleted) if key)
                return
            step, error = failed
            conflict = _conflict_of(step, error)
            if conflict is None or isinstance(conflict, KeyNotEmpty):
                conflict = await self._resolve_folder_conflict(step, conflict, operations, folders)
            if conflict is not None:
                raise conflict
        raise RegistryUnavailable("The registry's folders change too quickly; retry")

    async def open_session(self, on_state: Callable[[SessionState], None] | None = None) -> Session:
        assert self._held is None, "a session is open already"
        await self._connection.until_connected()
        number = self._connection.session_id
        if number is not None:
            path = self._paths.session(number)
            await self._connection.make([path], are_ephemeral=True)
            if await self._connection.owner(path) == number == self._connection.session_id:
                self._held, self._is_over = _ZooKeeperSession(Session(number), on_state, path=path), False
                if on_state is not None:
                    on_state(SessionState.HELD)
                return self._held.session
        raise RegistryUnavailable("The connection to ZooKeeper was lost while a session was opened")

    async def close_session(self, session: Session) -> None:
        if self._held is None or self._held.session != session:
            return
        self._held, self._is_over = None, True
        await self._connection.stop()
        self._connection.start()

    def watch(self, prefix: str, changed: Callable[[str], None]) -> Callable[[], object]:
        check_key(prefix)
        return self._watches.add(prefix, changed)

    async def close(self) -> None:
        self._held, self._is_over = None, True
        await self._connection.stop()
        self._connection.release()

    def _check_session(self, operations: Sequence[RegistryOperation]) -> _ZooKeeperSession | None:
        if self._is_over:
            raise SessionLost("The session is over; open a new one")
        session = None if self._held is None else self._held.session
        for operation in operations:
            check_key(operation.key)
            if isinstance(operation, Create) and operation.session not in (None, session):
                raise SessionLost(f"{operation.key}: its session is over")
        return self._held

    async def _resolve_folder_conflict(
        self,
        step: ZooKeeperStep,
        conflict: RegistryConflict | None,
        operations: Sequence[RegistryOperation],
        folders: dict[str, list[str]],
    ) -> RegistryConflict | None:
        """Create missing folders, or record existing ones, which made a commit fail. Return the conflict if folders
        were not the reason."""
        assert step.operation is not None
        key = step.operation.key
        if not step.is_about_folder:
            created = [operation.key for operation in operations if isinstance(operation, Create)]
            await self._connection.make(dict.fromkeys(folder for key in created for folder in self._paths.parents(key)))
            return None
        found, _ = await self._walk(key)
        if found == folders.get(key):
            return conflict
        folders[key] = found
        return None

    async def _walk(self, key: str) -> tuple[list[str], list[str]]:
        """Return the folder of a key and those beneath it, outer ones first, and the keys in them."""
        folders: list[str] = []
        keys: list[str] = []
        level = [self._paths.folder(key)]
        while level:
            listed = zip(level, await self._connection.children_of_all(level), strict=True)
            there = [(folder, names) for folder, names in listed if names is not None]
            folders += [folder for folder, _ in there]
            paths = [f"{folder}/{name}" for folder, names in there for name in sorted(names)]
            keys += [found for found in map(self._paths.key, paths) if found is not None]
            level = [path for path in paths if self._paths.key(path) is None]
        return folders, keys

    async def _read(self, keys: Sequence[str]) -> list[RegistryEntry | None]:
        nodes = await self._connection.get_all([self._paths.leaf(key) for key in keys])
        return [None if node is None else RegistryEntry(key, *node) for key, node in zip(keys, nodes, strict=True)]

    def _on_connection_state(self, state: str) -> None:
        held = self._held
        if state == KazooState.CONNECTED:
            self._connection.watch_beneath(self._paths.keys, self._on_watch_result)
            if held is not None:
                held.change(SessionState.HELD)
        elif held is not None and state == KazooState.LOST:
            self._held, self._is_over = None, True
            held.change(SessionState.LOST)
        elif held is not None:
            held.change(SessionState.DOUBTED)

    def _on_watch_result(self, error: Exception | None) -> None:
        """Handle the result of setting the watch. Changes before that were not reported, so all watches are called."""
        if error is None:
            self._watches.tell_all()
            if not self._watch_set.done():
                self._watch_set.set_result(None)
        elif isinstance(error, UnimplementedError) and not self._watch_set.done():
            self._watch_set.set_exception(RegistryUnavailable("Headrace needs ZooKeeper 3.6 or newer"))

    def _on_change(self, path: str) -> None:
        key = self._paths.key(path)
        if key is not None:
            self._watches.tell([key])


def _conflict_of(step: ZooKeeperStep, error: Exception) -> RegistryConflict | None:
    """Return the conflict that a failed step stands for; None if a folder was missing or existed."""
    operation = step.operation
    if operation is None:
        return SessionLost("The session is over; open a new one")
    key = operation.key
    match error:
        case NotEmptyError():
            return KeyNotEmpty(f"{key} has keys beneath it")
        case NoNodeError() if not step.is_about_folder and not isinstance(operation, Create):
            return NoKey(f"{key} does not exist")
        case NodeExistsError() if not step.is_about_folder:
            return KeyExists(f"{key} already exists")
        case BadVersionError() if not isinstance(operation, Create):
            return BadVersion(f"{key} has another version than {operation.version}")
        case NoNodeError() | NodeExistsError():
            return None
    raise RegistryUnavailable(f"ZooKeeper rejected a commit of {key}: {error!r}") from error
