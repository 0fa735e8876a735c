"""A real broker inside your test process: it listens on loopback, stores its data in a folder, and starts quickly.

    def test_an_order_is_billed():
        with EmbeddedBroker() as broker, Client(broker.address) as client:
            client.publish("orders", {"id": 1})
            ...

Nothing is simulated: it runs the code of `headrace serve`, with real files and sockets, in a thread of this process.
Any Kafka client can use its `address`, and any HTTP client its `url`. The data is deleted at the end, unless you name a
folder. `stop` and `start` restart the broker with the same data and ports.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Self

from headrace.broker.broker import open_broker
from headrace.http.limits import HttpLimits
from headrace.protocols.kafka.listener import KafkaServer, ListenerLimits
from headrace.registry.sqlite import SqliteRegistry
from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import SystemDisk
from headrace.runtime.entropy import SystemEntropy
from headrace.runtime.network import SystemNetwork
from headrace.runtime.tasks import Supervisor
from headrace.sdk.loop_thread import LoopThread
from headrace.server.http_server import HttpServer
from headrace.server.metrics import BrokerMetrics
from headrace.server.settings import ServeSettings

_HOST = "127.0.0.1"
_NODE_ID = 1
_DRAIN_SECONDS = 5.0


class EmbeddedBroker:
    """Use it as `with EmbeddedBroker() as broker:`, or with `async with`. `settings` are broker configs by Kafka's
    names, such as {"num.partitions": "3"}."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, folder: str | os.PathLike[str] | None = None):
        self._settings = dict(settings or {})
        self._folder = None if folder is None else os.fspath(folder)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._ports = 0, 0
        self._thread: LoopThread | None = None
        self._close: Callable[[], Coroutine[Any, Any, None]] | None = None

    @property
    def address(self) -> str:
        """The address for Kafka clients, "127.0.0.1:PORT"; known after the first start."""
        assert self._ports[0], "start the broker first"
        return f"{_HOST}:{self._ports[0]}"

    @property
    def url(self) -> str:
        """The URL of the REST API, "http://127.0.0.1:PORT"; known after the first start."""
        assert self._ports[1], "start the broker first"
        return f"http://{_HOST}:{self._ports[1]}"

    def start(self) -> None:
        """Start the broker; returns when it accepts connections."""
        assert self._thread is None, "it runs already"
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="headrace-")
            self._folder = self._temporary.name
        self._thread = LoopThread("headrace-broker")
        try:
            self._ports, self._close = self._thread.call(_open(self._folder, self._settings, self._ports))
        except BaseException:
            self._end_thread()
            self._clean_up()
            raise

    def stop(self) -> None:
        """Shut down cleanly, as SIGTERM does. Raises the error of a background task that has failed."""
        close, self._close = self._close, None
        if self._thread is not None and close is not None:
            try:
                self._thread.call(close())
            finally:
                self._end_thread()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._clean_up()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.__enter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)

    def _clean_up(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = self._folder = None

    def _end_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


async def _open(
    folder: str, settings: dict[str, str], ports: tuple[int, int]
) -> tuple[tuple[int, int], Callable[[], Coroutine[Any, Any, None]]]:
    """Start a broker on the event loop of its thread. Returns its ports, and the function that shuts it down."""
    clock, entropy, network = SystemClock(), SystemEntropy(), SystemNetwork()
    disk, supervisor = SystemDisk(), Supervisor()
    disk.make_directory(folder)
    registry = await SqliteRegistry.open(os.path.join(folder, "registry.db"), disk.run)
    broker = await open_broker(folder, _NODE_ID, None, settings, registry, disk, network, clock, entropy, supervisor)
    kafka_server = KafkaServer("PLAINTEXT", broker.handlers, network, clock, ListenerLimits())
    _, port = await kafka_server.listen(_HOST, ports[0])
    metrics = BrokerMetrics(broker, kafka_server, clock)
    at = ServeSettings(data=folder, http=(_HOST, ports[1]))
    http = HttpServer(at, broker, metrics, HttpLimits(), supervisor, disk, network, clock, entropy)
    metrics.http = http
    _, http_port = await http.listen()
    supervisor.spawn(kafka_server.run_sweeps(), "kafka listener")
    await broker.join(_HOST, port)
    kafka_server.start_accepting()
    await broker.cluster.wait_for_leaders()
    http.open()

    async def close() -> None:
        await http.begin_shutdown()
        await broker.cluster.transfer_leadership()
        kafka_server.stop_listening()
        http.listener.stop_listening()
        broker.complete_waiting_requests()
        await kafka_server.drain(_DRAIN_SECONDS)
        await http.listener.drain(_DRAIN_SECONDS)
        await http.close()
        await supervisor.stop()
        await broker.stop()
        disk.close()
        await supervisor.failure()

    return (port, http_port), close
