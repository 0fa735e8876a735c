"""This broker among the others: its number, its session with the registry, and its name in the list of who is up.

The number (broker epoch) counts the starts of this node id and stays the same while the process lives, also when its
session is lost and replaced. It is written to the data folder before it is taken in the registry, so a folder whose
number is behind the registry's is not the one that this node id used last: what it acknowledged since is not there.
Such a folder stays behind until the broker has said so (`confirm_start`), also through a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from headrace.broker.folder_start import FolderStart, read_start, write_start
from headrace.model.broker_record import BrokerRecord
from headrace.model.errors import HeadraceError
from headrace.registry.brokers import (
    CONTROLLER_KEY,
    advanced,
    decode_broker,
    decode_controller,
    decode_number,
    epoch_key,
    live_key,
)
from headrace.registry.identity import cluster_id
from headrace.registry.interface import (
    Create,
    Delete,
    Registry,
    RegistryConflict,
    RegistryUnavailable,
    Session,
    SessionState,
    Set,
)
from headrace.registry.producer_id_floor import raise_floor, read_floor
from headrace.registry.producer_ids import PRODUCER_IDS_KEY
from headrace.runtime.clock import Clock
from headrace.runtime.disk import Disk
from headrace.runtime.entropy import Entropy

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.2
_JOIN_SECONDS = 60.0


class NodeIdTaken(HeadraceError):
    """Another broker with this node id is up."""


class WrongFolder(HeadraceError):
    """The data folder belongs to another cluster, or to another broker."""


@dataclass(frozen=True, slots=True)
class Start:
    """`has_all`: the folder is the one that this node id used last, so what it acknowledged is there."""

    cluster_id: str
    epoch: int
    epoch_before: int
    has_all: bool
    producer_id_floor: int = 0


async def number_start(
    registry: Registry, disk: Disk, clock: Clock, folder: str, node_id: int, entropy: Entropy
) -> Start:
    """Take the next number for this node id, in the folder first and then in the registry. A folder that lacks
    something is left behind: see `confirm_start`. Raises `NodeIdTaken` if a broker of another folder is up."""
    known, floor = await disk.run(lambda: (read_start(disk, folder), read_floor(disk, folder)))
    cluster = await cluster_id(registry, entropy)
    if known is not None and known.cluster_id != cluster:
        raise WrongFolder(
            f"{folder} belongs to cluster {known.cluster_id}, and the registry is that of {cluster}; "
            "check --registry and --data"
        )
    if known is not None and known.node_id != node_id:
        raise WrongFolder(f"{folder} is that of broker {known.node_id}, not of {node_id}; check --node-id and --data")
    in_folder = 0 if known is None else known.epoch
    await _until_vacant(registry, clock, node_id, in_folder)
    key = epoch_key(node_id)
    while True:
        entry = await registry.get(key)
        before = decode_number(entry)
        if in_folder > before:  # the registry may be older than the folder, see older_registry
            floor = max(floor, 1 + decode_number(await registry.get(PRODUCER_IDS_KEY)))
            await disk.run(raise_floor, disk, folder, floor)
        has_all = in_folder >= before
        start = Start(cluster, max(before, in_folder) + 1, in_folder, has_all, floor)
        if start.has_all:
            await confirm_start(disk, folder, node_id, start)
        try:
            await registry.commit([advanced(key, entry, start.epoch)])
        except RegistryConflict:
            continue
        return start


async def _until_vacant(registry: Registry, clock: Clock, node_id: int, in_folder: int) -> None:
    """Wait for the session of a broker that died and lost its folder, but not for one that lives. A number that we took
    beside it would make its folder look outdated, and its replicas would be struck out while it serves."""
    deadline, has_told = clock.monotonic() + _JOIN_SECONDS, False
    while (entry := await registry.get(live_key(node_id))) is not None:
        other = decode_broker(entry)
        if other.epoch <= in_folder:
            return  # an earlier start from this folder, whose session has not ended yet
        if clock.monotonic() > deadline:
            raise _taken(other)
        if not has_told:
            log.warning("broker %d is listed as up at %s:%d; waiting for it to go", node_id, other.host, other.port)
            has_told = True
        await asyncio.sleep(_RETRY_SECONDS)


def _taken(other: BrokerRecord) -> NodeIdTaken:
    return NodeIdTaken(
        f"a broker with node id {other.node_id} is up at {other.host}:{other.port}; "
        "choose another --node-id, or stop it"
    )


async def confirm_start(disk: Disk, folder: str, node_id: int, start: Start) -> None:
    """Nobody counts on what the folder lacks: from now on it is the one that this node id used last."""
    await disk.run(write_start, disk, folder, FolderStart(start.epoch, start.cluster_id, node_id))


class Membership:
    """Answers whether this broker may act on what it believes to lead. `refresh` reads the registry again."""

    def __init__(
        self, registry: Registry, clock: Clock, node_id: int, start: Start, refresh: Callable[[], Awaitable[None]]
    ) -> None:
        self.on_state: list[Callable[[SessionState], None]] = []
        self.state = SessionState.LOST
        self.session_invalid_since: float | None = None
        """When the registry's client reported that the session is in doubt, or lost."""
        self._refresh = refresh
        self._is_outdated = False  # the session was lost, and the registry has not been read since
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
        """Whether no other broker can have been told that this one is gone. Check it at each decision that is not
        confirmed by others, after the last wait: a process that was paused runs handlers before the registry's client
        has noticed anything, so the clock decides, not only the client."""
        return (
            self.state is SessionState.HELD
            and not self._is_outdated
            and self._clock.monotonic() < self._registry.session_valid_until
        )

    @property
    def session_expired(self) -> bool:
        """Whether the session ran out while this broker stood still, or is known to be lost: what this broker believes
        to lead is out of date. A broker that is awake while the registry is out of reach is in doubt, and not expired:
        in an outage of the registry nobody can be elected elsewhere, and groups and transactions go on, since whatever
        they change is confirmed by the in-sync set."""
        return self._doubted_too_late if self.state is SessionState.DOUBTED else not self.session_valid

    @property
    def session(self) -> Session:
        assert self._session is not None
        return self._session

    async def open(self) -> None:
        self._session = await self._registry.open_session(self._on_state)

    async def join(self, host: str, port: int, rack: str | None) -> None:
        """Be listed as up; elections may follow at once."""
        self._record = BrokerRecord(node_id=self._node_id, epoch=self._start.epoch, host=host, port=port, rack=rack)
        await self._rejoin()

    async def run(self) -> None:
        """When the session is lost, open another and register again."""
        while True:
            await self._lost.wait()
            log.warning("the session with the registry is lost; registering again")
            await self._rejoin()

    async def begin_to_leave(self) -> None:
        """Say that this broker is about to go, so that its leads are given to others."""
        if self._record is None or not self.session_valid:
            return
        self._record = msgspec.structs.replace(self._record, is_draining=True)
        try:
            entry = await self._registry.get(live_key(self._node_id))
            if entry is not None:
                await self._registry.commit([Set(entry.key, msgspec.json.encode(self._record), entry.version)])
        except (RegistryConflict, RegistryUnavailable) as error:
            log.warning("the others cannot be told that this broker goes: %s", error)

    async def leave(self) -> None:
        if self._session is not None:
            try:
                await self._registry.close_session(self._session)
            except HeadraceError as error:
                log.warning("the session with the registry ends by itself: %s", error)

    async def _rejoin(self) -> None:
        """Register, with a new session if the last one is lost, also if that happens meanwhile; then read what others
        have decided without this broker."""
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
                    raise  # half alive is worse than restarted
            await asyncio.sleep(_RETRY_SECONDS)

    async def _register(self, deadline: float) -> bool:
        """Whether it is done; not while another broker's entry is in the way. Our own one, of an earlier session or
        start, would be until that session ends: it is replaced."""
        assert self._record is not None
        key = live_key(self._node_id)
        entry = await self._registry.get(key)
        other = None if entry is None else decode_broker(entry)
        if other is not None and other.epoch not in (self._start.epoch, self._start.epoch_before):
            if self._clock.monotonic() > deadline or other.epoch > self._start.epoch:
                raise _taken(other)
            return False
        create = Create(key, msgspec.json.encode(self._record), self.session)
        if entry is None:
            await self._registry.commit([create])
        else:
            await self._registry.commit([Delete(key, entry.version), *await self._vacated(), create])
        return True

    async def _vacated(self) -> list[Delete]:
        """The controller's seat, if it was ours in the session that is replaced: nobody could be elected before that
        session ends by itself, and after a crash of all brokers nobody would lead anything for so long."""
        seat = await self._registry.get(CONTROLLER_KEY)
        if seat is None or decode_controller(seat).node_id != self._node_id:
            return []
        return [Delete(CONTROLLER_KEY, seat.version)]

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
        for told in self.on_state:
            told(state)
