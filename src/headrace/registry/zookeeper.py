"""The registry on ZooKeeper, for brokers on many hosts. Import it only where it is used: kazoo takes its time.

- A session of ours is a node of its own, `<root>/sessions/<id>`, ephemeral in ZooKeeper's session. Every commit checks
  that it is there. kazoo begins a new session of ZooKeeper by itself when one has expired, and what was decided before
  might be committed by it: with the check it cannot.
- While the connection is down, `commit` is refused at once; reads wait a while for it to come back.
- ZooKeeper answers reads from any server, which may be behind. After a conflict, and when the connection was made anew,
  the next read asks the server to catch up first.
- `entries` is not a picture of one moment: keys may change between its reads. A watch tells of those that did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, UnimplementedError
from kazoo.protocol.states import KazooState

from headrace.registry.interface import (
    VALID_SHARE,
    BadVersion,
    Create,
    Delete,
    KeyExists,
    KeyNotEmpty,
    NoKey,
    RegisteredWatch,
    RegisteredWatches,
    RegistryConflict,
    RegistryEntry,
    RegistryOperation,
    RegistryUnavailable,
    Session,
    SessionLost,
    SessionState,
    check_key,
)
from headrace.registry.zookeeper_connection import ZooKeeperConnection
from headrace.registry.zookeeper_plan import ZooKeeperPaths, ZooKeeperStep, plan_transaction
from headrace.runtime.clock import Clock

SESSION_TIMEOUT_SECONDS = 10.0
ATTEMPTS_MAX = 20


class _ZooKeeperSession(msgspec.Struct, eq=False):
    session: Session
    path: str
    on_state: Callable[[SessionState], None] | None
    state: SessionState = SessionState.HELD

    def turn(self, state: SessionState) -> None:
        if self.state is not state and self.state is not SessionState.LOST:  # which is final
            self.state = state
            if self.on_state is not None:
                self.on_state(state)


class ZooKeeperRegistry:
    """Implements `Registry`. Open it with `await ZooKeeperRegistry.open(*parse_registry_url(text), clock)`."""

    def __init__(self, hosts: str, root: str, clock: Clock, session_timeout_seconds: float) -> None:
        self._paths = ZooKeeperPaths(root)
        self._watches = RegisteredWatches()
        self._watching: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held: _ZooKeeperSession | None = None
        self._is_over = False
        self._link = ZooKeeperConnection(hosts, session_timeout_seconds, self._turn, self._hear, clock)

    @classmethod
    async def open(
        cls, hosts: str, root: str, clock: Clock, session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS
    ) -> ZooKeeperRegistry:
        """Connect, and make the cluster's root if it is not there. Raises `RegistryUnavailable`."""
        registry = cls(hosts, root, clock, session_timeout_seconds)
        try:
            await registry._begin()
        except BaseException:
            await registry.close()
            raise
        return registry

    @property
    def session_timeout_seconds(self) -> float:
        """What was agreed on: the servers have bounds of their own."""
        return self._link.session_timeout_seconds

    @property
    def session_valid_until(self) -> float:
        if self._held is None:
            return float("-inf")
        return self._link.last_confirmed(self._held.session.id) + VALID_SHARE * self._link.session_timeout_seconds

    async def get(self, key: str) -> RegistryEntry | None:
        check_key(key)
        await self._link.catch_up()
        (entry,) = await self._read([key])
        return entry

    async def entries(self, prefix: str) -> Sequence[RegistryEntry]:
        check_key(prefix)
        await self._link.catch_up()
        _, keys = await self._walk(prefix)
        return [entry for entry in await self._read(sorted(keys)) if entry is not None]

    async def children(self, key: str) -> Sequence[str]:
        check_key(key)
        await self._link.catch_up()
        _, keys = await self._walk(key)
        return sorted({other[len(key) + 1 :].split("/", 1)[0] for other in keys})

    async def commit(self, operations: Sequence[RegistryOperation]) -> None:
        held = self._check_session(operations)
        session = None if held is None else held.path
        folders: dict[str, list[str]] = {}
        for _ in range(ATTEMPTS_MAX):
            failed = await self._link.transact(plan_transaction(self._paths, operations, session, folders))
            if failed is None:
                deleted = (_parent(operation.key) for operation in operations if isinstance(operation, Delete))
                self._link.remove_if_empty(self._paths.folder(key) for key in dict.fromkeys(deleted) if key)
                return
            step, error = failed
            conflict = _conflict_of(step, error)
            if conflict is None or isinstance(conflict, KeyNotEmpty):
                conflict = await self._resolve_folder_conflict(step, conflict, operations, folders)
            if conflict is not None:
                raise conflict
        raise RegistryUnavailable("The registry's folders change too quickly; try again")

    async def open_session(self, on_state: Callable[[SessionState], None] | None = None) -> Session:
        assert self._held is None, "a session is open already"
        await self._link.until_connected()
        number = self._link.session_id
        if number is not None:
            path = self._paths.session(number)
            await self._link.make([path], are_ephemeral=True)
            if await self._link.owner(path) == number == self._link.session_id:
                self._held, self._is_over = _ZooKeeperSession(Session(number), path, on_state), False
                if on_state is not None:
                    on_state(SessionState.HELD)
                return self._held.session
        raise RegistryUnavailable("The connection to ZooKeeper was lost while a session was opened")

    async def close_session(self, session: Session) -> None:
        if self._held is None or self._held.session != session:
            return
        self._held, self._is_over = None, True
        await self._link.stop()
        self._link.start()

    def watch(self, prefix: str, changed: Callable[[str], None]) -> RegisteredWatch:
        check_key(prefix)
        return self._watches.add(prefix, changed)

    async def close(self) -> None:
        self._held, self._is_over = None, True
        await self._link.stop()
        self._link.release()

    async def _begin(self) -> None:
        self._link.start()
        await self._link.until_connected()
        await self._link.make([*_with_parents(self._paths.keys), self._paths.sessions])
        await self._link.until(self._watching)

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
        """Make or note the folders that stood in the way of a commit; the conflict if it was not them."""
        assert step.operation is not None
        key = step.operation.key
        if not step.is_about_folder:
            created = [operation.key for operation in operations if isinstance(operation, Create)]
            await self._link.make(dict.fromkeys(folder for key in created for folder in self._paths.parents(key)))
            return None
        found, _ = await self._walk(key)
        if found == folders.get(key):
            return conflict
        folders[key] = found
        return None

    async def _walk(self, key: str) -> tuple[list[str], list[str]]:
        """The folders of a key and beneath it, the outer ones first, and the keys in them."""
        folders: list[str] = []
        keys: list[str] = []
        level = [self._paths.folder(key)]
        while level:
            listed = zip(level, await self._link.children_of_all(level), strict=True)
            there = [(folder, names) for folder, names in listed if names is not None]
            folders += [folder for folder, _ in there]
            paths = [f"{folder}/{name}" for folder, names in there for name in sorted(names)]
            keys += [found for found in map(self._paths.key, paths) if found is not None]
            level = [path for path in paths if self._paths.key(path) is None]
        return folders, keys

    async def _read(self, keys: Sequence[str]) -> list[RegistryEntry | None]:
        nodes = await self._link.get_all([self._paths.leaf(key) for key in keys])
        return [None if node is None else RegistryEntry(key, *node) for key, node in zip(keys, nodes, strict=True)]

    def _turn(self, state: str) -> None:
        held = self._held
        if state == KazooState.CONNECTED:
            self._link.watch_beneath(self._paths.keys, self._watch_again)
            if held is not None:
                held.turn(SessionState.HELD)
        elif held is not None and state == KazooState.LOST:
            self._held, self._is_over = None, True
            held.turn(SessionState.LOST)
        elif held is not None:
            held.turn(SessionState.DOUBTED)

    def _watch_again(self, error: Exception | None) -> None:
        """The watch stands; what changed before it did was not told."""
        if error is None:
            self._watches.tell_all()
            if not self._watching.done():
                self._watching.set_result(None)
        elif isinstance(error, UnimplementedError) and not self._watching.done():
            self._watching.set_exception(RegistryUnavailable("Headrace needs ZooKeeper 3.6 or newer"))

    def _hear(self, path: str) -> None:
        key = self._paths.key(path)
        if key is not None:
            self._watches.tell([key])


def _conflict_of(step: ZooKeeperStep, error: Exception) -> RegistryConflict | None:
    """What a step that did not fit means; None when it was only for want of a folder, or for one that is there."""
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
            return KeyExists(f"{key} exists already")
        case BadVersionError() if not isinstance(operation, Create):
            return BadVersion(f"{key} has another version than {operation.version}")
        case NoNodeError() | NodeExistsError():
            return None
    raise RegistryUnavailable(f"ZooKeeper refuses {key}: {error!r}") from error


def _parent(key: str) -> str:
    return key.rpartition("/")[0]


def _with_parents(path: str) -> list[str]:
    parts = path[1:].split("/")
    return [f"/{'/'.join(parts[: depth + 1])}" for depth in range(len(parts))]
