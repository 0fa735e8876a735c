"""A whole broker on a simulated host, asked as a connection asks it: every message passes through the codec."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from headrace.broker.broker import Broker, open_broker
from headrace.broker.handlers import RequestContext
from headrace.broker.partition import Partition
from headrace.runtime.supervise import Supervisor
from headrace.storage.log.reading import LogSlice
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble
from headrace.testkit.world import World
from headrace.wire.apis import APIS, Api
from headrace.wire.codec.codec import decode, encode

DATA = "/data"
API_OF: dict[type, Api] = {api.request: api for api in APIS.values()}


class FakeConnection:
    """What a handler may ask of its connection, and what it has asked."""

    def __init__(self) -> None:
        self.holds: list[bool] = []
        self.closed = False
        self.close_callbacks: dict[object, Callable[[], None]] = {}

    def context(self, version: int) -> RequestContext:
        return RequestContext(
            version, "tester", "10.0.0.1", "PLAINTEXT", self.holds.append, self._close, self.close_callbacks
        )

    def lose(self) -> None:
        """The connection is gone."""
        for farewell in self.close_callbacks.values():
            farewell()

    def _close(self) -> None:
        self.closed = True


class SimulatedBroker:
    """The broker lives on a host of its own, so that it can crash while the test goes on."""

    def __init__(self, world: World, settings: Mapping[str, str] | None = None) -> None:
        self.world = world
        self.host = world.host("broker")
        self.host.disk.cold_chance = 0.0
        self.settings = {"offsets.topic.num.partitions": "2", **(settings or {})}
        self.registry: SimRegistry
        self.broker: Broker
        self.supervisor: Supervisor
        self._truth = SimRegistryEnsemble()
        self._is_open = False

    # Its life

    async def open(self, **settings: str) -> None:
        """Settings by Kafka's names, with underscores instead of dots."""
        self.settings.update({name.replace("_", "."): value for name, value in settings.items()})
        self.registry = SimRegistry(self._truth)
        self.supervisor = Supervisor()
        self.broker = await self.host.start(self._open(), "open")
        self._is_open = True

    async def close(self) -> None:
        """As SIGTERM does it."""
        await self.host.start(self._close(), "close")
        self.host.crash(keep_page_cache=True)
        self._is_open = False

    async def restart(self, **settings: str) -> None:
        await self.close()
        await self.open(**settings)

    def kill(self, *, keep_page_cache: bool = True) -> None:
        """As kill -9, or without its page cache as a power cut."""
        self.registry.crash()
        self.host.crash(keep_page_cache=keep_page_cache)
        self._is_open = False

    def check(self) -> None:
        """Nothing went wrong that nobody was told: no task died, no file stays pinned."""
        if not self._is_open:
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
        await broker.wait_for_leaders()
        return broker

    async def _close(self) -> None:
        self.broker.complete_waiting_requests()
        await self.supervisor.stop()
        await self.broker.stop()

    # Asking it

    async def ask(self, request: object, version: int, fake_connection: FakeConnection | None = None) -> Any:
        return await self.begin(request, version, fake_connection)

    def begin(self, request: object, version: int, fake_connection: FakeConnection | None = None) -> asyncio.Task[Any]:
        """Ask without waiting for the answer."""
        return self.host.start(
            self._serve(request, version, fake_connection or FakeConnection()), type(request).__name__
        )

    async def _serve(self, request: object, version: int, fake_connection: FakeConnection) -> Any:
        api = API_OF[type(request)]
        handler, version = self.broker.handlers.find(api.key, version)
        chunks: list[Any] = [*encode(request, version)]
        buffer = memoryview(bytearray(b"".join(chunks)))
        response = await handler.handle(decode(api.request, version, buffer), fake_connection.context(version))
        return None if response is None else decode_as_client(response, version)

    # Looking at it

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.broker.catalogue.partition(topic, index)

    async def make_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """Configs by Kafka's names, with underscores instead of dots."""
        overrides = {key.replace("_", "."): value for key, value in configs.items()}
        await self.host.start(self.broker.catalogue.create(name, partitions, overrides), "create")

    async def delete_topic(self, name: str) -> None:
        await self.host.start(self.broker.catalogue.delete(name), "delete")

    async def turn(self, times: int = 3) -> None:
        """Let everything run that can run now; hardly any time passes."""
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
