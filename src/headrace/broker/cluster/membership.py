"""The membership of this broker in the cluster: its broker epoch, its registry session, and its registration.

    <data>/broker      the broker epoch, the cluster id and the node id of the last start in this data folder

The broker epoch counts the starts of a node id. It stays the same while the process lives, even if its session is lost
and replaced. It is written to the data folder before the registry. Therefore a folder whose epoch is behind that of the
registry is not the one that this node id used last, and lacks records that were acknowledged since. Such a folder stays
behind, also after a crash, until the broker has declared that it may lack records (`confirm_broker_epoch`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from headrace.model.errors import HeadraceError, StorageFailure
from headrace.model.registry_records import BrokerRecord, ControllerRecord
from headrace.registry.brokers import CONTROLLER_KEY, advance_operation, cluster_id, decode_number, epoch_key, live_key
from headrace.registry.counters import PRODUCER_IDS_KEY, raise_producer_id_floor, read_producer_id_floor
from headrace.registry.interface import (
    Create,
    Delete,
    Registry,
    RegistryConflict,
    RegistryUnavailable,
    Session,
    SessionState,
    Set,
    decode_json,
)
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.runtime.entropy import Entropy

log = logging.getLogger(__name__)

_FILE_NAME = "broker"
_RETRY_SECONDS = 0.2
_JOIN_SECONDS = 60.0

T = TypeVar("T")


class BrokerIdentity(msgspec.Struct):
    """The identity of this broker in metadata. `host` and `port` are the advertised address, which is known once the
    listener is bound."""

    node_id: int
    cluster_id: str
    epoch: int
    rack: str | None = None
    host: str = ""
    port: int = 0


class BrokerMetadataFile(msgspec.Struct, frozen=True):
    epoch: int
    cluster_id: str
    node_id: int


def read_broker_metadata(disk: Disk, folder: str) -> BrokerMetadataFile | None:
    """Return None if no broker was started in this folder yet. Blocks."""
    advice = "if the other replicas are intact, remove it to replicate the logs again"
    return read_json_file(disk, f"{folder}/{_FILE_NAME}", BrokerMetadataFile, advice)


def read_json_file(disk: Disk, path: str, kind: type[T], advice: str) -> T | None:
    """Return None if the file does not exist. The error of a damaged file contains the advice. Blocks."""
    if not disk.exists(path):
        return None
    try:
        return msgspec.json.decode(disk.read(path), type=kind)
    except msgspec.MsgspecError as error:
        raise StorageFailure(f"{path} is damaged: {error}; {advice}") from error


def write_broker_metadata(disk: Disk, folder: str, start: BrokerMetadataFile) -> None:
    """Durable on return. Blocks."""
    disk.write_atomically(f"{folder}/{_FILE_NAME}", msgspec.json.encode(start))


class NodeIdTaken(HeadraceError):
    """Another broker with this node id is running; choose another --node-id."""


class WrongDataFolder(HeadraceError):
    """The data folder belongs to another cluster or broker; check --data."""


@dataclass(frozen=True, slots=True)
class BrokerStart:
    """`has_latest_data` means that the folder is the one that this node id used last, so it has all acknowledged
    records."""

    cluster_id: str
    epoch: int
    previous_broker_epoch: int
    has_latest_data: bool
    producer_id_floor: int = 0


async def assign_broker_epoch(
    registry: Registry, disk: Disk, clock: Clock, folder: str, node_id: int, entropy: Entropy
) -> BrokerStart:
    """Take the next broker epoch of this node id, first in the folder and then in the registry. A folder that may lack
    records is left behind: see `confirm_broker_epoch`. Raise `NodeIdTaken` if a broker with another folder is
    running."""
    known, floor = await disk.run(lambda: (read_broker_metadata(disk, folder), read_producer_id_floor(disk, folder)))
    cluster = await cluster_id(registry, entropy)
    if known is not None and known.cluster_id != cluster:
        raise WrongDataFolder(
            f"{folder} belongs to cluster {known.cluster_id}, but the registry to cluster {cluster}; "
            "check --registry and --data"
        )
    if known is not None and known.node_id != node_id:
        raise WrongDataFolder(f"{folder} belongs to broker {known.node_id}, not {node_id}; check --node-id and --data")
    in_folder = 0 if known is None else known.epoch
    await _wait_for_session_end(registry, clock, node_id, in_folder)
    key = epoch_key(node_id)
    while True:
        entry = await registry.get(key)
        before = decode_number(entry)
        if in_folder > before:  # the registry may be older than the folder: see registry_rollback
            floor = max(floor, 1 + decode_number(await registry.get(PRODUCER_IDS_KEY)))
            await disk.run(raise_producer_id_floor, disk, folder, floor)
        has_latest_data = in_folder >= before
        start = BrokerStart(cluster, max(before, in_folder) + 1, in_folder, has_latest_data, floor)
        if start.has_latest_data:
            await confirm_broker_epoch(disk, folder, node_id, start)
        try:
            await registry.commit([advance_operation(key, entry, start.epoch)])
        except RegistryConflict:
            continue
        return start


async def _wait_for_session_end(registry: Registry, clock: Clock, node_id: int, in_folder: int) -> None:
    """Wait for the end of the session of a broker that died and lost its folder; raise if that broker is alive. A new
    epoch would make the folder of a live broker appear outdated, and its replicas would be removed while it serves."""
    deadline, has_warned = clock.monotonic() + _JOIN_SECONDS, False
    while (entry := await registry.get(live_key(node_id))) is not None:
        other = decode_json(entry, BrokerRecord)
        if other.epoch <= in_folder:
            return  # an earlier start with this folder, whose session has not ended yet
        if clock.monotonic() > deadline:
            raise _node_id_taken(other)
        if not has_warned:
            log.warning(
                "a broker with this node id is registered; waiting for its session to end node=%d address=%s:%d",
                node_id,
                other.host,
                other.port,
            )
            has_warned = True
        await asyncio.sleep(_RETRY_SECONDS)


def _node_id_taken(other: BrokerRecord) -> NodeIdTaken:
    return NodeIdTaken(
        f"a broker with node id {other.node_id} is running at {other.host}:{other.port}; "
        "choose another --node-id, or stop that broker"
    )


async def confirm_broker_epoch(disk: Disk, folder: str, node_id: int, start: BrokerStart) -> None:
    """Mark the folder as the one that this node id used last: no other broker relies on records that it may lack."""
    await disk.run(write_broker_metadata, disk, folder, BrokerMetadataFile(start.epoch, start.cluster_id, node_id))


class BrokerRegistration:
    """Tracks whether this broker may act on the leaderships that it knows. `refresh` reads the registry again."""

    def __init__(
        self, registry: Registry, clock: Clock, node_id: int, start: BrokerStart, refresh: Callable[[], Awaitable[None]]
    ) -> None:
        self.on_state: list[Callable[[SessionState], None]] = []
        self.state = SessionState.LOST
        self.session_invalid_since: float | None = None
        """When the registry client reported that the session is in doubt or lost."""
        self._refresh = refresh
        self._is_outdated = False  # the session was lost, and the registry has not been read since then
        self._doubted_too_late = False
        self._registry = registry
        self._clock = clock
        self._node_id = node_id
        self._start = start
        self._session: Session | None = None
        self._record: BrokerRecord | None = None
        self._lost = asyncio.Event()

    @property
    def session_valid(self) -> bool:
        """Whether no other broker can consider this one gone. Check it after the last await of each decision that other
        brokers do not confirm. It also compares the clock: after a pause of the process, handlers run before the
        registry client notices that the session has expired."""
        return (
            self.state is SessionState.HELD
            and not self._is_outdated
            and self._clock.monotonic() < self._registry.session_valid_until
        )

    @property
    def session_expired(self) -> bool:
        """Whether the session expired while this broker was paused, or is known to be lost, so that the leaderships it
        knows are outdated. A running broker that cannot reach the registry is in doubt but not expired: during an
        outage of the registry no other leader can be elected, and groups and transactions continue, since the in-sync
        replicas confirm all their changes."""
        return self._doubted_too_late if self.state is SessionState.DOUBTED else not self.session_valid

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    async def open(self) -> None:
        self._session = await self._registry.open_session(self._on_state)

    async def join(self, host: str, port: int, rack: str | None) -> None:
        """Register this broker as live; leader elections may follow immediately."""
        self._record = BrokerRecord(node_id=self._node_id, epoch=self._start.epoch, host=host, port=port, rack=rack)
        await self._rejoin()

    async def run(self) -> None:
        """Whenever the session is lost, open a new one and register again."""
        while True:
            await self._lost.wait()
            log.warning("registry session lost; registering again")
            await self._rejoin()

    async def begin_controlled_shutdown(self) -> None:
        """Announce the shutdown of this broker, so that the controller moves its leaderships to other brokers."""
        if self._record is None or not self.session_valid:
            return
        self._record = msgspec.structs.replace(self._record, is_draining=True)
        try:
            entry = await self._registry.get(live_key(self._node_id))
            if entry is not None:
                await self._registry.commit([Set(entry.key, msgspec.json.encode(self._record), entry.version)])
        except (RegistryConflict, RegistryUnavailable) as error:
            log.warning("announcing the shutdown of this broker failed error=%s", error)

    async def leave(self) -> None:
        if self._session is not None:
            try:
                await self._registry.close_session(self._session)
            except HeadraceError as error:
                log.warning("closing the registry session failed; it will expire error=%s", error)

    async def _rejoin(self) -> None:
        """Register, with a new session whenever the last one is lost, and read the changes that were made meanwhile."""
        deadline = self._clock.monotonic() + _JOIN_SECONDS
        while True:
            try:
                if self._lost.is_set():
                    await self.open()
                if self._record is None or await self._register(deadline):
                    await self._refresh()
                    if not self._lost.is_set():
                        self._is_outdated = False
                        return
            except (RegistryConflict, RegistryUnavailable):
                if self._clock.monotonic() > deadline:
                    raise  # a restart is better than a partially working broker
            await asyncio.sleep(_RETRY_SECONDS)

    async def _register(self, deadline: float) -> bool:
        """Try to register; return False while another broker's registration exists. A registration of an earlier
        session or start of this broker is replaced, instead of waiting for the end of that session."""
        assert self._record is not None
        key = live_key(self._node_id)
        entry = await self._registry.get(key)
        other = None if entry is None else decode_json(entry, BrokerRecord)
        if other is not None and other.epoch not in (self._start.epoch, self._start.previous_broker_epoch):
            if self._clock.monotonic() > deadline or other.epoch > self._start.epoch:
                raise _node_id_taken(other)
            return False
        create = Create(key, msgspec.json.encode(self._record), self.session)
        if entry is None:
            await self._registry.commit([create])
        else:
            await self._registry.commit([Delete(key, entry.version), *await self._controller_resignation(), create])
        return True

    async def _controller_resignation(self) -> list[Delete]:
        """Return the deletion of the controller key if the replaced session owned it. Otherwise no controller could be
        elected until that session expires, and after a crash of all brokers no partition would have a leader."""
        entry = await self._registry.get(CONTROLLER_KEY)
        if entry is None or decode_json(entry, ControllerRecord).node_id != self._node_id:
            return []
        return [Delete(CONTROLLER_KEY, entry.version)]

    def _on_state(self, state: SessionState) -> None:
        now = self._clock.monotonic()
        if state is SessionState.DOUBTED:
            self._doubted_too_late = self.session_expired
        self.state = state
        if state is SessionState.HELD:
            self.session_invalid_since = None
        elif self.session_invalid_since is None:
            self.session_invalid_since = now
        if state is SessionState.LOST:
            self._is_outdated = True
            self._lost.set()
        else:
            self._lost.clear()
        for notify in self.on_state:
            notify(state)
