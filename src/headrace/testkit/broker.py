"""A whole broker on a host of a simulated world, composed as in `headrace.server`, with simulated interfaces.

    broker = SimBroker(world, world.host("broker"))
    await broker.start()
    broker.host.disk.crash_after(40)        # or broker.kill(), broker.cut_power(), await broker.stop()
    await broker.down()
    await broker.start()                    # on what survived on the disk

- A failure without an injected cause ends the run with `BrokerFailed`: a background task that dies, a handler that
  raises, a quarantined log without a flipped bit, a flipped bit that is served.
- A broker of a cluster may end when it cannot reach the registry, has no space to start, or starts on a failing disk.
  It is down then, which is not a failure.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Mapping
from typing import Any

from headrace.broker.broker import Broker, open_broker
from headrace.broker.cluster.membership import NodeIdTaken
from headrace.protocols.kafka.listener import KafkaServer, ListenerLimits
from headrace.registry.interface import RegistryConflict, RegistryUnavailable
from headrace.runtime.disk_errors import DiskFailed, DiskFull
from headrace.runtime.tasks import BackgroundTaskDied, Supervisor
from headrace.storage.segments.segment import LOG
from headrace.testkit.disk import DiskOperation, SimulatedPowerCut
from headrace.testkit.registry import SimRegistry, SimRegistryEnsemble
from headrace.testkit.world import SimHost, World

DATA = "/data"
PORT = 9092
DRAIN_SECONDS = 10.0
MAY_GIVE_UP_ON = (RegistryUnavailable, RegistryConflict, NodeIdTaken)
MAY_FAIL_TO_START = (*MAY_GIVE_UP_ON, DiskFull)


class BrokerFailed(Exception):
    """The broker failed although no injected fault explains it."""


class SimBroker:
    """One broker, alone or in a cluster. `on_open` is called with the `Broker` of each start before it joins."""

    def __init__(
        self,
        world: World,
        host: SimHost,
        settings: Mapping[str, str] | None = None,
        *,
        node_id: int = 1,
        registry: SimRegistryEnsemble | None = None,
        on_open: Callable[[Broker], None] | None = None,
    ) -> None:
        self.host = host
        self.node_id = node_id
        self.broker: Broker | None = None
        self.starts = 0
        self.damaged: set[str] = set()
        """The folders of logs that may be quarantined, because bits were flipped in them or they were removed."""
        self._world = world
        self.settings = dict(settings or {})
        # As durable as SQLite: a commit is applied as a whole or not at all.
        self._registry = registry or SimRegistryEnsemble()
        self._may_give_up = registry is not None
        self.on_open = on_open
        self._process: _Process | None = None
        self._next_may_fail = False
        world.loop.set_exception_handler(_report_failure)

    @property
    def address(self) -> str:
        return f"{self.host.name}:{PORT}"

    @property
    def is_up(self) -> bool:
        return self.broker is not None and not (self._process and self._process.stop.is_set())

    @property
    def is_down(self) -> bool:
        return self._process is None

    @property
    def registry(self) -> SimRegistry | None:
        """The registry client of the running process, also while it starts or stops."""
        return None if self._process is None else self._process.registry

    @property
    def running(self) -> Broker | None:
        """The broker of the running process, also while it starts or stops."""
        return None if self._process is None else self._process.broker

    @property
    def may_fail(self) -> bool:
        """Whether a log has failed or is about to; it is out of service until the broker restarts."""
        return self._process is not None and self._process.may_fail

    async def start(self) -> bool:
        """Start the broker on the present disk. False if the power was cut before it could serve."""
        assert self._process is None, "it runs already"
        self.starts += 1
        process = self._process = _Process(self, SimRegistry(self._registry))
        process.may_fail, self._next_may_fail = self._next_may_fail, False
        self.host.disk.on_power_cut = self._on_power_cut
        self.host.disk.on_damage_used = self._on_damage_used
        self.host.start(self._run(process), f"broker {self.starts}")
        await asyncio.shield(process.settled)
        return self.is_up

    async def down(self) -> None:
        """Return when the process has ended, for whatever reason."""
        if self._process is not None:
            await asyncio.shield(self._process.ended)

    async def stop(self) -> None:
        """Shut down cleanly, as SIGTERM does. The power may be cut meanwhile."""
        process = self._process
        if process is not None:
            process.stop.set()
            await asyncio.shield(process.ended)

    def kill(self) -> None:
        """Kill the process, as kill -9 does: what it wrote stays in the page cache."""
        self._end(keep_page_cache=True)

    def cut_power(self, *, silently: bool = False) -> None:
        """Cut the power of the host. If the broker is not running, its page cache is still lost."""
        self._end(keep_page_cache=False, silently=silently)

    def check(self) -> None:
        """Raise `BrokerFailed` if the running process had a failure that was only counted. The end of a run checks this
        too."""
        if self._process is not None:
            self._process.check()

    def fail_next_sync(self, pattern: str = "*", operation: DiskOperation = "sync") -> None:
        """Let one sync of this run or of the next start fail. A log may then fail until the next start, or a start may
        fail as a whole."""
        if self._process is None:
            self._next_may_fail = True
        else:
            self._process.may_fail = True
        self.host.disk.fail_next(operation, pattern)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Flip a bit of a log, which may be quarantined from now on. The broker must not run, because it trusts bytes
        that it has written or checked itself."""
        assert self.is_down
        self.damaged.add(posixpath.dirname(path))
        self.host.disk.flip_bit(path, position, bit)

    def lose_log(self, folder: str) -> None:
        """Remove the folder of a log. The broker must not run."""
        assert self.is_down
        self.damaged.add(folder)
        self.host.disk.lose(folder)

    async def _run(self, process: _Process) -> None:
        try:
            broker = await process.open()
            self.broker = broker
            process.settled.set_result(None)
            await process.serve()
            self.broker = None
            await process.close(broker)
        except Exception as error:
            cause = error.__cause__ if isinstance(error, BackgroundTaskDied) else error
            excuses = MAY_GIVE_UP_ON if process.settled.done() else process.expected_start_errors
            if not (self._may_give_up and isinstance(cause, excuses)):
                self._fail(error)
                return
        self._end(keep_page_cache=True)

    def _on_damage_used(self, path: str, position: int) -> None:
        if path.endswith(LOG):  # other files have their own checksums
            self._fail(BrokerFailed(f"it serves byte {position} of {path}, which is damaged"))

    def _on_power_cut(self, _: SimulatedPowerCut) -> None:
        self._end(keep_page_cache=False)

    def _end(self, *, keep_page_cache: bool, silently: bool = False) -> None:
        process, self._process, self.broker = self._process, None, None
        self.host.crash(keep_page_cache=keep_page_cache, silently=silently)
        if process is not None:
            process.registry.crash()
            try:
                process.check()
            except BrokerFailed as error:
                self._fail(error)
            for future in (process.settled, process.ended):
                if not future.done():
                    future.set_result(None)

    def _fail(self, error: Exception) -> None:
        """End the run. Raising is not enough, because the broker may catch the exception."""
        failure = BrokerFailed(f"{self.host.name}, start {self.starts}: {error!r}")
        failure.__cause__ = error
        self._world.loop.halt(failure)


def _report_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report exceptions of callbacks, except power cuts, which are not a failure."""
    if not isinstance(context.get("exception"), SimulatedPowerCut):
        loop.default_exception_handler(context)


class _Process:
    """One run of the broker process."""

    def __init__(self, owner: SimBroker, registry: SimRegistry) -> None:
        loop = asyncio.get_running_loop()
        self.registry = registry
        self.settled: asyncio.Future[None] = loop.create_future()  # done when it serves or never will
        self.ended: asyncio.Future[None] = loop.create_future()
        self.stop = asyncio.Event()
        self.may_fail = False
        self._owner = owner
        self._supervisor = Supervisor()
        self.broker: Broker | None = None
        self._server: KafkaServer | None = None

    @property
    def expected_start_errors(self) -> tuple[type[Exception], ...]:
        return (*MAY_FAIL_TO_START, DiskFailed) if self.may_fail else MAY_FAIL_TO_START

    async def open(self) -> Broker:
        owner, host, supervisor = self._owner, self._owner.host, self._supervisor
        broker = self.broker = await open_broker(
            DATA,
            owner.node_id,
            None,
            owner.settings,
            self.registry,
            host.disk,
            host.network,
            host.clock,
            host.entropy,
            supervisor,
        )
        self.check()
        if owner.on_open is not None:
            owner.on_open(broker)
        self._server = KafkaServer("PLAINTEXT", broker.handlers, host.network, host.clock, ListenerLimits())
        address = await self._server.listen(host.name, PORT)
        supervisor.spawn(self._server.run_sweeps(), "kafka listener")
        await broker.join(*address)
        self._server.start_accepting()
        await broker.cluster.wait_for_leaders()
        return broker

    async def serve(self) -> None:
        """Return when the broker is told to stop; raise if one of its tasks dies."""
        stop = asyncio.create_task(self.stop.wait())
        failure = asyncio.create_task(self._supervisor.failure())
        await asyncio.wait((stop, failure), return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            failure.result()
        failure.cancel()

    async def close(self, broker: Broker) -> None:
        assert self._server is not None
        await broker.cluster.transfer_leadership()
        self._server.stop_listening()
        broker.complete_waiting_requests()
        await self._server.drain(DRAIN_SECONDS)
        await self._supervisor.stop()
        await broker.stop()

    def check(self) -> None:
        """Raise if there was a failure that was only counted."""
        if self.broker is not None:
            for log in self.broker.store.logs.values():
                is_unexplained = log.quarantined is not None and log.folder not in self._owner.damaged
                if is_unexplained or (log.failed is not None and not self.may_fail):
                    raise BrokerFailed(f"{log.folder}: {log.quarantined or log.failed}")
        if self._server is not None and self._server.failures:
            raise BrokerFailed(f"{self._server.failures} requests failed by an exception; see the log")
