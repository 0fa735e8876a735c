"""A whole broker on a simulated host. Tests call its handlers as a connection does: messages pass through the codec."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from headrace.broker.broker import Broker, open_broker
from headrace.broker.handlers import RequestContext
from headrace.broker.partition import Partition
from headrace.runtime.tasks import Supervisor
from headrace.storage.log.reading import LogSlice
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble
from headrace.testkit.world import World
from headrace.wire.apis import APIS, Api
from headrace.wire.codec.codec import decode, encode

DATA = "/data"
API_OF: dict[type, Api] = {api.request: api for api in APIS.values()}


class FakeConnection:
    """The connection of a request; it records what the handler asks of it."""

    def __init__(self) -> None:
        self.holds: list[bool] = []
        self.closed = False
        self.close_callbacks: dict[object, Callable[[], None]] = {}

    def context(self, version: int) -> RequestContext:
        return RequestContext(
            version, "tester", "10.0.0.1", "PLAINTEXT", self.holds.append, self._close, self.close_callbacks
        )

    def lose(self) -> None:
        """Close the connection, as a client that disconnects does."""
        for callback in self.close_callbacks.values():
            callback()

    def _close(self) -> None:
        self.closed = True


class SimulatedBroker:
    """A broker on its own host, which can crash while the test continues."""

    def __init__(self, world: World, settings: Mapping[str, str] | None = None, *, host: str = "broker") -> None:
        self.world = world
        self.host = world.host(host)
        self.host.disk.cold_chance = 0.0
        self.settings = {"offsets.topic.num.partitions": "2", **(settings or {})}
        self.registry: SimRegistry
        self.broker: Broker
        self.supervisor: Supervisor
        self.registry_ensemble = SimRegistryEnsemble()
        self.is_open = False

    # Life cycle

    async def open(self, **settings: str) -> None:
        """Settings have Kafka's names, with underscores instead of dots."""
        self.settings.update({name.replace("_", "."): value for name, value in settings.items()})
        self.registry = SimRegistry(self.registry_ensemble)
        self.supervisor = Supervisor()
        self.broker = await self.host.start(self._open(), "open")
        self.is_open = True

    async def close(self) -> None:
        """Shut down as on SIGTERM."""
        await self.host.start(self._close(), "close")
        self.host.crash(keep_page_cache=True)
        self.is_open = False

    async def restart(self, **settings: str) -> None:
        await self.close()
        await self.open(**settings)

    def kill(self, *, keep_page_cache: bool = True) -> None:
        """Kill the process, as kill -9 does; without `keep_page_cache`, cut the power."""
        self.registry.crash()
        self.host.crash(keep_page_cache=keep_page_cache)
        self.is_open = False

    def check(self) -> None:
        """Assert that no background task died and no file is still pinned."""
        if not self.is_open:
            return
        assert self.supervisor._first_failure is None
        for log in self.broker.store.logs.values():
            for segment in log.segments:
                assert segment.file is None or not segment.file._pins, f"{segment.file.path} is still pinned"  # type: ignore[attr-defined]

    async def _open(self) -> Broker:
        host = self.host
        broker = await open_broker(
            DATA,
            1,
            "rack-a",
            self.settings,
            self.registry,
            host.disk,
            host.network,
            host.clock,
            host.entropy,
            self.supervisor,
        )
        await broker.join("broker.example", 9092)
        await broker.cluster.wait_for_leaders()
        return broker

    async def _close(self) -> None:
        self.broker.complete_waiting_requests()
        await self.supervisor.stop()
        await self.broker.stop()

    # Requests

    async def send(self, request: object, version: int, connection: FakeConnection | None = None) -> Any:
        return await self.begin_send(request, version, connection)

    def begin_send(self, request: object, version: int, connection: FakeConnection | None = None) -> asyncio.Task[Any]:
        """Send without waiting for the response."""
        return self.host.start(self._serve(request, version, connection or FakeConnection()), type(request).__name__)

    async def _serve(self, request: object, version: int, connection: FakeConnection) -> Any:
        api = API_OF[type(request)]
        handler, version = self.broker.handlers.find(api.key, version)
        chunks: list[Any] = [*encode(request, version)]
        buffer = memoryview(bytearray(b"".join(chunks)))
        response = await handler.handle(decode(api.request, version, buffer), connection.context(version))
        return None if response is None else decode_as_client(response, version)

    # State

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.broker.catalogue.partition(topic, index)

    async def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Configs have Kafka's names, with underscores instead of dots."""
        overrides = {key.replace("_", "."): value for key, value in configs.items()}
        await self.host.start(self.broker.catalogue.create(name, partitions, overrides), "create")

    async def delete_topic(self, name: str) -> None:
        await self.host.start(self.broker.catalogue.delete(name), "delete")

    async def run_ready_tasks(self, times: int = 3) -> None:
        """Let every task that is ready run, while almost no time passes."""
        for _ in range(times):
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def decode_as_client(response: Any, version: int) -> Any:
    """The response as a client of that version sees it."""
    data = bytearray()
    for chunk in encode(response, version):
        if isinstance(chunk, LogSlice):
            data += chunk.bytes()
            chunk.release()
        else:
            data += chunk  # type: ignore[arg-type]
    return decode(type(response), version, memoryview(data))
