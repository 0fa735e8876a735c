"""A client's view of a cluster: metadata, connections, routing and retries.

- All requests go through `Cluster`. A call is one attempt at one broker; `call_with_retries` repeats an attempt with
  back-off until its deadline, as long as the error is retriable.
- Every retriable error invalidates the metadata, and the next use refreshes it. Callers need not know which errors are
  caused by stale metadata.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from headrace.client.connections.address import Address, parse_addresses
from headrace.client.connections.backoff import Backoff
from headrace.client.connections.tcp import TcpDialer
from headrace.client.connections.transport import Dialer, Transport, TransportPool, api_of_request, choose_version
from headrace.client.errors import Unreachable, error_of_code, raise_for_code
from headrace.client.metadata import ClusterView, PartitionView, TopicPartition, TopicView
from headrace.model.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    NotCoordinator,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from headrace.runtime.clock import Clock, SystemClock
from headrace.runtime.entropy import Entropy, SystemEntropy
from headrace.runtime.network import SystemNetwork
from headrace.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")

_GROUP, _TRANSACTION = 0, 1  # key_type of FindCoordinator


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Timeouts and retries of a client."""

    client_id: str = "headrace"
    dial_timeout_seconds: float = 5.0
    request_timeout_seconds: float = 30.0
    deadline_seconds: float = 60.0  # of a call including its retries
    metadata_age_seconds_max: float = 300.0

    @property
    def request_timeout_ms(self) -> int:
        return int(self.request_timeout_seconds * 1000)


def connect(bootstrap: str, settings: ClientSettings | None = None) -> Cluster:
    """Return a cluster that is reached through `bootstrap` ("host:port,host:port") over TCP, without connecting yet.
    Use it as `async with connect("127.0.0.1:9092") as cluster:`."""
    settings = settings or ClientSettings()
    dialer = TcpDialer(SystemNetwork(), settings.client_id)
    return Cluster(parse_addresses(bootstrap), dialer, SystemClock(), SystemEntropy(), settings)


class Cluster:
    """Shared by the producers, consumers and admin calls of one client; bound to one event loop."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        dialer: Dialer,
        clock: Clock,
        entropy: Entropy,
        settings: ClientSettings | None = None,
    ) -> None:
        assert bootstrap
        self.settings = settings or ClientSettings()
        self.clock = clock
        self.entropy = entropy
        self.view = ClusterView()
        self._bootstrap = tuple(bootstrap)
        self._transports = TransportPool(dialer, self.settings.dial_timeout_seconds)
        self._coordinators: dict[str, int] = {}
        self._refreshing = asyncio.Lock()
        self._refreshed_at: float | None = None
        self._last_address: Address | None = None
        self._metadata_source: Address | None = None
        self._avoided_address: Address | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; pending calls fail with ConnectionLost."""
        self._transports.close()

    # --- one attempt ---

    async def call(
        self,
        request: Any,
        *,
        node_id: int | None = None,
        version_max: int | None = None,
        timeout_seconds: float | None = None,
        connection_key: str = "",
    ) -> Any:
        """One attempt at one broker, or at any if `node_id` is None; error codes of the response are not checked."""
        transport = await (self.any_transport() if node_id is None else self.transport(node_id, connection_key))
        api = api_of_request(request)
        version = choose_version(transport, api, version_max)
        return await transport.call(api.key, version, request, timeout_seconds or self.settings.request_timeout_seconds)

    async def call_controller(self, request: Any) -> Any:
        """One attempt at the controller, or at any broker if the controller is not known."""
        if not self.fresh:
            async with self._refreshing:
                if not self.fresh:
                    await self.refresh(self.view.topics)
        controller_id = self.view.controller_id
        node_id = controller_id if controller_id in self.view.nodes else None
        return await self.call(request, node_id=node_id)

    async def call_leader(self, partition: tuple[str, int], request: Any) -> Any:
        return await self.call(request, node_id=(await self.partition(*partition)).leader)

    async def call_coordinator(
        self,
        group: str,
        request: Any,
        *,
        version_max: int | None = None,
        timeout_seconds: float | None = None,
        connection_key: str = "",
    ) -> Any:
        node_id = await self.coordinator(group)
        try:
            return await self.call(
                request,
                node_id=node_id,
                version_max=version_max,
                timeout_seconds=timeout_seconds,
                connection_key=connection_key,
            )
        except HeadraceError as error:
            if error.retriable:
                self.forget_coordinator(group)
            raise

    # --- many attempts ---

    async def call_with_retries(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        deadline_seconds: float | None = None,
        topics_may_appear: bool = False,
    ) -> T:
        """Repeat `attempt` while its error is retriable, with full-jitter back-off, until the deadline. An unknown
        topic is not retried, unless it may be about to appear because it was just created."""
        deadline = self.clock.monotonic() + (deadline_seconds or self.settings.deadline_seconds)
        backoff = self.backoff()
        while True:
            try:
                return await attempt()
            except HeadraceError as error:
                unknown = isinstance(error, UnknownTopicOrPartition | UnknownTopicId)
                if not error.retriable or (unknown and not topics_may_appear):
                    raise
                self.invalidate_metadata()
                pause = backoff.next_seconds()
                if self.clock.monotonic() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)

    async def call_until_success(self, request: Any, partition: tuple[str, int] | None = None) -> Any:
        """Call the leader of a partition, or any broker, with retries; raises the error of the response."""

        async def attempt() -> Any:
            response = await (self.call(request) if partition is None else self.call_leader(partition, request))
            raise_for_code(response.error_code, response.error_message)
            return response

        return await self.call_with_retries(attempt)

    def backoff(self) -> Backoff:
        return Backoff(self.entropy)

    # --- metadata ---

    async def refresh(self, topics: Iterable[str] | None = None, *, create: bool = False) -> ClusterView:
        """Request metadata of these topics (None: all); `create` lets the broker create missing ones.

        A refresh that leaves out known topics does not make the metadata fresh: theirs would never be refreshed."""
        names = None if topics is None else sorted(set(topics))
        request = MetadataRequest(
            topics=None if names is None else [MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=create,
        )
        response: MetadataResponse = await self.call(request)
        raise_for_code(response.error_code)
        self._metadata_source = self._last_address
        if names is None or self.view.topics.keys() <= set(names):
            self._refreshed_at = self.clock.monotonic()
        self.view = self.view.merged(response, complete=names is None)
        return self.view

    def invalidate_metadata(self) -> None:
        """Refresh the metadata at the next use, and not from the broker that it came from, which may lag."""
        if self._refreshed_at is not None:
            self._avoided_address = self._metadata_source
        self._refreshed_at = None

    async def topic(self, name: str, *, create: bool = False) -> TopicView:
        """The topic, from the cache while it is fresh; raises the broker's error if there is no description."""
        if not self.fresh or name not in self.view.topics:
            async with self._refreshing:
                if not self.fresh or name not in self.view.topics:
                    await self.refresh({name, *self.view.topics}, create=create)
        return self._known_topic(name)

    async def current_topic(self, name: str, *, create: bool = False) -> TopicView:
        """The topic as the brokers describe it now. Administration needs this, because cached metadata lacks partitions
        that were added since. `create` creates only this topic, whatever other topics were deleted meanwhile."""
        await self.refresh([name], create=create)
        return self._known_topic(name)

    async def wait_for_topic(self, name: str, seconds: float, *, create: bool) -> TopicView:
        """The topic, with retries for this long; with `create` also while it does not exist yet."""
        return await self.call_with_retries(
            lambda: self.topic(name, create=create), deadline_seconds=seconds, topics_may_appear=create
        )

    def _known_topic(self, name: str) -> TopicView:
        found = self.view.topics.get(name)
        if found is None:
            code = self.view.topic_errors.get(name, UnknownTopicOrPartition.code)
            is_unknown = code == UnknownTopicOrPartition.code
            why = f"there is no topic {name!r}" if is_unknown else f"topic {name!r}: {error_of_code(code).message}"
            raise error_of_code(code, why)
        return found

    async def partition(self, topic: str, partition: int) -> PartitionView:
        """One partition of a topic; raises UnknownTopicOrPartition."""
        view = await self.topic(topic)
        view.check_partition(partition)
        return view.partitions[partition]

    async def partitions_by_leader(self, targets: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for target in targets:
            by_leader[(await self.partition(*target)).leader].append(target)
        return by_leader

    async def coordinator(self, group: str) -> int:
        if group not in self._coordinators:
            node_id = await self._find_coordinator(group, _GROUP)
            if node_id not in self.view.nodes:
                await self.refresh([])
            if node_id not in self.view.nodes:
                raise CoordinatorNotAvailable(f"broker {node_id}, which coordinates {group!r}, is not known yet")
            self._coordinators[group] = node_id
        return self._coordinators[group]

    async def transaction_coordinator(self, transactional_id: str) -> int:
        """The node id of the broker that coordinates the transactions of this id; one attempt."""
        return await self._find_coordinator(transactional_id, _TRANSACTION)

    async def _find_coordinator(self, key: str, key_type: int) -> int:
        request = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
        response: FindCoordinatorResponse = await self.call(request)
        found = response.coordinators[0] if response.coordinators else response
        raise_for_code(found.error_code, found.error_message)
        return found.node_id

    def forget_coordinator(self, group: str) -> None:
        self._coordinators.pop(group, None)

    def raise_for_coordinator(self, group: str, code: int, message: str | None = None) -> None:
        """Raise the error of a response of the group's coordinator, which is forgotten if it has moved."""
        try:
            raise_for_code(code, message)
        except (NotCoordinator, CoordinatorNotAvailable):
            self.forget_coordinator(group)
            raise

    @property
    def fresh(self) -> bool:
        """Whether the metadata is recent and no error has indicated a change since."""
        age_max = self.settings.metadata_age_seconds_max
        return self._refreshed_at is not None and self.clock.monotonic() - self._refreshed_at < age_max

    # --- transports ---

    async def transport(self, node_id: int, connection_key: str = "") -> Transport:
        """The open transport to a broker for this connection key; dials if there is none."""
        if node_id not in self.view.nodes:
            await self.refresh(self.view.topics)
        address = self.view.nodes.get(node_id)
        if address is None:
            raise Unreachable(f"broker {node_id} is not in the cluster's metadata; it may be down")
        try:
            return await self._transports.get_or_dial(address, connection_key)
        except Unreachable as error:
            raise Unreachable(
                f"broker {node_id} advertises {address}, which cannot be reached from here "
                f"({error.message}); check the advertised address of the broker"
            ) from error

    async def any_transport(self) -> Transport:
        """A transport to any reachable broker: prefers an open one, then known brokers, then bootstrap addresses. The
        source of invalidated metadata comes last, because it may be cut off from the cluster."""
        failures = []
        candidates = dict.fromkeys([*self.view.nodes.values(), *self._bootstrap])
        is_open = self._transports.any_open(but=self._avoided_address)
        for address in sorted(candidates, key=lambda address: (address == self._avoided_address, address != is_open)):
            try:
                transport = await self._transports.get_or_dial(address, "")
                self._last_address = address
                return transport
            except Unreachable as error:
                failures.append(error.message)
        raise Unreachable("; ".join(failures))

    def close_connections(self, connection_key: str) -> None:
        self._transports.close_connections(connection_key)
